//! Sandboxes of a server that speaks E2B's and OpenSandbox's protocols, as backends.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use aludel_sandbox::{
    Backend, ConformancePrograms, E2b, E2bConfig, Error, ExecutionEvent, Limits, Network, OpenSandbox,
    OpenSandboxConfig, Outcome, SandboxId, SandboxSpec, conformance,
};
use common::{aludel, data, said};

/// A server with sandboxes, which ends with the test.
struct Server(Child, String);

impl Server {
    fn start(data: &Path) -> Self {
        let mut command = aludel(data);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data).env("ALUDEL_SANDBOX_MEMORY", "1g");
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim_end().strip_prefix("listening on ").unwrap().to_owned();
        Self(child, url)
    }

    fn e2b(&self) -> E2bConfig {
        E2bConfig {
            key: "any".to_owned(),
            domain: E2bConfig::DOMAIN.to_owned(),
            url: Some(self.1.clone()),
            sandbox_url: Some(self.1.clone()),
            template: E2bConfig::TEMPLATE.to_owned(),
        }
    }

    fn opensandbox(&self) -> OpenSandboxConfig {
        OpenSandboxConfig {
            url: self.1.clone(),
            key: None,
            image: OpenSandboxConfig::IMAGE.to_owned(),
            network: Network::None,
            use_server_proxy: false,
        }
    }

    /// Holds a backend of this server's sandboxes to the contract.
    async fn check(&self, data: &Path, backend: &dyn Backend) {
        let skipped = conformance(backend, &ConformancePrograms::python()).await;
        let left = tokio::time::timeout(Duration::from_secs(60), backend.shutdown()).await;
        left.unwrap();
        let skips = ["a full workspace is told", "a checkpoint takes over", "a sandbox is paused"];
        assert_eq!(skipped, skips);
        let listed = said(aludel(data).args(["sandbox", "ls", "--json", "--url", &self.1]));
        assert_eq!(listed.stdout.trim(), "[]", "nothing is left there: {listed:?}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_e2b_backend_conforms() {
    let data = data();
    let server = Server::start(data.path());
    server.check(data.path(), &E2b::start(server.e2b()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_opensandbox_backend_conforms() {
    let data = data();
    let server = Server::start(data.path());
    server.check(data.path(), &OpenSandbox::start(server.opensandbox()).await.unwrap()).await;
}

/// A sandbox that its service ends in the middle of a program.
async fn end_in_mid_run(server: &Server, data: &Path, backend: &dyn Backend) {
    let make = |spec| backend.create(SandboxId::unique(), spec);
    let sandbox = make(SandboxSpec::new(Limits::default())).await.unwrap();
    let mut running = sandbox.execute("print('begun', flush=True)\nwhile True: pass").await.unwrap();
    assert!(matches!(running.next().await, Some(ExecutionEvent::Stdout(text)) if text == "begun\n"));
    let list = || said(aludel(data).args(["sandbox", "ls", "--json", "--url", &server.1])).stdout;
    let listed: serde_json::Value = serde_json::from_str(&list()).unwrap();
    let id = listed[0]["sandboxID"].as_str().unwrap().to_owned();
    said(aludel(data).args(["sandbox", "kill", &id, "--url", &server.1]));
    let finished = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            match running.next().await {
                Some(ExecutionEvent::Finished(finished)) => return finished,
                Some(_) => {}
                None => panic!("the events ended without an outcome"),
            }
        }
    });
    let finished = finished.await.unwrap();
    assert!(matches!(finished.outcome, Outcome::KernelDied(_)), "{finished:?}");
    assert!(!sandbox.is_alive());
    let files = Arc::clone(sandbox.workspace()).blocking(|files| files.files()).await;
    assert!(matches!(files, Err(Error::WorkspaceLost)), "{files:?}");
    let again = make(SandboxSpec::new(Limits::default()).with_workspace(Arc::clone(sandbox.workspace()))).await;
    assert!(matches!(again, Err(Error::WorkspaceLost)), "{again:?}");
    drop(sandbox);
    tokio::time::timeout(Duration::from_secs(60), backend.shutdown()).await.unwrap();
    assert_eq!(list().trim(), "[]");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_its_service_ends_is_told() {
    let data = data();
    let server = Server::start(data.path());
    end_in_mid_run(&server, data.path(), &E2b::start(server.e2b()).await.unwrap()).await;
    end_in_mid_run(&server, data.path(), &OpenSandbox::start(server.opensandbox()).await.unwrap()).await;
}
