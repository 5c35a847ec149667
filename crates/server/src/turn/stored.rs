//! Turns whose object is stored, such as a response: their streams, cancelling and deleting.

use aludel_engine::turns::{self, StoredRequests};
use aludel_store::{Tenant, TurnId};
use axum::response::Response;

use super::delivery::{StreamFormat, replay, stop};
use crate::app::App;
use crate::error::ApiError;
use crate::http::memory;

/// Bytes of memory for each byte that a turn's events count in the store.
const COPIES_OF_EVENTS: u64 = 3;

/// The stream of a stored turn, rendered again: all frames, or those after a number. `object` is its protocol's word for the turn.
pub(crate) async fn replay_stored(
    app: &App,
    tenant: &Tenant,
    (id, after): (&TurnId, Option<u64>),
    (requests, object): (&dyn StoredRequests, &str),
    form: StreamFormat,
) -> Result<Response, ApiError> {
    let Some(turn) = app.store.turn(tenant, id).await? else {
        let message = format!("The stream of this {object} is not kept any more; retrieve it without 'stream'.");
        return Err(ApiError::invalid("stream", message));
    };
    // The events are in memory as texts, and as what is read of them.
    let bytes = app.store.turn_bytes(tenant, id).await?.saturating_mul(COPIES_OF_EVENTS);
    let events = memory(app, tenant, usize::try_from(bytes).unwrap_or(usize::MAX))?;
    let frames = turns::replay(&app.engine, requests, &turn, after).await?;
    drop(events);
    replay(app, tenant, frames, form)
}

/// Cancels a turn, and waits a while for its end. One that has ended stays as it is.
pub(crate) async fn cancel(app: &App, tenant: &Tenant, id: &TurnId) {
    if let Some(in_flight) = app.engine.in_flight.find(tenant, id).filter(|in_flight| !in_flight.has_ended()) {
        stop(&in_flight).await;
    }
}

/// Cancels a turn that is about to be deleted, waits a while for its end, and forgets it.
pub(crate) async fn stop_and_forget(app: &App, tenant: &Tenant, id: &TurnId) {
    if let Some(in_flight) = app.engine.in_flight.find(tenant, id) {
        stop(&in_flight).await;
        app.engine.in_flight.forget(id);
    }
}
