//! The route of Chat Completions.

use std::sync::Arc;

use aludel_agent::upstream::http::{ForwardTarget, Protocol};
use aludel_engine::ProgramParts;
use aludel_engine::turns::{ChoicePlan, InFlightRequest, Run, SessionRetention, TurnSpec};
use aludel_store::{ResponseId, Tenant, fresh_id};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::de::IgnoredAny;
use tracing::{Instrument, info_span};

use super::markdown::Markdown;
use super::messages::Conversation;
use super::render::{CompletionRenderer, Rounds, framed};
use super::request::{Head, ParsedRequest};
use super::writer::{ERROR, IncludeUsage, Writer};
use crate::app::App;
use crate::dialects::forward::{self, ForwardProtocol};
use crate::dialects::openai::tools::ContainerChoice;
use crate::error::ApiError;
use crate::http::{Caller, MemoryCharge, RawJson};
use crate::links::{self, Links};
use crate::raw_json::into_text;
use crate::turn::{self, Delivery, EmptyFrames, StreamFormat, fingerprint, first_failure, follow, not_stored, wait};

/// The headers of requests that are handed on.
const CHAT: ForwardProtocol = ForwardProtocol {
    target: ForwardTarget::Answers(Protocol::CHAT_COMPLETIONS),
    to_the_server: &["openai-beta"],
    to_the_client: &["openai-processing-ms", "openai-version", "x-ratelimit-"],
};

/// Headers in which chat products name the chat of a request.
const CHATS: [&str; 2] = ["x-session-id", "x-openwebui-chat-id"];

/// `POST /v1/chat/completions`.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    body: RawJson,
) -> Result<Response, ApiError> {
    let head: Head = serde_json::from_slice(&body.bytes).map_err(|error| {
        let message = match serde_json::from_slice::<IgnoredAny>(&body.bytes) {
            Ok(_) if !body.bytes.trim_ascii_start().starts_with(b"{") => "The JSON body must be an object.".to_owned(),
            _ => format!("We could not parse the JSON body of your request: {error}."),
        };
        ApiError::bad_request(message).code("invalid_json")
    })?;
    let shown = program_parts(&app, &head);
    if !head.is_ours()
        && (shown.is_none() || head.is_for_the_model_alone())
        && let Some(response) =
            forward::on(&app, &tenant, &CHAT, &head.model_name()?, head.passing(&headers, &body.bytes)).await?
    {
        return Ok(response);
    }
    let shown = shown.filter(|_| !head.is_ours());
    let fields = body.fields(&app).await?;
    let (fingerprint, memory) = (fingerprint("/v1/chat/completions", &headers, &fields), fields.memory());
    let mut request = ParsedRequest::read(fields, app.engine.kernel())?;
    if let Some(shown) = shown {
        request = request.with_interpreter(shown, chat(&headers));
    }
    let stream = request.stream;
    let delivery = Delivery::of(stream, false);
    let begun = turn::begin(&app, &tenant, fingerprint, ResponseId::new().into(), memory, delivery);
    let (in_flight, mut connection, is_new) = begun.map_err(not_stored)?;
    if is_new {
        let base = links::base(&app, &headers);
        turn::launch(
            &app,
            &in_flight,
            start_completion(Arc::clone(&app), tenant, request, base, Arc::clone(&in_flight)),
        )
        .await?;
    }
    if !stream {
        return wait(in_flight, connection, into_text).await;
    }
    first_failure(&in_flight, &mut connection, EmptyFrames { openings: &[], failure: ERROR }).await?;
    Ok(follow(in_flight, None, Some(connection), StreamFormat::of(framed)))
}

/// The parts of programs in the model's answers to clients that do not know the tool, if it has the interpreter by default.
fn program_parts(app: &App, head: &Head<'_>) -> Option<ProgramParts> {
    app.engine.models().get(&head.model_name().ok()?)?.code_interpreter
}

/// The name of the chat of a request, as chat products send it.
fn chat(headers: &HeaderMap) -> Option<&str> {
    CHATS.iter().find_map(|name| headers.get(*name)?.to_str().ok())
}

/// Validates a request, and starts the turns. Links begin with `base`.
async fn start_completion(
    app: Arc<App>,
    tenant: Tenant,
    request: ParsedRequest,
    base: String,
    in_flight: Arc<InFlightRequest>,
) -> Result<(), ApiError> {
    let (app, tenant) = (&app, &tenant);
    app.engine.models().find(&request.model)?;
    let memory = MemoryCharge::of(app, tenant)?;
    in_flight.hold(memory.clone());
    let conversation = Conversation::read(app, tenant, &request, &memory).await?;
    // The request itself counts for one answer.
    let further_answers = (request.choices as u64).saturating_sub(1);
    memory.count_file(conversation.bytes().saturating_mul(further_answers) / 2)?;
    let markdown = match request.shown {
        Some(shown) => Some((shown, app.link_secret().await?)),
        None => None,
    };
    let id = fresh_id("chatcmpl-");
    let mut choices: Vec<ChoicePlan> = Vec::new();
    for _ in 0..request.choices {
        match prepare(app, tenant, &id, &request, &conversation).await {
            Ok(choice) => choices.push(choice),
            Err(error) => {
                for mut choice in choices {
                    choice.abandon(&app.engine).await;
                }
                return Err(error);
            }
        }
    }
    let mut containers = Vec::new();
    for choice in &choices {
        let session = choice.session.as_ref();
        let markdown = markdown.as_ref().zip(session).map(|((shown, secret), session)| {
            let links = Links::to(Arc::clone(secret), &base, tenant, session.id());
            Markdown::new(*shown, app.engine.kernel().fence(), links)
        });
        containers.push((session.map(|session| session.id().to_string()), markdown));
    }
    let include_usage = IncludeUsage(request.include_usage);
    let writer = Writer::new(id, request.model, include_usage, containers, &request.stop);
    let span = info_span!("answer", api = "chat", id = writer.id());
    let renderer = CompletionRenderer::new(writer);
    let mut run = Run::new(&app.engine, tenant, in_flight, choices, Box::new(renderer));
    run.is_followed = request.stream;
    run.documents = Some(Box::new(Rounds { app: Arc::clone(app), tenant: tenant.clone() }));
    app.tasks.spawn(run.run().instrument(span));
    Ok(())
}

/// A model and a container for one answer.
async fn prepare(
    app: &Arc<App>,
    tenant: &Tenant,
    id: &str,
    request: &ParsedRequest,
    conversation: &Conversation,
) -> Result<ChoicePlan, ApiError> {
    let spec = TurnSpec {
        functions: request.functions.clone(),
        tool_choice: request.tool_choice.clone(),
        sampling: request.sampling.clone(),
        ..TurnSpec::new(request.model.clone(), conversation.instructions.clone())
    };
    let items = conversation.items.clone();
    let Some(interpreter) = &request.interpreter else {
        return Ok(spec.plan_choice(&app.engine, tenant, items, None, SessionRetention::Keep)?);
    };
    let used = conversation.container.clone();
    let lingers = !matches!(interpreter, ContainerChoice::Auto { session: Some(_), .. });
    let (session, is_new) = interpreter.open(app, tenant, used).await?;
    let retention = if is_new { SessionRetention::Own { lingers } } else { SessionRetention::Shared { lingers } };
    let gate = spec.gate(&app.engine, tenant, id.to_owned(), &session, false);
    let mut choice = spec.plan_choice(&app.engine, tenant, items, Some((Arc::clone(&session), gate)), retention)?;
    let placed = async {
        conversation.place_files(app, &session).await?;
        if request.shown.is_none() {
            // Reserved now, so that a lack of room is reported at once.
            choice.reserve().await?;
        }
        // Else the client asked for no tool, and most of its questions need no program: the first one takes a permit, and waits for it.
        Ok(())
    };
    if let Err(error) = placed.await {
        choice.abandon(&app.engine).await;
        return Err(error);
    }
    Ok(choice)
}
