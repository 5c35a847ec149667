//! Refusals in Google's words.

use aludel_wire::gemini::{Error, ErrorEnvelope};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::ApiError;

/// Renders a refusal.
pub(crate) fn refuse(error: &ApiError, _request_id: &str) -> Response {
    (error.status, Json(envelope(error))).into_response()
}

/// Renders a refusal as it stands in a body, or in a stream.
pub(super) fn envelope(error: &ApiError) -> ErrorEnvelope {
    let retry = error.retry_after.map(|after| {
        json!({ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": format!("{}s", after.as_secs().max(1)) })
    });
    let message = match &error.param {
        Some(param) if !error.message.contains(param.as_str()) => format!("{param}: {}", error.message),
        _ => error.message.clone(),
    };
    let (code, status) = (error.status.as_u16(), status_of(error).to_owned());
    ErrorEnvelope { error: Error { code, message, status, details: retry.into_iter().collect() } }
}

/// The code of a refusal to make something under a name that is taken.
pub(super) const ALREADY_EXISTS: &str = "already_exists";

/// The name of a refusal's status in gRPC.
pub(super) fn status_of(error: &ApiError) -> &'static str {
    use StatusCode as Of;
    match error.status {
        Of::UNAUTHORIZED => "UNAUTHENTICATED",
        Of::FORBIDDEN => "PERMISSION_DENIED",
        Of::NOT_FOUND => "NOT_FOUND",
        Of::METHOD_NOT_ALLOWED | Of::NOT_IMPLEMENTED => "UNIMPLEMENTED",
        Of::CONFLICT if error.code == Some(ALREADY_EXISTS) => "ALREADY_EXISTS",
        Of::CONFLICT => "ABORTED",
        Of::TOO_MANY_REQUESTS | Of::INSUFFICIENT_STORAGE => "RESOURCE_EXHAUSTED",
        Of::SERVICE_UNAVAILABLE | Of::BAD_GATEWAY => "UNAVAILABLE",
        Of::GATEWAY_TIMEOUT | Of::REQUEST_TIMEOUT => "DEADLINE_EXCEEDED",
        status if status.is_server_error() => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    }
}
