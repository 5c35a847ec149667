//! The routes of the Responses API.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::{Agent, Approval, CodeInterpreter, OnDemand};
use aludel_session::{FileEntry, mime_of};
use aludel_store::{Order, ResponseId, ResponseRecord, Tenant};
use aludel_wire::openai::{Deleted, List};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::ask::{Ask, Include, Interpreter};
use super::context::Context;
use super::live::{End, Fingerprint, Live};
use super::run::{Keep, Run};
use super::stream::{self, SILENCE};
use super::writer::{Status, Told, Writer, shown, shown_item};
use crate::app::App;
use crate::containers::{Container, ROOT};
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};

/// How long a turn goes on without the client that asked for it: clients that gave up ask again, and then find it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Events of one response that are read at once.
const EVENTS: usize = 1_000_000;

/// `POST /v1/responses`.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, ApiError> {
    let fingerprint = fingerprint(&headers, &fields);
    let ask = Ask::read(fields, host(&headers))?;
    let (stream, background, include) = (ask.stream, ask.background, ask.include);
    let live = match app.responses.begin(&tenant, fingerprint, ResponseId::new()) {
        Err(same) => same,
        Ok(live) => {
            let id = live.id.clone();
            if let Err(error) = start(&app, &tenant, ask, Arc::clone(&live)).await {
                app.responses.forget(&id);
                return Err(error);
            }
            live
        }
    };
    let leash = (!background).then(|| leash(&live, stream));
    match (stream, background) {
        (true, _) => Ok(stream::follow(live, 0, leash)),
        (false, true) => Ok(Json(shown(current(&app, &tenant, &live.id).await?, include)).into_response()),
        (false, false) => wait(live, leash, include).await,
    }
}

/// What the client calls this server.
fn host(headers: &HeaderMap) -> &str {
    headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

fn fingerprint(headers: &HeaderMap, fields: &Fields) -> Fingerprint {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_retry = text("x-stainless-retry-count").is_some_and(|count| count.trim() != "0");
    Fingerprint::new(text("idempotency-key"), &fields.to_json(), is_retry)
}

/// Ends the turn some time after it is dropped, unless it has ended by itself; at once where the client was listening to every word.
fn leash(live: &Arc<Live>, streams: bool) -> DropGuard {
    let dropped = CancellationToken::new();
    let (token, live) = (dropped.clone(), Arc::clone(live));
    tokio::spawn(async move {
        tokio::select! {
            _ = live.ended() => return,
            () = token.cancelled() => {}
        }
        if !streams {
            let _ended = timeout(PATIENCE, live.ended()).await;
        }
        live.cancel.cancel();
    });
    dropped.drop_guard()
}

/// Checks everything that can be wrong with a request, and starts the turn.
async fn start(app: &Arc<App>, tenant: &Tenant, ask: Ask, live: Arc<Live>) -> Result<(), ApiError> {
    let model = app.model(&ask.model)?.clone();
    let context = Context::collect(app, tenant, &ask).await?;
    let container = match &ask.interpreter {
        Some(interpreter) => Some(open(app, tenant, interpreter, &context).await?),
        None => None,
    };
    let (said, items) = context.for_model(app, tenant).await?;
    let instructions = [ask.instructions.clone().unwrap_or_default(), said].join("\n\n").trim().to_owned();
    let mut agent = Agent::builder(model.upstream)
        .instructions(instructions)
        .tool_choice(ask.tool_choice.clone())
        .sampling(ask.sampling.clone());
    if let Some(calls) = ask.max_tool_calls {
        agent = agent.max_programs(calls);
    }
    if let Some(container) = &container {
        let mut interpreter = CodeInterpreter::on_demand(on_demand(container).await?).packages(app.packages.clone());
        if ask.mcp.as_ref().is_some_and(|mcp| mcp.asks) {
            interpreter = interpreter.approve(async |_| Approval::Later);
        }
        agent = agent.code_interpreter(interpreter);
    }
    for tool in &ask.functions {
        agent = agent.client_tool(tool.clone());
    }
    let mut base = ask.echo.clone();
    base.insert("id".into(), live.id.as_str().into());
    base.insert("object".into(), "response".into());
    base.insert("created_at".into(), aludel_store::now().into());
    let mut writer = Writer::new(base, ask.include, ask.mcp.map(|mcp| mcp.label));
    if let Some(container) = &container {
        writer.set_container(container.id().to_string());
    }
    let keep = match (ask.store, ask.background) {
        (true, _) => Keep::Forever,
        (false, true) => Keep::ForAWhile,
        (false, false) => Keep::Not,
    };
    let mut run = Run {
        app: Arc::clone(app),
        tenant: tenant.clone(),
        live,
        agent: agent.build(),
        items,
        truncate: ask.truncate,
        container,
        writer,
        keep,
        input: context.into_new(),
        conversation: ask.conversation,
        unsaved: Vec::new(),
        ran_code: false,
    };
    run.begin(ask.background).await?;
    app.tasks.spawn(run.carry_out());
    Ok(())
}

/// The container's session, which is made when the first program is to run: many answers need none.
/// Room for it is kept from now on: who asks when there is none hears so at once.
async fn on_demand(container: &Arc<Container>) -> Result<OnDemand, ApiError> {
    container.reserve().await?;
    let files = container.files().await?.into_iter().filter_map(|file| {
        let path = file.path.strip_prefix(ROOT)?.trim_start_matches('/').to_owned();
        let mime = mime_of(&path);
        Some(FileEntry { path, size: file.bytes, mime })
    });
    let opened = Arc::clone(container);
    Ok(OnDemand::new(container.limits().clone(), files.collect(), move || {
        let container = Arc::clone(&opened);
        async move { container.session().await.map_err(|error| error.cause.unwrap_or(error.message)) }
    }))
}

async fn open(
    app: &Arc<App>,
    tenant: &Tenant,
    interpreter: &Interpreter,
    context: &Context,
) -> Result<Arc<Container>, ApiError> {
    let used = context.container();
    let container = app.containers.open(tenant, interpreter.choice(used.clone())).await?;
    if let (Interpreter::Auto { file_ids, .. }, Some(_)) = (interpreter, used) {
        let present: Vec<String> = container.files().await?.into_iter().map(|file| file.path).collect();
        for id in file_ids {
            let file = app.store.file(tenant, id).await?;
            let file = file.ok_or_else(|| crate::files::no_file(id.as_str()).param("file_ids"))?;
            if !present.iter().any(|path| path.ends_with(&format!("/{}", file.filename))) {
                container.add_stored_file(&file).await?;
            }
        }
    }
    context.place_files(app, tenant, &container).await?;
    Ok(container)
}

/// Answers when the response is done. Clients and proxies give up on a silent connection, so after a while blanks are sent, which may
/// stand before JSON; the status is 200 then, whatever comes.
async fn wait(live: Arc<Live>, leash: Option<DropGuard>, include: Include) -> Result<Response, ApiError> {
    if let Ok(end) = timeout(SILENCE, live.ended()).await {
        drop(leash);
        return answer(end, include).map(|object| Json(object).into_response());
    }
    let chunks = unfold(Some((live, leash)), move |state| async move {
        let (live, leash) = state?;
        match timeout(SILENCE, live.ended()).await {
            Err(_) => Some((Ok::<_, Infallible>(Bytes::from_static(b" ")), Some((live, leash)))),
            Ok(end) => {
                let object = end.map(|end| shown(end.object, include)).unwrap_or_default();
                Some((Ok(Bytes::from(object.to_string())), None))
            }
        }
    });
    Ok(([(CONTENT_TYPE, "application/json")], Body::from_stream(chunks)).into_response())
}

fn answer(end: Option<End>, include: Include) -> Result<Value, ApiError> {
    match end {
        Some(End { error: Some(error), .. }) => Err(error),
        Some(End { object, .. }) => Ok(shown(object, include)),
        None => Err(ApiError::internal("a response ended without an end")),
    }
}

/// `GET /v1/responses/{id}`.
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, ApiError> {
    let id = parse(&id)?;
    if params.get("stream") != Some("true") {
        let include = Include::of(params.all("include"));
        return Ok(Json(shown(current(&app, &tenant, &id).await?, include)).into_response());
    }
    let after: Option<u64> = match params.get("starting_after") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            ApiError::invalid("starting_after", "Invalid 'starting_after': it must be an event's sequence number.")
        })?),
    };
    if let Some(live) = app.responses.find(&tenant, &id) {
        let from = after.map_or(0, |after| usize::try_from(after).unwrap_or(usize::MAX).saturating_add(1));
        return Ok(stream::follow(live, from, None));
    }
    find(&app, &tenant, &id).await?;
    let events = app.store.events(&tenant, &id, after, EVENTS).await?;
    let told = events.into_iter().filter_map(|(sequence, text)| {
        let kind = serde_json::from_str::<Value>(&text).ok()?.get("type")?.as_str()?.to_owned();
        Some(Told { sequence, kind, text })
    });
    Ok(stream::replay(&told.collect::<Vec<_>>()))
}

/// The object of a response, finished or not.
async fn current(app: &App, tenant: &Tenant, id: &ResponseId) -> Result<Value, ApiError> {
    Ok(find(app, tenant, id).await?.object)
}

async fn find(app: &App, tenant: &Tenant, id: &ResponseId) -> Result<ResponseRecord, ApiError> {
    app.store.response(tenant, id).await?.ok_or_else(|| no_response(id.as_str()))
}

fn parse(id: &str) -> Result<ResponseId, ApiError> {
    ResponseId::parse(id).ok_or_else(|| no_response(id))
}

fn no_response(id: &str) -> ApiError {
    ApiError::not_found(format!("Response with id '{id}' not found."))
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Deleted>, ApiError> {
    let id = parse(&id)?;
    if let Some(live) = app.responses.find(&tenant, &id) {
        live.cancel.cancel();
        let _ended = timeout(PATIENCE, live.ended()).await;
        app.responses.forget(&id);
    }
    if !app.store.delete_response(&tenant, &id).await? {
        return Err(no_response(id.as_str()));
    }
    Ok(Json(Deleted::new(id, "response")))
}

/// `POST /v1/responses/{id}/cancel`.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = parse(&id)?;
    let object = current(&app, &tenant, &id).await?;
    if object.get("background") != Some(&Value::Bool(true)) {
        let message = "Only responses with background=true can be cancelled.";
        return Err(ApiError::bad_request(message));
    }
    if let Some(live) = app.responses.find(&tenant, &id).filter(|live| !live.has_ended()) {
        live.cancel.cancel();
        let _ended = timeout(PATIENCE, live.ended()).await;
    }
    Ok(Json(shown(current(&app, &tenant, &id).await?, Include::default())))
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    params: Params,
) -> Result<Json<List<Value>>, ApiError> {
    let record = find(&app, &tenant, &parse(&id)?).await?;
    let page = params.page(20, 100)?;
    let include = Include::of(params.all("include"));
    let mut items: Vec<Value> = record.input.into_iter().map(|item| shown_item(item, include)).collect();
    if page.order == Order::Descending {
        items.reverse();
    }
    let id_of = |item: &Value| item.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(after) = &page.after {
        let place = items.iter().position(|item| id_of(item) == *after);
        items.drain(..place.map_or(items.len(), |place| place + 1));
    }
    let has_more = items.len() > page.limit;
    items.truncate(page.limit);
    Ok(Json(List::new(items, has_more, id_of)))
}

/// `POST /v1/responses/input_tokens`: an estimate, for only the model's own server could count.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    mut fields: Fields,
) -> Result<Json<Value>, ApiError> {
    fields.default("model", "");
    fields.default("input", "");
    let ask = Ask::read(fields, host(&headers))?;
    let context = Context::collect(&app, &tenant, &ask).await?;
    let instructions = ask.instructions.as_deref().map_or(0, |text| text.len().div_ceil(4));
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": context.tokens() + instructions })))
}

/// Says of what a server that died left unfinished that it failed.
pub(crate) async fn end_unfinished(app: &App) -> Result<(), ApiError> {
    for (tenant, id) in app.store.responses_with_status(&["in_progress", "queued"]).await? {
        let Some(mut record) = app.store.response(&tenant, &id).await? else { continue };
        let next = app.store.events(&tenant, &id, None, EVENTS).await?.last().map_or(0, |(sequence, _)| sequence + 1);
        let error =
            json!({ "code": "server_error", "message": "The server was stopped before the response was done." });
        let object = record.object.as_object_mut().map(std::mem::take).unwrap_or_default();
        let mut object: Map<String, Value> = object;
        object.insert("status".into(), Status::Failed { code: "", message: String::new() }.word().into());
        object.insert("error".into(), error);
        record.object = Value::Object(object);
        let event = json!({ "type": "response.failed", "sequence_number": next, "response": record.object });
        app.store.append_events(&tenant, &id, vec![(next, event.to_string())]).await?;
        app.store.put_response(&tenant, record).await?;
    }
    Ok(())
}
