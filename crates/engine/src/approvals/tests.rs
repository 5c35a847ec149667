//! Questions to a person at a terminal and to clients, and the audit log about them.

use std::path::Path;
use std::sync::Arc;

use aludel_agent::{ApprovalDecision, ApprovalRequest};
use aludel_rules::Rules;
use aludel_sandbox::KernelSpec;
use aludel_sandbox::memory::{Memory, simple};
use aludel_store::{Store, Tenant};
use parking_lot::Mutex;

use super::*;
use crate::sessions::NewSession;
use crate::{Engine, SessionSettings};

const RULES: &str =
    "default = 'allow'\n[[rule]]\ndo = 'ask'\ncall = ['os.remove']\n[[rule]]\ndo = 'refuse'\nuses = ['processes']\n";

/// Every question: the program, and why it is asked about.
type Questions = Arc<Mutex<Vec<(String, Vec<String>)>>>;

/// A gate with a person who gives these answers.
async fn gate(data: &Path, mode: ApprovalMode, answers: Vec<ApprovalDecision>) -> (Arc<Engine>, Arc<Gate>, Questions) {
    gate_of(Memory::default(), data, mode, answers).await
}

/// The same on this backend.
async fn gate_of(
    backend: Memory,
    data: &Path,
    mode: ApprovalMode,
    answers: Vec<ApprovalDecision>,
) -> (Arc<Engine>, Arc<Gate>, Questions) {
    let store = Store::open_beside(data).await.unwrap();
    let backend = Arc::new(backend);
    let policy = ApprovalPolicy { mode, ..ApprovalPolicy::default() };
    let engine = Arc::new(Engine::new(store, backend, [], policy, Vec::new(), SessionSettings::default()));
    let (session, _) = engine.sessions.create(&Tenant::terminal(), NewSession::named("s")).await.unwrap();
    let (asked, answers) = (Questions::default(), Arc::new(Mutex::new(answers.into_iter())));
    let seen = Arc::clone(&asked);
    let terminal = TerminalApprover::new(move |program: ApprovalRequest, reasons| {
        seen.lock().push((program.code, reasons));
        let answer = answers.lock().next().expect("nobody expected this question");
        async move { answer }
    });
    let origin = ProgramOrigin {
        request: "ask_1".to_owned(),
        kernel_programs: Arc::clone(session.kernel_programs()),
        model: "m".to_owned(),
    };
    let gate = Gate::at_terminal(&engine, &Tenant::terminal(), origin, terminal);
    (engine, gate, asked)
}

async fn decide(gate: &Gate, code: &str) -> ApprovalDecision {
    gate.decide(&ApprovalRequest { call_id: code.to_owned(), code: code.to_owned() }).await.unwrap()
}

/// The audit log, as lines of event, actor and outcome.
async fn log(engine: &Engine) -> Vec<String> {
    let records = engine.store.audit_log(0, 100).await.unwrap();
    records.into_iter().map(|record| format!("{}|{}|{}", record.event, record.actor, record.outcome)).collect()
}

fn no(reason: &str) -> ApprovalDecision {
    ApprovalDecision::Deny { reason: reason.to_owned() }
}

#[tokio::test]
async fn a_person_decides_what_the_rules_leave_open_and_all_of_it_is_noted() {
    let data = tempfile::tempdir().unwrap();
    let mode = ApprovalMode::Rules(Arc::new(Rules::parse(RULES).unwrap()));
    let (engine, gate, asked) = gate(data.path(), mode, vec![no("keep it"), ApprovalDecision::AllowAll]).await;
    assert_eq!(decide(&gate, "import os as o").await, ApprovalDecision::Allow);
    // Earlier programs decide what names mean.
    assert_eq!(decide(&gate, "o.remove('x')").await, no("keep it"));
    // Only this program of the turn is allowed: the next one is judged again.
    assert_eq!(decide(&gate, "o.remove('y')").await, ApprovalDecision::Allow);
    assert_eq!(decide(&gate, "o.remove('z')").await, ApprovalDecision::Allow);
    let ApprovalDecision::Deny { reason } = decide(&gate, "import subprocess").await else { panic!("it is refused") };
    assert!(reason.starts_with("the rules refuse it: "), "{reason}");
    let reasons: Vec<_> = asked.lock().iter().map(|(code, why)| (code.clone(), why.len())).collect();
    assert_eq!(reasons, [("o.remove('x')".to_owned(), 1), ("o.remove('y')".to_owned(), 1)]);
    let why = asked.lock()[0].1[0].clone();
    let refused = reason.trim_start_matches("the rules refuse it: ").to_owned();
    assert_eq!(
        log(&engine).await,
        [
            "started|nobody is asked|",
            &format!("asked||{why}"),
            "refused|the terminal|keep it",
            &format!("asked||{why}"),
            "approved|the terminal|this and all that follow",
            "started|the terminal|",
            "approved|the terminal|all were allowed",
            "started|the terminal|",
            &format!("refused|the rules|{refused}"),
        ]
    );
    gate.cut_off().await.unwrap();
    gate.cut_off().await.unwrap();
    assert_eq!(log(&engine).await[9..], vec![format!("ended||{}", super::gate::CUT_OFF); 3]);
    assert_eq!(engine.store.verify_audit_log().await.unwrap(), Ok(12));
}

#[tokio::test]
async fn an_end_that_could_not_be_noted_is_noted_later() {
    let data = tempfile::tempdir().unwrap();
    let (engine, gate, _) = gate(data.path(), ApprovalMode::Never, Vec::new()).await;
    decide(&gate, "1").await;
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let full = "CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no space'); END";
    database.execute_batch(full).unwrap();
    let finished = aludel_sandbox::Finished {
        outcome: aludel_sandbox::Outcome::Completed,
        files: Vec::new(),
        elapsed: Duration::ZERO,
        files_left_out: 0,
        output_dropped: 0,
        state: aludel_sandbox::VariablesState::Kept,
        refused_calls: Vec::new(),
        refusal_may_have_mattered: false,
    };
    assert!(gate.ended("1", &finished).await.is_err() && gate.cut_off().await.is_err());
    database.execute_batch("DROP TRIGGER full").unwrap();
    tokio::time::pause();
    Arc::clone(&gate).cut_off_later().await;
    assert_eq!(log(&engine).await.last().unwrap(), &format!("ended||{}", super::gate::CUT_OFF));
}

#[tokio::test]
async fn rules_do_not_judge_programs_of_another_language() {
    let data = tempfile::tempdir().unwrap();
    let mode = ApprovalMode::Rules(Arc::new(Rules::parse(RULES).unwrap()));
    let shell = KernelSpec { language: "shell".into(), title: "Shell".into(), ..KernelSpec::python("") };
    let backend = Memory::with_kernel(simple, shell);
    let (_engine, gate, asked) = gate_of(backend, data.path(), mode, vec![no("no")]).await;
    // A program that the rules would allow if it were Python.
    assert_eq!(decide(&gate, "x = 1").await, no("no"));
    let asked = asked.lock();
    assert!(asked[0].1[0].contains("the rules read no Shell"), "{asked:?}");
}

#[tokio::test]
async fn a_person_is_asked_about_every_program_or_about_none() {
    let data = tempfile::tempdir().unwrap();
    let (engine, always, asked) =
        gate(data.path(), ApprovalMode::Always, vec![ApprovalDecision::Allow, no("no")]).await;
    assert_eq!(decide(&always, "1").await, ApprovalDecision::Allow);
    assert_eq!(decide(&always, "2").await, no("no"));
    let expected = ["1", "2"].map(|code| (code.to_owned(), Vec::new()));
    assert_eq!(*asked.lock(), expected, "that all are asked about is no reason to tell");
    drop(engine);
    let (engine, never, asked) = gate(data.path(), ApprovalMode::Never, Vec::new()).await;
    assert_eq!(decide(&never, "3").await, ApprovalDecision::Allow);
    assert!(asked.lock().is_empty());
    assert_eq!(log(&engine).await.last().unwrap(), "started|nobody is asked|");
}

/// A gate at which the client of a tenant decides.
async fn gate_of_client(engine: &Arc<Engine>, tenant: &Tenant) -> Arc<Gate> {
    let (session, _) = engine.sessions.create(tenant, NewSession::named("s")).await.unwrap();
    let origin = ProgramOrigin {
        request: "resp_1".to_owned(),
        kernel_programs: Arc::clone(session.kernel_programs()),
        model: "m".to_owned(),
    };
    Gate::new(engine, tenant, origin, Decider::Client, false)
}

#[tokio::test]
async fn an_approval_of_a_client_counts_once_and_for_its_own_program() {
    let data = tempfile::tempdir().unwrap();
    let mode = ApprovalMode::Rules(Arc::new(Rules::parse(RULES).unwrap()));
    let (engine, ..) = gate(data.path(), mode, Vec::new()).await;
    let (one, other) = (Tenant::local(), Tenant::terminal());
    let (gate, of_other) = (gate_of_client(&engine, &one).await, gate_of_client(&engine, &other).await);
    assert_eq!(decide(&gate, "print(1)").await, ApprovalDecision::Later);
    let unasked = Some("nobody asked about it, or it was answered before".to_owned());
    assert_eq!(gate.take_approval("print(2)").await.unwrap(), unasked);
    assert_eq!(of_other.take_approval("print(1)").await.unwrap(), unasked);
    assert_eq!(gate.take_approval("print(1)").await.unwrap(), None);
    assert_eq!(gate.take_approval("print(1)").await.unwrap(), unasked);
    assert_eq!(decide(&gate, "print(3)").await, ApprovalDecision::Later);
    gate.denied_by_client("print(3)", "no").await.unwrap();
    assert_eq!(gate.take_approval("print(3)").await.unwrap(), unasked);
    // The program that the client was asked about.
    engine.store.ask_tenant(&one, "resp_1", "c", "import subprocess", 60).await.unwrap();
    assert!(gate.take_approval("import subprocess").await.unwrap().unwrap().contains("process"));
}

#[tokio::test]
async fn the_operator_is_asked_before_the_client() {
    let data = tempfile::tempdir().unwrap();
    let (engine, ..) = gate(data.path(), ApprovalMode::Always, Vec::new()).await;
    let gate = gate_of_client(&engine, &Tenant::local()).await;
    for (code, verdict, expected) in [
        ("print(1)", OperatorDecision::Approve, ApprovalDecision::Later),
        ("print(2)", OperatorDecision::Deny, no("no reason was given")),
    ] {
        let asking = decide(&gate, code);
        let deciding = async {
            let page = || aludel_store::PageQuery { after: None, limit: 1, order: aludel_store::Order::Descending };
            let pending = loop {
                let pending = engine.store.approvals(None, Some(ApprovalStatus::Pending), page()).await.unwrap();
                match pending.data.into_iter().next() {
                    Some(pending) => break pending,
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            };
            let (by, sha256) = ("the operator".to_owned(), pending.sha256);
            let decision = aludel_store::ApprovalUpdate { sha256, status: verdict.into(), by, reason: None };
            engine.store.decide(None, &pending.id, decision).await.unwrap();
        };
        let (decided, ()) = tokio::join!(asking, deciding);
        assert_eq!(decided, expected);
    }
    assert_eq!(gate.take_approval("print(1)").await.unwrap(), None);
    assert!(gate.take_approval("print(2)").await.unwrap().is_some());
}

#[tokio::test]
async fn nobody_waits_longer_for_a_decision_because_the_clock_is_set_back() {
    let data = tempfile::tempdir().unwrap();
    let store = Store::open(data.path()).await.unwrap();
    let policy =
        ApprovalPolicy { mode: ApprovalMode::Always, timeout: Duration::from_secs(1), ..ApprovalPolicy::default() };
    let backend = Arc::new(Memory::default());
    let engine = Arc::new(Engine::new(store, backend, [], policy, Vec::new(), SessionSettings::default()));
    let (session, _) = engine.sessions.create(&Tenant::local(), NewSession::named("s")).await.unwrap();
    let origin = ProgramOrigin {
        request: "resp_1".to_owned(),
        kernel_programs: Arc::clone(session.kernel_programs()),
        model: "m".to_owned(),
    };
    let gate = Gate::new(&engine, &Tenant::local(), origin, Decider::Operator, false);
    let mut pending_approval = gate.pending_approval.subscribe();
    let asking = tokio::spawn(async move { decide(&gate, "print(1)").await });
    pending_approval.wait_for(Option::is_some).await.unwrap();
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    database.execute("UPDATE approvals SET expires_at = expires_at + 86400", []).unwrap();
    let decided = tokio::time::timeout(Duration::from_secs(20), asking).await;
    assert_eq!(decided.expect("the time limit was moved").unwrap(), no("nobody decided in time"));
}
