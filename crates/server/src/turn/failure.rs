//! Why a turn failed: for the client, and for the operator.

use std::time::Duration;

use aludel_agent::Ending;
use aludel_agent::upstream::UpstreamError;
use axum::http::StatusCode;

use crate::error::ApiError;

/// What a client gets in place of an answer of which nothing was written.
pub(crate) fn error_of(ending: &Ending) -> Option<ApiError> {
    let error = match ending {
        Ending::Upstream(error) => error,
        Ending::Sandbox(reason) => return Some(ApiError::internal(reason)),
        _ => return None,
    };
    Some(error_of_upstream(error))
}

/// What a client gets in place of an answer that its model did not give.
pub(crate) fn error_of_upstream(error: &UpstreamError) -> ApiError {
    let message = words_for_clients(error);
    let cause = Some(error.to_string());
    match error {
        UpstreamError::RateLimited { retry_after, .. } => {
            ApiError { cause, ..ApiError::too_many(message, retry_after.unwrap_or(Duration::from_secs(5))) }
        }
        UpstreamError::Busy { .. } => ApiError { cause, ..ApiError::too_many(message, Duration::from_secs(1)) },
        UpstreamError::Rejected { .. } | UpstreamError::NotFound { .. } => {
            ApiError { cause, ..ApiError::bad_request(message) }
        }
        _ => ApiError { cause, status: StatusCode::BAD_GATEWAY, message, ..ApiError::internal("") },
    }
}

/// What went wrong, without what only the operator should know: addresses and keys.
pub(crate) fn words_for_clients(error: &UpstreamError) -> String {
    match error {
        UpstreamError::RateLimited { detail, .. } => format!("The model is over its rate limit or quota: {detail}"),
        UpstreamError::Busy { .. } => "As many requests as this model takes are under way; try again.".into(),
        UpstreamError::Rejected { detail, .. } => format!("The model's server rejected the request: {detail}"),
        UpstreamError::Server { detail, .. } | UpstreamError::Reported { detail, .. } => {
            format!("The model's server failed: {detail}")
        }
        UpstreamError::Dropped { .. } => "The model's server ended the connection in the middle of its answer.".into(),
        UpstreamError::Idle { after, .. } => {
            format!("The model's server sent nothing for {} s.", after.as_secs())
        }
        _ => "The model cannot be asked; the server's log says why, under the request's id (x-request-id).".into(),
    }
}
