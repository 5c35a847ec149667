//! The list of allowed system calls holds none that nobody needs.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::collections::BTreeSet;

use aludel_jail::message::Profile;
use aludel_sandbox::{Backend, KernelStart, Limits, Local, LocalConfig, Outcome, Require};
use common::{limits, run, sandbox, the_template};

/// Everyday programs, in this order: a later one finds the files of those before.
const PROGRAMS: [&str; 4] = [
    include_str!("needed/1_files.py"),
    include_str!("needed/2_processes.py"),
    include_str!("needed/3_signals.py"),
    include_str!("needed/4_data.py"),
];

#[tokio::test]
async fn every_allowed_call_is_needed_by_something() {
    let data = tempfile::tempdir().unwrap();
    let config = LocalConfig {
        data: data.path().to_path_buf(),
        template: the_template(),
        limits: limits(),
        pool: 0,
        require: Require::Default,
        start: KernelStart::Fork,
    };
    let local = Local::start_observing(config).await.unwrap();
    let timeout = std::time::Duration::from_secs(120);
    let sandbox = sandbox(&local, Limits { memory: 1 << 30, processes: 128, timeout, ..limits() }).await;
    let mut called = BTreeSet::new();
    for program in PROGRAMS {
        let result = run(&sandbox, program).await;
        assert_eq!(result.finished.outcome, Outcome::Completed, "{program}\n{result:#?}");
        called.extend(result.finished.refused_calls);
    }
    let unused: Vec<&str> =
        aludel_jail::syscalls::names(Profile::Data).filter(|name| !called.contains(*name)).collect();
    assert!(
        unused.is_empty(),
        "{} of {}: {unused:?}",
        unused.len(),
        aludel_jail::syscalls::numbers(Profile::Data).len()
    );
    local.shutdown().await;
}
