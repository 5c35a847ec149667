//! Sandboxes that clients own, with scripted programs.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aludel_sandbox::memory::{Memory, simple};
use aludel_sandbox::process::{ExitStatus, SIGKILL};
use aludel_sandbox::{Backend, KernelSpec, Language};
use aludel_store::{Store, Tenant};
use parking_lot::Mutex;

use super::*;
use crate::executions::{self, ClientProgram, DirectEnd, DirectEvent};
use crate::turns::OutputPiece;
use crate::{Engine, Error, Missing, SessionSettings};

async fn engine(data: &std::path::Path, settings: SessionSettings) -> (Arc<Engine>, Memory) {
    engine_on(Memory::new(simple), data, settings).await
}

async fn engine_on(backend: Memory, data: &std::path::Path, settings: SessionSettings) -> (Arc<Engine>, Memory) {
    let store = Store::open(data).await.unwrap();
    let engine = Engine::new(store, Arc::new(backend.clone()), [], Default::default(), Vec::new(), settings);
    (Arc::new(engine), backend)
}

fn new(seconds: u64) -> NewSandbox {
    NewSandbox { template_label: "base".into(), timeout: Duration::from_secs(seconds), ..NewSandbox::default() }
}

async fn tenant(engine: &Engine, name: &str) -> Tenant {
    let key = engine.store.create_key(name, None).await.unwrap();
    engine.store.tenant_of_key(&key.secret).await.unwrap().unwrap()
}

/// Runs a program in a context of a sandbox, and returns its result or the name of its error.
async fn run(engine: &Arc<Engine>, sandbox: &ClientSandbox, context: Option<&str>, code: &str) -> String {
    let context = sandbox.contexts().get(context).await.unwrap();
    let program = ClientProgram {
        id: aludel_store::fresh_id("exec_"),
        tenant: sandbox.tenant().clone(),
        sender: "test".into(),
        target: sandbox.contexts().target(&context, Default::default()).await.unwrap(),
        code: code.to_owned(),
        timeout: None,
    };
    let mut execution = executions::start(engine, program).unwrap();
    let mut printed = String::new();
    while let Some(event) = execution.next().await {
        match event {
            DirectEvent::Output(OutputPiece::Result(value)) => printed.push_str(&value.text.unwrap_or_default()),
            DirectEvent::Output(OutputPiece::Error { name, .. }) => printed.push_str(&name),
            DirectEvent::Ended(DirectEnd::Ran(_)) | DirectEvent::Started => {}
            event => panic!("{event:?}"),
        }
    }
    printed
}

#[tokio::test]
async fn nothing_of_one_tenant_is_there_for_another() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), SessionSettings::default()).await;
    let (one, other) = (tenant(&engine, "one").await, tenant(&engine, "other").await);
    let sandboxes = &engine.sandboxes;
    let first = sandboxes.create(&one, new(60)).await.unwrap();
    let second = sandboxes.create(&one, new(60)).await.unwrap();
    assert!(first.id().starts_with('i') && first.id().len() == 21);
    assert_ne!((first.id(), first.secret()), (second.id(), second.secret()));
    let ids: Vec<_> = sandboxes.list(&one).iter().map(|sandbox| sandbox.id().to_owned()).collect();
    assert_eq!(ids, [second.id(), first.id()]);
    assert!(sandboxes.list(&other).is_empty() && sandboxes.get(&other, first.id()).is_none());
    assert!(!sandboxes.kill(&other, first.id()).await);
    assert!(sandboxes.set_timeout(&other, first.id(), Duration::ZERO).unwrap().is_none());
    assert_eq!(backend.list(Some(one.as_str())).await.unwrap().len(), 2);
    assert!(sandboxes.kill(&one, first.id()).await);
    assert!(!sandboxes.kill(&one, first.id()).await);
    first.ended().await;
    drop(first);
    assert_eq!(backend.list(None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_further_language_has_a_context_before_its_kernel_starts() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let kernel = KernelSpec { further: vec!["js".parse().unwrap()], ..KernelSpec::python("") };
    let backend = Arc::new(Memory::with_kernel(simple, kernel));
    let engine = Engine::new(store, backend, [], Default::default(), Vec::new(), SessionSettings::default());
    let sandbox = engine.sandboxes.create(&Tenant::local(), new(60)).await.unwrap();
    let contexts = sandbox.contexts();
    assert_eq!(contexts.list().await.len(), 1);
    contexts.list_further().await;
    let made = contexts.create(None, None).await.unwrap();
    contexts.list_further().await;
    let listed = contexts.list().await;
    let languages: Vec<_> = listed.iter().map(|context| context.language().map(Language::as_str)).collect();
    assert_eq!(languages, [None, Some("javascript"), None]);
    assert_eq!(listed.last().map(|last| last.id()), Some(made.id()));
    let javascript = contexts.of_language(Some("javascript".parse().unwrap())).await.unwrap();
    assert_eq!(javascript.id(), listed[1].id());
    // This host has no such kernel; on one that has, this is its start.
    assert!(contexts.target(&javascript, Default::default()).await.unwrap_err().to_string().contains("javascript"));
    contexts.remove(javascript.id()).await.unwrap();
    assert_eq!(contexts.list().await.len(), 2);
}

#[tokio::test]
async fn the_tunnels_of_one_sandbox_and_requests_to_its_programs_are_bounded() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), SessionSettings::default()).await;
    let sandbox = engine.sandboxes.create(&Tenant::local(), new(60)).await.unwrap();
    let mut tunnels: Vec<_> = (0..32).map(|_| sandbox.tunnel().unwrap()).collect();
    assert!(sandbox.tunnel().is_none());
    tunnels.pop();
    assert!(sandbox.tunnel().is_some());
    let mut requests: Vec<_> = (0..64).map(|_| sandbox.program_request().unwrap()).collect();
    assert!(sandbox.program_request().is_none());
    requests.pop();
    assert!(sandbox.program_request().is_some());
}

#[tokio::test]
async fn a_unique_name_is_one_sandboxs_however_many_ask_at_once() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), SessionSettings::default()).await;
    let (me, other) = (Tenant::local(), tenant(&engine, "other").await);
    let named = || NewSandbox { metadata: [("name".into(), "a".into())].into(), has_unique_name: true, ..new(60) };
    let (one, two, theirs) = tokio::join!(
        engine.sandboxes.create(&me, named()),
        engine.sandboxes.create(&me, named()),
        engine.sandboxes.create(&other, named())
    );
    theirs.unwrap();
    let (made, refused) = if one.is_ok() { (one, two) } else { (two, one) };
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Invalid { field: "name", .. }), "{refused}");
    let made = made.unwrap();
    let refused = engine.sandboxes.create(&me, named()).await.unwrap_err();
    assert!(refused.to_string().contains(made.id()), "{refused}");
    // E2B's own clients may call several by one name.
    engine.sandboxes.create(&me, NewSandbox { has_unique_name: false, ..named() }).await.unwrap();
    for sandbox in engine.sandboxes.list(&me) {
        engine.sandboxes.kill(&me, sandbox.id()).await;
    }
    engine.sandboxes.create(&me, named()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_ends_in_time_and_connecting_never_shortens_it() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), SessionSettings::default()).await;
    let me = Tenant::local();
    let sandbox = engine.sandboxes.create(&me, new(60)).await.unwrap();
    let end = sandbox.ends();
    sandbox.extend(Duration::from_secs(10));
    assert_eq!(sandbox.ends(), end);
    sandbox.extend(Duration::from_secs(120));
    assert_eq!(sandbox.ends(), end + Duration::from_secs(60));
    engine.sandboxes.set_timeout(&me, sandbox.id(), Duration::from_secs(30)).unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert!(engine.sandboxes.get(&me, sandbox.id()).is_some());
    tokio::time::sleep(Duration::from_secs(2)).await;
    sandbox.ended().await;
    assert!(engine.sandboxes.get(&me, sandbox.id()).is_none());
    drop(sandbox);
    assert!(backend.list(None).await.unwrap().is_empty());
    assert_eq!(engine.sessions.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_ends_with_the_key_of_its_tenant() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), SessionSettings::default()).await;
    let key = engine.store.create_key("one", None).await.unwrap();
    let one = engine.store.tenant_of_key(&key.secret).await.unwrap().unwrap();
    let other = tenant(&engine, "other").await;
    let (revoked, stays) = (
        engine.sandboxes.create(&one, new(3600)).await.unwrap(),
        engine.sandboxes.create(&other, new(3600)).await.unwrap(),
    );
    engine.store.revoke_key(key.id).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), revoked.ended()).await.unwrap();
    assert!(engine.sandboxes.list(&one).is_empty());
    assert!(engine.sandboxes.get(&other, stays.id()).is_some());
}

#[tokio::test]
async fn their_number_their_time_and_their_notes_are_bounded() {
    let data = tempfile::tempdir().unwrap();
    let settings =
        SessionSettings { sessions: 2, sandbox_lifetime: Duration::from_secs(100), ..SessionSettings::default() };
    let (engine, _backend) = engine(data.path(), settings).await;
    let me = Tenant::local();
    let invalid = async |new: NewSandbox| match engine.sandboxes.create(&me, new).await.unwrap_err() {
        Error::Invalid { field, .. } => field,
        error => panic!("{error}"),
    };
    assert_eq!(invalid(new(101)).await, "timeout");
    let notes = |bytes: usize| [("k".to_owned(), "v".repeat(bytes))].into();
    assert_eq!(invalid(NewSandbox { metadata: notes(65 << 10), ..new(1) }).await, "metadata");
    assert_eq!(invalid(NewSandbox { environment: notes(65 << 10), ..new(1) }).await, "environment");
    assert_eq!(
        invalid(NewSandbox { environment: [("a=b".into(), String::new())].into(), ..new(1) }).await,
        "environment"
    );
    let first = engine.sandboxes.create(&me, new(100)).await.unwrap();
    let second = engine.sandboxes.create(&me, new(100)).await.unwrap();
    tokio::time::pause();
    assert!(matches!(engine.sandboxes.create(&me, new(100)).await, Err(Error::SessionsFull { limit: 2 })));
    tokio::time::resume();
    // One that waits has the next free place.
    let waiting = async { engine.sandboxes.create(&me, new(100)).await.map(drop) };
    let ends_soon = async {
        let id = second.id().to_owned();
        drop(second);
        tokio::time::sleep(Duration::from_millis(200)).await;
        engine.sandboxes.kill(&me, &id).await
    };
    let (made, ended) = tokio::join!(waiting, ends_soon);
    assert!(made.is_ok() && ended, "{made:?}");
    // Those that wait are served in their order, and no more than a few wait.
    let (order, full) = (Mutex::new(Vec::new()), Mutex::new(0));
    let waiting = futures_util::future::join_all((0..40).map(|number| {
        let (engine, me, order, full) = (&engine, &me, &order, &full);
        async move {
            match engine.sandboxes.create(me, new(100)).await {
                Ok(made) => {
                    order.lock().push(number);
                    let id = made.id().to_owned();
                    drop(made);
                    engine.sandboxes.kill(me, &id).await;
                }
                Err(_) => *full.lock() += 1,
            }
        }
    }));
    let first_ends = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let listed: Vec<String> = engine
            .sandboxes
            .list(&me)
            .iter()
            .map(|sandbox| sandbox.id().to_owned())
            .filter(|id| id != first.id())
            .collect();
        engine.sandboxes.kill(&me, &listed[0]).await
    };
    tokio::join!(waiting, first_ends);
    let order = order.into_inner();
    assert_eq!((order.clone(), full.into_inner()), ((0..order.len()).collect(), 40 - order.len()));
    assert_eq!(order.len(), 32);
    let too_long = engine.sandboxes.set_timeout(&me, first.id(), Duration::from_secs(101));
    assert!(matches!(too_long, Err(Error::Invalid { field: "timeout", .. })));
    assert!(first.ends() > SystemTime::now());
}

#[tokio::test]
async fn a_create_in_line_is_refused_when_the_server_ends() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _) = engine(data.path(), SessionSettings { sessions: 1, ..SessionSettings::default() }).await;
    let me = Tenant::local();
    let _only = engine.sandboxes.create(&me, new(60)).await.unwrap();
    let begun = std::time::Instant::now();
    let ends = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        engine.draining.cancel();
    };
    let (refused, ()) = tokio::join!(engine.sandboxes.create(&me, new(60)), ends);
    assert!(matches!(refused, Err(Error::SessionsFull { limit: 1 })), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "it does not wait for its time");
}

#[tokio::test]
async fn programs_have_the_home_of_commands_unless_the_client_says_otherwise() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _) = engine(data.path(), SessionSettings::default()).await;
    let own = [("USER".to_owned(), "mine".to_owned())].into();
    let sandbox = engine.sandboxes.create(&Tenant::local(), NewSandbox { environment: own, ..new(60) }).await.unwrap();
    for (name, value) in [("HOME", "'/home/user'"), ("LOGNAME", "'user'"), ("USER", "'mine'")] {
        assert_eq!(run(&engine, &sandbox, None, &format!("os.environ['{name}']")).await, value);
    }
}

#[tokio::test]
async fn contexts_are_apart_and_can_be_restarted() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), SessionSettings::default()).await;
    let sandbox = engine.sandboxes.create(&Tenant::local(), new(60)).await.unwrap();
    let contexts = sandbox.contexts();
    let run = async |id: Option<&str>, code: &str| run(&engine, &sandbox, id, code).await;
    let other = contexts.create(None, None).await.unwrap();
    assert_eq!(contexts.list().await.len(), 2);
    assert_eq!(run(None, "x = 1").await, "");
    assert_eq!(run(Some("default"), "x").await, "1");
    assert_eq!(run(Some(other.id()), "x").await, "NameError");
    assert_eq!(other.count(), 1);
    let default = contexts.list().await.remove(0);
    contexts.restart(default.id()).await.unwrap();
    assert_eq!(run(None, "x").await, "NameError");
    contexts.remove(other.id()).await.unwrap();
    assert!(matches!(contexts.get(Some(other.id())).await, Err(Error::NotFound(_))));
    contexts.remove(default.id()).await.unwrap();
    assert_eq!(run(None, "x = 2").await, "");
}

#[tokio::test]
async fn a_pause_keeps_everything_or_the_files() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), SessionSettings::default()).await;
    let (me, sandboxes) = (Tenant::local(), &engine.sandboxes);
    let first = sandboxes.create(&me, new(60)).await.unwrap();
    assert!(!sandboxes.resume(&first, None).await.unwrap());
    run(&engine, &first, None, "x = 1").await;
    first.inner().workspace().write("a.txt", &mut &b"1"[..], 100).unwrap();

    assert!(sandboxes.pause(&first, KeptPart::Everything, None).await.unwrap());
    assert!(!sandboxes.pause(&first, KeptPart::Files, None).await.unwrap());
    assert_eq!(first.paused(), Some(KeptPart::Everything));
    assert!(sandboxes.resume(&first, None).await.unwrap());
    assert_eq!(run(&engine, &first, None, "x").await, "1");

    assert!(sandboxes.pause(&first, KeptPart::Files, None).await.unwrap());
    assert_eq!(first.paused(), Some(KeptPart::Files));
    assert!(!first.inner().is_alive());
    assert_eq!(engine.sessions.in_use(), 1);
    let (one, other) = tokio::join!(sandboxes.resume(&first, None), sandboxes.resume(&first, None));
    assert_eq!([one.unwrap(), other.unwrap()].iter().filter(|is_resumed| **is_resumed).count(), 1);
    first.ended().await;
    let second = sandboxes.get(&me, first.id()).unwrap();
    assert_eq!((second.secret(), second.order(), second.ends()), (first.secret(), first.order(), first.ends()));
    assert!(!second.is_paused());
    assert_eq!(second.inner().workspace().read("a.txt", 100).unwrap(), b"1");
    assert_eq!(run(&engine, &second, None, "x").await, "NameError");
    assert!(sandboxes.pause(&first, KeptPart::Everything, None).await.unwrap());
    assert!(second.is_paused() && !first.is_paused(), "the one that goes by this id now");

    assert!(sandboxes.kill(&me, second.id()).await);
    assert!(
        matches!(sandboxes.resume(&second, None).await, Err(Error::NotFound(Missing::Sandbox(id))) if id == second.id())
    );
    drop((first, second));
    assert!(backend.list(None).await.unwrap().is_empty() && sandboxes.list(&me).is_empty());
    assert_eq!(engine.sessions.in_use(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_of_which_the_files_are_kept_ends_in_time() {
    let data = tempfile::tempdir().unwrap();
    let settings = SessionSettings { sandbox_lifetime: Duration::from_secs(100), ..SessionSettings::default() };
    let (engine, _backend) = engine(data.path(), settings).await;
    let me = Tenant::local();
    let paused = NewSandbox { pauses: Some(KeptPart::Files), ..new(10) };
    let sandbox = engine.sandboxes.create(&me, paused).await.unwrap();
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(engine.sandboxes.get(&me, sandbox.id()).unwrap().paused(), Some(KeptPart::Files));
    tokio::time::sleep(Duration::from_secs(30)).await;
    sandbox.ended().await;
    drop(sandbox);
    assert!(engine.sandboxes.list(&me).is_empty());
    assert_eq!(engine.sessions.in_use(), 0);
}

/// Begins something that its client does not wait for, while the backend holds back its end.
async fn leave_halfway(backend: &Memory, beginning: impl Future<Output = Result<bool, Error>>) {
    backend.hold_pauses(true);
    let mut beginning = Box::pin(beginning);
    for _ in 0..10 {
        assert!(futures_util::poll!(&mut beginning).is_pending());
        tokio::task::yield_now().await;
    }
    drop(beginning);
    backend.hold_pauses(false);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_leaves_no_half_of_a_pause() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), SessionSettings::default()).await;
    let sandboxes = &engine.sandboxes;
    let sandbox = sandboxes.create(&Tenant::local(), new(60)).await.unwrap();
    run(&engine, &sandbox, None, "x = 1").await;
    let lifetime = Some(sandboxes.lifetime());
    leave_halfway(&backend, sandboxes.pause(&sandbox, KeptPart::Everything, lifetime)).await;
    assert_eq!(sandbox.paused(), Some(KeptPart::Everything));
    assert!(sandbox.ends() > SystemTime::now() + Duration::from_secs(3600));
    leave_halfway(&backend, sandboxes.resume(&sandbox, Some(Duration::from_secs(60)))).await;
    assert_eq!(sandbox.paused(), None);
    assert!(sandbox.ends() < SystemTime::now() + Duration::from_secs(3600));
    assert_eq!(run(&engine, &sandbox, None, "x").await, "1");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_paused_in_time_goes_on_and_then_keeps_its_files() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), SessionSettings::default()).await;
    let (me, sandboxes) = (Tenant::local(), &engine.sandboxes);
    let pauses = NewSandbox { pauses: Some(KeptPart::Everything), ..new(10) };
    let sandbox = sandboxes.create(&me, pauses).await.unwrap();
    sandbox.inner().workspace().write("a.txt", &mut &b"1"[..], 100).unwrap();
    let seconds = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    backend.fail_pauses(Some("a program waits for a disk"));
    seconds(45).await;
    assert!(sandbox.inner().is_alive() && !sandbox.is_paused(), "it goes on");
    sandboxes.set_timeout(&me, sandbox.id(), Duration::from_secs(100)).unwrap().unwrap();
    seconds(60).await;
    assert!(sandbox.inner().is_alive() && !sandbox.is_paused(), "its client has put its end off");
    backend.fail_pauses(None);
    seconds(60).await;
    assert_eq!(sandbox.paused(), Some(KeptPart::Everything), "as soon as it can be");

    assert!(sandboxes.resume(&sandbox, Some(Duration::from_secs(10))).await.unwrap());
    backend.fail_pauses(Some("a program waits for a disk"));
    seconds(55).await;
    assert!(sandbox.inner().is_alive() && !sandbox.is_paused(), "it is tried as often as before");
    seconds(10).await;
    assert_eq!(sandbox.paused(), Some(KeptPart::Files));
    seconds(3600).await;
    assert!(sandboxes.resume(&sandbox, None).await.unwrap());
    let resumed = sandboxes.get(&me, sandbox.id()).unwrap();
    assert_eq!(resumed.inner().workspace().read("a.txt", 100).unwrap(), b"1");
}

#[tokio::test]
async fn files_outlive_processes_that_are_slow_to_end() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), SessionSettings::default()).await;
    let (me, sandboxes) = (Tenant::local(), &engine.sandboxes);
    let sandbox = sandboxes.create(&me, new(60)).await.unwrap();
    sandbox.inner().workspace().write("a.txt", &mut &b"1"[..], 100).unwrap();
    backend.end_late();
    let end = SystemTime::now() + Duration::from_secs(3600);
    assert!(sandboxes.pause(&sandbox, KeptPart::Files, Some(sandboxes.lifetime())).await.unwrap());
    assert!(sandbox.paused() == Some(KeptPart::Files) && sandbox.ends() > end);
    assert!(sandboxes.resume(&sandbox, None).await.unwrap());
    let resumed = sandboxes.get(&me, sandbox.id()).unwrap();
    assert_eq!(resumed.inner().workspace().read("a.txt", 100).unwrap(), b"1");
}

#[tokio::test]
async fn a_paused_sandbox_whose_files_are_lost_is_gone() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), SessionSettings::default()).await;
    let (me, sandboxes) = (Tenant::local(), &engine.sandboxes);
    let sandbox = sandboxes.create(&me, new(60)).await.unwrap();
    assert!(sandboxes.pause(&sandbox, KeptPart::Files, None).await.unwrap());
    backend.fail(Some("for a while"));
    assert!(matches!(sandboxes.resume(&sandbox, None).await, Err(Error::Sandbox(_))));
    assert_eq!(sandboxes.list(&me).len(), 1, "it can be tried again");
    backend.fail(None);
    backend.lose();
    assert!(matches!(sandboxes.resume(&sandbox, None).await, Err(Error::NotFound(Missing::Sandbox(_)))));
    sandbox.ended().await;
    drop(sandbox);
    assert!(sandboxes.list(&me).is_empty());
    // The task that would have ended it in time holds it until it hears.
    tokio::time::timeout(Duration::from_secs(10), async {
        while engine.sessions.in_use() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

/// The requests and events of the audit log.
async fn audited(engine: &Engine) -> Vec<(String, String)> {
    let records = engine.store.audit_log(0, 100).await.unwrap();
    records.into_iter().map(|record| (record.request, record.event)).collect()
}

fn command() -> ProcessSpec {
    ProcessSpec { arguments: vec!["cat".into()], input: true, ..ProcessSpec::default() }
}

#[tokio::test]
async fn commands_are_counted_on_after_a_pause() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine_on(Memory::with_commands(simple), data.path(), SessionSettings::default()).await;
    let (me, sandboxes) = (Tenant::local(), &engine.sandboxes);
    let sandbox = sandboxes.create(&me, new(60)).await.unwrap();
    let mut first = sandbox.processes().start(command()).await.unwrap();
    assert!(sandboxes.pause(&sandbox, KeptPart::Files, None).await.unwrap());
    assert_eq!(first.next().await, Some(ProcessEvent::Ended(ProcessEnd::SandboxEnded)));
    assert!(sandboxes.resume(&sandbox, None).await.unwrap());
    let resumed = sandboxes.get(&me, sandbox.id()).unwrap();
    let second = resumed.processes().start(command()).await.unwrap();
    let (one, two) = (format!("{}-1", sandbox.id()), format!("{}-2", sandbox.id()));
    let expected = [(&one, "started"), (&one, "ended"), (&two, "started")];
    assert_eq!(audited(&engine).await, expected.map(|(request, event)| (request.clone(), event.to_owned())));
    drop(second);
}

#[tokio::test]
async fn the_process_waits_for_the_ends_of_commands() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine_on(Memory::with_commands(simple), data.path(), SessionSettings::default()).await;
    let sandbox = engine.sandboxes.create(&Tenant::local(), new(60)).await.unwrap();
    let view = sandbox.processes().start(command()).await.unwrap();
    engine.shutdown.cancel();
    engine.tasks.close();
    engine.tasks.wait().await;
    assert!(view.process.has_ended());
    let events: Vec<_> = audited(&engine).await.into_iter().map(|(_, event)| event).collect();
    assert_eq!(events, ["started", "ended"]);
}

#[tokio::test]
async fn a_sandbox_ends_although_the_client_that_ends_it_leaves() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine_on(Memory::with_commands(simple), data.path(), SessionSettings::default()).await;
    let (me, sandboxes) = (Tenant::local(), &engine.sandboxes);
    let sandbox = sandboxes.create(&me, new(60)).await.unwrap();
    let id = sandbox.id().to_owned();
    let mut view = sandbox.processes().start(command()).await.unwrap();
    drop(sandbox);
    let mut killing = Box::pin(sandboxes.kill(&me, &id));
    assert!(futures_util::poll!(&mut killing).is_pending());
    drop(killing);
    let ended = tokio::time::timeout(Duration::from_secs(10), view.next()).await.unwrap();
    assert_eq!(ended, Some(ProcessEvent::Ended(ProcessEnd::SandboxEnded)));
    drop(view);
    while engine.sessions.in_use() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_end_of_a_command_does_not_wait_for_its_input() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine_on(Memory::with_commands(simple), data.path(), SessionSettings::default()).await;
    let sandbox = engine.sandboxes.create(&Tenant::local(), new(60)).await.unwrap();
    let mut view = sandbox.processes().start(command()).await.unwrap();
    let process = Arc::clone(&view.process);
    let mut sending = Box::pin(process.send(&[b'x'; 4096]));
    assert!(futures_util::poll!(&mut sending).is_pending(), "it does not read");
    process.kill();
    let (sent, end) =
        tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(sending, view.next()) }).await.unwrap();
    assert!(matches!(end, Some(ProcessEvent::Ended(ProcessEnd::Status(ExitStatus::Signal(SIGKILL))))), "{end:?}");
    assert!(sent.unwrap_err().to_string().contains("has ended"));
    assert!(process.send(b"x").await.is_err());
}

#[tokio::test]
async fn notes_are_changed_within_their_bounds() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _) = engine(data.path(), SessionSettings::default()).await;
    let notes = [("a".into(), "1".into()), ("b".into(), "2".into())].into();
    let sandbox = engine.sandboxes.create(&Tenant::local(), NewSandbox { metadata: notes, ..new(60) }).await.unwrap();
    sandbox.change_metadata([("a".into(), None), ("c".into(), Some("3".into()))].into()).unwrap();
    let left = [("b".into(), "2".into()), ("c".into(), "3".into())].into();
    assert_eq!(sandbox.metadata(), left);
    assert!(sandbox.change_metadata([("d".into(), Some("x".repeat(65 << 10)))].into()).is_err());
    assert_eq!(sandbox.metadata(), left);
}

#[test]
fn a_program_is_interrupted_as_long_as_it_is_known() {
    let (programs, cancel) = (RunningPrograms::default(), tokio_util::sync::CancellationToken::new());
    let running = programs.add("program", "context", cancel.clone());
    assert!(!programs.interrupt("other") && !cancel.is_cancelled());
    assert!(programs.interrupt("context") && cancel.is_cancelled());
    assert!(programs.interrupt("program"));
    drop(running);
    assert!(!programs.interrupt("program"));
}
