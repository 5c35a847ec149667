//! Answers to requests whose answers are kept: clients know an answer by its id, and can ask for it again.

use std::sync::Arc;

use aludel_engine::turns::{InFlightRequest, PastRequest};
use axum::response::Response;

use super::delivery::{Delivery, EmptyFrames, StreamFormat, WaitingClient, first_failure, follow, framed, wait};
use super::start::started;
use crate::error::ApiError;
use crate::raw_json::into_text;

/// Answers a request that is under way. `object` renders the answer as it is stored by now; `forget` removes a failed one, whose id the
/// client never gets.
pub(crate) async fn answer(
    (in_flight, mut connection, is_new): (Arc<InFlightRequest>, WaitingClient, bool),
    delivery: Delivery,
    empty: EmptyFrames,
    object: impl AsyncFnOnce() -> Result<Response, ApiError>,
    forget: impl AsyncFnOnce() -> Result<(), ApiError>,
) -> Result<Response, ApiError> {
    match delivery {
        Delivery::Stream => {
            if let Err(failure) = first_failure(&in_flight, &mut connection, empty).await {
                forget().await?;
                return Err(failure);
            }
            Ok(follow(in_flight, None, Some(connection), StreamFormat::of(framed)))
        }
        Delivery::Whole => {
            let answer = wait(in_flight, connection, into_text).await;
            if answer.is_err() {
                forget().await?;
            }
            answer
        }
        Delivery::Background { streams: true } => {
            Ok(follow(in_flight, None, Some(connection), StreamFormat::of(framed)))
        }
        Delivery::Background { streams: false } => {
            if !is_new {
                started(&in_flight).await?;
            }
            let begun = object().await;
            connection.note_answered();
            begun
        }
    }
}

/// Answers a repetition of a request that is no longer in memory. `replay` answers with the stored events.
pub(crate) async fn answer_past(
    past: PastRequest,
    delivery: Delivery,
    object: impl AsyncFnOnce() -> Result<Response, ApiError>,
    replay: impl AsyncFnOnce() -> Result<Response, ApiError>,
) -> Result<Response, ApiError> {
    match (past.failure, delivery) {
        (Some(failure), _) if !past.is_stored => Err(failure.into()),
        (Some(failure), Delivery::Whole) => Err(failure.into()),
        (_, Delivery::Stream | Delivery::Background { streams: true }) => replay().await,
        (_, Delivery::Whole | Delivery::Background { streams: false }) => object().await,
    }
}
