//! `POST /v1/messages`.

use std::sync::Arc;

use aludel_agent::estimated_tokens;
use aludel_engine::processor_time::end_long_step;
use aludel_engine::turns::{ChoicePlan, InFlightRequest, Run, SessionRetention, TurnSpec};
use aludel_store::{Tenant, TurnId, fresh_id};
use aludel_wire::anthropic::StopReason;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use tracing::{Instrument, info_span};

use super::container;
use super::conversation::{Conversation, ToolNames};
use super::forward;
use super::render::{ERROR, MessageRenderer, PING};
use super::request::ParsedRequest;
use super::resume;
use super::writer::{MessageContainer, Writer};
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, MemoryCharge, RawJson};
use crate::raw_json::into_text;
use crate::telemetry::Scope;
use crate::turn::{
    self, Delivery, EmptyFrames, StreamFormat, fingerprint, first_failure, follow, framed, not_stored, wait,
};

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    body: RawJson,
) -> Result<Response, ApiError> {
    if let Some(response) = forward::on(&app, &tenant, &headers, &body.bytes).await? {
        return Ok(response);
    }
    let fields = body.fields(&app).await?;
    let (fingerprint, memory) = (fingerprint("/v1/messages", &headers, &fields), fields.memory());
    end_long_step().await;
    let request = ParsedRequest::read(fields, app.engine.kernel())?;
    end_long_step().await;
    app.engine.models().find(&request.model)?;
    let stream = request.stream;
    if request.is_empty {
        return Ok(empty(request));
    }
    let begun = turn::begin(&app, &tenant, fingerprint, TurnId::new(), memory, Delivery::of(stream, false));
    let (in_flight, mut connection, is_new) = begun.map_err(not_stored)?;
    if is_new {
        turn::launch(&app, &in_flight, start_message(Arc::clone(&app), tenant, request, Arc::clone(&in_flight)))
            .await?;
    }
    if !stream {
        return wait(in_flight, connection, into_text).await;
    }
    first_failure(&in_flight, &mut connection, EmptyFrames { openings: &[], failure: ERROR }).await?;
    Ok(follow(in_flight, None, Some(connection), StreamFormat { framed, silence: PING }))
}

/// The answer to a request that only warms a cache.
fn empty(request: ParsedRequest) -> Response {
    let mut writer = Writer::new(fresh_id("msg_"), request.model, None, Vec::new());
    writer.finish(StopReason::MaxTokens);
    if !request.stream {
        return Json(writer.message()).into_response();
    }
    writer.end();
    let events: String = writer.take_frames().iter().map(framed).collect();
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8")], events).into_response()
}

/// Validates a request, and starts its turn, or continues one that waits for its answers.
async fn start_message(
    app: Arc<App>,
    tenant: Tenant,
    request: ParsedRequest,
    in_flight: Arc<InFlightRequest>,
) -> Result<(), ApiError> {
    let id = fresh_id("msg_");
    let memory = MemoryCharge::of(&app, &tenant)?;
    in_flight.hold(memory.clone());
    let tools = ToolNames::beside(app.engine.kernel(), &request.functions, request.has_shell());
    let mut conversation = Conversation::read(&app, &tenant, &request.messages, &tools, &memory).await?;
    let request_id = Scope::current().map(|scope| scope.id().to_owned());
    let span = info_span!("answer", api = "messages", id);
    let estimate = estimated_tokens(&conversation.items, &request.instructions);
    let pending = conversation.pending.take();
    let mut lost = Vec::new();
    if let Some(pending) = pending {
        match resume::take(&app, &tenant, &request, &conversation, &pending).await? {
            Some((suspension, container)) => {
                let writer = Writer::new(id, request.model, Some(container), request.stop);
                let writer =
                    writer.with_thoughts(request.thoughts).estimating(estimate).telling_edits(request.has_edits);
                let run = Run::new(
                    &app.engine,
                    &tenant,
                    in_flight,
                    Vec::new(),
                    Box::new(MessageRenderer::new(writer, request_id)),
                );
                app.tasks.spawn(run.go_on(suspension, pending.answers).instrument(span));
                return Ok(());
            }
            None => {
                conversation.lose(&pending.unfinished);
                lost = pending.unfinished;
            }
        }
    }
    let (choice, container) = prepare(&app, &tenant, &id, &request, conversation).await?;
    let writer = Writer::new(id, request.model, container, request.stop);
    let mut writer = writer.with_thoughts(request.thoughts).estimating(estimate).telling_edits(request.has_edits);
    resume::tell_lost(&mut writer, &lost, &request.messages);
    let mut run =
        Run::new(&app.engine, &tenant, in_flight, vec![choice], Box::new(MessageRenderer::new(writer, request_id)));
    run.is_followed = request.stream;
    app.tasks.spawn(run.run().instrument(span));
    Ok(())
}

/// A model, and a container if it may run programs.
async fn prepare(
    app: &Arc<App>,
    tenant: &Tenant,
    id: &str,
    request: &ParsedRequest,
    conversation: Conversation,
) -> Result<(ChoicePlan, Option<MessageContainer>), ApiError> {
    end_long_step().await;
    let instructions = [request.instructions.as_str(), &conversation.instructions];
    let instructions: Vec<&str> = instructions.into_iter().filter(|text| !text.is_empty()).collect();
    let spec = TurnSpec {
        functions: request.functions.clone(),
        callable: request.callable.clone(),
        tool_choice: request.tool_choice.clone(),
        sampling: request.sampling.clone(),
        has_shell: request.has_shell(),
        ..TurnSpec::new(request.model.clone(), instructions.join("\n\n"))
    };
    if request.code.is_none() {
        return Ok((spec.plan_choice(&app.engine, tenant, conversation.items, None, SessionRetention::Keep)?, None));
    }
    let (session, retention) = container::open(app, tenant, request.container.as_ref()).await?;
    let gate = spec.gate(&app.engine, tenant, id.to_owned(), &session, false);
    let mut choice =
        spec.plan_choice(&app.engine, tenant, conversation.items, Some((Arc::clone(&session), gate)), retention)?;
    let placed = async {
        container::copy_into(app, &session, &conversation.uploads).await?;
        // Reserved now, so that a lack of room is reported at once.
        Ok(choice.reserve().await?)
    };
    if let Err(error) = placed.await {
        choice.abandon(&app.engine).await;
        return Err(error);
    }
    let is_known = request.container.is_some();
    Ok((choice, Some(MessageContainer { is_known, ..MessageContainer::of(&app.engine, session.id(), request.caller) })))
}
