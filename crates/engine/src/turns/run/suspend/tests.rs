//! Turns whose programs wait, with a scripted model and scripted programs.

use std::path::Path;

use aludel_agent::Item;
use aludel_agent::upstream::FunctionTool;
use aludel_sandbox::memory::Memory;
use aludel_store::Store;
use aludel_testkit::Scripted;
use serde_json::json;

use super::*;
use crate::SessionSettings;
use crate::sessions::NewSession;
use crate::turns::tests::{RecordingRenderer, engine_on, program};
use crate::turns::{OutputPiece, ToolEnd, TurnSpec};

const ASKS: &str = "print('before')\nprint(await f({\"n\":1}))\nprint(await f({\"n\":2}))";

/// An engine whose model runs these programs and then answers.
async fn engine(data: &Path, programs: &[&'static str], answers: Duration) -> Arc<Engine> {
    let store = Store::open(data).await.unwrap();
    let script = programs.iter().map(|program| Scripted::Python(program)).chain([Scripted::Text("It is said.")]);
    let settings = SessionSettings { answers, ..SessionSettings::default() };
    engine_on(store, script.collect(), Arc::new(Memory::new(program)), None, settings)
}

fn run(engine: &Arc<Engine>, choices: Vec<ChoicePlan>) -> (Run, RecordingRenderer) {
    let (tenant, seen) = (Tenant::local(), RecordingRenderer::default());
    let in_flight = engine.in_flight.begin(&tenant, RequestFingerprint::none(), TurnId::new()).unwrap();
    (Run::new(engine, &tenant, in_flight, choices, Box::new(seen.clone())), seen)
}

/// Runs a turn whose programs can call `f`. Returns its session and its final calls.
async fn begun(engine: &Arc<Engine>) -> (SessionId, Vec<ToolCall>, Vec<TurnEvent>) {
    let (session, _) = engine.sessions.create(&Tenant::local(), NewSession::named("s")).await.unwrap();
    let tool =
        FunctionTool { name: "f".into(), description: String::new(), parameters: json!({}).into(), strict: None };
    let spec = TurnSpec { callable: vec![tool], ..TurnSpec::new("m", "") };
    let gate = spec.gate(engine, &Tenant::local(), "request".to_owned(), &session, false);
    let id = session.id().clone();
    let choice = spec
        .plan_choice(engine, &Tenant::local(), vec![Item::user("Go")], Some((session, gate)), SessionRetention::Keep)
        .unwrap();
    let (run, seen) = run(engine, vec![choice]);
    run.run().await;
    let events = seen.0.lock().clone();
    (id, calls_of(&events), events)
}

/// Takes the turn of these calls, without conditions.
fn take(engine: &Engine, tenant: &Tenant, calls: &[ToolCall]) -> TakenSuspension {
    let program = calls[0].caller.as_ref().unwrap();
    engine.suspended.take(tenant, program, |_| Ok::<_, ()>(())).unwrap()
}

/// Brings an answer, and returns the events that follow.
async fn answered(engine: &Arc<Engine>, calls: &[ToolCall], text: &str) -> Vec<TurnEvent> {
    let TakenSuspension::Waiting(suspension) = take(engine, &Tenant::local(), calls) else {
        panic!("it does not wait")
    };
    let (run, seen) = run(engine, Vec::new());
    run.go_on(suspension, vec![ClientAnswer { text: text.to_owned(), is_error: false }]).await;
    seen.0.lock().clone()
}

fn calls_of(events: &[TurnEvent]) -> Vec<ToolCall> {
    let ending = events.iter().find_map(|event| match &event.kind {
        EventKind::Ended { ending, .. } => Some(ending.clone()),
        _ => None,
    });
    match ending {
        Some(EndReason::WaitsForClient { calls, .. }) => calls,
        _ => Vec::new(),
    }
}

fn printed(events: &[TurnEvent]) -> String {
    let piece = |event: &TurnEvent| match &event.kind {
        EventKind::Output { output: OutputPiece::Stdout(text), .. } => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(piece).collect()
}

fn end(events: &[TurnEvent]) -> Option<ToolEnd> {
    events.iter().find_map(|event| match &event.kind {
        EventKind::ToolEnded { outcome, .. } => Some(outcome.end),
        _ => None,
    })
}

/// The kinds of entries of the audit log.
async fn log(engine: &Engine) -> Vec<String> {
    let records = engine.store.audit_log(0, 100).await.unwrap();
    records.into_iter().map(|record| record.event.to_string()).collect()
}

/// Waits until nothing waits and the program's end is noted.
async fn left_nothing(engine: &Engine) {
    while log(engine).await != ["started", "ended"] || engine.suspended.waiting() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_turn_goes_on_with_each_answer_and_ends_once() {
    let data = tempfile::tempdir().unwrap();
    let engine = engine(data.path(), &[ASKS, "2"], LONG).await;
    let (session, first, events) = begun(&engine).await;
    assert_eq!((first.len(), first[0].name.as_str(), first[0].arguments.as_str()), (1, "f", "{\"n\":1}"));
    assert_eq!((printed(&events).as_str(), end(&events), engine.suspended.waiting()), ("before\n", None, 1));
    let events = answered(&engine, &first, "one").await;
    let resumed = events.iter().find_map(|event| match &event.kind {
        EventKind::ToolResumed { output, .. } => Some(output.clone()),
        _ => None,
    });
    assert_eq!(resumed, Some(vec![OutputPiece::Stdout("before\n".into())]), "the next message has all of its output");
    let second = calls_of(&events);
    assert_eq!((second[0].caller == first[0].caller, second[0].item == first[0].item), (true, false));
    assert_eq!(log(&engine).await, ["started"]);
    let events = answered(&engine, &second, "two").await;
    assert_eq!((printed(&events).as_str(), end(&events)), ("two\n", Some(ToolEnd::Completed)));
    assert!(matches!(take(&engine, &Tenant::local(), &second), TakenSuspension::Answered));
    assert!(matches!(take(&engine, &Tenant::terminal(), &second), TakenSuspension::Lost), "nobody else is told of it");
    assert_eq!(log(&engine).await, ["started", "ended", "started", "ended"], "the model went on");
    assert_eq!(engine.suspended.waiting(), 0);
    assert!(engine.store.session(&Tenant::local(), &session).await.unwrap().is_some());
}

#[tokio::test]
async fn what_is_refused_waits_on() {
    let data = tempfile::tempdir().unwrap();
    let engine = engine(data.path(), &[ASKS], LONG).await;
    let (session, calls, _) = begun(&engine).await;
    assert!(matches!(take(&engine, &Tenant::terminal(), &calls), TakenSuspension::Lost));
    let program = calls[0].caller.clone().unwrap();
    let refused = engine.suspended.take(&Tenant::local(), &program, |waiting| {
        assert_eq!((waiting.code(), waiting.model(), waiting.session()), (ASKS, "m", Some(&session)));
        Err("no")
    });
    assert_eq!(refused.unwrap_err(), "no");
    assert!(!calls_of(&answered(&engine, &calls, "one").await).is_empty());
}

#[tokio::test]
async fn answers_to_which_no_message_came_can_be_brought_again_to_a_program_that_is_lost() {
    let data = tempfile::tempdir().unwrap();
    let engine = engine(data.path(), &[ASKS], LONG).await;
    let (_, calls, _) = begun(&engine).await;
    let TakenSuspension::Waiting(suspension) = take(&engine, &Tenant::local(), &calls) else {
        panic!("it does not wait")
    };
    let (run, _) = run(&engine, Vec::new());
    run.in_flight.cancel.cancel();
    run.go_on(suspension, Vec::new()).await;
    left_nothing(&engine).await;
    assert!(matches!(take(&engine, &Tenant::local(), &calls), TakenSuspension::Lost));
}

#[tokio::test]
async fn a_program_that_nobody_answers_ends_in_time_and_leaves_nothing() {
    let data = tempfile::tempdir().unwrap();
    let engine = engine(data.path(), &[ASKS], Duration::from_millis(20)).await;
    let (_, calls, _) = begun(&engine).await;
    left_nothing(&engine).await;
    assert!(matches!(take(&engine, &Tenant::local(), &calls), TakenSuspension::Lost));
}

#[tokio::test]
async fn a_program_ends_with_its_session_and_with_the_process() {
    for closes in [false, true] {
        let data = tempfile::tempdir().unwrap();
        let engine = engine(data.path(), &[ASKS], LONG).await;
        let (session, calls, _) = begun(&engine).await;
        if closes {
            engine.shutdown.cancel();
            engine.tasks.close();
            engine.tasks.wait().await;
        } else {
            engine.sessions.delete(&Tenant::local(), &session).await.unwrap();
        }
        left_nothing(&engine).await;
        assert!(matches!(take(&engine, &Tenant::local(), &calls), TakenSuspension::Lost));
    }
}

#[tokio::test]
async fn a_session_whose_program_waits_is_not_evicted() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let settings = SessionSettings { sessions: 1, idle: Duration::from_millis(1), ..SessionSettings::default() };
    let script = vec![Scripted::Python(ASKS), Scripted::Text("It is said.")];
    let engine = engine_on(store, script, Arc::new(Memory::new(program)), None, settings);
    let (_, calls, _) = begun(&engine).await;
    let (other, _) = engine.sessions.create(&Tenant::local(), NewSession::named("s")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    engine.sessions.reap_once().await;
    assert!(other.reserve().await.is_err());
    assert!(!calls_of(&answered(&engine, &calls, "one").await).is_empty());
}

#[tokio::test]
async fn calls_fail_when_too_many_programs_wait() {
    let data = tempfile::tempdir().unwrap();
    let engine = engine(data.path(), &[ASKS], LONG).await;
    let _all = engine.suspended.permits.acquire_many(&Tenant::terminal(), MAX_WAITING / 2);
    let _rest = engine.suspended.permits.acquire_many(&Tenant::local(), MAX_WAITING / 2);
    let (_, calls, events) = begun(&engine).await;
    assert!(calls.is_empty());
    assert_eq!((end(&events), engine.suspended.entries.lock().len()), (Some(ToolEnd::Raised), 0));
    let is_told = |event: &TurnEvent| match &event.kind {
        EventKind::Output { output: OutputPiece::Error { name, value, .. }, .. } => {
            name == "ToolError" && value.starts_with("Too many programs wait")
        }
        _ => false,
    };
    assert!(events.iter().any(is_told), "{events:?}");
}
