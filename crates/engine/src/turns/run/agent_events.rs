//! Conversion of agents' events: their effects are stored, then the engine's events are published.

use std::collections::{HashMap, HashSet};

use aludel_agent::{
    ApprovalRequest, Budget, Call, CutOff, Ending as AgentEnding, Event as AgentEvent, Item, ProgramTool,
};
use aludel_sandbox::{ClientCall, ExecutionEvent};
use aludel_store::{MeteredWork, SessionFileId, TurnState};
use tracing::error;

use super::{ChoicePlan, Run};
use crate::approvals::Decider;
use crate::permits::NoRoom;
use crate::sessions::{LINK, SessionFile, WORKSPACE, has_link};
use crate::turns::effects::{self, ExecutionPiece};
use crate::turns::event::{EndReason, EventKind, ItemId, OutputPiece, ToolCall, ToolKind};
use crate::turns::render::Flow;
use crate::turns::{Failure, FailureKind};

/// Bytes of all frames of one request, which are in memory as long as it may have followers.
const MAX_FRAMES: usize = 128 << 20;
/// The reason of a failure of the audit log.
const UNNOTED: &str = "cannot complete the audit log";

/// A choice's state between two events.
#[derive(Default)]
pub(super) struct ChoiceProgress {
    /// The message that is being written.
    pub(super) message: Option<OpenMessage>,
    /// Text of this round, if the answer has a format: it is the answer only if no program follows, and clients parse all of it.
    held: Option<String>,
    pub(super) reasoning: Option<ItemId>,
    /// Calls that have not ended, by the ids of the model's server.
    pub(super) calls: HashMap<String, RunningCall>,
    /// Calls that the client approved in this request.
    pub(super) approved: HashSet<String>,
    pub(super) round: u32,
    /// True if it called a tool of ours.
    pub(super) has_called: bool,
    pub(super) ran_code: bool,
    pub(super) has_ended: bool,
    /// Calls that its program made and waits for.
    pub(super) client_calls: Option<PendingClientCalls>,
    /// The ids of the newest copies of its programs' files among the tenant's files.
    pub(super) file_ids: HashMap<SessionFileId, String>,
}

/// A message that is being written.
pub(super) struct OpenMessage {
    item: ItemId,
    text: String,
    is_refusal: bool,
}

/// Calls of the client's tools that a program made.
pub(super) struct PendingClientCalls {
    /// The call of the program, by the id of the model's server.
    pub(super) call_id: String,
    pub(super) calls: Vec<ClientCall>,
}

pub(super) struct RunningCall {
    pub(super) item: ItemId,
    pub(super) tool: ToolKind,
    /// All of its output, if it may wait for its client and go on in a later request.
    pub(super) output: Vec<OutputPiece>,
    pub(super) input: String,
    pub(super) is_running: bool,
    /// Files of the values that it displayed.
    pub(super) figures: Vec<SessionFile>,
}

impl Run {
    /// Handles one event of an agent: stores its effects, then emits the engine's event.
    pub(super) async fn handle(
        &mut self,
        choice: usize,
        event: AgentEvent,
        all: &mut [ChoiceProgress],
    ) -> Result<Flow, Failure> {
        let Some(progress) = all.get_mut(choice) else { return Ok(Flow::GoOn) };
        if progress.has_ended {
            return Ok(Flow::GoOn);
        }
        let flow = match event {
            AgentEvent::Text(delta) => match &mut progress.held {
                Some(held) => {
                    held.push_str(&delta);
                    Flow::GoOn
                }
                None => {
                    let item = self.go_on_message(choice, progress, &delta, false).await;
                    self.queue(choice, EventKind::Text { item, delta }).await
                }
            },
            AgentEvent::Refusal(delta) => {
                let item = self.go_on_message(choice, progress, &delta, true).await;
                self.queue(choice, EventKind::Refusal { item, delta }).await
            }
            AgentEvent::Reasoning(delta) => {
                self.end_message(choice, progress).await;
                let item = progress.reasoning.get_or_insert_with(ItemId::new).clone();
                self.queue(choice, EventKind::Reasoning { item, delta }).await
            }
            AgentEvent::WritingStarted { call_id, tool } => {
                progress.reasoning = None;
                progress.drop_held();
                self.end_message(choice, progress).await;
                let item = progress.start(&call_id, kind_of(tool));
                self.queue(choice, EventKind::ToolStarted { item, call_id, tool: kind_of(tool) }).await
            }
            AgentEvent::CodeDelta { call_id, text: delta } => match progress.calls.get(&call_id) {
                Some(call) => {
                    let item = call.item.clone();
                    self.queue(choice, EventKind::ToolInput { item, delta }).await
                }
                None => Flow::GoOn,
            },
            AgentEvent::CodeWritten { call_id, tool, input, code } => {
                progress.drop_held();
                let item = progress.written(&call_id, kind_of(tool), &code);
                self.queue(choice, EventKind::ToolReady { item, call_id, tool: kind_of(tool), input }).await
            }
            AgentEvent::ApprovalRequested { call_id } => self.approval_requested(choice, &call_id, progress).await?,
            AgentEvent::ApprovalDecided { call_id, denied } => {
                self.approval_decided(choice, &call_id, denied, progress).await?
            }
            AgentEvent::ApprovalGiven { call_id } => self.approval_given(choice, &call_id, progress).await?,
            AgentEvent::ExecutionStarted { call_id } => self.running(choice, &call_id, progress).await?,
            AgentEvent::Execution { call_id, event } => self.executed(choice, &call_id, event, progress).await?,
            AgentEvent::CallRejected { call_id, reason } => {
                let item = progress.calls.remove(&call_id).map(|call| call.item);
                self.queue(choice, EventKind::ToolRejected { item, call_id, reason }).await
            }
            AgentEvent::Usage(usage) => {
                self.count(
                    choice,
                    MeteredWork { input_tokens: usage.input, output_tokens: usage.output, ..MeteredWork::default() },
                );
                let round = progress.round;
                self.queue(choice, EventKind::Usage { round, usage }).await
            }
            AgentEvent::RoundStarted { number } => {
                progress.round = number;
                progress.drop_held();
                self.queue(choice, EventKind::RoundStarted { number }).await
            }
            AgentEvent::Retrying { wait, reason } => {
                let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                self.queue(choice, EventKind::Retrying { wait_ms, reason }).await
            }
            AgentEvent::Item(item) => {
                self.record(&item);
                Flow::GoOn
            }
            AgentEvent::Observation { call_id, text } => {
                self.queue(choice, EventKind::Observed { call_id, text }).await
            }
            AgentEvent::Finished(ending) => {
                let ending = self.ending(choice, ending);
                return Ok(self.end_choice(choice, ending, all).await);
            }
        };
        if self.in_flight.bytes() > MAX_FRAMES {
            let message = format!("The answer is larger than {} MB.", MAX_FRAMES >> 20);
            return Err(Failure::new(FailureKind::TooLarge, message));
        }
        self.in_flight.count_memory().map_err(no_memory)?;
        Ok(flow)
    }

    async fn approval_requested(
        &mut self,
        choice: usize,
        call_id: &str,
        progress: &ChoiceProgress,
    ) -> Result<Flow, Failure> {
        let may_wait = self.choices.get(choice).and_then(|plan| plan.gate.as_ref()).is_some_and(|gate| gate.may_wait());
        let Some(call) = progress.calls.get(call_id) else { return Ok(Flow::GoOn) };
        let flow = self.queue(choice, EventKind::ApprovalRequested { item: call.item.clone() }).await;
        if may_wait {
            // People who decide see the program, and it is found after a restart.
            self.store_waiting().await?;
            self.save().await?;
        }
        Ok(flow)
    }

    /// Tells that the operator has been asked about a call.
    pub(super) async fn approval_pending(&mut self, choice: usize, call_id: &str, progress: &[ChoiceProgress]) {
        let Some(call) = progress.get(choice).and_then(|progress| progress.calls.get(call_id)) else { return };
        self.emit(choice, EventKind::ApprovalPending { item: call.item.clone() }).await;
    }

    async fn approval_decided(
        &mut self,
        choice: usize,
        call_id: &str,
        denied: Option<String>,
        progress: &mut ChoiceProgress,
    ) -> Result<Flow, Failure> {
        let Some(call) = progress.calls.get(call_id) else { return Ok(Flow::GoOn) };
        let item = call.item.clone();
        if denied.is_some() {
            progress.calls.remove(call_id);
        }
        let flow = self.queue(choice, EventKind::ApprovalDecided { item, denied }).await;
        self.store_events(Some(TurnState::Running)).await?;
        Ok(flow)
    }

    /// Records the client's approval of a program that is about to start.
    async fn approval_given(
        &mut self,
        choice: usize,
        call_id: &str,
        progress: &mut ChoiceProgress,
    ) -> Result<Flow, Failure> {
        // The operator's was recorded when it was decided.
        if !progress.approved.contains(call_id) {
            return Ok(Flow::GoOn);
        }
        let gate = self.choices.get(choice).and_then(|plan| plan.gate.clone());
        if let (Some(gate), Some(call)) = (gate, progress.calls.get(call_id)) {
            gate.approved_by_client(call_id, &call.input).await.map_err(Failure::while_doing(UNNOTED))?;
        }
        self.approval_decided(choice, call_id, None, progress).await
    }

    /// Counts work with the model of a choice.
    pub(super) fn count(&self, choice: usize, work: MeteredWork) {
        if let Some(plan) = self.choices.get(choice) {
            self.engine.meter.count(&self.tenant, &plan.model, work);
        }
    }

    /// Publishes that a program runs, once.
    async fn running(&mut self, choice: usize, call_id: &str, progress: &mut ChoiceProgress) -> Result<Flow, Failure> {
        progress.ran_code = true;
        let Some(call) = progress.calls.get_mut(call_id) else { return Ok(Flow::GoOn) };
        if std::mem::replace(&mut call.is_running, true) {
            return Ok(Flow::GoOn);
        }
        let flow = self.queue(choice, EventKind::ToolRunning { item: call.item.clone() }).await;
        if self.is_followed {
            self.store_events(None).await?;
        }
        Ok(flow)
    }

    /// Handles one event of an execution.
    pub(super) async fn executed(
        &mut self,
        choice: usize,
        call_id: &str,
        event: ExecutionEvent,
        progress: &mut ChoiceProgress,
    ) -> Result<Flow, Failure> {
        self.running(choice, call_id, progress).await?;
        let Some(call) = progress.calls.get_mut(call_id) else { return Ok(Flow::GoOn) };
        let plan = self.choices.get(choice);
        let (gate, session) = (plan.and_then(|plan| plan.gate.clone()), plan.and_then(|plan| plan.session.clone()));
        let (publish_as, may_wait) = plan.map_or((None, false), |plan| (plan.publish_as, plan.may_wait));
        let item = call.item.clone();
        let target = effects::FileTarget { session: session.as_deref(), publish_as };
        match effects::piece(event, target, &mut call.figures).await? {
            ExecutionPiece::Output(output) => {
                self.in_flight.count_output(output.memory()).map_err(no_memory)?;
                if may_wait {
                    call.output.push(output.clone());
                }
                Ok(self.queue(choice, EventKind::Output { item, output }).await)
            }
            ExecutionPiece::Calls(calls) => {
                progress.client_calls = Some(PendingClientCalls { call_id: call_id.to_owned(), calls });
                Ok(Flow::GoOn)
            }
            ExecutionPiece::Finished(finished) => {
                let figures = std::mem::take(&mut call.figures);
                progress.calls.remove(call_id);
                let mut failure = None;
                if let Some(gate) = &gate {
                    failure = gate.ended(call_id, &finished).await.map_err(Failure::while_doing(UNNOTED)).err();
                }
                let (outcome, stored) = effects::store(finished, target, figures).await;
                for file in &outcome.files {
                    progress.file_ids.extend(file.published_id.clone().map(|file_ids| (file.id.clone(), file_ids)));
                }
                if let Err(error) = stored {
                    failure.get_or_insert(Failure::while_doing("cannot store the program's files")(error));
                }
                let flow = self.queue(choice, EventKind::ToolEnded { item, outcome }).await;
                // Output before the failure is published all the same.
                failure.map_or(Ok(flow), Err)
            }
        }
    }

    /// Appends words of the model to the open message of their kind, or begins one. Returns its id.
    async fn go_on_message(
        &mut self,
        choice: usize,
        progress: &mut ChoiceProgress,
        delta: &str,
        is_refusal: bool,
    ) -> ItemId {
        progress.reasoning = None;
        if progress.message.as_ref().is_some_and(|message| message.is_refusal != is_refusal) {
            self.end_message(choice, progress).await;
        }
        let message = progress.message.get_or_insert_with(|| OpenMessage {
            item: ItemId::new(),
            text: String::new(),
            is_refusal,
        });
        message.text.push_str(delta);
        message.item.clone()
    }

    /// Ends a message that another item follows.
    pub(super) async fn end_message(&mut self, choice: usize, progress: &mut ChoiceProgress) {
        if let Some(OpenMessage { item, text, .. }) = progress.message.take() {
            let linked = self.linked(choice, &text, &mut progress.file_ids).await;
            self.queue(choice, EventKind::TextEnded { item, linked }).await;
        }
    }

    /// Ends a choice.
    pub(super) async fn end_choice(
        &mut self,
        choice: usize,
        mut ending: EndReason,
        all: &mut [ChoiceProgress],
    ) -> Flow {
        let Some(progress) = all.get_mut(choice).filter(|progress| !progress.has_ended) else { return Flow::GoOn };
        progress.has_ended = true;
        if !matches!(ending, EndReason::Failed { .. })
            && let Some(failure) = self.unstored.take()
        {
            ending = EndReason::failed(failure);
        }
        if let EndReason::Failed { failure, cause } = &mut ending {
            // Logged here, for streams and the background as well, and not again where the client is answered.
            *cause = failure.cause.take();
            error!("{}: {}", self.in_flight.id, cause.as_deref().unwrap_or(&failure.message));
        }
        let waits = matches!(ending, EndReason::WaitsForClient { .. });
        if let Some(delta) = progress.held.take().filter(|held| !held.is_empty() && !waits) {
            let item = self.go_on_message(choice, progress, &delta, false).await;
            self.queue(choice, EventKind::Text { item, delta }).await;
        }
        let text = progress.message.take().map(|message| message.text).unwrap_or_default();
        let linked = self.linked(choice, &text, &mut progress.file_ids).await;
        let is_last = all.iter().all(|progress| progress.has_ended);
        let rendered = self.event(choice, EventKind::Ended { item: ItemId::new(), ending, linked }).await;
        if waits && let Some(documents) = &self.documents {
            // The document with the open calls is stored before the client gets them.
            if let Err(error) = documents.hand_over(&self.render.document()).await {
                error!("{}: {error}", self.in_flight.id);
            }
        }
        if is_last {
            self.last_frames = rendered.frames;
        } else {
            self.pending.frames.extend(rendered.frames);
        }
        rendered.flow
    }

    /// The files of the session that a text names.
    pub(super) async fn linked(
        &self,
        choice: usize,
        text: &str,
        file_ids: &mut HashMap<SessionFileId, String>,
    ) -> Vec<SessionFile> {
        let plan = self.choices.get(choice);
        let Some(session) =
            plan.and_then(|plan| plan.session.as_ref()).filter(|_| text.contains(&format!("{LINK}{WORKSPACE}/")))
        else {
            return Vec::new();
        };
        // Without files no links are resolved, and the answer is still valid.
        let files = session.files().await.unwrap_or_default();
        let named = files.into_iter().filter(|file| has_link(text, &file.path));
        let mut linked: Vec<SessionFile> = named.collect();
        let target = effects::FileTarget { session: Some(session), publish_as: plan.and_then(|plan| plan.publish_as) };
        for file in &mut linked {
            file.published_id = file_ids.get(&file.id).cloned();
            if file.published_id.is_none() && target.publish(std::slice::from_mut(file)).await.is_ok() {
                file_ids.extend(file.published_id.clone().map(|id| (file.id.clone(), id)));
            }
        }
        linked
    }

    pub(super) fn ending(&self, choice: usize, ending: AgentEnding) -> EndReason {
        let calls = |calls: Vec<Call>| calls.into_iter().map(tool_call).collect();
        match ending {
            AgentEnding::Answered => EndReason::Answered,
            AgentEnding::Refused => EndReason::Refused,
            AgentEnding::CutOff(CutOff::Length) => EndReason::TooLong,
            AgentEnding::CutOff(CutOff::Filter) => EndReason::Filtered,
            AgentEnding::Budget(budget @ (Budget::Tokens(_) | Budget::InputTokens(_) | Budget::OutputTokens(_))) => {
                EndReason::TokenBudget { words: budget.to_string() }
            }
            AgentEnding::Budget(budget) => EndReason::Budget { words: budget.to_string() },
            AgentEnding::ClientTools(of_client) => {
                EndReason::WaitsForClient { programs: Vec::new(), calls: calls(of_client) }
            }
            AgentEnding::AwaitsApproval { programs, client_tools } => {
                EndReason::WaitsForClient { programs: calls(programs), calls: calls(client_tools) }
            }
            AgentEnding::Upstream(error) => EndReason::failed(Failure::of_upstream(&error)),
            AgentEnding::Sandbox(reason) => EndReason::failed(
                self.choices.get(choice).and_then(ChoicePlan::deletion).unwrap_or_else(|| Failure::of_sandbox(reason)),
            ),
            AgentEnding::Cancelled => self.cut_off(),
        }
    }

    /// The end of a turn that was cut off: cancelled, or with the process, after which its client may try again.
    pub(super) fn cut_off(&self) -> EndReason {
        if self.engine.shutdown.is_cancelled() && !self.in_flight.cancel.is_cancelled() {
            return EndReason::failed(Failure::server_ends());
        }
        EndReason::Cancelled
    }
}

fn no_memory(_: NoRoom) -> Failure {
    let message = "The answers that your requests make, or that wait for your clients, take all the memory that the server \
                   has for them; ask for less at once.";
    Failure::new(FailureKind::Busy, message)
}

impl ChoiceProgress {
    pub(super) fn of(plan: &ChoicePlan) -> Self {
        let by_client = plan.gate.as_ref().is_some_and(|gate| gate.decider() == Decider::Client);
        let mut open = HashSet::new();
        for item in plan.items.iter().filter(|_| by_client) {
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
        Self { approved: open, held: plan.is_formed.then(String::new), ..Self::default() }
    }

    /// Returns true if no part of an answer has come.
    pub(super) fn is_silent(&self) -> bool {
        let is_held = self.held.as_ref().is_some_and(|held| !held.is_empty());
        self.round <= 1
            && !is_held
            && self.message.is_none()
            && self.reasoning.is_none()
            && self.calls.is_empty()
            && !self.ran_code
    }

    /// Returns true while a program of its runs.
    pub(super) fn is_running(&self) -> bool {
        self.calls.values().any(|call| call.is_running)
    }

    /// Forgets the text of this round, which is no answer.
    fn drop_held(&mut self) {
        if let Some(held) = &mut self.held {
            held.clear();
        }
    }

    /// Registers a program that waits for a decision.
    pub(super) fn resume(&mut self, item: ItemId, program: &ApprovalRequest, ran_code: bool) {
        (self.has_called, self.ran_code) = (true, ran_code);
        let call = RunningCall { input: program.code.clone(), ..RunningCall::new(item, ToolKind::Python) };
        self.calls.insert(program.call_id.clone(), call);
    }

    /// Records the complete code of a program, even one whose start was not seen. Returns its item.
    fn written(&mut self, call_id: &str, tool: ToolKind, code: &str) -> ItemId {
        let item = match self.calls.get(call_id) {
            Some(call) => call.item.clone(),
            None => self.start(call_id, tool),
        };
        if let Some(call) = self.calls.get_mut(call_id) {
            code.clone_into(&mut call.input);
        }
        item
    }

    pub(super) fn start(&mut self, call_id: &str, tool: ToolKind) -> ItemId {
        self.has_called = true;
        let item = ItemId::new();
        self.calls.insert(call_id.to_owned(), RunningCall::new(item.clone(), tool));
        item
    }
}

impl RunningCall {
    fn new(item: ItemId, tool: ToolKind) -> Self {
        Self { item, tool, output: Vec::new(), input: String::new(), is_running: false, figures: Vec::new() }
    }
}

fn kind_of(tool: ProgramTool) -> ToolKind {
    match tool {
        ProgramTool::Interpreter => ToolKind::Python,
        ProgramTool::Bash => ToolKind::Bash,
        ProgramTool::Editor => ToolKind::Editor,
    }
}

pub(super) fn tool_call(call: Call) -> ToolCall {
    ToolCall { item: ItemId::new(), call_id: call.id, name: call.name, arguments: call.arguments, caller: None }
}
