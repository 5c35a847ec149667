//! The driver of turns: converts an agent's events to the engine's, which are stored, rendered and published in this order.
//!
//! `agent_events` converts events of agents, `emit` stores and publishes the result, `close` ends the request, `suspend` keeps a turn whose
//! program waits for the next request.

mod agent_events;
mod close;
mod emit;
mod suspend;

use std::future::pending;
use std::sync::Arc;

use aludel_agent::upstream::UpstreamError;
use aludel_agent::{
    Agent, Answerer, ApprovalDecision, ApprovalRequest, Ending as AgentEnding, Event as AgentEvent, Item,
};
use aludel_store::{MeteredWork, Tenant, TurnState};
use futures_util::stream::{BoxStream, FuturesUnordered, SelectAll, select_all};
use futures_util::{FutureExt as _, StreamExt};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error};

use self::agent_events::{ChoiceProgress, tool_call};
use self::emit::PendingFrames;
pub use self::suspend::{Suspension, Suspensions, TakenSuspension};
use super::event::{EndReason, EventKind, ItemId};
use super::journal::{Journal, NewJournal};
use super::render::{Documents, Flow, Frame, Render};
use super::{Failure, InFlightRequest};
use crate::approvals::Gate;
use crate::processor_time::end_long_step;
use crate::sessions::{Session, SessionReservation};
use crate::{Engine, Error};

/// A turn to run, for one client.
pub struct Run {
    /// The engine.
    pub engine: Arc<Engine>,
    /// The tenant that asks.
    pub tenant: Tenant,
    /// Its frames and followers.
    pub in_flight: Arc<InFlightRequest>,
    /// The choices among its answers, each made by its own agent, side by side.
    pub choices: Vec<ChoicePlan>,
    /// The dialect's renderer.
    pub render: Box<dyn Render>,
    /// The dialect's documents, of a request that is stored.
    pub documents: Option<Box<dyn Documents>>,
    /// The event log, of a request that is stored.
    pub journal: Option<Journal>,
    /// True if the oldest part of the conversation may be left out when it is too long for the model.
    pub truncate: bool,
    /// True if it continues after a restart while it waits for approval.
    pub survives_restart: bool,
    /// False if no client follows it before its end.
    pub is_followed: bool,
    /// Frames of the last choice's end, published when everything is stored.
    pub(super) last_frames: Vec<Frame>,
    pending: PendingFrames,
    /// The number of the next event, of a request that is not stored.
    pub(super) next: u64,
    /// The failure to store its log, if that cancelled it.
    unstored: Option<Failure>,
}

/// One choice of a turn.
pub struct ChoicePlan {
    /// The name of the model.
    pub model: String,
    /// The model with its tools.
    pub agent: Agent,
    /// The conversation as the model gets it.
    pub items: Vec<Item>,
    /// The session of its programs.
    pub session: Option<Arc<Session>>,
    /// The permit for its sandbox, until its end.
    pub reservation: Option<SessionReservation>,
    /// The gate that its programs pass.
    pub gate: Option<Arc<Gate>>,
    /// The fate of its session at the end.
    pub retention: SessionRetention,
    /// The purpose of the copies of its programs' files among the tenant's files; `None` to make none.
    pub publish_as: Option<&'static str>,
    /// True if its programs may wait for the client's answers.
    pub may_wait: bool,
    /// True if the answer has a format, and programs may come before it.
    pub(super) is_formed: bool,
}

/// The fate of a choice's session at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionRetention {
    /// It stays as it is.
    Keep,
    /// The session was made for this choice. It is removed if no program ran, or if the turn was cut before its client was told of it;
    /// otherwise `lingers` says whether its sandbox is kept only for a moment.
    Own {
        /// True if its sandbox is kept for a moment only.
        lingers: bool,
    },
    /// The session is used by others too, and stays; `lingers` is as above.
    Shared {
        /// True if its sandbox is kept for a moment only.
        lingers: bool,
    },
}

impl Run {
    /// A turn with these choices, which is not stored and does not go on after a restart.
    pub fn new(
        engine: &Arc<Engine>,
        tenant: &Tenant,
        in_flight: Arc<InFlightRequest>,
        choices: Vec<ChoicePlan>,
        render: Box<dyn Render>,
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            tenant: tenant.clone(),
            in_flight,
            choices,
            render,
            documents: None,
            journal: None,
            truncate: false,
            survives_restart: false,
            is_followed: true,
            last_frames: Vec::new(),
            pending: PendingFrames::default(),
            next: 0,
            unstored: None,
        }
    }
}

impl Run {
    /// Adds the journal that stores the request. If that fails, everything taken for the request is given back.
    pub async fn with_journal(mut self, new: NewJournal) -> Result<Self, Error> {
        let id = new.id.clone();
        let journal = Journal::create(&self.engine.store, &self.tenant, new).await;
        match journal.and_then(|journal| journal.ok_or_else(|| Error::internal(format!("{id} is taken")))) {
            Ok(journal) => {
                self.journal = Some(journal);
                Ok(self)
            }
            Err(error) => {
                self.abandon().await;
                Err(error)
            }
        }
    }

    /// Gives back everything taken for a request that could not be begun, and forgets it.
    pub async fn abandon(mut self) {
        for plan in &mut self.choices {
            plan.abandon(&self.engine).await;
        }
        if self.journal.is_some()
            && let Err(error) = self.engine.store.delete_turn(&self.tenant, &self.in_flight.id).await
        {
            error!("cannot remove {}: {error}", self.in_flight.id);
        }
    }
}

impl ChoicePlan {
    /// Reserves a permit for its sandbox, if it has a session; fails if there is none.
    pub async fn reserve(&mut self) -> Result<(), Error> {
        if let Some(session) = &self.session {
            self.reservation = Some(session.reserve().await?);
        }
        Ok(())
    }

    /// The failure of its programs, if its session was deleted.
    fn deletion(&self) -> Option<Failure> {
        let session = self.session.as_ref().filter(|session| session.deleted().is_cancelled())?;
        Some(Failure::session_deleted(session.id()))
    }

    /// Gives back what was taken for it.
    pub async fn abandon(&mut self, engine: &Engine) {
        self.reservation = None;
        let Some(session) = &self.session else { return };
        if matches!(self.retention, SessionRetention::Own { .. }) {
            engine.sessions.remove_unused(session).await;
        }
    }
}

impl Run {
    /// Makes the request known, so that clients with its id find it.
    pub async fn create(&mut self, background: bool) -> Result<(), Failure> {
        self.queue(0, EventKind::Created { background }).await;
        if let Some(failure) = self.unstored.take() {
            return Err(failure);
        }
        self.begin_document().await?;
        // A repetition of the request waits for the first frame, and reads the document.
        self.publish_if_followed().await;
        if self.is_followed { self.store_events(None).await } else { Ok(()) }
    }

    /// Runs the turn to its end.
    pub async fn run(self) {
        let share = self.engine.processor_time.share_of(&self.tenant);
        share.pace(self.run_from_start()).await;
    }

    /// Runs the turn from its first round on.
    async fn run_from_start(mut self) {
        for choice in 0..self.choices.len() {
            self.count(choice, MeteredWork { requests: 1, ..MeteredWork::default() });
        }
        self.emit(0, EventKind::Started).await;
        self.run_from_approval(None).await;
    }

    /// Runs the turn to its end, beginning with the program that waits for the operator's decision, if there is one.
    pub(super) async fn run_from_approval(mut self, waiting: Option<PendingApproval>) {
        let mut progress: Vec<ChoiceProgress> = self.choices.iter().map(ChoiceProgress::of).collect();
        if let Some(PendingApproval { item, program, ran_code }) = waiting {
            if let Some(progress) = progress.first_mut() {
                progress.resume(item, &program, ran_code);
            }
            match self.await_decision(program, &mut progress).await {
                EarlierDecision::GoOn => {}
                EarlierDecision::LeftForRestart => return self.leave_for_restart().await,
                EarlierDecision::Cancelled => {
                    self.end_choice(0, self.cut_off(), &mut progress).await;
                }
                EarlierDecision::AsksClient { call_id } => {
                    let items = self.choices.first().map(|plan| plan.items.as_slice()).unwrap_or_default();
                    let programs = items.iter().filter_map(|item| match item {
                        Item::Call(call) if call.id == call_id => Some(tool_call(call.clone())),
                        _ => None,
                    });
                    let ending = EndReason::WaitsForClient { programs: programs.collect(), calls: Vec::new() };
                    self.end_choice(0, ending, &mut progress).await;
                }
            }
        }
        let outcome = match progress.iter().all(|progress| progress.has_ended) {
            true => TurnResult::Ended,
            false => {
                end_long_step().await;
                let agents = Agents::start(&self.choices);
                end_long_step().await;
                self.drive_agents(agents, &mut progress).await
            }
        };
        self.finish(outcome, progress).await;
    }

    /// Ends the request, or hands it on.
    async fn finish(mut self, outcome: TurnResult, mut progress: Vec<ChoiceProgress>) {
        match outcome {
            TurnResult::Ended => {}
            TurnResult::LeftForRestart => return self.leave_for_restart().await,
            TurnResult::Suspended(waits) => {
                self.suspend(*waits, &mut progress);
                return self.close(true).await;
            }
        }
        let ran_code = progress.iter().any(|progress| progress.ran_code);
        let is_cut = self.render.failure().is_some() || self.in_flight.cancel.is_cancelled();
        for (plan, progress) in self.choices.iter_mut().zip(&progress) {
            // Those who follow it know the session from the first program on, and may name it or follow links into it.
            let is_known = progress.has_called && (self.is_followed || !is_cut);
            if let Some(gate) = &plan.gate
                && let Err(error) = gate.cut_off().await
            {
                error!("{}: a program has no end in the audit log yet: {error}", self.in_flight.id);
                self.engine.tasks.spawn(Arc::clone(gate).cut_off_later().in_current_span());
            }
            plan.reservation = None;
            match (plan.retention, &plan.session) {
                // A session that is unknown to clients is of no use.
                (SessionRetention::Own { .. } | SessionRetention::Shared { .. }, Some(_)) if !is_known => {
                    plan.abandon(&self.engine).await;
                }
                (
                    SessionRetention::Own { lingers: true } | SessionRetention::Shared { lingers: true },
                    Some(session),
                ) => {
                    session.linger(self.engine.settings.linger);
                }
                _ => {}
            }
        }
        self.close(ran_code).await;
    }

    /// Waits for the decision about a program that an earlier process requested.
    async fn await_decision(&mut self, program: ApprovalRequest, progress: &mut [ChoiceProgress]) -> EarlierDecision {
        let Some(gate) = self.choices.first().and_then(|plan| plan.gate.clone()) else {
            return EarlierDecision::Cancelled;
        };
        let call_id = program.call_id.clone();
        let decision = tokio::select! {
            decision = gate.pass(program) => decision,
            () = self.in_flight.cancel.cancelled() => return EarlierDecision::Cancelled,
            () = gate.wait_for_drain() => return EarlierDecision::LeftForRestart,
            () = self.engine.shutdown.cancelled() => {
                return if self.survives_restart { EarlierDecision::LeftForRestart } else { EarlierDecision::Cancelled };
            }
        };
        if matches!(decision, ApprovalDecision::Later) {
            return EarlierDecision::AsksClient { call_id };
        }
        let item =
            progress.first().and_then(|progress| progress.calls.get(&call_id)).map(|running| running.item.clone());
        if let ApprovalDecision::Deny { reason } = decision {
            let output = Item::output(&call_id, aludel_agent::denied(&reason));
            self.record(&output);
            if let Some(plan) = self.choices.first_mut() {
                plan.items.push(output);
            }
            if let Some(running) = progress.first_mut().and_then(|progress| progress.calls.remove(&call_id)) {
                self.emit(0, EventKind::ToolRejected { item: Some(running.item), call_id, reason }).await;
            }
        } else if let Some(item) = item {
            self.emit(0, EventKind::ApprovalDecided { item, denied: None }).await;
        }
        // An error cancels it and is logged.
        if let Err(failure) = self.store_events(Some(TurnState::Running)).await {
            error!("{}: {}", self.in_flight.id, failure.cause.as_deref().unwrap_or(&failure.message));
        }
        EarlierDecision::GoOn
    }

    /// Runs the agents side by side until all end, or the turn is cut off or handed on.
    async fn drive_agents(&mut self, mut agents: Agents, progress: &mut [ChoiceProgress]) -> TurnResult {
        let (in_flight, shutdown) = (Arc::clone(&self.in_flight), self.engine.shutdown.clone());
        let gate = self.choices.first().and_then(|plan| plan.gate.clone());
        let drained = async || match &gate {
            Some(gate) => gate.wait_for_drain().await,
            None => pending().await,
        };
        let failed = async || match &gate {
            Some(gate) => gate.failed().await,
            None => pending().await,
        };
        let gates = self.choices.iter().enumerate().filter_map(|(choice, plan)| Some((choice, plan.gate.as_ref()?)));
        let mut pending_calls =
            select_all(gates.map(|(choice, gate)| gate.pending_calls().map(move |call_id| (choice, call_id)).boxed()));
        let sessions =
            self.choices.iter().enumerate().filter_map(|(choice, plan)| Some((choice, plan.session.as_ref()?)));
        let mut deletions: FuturesUnordered<_> = sessions
            .map(|(choice, session)| session.deleted().clone().cancelled_owned().map(move |()| choice))
            .collect();
        let mut cancelled = false;
        let mut is_left = false;
        loop {
            let next = tokio::select! {
                biased;
                () = in_flight.cancel.cancelled(), if !cancelled => None,
                // Before the end of the process, which comes at once when no client is connected.
                () = drained(), if !cancelled => {
                    is_left = true;
                    None
                }
                () = shutdown.cancelled(), if !cancelled => None,
                failure = failed(), if !cancelled => {
                    self.end_choice(0, EndReason::failed(failure), progress).await;
                    None
                }
                // Before the programs end with the sandbox.
                Some(choice) = deletions.next(), if progress.iter().any(ChoiceProgress::is_running) => {
                    if let Some(failure) = self.choices.get(choice).and_then(ChoicePlan::deletion) {
                        self.end_choice(choice, EndReason::failed(failure), progress).await;
                    }
                    agents.cancel(choice);
                    continue;
                }
                Some((choice, call_id)) = pending_calls.next() => {
                    self.approval_pending(choice, &call_id, progress).await;
                    continue;
                }
                next = agents.streams.next() => Some(next),
                () = self.pending.due(self.is_followed) => {
                    self.publish().await;
                    continue;
                }
                () = self.output_due(), if self.unstored.is_none() => {
                    if let Err(failure) = self.store_events(None).await {
                        error!("{}: {}", self.in_flight.id, failure.cause.as_deref().unwrap_or(&failure.message));
                    }
                    continue;
                }
            };
            let Some(next) = next else {
                cancelled = true;
                agents.cancel_all();
                continue;
            };
            let Some((choice, event)) = next else { break };
            if is_left {
                continue;
            }
            if self.may_try_again(choice, &event, progress) {
                if let Some(plan) = self.choices.get(choice) {
                    agents.begin(choice, plan);
                }
                continue;
            }
            let flow = match self.handle(choice, event, progress).await {
                Ok(flow) => flow,
                Err(failure) => {
                    self.end_choice(choice, EndReason::failed(failure), progress).await;
                    Flow::StopAll
                }
            };
            match flow {
                Flow::GoOn => {}
                Flow::Stop => agents.cancel(choice),
                Flow::StopAll => {
                    cancelled = true;
                    agents.cancel_all();
                }
            }
            if let Some(asked) = progress.get_mut(choice).and_then(|progress| progress.client_calls.take()) {
                match self.wait_for_client(choice, asked, agents, progress).await {
                    Ok(waits) => return TurnResult::Suspended(Box::new(waits)),
                    Err(left) => agents = left,
                }
            }
        }
        self.publish_if_followed().await;
        if is_left && !in_flight.cancel.is_cancelled() { TurnResult::LeftForRestart } else { TurnResult::Ended }
    }

    /// Returns true if the model may be asked again after it rejected the conversation before any part of an answer. Drops the older half
    /// of the conversation, up to a message of the user.
    fn may_try_again(&mut self, choice: usize, event: &AgentEvent, progress: &[ChoiceProgress]) -> bool {
        let AgentEvent::Finished(AgentEnding::Upstream(UpstreamError::Rejected { status: 400 | 413 | 422, .. })) =
            event
        else {
            return false;
        };
        let is_silent = progress.get(choice).is_some_and(|progress| progress.is_silent());
        let Some(plan) = self.choices.get_mut(choice).filter(|_| self.truncate && is_silent) else { return false };
        let half = plan.items.len().div_ceil(2);
        let next = plan.items.iter().enumerate().skip(half.max(1)).find(|(_, item)| matches!(item, Item::User(_)));
        let Some((index, _)) = next else { return false };
        plan.items.drain(..index);
        true
    }
}

/// The agents of a turn's choices, at work.
struct Agents {
    streams: SelectAll<BoxStream<'static, (usize, AgentEvent)>>,
    /// One for each choice.
    handles: Vec<AgentHandles>,
}

/// Handles on the work of an agent.
struct AgentHandles {
    cancel: CancellationToken,
    answerer: Answerer,
}

impl Agents {
    fn start(choices: &[ChoicePlan]) -> Self {
        let mut agents = Self { streams: select_all([]), handles: Vec::new() };
        for (choice, plan) in choices.iter().enumerate() {
            agents.begin(choice, plan);
        }
        agents
    }

    /// Begins a choice, or begins it again.
    fn begin(&mut self, choice: usize, plan: &ChoicePlan) {
        let stream = plan.agent.resume(plan.items.clone());
        let handles = AgentHandles { cancel: stream.canceller(), answerer: stream.answerer() };
        match self.handles.get_mut(choice) {
            Some(before) => *before = handles,
            None => self.handles.push(handles),
        }
        self.streams.push(stream.map(move |event| (choice, event)).boxed());
    }

    fn cancel(&self, choice: usize) {
        if let Some(handles) = self.handles.get(choice) {
            handles.cancel.cancel();
        }
    }

    fn cancel_all(&self) {
        self.handles.iter().for_each(|handles| handles.cancel.cancel());
    }
}

/// A program that an earlier process asked about.
pub(super) struct PendingApproval {
    pub(super) item: ItemId,
    pub(super) program: ApprovalRequest,
    /// True if a program of the turn ran before.
    pub(super) ran_code: bool,
}

/// The decision about a program that an earlier process requested.
enum EarlierDecision {
    GoOn,
    LeftForRestart,
    Cancelled,
    /// The operator allows it; the client is to decide, too.
    AsksClient {
        call_id: String,
    },
}

enum TurnResult {
    Ended,
    /// Its program waits for its client.
    Suspended(Box<suspend::SuspendedWork>),
    /// It waits for approval, and continues after a restart.
    LeftForRestart,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Run").field("id", &self.in_flight.id).finish_non_exhaustive()
    }
}
