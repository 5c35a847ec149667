//! Kernels of other languages than Python.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::sync::Arc;

use aludel_sandbox::{
    Backend, Cell, Error, ExecutionEvent, Kernel, KernelOptions, Outcome, Profile, Sandbox, SandboxId, SandboxSpec,
    attack,
};
use common::{Told, limits, listen, run, shared};

async fn sandbox() -> Arc<dyn Sandbox> {
    let spec = SandboxSpec { profile: Profile::Services, ..SandboxSpec::new(limits()) };
    shared().await.create(SandboxId::unique(), spec).await.unwrap()
}

fn in_language(name: &str) -> KernelOptions {
    KernelOptions {
        language: Some(name.parse().unwrap()),
        directory: Some("/tmp".into()),
        environment: vec![("PLACE".into(), "kernel".into())],
        ..KernelOptions::default()
    }
}

async fn run_in(kernel: &Arc<dyn Kernel>, code: &str) -> Told {
    listen(kernel.execute(Cell::new(code)).await.unwrap()).await
}

#[tokio::test]
async fn bash_has_a_kernel() {
    let sandbox = sandbox().await;
    let kernel = sandbox.start_kernel(in_language("bash")).await.unwrap();
    assert_eq!(run_in(&kernel, "x=5; pwd; echo $PLACE").await.stdout, "/tmp\nkernel\n");
    let environment = [("PLACE".to_owned(), "it's $x".to_owned())];
    let result =
        listen(kernel.execute(Cell { environment: &environment, ..Cell::new("echo $x $PLACE") }).await.unwrap()).await;
    assert_eq!(result.stdout, "5 it's $x\n");
    assert_eq!(run_in(&kernel, "echo $PLACE").await.stdout, "kernel\n");
    let failed = run_in(&kernel, "echo before; false").await;
    assert_eq!(failed.stdout, "before\n");
    assert!(matches!(&failed.finished.outcome, Outcome::Failed(error) if error.value == "exit status 1"), "{failed:?}");
    let refused = sandbox.start_kernel(in_language("cobol")).await;
    let words = "no kernel for cobol is installed; the languages are python, bash";
    assert!(matches!(&refused, Err(Error::Start(reason)) if reason == words), "{refused:?}");
}

/// Nobody has approved what runs when a kernel starts.
#[tokio::test]
async fn a_clients_variables_run_nothing_at_the_start_of_a_kernel() {
    let sandbox = sandbox().await;
    let hostile = "open('/tmp/ran', 'w')";
    run(&sandbox, &format!("open('/tmp/sitecustomize.py', 'w').write({hostile:?})")).await;
    let options = KernelOptions { environment: vec![("PYTHONPATH".into(), "/tmp".into())], ..in_language("bash") };
    let kernel = sandbox.start_kernel(options).await.unwrap();
    let told = run_in(&kernel, "[ -e /tmp/ran ] && echo ran; echo $PYTHONPATH").await;
    assert_eq!(told.stdout, "/tmp\n");
}

#[tokio::test]
async fn a_program_in_bash_is_interrupted_and_its_kernel_ended_with_all_of_it() {
    let sandbox = sandbox().await;
    let kernel = sandbox.start_kernel(in_language("bash")).await.unwrap();
    let mut execution = kernel.execute(Cell::new("x=6; echo here; sleep 600")).await.unwrap();
    let interrupter = execution.interrupter();
    let outcome = loop {
        match execution.next().await.unwrap() {
            ExecutionEvent::Stdout(_) => interrupter.interrupt(),
            ExecutionEvent::Finished(finished) => break finished.outcome,
            _ => {}
        }
    };
    assert_eq!(outcome, Outcome::Interrupted);
    // Bash may end the line of the program that was interrupted later.
    assert_eq!(run_in(&kernel, "echo $x").await.stdout.trim(), "6");
    let names = "import os\nprint(sorted(open(f'/proc/{p}/comm').read().strip() for p in os.listdir('/proc') if p.isdigit() and int(p) > 2 and int(p) != os.getpid()))";
    assert!(run(&sandbox, names).await.stdout.contains("bash"));
    kernel.close().await;
    assert!(!kernel.is_alive());
    let left = format!(
        "import time\nfor _ in range(100):\n    time.sleep(.1)\n    if 'bash' not in str([open(f'/proc/{{p}}/comm').read() for p in __import__('os').listdir('/proc') if p.isdigit()]): break\n{names}"
    );
    assert_eq!(run(&sandbox, &left).await.stdout, "[]\n");
}

/// The walls are the sandbox's, and not those of a language.
#[tokio::test]
async fn hostile_programs_find_the_same_walls_in_bash() {
    let sandbox = sandbox().await;
    let kernel = sandbox.start_kernel(in_language("bash")).await.unwrap();
    let python = |code: &str| format!("cd $(mktemp -d); python3 - <<'ENDS'\nservices = True\n{code}\nENDS\n");
    let mut tried = 0;
    for (file, attack) in attack::suite().unwrap() {
        if file != "host" || attack.expect != "PermissionError" {
            continue;
        }
        let control = run_in(&kernel, &python(&attack.control)).await;
        assert_eq!(control.finished.outcome, Outcome::Completed, "{}: {control:?}", attack.name);
        let result = run_in(&kernel, &python(&attack.program)).await;
        assert!(
            format!("{}{}", result.stdout, result.stderr).contains("PermissionError"),
            "{}: {result:?}",
            attack.name
        );
        tried += 1;
    }
    assert!(tried > 5, "{tried}");
    assert!(sandbox.is_alive());
}
