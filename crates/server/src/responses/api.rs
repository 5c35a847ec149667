//! The routes of the Responses API.

use std::sync::Arc;

use aludel_agent::{Agent, Approval, CodeInterpreter};
use aludel_store::{Order, ResponseId, ResponseRecord, Tenant};
use aludel_wire::openai::{Deleted, List};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::ask::{Ask, Include};
use super::context::Context;
use super::run::{Keep, Run};
use super::writer::{Status, Writer, framed, shown, shown_item};
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params};
use crate::telemetry::{carried, watched};
use crate::turn::{Fingerprint, Live, PATIENCE, Told, follow, leash, on_demand, replay, wait};

/// Events of one response that are read at once.
const EVENTS: usize = 1_000_000;

/// `POST /v1/responses`.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, ApiError> {
    let fingerprint = Fingerprint::of(&headers, &fields);
    let ask = Ask::read(fields, host(&headers))?;
    let (stream, background, include) = (ask.stream, ask.background, ask.include);
    let live = match app.live.begin(&tenant, fingerprint, ResponseId::new()) {
        Err(same) => same,
        Ok(live) => {
            let id = live.id.clone();
            if let Err(error) = start(&app, &tenant, ask, Arc::clone(&live)).await {
                app.live.forget(&id);
                return Err(error);
            }
            live
        }
    };
    let leash = (!background).then(|| leash(&live, stream));
    match (stream, background) {
        (true, _) => Ok(follow(live, 0, leash, framed)),
        (false, true) => Ok(Json(shown(current(&app, &tenant, &live.id).await?, include)).into_response()),
        (false, false) => wait(live, leash, move |object| shown(object, include)).await,
    }
}

/// What the client calls this server.
fn host(headers: &HeaderMap) -> &str {
    headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

/// Checks everything that can be wrong with a request, and starts the turn.
async fn start(app: &Arc<App>, tenant: &Tenant, ask: Ask, live: Arc<Live>) -> Result<(), ApiError> {
    let model = app.models().find(&ask.model)?.clone();
    let context = Context::collect(app, tenant, &ask).await?;
    let container = match &ask.interpreter {
        Some(interpreter) => {
            let container = interpreter.open(app, tenant, context.container()).await?;
            context.place_files(app, tenant, &container).await?;
            Some(container)
        }
        None => None,
    };
    let (said, items) = context.for_model(app, tenant).await?;
    let instructions = [ask.instructions.clone().unwrap_or_default(), said].join("\n\n").trim().to_owned();
    let mut agent = Agent::builder(watched(&model))
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
    app.tasks.spawn(carried(run.live.id.to_string(), run.carry_out()));
    Ok(())
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
    if let Some(live) = app.live.find(&tenant, &id) {
        let from = after.map_or(0, |after| usize::try_from(after).unwrap_or(usize::MAX).saturating_add(1));
        return Ok(follow(live, from, None, framed));
    }
    find(&app, &tenant, &id).await?;
    let events = app.store.events(&tenant, &id, after, EVENTS).await?;
    let told = events.into_iter().filter_map(|(sequence, text)| {
        let kind = serde_json::from_str::<Value>(&text).ok()?.get("type")?.as_str()?.to_owned();
        Some(Told { sequence, kind, text })
    });
    Ok(replay(&told.collect::<Vec<_>>(), framed))
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
    if let Some(live) = app.live.find(&tenant, &id) {
        live.cancel.cancel();
        let _ended = timeout(PATIENCE, live.ended()).await;
        app.live.forget(&id);
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
    if let Some(live) = app.live.find(&tenant, &id).filter(|live| !live.has_ended()) {
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
