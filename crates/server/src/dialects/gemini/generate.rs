//! `POST /v1/models/{model}:generateContent`, and the other methods of a model.

use std::sync::Arc;

use aludel_agent::CodeInterpreter;
use aludel_engine::Session;
use aludel_engine::processor_time::end_long_step;
use aludel_engine::sessions::SessionChoice;
use aludel_engine::turns::{ChoicePlan, InFlightRequest, Run, SessionRetention, TurnSpec};
use aludel_store::{Tenant, TurnId, fresh_id};
use aludel_wire::gemini::{GenerateContentRequest, TokenCount};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tracing::{Instrument, info_span};

use super::attachments::AttachedFiles;
use super::conversation::{Conversation, named_in};
use super::models::plain;
use super::render::{ContentRenderer, framed};
use super::request::ParsedRequest;
use super::writer::ERROR;
use super::writer::Writer;
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Fields, MemoryCharge, Params};
use crate::links::{self, Links};
use crate::raw_json::into_text;
use crate::turn::{self, Delivery, EmptyFrames, StreamFormat, fingerprint, first_failure, follow, not_stored, wait};

/// Keep-alive of a stream: the clients accept nothing else between two frames.
const BLANK: &str = "\n";
/// Average bytes of JSON in a token.
const BYTES_PER_TOKEN: usize = 4;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// One object.
    Whole,
    /// Frames.
    Stream,
    /// A list of one object: a stream for clients that do not parse frames.
    List,
}

/// `POST /v1/models/{model}:{method}`.
pub(super) async fn call(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(call): Path<String>,
    params: Params,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, ApiError> {
    let (model, method) = call.rsplit_once(':').unwrap_or((&call, ""));
    let model = plain(model).to_owned();
    app.engine.models().find(&model)?;
    let form = match method {
        "generateContent" => Form::Whole,
        "streamGenerateContent" if params.get("alt") == Some("sse") => Form::Stream,
        "streamGenerateContent" => Form::List,
        "countTokens" => return count(fields),
        _ => {
            let message = format!(
                "Models have no method '{method}' here; there are generateContent, streamGenerateContent and countTokens."
            );
            return Err(ApiError::not_found(message));
        }
    };
    let route = format!("{model}:{method}");
    let (fingerprint, memory) = (fingerprint(&route, &headers, &fields), fields.memory());
    end_long_step().await;
    let request = ParsedRequest::read(fields)?;
    end_long_step().await;
    let delivery = Delivery::of(form == Form::Stream, false);
    let begun = turn::begin(&app, &tenant, fingerprint, TurnId::new(), memory, delivery);
    let (in_flight, mut connection, is_new) = begun.map_err(not_stored)?;
    if is_new {
        let base = links::base(&app, &headers);
        let is_followed = form == Form::Stream;
        turn::launch(
            &app,
            &in_flight,
            start_generation(Arc::clone(&app), tenant, model, request, base, is_followed, Arc::clone(&in_flight)),
        )
        .await?;
    }
    match form {
        Form::Whole => wait(in_flight, connection, into_text).await,
        Form::List => wait(in_flight, connection, |object| format!("[{object}]")).await,
        Form::Stream => {
            first_failure(&in_flight, &mut connection, EmptyFrames { openings: &[], failure: ERROR }).await?;
            Ok(follow(in_flight, None, Some(connection), StreamFormat { framed, silence: BLANK }))
        }
    }
}

/// Estimates the tokens of a request: only the model's own server could count them.
fn count(mut fields: Fields) -> Result<Response, ApiError> {
    let nested: Option<Value> = fields.optional("generateContentRequest")?;
    let asked: GenerateContentRequest = match nested {
        Some(Value::Object(nested)) => Fields::from(nested).read()?,
        _ => fields.read()?,
    };
    let bytes = serde_json::to_string(&asked).unwrap_or_default().len();
    let total_tokens = bytes.div_ceil(BYTES_PER_TOKEN) as u64;
    Ok(Json(TokenCount { total_tokens }).into_response())
}

/// Validates a request, and starts the turn. Links begin with `base`; `is_followed` is true if the client reads a stream.
async fn start_generation(
    app: Arc<App>,
    tenant: Tenant,
    model: String,
    request: ParsedRequest,
    base: String,
    is_followed: bool,
    in_flight: Arc<InFlightRequest>,
) -> Result<(), ApiError> {
    let id = fresh_id("gen_");
    // Before anything is taken that would have to be given back.
    let secret = app.link_secret().await?;
    let memory = MemoryCharge::of(&app, &tenant)?;
    in_flight.hold(memory.clone());
    let (choice, session) = prepare(&app, &tenant, &model, &id, &request, &memory).await?;
    let links = session.map(|session| Links::to(secret, &base, &tenant, session.id()));
    let is_formed = request.sampling.format.is_some();
    let writer = Writer::new(id.clone(), model, links, request.stop, request.tells_thoughts);
    let writer = if is_formed { writer.without_file_links() } else { writer };
    let span = info_span!("answer", api = "gemini", id);
    let renderer = ContentRenderer::new(writer);
    let mut run = Run::new(&app.engine, &tenant, in_flight, vec![choice], Box::new(renderer));
    run.is_followed = is_followed;
    app.tasks.spawn(run.run().instrument(span));
    Ok(())
}

/// A model, and a session if it may run programs.
async fn prepare(
    app: &Arc<App>,
    tenant: &Tenant,
    model: &str,
    id: &str,
    request: &ParsedRequest,
    memory: &MemoryCharge,
) -> Result<(ChoicePlan, Option<Arc<Session>>), ApiError> {
    let tool = CodeInterpreter::name_beside(app.engine.kernel(), &request.functions);
    let attached =
        AttachedFiles::find(app, tenant, named_in(&request.contents).collect(), request.runs_code, memory).await?;
    let conversation = Conversation::read(&request.contents, &attached, request.runs_code.then_some(tool.as_str()))?;
    end_long_step().await;
    let spec = TurnSpec {
        functions: request.functions.clone(),
        tool_choice: request.tool_choice.clone(),
        sampling: request.sampling.clone(),
        ..TurnSpec::new(model, request.instructions.clone())
    };
    let items = conversation.items.clone();
    if !request.runs_code {
        return Ok((spec.plan_choice(&app.engine, tenant, items, None, SessionRetention::Keep)?, None));
    }
    let (choice, retention) = match conversation.session.clone() {
        Some(session) => (SessionChoice::Reuse(session), SessionRetention::Shared { lingers: true }),
        None => (SessionChoice::Auto { file_ids: Vec::new(), memory: None }, SessionRetention::Own { lingers: true }),
    };
    let session = app.engine.sessions.open(tenant, choice).await?;
    let gate = spec.gate(&app.engine, tenant, id.to_owned(), &session, false);
    let mut choice = spec.plan_choice(&app.engine, tenant, items, Some((Arc::clone(&session), gate)), retention)?;
    let placed = async {
        conversation.inputs.copy_into(app, &session).await?;
        // Reserved now, so that a lack of room is reported at once.
        Ok(choice.reserve().await?)
    };
    if let Err(error) = placed.await {
        choice.abandon(&app.engine).await;
        return Err(error);
    }
    Ok((choice, Some(session)))
}
