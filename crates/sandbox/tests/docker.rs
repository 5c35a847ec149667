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

/// The runtime of the containers, for example `runsc`; the engine's own unless named.
fn runtime() -> Option<String> {
    std::env::var("ALUDEL_TEST_RUNTIME").ok()
}

fn config(data: &Path, host: Option<&str>) -> DockerConfig {
    DockerConfig {
        data: data.to_path_buf(),
        host: host.map(str::to_owned),
        image: image(),
        runtime: runtime(),
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
    let mut skipped = conformance(&backend, &ConformancePrograms::python()).await;
    backend.shutdown().await;
    // Without control groups nothing pauses a container.
    skipped.retain(|skipped| backend.capabilities().pause || *skipped != "a sandbox is paused");
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

/// Attacks by means that engines leave open unless they are asked otherwise.
const LEFT_OPEN: [&str; 8] = [
    "fill memory by what TCP holds",
    "connect to itself over TCP without end",
    "leave closed connections behind without end",
    "take locks without end",
    "send an IPv6 datagram in fragments",
    "make a POSIX message queue",
    "set up io_uring",
    "clone into namespaces of its own",
];

#[tokio::test(flavor = "multi_thread")]
async fn what_engines_leave_open_is_held() {
    let Some(broken) = broken(Profile::Services, |_, name| LEFT_OPEN.contains(&name)).await else { return };
    assert!(broken.is_empty(), "{broken:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_the_parts_that_engines_may_not_know() {
    let data = tempfile::tempdir().unwrap();
    let Some(backend) = start(data.path()).await else { return };
    let warnings = backend.warnings();
    println!("{warnings:?}");
    // An engine that does not do a part says so at the start.
    let has = |loss| !warnings.iter().any(|warning| warning.contains(loss));
    let (hides_groups, hides_files) = (has("names of the host's control groups"), has("figures in /proc"));
    let result = |profile| {
        let spec = SandboxSpec { profile, ..SandboxSpec::new(Limits { kernels: 2, ..Limits::default() }) };
        let backend = &backend;
        async move {
            let sandbox = backend.create(SandboxId::unique(), spec).await.unwrap();
            let groups = if hides_groups { "cat /proc/self/cgroup" } else { "true" };
            let files = if hides_files {
                "cat /proc/cmdline /proc/version /proc/kallsyms; ls /sys/kernel; ls /sys/devices"
            } else {
                "true"
            };
            let rest = "touch /dev/mqueue/q 2>/dev/null && echo queue; \
                          python3 -c 'import socket; socket.socket(socket.AF_INET)' 2>/dev/null && echo internet; \
                          python3 -c 'import resource; print(\"limits\", resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_MEMLOCK))'";
            let script = format!("id -u; {groups}; {files}; {rest}");
            let run = sandbox.run(command(&script), b"", std::time::Duration::from_secs(60), 4000).await.unwrap();
            let printed = String::from_utf8(run.stdout).unwrap();
            sandbox.close().await.unwrap();
            printed
        }
    };
    let (data, services) = (result(Profile::Data).await, result(Profile::Services).await);
    for printed in [&data, &services] {
        let mut lines = printed.lines();
        let user: u32 = lines.next().unwrap().parse().unwrap();
        assert!((20_000..60_000).contains(&user), "{user}");
        for line in lines.filter(|line| !matches!(*line, "internet" | "limits (1, 1) (65536, 65536)")) {
            assert!(line.ends_with(":/"), "{line}");
        }
        assert!(printed.contains("limits (1, 1) (65536, 65536)"), "{printed}");
    }
    assert!(!data.contains("internet") && services.contains("internet"), "{data} {services}");
    let users = [&data, &services].map(|printed| printed.lines().next().unwrap().to_owned());
    assert_ne!(users[0], users[1], "each workspace has a user of its own");
    backend.shutdown().await;
}

/// Passes connections on to an engine, and answers requests for containers that have such a word itself, as an engine that does not know it
/// would.
async fn engine_without(word: &'static str, socket: &Path) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
    let engine = std::env::var("DOCKER_HOST").unwrap_or("unix:///var/run/docker.sock".to_owned());
    let engine = engine.trim_start_matches("unix://").to_owned();
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = tokio::net::UnixStream::connect(&engine).await else { return };
            tokio::spawn(async move {
                let (mut asked, mut result) = client.into_split();
                let (mut answered, mut ask) = server.into_split();
                let refused = async {
                    let mut request = Vec::new();
                    while asked.read_buf(&mut request).await.is_ok_and(|count| count > 0) {
                        let text = String::from_utf8_lossy(&request);
                        if text.starts_with("POST") && text.contains("/containers/create") {
                            let length = text
                                .to_ascii_lowercase()
                                .split_once("content-length: ")
                                .map(|(_, rest)| rest.split_once("\r\n").unwrap().0.parse::<usize>().unwrap());
                            let whole =
                                text.split_once("\r\n\r\n").is_some_and(|(_, body)| body.len() >= length.unwrap_or(0));
                            if !whole {
                                continue;
                            }
                            if text.contains(word) {
                                return true;
                            }
                        }
                        if ask.write_all(&request).await.is_err() {
                            break;
                        }
                        request.clear();
                    }
                    let _gone = ask.shutdown().await;
                    std::future::pending::<bool>().await
                };
                let is_refused = tokio::select! {
                    refused = refused => refused,
                    _ended = copy(&mut answered, &mut result) => false,
                };
                if is_refused {
                    let body = format!("{{\"message\":\"unknown field {word}\"}}");
                    let answer = format!(
                        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    let _gone = result.write_all(answer.as_bytes()).await;
                }
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_an_engine_does_not_know_is_told_and_left_out() {
    let data = tempfile::tempdir().unwrap();
    let Some(known) = start(data.path()).await else { return };
    let before = known.warnings();
    known.shutdown().await;
    for (word, loss) in [
        ("Sysctls", "connections take memory"),
        ("seccomp=", "own list"),
        ("CgroupnsMode", "names of the host's control groups"),
    ] {
        let socket = data.path().join(format!("{}.sock", word.trim_end_matches('=')));
        engine_without(word, &socket).await;
        let host = format!("unix://{}", socket.display());
        let backend = Docker::start(config(data.path(), Some(&host)), &mut |_| {}).await.unwrap();
        let warnings = backend.warnings();
        assert!(warnings.iter().any(|warning| warning.contains(loss) && warning.contains(word)), "{warnings:?}");
        let was_missing = before.iter().any(|warning| warning.contains(loss));
        assert_eq!(warnings.len(), before.len() + usize::from(!was_missing), "{warnings:?}");
        let sandbox = backend.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await.unwrap();
        let run = sandbox.run(command("true"), b"", std::time::Duration::from_secs(60), 10).await.unwrap();
        assert_eq!(run.status, Some(ExitStatus::Code(0)), "it works without");
        backend.shutdown().await;
    }
}

/// Runs attacks of the suite that have these names, and returns those that are not held.
async fn broken(profile: Profile, is_meant: impl Fn(&str, &str) -> bool) -> Option<Vec<String>> {
    let data = tempfile::tempdir().unwrap();
    let config = DockerConfig { limits: limits(3), ..config(data.path(), None) };
    let Ok(backend) = Docker::start(config, &mut |_| {}).await else {
        println!("skipped: no engine");
        return None;
    };
    let backend = std::sync::Arc::new(backend);
    let mut running = tokio::task::JoinSet::new();
    let mut attacks = suite().unwrap().into_iter().filter(|(file, attack)| is_meant(file, &attack.name));
    let mut broken = Vec::new();
    loop {
        while running.len() < 3
            && let Some((file, attack)) = attacks.next()
        {
            let backend = std::sync::Arc::clone(&backend);
            running.spawn(async move { (format!("{file}: {}", attack.name), attack.run(&*backend, 3, profile).await) });
        }
        let Some(done) = running.join_next().await else { break };
        let (name, verdict) = done.unwrap();
        match verdict {
            Ok(AttackResult::Held) => println!("held {name}"),
            other => {
                println!("NOT {name}: {}", format!("{other:?}").chars().take(600).collect::<String>());
                broken.push(name);
            }
        }
    }
    backend.shutdown().await;
    assert!(backend.left().await.unwrap().is_empty());
    Some(broken)
}

/// Prints which of the suite of hostile programs containers hold, which is written for the local sandbox. By hand, since it takes long.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes an hour: cargo test -p aludel-sandbox --features docker --test docker -- --ignored --nocapture; ALUDEL_ATTACKS=host,files for some"]
async fn hostile_programs_are_held_by_an_engine_too() {
    let files = std::env::var("ALUDEL_ATTACKS").unwrap_or_default();
    let profile = if std::env::var_os("ALUDEL_DATA").is_some() { Profile::Data } else { Profile::Services };
    broken(profile, |file, _| files.is_empty() || files.split(',').any(|wanted| wanted == file)).await;
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
