//! The docker backend, where an engine answers, and its errors.
#![cfg(feature = "docker")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aludel_sandbox::attack::{AttackResult, limits, suite};
use aludel_sandbox::process::{Command, ExitStatus};
use aludel_sandbox::{
    Backend, ConformancePrograms, Docker, DockerConfig, Error, Limits, Profile, SandboxId, SandboxSpec, conformance,
};

/// The image that the tests run, which must be in the engine.
fn image() -> String {
    std::env::var("ALUDEL_TEST_IMAGE").unwrap_or("aludel/default:test".to_owned())
}

fn config(data: &Path, host: Option<&str>) -> DockerConfig {
    DockerConfig {
        data: data.to_path_buf(),
        host: host.map(str::to_owned),
        image: image(),
        runtime: None,
        pool: 0,
        limits: Limits::default(),
    }
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
    let skipped = conformance(&backend, &ConformancePrograms::python()).await;
    backend.shutdown().await;
    assert!(skipped.is_empty(), "{skipped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_nobody_waits_for_is_gone_after_the_end() {
    let data = tempfile::tempdir().unwrap();
    let Some(backend) = start(data.path()).await else { return };
    for wait in [0, 20, 200, 900].map(std::time::Duration::from_millis) {
        let made = backend.create(SandboxId::unique(), SandboxSpec::new(Limits::default()));
        drop(tokio::time::timeout(wait, made).await);
    }
    backend.shutdown().await;
    assert!(backend.left().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_the_pool_is_there_before_it_is_asked_for() {
    let data = tempfile::tempdir().unwrap();
    let limits = Limits { memory: 300 << 20, disk: 16 << 20, ..Limits::default() };
    let pooled = DockerConfig { pool: 1, limits: limits.clone(), ..config(data.path(), None) };
    let Ok(backend) = Docker::start(pooled, &mut |_| {}).await else { return println!("skipped: no engine") };
    let full = async || {
        for _ in 0..600 {
            if backend.health().pooled == 1 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("the pool stays empty: {:?}", backend.health());
    };
    let make = |limits: &Limits| backend.create(SandboxId::unique(), SandboxSpec::new(limits.clone()));
    full().await;
    let made: std::collections::BTreeSet<_> = backend.left().await.unwrap().into_iter().collect();
    let longer = Limits { timeout: std::time::Duration::from_secs(5), ..limits.clone() };
    let begun = std::time::Instant::now();
    let sandbox = make(&longer).await.unwrap();
    println!("a sandbox of the pool takes {:?}", begun.elapsed());
    assert_eq!(sandbox.limits(), &longer, "limits that are not the container's are the sandbox's own");
    let run = sandbox.run(command("test -z \"$(ls -A)\" && touch mine"), b"", longer.timeout, 10).await.unwrap();
    assert_eq!(run.status, Some(ExitStatus::Code(0)), "it has no files yet");
    full().await;
    let other = make(&Limits { memory: 200 << 20, ..limits.clone() }).await.unwrap();
    assert_eq!(backend.health().pooled, 1, "one with other limits is not of the pool");
    let files = std::sync::Arc::clone(sandbox.workspace());
    sandbox.close().await.unwrap();
    let again = SandboxSpec::new(limits).with_workspace(files);
    let again = backend.create(SandboxId::unique(), again).await.unwrap();
    let run = again.run(command("test -e mine"), b"", longer.timeout, 10).await.unwrap();
    assert_eq!(run.status, Some(ExitStatus::Code(0)), "nor is one that has files already");
    let left: std::collections::BTreeSet<_> = backend.left().await.unwrap().into_iter().collect();
    assert!(left.intersection(&made).count() >= 2, "the container of the files stays as long as they are held");
    drop((other, again, sandbox));
    backend.shutdown().await;
    assert!(backend.left().await.unwrap().is_empty(), "nor does the pool leave anything");
}

/// Prints which of the suite of hostile programs containers hold, which is written for the local sandbox. By hand, since it takes long.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a quarter of an hour: cargo test -p aludel-sandbox --features docker --test docker -- --ignored --nocapture"]
async fn hostile_programs_are_held_by_an_engine_too() {
    let data = tempfile::tempdir().unwrap();
    let config = DockerConfig { limits: limits(3), ..config(data.path(), None) };
    let Ok(backend) = Docker::start(config, &mut |_| {}).await else { return println!("skipped: no engine") };
    let backend = std::sync::Arc::new(backend);
    let mut running = tokio::task::JoinSet::new();
    let mut attacks = suite().unwrap().into_iter();
    loop {
        while running.len() < 3
            && let Some((file, attack)) = attacks.next()
        {
            let backend = std::sync::Arc::clone(&backend);
            running.spawn(async move {
                (format!("{file}: {}", attack.name), attack.run(&*backend, 3, Profile::Services).await)
            });
        }
        let Some(done) = running.join_next().await else { break };
        let (name, verdict) = done.unwrap();
        match verdict {
            Ok(AttackResult::Held) => println!("held {name}"),
            other => println!("NOT {name}: {}", format!("{other:?}").chars().take(600).collect::<String>()),
        }
    }
    backend.shutdown().await;
    assert!(backend.left().await.unwrap().is_empty());
}

/// A command of a shell, in the workspace.
fn command(script: &str) -> Command {
    let arguments = ["sh", "-c", script].map(str::to_owned).into();
    Command { arguments, environment: Vec::new(), directory: "/mnt/data".into(), pty: None }
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
