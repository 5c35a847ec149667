//! Executions of scripted programs, in sessions and in bare sandboxes.

use std::path::Path;

use aludel_agent::BareSandbox;
use aludel_sandbox::memory::{Memory, ScriptedCell, simple};
use aludel_sandbox::{Backend, Limits, SandboxId, SandboxSpec};
use aludel_store::{ApprovalStatus, ApprovalUpdate, Store, fresh_id};

use super::*;
use crate::approvals::{ApprovalMode, ApprovalPolicy};
use crate::sessions::NewSession;
use crate::turns::ToolEnd;
use crate::{ErrorKind, SessionSettings};

fn script(code: &str, cell: &mut ScriptedCell) {
    match code {
        "show()" => cell.print("shown\n").display_png(b"\x89PNG".to_vec()).write("f.txt", "x"),
        "large()" => cell.display_png(vec![0; 7 << 20]),
        "show(); forever()" => {
            for kib in [300, 1000, 1000, 1000] {
                cell.display_png(vec![0; kib << 10]);
            }
            cell.never_end()
        }
        "forever()" => cell.print("begun\n").never_end(),
        _ => {
            simple(code, cell);
            cell
        }
    };
}

async fn engine(data: &Path, mode: ApprovalMode) -> (Arc<Engine>, Arc<Memory>) {
    let store = Store::open(data).await.unwrap();
    let backend = Arc::new(Memory::new(script));
    let policy = ApprovalPolicy { mode, timeout: Duration::from_secs(20), ..ApprovalPolicy::default() };
    (Arc::new(Engine::new(store, backend.clone(), [], policy, Vec::new(), SessionSettings::default())), backend)
}

async fn session(engine: &Engine) -> Arc<Session> {
    engine.sessions.create(&Tenant::local(), NewSession::named("s")).await.unwrap().0
}

fn program(target: ProgramTarget, code: &str) -> ClientProgram {
    let (tenant, sender) = (Tenant::local(), "a client".to_owned());
    ClientProgram { id: fresh_id("exec_"), tenant, sender, target, code: code.to_owned(), timeout: None }
}

/// Reads to the end. Returns the outputs and the end.
async fn finish(mut execution: DirectExecution) -> (Vec<OutputPiece>, DirectEnd) {
    let mut outputs = Vec::new();
    loop {
        match execution.next().await.expect("an end") {
            DirectEvent::Output(output) => outputs.push(output),
            DirectEvent::Ended(end) => {
                assert!(execution.next().await.is_none());
                return (outputs, end);
            }
            DirectEvent::ApprovalRequested(_) | DirectEvent::Started => {}
        }
    }
}

/// The audit log, as lines of event, actor and outcome.
async fn log(engine: &Engine) -> Vec<String> {
    let records = engine.store.audit_log(0, 100).await.unwrap();
    records.into_iter().map(|record| format!("{}|{}|{}", record.event, record.actor, record.outcome)).collect()
}

/// Waits until the audit log has so many entries.
async fn logged(engine: &Engine, count: usize) -> Vec<String> {
    loop {
        let log = log(engine).await;
        if log.len() >= count {
            return log;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const RAN: [&str; 2] = ["started|nobody is asked|", "ended||The program ran to its end."];

#[tokio::test]
async fn what_a_program_of_a_session_makes_is_stored_and_noted_before_it_is_told() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), ApprovalMode::Never).await;
    let session = session(&engine).await;
    let (outputs, end) =
        finish(start(&engine, program(ProgramTarget::Session(Arc::clone(&session)), "show()")).unwrap()).await;
    let [OutputPiece::Stdout(text), OutputPiece::Display(rich)] = &*outputs else { panic!("{outputs:?}") };
    assert_eq!(text, "shown\n");
    let DirectEnd::Ran(outcome) = end else { panic!("{end:?}") };
    let (figure, mut stored) = (&rich.image.as_ref().unwrap().file, session.files().await.unwrap());
    stored.sort_by(|one, other| one.path.cmp(&other.path));
    assert_eq!(outcome.files.len(), 2);
    assert!(outcome.files.contains(figure) && stored.iter().all(|file| outcome.files.contains(file)), "{stored:?}");
    assert_eq!(log(&engine).await, RAN);
    let entries = engine.store.audit_log(0, 100).await.unwrap();
    assert_eq!((entries[0].session.as_str(), entries[0].code.as_deref()), (session.id().as_str(), Some("show()")));
}

#[tokio::test]
async fn a_bare_sandbox_keeps_its_variables_and_stores_nothing() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), ApprovalMode::Never).await;
    let sandbox = backend.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await.unwrap();
    let target = ProgramTarget::Kernel {
        runtime: Arc::new(BareSandbox(sandbox)),
        kernel_programs: KernelPrograms::new("sandbox_1"),
    };
    for code in ["x = 1", "print(x)"] {
        let (outputs, end) = finish(start(&engine, program(target.clone(), code)).unwrap()).await;
        assert!(
            matches!(&end, DirectEnd::Ran(outcome) if outcome.end == ToolEnd::Completed && outcome.files.is_empty())
        );
        assert_eq!(outputs.is_empty(), code == "x = 1", "{outputs:?}");
    }
    let (outputs, _) = finish(start(&engine, program(target, "show()")).unwrap()).await;
    assert!(
        matches!(&outputs[1], OutputPiece::Display(rich) if rich.image.is_none() && rich.bundle().image().is_some())
    );
    assert_eq!(engine.store.audit_log(0, 1).await.unwrap()[0].session, "sandbox_1");
    assert_eq!(log(&engine).await, [RAN, RAN, RAN].concat());
}

#[tokio::test]
async fn large_displays_that_nobody_reads_are_bounded_for_each_tenant() {
    let data = tempfile::tempdir().unwrap();
    let (engine, backend) = engine(data.path(), ApprovalMode::Never).await;
    let key = engine.store.create_key("a key", None).await.unwrap();
    let other = engine.store.tenant_of_key(&key.secret).await.unwrap().unwrap();
    let mut executions = Vec::new();
    for number in 0..15 {
        let sandbox = backend.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await.unwrap();
        let kernel_programs = KernelPrograms::new("sandbox");
        let target = ProgramTarget::Kernel { runtime: Arc::new(BareSandbox(sandbox)), kernel_programs };
        let tenant = if number < 14 { Tenant::local() } else { other.clone() };
        let mut execution = start(&engine, ClientProgram { tenant, ..program(target, "large()") }).unwrap();
        assert!(matches!(execution.next().await, Some(DirectEvent::Started)));
        executions.push(execution);
    }
    let (mut read, mut waiting) = (Vec::new(), Vec::new());
    for (number, mut execution) in executions.into_iter().enumerate() {
        match tokio::time::timeout(Duration::from_millis(300), execution.next()).await {
            Ok(Some(DirectEvent::Output(_))) => read.push((number, execution)),
            _ => waiting.push((number, execution)),
        }
    }

    let numbers: Vec<usize> = waiting.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [12, 13], "the other tenant has memory of its own");
    let (_, cancelled) = waiting.pop().unwrap();
    cancelled.canceller().cancel();
    let (outputs, _) = finish(cancelled).await;
    assert!(
        matches!(&*outputs, [OutputPiece::Display(note)] if note.text.is_some()),
        "it waits no longer: {outputs:?}"
    );
    for (_, execution) in read.into_iter().chain(waiting) {
        finish(execution).await;
    }
}

#[tokio::test]
async fn a_program_that_nobody_waits_for_is_interrupted_and_its_end_is_noted() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), ApprovalMode::Never).await;
    let target = ProgramTarget::Session(session(&engine).await);
    let mut execution = start(&engine, program(target.clone(), "forever()")).unwrap();
    while !matches!(execution.next().await, Some(DirectEvent::Output(_))) {}
    // Another program, which waits for the kernel.
    let waiting = start(&engine, program(target.clone(), "print(1)")).unwrap();
    let canceller = waiting.canceller();
    logged(&engine, 2).await;
    canceller.cancel();
    assert!(matches!(finish(waiting).await, (_, DirectEnd::Cancelled)));
    drop(execution);
    let log = logged(&engine, 4).await;
    assert_eq!(log[..2], ["started|nobody is asked|", "started|nobody is asked|"]);
    assert_eq!(log[2], "ended||The turn ended before it was known how this went.");
    assert_eq!(log[3], "ended||The program was interrupted before its end.");
    let (_, end) = finish(start(&engine, program(target, "print(1)")).unwrap()).await;
    assert!(matches!(end, DirectEnd::Ran(outcome) if outcome.end == ToolEnd::Completed));
}

#[tokio::test]
async fn a_client_can_give_a_program_less_time_than_the_sandbox_does() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), ApprovalMode::Never).await;
    let program = program(ProgramTarget::Session(session(&engine).await), "forever()");
    let program = ClientProgram { timeout: Some(Duration::from_millis(100)), ..program };
    let (_, end) = finish(start(&engine, program).unwrap()).await;
    assert!(
        matches!(&end, DirectEnd::Ran(outcome) if outcome.end == ToolEnd::Timeout && outcome.words.contains("0.1 s")),
        "{end:?}"
    );
}

#[tokio::test]
async fn a_program_is_interrupted_while_its_client_does_not_read() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), ApprovalMode::Never).await;
    let target = ProgramTarget::Session(session(&engine).await);
    for timeout in [None, Some(Duration::from_millis(300))] {
        let endless = program(target.clone(), "show(); forever()");
        let mut execution = start(&engine, ClientProgram { timeout, ..endless }).unwrap();
        assert!(matches!(execution.next().await, Some(DirectEvent::Started)));
        tokio::time::sleep(Duration::from_millis(100)).await;
        if timeout.is_none() {
            execution.canceller().cancel();
        }
        // It needs the same kernel.
        assert_eq!(finish(start(&engine, program(target.clone(), "print(1)")).unwrap()).await.0.len(), 1);
        assert!(finish(execution).await.0.len() >= 4);
    }
}

#[tokio::test]
async fn a_held_program_is_told_and_runs_when_it_is_approved() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), ApprovalMode::Always).await;
    let target = ProgramTarget::Session(session(&engine).await);
    for (status, runs) in [(ApprovalStatus::Approved, true), (ApprovalStatus::Denied, false)] {
        let mut execution = start(&engine, program(target.clone(), "print(1)")).unwrap();
        let Some(DirectEvent::ApprovalRequested(approval)) = execution.next().await else {
            panic!("it is not approval")
        };
        assert_eq!((approval.code.as_str(), approval.model.as_str()), ("print(1)", "a client"));
        let decision = ApprovalUpdate { sha256: approval.sha256, status, by: "me".to_owned(), reason: None };
        engine.store.decide(Some(&Tenant::local()), &approval.id, decision).await.unwrap();
        let (outputs, end) = finish(execution).await;
        assert_eq!(outputs.len(), usize::from(runs));
        assert_eq!(matches!(end, DirectEnd::Ran(_)), runs, "{end:?}");
    }
    let log = log(&engine).await;
    assert_eq!(log[1..4], ["approved|me|", "started|me|", "ended||The program ran to its end."]);
    assert_eq!(log[5], "refused|me|no reason was given");
    // Requests for approval of an abandoned program are withdrawn.
    let mut execution = start(&engine, program(target, "print(1)")).unwrap();
    let Some(DirectEvent::ApprovalRequested(approval)) = execution.next().await else { panic!("it is not approval") };
    drop(execution);
    while engine.store.approval(None, &approval.id).await.unwrap().unwrap().status != ApprovalStatus::Expired {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn executions_are_bounded_in_number_and_programs_in_size() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _backend) = engine(data.path(), ApprovalMode::Never).await;
    let target = ProgramTarget::Session(session(&engine).await);
    let held: Vec<_> = (0..MAX_EXECUTIONS).map(|_| engine.executions.acquire(&Tenant::local()).unwrap()).collect();
    let error = start(&engine, program(target.clone(), "print(1)")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    drop(held);
    let refused = start(&engine, program(target, &"#".repeat(MAX_CODE + 1))).unwrap_err();
    assert!(matches!(refused, Error::Invalid { reason, .. } if reason.contains("4194304")));
    assert_eq!(engine.executions.in_use(), 0);
    assert!(log(&engine).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn programs_of_a_session_begin_in_the_order_of_their_arrival() {
    let data = tempfile::tempdir().unwrap();
    let begun = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let seen = Arc::clone(&begun);
    let backend = Memory::new(move |code: &str, _: &mut ScriptedCell| seen.lock().push(code.to_owned()));
    let store = Store::open(data.path()).await.unwrap();
    let (policy, settings) = (ApprovalPolicy::default(), SessionSettings::default());
    let engine = Arc::new(Engine::new(store, Arc::new(backend), [], policy, Vec::new(), settings));
    let target = ProgramTarget::Session(session(&engine).await);
    let codes: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let started: Vec<_> =
        codes.iter().map(|code| start(&engine, program(target.clone(), code)).unwrap()).map(finish).collect();
    futures_util::future::join_all(started).await;
    assert_eq!(*begun.lock(), codes);
}

#[tokio::test]
async fn a_program_and_its_sandbox_end_with_the_key() {
    let data = tempfile::tempdir().unwrap();
    let (engine, _) = engine(data.path(), ApprovalMode::Never).await;
    let key = engine.store.create_key("one", None).await.unwrap();
    let one = engine.store.tenant_of_key(&key.secret).await.unwrap().unwrap();
    let (session, _) = engine.sessions.create(&one, NewSession::named("s")).await.unwrap();
    let target = ProgramTarget::Session(session);
    let mut execution = start(&engine, ClientProgram { tenant: one, ..program(target, "forever()") }).unwrap();
    while !matches!(execution.next().await, Some(DirectEvent::Output(_))) {}
    assert_eq!(engine.sessions.in_use(), 1);
    engine.store.revoke_key(key.id).await.unwrap();
    tokio::time::pause();
    let watching = tokio::spawn(crate::end_revoked(Arc::clone(&engine)));
    finish(execution).await;
    while engine.sessions.in_use() > 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    engine.shutdown.cancel();
    watching.await.unwrap();
}
