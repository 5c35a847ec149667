//! `aludel sandbox stdio`, and what is left when aludel is killed.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use common::{aludel, aludel_by, runs, said, signal, wait_until};
use serde_json::{Value, json};

struct Desk {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Desk {
    fn open(directory: &Path, data: &Path) -> Self {
        let mut command = aludel(directory);
        command.args(["sandbox", "stdio", "--data"]).arg(data).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.say(&request.to_string());
        self.hear()
    }
}

/// A data directory of its own with the template of all tests.
fn data() -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    let templates = aludel_testkit::data().canonicalize().unwrap().join("templates");
    symlink(templates, data.path().join("templates")).unwrap();
    data
}

#[test]
fn another_program_makes_sandboxes_and_runs_programs_in_them() {
    let (directory, data) = (tempfile::tempdir().unwrap(), data());
    let mut desk = Desk::open(directory.path(), data.path());
    assert_eq!(desk.ask(&json!({"id": "a", "create": {}})), json!({"id": "a", "ok": {"sandbox": 1}}));
    let answer = desk.ask(&json!({"id": 2, "execute": {"sandbox": 1, "code": "open('f', 'w').write('kept'); 6 * 7"}}));
    assert_eq!(answer["ok"][0]["data"]["text/plain"], "42");
    assert_eq!(answer["ok"][1]["outcome"], "completed");
    let run = json!({"sandbox": 1, "arguments": ["sh", "-c", "cat f -; exit 3"], "input": "IGluIA=="});
    let answer = desk.ask(&json!({"id": 3, "run": run}));
    assert_eq!(answer["ok"], json!({"status": 3, "stdout": "a2VwdCBpbiA=", "stderr": "", "dropped": 0}));
    for (request, kind) in [
        (json!({"id": 4, "run": {"sandbox": 1, "arguments": ["nothing"]}}), "start"),
        (json!({"id": 4, "run": {"sandbox": 1, "arguments": []}}), "request"),
        (json!({"id": 4, "run": {"sandbox": 1, "arguments": ["true"], "input": "?"}}), "request"),
        (json!({"id": 4, "close": {"sandbox": 2}}), "request"),
    ] {
        let answer = desk.ask(&request);
        assert_eq!((&answer["id"], &answer["error"]["kind"]), (&json!(4), &json!(kind)), "{answer}");
    }
    desk.say("[1, 2");
    assert_eq!(desk.hear()["error"]["kind"], "request");
    assert_eq!(desk.ask(&json!({"id": 5, "close": {"sandbox": 1}})), json!({"id": 5, "ok": {}}));
    drop(desk.stdin);
    assert!(desk.child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(data.path().join("run")).unwrap().count(), 0);
}

#[test]
fn nothing_outlives_an_aludel_that_is_killed() {
    let (directory, data) = (tempfile::tempdir().unwrap(), data());
    let mut desk = Desk::open(directory.path(), data.path());
    desk.ask(&json!({"id": 1, "create": {}}));
    let marker = format!("{}.5", 86_000_000 + u64::from(std::process::id()));
    desk.say(&json!({"id": 2, "run": {"sandbox": 1, "arguments": ["setsid", "sleep", marker]}}).to_string());
    wait_until(|| runs(&marker), "the program does not run");
    signal(&desk.child, "KILL");
    desk.child.wait().unwrap();
    wait_until(|| !runs(&marker), "a program outlived aludel");
    // The warden has seen it, too, and has removed what was made for the instance.
    let run = data.path().join("run");
    wait_until(|| std::fs::read_dir(&run).unwrap().count() == 0, "the instance is still there");
}

#[test]
fn strict_refuses_a_host_that_cannot_enforce_everything() {
    if !rustix::process::geteuid().is_root() {
        // Hiding the control groups from it takes root.
        return;
    }
    let (directory, data) = (tempfile::tempdir().unwrap(), data());
    let run = |require: &str| {
        let hide = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
        let mut command = aludel_by(directory.path(), &["unshare", "--mount", "sh", "-c", hide, "sh"]);
        command.args(["run", "-c", "print(1)", "--data"]).arg(data.path()).env("ALUDEL_SANDBOX_REQUIRE", require);
        // Not another one that is there, such as Docker's.
        command.env("ALUDEL_SANDBOX_BACKEND", "local");
        said(&mut command)
    };
    let refused = run("strict");
    assert_eq!(refused.status, Some(4), "{refused:#?}");
    assert!(refused.stderr.contains("sandbox.require is strict, and: "), "{refused:#?}");
    let warned = run("default");
    assert_eq!((warned.status, warned.stdout.as_str()), (Some(0), "1\n"), "{warned:#?}");
    assert!(warned.stderr.contains("there is no memory controller"), "{warned:#?}");
}
