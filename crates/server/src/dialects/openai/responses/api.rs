//! The routes of the Responses API.

use std::sync::Arc;

use aludel_engine::permits::Permit;
use aludel_engine::processor_time::end_long_step;
use aludel_store::{Order, ResponseId, ResponseRecord, Tenant, TurnId};
use aludel_wire::openai::responses::{self, InputTokens, InputTokensObject, ItemDocument};
use aludel_wire::openai::{Deleted, List};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::response::{IntoResponse, Response};

use super::context::Context;
use super::include::{Include, for_client, shown_document};
use super::render::{is_response, parse_stored, stored_requests};
use super::request::ParsedRequest;
use super::start;
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params, stored_memory};
use crate::turn::{
    self, BeginRefusal, Delivery, EmptyFrames, StreamFormat, fingerprint, follow, framed, not_stored, replay_stored,
};

/// The events that tell nothing of the answer.
const EMPTY: EmptyFrames =
    EmptyFrames { openings: &["response.created", "response.in_progress"], failure: "response.failed" };

/// `POST /v1/responses`.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, ApiError> {
    let (fingerprint, memory) = (fingerprint("/v1/responses", &headers, &fields), fields.memory());
    end_long_step().await;
    let request = ParsedRequest::read(fields, host(&headers), app.engine.kernel())?;
    end_long_step().await;
    let (delivery, include) = (Delivery::of(request.stream, request.background), request.include);
    let object = async |id: &TurnId| {
        let (response, _memory) = current(&app, &tenant, &parse(id.as_str())?).await?;
        Ok(Json(for_client(response, include)).into_response())
    };
    let begun = match turn::begin(&app, &tenant, fingerprint, ResponseId::new().into(), memory, delivery) {
        Ok(begun) => begun,
        Err(BeginRefusal::Past(past, mut follower)) => {
            let id = past.id.clone();
            let replay = async || replayed(&app, &tenant, &parse(id.as_str())?, None).await;
            let answer = turn::answer_past(past, delivery, async || object(&id).await, replay).await;
            follower.note_answered();
            return answer;
        }
        Err(refusal) => return Err(not_stored(refusal)),
    };
    let (in_flight, _, is_new) = &begun;
    if *is_new {
        let started = start::response(Arc::clone(&app), tenant.clone(), request, Arc::clone(in_flight));
        turn::launch(&app, in_flight, started).await?;
    }
    let id = in_flight.id.clone();
    let forget = async || remove_if_failed(&app, &tenant, &id).await;
    turn::answer(begun, delivery, EMPTY, async || object(&id).await, forget).await
}

/// Returns the client's name for this server.
fn host(headers: &HeaderMap) -> &str {
    headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default()
}

/// `POST /v1/responses/compact`: a refusal.
pub(crate) async fn no_compaction() -> ApiError {
    ApiError::bad_request(
        "Conversations are not compacted by this server: go on without, or with `truncation: \"auto\"`, which leaves out the oldest part.",
    )
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
        let (mut response, _memory) = current(&app, &tenant, &id).await?;
        // It is stored when it is made and when it ends.
        if response.status == responses::Status::Queued && app.engine.in_flight.find(&tenant, &id.into()).is_some() {
            response.status = responses::Status::InProgress;
        }
        return Ok(Json(for_client(response, include)).into_response());
    }
    let after: Option<u64> = match params.get("starting_after") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            ApiError::invalid("starting_after", "Invalid 'starting_after': it must be an event's sequence number.")
        })?),
    };
    let turn = id.clone().into();
    if let Some(in_flight) = app.engine.in_flight.find(&tenant, &turn) {
        return Ok(follow(in_flight, after, None, StreamFormat::of(framed)));
    }
    replayed(&app, &tenant, &id, after).await
}

/// The stream of a stored response: all frames, or those after a number.
async fn replayed(app: &App, tenant: &Tenant, id: &ResponseId, after: Option<u64>) -> Result<Response, ApiError> {
    find(app, tenant, id).await?;
    let requests = stored_requests(&app.store);
    let turn = (&id.clone().into(), after);
    replay_stored(app, tenant, turn, (&*requests, "response"), StreamFormat::of(framed)).await
}

/// A response as it is stored, finished or not.
async fn current(app: &App, tenant: &Tenant, id: &ResponseId) -> Result<(responses::Response, Permit), ApiError> {
    let (record, memory) = find(app, tenant, id).await?;
    Ok((parse_stored(&record.object)?, memory))
}

/// A stored response, and its memory, which is counted before it is read.
async fn find(app: &App, tenant: &Tenant, id: &ResponseId) -> Result<(ResponseRecord, Permit), ApiError> {
    let no_response = || no_response(id.as_str());
    let memory = stored_memory(app, tenant, app.store.response_bytes(tenant, id).await?.ok_or_else(no_response)?)?;
    let record = app.store.response(tenant, id).await?;
    // The same table has rounds of Chat Completions, which are not responses.
    Ok((record.filter(is_response).ok_or_else(no_response)?, memory))
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
    let turn = id.clone().into();
    turn::stop_and_forget(&app, &tenant, &turn).await;
    if !remove(&app, &tenant, &turn).await? {
        return Err(no_response(id.as_str()));
    }
    // A repetition of the request then begins a new one.
    app.engine.in_flight.forget(&turn);
    Ok(Json(Deleted::new(id, "response")))
}

/// Removes a failed response whose id the client never gets and so could not delete. One that continues after a restart of the server has
/// not failed, and its client knows the id.
async fn remove_if_failed(app: &App, tenant: &Tenant, turn: &TurnId) -> Result<(), ApiError> {
    let Some(record) = app.store.response(tenant, &parse(turn.as_str())?).await? else { return Ok(()) };
    if parse_stored(&record.object)?.status == responses::Status::Failed {
        remove(app, tenant, turn).await?;
    }
    Ok(())
}

/// Removes everything stored about a response. Returns false if there was none.
async fn remove(app: &App, tenant: &Tenant, turn: &TurnId) -> Result<bool, ApiError> {
    app.store.delete_turn(tenant, turn).await?;
    Ok(app.store.delete_response(tenant, &parse(turn.as_str())?).await?)
}

/// `POST /v1/responses/{id}/cancel`.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let id = parse(&id)?;
    if !current(&app, &tenant, &id).await?.0.background {
        let message = "Only responses with background=true can be cancelled.";
        return Err(ApiError::bad_request(message));
    }
    turn::cancel(&app, &tenant, &id.clone().into()).await;
    let (response, _memory) = current(&app, &tenant, &id).await?;
    Ok(Json(for_client(response, Include::default())).into_response())
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, ApiError> {
    let (record, _memory) = find(&app, &tenant, &parse(&id)?).await?;
    let page = params.page(20, 100)?;
    let include = Include::of(params.all("include"));
    let items: Vec<ItemDocument> = serde_json::from_str(&record.input).map_err(ApiError::internal)?;
    let mut items: Vec<_> = items.into_iter().map(|item| shown_document(item, include)).collect();
    if page.order == Order::Descending {
        items.reverse();
    }
    let id_of = |item: &ItemDocument| item.id().unwrap_or_default().to_owned();
    if let Some(after) = &page.after {
        let index = items.iter().position(|item| id_of(item) == *after);
        items.drain(..index.map_or(items.len(), |index| index + 1));
    }
    let has_more = items.len() > page.limit;
    items.truncate(page.limit);
    Ok(Json(List::new(items, has_more, id_of)).into_response())
}

/// `POST /v1/responses/input_tokens`: an estimate, since only the model's own server could count.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    mut fields: Fields,
) -> Result<Json<InputTokens>, ApiError> {
    fields.default("model", "");
    fields.default("input", "");
    let request = ParsedRequest::read(fields, host(&headers), app.engine.kernel())?;
    let context = Context::collect(&app, &tenant, &request).await?;
    let instructions = request.instructions.as_deref().map_or(0, |text| text.len().div_ceil(4));
    let (object, input_tokens) = (InputTokensObject::It, context.tokens() + instructions);
    Ok(Json(InputTokens { object, input_tokens }))
}
