//! Every backend keeps the same contract.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use aludel_sandbox::memory::{Memory, ScriptedCell};
use aludel_sandbox::{ConformancePrograms, conformance};
use common::{Held, backend};

#[tokio::test(flavor = "multi_thread")]
async fn the_local_backend_conforms() {
    let scratch = backend().await;
    let skipped = conformance(&scratch.local, &ConformancePrograms::python()).await;
    assert!(skipped.is_empty(), "{skipped:?}");
    Held::nothing_soon(scratch.data.path()).await;
}

#[tokio::test]
async fn the_memory_backend_conforms() {
    let skipped = conformance(&Memory::new(scripted), &ConformancePrograms::python()).await;
    let skips = ["a port is connected to", "a command runs in a terminal", "a command runs beside the kernel"];
    assert_eq!(skipped, skips);
}

/// Plays the suite's programs.
fn scripted(code: &str, cell: &mut ScriptedCell) {
    let programs = ConformancePrograms::python();
    if code == programs.prints {
        cell.print("hello\n");
    } else if code == programs.prints_error {
        cell.print_error("oops\n");
    } else if Some(code) == programs.has_result.as_deref() {
        cell.result("2");
    } else if code == programs.fails {
        cell.fail("ValueError", "no");
    } else if code == programs.makes_file {
        cell.write("made", "content");
    } else if code == programs.reads_file {
        let given = cell.read("given").unwrap();
        cell.print(String::from_utf8(given).unwrap());
    } else if code == programs.remembers {
        cell.variables.insert("remembered".into(), "yes".into());
    } else if code == programs.recalls {
        if cell.variables.contains_key("remembered") {
            cell.print("remembered\n");
        } else {
            cell.fail("NameError", "name 'remembered' is not defined");
        }
    } else if code == programs.prints_variable {
        let word = cell.environment.get("WORD").map_or("none", String::as_str);
        cell.print(format!("{word}\n"));
    } else if code == programs.calls {
        if cell.tools.is_empty() {
            cell.fail("NameError", "name 'tool' is not defined");
        } else {
            cell.print("begun\n").call([("tool", r#"{"n":1}"#), ("tool", r#"{"n":2}"#)]).call([("tool", r#"{"n":3}"#)]);
        }
    } else if code == programs.never_ends {
        cell.print("begun\n").never_end();
    } else if code == programs.ignores_interrupts {
        cell.print("begun\n").hang();
    } else if code == programs.dies {
        cell.exit(3);
    } else if code == programs.floods {
        cell.flood(1 << 20);
    } else if code == programs.fills_workspace {
        cell.write("large", vec![0; 17 << 20]);
    } else {
        panic!("an unknown program: {code}");
    }
}
