//! Sandboxes for tests, scripted and real.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::BareSandbox;
use aludel_sandbox::memory::{Memory, ScriptedCell};
use aludel_sandbox::{Backend, KernelStart, Limits, Local, LocalConfig, Require, SandboxId, SandboxSpec, template};

/// Directory of the tests' template; shared by all test programs, so that it is built once.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test")
}

/// A local backend on a data directory of the test's own. Only for tests that say so by their names: all others run without a template.
pub async fn local(data: &Path, limits: Limits) -> Arc<dyn Backend> {
    let thread = std::thread::current();
    // The thread of a test has the test's name.
    let name = thread.name().filter(|name| !matches!(*name, "main" | "tokio-rt-worker"));
    assert!(
        name.is_none_or(|name| name.contains("local_sandbox")),
        "a test that needs the local sandbox has `local_sandbox` in its name"
    );
    let template = tokio::task::spawn_blocking(|| template::ensure(&self::data(), false, &mut |_| ()))
        .await
        .expect("the builder does not panic")
        .expect("the default template can be built");
    let config = LocalConfig {
        data: data.into(),
        template,
        limits,
        pool: 0,
        require: Require::Default,
        start: KernelStart::Fork,
    };
    Arc::new(Local::start(config).await.expect("the local backend starts"))
}

/// A process that the local backend starts another one for when it ends.
#[derive(Debug, Clone, Copy)]
pub enum Keeper {
    /// The warden itself, the first process of its process namespace.
    Warden,
    /// The zygote.
    Zygote,
}

impl Keeper {
    /// Kills the one of the only backend on this data directory.
    pub fn kill(self, data: &Path) {
        let parent = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
        };
        let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        // It holds its log, and so does its parent, which is in the host's process namespace.
        let is_named =
            |pid: u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"aludel-jail"));
        let logs = |pid: u32| std::fs::read_link(format!("/proc/{pid}/fd/2")).ok();
        let entries = std::fs::read_dir("/proc").expect("the processes").flatten();
        let pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        let of_data = |pid: u32| is_named(pid) && logs(pid).is_some_and(|log| log.starts_with(data.join("run")));
        let warden = pids.iter().copied().find(|pid| of_data(*pid) && of_data(parent(*pid))).expect("a warden");
        let pid = match self {
            Self::Warden => warden,
            // The only other process in its namespace; kernels are in their own.
            Self::Zygote => {
                let is_zygote = |pid: &u32| parent(*pid) == warden && namespace(*pid) == namespace(warden);
                pids.iter().copied().find(is_zygote).expect("a zygote")
            }
        };
        let killed = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()), "the process {pid} cannot be killed");
    }
}

/// A backend with one sandbox.
pub struct Bench {
    /// The sandbox, as agents use it.
    pub runtime: Arc<BareSandbox>,
    backend: Arc<dyn Backend>,
    _directory: Option<tempfile::TempDir>,
}

impl Bench {
    /// One on the memory backend, whose programs do what the script says.
    pub async fn memory(script: impl Fn(&str, &mut ScriptedCell) + Send + Sync + 'static) -> Self {
        Self::on(Arc::new(Memory::new(script)), None).await
    }

    /// One on the local backend, in a data directory of its own.
    pub async fn local() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let backend = local(directory.path(), limits()).await;
        Self::on(backend, Some(directory)).await
    }

    async fn on(backend: Arc<dyn Backend>, directory: Option<tempfile::TempDir>) -> Self {
        let sandbox = backend.create(SandboxId::unique(), SandboxSpec::new(limits())).await.expect("a sandbox");
        Self { runtime: Arc::new(BareSandbox(sandbox)), backend, _directory: directory }
    }

    /// Reads a file of the sandbox.
    pub fn read(&self, path: &str) -> Vec<u8> {
        self.runtime.0.workspace().read(path, 1 << 20).expect("a file")
    }

    /// Ends everything and waits for it.
    pub async fn stop(self) {
        self.backend.shutdown().await;
    }
}

/// Small limits.
fn limits() -> Limits {
    Limits { timeout: Duration::from_secs(30), grace: Duration::from_millis(500), ..Limits::default() }
}
