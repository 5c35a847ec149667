//! Sessions with scripted programs in them, and a few with real ones.

mod local_sandbox;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aludel_sandbox::memory::{Memory as MemoryBackend, ScriptedCell, simple};
use aludel_sandbox::{Backend, Execution, ExecutionEvent, Finished, Limits, Outcome, VariablesState};
use aludel_store::{NewFile, SessionId, Store, Tenant};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{Environment, Error, ErrorKind, Meter, SessionSettings, Tasks};

/// A place for sessions, which can be left and entered again.
struct TestSessions {
    store: Store,
    sessions: Sessions,
    _backend: Arc<dyn Backend>,
}

fn settings() -> SessionSettings {
    let limits = Limits { memory: 512 << 20, disk: 32 << 20, file_size: 32 << 20, ..Limits::default() };
    SessionSettings { max_memory: limits.memory, limits, ..SessionSettings::default() }
}

impl TestSessions {
    async fn enter(data: &Path, settings: SessionSettings) -> Self {
        let store = Store::open(data).await.unwrap();
        Self::on(Arc::new(MemoryBackend::new(script)), store, settings)
    }

    fn on(backend: Arc<dyn Backend>, store: Store, settings: SessionSettings) -> Self {
        let meter = Meter::new(store.clone(), Tasks::default(), CancellationToken::new());
        Self { sessions: Sessions::new(store.clone(), Arc::clone(&backend), settings, meter), store, _backend: backend }
    }

    async fn open(&self, choice: SessionChoice) -> std::sync::Arc<Session> {
        self.sessions.open(&me(), choice).await.unwrap()
    }
}

/// The behaviour of programs.
fn script(code: &str, cell: &mut ScriptedCell) {
    let text = |cell: &ScriptedCell, path| String::from_utf8(cell.read(path).unwrap_or_default()).unwrap();
    match code {
        "print(open('data.csv').read(), open('data-2.csv').read())" => {
            let texts = format!("{} {}\n", text(cell, "data.csv"), text(cell, "data-2.csv"));
            cell.print(texts)
        }
        "open('late.csv', 'w').write('mine')" => cell.write("late.csv", "mine"),
        "print(open('sub/late.txt').read())\nopen('data.csv','a').write('!')" => {
            let (late, data) = (text(cell, "sub/late.txt"), text(cell, "data.csv"));
            cell.print(format!("{late}\n")).write("data.csv", format!("{data}!"))
        }
        "import os; print(os.path.exists('sub/late.txt'))" => {
            let exists = if cell.read("sub/late.txt").is_some() { "True\n" } else { "False\n" };
            cell.print(exists)
        }
        "print(open('a').read(), 'x' in dir())" => {
            let has_x = if cell.variables.contains_key("x") { "True" } else { "False" };
            let a = text(cell, "a");
            cell.print(format!("{a} {has_x}\n"))
        }
        _ => {
            simple(code, cell);
            cell
        }
    };
}

fn me() -> Tenant {
    Tenant::local()
}

fn auto() -> SessionChoice {
    SessionChoice::Auto { file_ids: Vec::new(), memory: None }
}

/// Runs a program and stores its files. Returns its output, and the paths that can be downloaded.
async fn run(session: &Session, code: &str) -> (String, Vec<SessionFile>) {
    let (text, finished) = execute(session, code).await;
    (text, session.store_changes(&finished.files).await.unwrap().files)
}

/// Runs a program. Returns what it printed, and its end.
async fn execute(session: &Session, code: &str) -> (String, Finished) {
    finish(session.execute(code).await.unwrap()).await
}

async fn finish(mut execution: Execution) -> (String, Finished) {
    let (mut text, mut finished) = (String::new(), None::<Finished>);
    while let Some(event) = execution.next().await {
        match event {
            ExecutionEvent::Stdout(more) => text.push_str(&more),
            ExecutionEvent::Error(error) => panic!("{}", error.traceback),
            ExecutionEvent::Finished(end) => finished = Some(end),
            _ => {}
        }
    }
    (text, finished.unwrap())
}

fn paths(files: &[SessionFile]) -> Vec<&str> {
    files.iter().map(|file| file.path.as_str()).collect()
}

#[tokio::test]
async fn clients_and_programs_see_the_same_files() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let blob = async |content: &[u8]| place.store.write_blob(&me(), content).await.unwrap();
    let new = |name: &str| NewFile {
        filename: name.into(),
        purpose: "user_data".into(),
        mime: "text/csv".into(),
        expires_at: None,
    };
    let first = place.store.add_file(&me(), new("data.csv"), blob(b"first").await).await.unwrap();
    let second = place.store.add_file(&me(), new("data.csv"), blob(b"second").await).await.unwrap();
    let choice = SessionChoice::Auto { file_ids: vec![first.id.clone(), second.id], memory: None };
    let session = place.open(choice).await;
    let (text, _) = run(&session, "print(open('data.csv').read(), open('data-2.csv').read())").await;
    assert_eq!(text, "first second\n");
    // The session lives: added and removed files are visible at once.
    let added = session.add_file("sub/late.txt", "text/plain", blob(b"late").await).await.unwrap();
    let (text, changed) = run(&session, "print(open('sub/late.txt').read())\nopen('data.csv','a').write('!')").await;
    assert_eq!((text.as_str(), paths(&changed)), ("late\n", vec!["/mnt/data/data.csv"]));
    assert_eq!(changed[0].source, aludel_store::FileOrigin::Assistant);
    assert!(session.delete_file(&added.id).await.unwrap());
    assert!(!session.delete_file(&added.id).await.unwrap());
    assert_eq!(run(&session, "import os; print(os.path.exists('sub/late.txt'))").await.0, "False\n");
    // An uploaded file does not change when programs change their copy.
    let original = place.store.file(&me(), &first.id).await.unwrap().unwrap();
    let content = place.store.read_blob(&original.blob).await.unwrap();
    assert_eq!(content.read_whole(5).await.unwrap(), b"first");
    let large = blob(&vec![0; 33 << 20]).await;
    let refused = session.add_file("large", "x/y", large).await.unwrap_err();
    assert!(matches!(&refused, Error::FileRefused { reason, .. } if reason.contains("workspace")), "{refused:?}");
    for name in ["../x", "/etc/x", "a\0b"] {
        let refused = session.add_file(name, "x/y", blob(b"x").await).await.unwrap_err();
        assert!(matches!(refused, Error::InvalidName { .. }), "{refused:?}");
    }
    let dormant = place.open(auto()).await;
    let refused = dormant.add_file("large", "x/y", blob(&vec![0; 33 << 20]).await).await.unwrap_err();
    assert!(matches!(refused, Error::WorkspaceFull { limit } if limit == 32 << 20), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_one_name_that_come_at_once_are_all_kept() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let session = place.open(auto()).await;
    let attached = (0..8).map(async |number: u8| {
        let blob = place.store.write_blob(&me(), &[number]).await.unwrap();
        session.add_attached_file("r.csv", "text/csv", blob).await.unwrap()
    });
    let names = futures_util::future::join_all(attached).await;
    let different: std::collections::HashSet<&String> = names.iter().collect();
    assert_eq!((different.len(), session.files().await.unwrap().len()), (8, 8), "{names:?}");
}

#[tokio::test]
async fn an_attached_file_replaces_none_that_a_program_has_just_made() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let session = place.open(auto()).await;
    // Its end has not been stored.
    execute(&session, "open('late.csv', 'w').write('mine')").await;
    let blob = place.store.write_blob(&me(), b"theirs").await.unwrap();
    assert_eq!(session.add_attached_file("late.csv", "text/csv", blob).await.unwrap(), "late-2.csv");
}

#[tokio::test]
async fn a_file_is_no_directory_of_another() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let blob = async || place.store.write_blob(&me(), b"x").await.unwrap();
    let session = place.open(auto()).await;
    for path in ["d", "e/x/y", "ef", "e/z"] {
        session.add_file(path, "x/y", blob().await).await.unwrap();
    }
    for path in ["d/x", "d/x/y", "e", "e/x"] {
        let refused = session.add_file(path, "x/y", blob().await).await.unwrap_err();
        assert!(matches!(&refused, Error::FileRefused { path: told, .. } if told == path), "{refused:?}");
    }
}

#[tokio::test]
async fn a_container_that_nobody_waits_for_has_all_its_files_or_is_not_there() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let mut file_ids = Vec::new();
    for number in 0..20 {
        let content = std::io::Cursor::new(vec![number; 1 << 16]);
        let blob = place.store.write_blobs(place.store.no_room(&me()), vec![content]).await.unwrap().remove(0);
        let (filename, mime) = (format!("{number}.txt"), "text/plain".to_owned());
        let new = NewFile { filename, purpose: "user_data".into(), mime, expires_at: None };
        file_ids.push(place.store.add_file(&me(), new, blob).await.unwrap().id);
    }
    for time in 0..40 {
        let new = NewSession { file_ids: file_ids.clone(), ..NewSession::named("c") };
        let tenant = me();
        let creating = place.sessions.create(&tenant, new);
        let _cut = tokio::time::timeout(Duration::from_millis(time), creating).await;
    }
    let containers = place.store.sessions(&me(), None, aludel_store::PageQuery::first(100)).await.unwrap().data;
    assert!(!containers.is_empty());
    for container in containers {
        let files = place.store.all_session_files(&me(), &container.id).await.unwrap();
        assert_eq!(files.len(), file_ids.len());
    }
}

#[tokio::test]
async fn an_idle_container_expires_and_one_in_use_does_not() {
    let data = tempfile::tempdir().unwrap();
    let idle = Duration::from_millis(300);
    let place = TestSessions::enter(data.path(), SessionSettings { idle, sessions: 1, ..settings() }).await;
    let session = place.open(auto()).await;
    run(&session, "open('a', 'w').write('kept')").await;
    let id = session.id().clone();
    let status = async || place.sessions.status(&place.store.session(&me(), &id).await.unwrap().unwrap());
    for _ in 0..3 {
        tokio::time::sleep(idle / 2).await;
        place.sessions.reap_once().await;
    }
    assert_eq!(status().await, SessionStatus::Running, "somebody holds it");
    let other = place.open(auto()).await;
    let full = other.sandbox().await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Full, "the only permit is taken");
    drop(session);
    tokio::time::sleep(idle + Duration::from_millis(100)).await;
    place.sessions.reap_once().await;
    assert_eq!(status().await, SessionStatus::Expired);
    assert_eq!(run(&other, "print(1)").await.0, "1\n");
    other.end().await;
    let refused = place.sessions.open(&me(), SessionChoice::Explicit(id.clone())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Expired);
    // Continuing an earlier conversation revives it.
    let again = place.open(SessionChoice::Reuse(id.clone())).await;
    assert_eq!(again.id(), &id);
    assert_eq!(run(&again, "print(open('a').read())").await.0, "kept\n");
    // Even after a long time.
    place.sessions.reap_once().await;
    assert_eq!(status().await, SessionStatus::Running);
}

#[tokio::test]
async fn a_session_expires_by_the_time_that_passes_and_not_by_the_wall_clock() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let session = place.open(auto()).await;
    run(&session, "x = 1").await;
    let id = session.id().clone();
    drop(session);
    // Time passes while the wall clock stands still, as if it were set back.
    tokio::time::pause();
    tokio::time::advance(settings().idle).await;
    tokio::time::resume();
    place.sessions.reap_once().await;
    assert_eq!(place.sessions.in_use(), 0);
    let record = place.store.session(&me(), &id).await.unwrap().unwrap();
    assert_eq!(place.sessions.status(&record), SessionStatus::Expired);
}

#[tokio::test]
async fn a_deleted_container_is_gone_for_whoever_holds_it() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let session = place.open(auto()).await;
    run(&session, "open('a', 'w').write('x')").await;
    let sandbox = session.sandbox().await.unwrap();
    assert!(place.sessions.delete(&me(), session.id()).await.unwrap());
    assert!(sandbox.execute("1").await.is_err());
    assert_eq!(session.sandbox().await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(session.add_figure(b"x", "image/png").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(session.files().await.unwrap().is_empty());
    let refused = place.sessions.open(&me(), SessionChoice::Explicit(session.id().clone())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    let fresh = place.open(SessionChoice::Reuse(session.id().clone())).await;
    assert_ne!(fresh.id(), session.id());
}

#[tokio::test]
async fn a_container_that_is_opened_while_it_is_deleted_does_not_live_on() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    for _ in 0..50 {
        let session = place.open(auto()).await;
        run(&session, "1").await;
        let id = session.id().clone();
        drop(session);
        let reopened = async {
            for _ in 0..3 {
                let _other = place.open(SessionChoice::Reuse(id.clone())).await;
            }
        };
        let tenant = me();
        let (deleted, ()) = tokio::join!(place.sessions.delete(&tenant, &id), reopened);
        assert!(deleted.unwrap() && !place.sessions.known_ids().contains(&id));
    }
}

#[tokio::test]
async fn a_container_gets_the_memory_that_it_asked_for() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), SessionSettings { max_memory: 2 << 30, ..settings() }).await;
    let asked = |memory| SessionChoice::Auto { file_ids: Vec::new(), memory };
    for (limit, memory) in
        [(None, 512 << 20), (Some(MemoryTier::gib(1)), 1 << 30), (Some(MemoryTier::gib(64)), 2 << 30)]
    {
        let session = place.open(asked(limit)).await;
        assert_eq!(session.sandbox().await.unwrap().limits().memory, memory);
        session.end().await;
    }
}

#[tokio::test]
async fn variables_stay_with_a_session_and_go_with_it() {
    let data = tempfile::tempdir().unwrap();
    let backend = MemoryBackend::new(script);
    let store = Store::open(data.path()).await.unwrap();
    let place = TestSessions::on(Arc::new(backend.clone()), store, settings());
    let of = |name: &str, value: &str| Environment::new([(name.into(), value.into())].into()).unwrap();
    let new = NewSession { environment: of("A", "1"), ..NewSession::named("s") };
    let session = place.sessions.create(&me(), new).await.unwrap().0;
    let sees = async |name: &str| execute(&session, &format!("print(os.environ['{name}'])")).await.0;
    assert_eq!(sees("A").await, "1\n");
    // In addition to its variables, in the living sandbox.
    session.add_environment(&of("B", "2")).await.unwrap();
    assert_eq!((&*sees("A").await, &*sees("B").await), ("1\n", "2\n"));
    // In a sandbox that replaces another, and after the end of the sandbox.
    backend.lose();
    assert_eq!((&*sees("A").await, &*sees("B").await), ("1\n", "2\n"));
    session.end().await;
    session.add_environment(&of("B", "3")).await.unwrap();
    assert_eq!((&*sees("A").await, &*sees("B").await), ("1\n", "3\n"));
    let large = of("C", &"x".repeat((64 << 10) - 1));
    assert_eq!(session.add_environment(&large).await.unwrap_err().kind(), ErrorKind::Invalid);
    let id = session.id().clone();
    assert!(place.store.bytes_of(&me()).await.unwrap() > 1024);
    place.sessions.delete(&me(), &id).await.unwrap();
    assert_eq!(place.store.bytes_of(&me()).await.unwrap(), 0);
    assert_eq!(place.store.session_variables(&me(), &id).await.unwrap(), None);
    assert_eq!(session.add_environment(&of("B", "4")).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn variables_of_all_programs_are_below_those_of_a_session() {
    let data = tempfile::tempdir().unwrap();
    let of = |pairs: &[(&str, &str)]| {
        Environment::new(pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()).unwrap()
    };
    let settings = SessionSettings { environment: of(&[("A", "all"), ("B", "all")]), ..settings() };
    let store = Store::open(data.path()).await.unwrap();
    let place = TestSessions::on(Arc::new(MemoryBackend::new(script)), store, settings);
    let environment = of(&[("B", "own")]);
    let new = NewSession { environment, ..NewSession::named("s") };
    let session = place.sessions.create(&me(), new).await.unwrap().0;
    let sees = async |name: &str| execute(&session, &format!("print(os.environ['{name}'])")).await.0;
    assert_eq!((&*sees("A").await, &*sees("B").await), ("all\n", "own\n"));
    // Also after the session gets another variable; the variables of all programs are not stored with it.
    session.add_environment(&of(&[("C", "own")])).await.unwrap();
    assert_eq!((&*sees("A").await, &*sees("C").await), ("all\n", "own\n"));
    let stored = place.store.session_variables(&me(), session.id()).await.unwrap();
    assert_eq!(stored.as_deref(), Some(r#"{"B":"own","C":"own"}"#));
}

#[tokio::test]
async fn live_sessions_are_shared_between_tenants() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), SessionSettings { sessions: 6, ..settings() }).await;
    let mut tenants = Vec::new();
    for name in ["greedy", "good", "new"] {
        let key = place.store.create_key(name, None).await.unwrap();
        tenants.push(place.store.tenant_of_key(&key.secret).await.unwrap().unwrap());
    }
    let [greedy, good, new] = &tenants[..] else { unreachable!() };
    let start = async |tenant: &Tenant| {
        let session = place.sessions.open(tenant, auto()).await.unwrap();
        session.sandbox().await.map(|_| session)
    };
    let lives = async |tenant: &Tenant, id: &SessionId| {
        // Idle times are compared in milliseconds.
        tokio::time::sleep(Duration::from_millis(2)).await;
        place.sessions.open(tenant, SessionChoice::Explicit(id.clone())).await.unwrap().is_live()
    };
    let mut idle = Vec::new();
    for _ in 0..6 {
        idle.push(start(greedy).await.unwrap().id().clone());
    }
    let live = async || {
        let mut live = Vec::new();
        for id in &idle {
            live.push(lives(greedy, id).await);
        }
        live
    };
    assert_eq!(live().await, [false, false, true, true, true, true], "two permits are left for others");
    let mut busy = vec![start(good).await.unwrap(), start(good).await.unwrap()];
    assert_eq!(live().await, [false, false, true, true, true, true]);
    busy.push(start(good).await.unwrap());
    assert_eq!(live().await, [false, false, false, true, true, true], "the tenant that has most makes room");
    assert_eq!(start(good).await.unwrap_err().kind(), ErrorKind::Full, "both have three");
    let newest = start(new).await.unwrap().id().clone();
    assert_eq!(live().await, [false, false, false, false, true, true]);
    start(greedy).await.unwrap();
    assert_eq!(live().await, [false, false, false, false, false, true], "its own, and not those of whoever has fewer");
    assert!(lives(new, &newest).await);
    busy.clear();
    start(new).await.unwrap();
    start(new).await.unwrap();
    assert_eq!(live().await, [false, false, false, false, false, true], "of whoever has three");
    place.sessions.close_all().await;
    assert_eq!(place.sessions.in_use(), 0);
}

#[tokio::test]
async fn when_all_places_are_taken_the_longest_idle_makes_room_and_its_files_stay() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), SessionSettings { sessions: 2, ..settings() }).await;
    let first = place.open(auto()).await;
    run(&first, "open('a', 'w').write('first')\nx = 1").await;
    let second = place.open(auto()).await;
    run(&second, "y = 2").await;
    let third = place.open(auto()).await;
    assert_eq!(third.sandbox().await.unwrap_err().kind(), ErrorKind::Full, "both are in use");
    let (first_id, second_id) = (first.id().clone(), second.id().clone());
    drop((first, second));
    assert_eq!(run(&third, "print(3)").await.0, "3\n");
    let second = place.open(SessionChoice::Explicit(second_id)).await;
    assert_eq!(run(&second, "print(y)").await.0, "2\n", "the one that was used later lives");
    drop(third);
    let first = place.open(SessionChoice::Explicit(first_id)).await;
    assert_eq!(run(&first, "print(open('a').read(), 'x' in dir())").await.0, "first False\n");
}

#[tokio::test]
async fn a_session_whose_sandbox_was_lost_goes_on_from_its_files_and_says_so() {
    let data = tempfile::tempdir().unwrap();
    let backend = MemoryBackend::new(script);
    let store = Store::open(data.path()).await.unwrap();
    let place = TestSessions::on(Arc::new(backend.clone()), store, SessionSettings { sessions: 2, ..settings() });
    let (idle, busy) = (place.open(auto()).await, place.open(auto()).await);
    run(&idle, "open('a', 'w').write('first')\nx = 1").await;
    let running = busy.execute("while True: pass").await.unwrap();
    backend.lose();
    let (_, end) = finish(running).await;
    assert!(matches!(end.outcome, Outcome::KernelDied(_)), "{end:?}");
    assert_eq!(end.state, VariablesState::Lost);
    let (text, end) = execute(&idle, "print(open('a').read(), 'x' in dir())").await;
    assert_eq!((text.as_str(), end.state), ("first False\n", VariablesState::Restarted));
    assert_eq!(execute(&idle, "print(1)").await.1.state, VariablesState::Kept, "said once");
    assert_eq!(execute(&busy, "print(1)").await.1.state, VariablesState::Restarted);
    assert_eq!(place.sessions.in_use(), 2, "each has its permit still");
    drop((idle, busy));
    place.sessions.close_all().await;
    assert_eq!(place.sessions.in_use(), 0);
}

#[tokio::test]
async fn a_later_sandbox_of_a_session_says_that_variables_are_lost() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let session = place.open(auto()).await;
    let id = session.id().clone();
    assert_eq!(execute(&session, "x = 1").await.1.state, VariablesState::Kept, "there were none");
    session.end().await;
    assert_eq!(execute(&session, "print(1)").await.1.state, VariablesState::Restarted);
    assert_eq!(execute(&session, "print(1)").await.1.state, VariablesState::Kept, "said once");
    let unused = place.open(auto()).await.id().clone();
    drop(session);
    place.sessions.close_all().await;
    drop(place);
    // Another process goes on.
    let place = TestSessions::enter(data.path(), settings()).await;
    for (id, state) in [(id, VariablesState::Restarted), (unused, VariablesState::Kept)] {
        let session = place.open(SessionChoice::Explicit(id)).await;
        assert_eq!(execute(&session, "print(1)").await.1.state, state);
    }
}

#[tokio::test]
async fn a_reservation_is_given_back_with_the_last_turn_that_has_it() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), SessionSettings { sessions: 1, ..settings() }).await;
    let sessions = &place.sessions;
    let (session, _) = sessions.create(&me(), NewSession::named("shared")).await.unwrap();
    let (other, _) = sessions.create(&me(), NewSession::named("other")).await.unwrap();
    let (first, second) = (session.reserve().await.unwrap(), session.reserve().await.unwrap());
    assert_eq!(sessions.in_use(), 1);
    drop(first);
    assert!(other.reserve().await.is_err(), "the second one's");
    drop(second);
    drop(other.reserve().await.unwrap());
    // A sandbox takes the permit, and does not depend on who reserved it.
    let reservation = session.reserve().await.unwrap();
    session.sandbox().await.unwrap();
    drop(reservation);
    assert_eq!(sessions.in_use(), 1);
    drop(session.reserve().await.unwrap());
    assert_eq!(sessions.in_use(), 1);
}

#[tokio::test]
async fn a_program_waits_for_a_permit() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), SessionSettings { sessions: 1, ..settings() }).await;
    let (first, second) = (place.open(auto()).await, place.open(auto()).await);
    let held = first.reserve().await.unwrap();
    let mut waiting = Box::pin(second.reserve_in_time());
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut waiting).await.is_err(), "there is no permit");
    drop(held);
    let _held = waiting.await.unwrap();
    assert_eq!(place.sessions.in_use(), 1);
    tokio::time::pause();
    assert!(matches!(first.reserve_in_time().await, Err(Error::SessionsFull { limit: 1 })));
}

#[tokio::test]
async fn a_session_without_a_sandbox_is_in_the_store_alone() {
    let data = tempfile::tempdir().unwrap();
    let place = TestSessions::enter(data.path(), settings()).await;
    let (quiet, live) = (place.open(auto()).await, place.open(auto()).await);
    live.execute("x = 1").await.unwrap();
    let ids = [quiet.id().clone(), live.id().clone()];
    drop((quiet, live));
    place.sessions.reap_once().await;
    assert_eq!(place.sessions.known_ids().len(), 2);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(90)).await;
    tokio::time::resume();
    place.sessions.reap_once().await;
    assert_eq!(place.sessions.known_ids(), [ids[1].clone()]);
    let again = place.open(SessionChoice::Explicit(ids[0].clone())).await;
    assert_eq!(again.id(), &ids[0]);
}
