//! Sandboxes for tests, scripted and real.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::BareSandbox;
use aludel_sandbox::memory::{Memory, ScriptedCell};
use aludel_sandbox::{Backend, Limits, Local, LocalConfig, Require, SandboxId, SandboxSpec, Start, template};

/// Where tests keep the template; shared by all test programs, so that it is built once.
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
    let config =
        LocalConfig { data: data.into(), template, limits, pool: 0, require: Require::Default, start: Start::Fork };
    Arc::new(Local::start(config).await.expect("the local backend starts"))
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
