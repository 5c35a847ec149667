//! The driver of turns: from what an agent tells to events, stored, rendered and told in this order.

use std::collections::{HashMap, HashSet};
use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::UpstreamError;
use aludel_agent::{Agent, Approval, ApprovalRequest, CutOff, Event as AgentEvent, Item};
use aludel_agent::{Budget, Call, Ending as AgentEnding};
use aludel_sandbox::Event as ExecutionEvent;
use aludel_store::{ContainerFileId, Tenant, TurnState, now_ms};
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, select_all};
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error};

use super::effects::{self, Piece};
use super::event::{Ending, Event, EventKind, ItemId, ToolCall, ToolKind};
use super::journal::Journal;
use super::render::{Documents, Flow, Frame, Render, Rendered};
use super::{End, Failure, FailureKind, Live};
use crate::Engine;
use crate::approvals::{Decider, Gate};
use crate::sessions::{Session, SessionFile, WORKSPACE};

/// Bytes of all frames of one request: they are in memory as long as somebody may follow them.
const MAX_FRAMES: usize = 256 << 20;
/// Pause between two attempts to store a request's end.
const RETRY: Duration = Duration::from_secs(5);
/// The reason of a failure of the audit log.
const UNNOTED: &str = "cannot complete the audit log";
/// The scheme of links to files of the session, as models are told to write them.
const LINK: &str = "sandbox:";

/// One request that is to be carried out: one turn or more, told to one client.
pub struct Run {
    /// The engine.
    pub engine: Arc<Engine>,
    /// The tenant that asks.
    pub tenant: Tenant,
    /// Where frames are told.
    pub live: Arc<Live>,
    /// The turns, side by side.
    pub parts: Vec<Part>,
    /// The dialect's renderer.
    pub render: Box<dyn Render>,
    /// The dialect's documents, of a request that is stored.
    pub documents: Option<Box<dyn Documents>>,
    /// The event log, of a request that is stored.
    pub journal: Option<Journal>,
    /// True if the oldest part of the conversation may be left out when it is too long for the model.
    pub truncate: bool,
    /// True if it goes on after a restart while it waits for approval.
    pub outlives: bool,
    /// Frames of the last turn's end, which are told when everything is stored.
    pub(super) held: Vec<Frame>,
    untold: Untold,
    /// The number of the next event, of a request that is not stored.
    pub(super) next: u64,
    /// The reason for which its log cannot be stored, if that is why it was cancelled.
    unstored: Option<Failure>,
}

/// The most frames that are told together.
const MAX_UNTOLD: usize = 64;
/// Bytes of frames that are told together, but for the last one: they count for nobody before.
const MAX_UNTOLD_BYTES: usize = 256 << 10;

/// Frames that were rendered, and are told when nothing more comes at once.
#[derive(Default)]
struct Untold {
    frames: Vec<Frame>,
    /// Documents that are to be stored first.
    documents: Vec<Value>,
    /// True if their events are to be stored first.
    has_milestone: bool,
}

/// One turn of a request.
pub struct Part {
    /// The model with its tools.
    pub agent: Agent,
    /// The conversation as the model gets it.
    pub items: Vec<Item>,
    /// The session of its programs.
    pub session: Option<Arc<Session>>,
    /// The gate that its programs pass.
    pub gate: Option<Arc<Gate>>,
    /// The agreement about its session.
    pub agreement: Agreement,
    /// The purpose under which files that its programs make are kept in the Files API, too, where clients look for them there.
    pub purpose: Option<&'static str>,
}

/// The fate of a turn's session at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agreement {
    /// It stays as it is.
    Stays,
    /// It was made for this turn. It is removed when no program ran or the turn was cut; `lingers` says whether its sandbox is otherwise
    /// kept for a moment only.
    Own {
        /// True if its sandbox is kept for a moment only.
        lingers: bool,
    },
    /// It is somebody else's, too, and stays; `lingers` is as above.
    Shared {
        /// True if its sandbox is kept for a moment only.
        lingers: bool,
    },
}

impl Run {
    /// A request of these turns, which is neither stored nor goes on after a restart.
    pub fn new(
        engine: &Arc<Engine>,
        tenant: &Tenant,
        live: Arc<Live>,
        parts: Vec<Part>,
        render: Box<dyn Render>,
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            tenant: tenant.clone(),
            live,
            parts,
            render,
            documents: None,
            journal: None,
            truncate: false,
            outlives: false,
            held: Vec::new(),
            untold: Untold::default(),
            next: 0,
            unstored: None,
        }
    }
}

impl Run {
    /// Gives back what was taken for a request that could not be begun, and forgets it.
    pub async fn abandon(self) {
        for part in &self.parts {
            part.abandon(&self.engine, &self.tenant).await;
        }
        if self.journal.is_some()
            && let Err(error) = self.engine.store.delete_turn(&self.tenant, &self.live.id).await
        {
            error!("cannot remove {}: {error}", self.live.id);
        }
    }
}

impl Part {
    /// Gives back what was taken for it.
    pub async fn abandon(&self, engine: &Engine, tenant: &Tenant) {
        let Some(session) = &self.session else { return };
        session.release().await;
        if matches!(self.agreement, Agreement::Own { .. })
            && let Err(error) = engine.sessions.delete(tenant, session.id()).await
        {
            error!("cannot remove {}: {error}", session.id());
        }
    }
}

/// A turn's state between two events.
#[derive(Default)]
struct Progress {
    /// The message that is being written.
    message: Option<(ItemId, String)>,
    thought: Option<ItemId>,
    /// Calls that have not ended, by the ids of the model's server.
    calls: HashMap<String, Running>,
    /// Calls that the client approved in this request.
    approved: HashSet<String>,
    round: u32,
    /// True if it called a tool of ours.
    has_called: bool,
    ran_code: bool,
    has_ended: bool,
    /// The ids under which the newest versions of files that its programs made are kept in the Files API.
    kept: HashMap<ContainerFileId, String>,
}

struct Running {
    item: ItemId,
    input: String,
    is_running: bool,
    /// Files of what it showed.
    figures: Vec<SessionFile>,
}

impl Run {
    /// Makes the request known: whoever is told its id finds it.
    pub async fn create(&mut self, background: bool) -> Result<(), Failure> {
        self.tell(0, EventKind::Created { background }).await;
        if let Some(failure) = self.unstored.take() {
            return Err(failure);
        }
        self.save().await?;
        self.flush(None).await
    }

    /// Carries the request out to its end.
    pub async fn carry_out(mut self) {
        self.tell(0, EventKind::Started).await;
        self.carry_on(None).await;
    }

    /// Carries the request out to its end, from a program on that waits for the operator's decision, if one does.
    pub(super) async fn carry_on(mut self, waiting: Option<Waiting>) {
        let mut progress: Vec<Progress> = self.parts.iter().map(Progress::of).collect();
        if let Some(Waiting { item, program, ran_code }) = waiting {
            if let Some(progress) = progress.first_mut() {
                progress.resume(item, &program, ran_code);
            }
            match self.decided(program, &mut progress).await {
                Decided::GoOn => {}
                Decided::Outlived => return self.outlive().await,
                Decided::Cancelled => {
                    self.end_turn(0, Ending::Cancelled, &mut progress).await;
                }
                Decided::AsksClient { call_id } => {
                    let items = self.parts.first().map(|part| part.items.as_slice()).unwrap_or_default();
                    let programs = items.iter().filter_map(|item| match item {
                        Item::Call(call) if call.id == call_id => Some(tool_call(call.clone())),
                        _ => None,
                    });
                    let ending = Ending::WaitsForClient { programs: programs.collect(), calls: Vec::new() };
                    self.end_turn(0, ending, &mut progress).await;
                }
            }
        }
        if !progress.iter().all(|progress| progress.has_ended) && self.turns(&mut progress).await == Outcome::Outlived {
            return self.outlive().await;
        }
        let ran_code = progress.iter().any(|progress| progress.ran_code);
        let is_cut = self.render.failure().is_some() || self.live.cancel.is_cancelled();
        for (part, progress) in self.parts.iter().zip(&progress) {
            if let Some(gate) = &part.gate
                && let Err(error) = gate.cut_off().await
            {
                error!("{}: a program has no end in the audit log yet: {error}", self.live.id);
                self.engine.tasks.spawn(Arc::clone(gate).cut_off_later().in_current_span());
            }
            match (part.agreement, &part.session) {
                (Agreement::Stays, Some(session)) => session.release().await,
                // What nobody was told of, or nobody waits for, is of no use.
                (Agreement::Own { .. } | Agreement::Shared { .. }, Some(_)) if is_cut || !progress.has_called => {
                    part.abandon(&self.engine, &self.tenant).await;
                }
                (Agreement::Own { lingers: true } | Agreement::Shared { lingers: true }, Some(session)) => {
                    session.linger(self.engine.settings.linger);
                }
                _ => {}
            }
        }
        self.close(ran_code).await;
    }

    /// Ends the request: everything is stored before its last frames are told.
    pub(super) async fn close(mut self, ran_code: bool) {
        self.settle().await;
        let mut frames = std::mem::take(&mut self.held);
        frames.extend(self.event(0, EventKind::Closed).await.frames);
        let document = self.render.document();
        let stored = self.store_end(&document).await;
        let unstored = stored.as_ref().is_err_and(may_pass).then(|| document.clone());
        let failure = self.render.failure();
        // Only a client that was told of no program may ask again.
        let failure = failure.map(|failure| Failure { should_retry: ran_code.then_some(false), ..failure });
        self.live.tell(frames);
        let end = End { document, failure };
        if self.journal.is_some() && stored.is_ok() {
            return self.engine.live.end_stored(&self.live, end);
        }
        self.engine.live.end(&self.live, end, ran_code);
        if let Err(failure) = stored {
            error!("{}: {}", self.live.id, failure.cause.as_deref().unwrap_or(&failure.message));
        }
        if let Some(document) = unstored {
            let tasks = self.engine.tasks.clone();
            tasks.spawn(self.store_end_later(document).in_current_span());
        }
    }

    /// Stores the end. The log first: what a client was told is there even if we are killed now. Then the document, with its status last of
    /// all: whoever polls for it goes on at once. The turn has ended when both are there; until then recovery finds it and completes the
    /// document.
    async fn store_end(&mut self, document: &Value) -> Result<(), Failure> {
        // What could not be stored is stored with the state.
        let _tried_again = self.flush(None).await;
        if let Some(documents) = &self.documents {
            documents.finish(document.clone()).await?;
        }
        self.flush(Some(TurnState::Ended)).await
    }

    /// Stores the end as soon as that is possible again: whoever polls for the request waits for it.
    async fn store_end_later(mut self, document: Value) {
        // Nobody needs its sessions any more.
        self.parts.clear();
        loop {
            tokio::select! {
                () = sleep(RETRY) => {}
                // The next start ends it.
                () = self.engine.closing.cancelled() => return,
            }
            if !self.store_end(&document).await.as_ref().is_err_and(may_pass) {
                return;
            }
        }
    }

    /// Leaves the request to the next start: it waits for approval.
    async fn outlive(mut self) {
        if let Some(journal) = &mut self.journal
            && let Err(failure) = journal.hand_on(&self.engine.store, None).await
        {
            error!("{}: {failure}", self.live.id);
        }
        let id = &self.live.id;
        let message = format!(
            "The server is ending, and a program of {id} waits for approval; it goes on when the server is back: retrieve {id} then."
        );
        // Asked for again, it would be another one.
        let failure = Failure { should_retry: Some(false), ..Failure::new(FailureKind::Unavailable, message) };
        self.live.end(End { document: self.render.document(), failure: Some(failure) });
    }

    /// Waits for the decision about a program that an earlier process asked about.
    async fn decided(&mut self, program: ApprovalRequest, progress: &mut [Progress]) -> Decided {
        let Some(gate) = self.parts.first().and_then(|part| part.gate.clone()) else { return Decided::Cancelled };
        let call_id = program.call_id.clone();
        let decision = tokio::select! {
            decision = gate.pass(program) => decision,
            () = self.live.cancel.cancelled() => return Decided::Cancelled,
            () = gate.outlives() => return Decided::Outlived,
            () = self.engine.closing.cancelled() => {
                return if self.outlives { Decided::Outlived } else { Decided::Cancelled };
            }
        };
        if matches!(decision, Approval::Later) {
            return Decided::AsksClient { call_id };
        }
        let item =
            progress.first().and_then(|progress| progress.calls.get(&call_id)).map(|running| running.item.clone());
        if let Approval::Deny { reason } = decision {
            let output = Item::output(&call_id, aludel_agent::denied(&reason));
            self.keep(&output);
            if let Some(part) = self.parts.first_mut() {
                part.items.push(output);
            }
            if let Some(running) = progress.first_mut().and_then(|progress| progress.calls.remove(&call_id)) {
                self.tell(0, EventKind::ToolRejected { item: Some(running.item), call_id, reason }).await;
            }
        } else if let Some(item) = item {
            self.tell(0, EventKind::ApprovalDecided { item, refused: None }).await;
        }
        // An error cancels it, and is in the log.
        if let Err(failure) = self.flush(Some(TurnState::Running)).await {
            error!("{}: {}", self.live.id, failure.cause.as_deref().unwrap_or(&failure.message));
        }
        Decided::GoOn
    }

    async fn turns(&mut self, progress: &mut [Progress]) -> Outcome {
        let mut cancels: Vec<CancellationToken> = Vec::new();
        let mut streams: Vec<BoxStream<'static, (usize, AgentEvent)>> = Vec::new();
        for (turn, part) in self.parts.iter().enumerate() {
            let stream = part.agent.resume(part.items.clone());
            cancels.push(stream.canceller());
            streams.push(stream.map(move |event| (turn, event)).boxed());
        }
        let mut streams = select_all(streams);
        let (live, closing) = (Arc::clone(&self.live), self.engine.closing.clone());
        let gate = self.parts.first().and_then(|part| part.gate.clone());
        let outlives = async || match &gate {
            Some(gate) => gate.outlives().await,
            None => pending().await,
        };
        let failed = async || match &gate {
            Some(gate) => gate.failed().await,
            None => pending().await,
        };
        let cancel_all = |cancels: &[CancellationToken]| cancels.iter().for_each(CancellationToken::cancel);
        let mut cancelled = false;
        let mut outlived = false;
        loop {
            let next = tokio::select! {
                biased;
                () = live.cancel.cancelled(), if !cancelled => None,
                // Before the end of the process, which comes at once when no client is connected.
                () = outlives(), if !cancelled => {
                    outlived = true;
                    None
                }
                () = closing.cancelled(), if !cancelled => None,
                failure = failed(), if !cancelled => {
                    self.end_turn(0, Ending::failed(failure), progress).await;
                    None
                }
                next = streams.next() => Some(next),
                () = ready(()), if !self.untold.frames.is_empty() || self.untold.has_milestone => {
                    self.settle().await;
                    continue;
                }
            };
            let Some(next) = next else {
                cancelled = true;
                cancel_all(&cancels);
                continue;
            };
            let Some((turn, event)) = next else { break };
            if outlived {
                continue;
            }
            if self.may_try_again(turn, &event, progress) {
                let Some(part) = self.parts.get(turn) else { continue };
                let stream = part.agent.resume(part.items.clone());
                if let Some(cancel) = cancels.get_mut(turn) {
                    *cancel = stream.canceller();
                }
                streams.push(stream.map(move |event| (turn, event)).boxed());
                continue;
            }
            let flow = match self.see(turn, event, progress).await {
                Ok(flow) => flow,
                Err(failure) => {
                    self.end_turn(turn, Ending::failed(failure), progress).await;
                    Flow::StopAll
                }
            };
            match flow {
                Flow::GoOn => {}
                Flow::Stop => cancels.get(turn).into_iter().for_each(CancellationToken::cancel),
                Flow::StopAll => {
                    cancelled = true;
                    cancel_all(&cancels);
                }
            }
        }
        self.settle().await;
        if outlived && !live.cancel.is_cancelled() { Outcome::Outlived } else { Outcome::Ended }
    }

    /// Leaves out the older half of a conversation that is too long for its model, up to a message of the user's, when nothing was told.
    fn may_try_again(&mut self, turn: usize, event: &AgentEvent, progress: &[Progress]) -> bool {
        let AgentEvent::Finished(AgentEnding::Upstream(UpstreamError::Rejected { status: 400 | 413 | 422, .. })) =
            event
        else {
            return false;
        };
        let is_untold = progress.get(turn).is_some_and(|progress| progress.is_untold());
        let Some(part) = self.parts.get_mut(turn).filter(|_| self.truncate && is_untold) else { return false };
        let half = part.items.len().div_ceil(2);
        let next = part.items.iter().enumerate().skip(half.max(1)).find(|(_, item)| matches!(item, Item::User(_)));
        let Some((index, _)) = next else { return false };
        part.items.drain(..index);
        true
    }

    /// Takes one event of an agent: stores its effects, then tells of it.
    async fn see(&mut self, turn: usize, event: AgentEvent, all: &mut [Progress]) -> Result<Flow, Failure> {
        let Some(progress) = all.get_mut(turn) else { return Ok(Flow::GoOn) };
        if progress.has_ended {
            return Ok(Flow::GoOn);
        }
        let flow = match event {
            AgentEvent::Text(delta) => {
                progress.thought = None;
                let (item, text) = progress.message.get_or_insert_with(|| (ItemId::new(), String::new()));
                text.push_str(&delta);
                let item = item.clone();
                self.queue(turn, EventKind::Text { item, delta }).await
            }
            AgentEvent::Reasoning(delta) => {
                self.end_message(turn, progress).await;
                let item = progress.thought.get_or_insert_with(ItemId::new).clone();
                self.queue(turn, EventKind::Reasoning { item, delta }).await
            }
            AgentEvent::CodeStarted { call_id } => {
                progress.thought = None;
                self.end_message(turn, progress).await;
                let item = progress.start(&call_id);
                self.queue(turn, EventKind::ToolStarted { item, call_id, tool: ToolKind::Python }).await
            }
            AgentEvent::CodeDelta { call_id, text: delta } => match progress.calls.get(&call_id) {
                Some(call) => {
                    let item = call.item.clone();
                    self.queue(turn, EventKind::ToolInput { item, delta }).await
                }
                None => Flow::GoOn,
            },
            AgentEvent::CodeFinished { call_id, code } => {
                let item = match progress.calls.get_mut(&call_id) {
                    Some(call) => {
                        call.input.clone_from(&code);
                        call.item.clone()
                    }
                    None => {
                        let item = progress.start(&call_id);
                        if let Some(call) = progress.calls.get_mut(&call_id) {
                            call.input.clone_from(&code);
                        }
                        item
                    }
                };
                self.queue(turn, EventKind::ToolReady { item, call_id, tool: ToolKind::Python, input: code }).await
            }
            AgentEvent::ApprovalRequested { call_id } => {
                let holds = self.parts.get(turn).and_then(|part| part.gate.as_ref()).is_some_and(|gate| gate.holds());
                let Some(call) = progress.calls.get(&call_id) else { return Ok(Flow::GoOn) };
                let item = call.item.clone();
                let flow = self.queue(turn, EventKind::ApprovalRequested { item }).await;
                if holds {
                    // The program is shown to whoever decides, and found after a restart.
                    self.hold().await?;
                    self.save().await?;
                }
                flow
            }
            AgentEvent::ApprovalDecided { call_id, denied } => {
                let Some(call) = progress.calls.get(&call_id) else { return Ok(Flow::GoOn) };
                let item = call.item.clone();
                if denied.is_some() {
                    progress.calls.remove(&call_id);
                }
                let flow = self.queue(turn, EventKind::ApprovalDecided { item, refused: denied }).await;
                self.flush(Some(TurnState::Running)).await?;
                flow
            }
            AgentEvent::Execution { call_id, event } => self.executed(turn, &call_id, event, progress).await?,
            AgentEvent::CallRejected { call_id, reason } => {
                let item = progress.calls.remove(&call_id).map(|call| call.item);
                self.queue(turn, EventKind::ToolRejected { item, call_id, reason }).await
            }
            AgentEvent::Usage(usage) => {
                let round = progress.round;
                self.queue(turn, EventKind::Usage { round, usage }).await
            }
            AgentEvent::RoundStarted { number } => {
                progress.round = number;
                self.queue(turn, EventKind::RoundStarted { number }).await
            }
            AgentEvent::Retrying { wait, reason } => {
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                self.queue(turn, EventKind::Retrying { wait_ms, reason }).await
            }
            AgentEvent::Item(item) => {
                self.keep(&item);
                Flow::GoOn
            }
            AgentEvent::Observation { call_id, text } => self.queue(turn, EventKind::Observed { call_id, text }).await,
            AgentEvent::Finished(ending) => {
                let ending = self.ending(ending);
                return Ok(self.end_turn(turn, ending, all).await);
            }
        };
        if self.live.bytes() > MAX_FRAMES {
            let message = format!("The answer is larger than {} MB.", MAX_FRAMES >> 20);
            return Err(Failure::new(FailureKind::TooLarge, message));
        }
        Ok(flow)
    }

    /// Takes one event of an execution.
    async fn executed(
        &mut self,
        turn: usize,
        call_id: &str,
        event: ExecutionEvent,
        progress: &mut Progress,
    ) -> Result<Flow, Failure> {
        progress.ran_code = true;
        let Some(call) = progress.calls.get_mut(call_id) else { return Ok(Flow::GoOn) };
        let part = self.parts.get(turn);
        let (gate, session) = (part.and_then(|part| part.gate.clone()), part.and_then(|part| part.session.clone()));
        let purpose = part.and_then(|part| part.purpose);
        let item = call.item.clone();
        if !std::mem::replace(&mut call.is_running, true) {
            if progress.approved.contains(call_id)
                && let Some(gate) = &gate
            {
                gate.approved_by_client(call_id, &call.input).await.map_err(Failure::while_doing(UNNOTED))?;
            }
            self.queue(turn, EventKind::ToolRunning { item: item.clone() }).await;
            self.flush(None).await?;
        }
        let place = effects::Place { session: session.as_deref(), purpose };
        match effects::piece(event, place, &mut call.figures).await? {
            Piece::Output(output) => Ok(self.queue(turn, EventKind::Output { item, output }).await),
            Piece::Finished(finished) => {
                let figures = std::mem::take(&mut call.figures);
                progress.calls.remove(call_id);
                let mut failure = None;
                if let Some(gate) = &gate {
                    failure = gate.ended(call_id, &finished).await.map_err(Failure::while_doing(UNNOTED)).err();
                }
                let (outcome, stored) = effects::store(finished, place, figures).await;
                for file in &outcome.files {
                    progress.kept.extend(file.kept_as.clone().map(|kept| (file.id.clone(), kept)));
                }
                if let Err(error) = stored {
                    failure.get_or_insert(Failure::while_doing("cannot store what the program made")(error));
                }
                let flow = self.queue(turn, EventKind::ToolEnded { item, outcome }).await;
                // What it printed is told all the same.
                failure.map_or(Ok(flow), Err)
            }
        }
    }

    /// Ends a message that another item follows.
    async fn end_message(&mut self, turn: usize, progress: &mut Progress) {
        if let Some((item, text)) = progress.message.take() {
            let linked = self.linked(turn, &text, &mut progress.kept).await;
            self.queue(turn, EventKind::TextEnded { item, linked }).await;
        }
    }

    /// Ends a turn.
    async fn end_turn(&mut self, turn: usize, mut ending: Ending, all: &mut [Progress]) -> Flow {
        let Some(progress) = all.get_mut(turn).filter(|progress| !progress.has_ended) else { return Flow::GoOn };
        progress.has_ended = true;
        if !matches!(ending, Ending::Failed { .. })
            && let Some(failure) = self.unstored.take()
        {
            ending = Ending::failed(failure);
        }
        if let Ending::Failed { failure, cause } = &mut ending {
            // Here, for streams and the background, too: whoever answers the client has nothing left to tell.
            *cause = failure.cause.take();
            error!("{}: {}", self.live.id, cause.as_deref().unwrap_or(&failure.message));
        }
        let text = progress.message.take().map(|(_, text)| text).unwrap_or_default();
        let linked = self.linked(turn, &text, &mut progress.kept).await;
        let is_last = all.iter().all(|progress| progress.has_ended);
        let waits = matches!(ending, Ending::WaitsForClient { .. });
        let rendered = self.event(turn, EventKind::Ended { item: ItemId::new(), ending, linked }).await;
        if waits && let Some(documents) = &self.documents {
            // What the client is to answer is there before it is told.
            if let Err(error) = documents.hand_over(self.render.document()).await {
                error!("{}: {error}", self.live.id);
            }
        }
        if is_last {
            self.held = rendered.frames;
        } else {
            self.untold.frames.extend(rendered.frames);
        }
        rendered.flow
    }

    /// The files of the session that a text names.
    async fn linked(&self, turn: usize, text: &str, kept: &mut HashMap<ContainerFileId, String>) -> Vec<SessionFile> {
        let part = self.parts.get(turn);
        let Some(session) =
            part.and_then(|part| part.session.as_ref()).filter(|_| text.contains(&format!("{LINK}{WORKSPACE}/")))
        else {
            return Vec::new();
        };
        // Without them no link is found, and the answer is still the answer.
        let files = session.files().await.unwrap_or_default();
        let named = files.into_iter().filter(|file| text.contains(&format!("{LINK}{}", file.path)));
        let mut linked: Vec<SessionFile> = named.collect();
        let place = effects::Place { session: Some(session), purpose: part.and_then(|part| part.purpose) };
        for file in &mut linked {
            file.kept_as = kept.get(&file.id).cloned();
            if file.kept_as.is_none() && place.keep(std::slice::from_mut(file)).await.is_ok() {
                kept.extend(file.kept_as.clone().map(|id| (file.id.clone(), id)));
            }
        }
        linked
    }

    fn ending(&self, ending: AgentEnding) -> Ending {
        let calls = |calls: Vec<Call>| calls.into_iter().map(tool_call).collect();
        match ending {
            AgentEnding::Answered => Ending::Answered,
            AgentEnding::Refused => Ending::Refused,
            AgentEnding::CutOff(CutOff::Length) => Ending::TooLong,
            AgentEnding::CutOff(CutOff::Filter) => Ending::Filtered,
            AgentEnding::Budget(budget @ Budget::Tokens(_)) => Ending::TokenBudget { words: budget.to_string() },
            AgentEnding::Budget(budget) => Ending::Budget { words: budget.to_string() },
            AgentEnding::ClientTools(of_client) => {
                Ending::WaitsForClient { programs: Vec::new(), calls: calls(of_client) }
            }
            AgentEnding::AwaitsApproval { programs, client_tools } => {
                Ending::WaitsForClient { programs: calls(programs), calls: calls(client_tools) }
            }
            AgentEnding::Upstream(error) => Ending::failed(Failure::of_upstream(&error)),
            AgentEnding::Sandbox(reason) => Ending::failed(Failure::of_sandbox(reason)),
            AgentEnding::Cancelled => Ending::Cancelled,
        }
    }

    /// Makes an event, renders it and tells it.
    pub(super) async fn tell(&mut self, turn: usize, kind: EventKind) -> Flow {
        let flow = self.queue(turn, kind).await;
        self.settle().await;
        flow
    }

    /// Makes an event and renders it. It is told with the others that come at the same moment, by [`Run::settle`].
    async fn queue(&mut self, turn: usize, kind: EventKind) -> Flow {
        self.untold.has_milestone |= !kind.is_piece();
        let rendered = self.event(turn, kind).await;
        self.untold.frames.extend(rendered.frames);
        self.untold.documents.extend(rendered.save);
        let bytes: usize = self.untold.frames.iter().map(|frame| frame.text.len()).sum();
        if self.untold.frames.len() >= MAX_UNTOLD || bytes >= MAX_UNTOLD_BYTES {
            self.settle().await;
        }
        rendered.flow
    }

    /// Tells what is untold. What followers are told at a milestone is stored before they are.
    async fn settle(&mut self) {
        let Untold { frames, documents, has_milestone } = std::mem::take(&mut self.untold);
        if has_milestone && let Err(failure) = self.flush(None).await {
            error!("{}: {}", self.live.id, failure.cause.as_deref().unwrap_or(&failure.message));
        }
        for document in documents {
            if let Some(documents) = &self.documents
                && let Err(error) = documents.save(document).await
            {
                // All of them are stored at the end once more.
                error!("{}: {error}", self.live.id);
            }
        }
        self.live.tell(frames);
    }

    /// Makes an event and renders it. It is stored with the next flush. Where there is no room for it, there is no such event, and the request
    /// is cancelled.
    pub(super) async fn event(&mut self, turn: usize, kind: EventKind) -> Rendered {
        let sequence = self.journal.as_ref().map_or(self.next, Journal::next);
        let event = Event { sequence, at_ms: now_ms(), turn, kind };
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.push(&self.engine.store, &event).await
        {
            self.live.cancel.cancel();
            self.unstored.get_or_insert_with(|| error.into());
            return Rendered::default();
        }
        self.next = sequence + 1;
        let rendered = self.render.render(&event);
        if let Some(journal) = &mut self.journal
            && let Some(last) = rendered.frames.last()
            && let Err(failure) = journal.reserve(&self.engine.store, last).await
        {
            error!("{}: {failure}", self.live.id);
        }
        rendered
    }

    fn keep(&mut self, item: &Item) {
        if let Some(journal) = &mut self.journal {
            journal.push_item(item);
        }
    }

    async fn flush(&mut self, state: Option<TurnState>) -> Result<(), Failure> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let Err(error) = journal.flush(&self.engine.store, state).await else { return Ok(()) };
        self.live.cancel.cancel();
        let failure = Failure::while_doing("cannot store what happened")(error);
        self.unstored.get_or_insert_with(|| failure.clone());
        Err(failure)
    }

    /// Stores that it waits for approval. Nothing is told meanwhile, so another process may go on without a gap.
    async fn hold(&mut self) -> Result<(), Failure> {
        match &mut self.journal {
            Some(journal) => Ok(journal.hand_on(&self.engine.store, Some(TurnState::WaitingApproval)).await?),
            None => Ok(()),
        }
    }

    async fn save(&self) -> Result<(), Failure> {
        match &self.documents {
            Some(documents) => Ok(documents.save(self.render.document()).await?),
            None => Ok(()),
        }
    }
}

impl Progress {
    fn of(part: &Part) -> Self {
        let by_client = part.gate.as_ref().is_some_and(|gate| gate.decider() == Decider::Client);
        let mut open = HashSet::new();
        for item in part.items.iter().filter(|_| by_client) {
            match item {
                Item::Call(call) => {
                    open.insert(call.id.clone());
                }
                Item::Output(output) => {
                    open.remove(&output.call_id);
                }
                _ => {}
            }
        }
        Self { approved: open, ..Self::default() }
    }

    /// Returns true if nothing of an answer was told.
    fn is_untold(&self) -> bool {
        self.message.is_none() && self.thought.is_none() && self.calls.is_empty() && !self.ran_code
    }

    /// Knows a program that waits.
    fn resume(&mut self, item: ItemId, program: &ApprovalRequest, ran_code: bool) {
        (self.has_called, self.ran_code) = (true, ran_code);
        let call = Running { item, input: program.code.clone(), is_running: false, figures: Vec::new() };
        self.calls.insert(program.call_id.clone(), call);
    }

    fn start(&mut self, call_id: &str) -> ItemId {
        self.has_called = true;
        let item = ItemId::new();
        let call = Running { item: item.clone(), input: String::new(), is_running: false, figures: Vec::new() };
        self.calls.insert(call_id.to_owned(), call);
        item
    }
}

impl EventKind {
    /// A piece of a text or an output: told at once, and stored with the next milestone.
    fn is_piece(&self) -> bool {
        matches!(
            self,
            Self::Text { .. }
                | Self::Reasoning { .. }
                | Self::ToolInput { .. }
                | Self::Output { .. }
                | Self::Observed { .. }
                | Self::Usage { .. }
        )
    }
}

/// A program that an earlier process asked about.
pub(super) struct Waiting {
    pub(super) item: ItemId,
    pub(super) program: ApprovalRequest,
    /// True if a program of the turn ran before.
    pub(super) ran_code: bool,
}

/// The decision about a program that an earlier process asked about.
enum Decided {
    GoOn,
    Outlived,
    Cancelled,
    /// The operator allows it; the client is to decide, too.
    AsksClient {
        call_id: String,
    },
}

#[derive(PartialEq, Eq)]
enum Outcome {
    Ended,
    /// It waits for approval, and goes on after a restart.
    Outlived,
}

fn tool_call(call: Call) -> ToolCall {
    ToolCall { item: ItemId::new(), call_id: call.id, name: call.name, arguments: call.arguments }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Run").field("id", &self.live.id).finish_non_exhaustive()
    }
}

/// Returns true if what could not be stored may be later.
fn may_pass(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::DiskFull | FailureKind::Storage | FailureKind::StorageFull)
}
