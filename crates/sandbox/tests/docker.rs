//! The docker backend, where an engine answers, and its errors.
#![cfg(feature = "docker")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aludel_sandbox::{Backend, Docker, DockerConfig, Error, Programs, SandboxId, SandboxSpec, conformance};

/// The image that the tests run, which must be in the engine.
fn image() -> String {
    std::env::var("ALUDEL_TEST_IMAGE").unwrap_or("aludel/default:test".to_owned())
}

fn config(data: &Path, host: Option<&str>) -> DockerConfig {
    DockerConfig { data: data.to_path_buf(), host: host.map(str::to_owned), image: image(), runtime: None }
}

/// Starts the backend, or says that there is no engine with the image.
async fn start(data: &Path) -> Option<Docker> {
    match Docker::start(config(data, None), &mut |_| {}).await {
        Ok(backend) => Some(backend),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

async fn reason(host: &str) -> String {
    let data = tempfile::tempdir().unwrap();
    match Docker::start(config(data.path(), Some(host)), &mut |_| {}).await {
        Err(Error::Setup(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_docker_backend_conforms() {
    let data = tempfile::tempdir().unwrap();
    let Some(backend) = start(data.path()).await else { return };
    let skipped = conformance(&backend, &Programs::python()).await;
    backend.shutdown().await;
    assert_eq!(skipped, ["a port is connected to", "a command runs in a terminal"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_nobody_waits_for_is_gone_after_the_end() {
    let data = tempfile::tempdir().unwrap();
    let Some(backend) = start(data.path()).await else { return };
    for wait in [0, 20, 200, 900].map(std::time::Duration::from_millis) {
        let made = backend.create(SandboxId::unique(), SandboxSpec::new(aludel_sandbox::Limits::default()));
        drop(tokio::time::timeout(wait, made).await);
    }
    backend.shutdown().await;
    assert!(backend.left().await.unwrap().is_empty());
}

#[tokio::test]
async fn without_an_engine_the_error_says_what_to_do() {
    let reason = reason("unix:///nowhere/docker.sock").await;
    assert!(reason.contains("/nowhere/docker.sock") && reason.contains("install Docker or Podman"), "{reason}");
}

#[tokio::test]
async fn an_engine_that_ended_is_told_from_one_that_is_not_installed() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("docker.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let reason = reason(&format!("unix://{}", socket.display())).await;
    assert!(reason.contains("does not run"), "{reason}");
}

#[tokio::test]
async fn a_host_that_is_no_socket_is_refused_by_name() {
    let reason = reason("tcp://127.0.0.1:2375").await;
    assert!(reason.contains("tcp://127.0.0.1:2375 is no Unix socket"), "{reason}");
}
