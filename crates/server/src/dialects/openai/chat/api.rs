//! `POST /v1/chat/completions`.

use std::sync::Arc;

use aludel_engine::turns::{Agreement, Known, Live, Part, Past, Run, Spec};
use aludel_store::{ResponseId, Tenant, fresh_id};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use tokio::time::timeout;
use tracing::{Instrument, info_span};

use super::ask::{Ask, Head};
use super::messages::Conversation;
use super::pass;
use super::render::{Completion, Rounds, framed};
use super::writer::{IncludeUsage, Writer};
use crate::app::App;
use crate::dialects::openai::tools::Interpreter;
use crate::error::ApiError;
use crate::http::{Caller, Raw};
use crate::turn::{self, SILENCE, fingerprint, follow, leash, wait};

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    body: Raw,
) -> Result<Response, ApiError> {
    let head: Head = serde_json::from_slice(&body.bytes).map_err(|error| {
        let message = format!("We could not parse the JSON body of your request: {error}.");
        ApiError::bad_request(message).code("invalid_json")
    })?;
    if !head.is_ours()
        && let Some(response) = pass::on(&app, &head, &headers, &body.bytes).await?
    {
        return Ok(response);
    }
    let fields = body.fields()?;
    let (fingerprint, memory) = (fingerprint(&headers, &fields), fields.memory());
    let ask = Ask::read(fields, app.engine.kernel())?;
    let stream = ask.stream;
    let (live, is_new) = match app.engine.live.begin(&tenant, fingerprint, ResponseId::new().into()) {
        Err(Known::Past(past)) => return Err(gone(past)),
        Err(Known::Live(same)) => (same, false),
        Ok(live) => {
            live.hold(memory);
            (live, true)
        }
    };
    let leash = Some(leash(&live, stream));
    if is_new {
        turn::start(&app, &live, start(Arc::clone(&app), tenant, ask, Arc::clone(&live))).await?;
    }
    if !stream {
        return wait(live, leash, |object| object).await;
    }
    // What fails before the first word is an error like any other.
    if let Ok(None) = timeout(SILENCE, live.frame(0)).await
        && let Some(failure) = live.ended().await.and_then(|end| end.failure)
    {
        return Err(failure.into());
    }
    Ok(follow(live, None, leash, framed))
}

/// The answer to a repetition of what is kept nowhere.
fn gone(past: Past) -> ApiError {
    past.failure.map_or_else(|| ApiError::internal("a chat completion was taken for stored"), ApiError::from)
}

/// Checks everything that can be wrong with a request, and starts the turns.
async fn start(app: Arc<App>, tenant: Tenant, ask: Ask, live: Arc<Live>) -> Result<(), ApiError> {
    let (app, tenant) = (&app, &tenant);
    app.engine.models().find(&ask.model)?;
    let conversation = Conversation::read(app, tenant, &ask.messages).await?;
    let id = fresh_id("chatcmpl-");
    let mut parts: Vec<Part> = Vec::new();
    for _ in 0..ask.choices {
        match prepare(app, tenant, &id, &ask, &conversation).await {
            Ok(part) => parts.push(part),
            Err(error) => {
                for part in parts {
                    part.abandon(&app.engine, tenant).await;
                }
                return Err(error);
            }
        }
    }
    let containers: Vec<Option<String>> =
        parts.iter().map(|part| part.session.as_ref().map(|session| session.id().to_string())).collect();
    let stream = ask.stream.then_some(IncludeUsage(ask.include_usage));
    let writer = Writer::new(id, ask.model, stream, &containers, &ask.stop, ask.sampling.format.is_some());
    let span = info_span!("answer", api = "chat", id = writer.id());
    let mut run = Run::new(&app.engine, tenant, live, parts, Box::new(Completion::new(writer)));
    run.documents = Some(Box::new(Rounds { app: Arc::clone(app), tenant: tenant.clone() }));
    app.tasks.spawn(run.carry_out().instrument(span));
    Ok(())
}

/// A model and a container for one answer.
async fn prepare(
    app: &Arc<App>,
    tenant: &Tenant,
    id: &str,
    ask: &Ask,
    conversation: &Conversation,
) -> Result<Part, ApiError> {
    let spec = Spec {
        functions: ask.functions.clone(),
        tool_choice: ask.tool_choice.clone(),
        sampling: ask.sampling.clone(),
        ..Spec::new(ask.model.clone(), conversation.instructions.clone())
    };
    let items = conversation.items.clone();
    let Some(interpreter) = &ask.interpreter else {
        return Ok(spec.part(&app.engine, items, None, Agreement::Stays)?);
    };
    let used = conversation.container.clone();
    let is_own = used.is_none() && matches!(interpreter, Interpreter::Auto { session: None, .. });
    let lingers = !matches!(interpreter, Interpreter::Auto { session: Some(_), .. });
    let agreement = if is_own { Agreement::Own { lingers } } else { Agreement::Shared { lingers } };
    let session = interpreter.open(app, tenant, used).await?;
    let gate = spec.gate(&app.engine, tenant, id.to_owned(), &session, false);
    let part = spec.part(&app.engine, items, Some((Arc::clone(&session), gate)), agreement)?;
    let placed = async {
        conversation.place_files(app, &session).await?;
        // Known now: a request for which there is no room hears so at once.
        Ok(session.reserve().await?)
    };
    if let Err(error) = placed.await {
        part.abandon(&app.engine, tenant).await;
        return Err(error);
    }
    Ok(part)
}
