//! A response's events as frames, and as the response itself.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_engine::Error;
use aludel_engine::turns::{
    Documents, EndReason, EventKind, Failure, FailureKind, InFlightRequests, ItemId, Render, RenderedEvent,
    RestoredRequest, StoredRequests, TurnEvent,
};
use aludel_store::{
    ConversationId, QuotaCheck, Reservation, ResponseId, ResponseRecord, RowChange, Store, Tenant, TurnRecord,
};
use aludel_wire::openai::responses::{self, Response, ResponseError};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tracing::error;

use super::include::Include;
use super::writer::{Status, Writer};
use crate::dialects::openai::program::{CollectedOutput, ProgramEnd};
use crate::raw_json::{into_text, raw_json};

/// The name of this dialect in stored requests.
pub(super) const NAME: &str = "responses";

/// Initial state of a response's renderer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RendererStart {
    /// The response without an output.
    pub(super) base: Response,
    pub(super) include: Include,
    /// The client's name for this server if programs are calls of an MCP server.
    pub(super) mcp: Option<String>,
    /// The container of its programs.
    pub(super) container: Option<String>,
}

/// The renderer of one response.
pub(super) struct ResponseRenderer {
    writer: Writer,
    status: Status,
    /// Programs under way, by item.
    programs: HashMap<ItemId, Program>,
    failure: Option<Failure>,
}

#[derive(Default)]
struct Program {
    call_id: String,
    code: String,
    printed: CollectedOutput,
}

impl ResponseRenderer {
    pub(super) fn new(beginning: RendererStart) -> Self {
        let RendererStart { base, include, mcp, container } = beginning;
        let mut writer = Writer::new(base, include, mcp);
        if let Some(container) = container {
            writer.set_container(container);
        }
        Self { writer, status: Status::InProgress, programs: HashMap::new(), failure: None }
    }

    fn handle(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Created { background } => {
                if *background {
                    self.status = Status::Queued;
                }
                self.writer.create(&self.status);
                if *background {
                    self.writer.queue();
                }
            }
            EventKind::Started => {
                self.status = Status::InProgress;
                self.writer.begin();
            }
            EventKind::Resumed { next_frame } => self.writer.skip_to(*next_frame),
            EventKind::Text { item, delta } => self.writer.text(item, delta),
            EventKind::Refusal { item, delta } => self.writer.refuse(item, delta),
            EventKind::TextEnded { linked, .. } => self.writer.end_text(linked),
            EventKind::Reasoning { item, delta } => self.writer.think(item, delta),
            EventKind::ToolStarted { item, .. } => self.writer.start_program(item),
            EventKind::ToolInput { item, delta } => self.writer.code(item, delta),
            EventKind::ToolReady { item, call_id, input, .. } => {
                self.writer.code_done(item, input);
                let program = Program { call_id: call_id.clone(), code: input.clone(), ..Program::default() };
                self.programs.insert(item.clone(), program);
            }
            EventKind::ToolResumed { .. } => {}
            EventKind::ToolRunning { item } => {
                if let Some(program) = self.programs.get(item) {
                    self.writer.start_mcp_call(item, &program.call_id, &program.code);
                }
                self.writer.run_program(item);
            }
            EventKind::Output { item, output } => {
                if let Some(program) = self.programs.get_mut(item) {
                    program.printed.record(output);
                }
            }
            EventKind::ToolEnded { item, outcome } => {
                let program = self.programs.remove(item).unwrap_or_default();
                self.writer.end_program(item, program.printed.end(outcome));
            }
            EventKind::ToolRejected { item: Some(item), reason, .. } => {
                self.programs.remove(item);
                self.writer.end_program(item, ProgramEnd::rejected(reason.clone()));
            }
            EventKind::ApprovalDecided { item, denied: Some(reason) } => {
                self.programs.remove(item);
                self.writer.end_program(item, ProgramEnd::rejected(format!("It was not allowed to run: {reason}")));
            }
            EventKind::Usage { usage, .. } => self.writer.use_tokens(*usage),
            EventKind::Ended { item, ending, linked } => {
                self.status = status_of(ending);
                if let EndReason::TokenBudget { words } | EndReason::Budget { words } = ending
                    && self.writer.is_empty()
                {
                    self.writer.text(item, &format!("I stopped: {words} are used up."));
                }
                let waits = matches!(ending, EndReason::WaitsForClient { .. });
                let needed = (self.status == Status::Completed && !waits).then_some(item);
                // A client that has received something gets the failure in its stream.
                if let EndReason::Failed { failure, .. } = ending {
                    self.failure = self.writer.is_empty().then(|| failure.clone());
                }
                self.writer.finish(&self.status, linked, needed);
                if let EndReason::WaitsForClient { programs, calls } = ending {
                    programs.iter().for_each(|call| self.writer.ask_for_approval(call));
                    calls.iter().for_each(|call| self.writer.function_call(call));
                }
                self.writer.end(&self.status);
            }
            EventKind::Closed
            | EventKind::RoundStarted { .. }
            | EventKind::Retrying { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalPending { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolRejected { item: None, .. }
            | EventKind::Observed { .. } => {}
        }
    }
}

impl Render for ResponseRenderer {
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent {
        // Without a frame the document keeps the times of the last one.
        if !matches!(event.kind, EventKind::Closed) {
            self.writer.set_time(event.at_ms / 1000);
        }
        self.handle(&event.kind);
        RenderedEvent { frames: self.writer.take_frames(), ..RenderedEvent::default() }
    }

    fn document(&self) -> Box<RawValue> {
        raw_json(&self.writer.object(&self.status))
    }

    fn answer(&self) -> Box<RawValue> {
        raw_json(&self.writer.for_client(&self.status))
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.clone()
    }
}

fn status_of(ending: &EndReason) -> Status {
    match ending {
        EndReason::Answered | EndReason::Refused | EndReason::WaitsForClient { .. } => Status::Completed,
        EndReason::Filtered => Status::Incomplete("content_filter"),
        EndReason::TooLong | EndReason::TokenBudget { .. } => Status::Incomplete("max_output_tokens"),
        EndReason::Budget { .. } => Status::Incomplete("max_messages"),
        EndReason::Cancelled => Status::Cancelled,
        EndReason::Failed { failure, .. } => {
            let code = match failure.kind {
                FailureKind::RateLimited => "rate_limit_exceeded",
                FailureKind::Rejected | FailureKind::ContextExceeded => "invalid_prompt",
                _ => "server_error",
            };
            Status::Failed { code, message: failure.message.clone() }
        }
    }
}

/// The stored form of a response.
pub(super) struct Stored {
    pub(super) tenant: Tenant,
    pub(super) id: ResponseId,
    /// List of the input items, JSON, to be added to the conversation.
    pub(super) input: String,
    pub(super) conversation: Option<ConversationId>,
    /// Room for its items in the conversation.
    pub(super) _room: Reservation,
    /// Time after which it is forgotten, seconds since 1970.
    pub(super) expires_at: Option<i64>,
}

impl Stored {
    fn put(&self, object: Box<RawValue>) -> RowChange {
        let (id, input, expires_at) = (self.id.clone(), self.input.clone(), self.expires_at);
        RowChange::response(&self.tenant, ResponseRecord { id, object: into_text(object), input, expires_at })
    }

    /// Adds its items to the conversation, unless it failed.
    fn add_to_conversation(&self, document: &RawValue) -> Result<Option<RowChange>, Error> {
        let Some(conversation) = &self.conversation else { return Ok(None) };
        let response = parse_stored(document.get())?;
        if response.status == responses::Status::Failed {
            return Ok(None);
        }
        let input: Vec<responses::ItemDocument> = serde_json::from_str(&self.input).map_err(Error::internal)?;
        let items = input.into_iter().chain(response.output.iter().map(responses::Item::document));
        let items = items.filter_map(|item| Some((item.id()?.to_owned(), item.into_json()))).collect();
        Ok(Some(RowChange::items(&self.tenant, conversation, items)))
    }
}

impl Documents for Stored {
    fn save(&self, document: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        Ok(vec![self.put(document)])
    }

    fn finish(&self, document: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        let added = self.add_to_conversation(&document)?;
        Ok(added.into_iter().chain([self.put(document)]).collect())
    }
}

/// Stored requests of this protocol.
pub(crate) struct Responses {
    pub(crate) store: Store,
}

impl StoredRequests for Responses {
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
            let broken = || Error::internal(format!("{} is no response's id", turn.id));
            let id = ResponseId::parse(turn.id.as_str()).ok_or_else(broken)?;
            let Some(record) = self.store.response(&turn.tenant, &id).await? else { return Ok(None) };
            let conversation = beginning.base.conversation.as_ref().and_then(|given| ConversationId::parse(&given.id));
            let documents = Stored {
                tenant: turn.tenant.clone(),
                id,
                input: record.input,
                conversation,
                _room: self.store.no_room(&turn.tenant),
                expires_at: record.expires_at,
            };
            Ok(Some(RestoredRequest {
                render: Box::new(ResponseRenderer::new(beginning)),
                documents: Box::new(documents),
            }))
        })
    }

    /// Fails responses that an earlier version began and did not finish.
    fn close_orphans<'a>(&'a self, in_flight: &'a InFlightRequests) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            for (tenant, id) in self.store.responses_with_status(&["in_progress", "queued"]).await? {
                if in_flight.find(&tenant, &id.clone().into()).is_some() {
                    continue;
                }
                let Some(record) = self.store.response(&tenant, &id).await? else { continue };
                let ResponseRecord { object, input, expires_at, .. } = record;
                let response = match parse_stored(&object) {
                    Ok(response) => response,
                    Err(error) => {
                        error!("{id} was stopped and stays so: {error}");
                        continue;
                    }
                };
                let message = "The server was stopped before the response was done.".to_owned();
                let error = Some(ResponseError { code: "server_error".to_owned(), message });
                let object = into_text(raw_json(&Response { status: responses::Status::Failed, error, ..response }));
                let record = ResponseRecord { id, object, input, expires_at };
                self.store.put_response(&tenant, record, QuotaCheck::Reserved).await?;
            }
            Ok(())
        })
    }
}

/// The response as it is stored.
pub(super) fn parse_stored(object: &str) -> Result<Response, Error> {
    serde_json::from_str(object).map_err(|error| Error::internal(format!("a stored response is not whole: {error}")))
}

/// Returns true if a row is a response.
pub(super) fn is_response(record: &ResponseRecord) -> bool {
    /// The type of an object.
    #[derive(Deserialize)]
    struct Typed {
        object: String,
    }
    serde_json::from_str(&record.object).is_ok_and(|typed: Typed| typed.object == "response")
}

/// Stored responses.
pub(crate) fn stored_requests(store: &Store) -> Arc<dyn StoredRequests> {
    Arc::new(Responses { store: store.clone() })
}

#[cfg(test)]
mod tests {
    use aludel_engine::KernelSpec;
    use serde_json::{Value, json};

    use super::super::request::ParsedRequest;
    use super::*;

    #[test]
    fn a_request_that_is_closed_a_second_later_is_stored_as_its_client_was_told() {
        let fields = json!({ "model": "m", "input": "?" }).as_object().unwrap().clone();
        let base = ParsedRequest::read(fields.into(), "", &KernelSpec::python("")).unwrap().answer;
        let mut answer =
            ResponseRenderer::new(RendererStart { base, include: Include::default(), mcp: None, container: None });
        let ended = EventKind::Ended { item: ItemId::new(), ending: EndReason::Answered, linked: Vec::new() };
        let kinds = [EventKind::Created { background: false }, EventKind::Started, ended, EventKind::Closed];
        let mut frames = Vec::new();
        for (second, kind) in (0..).zip(kinds) {
            let event = TurnEvent { sequence: second, at_ms: 1000 * second.cast_signed(), choice: 0, kind };
            frames.extend(answer.render(&event).frames);
        }
        let last: Value = serde_json::from_str(&frames.last().unwrap().text).unwrap();
        assert_eq!(last["response"]["completed_at"], 2);
        assert_eq!(last["response"], serde_json::from_str::<Value>(answer.document().get()).unwrap());
    }
}
