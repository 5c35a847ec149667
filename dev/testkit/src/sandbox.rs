//! Sessions in a real sandbox.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::sessions::LiveSession;
use aludel_sandbox::{Backend, Limits, Local, LocalConfig, Require, Start, template};

/// Where tests keep the template; shared by all test programs, so that it is built once.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test")
}

/// A backend on a data directory of the test's own.
pub async fn local(data: &Path, limits: Limits) -> Arc<dyn Backend> {
    let template = tokio::task::spawn_blocking(|| template::ensure(&self::data(), false, &mut |_| ()))
        .await
        .expect("the builder does not panic")
        .expect("the default template can be built");
    let config =
        LocalConfig { data: data.into(), template, limits, pool: 0, require: Require::Default, start: Start::Fork };
    Arc::new(Local::start(config).await.expect("the local backend starts"))
}

/// A backend with one session, in a data directory of its own.
pub struct Bench {
    /// The session.
    pub session: Arc<LiveSession>,
    backend: Arc<dyn Backend>,
    _directory: tempfile::TempDir,
}

impl Bench {
    /// Starts it with small limits.
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let limits =
            Limits { timeout: Duration::from_secs(30), grace: Duration::from_millis(500), ..Limits::default() };
        let backend = local(directory.path(), limits.clone()).await;
        let session = Arc::new(LiveSession::create(Arc::clone(&backend), limits).await.expect("a session"));
        Self { session, backend, _directory: directory }
    }

    /// Ends everything and waits for it.
    pub async fn stop(self) {
        self.session.close().await;
        self.backend.shutdown().await;
    }
}
