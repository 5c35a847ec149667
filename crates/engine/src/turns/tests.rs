//! Turns of a terminal, and their recovery, with a scripted model and scripted programs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::Item;
use aludel_agent::upstream::http::HttpUpstream;
use aludel_sandbox::memory::{Memory, ScriptedCell, simple};
use aludel_sandbox::template::TemplateName;
use aludel_sandbox::{Backend, MimeBundle, MimeData, OfferedTemplate, Outcome, Templates};
use aludel_store::{SessionId, Store, Tenant, TurnId, TurnRecord, TurnState, now};
use aludel_testkit::{Scripted, ScriptedTransport, chat_options};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;
use crate::approvals::{ApprovalPolicy, Gate, ProgramOrigin, TerminalApprover};
use crate::sessions::NewSession;
use crate::{Engine, Error, Model, SessionSettings};

/// Requests of a terminal as if their rows could not be read.
struct BrokenRequests;

impl StoredRequests for BrokenRequests {
    fn name(&self) -> &'static str {
        "terminal"
    }

    fn restore<'a>(
        &'a self,
        _turn: &'a TurnRecord,
        _own: &'a RawValue,
    ) -> BoxFuture<'a, Result<Option<RestoredRequest>, Error>> {
        Box::pin(async { Err(Error::internal("a row of another version")) })
    }
}

/// A renderer that keeps the events.
#[derive(Clone, Default)]
pub(super) struct RecordingRenderer(pub(super) Arc<Mutex<Vec<TurnEvent>>>);

impl Render for RecordingRenderer {
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent {
        self.0.lock().push(event.clone());
        RenderedEvent::default()
    }

    fn document(&self) -> Box<RawValue> {
        Box::default()
    }

    fn failure(&self) -> Option<Failure> {
        None
    }
}

/// An engine of a process beside a server.
async fn beside(data: &Path, script: Vec<Scripted>) -> Arc<Engine> {
    engine(Store::open_beside(data).await.unwrap(), script)
}

fn engine(store: Store, script: Vec<Scripted>) -> Arc<Engine> {
    engine_on(store, script, Arc::new(Memory::new(program)), None, SessionSettings::default())
}

/// An engine whose model runs its programs in sandboxes of a template.
pub(super) fn engine_on(
    store: Store,
    script: Vec<Scripted>,
    backend: Arc<dyn Backend>,
    template: Option<TemplateName>,
    settings: SessionSettings,
) -> Arc<Engine> {
    let options = chat_options("http://localhost/v1", "m");
    let upstream = Arc::new(HttpUpstream::over(options, ScriptedTransport::new(script)).unwrap());
    let model = Model { template, ..Model::new("m", "", upstream) };
    Arc::new(Engine::new(store, backend, [model], ApprovalPolicy::default(), Vec::new(), settings))
}

/// The behaviour of programs.
pub(super) fn program(code: &str, cell: &mut ScriptedCell) {
    if code == "show()" {
        let text = |text: &str| MimeData::Text(text.to_owned());
        cell.display(MimeBundle(vec![
            ("text/html".into(), text("<b>1</b>")),
            ("text/plain".into(), text("1")),
            ("image/png".into(), MimeData::Binary(b"\x89PNG".to_vec())),
            ("application/pdf".into(), MimeData::Binary(b"%PDF".to_vec())),
        ]));
        cell.write("f.txt", "x");
    } else if code == "flood()" {
        cell.print("x".repeat(200_000));
    } else if code == "silent()" {
        cell.never_end();
    } else if code == "files()" {
        cell.write("large", "x".repeat(300_000)).write("small", "x");
    } else {
        simple(code, cell);
    }
}

/// A turn of a terminal at its beginning: the run, its renderer, and its session, which `owns_session` says was made for it.
async fn turn(engine: &Arc<Engine>, owns_session: bool) -> (Run, RecordingRenderer, SessionId) {
    let tenant = Tenant::terminal();
    let (session, _) = engine.sessions.create(&tenant, NewSession::named("s")).await.unwrap();
    let id = engine.store.owned_turn_id("ask").await.unwrap();
    let origin = ProgramOrigin {
        request: id.to_string(),
        kernel_programs: Arc::clone(session.kernel_programs()),
        model: "m".to_owned(),
    };
    let terminal = TerminalApprover::new(|_, _| async { panic!("nobody is asked") });
    let gate = Gate::at_terminal(engine, &tenant, origin, terminal);
    let container = session.id().clone();
    let choice = TurnSpec::new("m", "")
        .plan_choice(engine, &Tenant::local(), vec![Item::user("Go")], Some((session, gate)), SessionRetention::Keep)
        .unwrap();
    let in_flight = engine.in_flight.begin(&tenant, RequestFingerprint::none(), id.clone()).unwrap();
    let seen = RecordingRenderer::default();
    let run = Run::new(engine, &tenant, in_flight, vec![choice], Box::new(seen.clone()));
    let journal = NewJournal {
        id,
        dialect: "terminal",
        expires_at: Some(now()),
        session: Some(container.to_string()),
        owns_session,
        spec: None,
        own: Box::default(),
        items: Vec::new(),
    };
    let run = run.with_journal(journal).await.unwrap();
    (run, seen, container)
}

/// Carries a turn out, and returns its events.
async fn carried_out(engine: &Arc<Engine>) -> (TurnId, Vec<TurnEvent>) {
    let (run, seen, _) = turn(engine, true).await;
    let id = run.in_flight.id.clone();
    run.run().await;
    let events = seen.0.lock().clone();
    (id, events)
}

/// Makes every such change of a table fail.
fn fill(data: &Path, change: &str) {
    let database = rusqlite::Connection::open(data.join("aludel.db")).unwrap();
    let (name, full) = (change.replace(' ', "_"), "BEGIN SELECT RAISE(ABORT, 'it is full'); END");
    database.execute(&format!("CREATE TRIGGER full_{name} BEFORE {change} {full}"), []).unwrap();
}

#[tokio::test]
async fn a_program_that_prints_nothing_is_seen_to_run() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), vec![Scripted::Python("silent()")]).await;
    let (run, seen, _) = turn(&engine, true).await;
    let in_flight = Arc::clone(&run.in_flight);
    let running = tokio::spawn(run.run());
    let runs = || seen.0.lock().iter().any(|event| matches!(event.kind, EventKind::ToolRunning { .. }));
    let seen_to_run = async {
        while !runs() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), seen_to_run).await.expect("it runs");
    in_flight.cancel.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn programs_run_in_the_template_of_their_model_or_their_tenant() {
    let name: TemplateName = "ml".parse().unwrap();
    let of_tenant = BTreeMap::from([(Tenant::terminal().as_str().to_owned(), name.clone())]);
    let cases = [
        (None, BTreeMap::new(), "usual"),
        (Some(name.clone()), BTreeMap::new(), "ml"),
        (None, of_tenant.clone(), "ml"),
        (Some("geo".parse().unwrap()), of_tenant, "geo"),
    ];
    for (template, templates, word) in cases {
        let data = tempfile::tempdir().unwrap();
        let scripted = |word: &'static str| {
            Arc::new(Memory::new(move |_: &str, cell: &mut ScriptedCell| {
                cell.print(word);
            }))
        };
        let further = ["ml", "geo"].map(|name| {
            let offer = OfferedTemplate { name: name.parse().unwrap(), packages: Vec::new() };
            (offer, scripted(name) as Arc<dyn Backend>)
        });
        let backend = Templates::new(scripted("usual"), None, further);
        let store = Store::open_beside(data.path()).await.unwrap();
        let engine = engine_on(
            store,
            vec![Scripted::Python("1"), Scripted::Text("ok")],
            Arc::new(backend),
            template,
            SessionSettings { templates, ..SessionSettings::default() },
        );
        let printed = carried_out(&engine).await.1.into_iter().find_map(|event| match event.kind {
            EventKind::Output { output: OutputPiece::Stdout(text), .. } => Some(text),
            _ => None,
        });
        assert_eq!(printed.as_deref(), Some(word));
    }
    let model = || Memory::new(program);
    let offer = OfferedTemplate { name: name.clone(), packages: vec!["torch".into()] };
    let backend = Templates::new(Arc::new(model()), None, [(offer, Arc::new(model()) as Arc<dyn Backend>)]);
    let data = tempfile::tempdir().unwrap();
    let engine = engine_on(
        Store::open_beside(data.path()).await.unwrap(),
        Vec::new(),
        Arc::new(backend),
        None,
        SessionSettings::default(),
    );
    assert_eq!(engine.packages_of(Some(&name)), ["torch"]);
    assert_eq!(engine.packages_of(None), [""; 0]);
}

#[tokio::test]
async fn events_tell_all_that_a_program_put_out_and_are_read_as_they_were_told() {
    let data = tempfile::tempdir().unwrap();
    let unknown = Scripted::Calls(vec![("other", "{}".to_owned())]);
    let script = vec![Scripted::Python("show()"), unknown, Scripted::Status(401, "", "no")];
    let engine = beside(data.path(), script).await;
    let (id, events) = carried_out(&engine).await;
    let bundle = events.iter().find_map(|event| match &event.kind {
        EventKind::Output { output: OutputPiece::Display(value), .. } => Some(value.bundle()),
        _ => None,
    });
    let text = |text: &str| MimeData::Text(text.to_owned());
    let mut forms = bundle.unwrap().0;
    forms.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(
        forms,
        [
            ("application/pdf".to_owned(), MimeData::Binary(b"%PDF".to_vec())),
            ("image/png".to_owned(), MimeData::Binary(b"\x89PNG".to_vec())),
            ("text/html".to_owned(), text("<b>1</b>")),
            ("text/plain".to_owned(), text("1")),
        ]
    );
    let (mut observed, mut rejected) = (Vec::new(), Vec::new());
    for event in &events {
        match &event.kind {
            EventKind::ToolEnded { outcome, .. } => {
                let finished = outcome.finished.as_ref().unwrap();
                assert_eq!((&finished.outcome, &*finished.files[0].path), (&Outcome::Completed, "f.txt"));
                assert_eq!(finished.files[0].mime, "text/plain");
            }
            EventKind::Observed { call_id, text } => observed.push((call_id.clone(), text.clone())),
            EventKind::ToolRejected { item: None, call_id, .. } => rejected.push(call_id.clone()),
            EventKind::Ended { ending: EndReason::Failed { failure, cause }, .. } => {
                assert_eq!(failure.kind, FailureKind::Upstream);
                assert!(cause.as_ref().unwrap().contains("http://localhost"), "{cause:?}");
            }
            _ => {}
        }
    }
    assert!(observed[0].1.contains("f.txt"), "{observed:?}");
    assert_eq!(observed[1].0, rejected[0]);

    let stored = engine.store.turn_events(&Tenant::terminal(), &id, None, 1000).await.unwrap();
    assert!(!stored.iter().any(|event| event.event.contains("JVBERg")), "bytes are blobs");
    let row = engine.store.turn(&Tenant::terminal(), &id).await.unwrap().unwrap();
    assert_eq!(engine.store.turn_blobs(&row.tenant, &id).await.unwrap().len(), 2);
    let read = super::recover::events(&engine, &row).await.unwrap();
    let without_causes = events.into_iter().map(|mut event| {
        if let EventKind::Ended { ending: EndReason::Failed { cause, .. }, .. } = &mut event.kind {
            *cause = None;
        }
        event
    });
    assert_eq!(read, without_causes.collect::<Vec<_>>());
    assert!(!stored.iter().any(|event| event.event.contains("localhost")), "addresses are the operator's");
}

#[test]
fn events_that_an_earlier_version_stored_are_read() {
    let item = json!("1");
    let read = |mut event: Value| {
        event["sequence"] = json!(0);
        event["at_ms"] = json!(0);
        serde_json::from_value::<TurnEvent>(event).unwrap().kind
    };
    let shown = json!({ "type": "output", "item": item, "output": { "display": { "text": "x" } } });
    let EventKind::Output { output: OutputPiece::Display(value), .. } = read(shown) else { panic!() };
    assert_eq!((value.text.as_deref(), value.image, value.others.len()), (Some("x"), None, 0));
    let file = json!({ "id": "cfile_1", "path": "p", "bytes": 1, "mime": "image/png", "source": "assistant", "created_at": 0 });
    let image = json!({ "file": file, "bytes": "AQI=" });
    let shown = json!({ "type": "output", "item": item, "output": { "result": { "image": image } } });
    let EventKind::Output { output: OutputPiece::Result(value), .. } = read(shown) else { panic!() };
    assert_eq!((value.text, &*value.image.unwrap().bytes), (None, &[1, 2][..]));
    let outcome = json!({ "end": "died", "words": "w", "elapsed_ms": 1, "files": [] });
    let ended = json!({ "type": "tool_ended", "item": item, "outcome": outcome });
    let EventKind::ToolEnded { outcome, .. } = read(ended) else { panic!() };
    assert_eq!((outcome.end, outcome.finished), (ToolEnd::Died, None));
    read(json!({ "type": "tool_rejected", "item": null, "reason": "r" }));
}

#[tokio::test]
async fn a_turn_whose_state_fails_ends_with_that() {
    for (table, words, reported) in [
        ("audit", "a program was not run: the database: it is full", None),
        ("turn_events", "cannot store what happened: the database: it is full", None),
        // The last stored event is the beginning of the program.
        ("container_files", "cannot store the program's files: the database: it is full", Some(EventKind::Closed)),
    ] {
        let data = tempfile::tempdir().unwrap();
        let script = vec![Scripted::Python("open('f', 'w').write('x')"), Scripted::Text("Done.")];
        let engine = beside(data.path(), script).await;
        fill(data.path(), &format!("INSERT ON {table}"));
        let (id, events) = carried_out(&engine).await;
        let endings: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::Ended { ending, .. } => Some(ending),
                _ => None,
            })
            .collect();
        let [EndReason::Failed { failure, cause }] = endings[..] else { panic!("{table}: {endings:?}") };
        let cause = cause.as_ref().unwrap();
        assert_eq!(failure.kind, FailureKind::Storage, "{table}");
        assert!(cause.starts_with(words) && cause.contains("Error code"), "{table}: {cause}");
        assert!(!failure.message.contains("full"), "{failure:?}");
        let ran = events.iter().any(|event| matches!(event.kind, EventKind::ToolRunning { .. }));
        assert_eq!(ran, table == "container_files");
        if reported.is_some() {
            let row = engine.store.turn(&Tenant::terminal(), &id).await.unwrap().unwrap();
            assert_eq!(row.state, TurnState::Ended);
        }
    }
}

/// Returns the one ending among events.
fn ending(events: &[TurnEvent]) -> &EndReason {
    let endings = events.iter().filter_map(|event| match &event.kind {
        EventKind::Ended { ending, .. } => Some(ending),
        _ => None,
    });
    let [ending] = endings.collect::<Vec<_>>()[..] else { panic!("{events:?}") };
    ending
}

fn ran(events: &[TurnEvent]) -> usize {
    events.iter().filter(|event| matches!(event.kind, EventKind::ToolRunning { .. })).count()
}

#[tokio::test]
async fn a_turn_that_runs_out_of_storage_says_so_and_keeps_what_was_stored() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![Scripted::Python("show()"), Scripted::Python("flood()"), Scripted::Text("Done.")];
    let engine = beside(data.path(), script).await;
    let limit = 400 << 10;
    engine.store.limit_storage(limit);
    let (id, events) = carried_out(&engine).await;
    let EndReason::Failed { failure, .. } = ending(&events) else { panic!("{events:?}") };
    assert_eq!(failure.kind, FailureKind::StorageFull);
    assert_eq!(ran(&events), 2);
    let row = engine.store.turn(&Tenant::terminal(), &id).await.unwrap().unwrap();
    assert_eq!(row.state, TurnState::Ended);
    // Everything that was published is stored, and nothing else.
    let stored = super::recover::events(&engine, &row).await.unwrap();
    assert_eq!(stored, events);
    assert!(stored.iter().any(|event| matches!(event.kind, EventKind::ToolEnded { .. })));
    assert!(engine.store.bytes_of(&Tenant::terminal()).await.unwrap() <= limit);
}

#[tokio::test]
async fn the_output_of_a_program_whose_files_cannot_be_stored_is_told() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), vec![Scripted::Python("files()"), Scripted::Text("Done.")]).await;
    let scratch = data.path().join("scratch");
    std::fs::remove_dir_all(&scratch).unwrap();
    std::fs::write(&scratch, "").unwrap();
    let (_, events) = carried_out(&engine).await;
    let EndReason::Failed { failure, .. } = ending(&events) else { panic!("{events:?}") };
    assert_eq!(failure.kind, FailureKind::Storage);
    let outcome = events.iter().find_map(|event| match &event.kind {
        EventKind::ToolEnded { outcome, .. } => Some(outcome),
        _ => None,
    });
    assert!(!outcome.unwrap().without_room.is_empty(), "{events:?}");
}

#[test]
fn a_full_disk_is_told_as_one() {
    let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
    let error = aludel_store::Error::Io { path: "state/blobs".into(), source: full };
    assert_eq!(super::Failure::from(crate::Error::from(error)).kind, FailureKind::DiskFull);
}

#[tokio::test]
async fn no_program_begins_without_storage() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), vec![Scripted::Python("show()"), Scripted::Text("Done.")]).await;
    let (run, seen, _) = turn(&engine, true).await;
    engine.store.limit_storage(1);
    run.run().await;
    let events = seen.0.lock().clone();
    let EndReason::Failed { failure, .. } = ending(&events) else { panic!("{events:?}") };
    assert_eq!((failure.kind, ran(&events)), (FailureKind::StorageFull, 0));
    assert!(engine.store.audit_log(0, 10).await.unwrap().is_empty(), "an endless log would be a way around the bound");
}

#[tokio::test]
async fn a_program_that_no_sandbox_takes_ends_in_the_audit_log_as_well() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), vec![Scripted::Python("show()"), Scripted::Text("Done.")]).await;
    let (run, seen, session) = turn(&engine, true).await;
    engine.sessions.delete(&Tenant::terminal(), &session).await.unwrap();
    run.run().await;
    let events = seen.0.lock().clone();
    let EndReason::Failed { failure, .. } = ending(&events) else { panic!("{events:?}") };
    assert_eq!((failure.kind, ran(&events)), (FailureKind::SessionDeleted, 0));
    let noted = engine.store.audit_log(0, 10).await.unwrap();
    assert_eq!(noted.iter().map(|entry| &*entry.event).collect::<Vec<_>>(), ["started", "ended"]);
}

#[tokio::test]
async fn a_turn_whose_session_is_deleted_under_its_program_ends_at_once_and_says_so() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), vec![Scripted::Python("silent()"), Scripted::Text("Done.")]).await;
    let (run, seen, session) = turn(&engine, true).await;
    let deleted = async {
        while ran(&seen.0.lock().clone()) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        engine.sessions.delete(&Tenant::terminal(), &session).await.unwrap();
    };
    tokio::join!(run.run(), deleted);
    let events = seen.0.lock().clone();
    let EndReason::Failed { failure, .. } = ending(&events) else { panic!("{events:?}") };
    assert_eq!(failure.kind, FailureKind::SessionDeleted);
    assert!(failure.message.contains(session.as_str()), "{}", failure.message);
    let noted = engine.store.audit_log(0, 10).await.unwrap();
    assert_eq!(noted.iter().map(|entry| &*entry.event).collect::<Vec<_>>(), ["started", "ended"]);
}

#[tokio::test]
async fn a_program_without_a_place_does_not_begin_and_the_model_is_told() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open_beside(data.path()).await.unwrap();
    let script = vec![Scripted::Python("show()"), Scripted::Text("Later, then.")];
    let settings = SessionSettings { sessions: 0, ..SessionSettings::default() };
    let engine = engine_on(store, script, Arc::new(Memory::new(program)), None, settings);
    let (run, seen, _) = turn(&engine, true).await;
    tokio::time::pause();
    run.run().await;
    let events = seen.0.lock().clone();
    assert_eq!((ending(&events), ran(&events)), (&EndReason::Answered, 0));
    let denied = events.iter().find_map(|event| match &event.kind {
        EventKind::ApprovalDecided { denied, .. } => denied.clone(),
        _ => None,
    });
    assert!(denied.as_ref().is_some_and(|reason| reason.contains("server.containers")), "{events:?}");
    assert!(engine.store.audit_log(0, 10).await.unwrap().is_empty(), "it never began");
}

#[tokio::test]
async fn a_program_whose_files_do_not_fit_goes_on_and_its_outcome_says_so() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), vec![Scripted::Python("files()"), Scripted::Text("Done.")]).await;
    engine.store.limit_storage(300 << 10);
    let (_, events) = carried_out(&engine).await;
    assert_eq!(*ending(&events), EndReason::Answered);
    let outcome = events.iter().find_map(|event| match &event.kind {
        EventKind::ToolEnded { outcome, .. } => Some(outcome),
        _ => None,
    });
    let outcome = outcome.unwrap();
    assert_eq!(outcome.files.iter().map(|file| &*file.path).collect::<Vec<_>>(), ["/mnt/data/small"]);
    assert_eq!(outcome.without_room, ["large"]);
    assert!(outcome.words.ends_with("used up: large."), "{}", outcome.words);
}

#[tokio::test]
async fn recovery_leaves_a_living_terminal_alone_and_ends_what_a_dead_one_left() {
    let data = tempfile::tempdir().unwrap();
    let terminal = beside(data.path(), Vec::new()).await;
    let (own, _, own_session) = turn(&terminal, true).await;
    let (shared, _, shared_session) = turn(&terminal, false).await;
    let ids = [&own, &shared].map(|run| run.in_flight.id.clone());
    let tenant = Tenant::terminal();
    let server = engine(Store::open(data.path()).await.unwrap(), Vec::new());
    assert_eq!(recover(&server, &[]).await.unwrap(), RecoveryOutcome::default());
    server.store.remove_expired().await.unwrap();
    for id in &ids {
        let row = server.store.turn(&tenant, id).await.unwrap().unwrap();
        assert_eq!((row.state, row.epoch), (TurnState::Running, 1));
        assert_eq!(row.owner, *terminal.store.owner());
    }

    // As if it was killed: nothing more is published or stored.
    drop((own, shared));
    drop(terminal);
    drop(server);
    let server = engine(Store::open(data.path()).await.unwrap(), Vec::new());
    let broken: Arc<dyn StoredRequests> = Arc::new(BrokenRequests);
    let ended = recover(&server, &[broken]).await.unwrap();
    assert_eq!(ended, RecoveryOutcome { resumed: 0, ended: 2 }, "one that cannot be restored keeps none of the others");
    for id in &ids {
        let row = server.store.turn(&tenant, id).await.unwrap().unwrap();
        assert_eq!((row.state, row.epoch, row.next_sequence), (TurnState::Ended, 2, 0));
    }
    assert!(server.store.session(&tenant, &own_session).await.unwrap().is_none());
    assert!(server.store.session(&tenant, &shared_session).await.unwrap().is_some());
    server.store.remove_expired().await.unwrap();
    for id in &ids {
        assert!(server.store.turn(&tenant, id).await.unwrap().is_none(), "its time has come");
    }
}

#[tokio::test]
async fn an_answer_in_memory_is_forgotten_though_nobody_asks_for_another_one() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), Vec::new()).await;
    let (tenant, id) = (Tenant::terminal(), TurnId::parse("resp_1").unwrap());
    let in_flight = engine.in_flight.begin(&tenant, RequestFingerprint::none(), id.clone()).unwrap();
    engine.in_flight.end(&in_flight, RequestEnd { answer: Box::default(), failure: None }, false);
    tokio::time::pause();
    let reaping = tokio::spawn(crate::sessions::reap(Arc::clone(&engine)));
    tokio::time::sleep(Duration::from_secs(590)).await;
    assert!(engine.in_flight.find(&tenant, &id).is_some());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(engine.in_flight.find(&tenant, &id).is_none());
    engine.shutdown.cancel();
    reaping.await.unwrap();
}

#[tokio::test]
async fn a_turn_is_cancelled_when_the_key_of_its_tenant_is_revoked() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), Vec::new()).await;
    let key = engine.store.create_key("one", None).await.unwrap();
    let one = engine.store.tenant_of_key(&key.secret).await.unwrap().unwrap();
    let begin =
        |tenant, id| engine.in_flight.begin(tenant, RequestFingerprint::none(), TurnId::parse(id).unwrap()).unwrap();
    let (revoked, stays) = (begin(&one, "resp_1"), begin(&Tenant::terminal(), "resp_2"));
    tokio::time::pause();
    let watching = tokio::spawn(crate::end_revoked(Arc::clone(&engine)));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!revoked.cancel.is_cancelled());
    engine.store.revoke_key(key.id).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), revoked.cancel.cancelled()).await.unwrap();
    assert!(!stays.cancel.is_cancelled());
    engine.shutdown.cancel();
    watching.await.unwrap();
}

#[tokio::test]
async fn a_turn_that_ends_with_the_process_has_failed_for_now() {
    for is_cancelled in [false, true] {
        let data = tempfile::tempdir().unwrap();
        let engine = beside(data.path(), vec![Scripted::Text("Done.")]).await;
        let (run, seen, _) = turn(&engine, true).await;
        if is_cancelled {
            run.in_flight.cancel.cancel();
        }
        engine.shutdown.cancel();
        run.run().await;
        let seen = seen.0.lock();
        let ending = seen.iter().find_map(|event| match &event.kind {
            EventKind::Ended { ending, .. } => Some(ending.clone()),
            _ => None,
        });
        let expected = if is_cancelled { EndReason::Cancelled } else { EndReason::failed(Failure::server_ends()) };
        assert_eq!(ending, Some(expected));
    }
}

#[tokio::test]
async fn the_end_of_a_turn_is_stored_when_the_disk_has_room_again() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), vec![Scripted::Python("show()"), Scripted::Text("Done.")]).await;
    let (run, ..) = turn(&engine, true).await;
    let id = run.in_flight.id.clone();
    fill(data.path(), "INSERT ON turn_events");
    fill(data.path(), "UPDATE OF state ON turns");
    run.run().await;
    let row = async || engine.store.turn(&Tenant::terminal(), &id).await.unwrap().unwrap();
    assert_eq!(row().await.state, TurnState::Running);
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let room = "DROP TRIGGER full_INSERT_ON_turn_events; DROP TRIGGER full_UPDATE_OF_state_ON_turns";
    database.execute_batch(room).unwrap();
    tokio::time::pause();
    engine.tasks.close();
    engine.tasks.wait().await;
    assert_eq!(row().await.state, TurnState::Ended);
    let events = engine.store.turn_events(&Tenant::terminal(), &id, None, 1000).await.unwrap();
    assert!(events.iter().map(|event| event.sequence).eq(0..events.len() as u64), "{events:?}");
    assert!(events.last().unwrap().event.contains("closed"));
}

#[tokio::test]
async fn a_turn_that_nobody_follows_is_stored_in_fewer_writes() {
    let mut writes = Vec::new();
    for is_followed in [true, false] {
        let data = tempfile::tempdir().unwrap();
        let engine = beside(data.path(), vec![Scripted::Python("show()"), Scripted::Text("Done.")]).await;
        let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
        let count = "CREATE TABLE writes (id); CREATE TRIGGER count AFTER UPDATE ON turns BEGIN INSERT INTO writes VALUES (1); END";
        database.execute_batch(count).unwrap();
        let (mut run, seen, _) = turn(&engine, true).await;
        run.is_followed = is_followed;
        let id = run.in_flight.id.clone();
        run.run().await;
        let row = engine.store.turn(&Tenant::terminal(), &id).await.unwrap().unwrap();
        assert_eq!(super::recover::events(&engine, &row).await.unwrap(), *seen.0.lock());
        writes.push(database.query_one("SELECT count(*) FROM writes", [], |row| row.get::<_, i64>(0)).unwrap());
    }
    assert!(writes[1] <= 3 && writes[0] > 2 * writes[1], "{writes:?}");
}

#[tokio::test]
async fn a_turn_that_nobody_follows_is_stored_while_the_model_thinks() {
    let data = tempfile::tempdir().unwrap();
    let engine = beside(data.path(), vec![Scripted::Python("show()"), Scripted::Hang]).await;
    let (mut run, ..) = turn(&engine, true).await;
    run.is_followed = false;
    let in_flight = Arc::clone(&run.in_flight);
    let carried = tokio::spawn(run.run());
    let row = engine.store.turn(&Tenant::terminal(), &in_flight.id).await.unwrap().unwrap();
    let has_ended = |event: &TurnEvent| matches!(event.kind, EventKind::ToolEnded { .. });
    let stored = async {
        while !super::recover::events(&engine, &row).await.unwrap().iter().any(has_ended) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), stored).await.unwrap();
    in_flight.cancel.cancel();
    carried.await.unwrap();
}
