//! The suite of hostile programs, on the real sandbox.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use aludel_sandbox::attack::{AttackResult, limits, suite};
use aludel_sandbox::{Backend, Profile};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attack_is_held_and_every_control_works() {
    all_are_held(Profile::Data).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attack_is_held_with_services_too() {
    all_are_held(Profile::Services).await;
}

async fn all_are_held(profile: Profile) {
    let data = tempfile::tempdir().unwrap();
    let backend = common::backend_at(data.path(), limits(1), 0).await;
    let attacks = suite().unwrap();
    assert!(attacks.len() > 100 || cfg!(not(target_arch = "x86_64")), "{}", attacks.len());
    let mut failures = Vec::new();
    let mut running = tokio::task::JoinSet::new();
    let mut attacks = attacks.into_iter();
    loop {
        // A few at once: most of those that take time only wait for their limit.
        while running.len() < 3
            && let Some((file, attack)) = attacks.next()
        {
            let backend = backend.clone();
            running.spawn(async move { (format!("{file}: {}", attack.name), attack.run(&backend, 1, profile).await) });
        }
        let Some(done) = running.join_next().await else { break };
        let (name, verdict) = done.unwrap();
        match verdict.unwrap() {
            AttackResult::Held => {}
            other => failures.push(format!("{name}: {other:?}")),
        }
    }
    backend.shutdown().await;
    assert!(failures.is_empty(), "{failures:#?}");
}
