//! The routes of the Interactions API.

use std::sync::Arc;

use aludel_engine::permits::Permit;
use aludel_store::{InteractionId, InteractionRecord, Tenant, TurnId};
use aludel_wire::gemini::interactions::{Interaction, Status};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::render::stored_requests;
use super::request::ParsedRequest;
use super::start;
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, Fields, Params, stored_memory};
use crate::links;
use crate::turn::{
    self, BeginRefusal, Delivery, EmptyFrames, StreamFormat, fingerprint, follow, framed, not_stored, replay_stored,
};

/// The events that tell nothing of the answer.
const EMPTY: EmptyFrames =
    EmptyFrames { openings: &["interaction.created", "interaction.status_update"], failure: "error" };

/// `POST /v1/interactions`.
pub(in crate::dialects::gemini) async fn create(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    headers: HeaderMap,
    fields: Fields,
) -> Result<Response, ApiError> {
    let (fingerprint, memory) = (fingerprint("/v1/interactions", &headers, &fields), fields.memory());
    let request = ParsedRequest::read(fields)?;
    let delivery = Delivery::of(request.stream, request.background);
    let object = async |id: &TurnId| {
        let (interaction, _memory) = current(&app, &tenant, &parse(id.as_str())?).await?;
        Ok(Json(interaction).into_response())
    };
    let begun = match turn::begin(&app, &tenant, fingerprint, InteractionId::new().into(), memory, delivery) {
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
        let base = links::base(&app, &headers);
        let started = start::interaction(Arc::clone(&app), tenant.clone(), request, base, Arc::clone(in_flight));
        turn::launch(&app, in_flight, started).await?;
    }
    let id = in_flight.id.clone();
    let forget = async || remove_if_failed(&app, &tenant, &parse(id.as_str())?).await;
    turn::answer(begun, delivery, EMPTY, async || object(&id).await, forget).await
}

/// `GET /v1/interactions/{id}`.
pub(in crate::dialects::gemini) async fn retrieve(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
    params: Params,
) -> Result<Response, ApiError> {
    let id = parse(&id)?;
    if params.get("stream") != Some("true") {
        let (InteractionRecord { object, input, .. }, _memory) = find(&app, &tenant, &id).await?;
        let mut interaction = read(&object)?;
        // It is stored when it is made and when it ends.
        if interaction.status == Status::Queued && app.engine.in_flight.find(&tenant, &id.into()).is_some() {
            interaction.status = Status::InProgress;
        }
        if params.get("include_input") == Some("true") {
            interaction.input = Some(serde_json::from_str(&input).map_err(ApiError::internal)?);
        }
        return Ok(Json(interaction).into_response());
    }
    let after: Option<u64> = match params.get("last_event_id") {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| {
            ApiError::invalid("last_event_id", "'last_event_id' must be the 'event_id' of an event of this stream.")
        })?),
    };
    if let Some(in_flight) = app.engine.in_flight.find(&tenant, &id.clone().into()) {
        return Ok(follow(in_flight, after, None, StreamFormat::of(framed)));
    }
    replayed(&app, &tenant, &id, after).await
}

/// The stream of a stored interaction: all frames, or those after a number.
async fn replayed(app: &App, tenant: &Tenant, id: &InteractionId, after: Option<u64>) -> Result<Response, ApiError> {
    find(app, tenant, id).await?;
    let requests = stored_requests(&app.store);
    let turn = (&id.clone().into(), after);
    replay_stored(app, tenant, turn, (&*requests, "interaction"), StreamFormat::of(framed)).await
}

/// An interaction as it is stored, finished or not.
async fn current(app: &App, tenant: &Tenant, id: &InteractionId) -> Result<(Interaction, Permit), ApiError> {
    let (record, memory) = find(app, tenant, id).await?;
    Ok((read(&record.object)?, memory))
}

/// A stored interaction, and its memory, which is counted before it is read.
async fn find(app: &App, tenant: &Tenant, id: &InteractionId) -> Result<(InteractionRecord, Permit), ApiError> {
    let no_interaction = || no_interaction(id.as_str());
    let bytes = app.store.interaction_bytes(tenant, id).await?.ok_or_else(no_interaction)?;
    let memory = stored_memory(app, tenant, bytes)?;
    Ok((app.store.interaction(tenant, id).await?.ok_or_else(no_interaction)?, memory))
}

fn read(object: &str) -> Result<Interaction, ApiError> {
    let whole = serde_json::from_str(object);
    whole.map_err(|error| ApiError::internal(format!("a stored interaction is not whole: {error}")))
}

fn parse(id: &str) -> Result<InteractionId, ApiError> {
    InteractionId::parse(id).ok_or_else(|| no_interaction(id))
}

fn no_interaction(id: &str) -> ApiError {
    ApiError::not_found(format!("The interaction '{id}' was not found."))
}

/// `DELETE /v1/interactions/{id}`. Its clients accept only status 200.
pub(in crate::dialects::gemini) async fn delete(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = parse(&id)?;
    let turn = id.clone().into();
    turn::stop_and_forget(&app, &tenant, &turn).await;
    if !remove(&app, &tenant, &id).await? {
        return Err(no_interaction(id.as_str()));
    }
    // A repetition of the request then begins a new one.
    app.engine.in_flight.forget(&turn);
    Ok(Json(json!({})))
}

/// Removes a failed interaction whose id the client never gets and so could not delete. One that continues after a restart of the server
/// has not failed, and its client knows the id.
async fn remove_if_failed(app: &App, tenant: &Tenant, id: &InteractionId) -> Result<(), ApiError> {
    let Some(record) = app.store.interaction(tenant, id).await? else { return Ok(()) };
    if read(&record.object)?.status == Status::Failed {
        remove(app, tenant, id).await?;
    }
    Ok(())
}

/// Removes everything stored about an interaction. Returns false if there was none.
async fn remove(app: &App, tenant: &Tenant, id: &InteractionId) -> Result<bool, ApiError> {
    app.store.delete_turn(tenant, &id.clone().into()).await?;
    Ok(app.store.delete_interaction(tenant, id).await?)
}

/// `POST /v1/interactions/{id}/cancel`. An ended interaction stays as it is.
pub(in crate::dialects::gemini) async fn cancel(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let id = parse(&id)?;
    find(&app, &tenant, &id).await?;
    turn::cancel(&app, &tenant, &id.clone().into()).await;
    let (interaction, _memory) = current(&app, &tenant, &id).await?;
    Ok(Json(interaction).into_response())
}
