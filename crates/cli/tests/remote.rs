//! Sandboxes of a server that speaks E2B's protocol, as a backend.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use aludel_sandbox::{Backend, E2b, E2bConfig, Programs, conformance};
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

    fn config(&self) -> E2bConfig {
        E2bConfig {
            key: "any".to_owned(),
            domain: E2bConfig::DOMAIN.to_owned(),
            url: Some(self.1.clone()),
            sandbox_url: Some(self.1.clone()),
            template: E2bConfig::TEMPLATE.to_owned(),
        }
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
    let backend = E2b::start(server.config()).await.unwrap();
    let skipped = conformance(&backend, &Programs::python()).await;
    let left = tokio::time::timeout(Duration::from_secs(60), backend.shutdown()).await;
    left.unwrap();
    let skips = [
        "a full workspace is told",
        "a checkpoint takes over",
        "a sandbox is paused",
        "a port is connected to",
        "a command runs in a terminal",
    ];
    assert_eq!(skipped, skips);
    let listed = said(aludel(data.path()).args(["sandbox", "ls", "--json", "--url", &server.1]));
    assert_eq!(listed.stdout.trim(), "[]", "nothing is left there: {listed:?}");
}
