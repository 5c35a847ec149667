//! One backend for all tests of a process, and one way to run a cell.
#![allow(dead_code, unreachable_pub, reason = "every test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use aludel_sandbox::process::{Command, ExitStatus};
use std::sync::{Arc, OnceLock};

use aludel_sandbox::{
    Backend, Execution, ExecutionEvent, Finished, KernelStart, Limits, Local, LocalConfig, Require, Sandbox, SandboxId,
    SandboxSpec, Template, template,
};
use tokio::runtime::Runtime;

/// Directory of the tests' template; shared by all test programs, so that it is built once.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test")
}

/// The default template, built on first use.
pub fn the_template() -> Template {
    template::ensure(&data(), false, &mut |_| ()).expect("the default template can be built")
}

/// A backend of the test's own, on a data directory of its own, so that leftovers can be counted.
pub async fn backend_at(data: &Path, limits: Limits, pool: usize) -> Local {
    Local::start(config_at(data, limits, pool)).await.expect("the local backend starts")
}

pub fn config_at(data: &Path, limits: Limits, pool: usize) -> LocalConfig {
    LocalConfig {
        data: data.to_path_buf(),
        template: the_template(),
        limits,
        pool,
        require: Require::Default,
        start: KernelStart::Fork,
    }
}

/// A backend that removes its data directory when the test is over.
pub struct Scratch {
    pub local: Local,
    pub data: tempfile::TempDir,
}

/// The backend that most tests of a process share, since its start takes about two seconds of processor time. It lives in a runtime of its
/// own, which outlives those of the tests.
pub async fn shared() -> &'static Local {
    static SHARED: OnceLock<Local> = OnceLock::new();
    let start = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime: &'static Runtime = Box::leak(Box::new(runtime.expect("a runtime")));
        runtime.block_on(backend_at(&data(), limits(), 0))
    };
    // Others wait for it, too, so not on a thread of their runtimes.
    tokio::task::spawn_blocking(move || SHARED.get_or_init(start)).await.expect("the backend starts")
}

pub async fn backend() -> Scratch {
    let data = tempfile::tempdir().expect("a temporary directory");
    Scratch { local: backend_at(data.path(), limits(), 0).await, data }
}

/// Small enough that every limit is hit in a moment, but the time: a test that is about it sets its own, and all others have enough.
pub fn limits() -> Limits {
    Limits {
        memory: 300 << 20,
        processes: 32,
        timeout: Duration::from_secs(90),
        grace: Duration::from_millis(500),
        disk: 64 << 20,
        file_size: 128 << 20,
        tmp: 32 << 20,
        output: 64 << 10,
        ..Limits::default()
    }
}

pub async fn sandbox(local: &Local, limits: Limits) -> Arc<dyn Sandbox> {
    local.create(SandboxId::unique(), SandboxSpec::new(limits)).await.expect("a sandbox")
}

/// Waits beside the kernel, the process 2, until a shell finds that this is so.
pub async fn wait_beside(sandbox: &Arc<dyn Sandbox>, condition: &str) {
    let script = format!("until {condition}; do sleep 0.02; done");
    let arguments = ["sh", "-c", &script].map(str::to_owned).into();
    let command = Command { arguments, environment: Vec::new(), directory: "/tmp".into(), pty: None };
    let output = sandbox.run(command, b"", Duration::from_secs(30), 1000).await.expect("the shell starts");
    assert_eq!(output.status, Some(ExitStatus::Code(0)), "{condition}: {output:?}");
}

/// A shell command that succeeds once the kernel has a checkpoint, its only child.
pub const CHECKPOINT: &str = "grep -qs '^PPid:.2$' /proc/[0-9]*/status";

/// A program with a thread that lives on and does something to the kernel once there is a file `/tmp/now`.
pub fn later(what: &str) -> String {
    let wait = "while not os.path.exists('/tmp/now'): time.sleep(0.01)";
    format!(
        "import os, signal, threading, time\nx = 1\ndef later():\n    {wait}\n    {what}\nthreading.Thread(target=later).start()"
    )
}

/// Collected events of an execution.
#[derive(Debug)]
pub struct Told {
    pub stdout: String,
    pub stderr: String,
    pub events: Vec<ExecutionEvent>,
    pub finished: Finished,
}

pub async fn run(sandbox: &Arc<dyn Sandbox>, code: &str) -> Told {
    listen(sandbox.execute(code).await.expect("the execution starts")).await
}

pub async fn listen(mut execution: Execution) -> Told {
    let (mut stdout, mut stderr, mut events) = (String::new(), String::new(), Vec::new());
    while let Some(event) = execution.next().await {
        match event {
            ExecutionEvent::Stdout(text) => stdout.push_str(&text),
            ExecutionEvent::Stderr(text) => stderr.push_str(&text),
            ExecutionEvent::Finished(finished) => return Told { stdout, stderr, events, finished },
            event => events.push(event),
        }
    }
    panic!("the events ended without an outcome");
}

/// The only entry of a directory.
pub fn only_entry(directory: &Path) -> PathBuf {
    let entries: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    entry.clone()
}

/// The host's process id of a warden, found by the log that it holds open: the child of the process with the same log.
pub fn warden_of(instance: &Path) -> i32 {
    let log = instance.join("log");
    let holds_log = |pid: &i32| std::fs::read_link(format!("/proc/{pid}/fd/2")).is_ok_and(|target| target == log);
    let named =
        |pid: &i32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"aludel-jail"));
    let wardens: Vec<i32> = all_pids().filter(holds_log).filter(named).collect();
    *wardens.iter().find(|pid| wardens.contains(&parent_of(**pid))).expect("a warden")
}

/// The parent of a process.
pub fn parent_of(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
}

/// The process namespace of a process.
pub fn namespace(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The processes in a warden's own process namespace: the zygote, the spawner, and the lock counter.
pub fn helpers_of(warden: i32) -> [i32; 3] {
    let comm = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let is_own = |pid: &i32| parent_of(*pid) == warden && namespace(*pid) == namespace(warden);
    let own: Vec<_> = all_pids().filter(is_own).map(|pid| (pid, comm(pid))).collect();
    let (spawner, locks) = ("aludel-spawner\n", "aludel-locks\n");
    let of = |is_it: &dyn Fn(&str) -> bool| own.iter().find(|(_, comm)| is_it(comm)).expect("a helper").0;
    let others = [spawner, locks, "aludel-crowds\n"];
    [of(&|comm| !others.contains(&comm)), of(&|comm| comm == spawner), of(&|comm| comm == locks)]
}

/// Every process of the host.
pub fn all_pids() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Resources that a backend holds at its warden.
#[derive(Debug, PartialEq, Eq)]
pub struct Held {
    /// Children of the warden beside the zygote and the spawner, the shell of the next sandbox among them.
    pub processes: usize,
    /// Descriptors of the init processes among them, of which each needs one as long as it waits.
    pub descriptors: usize,
    /// Control groups of sandboxes.
    pub groups: usize,
    /// Mounted workspaces.
    pub mounts: usize,
    /// Directories of workspaces.
    pub directories: usize,
}

impl Held {
    pub const NOTHING: Self = Self { processes: 1, descriptors: 1, groups: 0, mounts: 0, directories: 0 };

    /// Counts what the only instance below the data directory holds.
    pub fn by(data: &Path) -> Self {
        let instance = only_entry(&data.join("run"));
        let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let warden = warden_of(&instance);
        let groups = std::fs::read_to_string(instance.join("cgroups")).expect("the note of the groups");
        let of_sandboxes = |group: &str| {
            let is_sandbox = |entry: &std::fs::DirEntry| {
                entry.file_name().as_encoded_bytes().starts_with(b"s") && entry.path().is_dir()
            };
            entries(Path::new(group)).filter(is_sandbox).count()
        };
        let mounts = std::fs::read_to_string(format!("/proc/{warden}/mountinfo")).expect("the warden's mounts");
        let workspaces = instance.join("workspaces");
        let below = format!("{}/", workspaces.display());
        let is_in_shell = |pid: &i32| parent_of(*pid) == warden && namespace(*pid) != namespace(warden);
        let children: Vec<i32> = all_pids().filter(is_in_shell).collect();
        let is_init = |pid: &&i32| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"aludel-jail"))
        };
        let descriptors = |pid: &i32| entries(Path::new(&format!("/proc/{pid}/fd"))).count();
        Self {
            processes: children.len(),
            descriptors: children.iter().filter(is_init).map(descriptors).sum(),
            groups: groups.lines().map(of_sandboxes).sum(),
            mounts: mounts.lines().filter(|line| line.contains(&below)).count(),
            directories: entries(&workspaces).count(),
        }
    }

    /// Waits until nothing is held any more.
    pub async fn nothing_soon(data: &Path) {
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let held = Self::by(data);
            if held == Self::NOTHING {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "left behind: {held:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
