//! Renders an interaction's events as frames and as the interaction itself.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_engine::Error;
use aludel_engine::turns::{
    self, Documents, EndReason, EventKind, Failure, Flow, ItemId, Render, RenderedEvent, RestoredRequest, ToolEnd,
    ToolOutcome, TurnEvent,
};
use aludel_store::{InteractionId, InteractionRecord, RowChange, SessionId, Store, Tenant, TurnRecord};
use aludel_wire::gemini::interactions::{Interaction, InteractionError, Status};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::writer::Writer;
use crate::dialects::gemini::error::status_of;
use crate::dialects::gemini::program_output::CollectedOutput;
use crate::error::ApiError;
use crate::links::Links;
use crate::raw_json::{into_text, raw_json};

/// The name of this dialect in stored requests.
pub(super) const NAME: &str = "interactions";

/// Initial state of an interaction's renderer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RendererStart {
    /// The interaction without steps.
    pub(super) answer: Interaction,
    /// Stop words.
    pub(super) stop: Vec<String>,
    pub(super) tells_thoughts: bool,
    /// Links to the files of its session, if it has one.
    pub(super) linked: Option<FileLinks>,
    /// True if the answer has a format.
    #[serde(default)]
    pub(super) is_formed: bool,
}

/// Links to files, without the secret that signs them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct FileLinks {
    /// The server's address as the client knows it.
    pub(super) base: String,
    /// Time until which they work, seconds since 1970.
    pub(super) expires_at: i64,
}

/// The renderer of one interaction.
pub(super) struct InteractionRenderer {
    writer: Writer,
    /// Output of programs that run.
    printed: HashMap<ItemId, CollectedOutput>,
    failure: Option<Failure>,
}

impl InteractionRenderer {
    pub(super) fn new(beginning: RendererStart, links: Option<Links>) -> Self {
        let RendererStart { answer, stop, tells_thoughts, linked: _, is_formed } = beginning;
        let writer = Writer::new(answer, links, stop, tells_thoughts);
        let writer = if is_formed { writer.without_file_links() } else { writer };
        Self { writer, printed: HashMap::new(), failure: None }
    }

    fn handle(&mut self, kind: &EventKind) -> Flow {
        match kind {
            EventKind::Created { background } => {
                self.writer.create(if *background { Status::Queued } else { Status::InProgress });
            }
            EventKind::Started => self.writer.begin(),
            EventKind::Resumed { next_frame } => self.writer.skip_to(*next_frame),
            EventKind::Usage { round, usage } => self.writer.use_tokens(*round, *usage),
            EventKind::Ended { ending, .. } => self.end(ending),
            // After a stop sequence nothing more is sent.
            _ if self.writer.has_finished() => {}
            EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => {
                if !self.writer.text(delta) {
                    return Flow::Stop;
                }
            }
            EventKind::TextEnded { .. } => self.writer.end_text(),
            EventKind::Reasoning { delta, .. } => self.writer.think(delta),
            EventKind::ToolReady { item, input, .. } => self.writer.program(item, input),
            EventKind::Output { item, output } => self.printed.entry(item.clone()).or_default().record(output),
            EventKind::ToolEnded { item, outcome } => self.end_program(item, outcome),
            EventKind::ToolRejected { item: Some(item), reason, .. } => self.refuse_program(item, reason.clone()),
            EventKind::ApprovalDecided { item, denied: Some(reason) } => {
                self.refuse_program(item, format!("It was not allowed to run: {reason}"));
            }
            EventKind::Closed
            | EventKind::RoundStarted { .. }
            | EventKind::Retrying { .. }
            | EventKind::ToolStarted { .. }
            | EventKind::ToolInput { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalPending { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolResumed { .. }
            | EventKind::ToolRunning { .. }
            | EventKind::ToolRejected { item: None, .. }
            | EventKind::Observed { .. } => {}
        }
        Flow::GoOn
    }

    fn end_program(&mut self, item: &ItemId, outcome: &ToolOutcome) {
        let printed = self.printed.remove(item).unwrap_or_default().end(outcome);
        self.writer.end_program(item, outcome.end != ToolEnd::Completed, printed.text);
        self.writer.show(printed.pictures);
        self.writer.add_files(&outcome.files);
    }

    fn refuse_program(&mut self, item: &ItemId, reason: String) {
        self.printed.remove(item);
        self.writer.end_program(item, true, reason);
    }

    fn end(&mut self, ending: &EndReason) {
        if self.writer.has_finished() {
            return self.writer.end(Status::Completed);
        }
        let status = match ending {
            EndReason::Answered | EndReason::Refused => Status::Completed,
            EndReason::WaitsForClient { .. } => Status::RequiresAction,
            EndReason::TooLong | EndReason::Filtered => Status::Incomplete,
            EndReason::TokenBudget { words } | EndReason::Budget { words } => {
                self.writer.note(&format!("I stopped: {words} are used up."));
                Status::BudgetExceeded
            }
            EndReason::Cancelled => Status::Cancelled,
            EndReason::Failed { failure, .. } => {
                // A client that has received something gets the failure in its stream.
                self.failure = self.writer.is_empty().then(|| failure.clone());
                let error = ApiError::from(failure.clone());
                let (code, message) = (status_of(&error).to_lowercase(), error.message);
                self.writer.finish();
                return self.writer.fail(InteractionError { code, message });
            }
        };
        self.writer.finish();
        if let EndReason::WaitsForClient { calls, .. } = ending {
            calls.iter().for_each(|call| self.writer.function_call(call));
        }
        self.writer.end(status);
    }
}

impl Render for InteractionRenderer {
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent {
        // Without a frame the document keeps the time of the last one.
        if !matches!(event.kind, EventKind::Closed) {
            self.writer.set_time(event.at_ms / 1000);
        }
        let flow = self.handle(&event.kind);
        RenderedEvent { frames: self.writer.take_frames(), flow, ..RenderedEvent::default() }
    }

    fn document(&self) -> Box<RawValue> {
        raw_json(&self.writer.interaction())
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.clone()
    }
}

/// The stored form of an interaction.
pub(super) struct Stored {
    pub(super) tenant: Tenant,
    pub(super) id: InteractionId,
    /// List of the steps that it answers, JSON.
    pub(super) input: String,
}

impl Documents for Stored {
    fn begin(&self, object: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        let (id, input) = (self.id.clone(), self.input.clone());
        let record = InteractionRecord { id, object: into_text(object), input };
        Ok(vec![RowChange::new_interaction(&self.tenant, record)])
    }

    fn save(&self, object: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        Ok(vec![RowChange::interaction(&self.tenant, &self.id, into_text(object))])
    }
}

/// Stored requests of this protocol.
struct Interactions {
    store: Store,
}

impl turns::StoredRequests for Interactions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn restore<'a>(
        &'a self,
        turn: &'a TurnRecord,
        own: &'a RawValue,
    ) -> BoxFuture<'a, Result<Option<RestoredRequest>, Error>> {
        Box::pin(async move {
            let beginning = serde_json::from_str::<RendererStart>(own.get()).map_err(Error::internal)?;
            let broken = || Error::internal(format!("{} is no interaction's id", turn.id));
            let id = InteractionId::parse(turn.id.as_str()).ok_or_else(broken)?;
            let Some(text) = self.store.interaction_text(&turn.tenant, &id).await? else { return Ok(None) };
            let session = beginning.answer.environment_id.as_deref().and_then(SessionId::parse);
            let links = match (&beginning.linked, session) {
                (Some(FileLinks { base, expires_at }), Some(session)) => {
                    let secret = Arc::from(self.store.secret("links").await?);
                    Some(Links::to(secret, base, &turn.tenant, &session).until(*expires_at))
                }
                _ => None,
            };
            let documents = Stored { tenant: turn.tenant.clone(), id, input: text.input };
            let render = Box::new(InteractionRenderer::new(beginning, links));
            Ok(Some(RestoredRequest { render, documents: Box::new(documents) }))
        })
    }
}

/// Stored interactions.
pub(in crate::dialects::gemini) fn stored_requests(store: &Store) -> Arc<dyn turns::StoredRequests> {
    Arc::new(Interactions { store: store.clone() })
}
