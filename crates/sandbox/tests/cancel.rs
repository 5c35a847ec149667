//! Futures that are dropped in the middle leave nothing behind.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::time::Duration;

use aludel_sandbox::{Backend, SandboxId, SandboxSpec};
use common::{CHECKPOINT, Held, backend, limits, run, sandbox, wait_beside};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_given_up_while_it_is_made_leaves_nothing() {
    let scratch = backend().await;
    let mut cut = 0;
    for round in 0..100 {
        // Dense where the warden is asked, sparse after.
        let patience = Duration::from_micros(if round < 60 { round * 250 } else { (round - 60) * 5000 });
        let made = scratch.local.create(SandboxId::unique(), SandboxSpec::new(limits()));
        cut += usize::from(tokio::time::timeout(patience, made).await.is_err());
    }
    assert!(cut >= 10, "only {cut} were given up in time");
    let control = sandbox(&scratch.local, limits()).await;
    assert_ne!(Held::by(scratch.data.path()), Held::NOTHING, "the control: a sandbox that lives is seen");
    drop(control);
    Held::nothing_soon(scratch.data.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_is_given_up_while_it_wakes_leaves_nothing() {
    let scratch = backend().await;
    for round in 0..20 {
        let sandbox = sandbox(&scratch.local, limits()).await;
        run(&sandbox, "x = 1").await;
        run(&sandbox, "pass").await;
        wait_beside(&sandbox, CHECKPOINT).await;
        let mut execution = sandbox.execute("import os; os._exit(1)").await.unwrap();
        let resumed = async { while execution.next().await.is_some() {} };
        let _cut = tokio::time::timeout(Duration::from_millis(round), resumed).await;
    }
    Held::nothing_soon(scratch.data.path()).await;
}
