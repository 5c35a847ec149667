//! Pausing a sandbox: nothing of it runs meanwhile.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::time::Duration;

use aludel_sandbox::process::{Command, ExitStatus, PtySize};
use aludel_sandbox::{Backend as _, Error, Outcome, Profile, SandboxId, SandboxSpec};
use common::{backend, limits, listen, only_entry, run, sandbox, shared, wait_beside, warden_of};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt as _;

fn shell(script: &str) -> Command {
    let arguments = ["sh", "-c", script].map(str::to_owned).into();
    Command { arguments, environment: Vec::new(), directory: "/mnt/data".into(), pty: None }
}

/// Processes that make others, and threads, while they are being stopped.
#[tokio::test]
async fn nothing_runs_while_a_sandbox_is_paused() {
    let sandbox = sandbox(shared().await, limits()).await;
    run(&sandbox, "import threading\ndef spin():\n    while True: sum(range(1000))\nthreading.Thread(target=spin, daemon=True).start()").await;
    let spins = "import os, subprocess, time\nfor number in range(3):\n    if os.fork() == 0:\n        while True: subprocess.run(['true'])\nprint('begun', flush=True)\nwhile True: time.sleep(0.001); open('count', 'a').write('x')";
    let mut execution = sandbox.execute(spins).await.unwrap();
    execution.next().await.unwrap();
    let process = sandbox.spawn(shell("while :; do echo x >> beside; done")).await.unwrap();
    wait_beside(&sandbox, "[ -s /mnt/data/beside ] && [ -s /mnt/data/count ]").await;
    let sizes = async || {
        let files = std::sync::Arc::clone(sandbox.workspace()).blocking(|files| files.files()).await.unwrap();
        files.into_iter().map(|file| (file.path, file.size)).collect::<Vec<_>>()
    };
    for _ in 0..5 {
        sandbox.pause().await.unwrap();
        let (before, used) = (sizes().await, sandbox.usage().await.cpu);
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert_eq!(sizes().await, before);
        let spent = sandbox.usage().await.cpu - used;
        assert!(spent < Duration::from_millis(5), "{spent:?}");
        assert!(matches!(sandbox.spawn(shell("true")).await, Err(Error::Paused)));
        sandbox.resume().await.unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while sizes().await == before {
            assert!(std::time::Instant::now() < deadline, "it does not go on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    drop(process);
    execution.interrupter().interrupt();
    assert_eq!(listen(execution).await.finished.outcome, Outcome::Interrupted);
}

#[tokio::test]
async fn what_was_stopped_before_stays_stopped() {
    let sandbox = sandbox(shared().await, limits()).await;
    let mut stopped = sandbox.spawn(shell("kill -STOP $$; exit 3")).await.unwrap();
    let is_stopped = format!("grep -q '^State:.T' /proc/{}/status", stopped.id());
    wait_beside(&sandbox, &is_stopped).await;
    sandbox.pause().await.unwrap();
    sandbox.resume().await.unwrap();
    let output = sandbox.run(shell(&is_stopped), b"", Duration::from_secs(20), 100).await.unwrap();
    assert_eq!(output.status, Some(ExitStatus::Code(0)), "{output:?}");
    stopped.signal(18);
    assert_eq!(stopped.wait().await, Some(ExitStatus::Code(3)));
}

/// A shell takes a job that stops for suspended.
#[tokio::test]
async fn a_shell_does_not_see_its_job_stop() {
    let spec = SandboxSpec { profile: Profile::Services, ..SandboxSpec::new(limits()) };
    let sandbox = shared().await.create(SandboxId::unique(), spec).await.unwrap();
    let script = "set -m; while :; do sh -c 'sleep 0.02; sleep 0.02' || echo suspended: $?; done";
    let arguments = ["bash", "-c", script].map(str::to_owned).into();
    let pty = Some(PtySize { columns: 80, rows: 24 });
    let command = Command { arguments, environment: Vec::new(), directory: "/mnt/data".into(), pty };
    let mut shell = sandbox.spawn(command).await.unwrap();
    for _ in 0..30 {
        sandbox.pause().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        sandbox.resume().await.unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let mut told = [0; 1000];
    let read = tokio::time::timeout(Duration::from_millis(100), shell.stdout.read(&mut told)).await;
    assert!(read.is_err(), "{:?}", String::from_utf8_lossy(&told));
}

#[tokio::test]
async fn a_pause_that_nobody_waits_for_is_whole() {
    let sandbox = sandbox(shared().await, limits()).await;
    for patience in [0, 50, 200, 1000, 5000].map(Duration::from_micros) {
        let _cut = tokio::time::timeout(patience, sandbox.pause()).await;
        let _cut = tokio::time::timeout(patience, sandbox.resume()).await;
        sandbox.resume().await.unwrap();
        assert_eq!(run(&sandbox, "print(1)").await.stdout, "1\n");
    }
}

#[tokio::test]
async fn local_sandbox_a_pause_that_was_answered_too_late_is_undone() {
    let scratch = backend().await;
    let sandbox = sandbox(&scratch.local, limits()).await;
    let warden = Pid::from_raw(warden_of(&only_entry(&scratch.data.path().join("run")))).unwrap();
    kill_process(warden, Signal::STOP).unwrap();
    // The wait for the answer is over at once.
    tokio::time::pause();
    let paused = sandbox.pause().await;
    tokio::time::resume();
    kill_process(warden, Signal::CONT).unwrap();
    assert!(matches!(paused, Err(Error::Timeout { .. })), "{paused:?}");
    let told = tokio::time::timeout(Duration::from_secs(30), run(&sandbox, "print(1)")).await;
    assert_eq!(told.expect("it does not go on").stdout, "1\n");
}
