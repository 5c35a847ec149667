//! The gate that every program goes through.

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aludel_agent::{ApprovalDecision, ApprovalRequest, describe_outcome};
use aludel_ignore::Ignore;
use aludel_rules::Decision;
use aludel_sandbox::{Finished, Language};
use aludel_store::{
    ApprovalId, ApprovalRecord, ApprovalStatus, AuditEntry, AuditEvent, MeteredWork, NewApproval, Reservation, Tenant,
    now,
};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::{Instrument, error};

use super::{ApprovalMode, ApprovalPolicy, KernelPrograms, OnTimeout};
use crate::failure::Failure;
use crate::{Engine, Error};

/// Pause between two checks of a request for approval, which another process may decide.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Time for which a client may answer, seconds.
const CLIENT_DECISION_SECONDS: i64 = 30 * 86_400;
/// Bytes of one program's entries in the audit log, besides the program itself.
const AUDIT_ENTRIES_BYTES: u64 = 4096;
/// The language that rules read.
const RULED_LANGUAGE: &str = "python";
/// Pause between two attempts to complete the audit log.
const AUDIT_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Outcome in the audit log of a program that the end of its turn cut off.
pub(super) const CUT_OFF: &str = "The turn ended before it was known how this went.";

/// The person at the terminal, in the audit log.
const TERMINAL: &str = "the terminal";

/// Decides about the programs of one request, and writes the audit log.
pub struct Gate {
    engine: Arc<Engine>,
    policy: Arc<ApprovalPolicy>,
    tenant: Tenant,
    /// The response or completion.
    request: String,
    kernel_programs: Arc<KernelPrograms>,
    model: String,
    decider: Decider,
    /// The terminal for questions to the operator, if there is one.
    terminal: Option<TerminalApprover>,
    /// True if a request whose program waits for the operator continues after a restart.
    survives_restart: bool,
    /// Programs that run, by their calls.
    running: Mutex<HashMap<String, String>>,
    /// True while a request for approval is stored or undecided. Somebody may see it before this process knows that it is stored.
    is_asking: watch::Sender<bool>,
    /// The stored and undecided request for approval, if there is one.
    pub(crate) pending_approval: watch::Sender<Option<ApprovalRecord>>,
    /// True once the person at the terminal has allowed everything that the rules do not refuse.
    allows_all: AtomicBool,
    /// The error that prevented a decision or its record, if such errors end the turn.
    failure: watch::Sender<Option<Failure>>,
}

/// The origin of the programs of one request.
#[derive(Debug)]
pub struct ProgramOrigin {
    /// The id of the request, such as a response or completion.
    pub request: String,
    /// The programs of the kernel that they run in.
    pub kernel_programs: Arc<KernelPrograms>,
    /// The model that writes them, or the client that sends them.
    pub model: String,
}

/// The party that decides about programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decider {
    /// The operator, as the policy says.
    Operator,
    /// The client, in a later request.
    Client,
}

/// The operator's answer about a program that was held back.
enum OperatorAnswer {
    Yes { by: String },
    No { reason: String },
}

/// A terminal with a person who can be asked.
#[derive(Clone)]
pub struct TerminalApprover(Arc<AskFunction>);

type AskFunction = dyn Fn(ApprovalRequest, Vec<String>) -> BoxFuture<'static, ApprovalDecision> + Send + Sync;

impl TerminalApprover {
    /// A terminal that asks about programs by `ask`. Its second argument is the rules' reasons for asking.
    pub fn new<F, R>(ask: F) -> Self
    where
        F: Fn(ApprovalRequest, Vec<String>) -> R + Send + Sync + 'static,
        R: Future<Output = ApprovalDecision> + Send + 'static,
    {
        Self(Arc::new(move |program, reasons| Box::pin(ask(program, reasons))))
    }
}

impl fmt::Debug for TerminalApprover {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TerminalApprover").finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate for the programs of one request. `survives_restart` is true if a request whose program waits for the operator continues after
    /// a restart.
    pub fn new(
        engine: &Arc<Engine>,
        tenant: &Tenant,
        origin: ProgramOrigin,
        decider: Decider,
        survives_restart: bool,
    ) -> Arc<Self> {
        Arc::new(Self { decider, survives_restart, ..Self::build(engine, tenant, origin) })
    }

    /// A gate that asks the operator at a terminal, without a time limit. The question is not stored. A failure to write the audit log ends
    /// the turn.
    pub fn at_terminal(
        engine: &Arc<Engine>,
        tenant: &Tenant,
        origin: ProgramOrigin,
        terminal: TerminalApprover,
    ) -> Arc<Self> {
        Arc::new(Self { terminal: Some(terminal), ..Self::build(engine, tenant, origin) })
    }

    fn build(engine: &Arc<Engine>, tenant: &Tenant, origin: ProgramOrigin) -> Self {
        let ProgramOrigin { request, kernel_programs, model } = origin;
        Self {
            engine: Arc::clone(engine),
            policy: engine.approvals(),
            tenant: tenant.clone(),
            request,
            kernel_programs,
            model,
            decider: Decider::Operator,
            terminal: None,
            survives_restart: false,
            running: Mutex::default(),
            is_asking: watch::Sender::default(),
            pending_approval: watch::Sender::default(),
            allows_all: AtomicBool::new(false),
            failure: watch::Sender::default(),
        }
    }

    /// The party that decides.
    pub fn decider(&self) -> Decider {
        self.decider
    }

    /// Returns true if programs may wait here for the operator's decision.
    pub fn may_wait(&self) -> bool {
        self.terminal.is_none() && !matches!(self.policy.mode, ApprovalMode::Never)
    }

    /// The ids of the calls about which the operator is being asked, from now on.
    pub(crate) fn pending_calls(&self) -> BoxStream<'static, String> {
        let calls = stream::unfold(self.pending_approval.subscribe(), async |mut pending| {
            loop {
                pending.changed().await.ok()?;
                let call = pending.borrow_and_update().as_ref().map(|record| record.call_id.clone());
                if let Some(call) = call {
                    return Some((call, pending));
                }
            }
        });
        calls.boxed()
    }

    /// Waits for the process's shutdown while a stored request for approval is undecided. That request outlives the process, so the turn
    /// need not wait. Without one, it never completes.
    pub async fn wait_for_drain(&self) {
        if !self.survives_restart {
            return pending().await;
        }
        self.engine.draining.cancelled().await;
        self.is_asking.subscribe().wait_for(|asks| *asks).await.ignore("the sender is a field of this gate");
    }

    /// Decides whether a program may run. The audit log has the program before it runs.
    pub async fn pass(&self, program: ApprovalRequest) -> ApprovalDecision {
        match self.decide(&program).await {
            Ok(approval) => approval,
            Err(error) => {
                if self.terminal.is_some() {
                    self.failure.send_replace(Some(Failure::while_doing("a program was not run")(error)));
                    // The driver of the turn ends it.
                    return pending().await;
                }
                error!("{}: a program was not run: {error}", self.request);
                let reason = match error {
                    Error::StorageFull { .. } => error.to_string(),
                    Error::DiskFull(_) => {
                        "the server could not ask whether it may run, for its disk is full".to_owned()
                    }
                    _ => "the server could not ask whether it may run".to_owned(),
                };
                ApprovalDecision::Deny { reason }
            }
        }
    }

    /// Waits for an error that prevented a decision, so that the turn has to end. Never completes if such programs are refused instead.
    pub(crate) async fn failed(&self) -> Failure {
        // The sender is a field of this gate.
        match self.failure.subscribe().wait_for(Option::is_some).await.map(|failure| failure.clone()) {
            Ok(Some(failure)) => failure,
            _ => pending().await,
        }
    }

    /// Decides whether a program may run. On an error, which means that there is no decision or no record of it, it must not run.
    pub async fn decide(&self, program: &ApprovalRequest) -> Result<ApprovalDecision, Error> {
        let _room = self.room(&program.code).await?;
        let (verdict, reasons) = self.verdict(&program.code).await?;
        match (verdict, self.decider) {
            (Decision::Refuse, _) => {
                let reason = reasons.join("; ");
                self.note(AuditEvent::Denied, &program.code, "the rules", &reason).await?;
                // At a terminal, decisions of the rules are marked, to tell them from the person's.
                let by_rules = self.terminal.is_some();
                Ok(ApprovalDecision::Deny {
                    reason: if by_rules { format!("the rules refuse it: {reason}") } else { reason },
                })
            }
            (Decision::Allow, Decider::Client) => self.ask_client(program).await,
            (Decision::Ask, Decider::Client) => {
                // Only the operator may give this approval.
                let decided = self.request_decision(program, reasons).await?;
                match self.answer(program, decided).await? {
                    OperatorAnswer::Yes { .. } => self.ask_client(program).await,
                    OperatorAnswer::No { reason } => Ok(ApprovalDecision::Deny { reason }),
                }
            }
            (Decision::Allow, Decider::Operator) => {
                self.start(&program.call_id, &program.code, "nobody is asked").await?;
                Ok(ApprovalDecision::Allow)
            }
            (Decision::Ask, Decider::Operator) => match &self.terminal {
                Some(terminal) => self.ask_terminal(terminal, program, reasons).await,
                None => self.run_after_decision(program, reasons).await,
            },
        }
    }

    /// Asks the person at the terminal, unless they have allowed everything.
    async fn ask_terminal(
        &self,
        terminal: &TerminalApprover,
        program: &ApprovalRequest,
        reasons: Vec<String>,
    ) -> Result<ApprovalDecision, Error> {
        let (code, mut outcome) = (&program.code, "");
        if self.allows_all.load(Ordering::Relaxed) {
            outcome = "all were allowed";
        } else {
            self.note(AuditEvent::Asked, code, "", &reasons.join("; ")).await?;
            // In the mode that asks about every program, that is not given as a reason.
            let reasons = if matches!(self.policy.mode, ApprovalMode::Rules(_)) { reasons } else { Vec::new() };
            match (terminal.0)(program.clone(), reasons).await {
                ApprovalDecision::Allow => {}
                ApprovalDecision::AllowAll => {
                    self.allows_all.store(true, Ordering::Relaxed);
                    outcome = "this and all that follow";
                }
                ApprovalDecision::Later => return self.deny(code, "nobody answered".to_owned()).await,
                ApprovalDecision::Deny { reason } => return self.deny(code, reason).await,
            }
        }
        self.note(AuditEvent::Approved, code, TERMINAL, outcome).await?;
        self.start(&program.call_id, code, TERMINAL).await?;
        // Not `AllowAll`: later programs of the turn are judged and recorded too.
        Ok(ApprovalDecision::Allow)
    }

    async fn deny(&self, code: &str, reason: String) -> Result<ApprovalDecision, Error> {
        self.note(AuditEvent::Denied, code, TERMINAL, &reason).await?;
        Ok(ApprovalDecision::Deny { reason })
    }

    /// Leaves the decision to the client, in a later request.
    async fn ask_client(&self, program: &ApprovalRequest) -> Result<ApprovalDecision, Error> {
        let ApprovalRequest { call_id, code } = program;
        self.note(AuditEvent::Asked, code, "the client", "").await?;
        self.engine.store.ask_tenant(&self.tenant, &self.request, call_id, code, CLIENT_DECISION_SECONDS).await?;
        Ok(ApprovalDecision::Later)
    }

    /// Waits for the operator's decision or the time limit, and runs the program if it is allowed.
    async fn run_after_decision(
        &self,
        program: &ApprovalRequest,
        reasons: Vec<String>,
    ) -> Result<ApprovalDecision, Error> {
        let decided = self.request_decision(program, reasons).await?;
        let id = decided.id.clone();
        match self.answer(program, decided).await? {
            OperatorAnswer::Yes { by } => {
                self.engine.store.start_approved(&id).await?;
                self.start(&program.call_id, &program.code, &by).await?;
                Ok(ApprovalDecision::Allow)
            }
            OperatorAnswer::No { reason } => Ok(ApprovalDecision::Deny { reason }),
        }
    }

    /// Records the operator's decision about a program.
    async fn answer(&self, program: &ApprovalRequest, decided: ApprovalRecord) -> Result<OperatorAnswer, Error> {
        let by = decided.decided_by.clone().unwrap_or_else(|| "nobody in time".to_owned());
        if decided.status == ApprovalStatus::Approved {
            self.note(AuditEvent::Approved, &program.code, &by, decided.reason.as_deref().unwrap_or_default()).await?;
            return Ok(OperatorAnswer::Yes { by });
        }
        let reason = decided.reason.unwrap_or_else(|| match decided.decided_by {
            Some(_) => "no reason was given".to_owned(),
            None => "nobody decided in time".to_owned(),
        });
        self.note(AuditEvent::Denied, &program.code, &by, &reason).await?;
        Ok(OperatorAnswer::No { reason })
    }

    /// Judges a program by the settings, with the reasons.
    async fn verdict(&self, code: &str) -> Result<(Decision, Vec<String>), Error> {
        let rules = match &self.policy.mode {
            ApprovalMode::Never => return Ok((Decision::Allow, Vec::new())),
            ApprovalMode::Always => return Ok((Decision::Ask, vec!["every program is asked about".to_owned()])),
            ApprovalMode::Rules(rules) => Arc::clone(rules),
        };
        let kernel = self.engine.kernel();
        let other = self.kernel_programs.language().map(Language::as_str);
        let other = other.or_else(|| (kernel.language != RULED_LANGUAGE).then_some(kernel.title.as_str()));
        if let Some(language) = other {
            let judgement = rules.undecidable(&format!("the rules read no {language}"));
            return Ok((judgement.decision, judgement.reasons.iter().map(ToString::to_string).collect()));
        }
        let share = self.engine.processor_time.share_of(&self.tenant);
        let judgement = self.kernel_programs.judge(rules, code.to_owned(), share).await?;
        let reasons = judgement.reasons.iter().map(ToString::to_string).collect();
        Ok((judgement.decision, reasons))
    }

    /// Requests the operator's decision, and waits for it.
    async fn request_decision(&self, program: &ApprovalRequest, reasons: Vec<String>) -> Result<ApprovalRecord, Error> {
        let (store, policy) = (&self.engine.store, &self.policy);
        // A turn that goes on after a restart finds its earlier request.
        let before = store.approval_of_call(&self.request, &program.call_id).await?;
        let is_new = before.is_none();
        // From here on the request may be seen, so the turn outlives the process.
        self.is_asking.send_replace(true);
        let _asking = AskingGuard(&self.is_asking);
        let mut waiting = ApprovalWait::new(&self.engine, self.asking(program, reasons, before), self.survives_restart);
        let asked = waiting.request().await?;
        self.pending_approval.send_replace(Some(asked.clone()));
        if is_new && let Some(webhook) = policy.webhook.clone() {
            let telling = webhook.deliver(Arc::clone(&self.engine), asked.clone());
            self.engine.tasks.spawn(telling.in_current_span());
        }
        let decided = async {
            if is_new {
                self.note(AuditEvent::Asked, &program.code, "", &asked.reasons.join("; ")).await?;
            }
            self.wait_for_decision(&asked).await
        };
        let decided = decided.await;
        self.pending_approval.send_replace(None);
        decided
    }

    /// Waits for the decision about a program, which may be made by the time limit.
    async fn wait_for_decision(&self, asked: &ApprovalRecord) -> Result<ApprovalRecord, Error> {
        let store = &self.engine.store;
        // Measured from now on, so that setting back the clock does not prolong it.
        let patience = u64::try_from(asked.expires_at - now()).unwrap_or_default();
        let end = Instant::now() + self.policy.timeout.min(Duration::from_secs(patience));
        loop {
            let current = store.approval(None, &asked.id).await?.unwrap_or_else(|| asked.clone());
            if current.status != ApprovalStatus::Pending {
                return Ok(current);
            }
            if now() >= current.expires_at || Instant::now() >= end {
                match self.policy.on_timeout {
                    OnTimeout::Deny => store.expire_approval(&asked.id).await?,
                    OnTimeout::Allow => store.approve_unanswered(&asked.id, "the time limit").await?,
                }
                continue;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Announces a program to those who decide, unless it was announced before.
    fn asking(
        &self,
        program: &ApprovalRequest,
        reasons: Vec<String>,
        before: Option<ApprovalRecord>,
    ) -> impl Future<Output = Result<ApprovalRecord, aludel_store::Error>> + Send + 'static {
        let (store, tenant) = (self.engine.store.clone(), self.tenant.clone());
        let patience = self.policy.timeout.as_secs();
        let new = NewApproval {
            request: self.request.clone(),
            call_id: program.call_id.clone(),
            session: self.kernel_programs.id().to_owned(),
            model: self.model.clone(),
            code: program.code.clone(),
            reasons,
            patience: i64::try_from(patience).unwrap_or(i64::MAX),
        };
        async move {
            match before {
                Some(before) => Ok(before),
                None => store.add_approval(&tenant, new).await,
            }
        }
    }

    /// Reserves storage for a program's entries in the audit log, so that later ones are always written.
    async fn room(&self, code: &str) -> Result<Reservation, Error> {
        let bytes = AUDIT_ENTRIES_BYTES + code.len() as u64;
        Ok(self.engine.store.reserve(&self.tenant, bytes..=bytes).await?)
    }

    async fn start(&self, call_id: &str, code: &str, actor: &str) -> Result<(), Error> {
        // Recorded as running first, so that an entry that is written after the caller gave up still gets its end.
        self.running.lock().insert(call_id.to_owned(), code.to_owned());
        let noted = self.note(AuditEvent::Started, code, actor, "").await;
        if noted.is_err() {
            self.running.lock().remove(call_id);
        }
        noted
    }

    /// Judges a program that the client says it approved, and uses the approval up: the client must have been asked about this program, and
    /// each answer counts once. Returns the reason if it must not run.
    pub async fn take_approval(&self, code: &str) -> Result<Option<String>, Error> {
        let _room = self.room(code).await?;
        let (verdict, reasons) = self.verdict(code).await?;
        let reason = if verdict == Decision::Refuse {
            reasons.join("; ")
        } else if self.engine.store.tenant_answered(&self.tenant, code, ApprovalStatus::Approved).await? {
            return Ok(None);
        } else {
            "nobody asked about it, or it was answered before".to_owned()
        };
        self.note(AuditEvent::Denied, code, "the server", &reason).await?;
        Ok(Some(reason))
    }

    /// Records a program that the client approved in this request, before it runs.
    pub async fn approved_by_client(&self, call_id: &str, code: &str) -> Result<(), Error> {
        self.note(AuditEvent::Approved, code, "the client", "").await?;
        self.start(call_id, code, "the client").await
    }

    /// Records a program that the client refused in this request.
    pub async fn denied_by_client(&self, code: &str, reason: &str) -> Result<(), Error> {
        let _room = self.room(code).await?;
        // If the client was not asked about it, there is nothing to refuse.
        let _asked = self.engine.store.tenant_answered(&self.tenant, code, ApprovalStatus::Denied).await?;
        self.note(AuditEvent::Denied, code, "the client", reason).await
    }

    /// Records the end of a program.
    pub async fn ended(&self, call_id: &str, finished: &Finished) -> Result<(), Error> {
        let Some(code) = self.running.lock().get(call_id).cloned() else { return Ok(()) };
        let program_ms = u64::try_from(finished.elapsed.as_millis()).unwrap_or(u64::MAX);
        let models = self.engine.models();
        // A client that sends programs itself chooses its own name.
        let model = models.get(&self.model).map_or("", |model| &model.name);
        self.engine.meter.count(&self.tenant, model, MeteredWork { programs: 1, program_ms, ..MeteredWork::default() });
        self.note(AuditEvent::Ended, &code, "", &describe_outcome(finished)).await?;
        self.running.lock().remove(call_id);
        Ok(())
    }

    /// Records the end of programs that were cut off by the end of their turn: by a client that gave up, or for lack of a sandbox.
    pub async fn cut_off(&self) -> Result<(), Error> {
        let running = self.running.lock().clone();
        for (call_id, code) in running {
            self.note(AuditEvent::Ended, &code, "", CUT_OFF).await?;
            self.running.lock().remove(&call_id);
        }
        Ok(())
    }

    /// Retries [`Gate::cut_off`] until it succeeds, for example when a full disk has room again; otherwise the next start does it.
    pub(crate) async fn cut_off_later(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = sleep(AUDIT_RETRY_PAUSE) => {}
                () = self.engine.shutdown.cancelled() => return,
            }
            if self.cut_off().await.is_ok() {
                return;
            }
        }
    }

    async fn note(&self, event: AuditEvent, code: &str, actor: &str, outcome: &str) -> Result<(), Error> {
        let entry = AuditEntry {
            event,
            request: self.request.clone(),
            session: self.kernel_programs.id().to_owned(),
            code: code.to_owned(),
            actor: actor.to_owned(),
            outcome: outcome.to_owned(),
        };
        Ok(self.engine.store.audit(&self.tenant, vec![entry]).await?)
    }
}

/// Notes the end of a question when it is dropped.
struct AskingGuard<'a>(&'a watch::Sender<bool>);

impl Drop for AskingGuard<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

/// The wait for a decision about a program. If it is dropped, the request is withdrawn, except at the server's end, after which the turn
/// goes on.
struct ApprovalWait<'a> {
    engine: &'a Arc<Engine>,
    /// The task that writes the request. It always runs to its end, so that a written request can be withdrawn.
    asking: Option<JoinHandle<Result<ApprovalRecord, aludel_store::Error>>>,
    id: Option<ApprovalId>,
    /// True if the turn can continue after a restart.
    survives_restart: bool,
}

impl<'a> ApprovalWait<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        asking: impl Future<Output = Result<ApprovalRecord, aludel_store::Error>> + Send + 'static,
        survives_restart: bool,
    ) -> Self {
        Self { engine, asking: Some(engine.tasks.spawn(asking)), id: None, survives_restart }
    }

    /// Returns the request, as soon as it is written.
    async fn request(&mut self) -> Result<ApprovalRecord, Error> {
        let Some(asking) = &mut self.asking else { return Err(Error::internal("nothing was asked")) };
        let asked = asking.await.map_err(Error::internal)?;
        self.asking = None;
        let asked = asked?;
        self.id = Some(asked.id.clone());
        Ok(asked)
    }
}

impl Drop for ApprovalWait<'_> {
    fn drop(&mut self) {
        if self.engine.shutdown.is_cancelled() || (self.survives_restart && self.engine.draining.is_cancelled()) {
            return;
        }
        let (engine, id, asking) = (Arc::clone(self.engine), self.id.take(), self.asking.take());
        let expiring = async move {
            let id = match asking {
                Some(asking) => asking.await.ok().and_then(Result::ok).map(|asked| asked.id),
                None => id,
            };
            let Some(id) = id else { return };
            if let Err(error) = engine.store.expire_approval(&id).await {
                error!("cannot note that nobody waits for {id} any more: {error}");
            }
        };
        self.engine.tasks.spawn(expiring.in_current_span());
    }
}
