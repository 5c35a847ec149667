//! The built program, from the outside: one way to start it, one to read what it said.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "a test may panic, and each uses a part of this")]

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program in a directory of the test's own, with nothing of this process's environment that could change it.
pub fn aludel(directory: &Path) -> Command {
    within(directory, Command::new(env!("CARGO_BIN_EXE_aludel")))
}

/// The same in a session of its own: with stdin as its terminal if that is one, without any terminal if not.
pub fn aludel_in_session(directory: &Path, options: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    command.args(options).arg("--wait").arg(env!("CARGO_BIN_EXE_aludel"));
    within(directory, command)
}

/// The same, started by another program.
pub fn aludel_by(directory: &Path, starter: &[&str]) -> Command {
    let mut command = Command::new(starter[0]);
    command.args(&starter[1..]).arg(env!("CARGO_BIN_EXE_aludel"));
    within(directory, command)
}

fn within(directory: &Path, mut command: Command) -> Command {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        let mut build = Command::new(env!("CARGO_BIN_EXE_aludel"));
        build.args(["template", "build"]);
        let built = hermetic(&mut build, Path::new("/")).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    });
    hermetic(&mut command, directory);
    command
}

fn hermetic<'c>(command: &'c mut Command, directory: &Path) -> &'c mut Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("HOME", directory).env("COLUMNS", "100");
    command.env("ALUDEL_SERVER_DATA", aludel_testkit::data());
    command.current_dir(directory).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped())
}

/// A data directory of the test's own, with the template that all tests share.
pub fn data() -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(aludel_testkit::data().join("templates"), data.path().join("templates")).unwrap();
    data
}

/// The audit log of a data directory, which was not changed: events, actors and outcomes.
pub async fn audit_log(data: &Path) -> Vec<[String; 3]> {
    let store = aludel_store::Store::open_beside(&data.join("state")).await.unwrap();
    let records = store.audit_log(0, 1000).await.unwrap();
    assert_eq!(store.verify_audit_log().await.unwrap().unwrap(), i64::try_from(records.len()).unwrap());
    assert!(records.iter().all(|record| record.tenant == aludel_store::Tenant::terminal()), "{records:?}");
    records.into_iter().map(|record| [record.event, record.actor, record.outcome]).collect()
}

/// The number of sessions and of blobs that questions left in a data directory.
pub async fn left(data: &Path) -> [usize; 2] {
    let state = data.join("state");
    let store = aludel_store::Store::open_beside(&state).await.unwrap();
    let page = aludel_store::PageQuery::first(100);
    let sessions = store.sessions(&aludel_store::Tenant::terminal(), None, page).await.unwrap().data.len();
    let fans = std::fs::read_dir(state.join("blobs")).unwrap();
    let blobs = fans.map(|fan| std::fs::read_dir(fan.unwrap().path()).unwrap().count()).sum();
    [sessions, blobs]
}

/// Status and output of a run.
#[derive(Debug)]
pub struct Said {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Said {
    pub fn from(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { status: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The JSON lines.
    pub fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{self:#?}"))).collect()
    }

    /// The types of the JSON lines, each once in a row.
    pub fn types(&self) -> Vec<String> {
        let mut types: Vec<_> = self.lines().iter().map(|line| line["type"].as_str().unwrap().to_owned()).collect();
        types.dedup();
        types
    }
}

/// Runs it to its end.
#[track_caller]
pub fn said(command: &mut Command) -> Said {
    Said::from(&command.output().unwrap())
}

/// Runs it in a directory that is gone afterwards.
#[track_caller]
pub fn run(arguments: &[&str]) -> Said {
    let directory = tempfile::tempdir().unwrap();
    said(aludel(directory.path()).args(arguments))
}

/// Sends a signal by name.
pub fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(sent.is_ok_and(|status: ExitStatus| status.success()));
}

/// Waits for something that must happen soon, on a machine that is not busy.
#[track_caller]
pub fn wait_until(mut done: impl FnMut() -> bool, words: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{words}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns true if a `sleep` with this argument runs on this host.
pub fn runs(argument: &str) -> bool {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default())
        .any(|line| line.starts_with(b"sleep") && line.split(|byte| *byte == 0).any(|part| part == argument.as_bytes()))
}
