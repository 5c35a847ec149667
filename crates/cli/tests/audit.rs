//! `aludel audit`: archives of the log.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use aludel_store::{AuditEntry, AuditEvent, Store, Tenant};
use common::{Said, aludel, data, said, wait_until};

fn audit(data: &Path, arguments: &[&str]) -> Said {
    said(aludel(data).arg("audit").args(arguments).arg("--data").arg(data))
}

async fn note(data: &Path, code: &str) {
    let store = Store::open_beside(&data.join("state")).await.unwrap();
    let (request, session) = ("resp_1".into(), "cntr_1".into());
    let (code, actor, outcome) = (code.into(), "nobody is asked".into(), String::new());
    let entry = AuditEntry { event: AuditEvent::Started, request, session, code, actor, outcome };
    store.audit(&Tenant::local(), vec![entry.clone(), entry]).await.unwrap();
}

#[tokio::test]
async fn a_log_that_is_followed_ends_with_its_reader() {
    let data = data();
    let data = data.path();
    std::fs::create_dir(data.join("state")).unwrap();
    note(data, "print(1)").await;
    let mut command = aludel(data);
    command.args(["audit", "--follow", "--data"]).arg(data).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("print(1)"), "{first}");
    // The reader is dropped, and no entry comes.
    wait_until(|| child.try_wait().unwrap().is_some(), "it goes on");
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[tokio::test]
async fn an_archive_can_be_checked_alone_and_the_log_goes_on_from_it() {
    let data = data();
    let data = data.path();
    std::fs::create_dir(data.join("state")).unwrap();
    note(data, "print(1)").await;
    let shown = audit(data, &[]);
    assert!(shown.stdout.contains("  started, nobody is asked  | print(1)"), "{shown:#?}");
    let none = audit(data, &["archive", "a.jsonl", "--before", "2020-01-01"]);
    assert!(none.status == Some(0) && none.stderr.contains("nothing before 2020-01-01"), "{none:#?}");
    assert!(!data.join("a.jsonl").exists() && !data.join("a.jsonl.part").exists());

    let archived = audit(data, &["archive", "a.jsonl", "--before", "9999-12-01"]);
    assert!(archived.stdout.starts_with("entries 1 to 2, unchanged, up to digest "), "{archived:#?}");
    assert_eq!(audit(data, &["verify", "a.jsonl"]).stdout, archived.stdout);
    assert_eq!(audit(data, &[]).stdout, "");
    let twice = audit(data, &["archive", "a.jsonl", "--before", "9999-12-01"]);
    assert!(twice.status == Some(2) && twice.stderr.contains("there already"), "{twice:#?}");

    let missing = audit(data, &["verify", "none.jsonl"]);
    assert!(missing.status == Some(2) && missing.stderr.contains("none.jsonl: No such file"), "{missing:#?}");

    note(data, "print(2)").await;
    let verified = audit(data, &["--verify"]);
    assert!(
        verified.stdout.starts_with("4 entries, unchanged; 2 of them are archived, up to digest "),
        "{verified:#?}"
    );
    let archived = audit(data, &["archive", "b.jsonl", "--before", "9999-12-01"]);
    assert!(archived.stdout.starts_with("entries 3 to 4, unchanged"), "{archived:#?}");
    assert_eq!(audit(data, &["verify", "b.jsonl"]).stdout, archived.stdout);

    let text = std::fs::read_to_string(data.join("b.jsonl")).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert_eq!(text.matches("print(2)").count(), 1, "a program stands in an archive once");
    for (changed, words) in [
        (text.replace("print(2)", "print(3)"), "entry 3 is not as it was written"),
        (
            text.lines().enumerate().filter(|(index, _)| *index != 1).map(|(_, line)| format!("{line}\n")).collect(),
            "entry 3",
        ),
        (text.replace("\"code\":\"print(2)\",", ""), "program of entry 3 is missing"),
        (text.replacen("\"number\":4", "number", 1), "line 3 is no entry"),
        (text.lines().skip(1).collect(), "line 1"),
    ] {
        std::fs::write(data.join("c.jsonl"), changed).unwrap();
        let refused = audit(data, &["verify", "c.jsonl"]);
        assert!(refused.status != Some(0) && refused.stderr.contains(words), "{refused:#?}");
    }
}
