//! A run's events as frames, and as the objects that stay.

use std::collections::VecDeque;
use std::sync::Arc;

use aludel_engine::turns::{
    Documents, EndReason, EventKind, Failure, FailureKind, InFlightRequests, ItemId, OutputPiece, Render,
    RenderedEvent, RestoredRequest, RichValue, StoredRequests, ToolEnd, ToolOutcome, TurnEvent,
};
use aludel_engine::{Error, SessionFile};
use aludel_store::{
    MessageId, QuotaCheck, RowChange, RunId, RunUpdate, StepId, Store, Tenant, ThreadId, TurnId, TurnRecord, now,
};
use aludel_wire::assistants::{ErrorCode, IncompleteRun, LastError, Message, Run, RunStatus, RunStep, Thread};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::annotations::LinkedFile;
use super::outcome::{StepEnd, end_of_run};
use super::writer::{Owed, Writer};
use super::{parse_stored, written};
use crate::error::ApiError;
use crate::raw_json::raw_json;

/// The name of this dialect in stored requests.
pub(super) const NAME: &str = "assistants";
/// The error of a run whose server was killed.
const STOPPED: &str = "The server was stopped before the run was done.";
/// The field of a stored run with [`Owed`], while it waits for its client. Clients do not see it.
const OWED: &str = "owed";

/// Initial state of a run's renderer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RendererStart {
    /// The run, queued.
    pub(super) run: Run,
    /// The thread that was made for it.
    pub(super) thread: Option<Thread>,
    /// The step that the client has answered.
    pub(super) answered: Option<RunStep>,
    /// Left by the leg before.
    #[serde(default)]
    pub(super) owed: Owed,
}

/// The objects that a run makes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Made {
    run: Option<Run>,
    steps: Vec<RunStep>,
    messages: Vec<Message>,
    #[serde(default)]
    owed: Owed,
}

/// The renderer of one leg of a run: from its start, or its client's answer, to its end or its next question.
pub(super) struct RunRenderer {
    start: RendererStart,
    writer: Writer,
    /// Steps that wait for the end of the one before, with their events.
    waiting: VecDeque<(ItemId, Vec<EventKind>)>,
    /// True if the open program was interrupted: the whole run was, unless another event follows.
    is_interrupted: bool,
    /// Steps and messages that were handed over to be stored.
    saved: (usize, usize),
}

impl RunRenderer {
    pub(super) fn new(start: RendererStart) -> Self {
        let writer = Writer::new(start.run.clone(), start.owed.clone());
        Self { start, writer, waiting: VecDeque::new(), is_interrupted: false, saved: (0, 0) }
    }

    fn handle(&mut self, kind: &EventKind, at_ms: i64) {
        match kind {
            EventKind::Created { .. } => {
                let RendererStart { thread, answered, .. } = &self.start;
                self.writer.create(thread.as_ref(), answered.as_ref());
            }
            EventKind::Started => self.writer.begin(),
            EventKind::Resumed { next_frame } => self.writer.skip_to(*next_frame),
            EventKind::Usage { usage, .. } => self.writer.use_tokens(usage.input, usage.output),
            EventKind::Ended { item, ending, linked } => self.end(item, ending, linked, at_ms),
            EventKind::Text { item, .. }
            | EventKind::Refusal { item, .. }
            | EventKind::TextEnded { item, .. }
            | EventKind::ToolStarted { item, .. }
            | EventKind::ToolInput { item, .. }
            | EventKind::ToolReady { item, .. }
            | EventKind::Output { item, .. }
            | EventKind::ToolEnded { item, .. }
            | EventKind::ToolRejected { item: Some(item), .. }
            | EventKind::ApprovalDecided { item, denied: Some(_) } => self.of_step(item, kind),
            EventKind::Closed
            | EventKind::RoundStarted { .. }
            | EventKind::Retrying { .. }
            | EventKind::Reasoning { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalPending { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolResumed { .. }
            | EventKind::ToolRunning { .. }
            | EventKind::ToolRejected { item: None, .. }
            | EventKind::Observed { .. } => {}
        }
    }

    /// Handles an event of a step: now, or when the step before has ended.
    fn of_step(&mut self, item: &ItemId, kind: &EventKind) {
        if std::mem::take(&mut self.is_interrupted) {
            self.writer.end_program(&StepEnd::Completed);
        }
        if self.writer.is_busy(item) || !self.writer.is_open() && !self.waiting.is_empty() {
            match self.waiting.iter_mut().find(|(waiting, _)| waiting == item) {
                Some((_, events)) => events.push(kind.clone()),
                None => self.waiting.push_back((item.clone(), vec![kind.clone()])),
            }
            return;
        }
        self.write(item, kind);
        while !self.writer.is_open()
            && let Some((item, events)) = self.waiting.pop_front()
        {
            events.iter().for_each(|kind| self.write(&item, kind));
        }
    }

    fn write(&mut self, item: &ItemId, kind: &EventKind) {
        match kind {
            EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => self.writer.text(item, delta),
            EventKind::TextEnded { linked, .. } => {
                self.writer.end_message(&links(linked), false, &StepEnd::Completed);
            }
            EventKind::ToolStarted { .. } => self.writer.start_program(item),
            EventKind::ToolInput { delta, .. } => self.writer.code(delta),
            EventKind::ToolReady { input, .. } => {
                self.writer.start_program(item);
                self.writer.code_done(input);
            }
            EventKind::Output { output, .. } => self.output(output),
            EventKind::ToolEnded { outcome, .. } => self.end_program(outcome),
            EventKind::ToolRejected { reason, .. } => self.refuse_program(item, reason),
            EventKind::ApprovalDecided { denied: Some(reason), .. } => {
                self.refuse_program(item, &format!("It was not allowed to run: {reason}"));
            }
            _ => {}
        }
    }

    fn output(&mut self, output: &OutputPiece) {
        match output {
            OutputPiece::Stdout(text) | OutputPiece::Stderr(text) => self.writer.logs(text),
            OutputPiece::Display(RichValue { image: Some(image), .. })
            | OutputPiece::Result(RichValue { image: Some(image), .. }) => match &image.file.published_id {
                Some(id) => self.writer.image(id.clone()),
                None => self.writer.logs("[an image that could not be stored]\n"),
            },
            OutputPiece::Display(RichValue { text, .. }) => {
                self.writer.logs(&format!("{}\n", text.as_deref().unwrap_or_default()));
            }
            // Without a line's end, as in a notebook.
            OutputPiece::Result(RichValue { text, .. }) => self.writer.logs(text.as_deref().unwrap_or_default()),
            OutputPiece::Error { traceback, .. } => self.writer.logs(&format!("{traceback}\n")),
        }
    }

    fn end_program(&mut self, outcome: &ToolOutcome) {
        let is_plain = matches!(outcome.end, ToolEnd::Completed | ToolEnd::Raised);
        if !is_plain || !outcome.without_room.is_empty() {
            self.writer.note(&outcome.words);
        }
        for SessionFile { path, published_id, .. } in &outcome.files {
            if let Some(id) = published_id {
                self.writer.file(path, id.clone());
            }
        }
        self.is_interrupted = outcome.end == ToolEnd::Interrupted;
        if !self.is_interrupted {
            self.writer.end_program(&StepEnd::Completed);
        }
    }

    /// Ends a program that does not run: the model learns the reason, and continues.
    fn refuse_program(&mut self, item: &ItemId, reason: &str) {
        self.writer.start_program(item);
        self.writer.logs(reason);
        self.writer.end_program(&StepEnd::Completed);
    }

    fn end(&mut self, item: &ItemId, ending: &EndReason, linked: &[SessionFile], at_ms: i64) {
        // Steps that never began are not sent.
        self.waiting.clear();
        let expired = self.start.run.expires_at.is_some_and(|expires_at| at_ms >= expires_at.saturating_mul(1000));
        let (status, end, words) = match ending {
            EndReason::Answered | EndReason::Refused => (RunStatus::Completed, StepEnd::Completed, "Done."),
            EndReason::Budget { .. } => (RunStatus::Completed, StepEnd::Completed, ""),
            EndReason::Filtered => (
                RunStatus::Completed,
                StepEnd::CutOff("content_filter"),
                "The rest of the answer was withheld by the filter of the model's server.",
            ),
            EndReason::TooLong | EndReason::TokenBudget { .. } => {
                (RunStatus::Incomplete, StepEnd::CutOff("max_tokens"), "")
            }
            EndReason::WaitsForClient { .. } => (RunStatus::RequiresAction, StepEnd::Completed, ""),
            EndReason::Cancelled if expired => (RunStatus::Expired, StepEnd::Expired, ""),
            EndReason::Cancelled => (RunStatus::Cancelled, StepEnd::Cancelled, ""),
            EndReason::Failed { failure, .. } => (RunStatus::Failed, StepEnd::Failed(last_error(failure)), ""),
        };
        self.writer.end_program(&end);
        if status == RunStatus::Completed {
            // Clients read the newest message, which must have a text.
            let budget = match ending {
                EndReason::Budget { words } => format!("I stopped: {words} are used up."),
                _ => words.to_owned(),
            };
            if self.writer.open_text().is_none() && (!self.writer.owed.is_empty() || !self.has_answer()) {
                self.writer.text(item, &budget);
            }
        }
        self.writer.end_message(&links(linked), status.is_terminal(), &end);
        if let EndReason::WaitsForClient { calls, .. } = ending {
            return self.writer.ask(calls);
        }
        if status == RunStatus::Incomplete {
            let reason = match ending {
                EndReason::TokenBudget { .. } if self.writer.has_read_enough() => "max_prompt_tokens",
                _ => "max_completion_tokens",
            };
            self.writer.run.incomplete_details = Some(IncompleteRun { reason: reason.to_owned() });
        }
        let error = match end {
            StepEnd::Failed(error) => Some(error),
            _ => None,
        };
        self.writer.end(status, error);
    }

    /// Returns true if the last step is a message.
    fn has_answer(&self) -> bool {
        self.writer.steps.last().is_some_and(|step| step.r#type == "message_creation")
    }
}

/// The files that a text names.
fn links(linked: &[SessionFile]) -> Vec<LinkedFile> {
    let link = |file: &SessionFile| Some(LinkedFile { path: file.path.clone(), file_id: file.published_id.clone()? });
    linked.iter().filter_map(link).collect()
}

fn last_error(failure: &Failure) -> LastError {
    let code = match failure.kind {
        FailureKind::RateLimited | FailureKind::Busy => ErrorCode::RateLimitExceeded,
        FailureKind::Rejected | FailureKind::ContextExceeded => ErrorCode::InvalidPrompt,
        _ => ErrorCode::ServerError,
    };
    LastError { code, message: failure.message.clone() }
}

impl Render for RunRenderer {
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent {
        if !matches!(event.kind, EventKind::Closed) {
            self.writer.set_time(event.at_ms / 1000);
        }
        self.handle(&event.kind, event.at_ms);
        let (steps, messages) = (self.writer.steps.len(), self.writer.messages.len());
        let (saved_steps, saved_messages) = std::mem::replace(&mut self.saved, (steps, messages));
        // Clients that poll show a program while it runs.
        let begun = matches!(event.kind, EventKind::ToolReady { .. }).then(|| self.writer.open_program()).flatten();
        let save = (steps > saved_steps || begun.is_some()).then(|| {
            let steps = self.writer.steps.iter().skip(saved_steps).cloned().chain(begun).collect();
            let messages = self.writer.messages.iter().skip(saved_messages).cloned().collect();
            raw_json(&Made { steps, messages, ..Made::default() })
        });
        RenderedEvent { frames: self.writer.take_frames(), save, ..RenderedEvent::default() }
    }

    fn document(&self) -> Box<RawValue> {
        let (run, steps, messages) =
            (Some(self.writer.run.clone()), self.writer.steps.clone(), self.writer.messages.clone());
        raw_json(&Made { run, steps, messages, owed: self.writer.owed.clone() })
    }

    fn failure(&self) -> Option<Failure> {
        // The client was told of the run before anything of it could fail.
        None
    }
}

/// The stored form of a run that waits for its client.
fn waiting(run: &Run, owed: &Owed) -> Value {
    let mut object = written(run);
    if !owed.is_empty() {
        object[OWED] = written(owed);
    }
    object
}

/// Images and files in the stored form of a run that waits, which messages of its next leg have to show.
pub(super) fn owed(object: &Value) -> Result<Owed, ApiError> {
    object.get(OWED).map_or_else(|| Ok(Owed::default()), |owed| parse_stored(owed.clone()))
}

/// The stored objects of a run.
pub(super) struct Stored {
    pub(super) tenant: Tenant,
    pub(super) run: RunId,
    pub(super) turn: TurnId,
}

impl Stored {
    fn put(&self, document: &RawValue, is_end: bool) -> Result<Vec<RowChange>, Error> {
        let Made { run, steps, messages, owed } =
            serde_json::from_str::<Made>(document.get()).map_err(Error::internal)?;
        if !is_end && steps.is_empty() {
            return Ok(Vec::new());
        }
        let steps = steps.iter().filter_map(|step| Some((StepId::parse(&step.id)?, written(step)))).collect();
        let messages = messages.iter().filter_map(|message| Some((MessageId::parse(&message.id)?, written(message))));
        let has_ended = run.as_ref().is_some_and(|run| is_end && run.status.is_terminal());
        let object = run.filter(|_| is_end).map(|run| match run.status {
            RunStatus::RequiresAction => waiting(&run, &owed),
            _ => written(&run),
        });
        let update = RunUpdate { object, has_ended, next: None, steps, messages: messages.collect() };
        Ok(vec![RowChange::run(&self.tenant, &self.run, &self.turn, update)])
    }
}

impl Documents for Stored {
    fn save(&self, document: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        self.put(&document, false)
    }

    fn finish(&self, document: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        self.put(&document, true)
    }
}

/// Stored requests of this protocol.
pub(crate) struct Runs {
    store: Store,
}

impl StoredRequests for Runs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn restore<'a>(
        &'a self,
        turn: &'a TurnRecord,
        own: &'a RawValue,
    ) -> BoxFuture<'a, Result<Option<RestoredRequest>, Error>> {
        Box::pin(async move {
            let start = serde_json::from_str::<RendererStart>(own.get()).map_err(Error::internal)?;
            let ids = (ThreadId::parse(&start.run.thread_id), RunId::parse(&start.run.id));
            let (Some(thread), Some(run)) = ids else { return Ok(None) };
            let record = self.store.thread_run(&turn.tenant, &thread, &run).await?;
            // It was deleted with its thread, or never begun.
            if record.is_none_or(|record| record.turn != turn.id) {
                return Ok(None);
            }
            let documents = Box::new(Stored { tenant: turn.tenant.clone(), run, turn: turn.id.clone() });
            Ok(Some(RestoredRequest { render: Box::new(RunRenderer::new(start)), documents }))
        })
    }

    /// Fails runs that a killed server had not begun to carry out.
    fn close_orphans<'a>(&'a self, in_flight: &'a InFlightRequests) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            for (tenant, thread, id) in self.store.active_runs().await? {
                let Some(record) = self.store.thread_run(&tenant, &thread, &id).await? else { continue };
                let mut run = Run::deserialize(record.object).map_err(Error::internal)?;
                if run.status == RunStatus::RequiresAction || in_flight.find(&tenant, &record.turn).is_some() {
                    continue;
                }
                let error = LastError { code: ErrorCode::ServerError, message: STOPPED.to_owned() };
                end_of_run(&mut run, RunStatus::Failed, Some(error), now());
                let update = RunUpdate { object: Some(written(&run)), has_ended: true, ..RunUpdate::default() };
                self.store.update_run(&tenant, &record.id, &record.turn, update, QuotaCheck::Reserved).await?;
            }
            Ok(())
        })
    }
}

/// Stored requests of this protocol.
pub(super) fn stored_requests(store: &Store) -> Arc<dyn StoredRequests> {
    Arc::new(Runs { store: store.clone() })
}
