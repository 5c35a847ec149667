//! Snapshots of everything that a client can get: streams, objects and error bodies, with ids and times replaced by names.
//!
//! A case is a name, a script for the model and a list of requests; its snapshot is `expected/GROUP/NAME.txt`. A path or a body may refer
//! to an id of an earlier answer by the name that it has in the snapshot, such as `<resp 1>`. `SNAPSHOTS=write cargo test -p aludel-server
//! --test api snapshots` writes the files anew.

use std::sync::Arc;

use aludel_sandbox::Limits;
use aludel_sandbox::memory::Memory;
use case::Place;

mod anthropic;
mod assistants;
mod case;
mod chat;
mod errors;
mod interactions;
mod model;
mod names;
mod objects;
mod programs;
mod responses;
mod run;

fn cases() -> Vec<(&'static str, Vec<case::Case>)> {
    vec![
        ("responses", responses::cases()),
        ("chat", chat::cases()),
        ("anthropic", anthropic::cases()),
        ("assistants", assistants::cases()),
        ("interactions", interactions::cases()),
        ("objects", objects::cases()),
        ("errors", errors::cases()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_get_what_they_always_got() {
    let backend = Arc::new(Memory::new(programs::script));
    run::check(cases(), backend, &[Place::Memory, Place::Both]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_in_the_local_sandbox_do_what_their_scripts_say() {
    let data = tempfile::tempdir().unwrap();
    let backend = aludel_testkit::local(data.path(), Limits::default()).await;
    run::check(cases(), backend, &[Place::Both, Place::Local]).await;
}

#[test]
fn every_snapshot_has_a_case() {
    run::check_leftovers(cases());
}
