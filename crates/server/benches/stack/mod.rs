//! A server with everything below it, for benchmarks: the real store and the local sandbox, and a model in the same process.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aludel_agent::upstream::Upstream;
use aludel_engine::{ApprovalPolicy, Engine, Model, SessionSettings};
use aludel_sandbox::{Backend, KernelStart, Limits, Local, LocalConfig, Require, template};
use aludel_server::{App, serve};
use aludel_store::Store;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server with everything below it.
pub(crate) struct Stack {
    pub(crate) local: Local,
    pub(crate) client: reqwest::Client,
    pub(crate) url: String,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    _data: tempfile::TempDir,
}

impl Stack {
    pub(crate) async fn start(model: impl Upstream + 'static) -> Self {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let templates: PathBuf = target.join("aludel-test");
        let template = template::ensure(&templates, false, &mut |_| ()).unwrap();
        // Beside the build, on a disk: what it costs to store is what is measured.
        let data = tempfile::tempdir_in(&target).unwrap();
        let limits = Limits::default();
        let config = LocalConfig {
            data: data.path().to_owned(),
            template,
            limits: limits.clone(),
            pool: 4,
            require: Require::Default,
            start: KernelStart::Fork,
        };
        let local = Local::start(config).await.unwrap();
        let store = Store::open(&data.path().join("state")).await.unwrap();
        let settings = SessionSettings { limits, ..SessionSettings::default() };
        let model = Model::new("m", "a bench", Arc::new(model));
        let backend = Arc::new(local.clone());
        let engine = Engine::new(store, backend, [model], ApprovalPolicy::default(), Vec::new(), settings);
        let app = App::new(Arc::new(engine), aludel_server::ServerSettings::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let stopped = async {
                let _dropped = stopped.await;
            };
            serve(app, listener, stopped).await.unwrap();
        });
        // A second installation fails, and the first one serves.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { local, client, url, stop, running, _data: data }
    }

    pub(crate) async fn stop(self) {
        let Self { local, stop, running, .. } = self;
        drop(stop);
        running.await.unwrap();
        local.shutdown().await;
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.client.post(format!("{}{path}", self.url)).json(body).send().await.unwrap();
        let (status, answer) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{status}: {answer}");
        serde_json::from_str(&answer).unwrap()
    }
}
