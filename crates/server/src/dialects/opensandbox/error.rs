//! Refusals in OpenSandbox's words.

use aludel_engine::{Error, Missing};
use aludel_wire::opensandbox;
use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use crate::client_sandboxes::refusal;
use crate::error::ApiError;

/// Renders a refusal.
pub(super) fn refuse(error: &ApiError, _request_id: &str) -> Response {
    // Codes of other dialects are in lower case.
    let own = error.code.filter(|code| code.starts_with(|first: char| first.is_ascii_uppercase()));
    let code = own.unwrap_or(match error.status {
        StatusCode::BAD_REQUEST => "INVALID_REQUEST_BODY",
        StatusCode::UNAUTHORIZED => "INVALID_API_KEY",
        StatusCode::FORBIDDEN => "FORBIDDEN",
        StatusCode::NOT_FOUND => "NOT_FOUND",
        StatusCode::CONFLICT => "CONFLICT",
        StatusCode::TOO_MANY_REQUESTS => "TOO_MANY_REQUESTS",
        StatusCode::NOT_IMPLEMENTED => "NOT_SUPPORTED",
        status if status.is_server_error() => "RUNTIME_ERROR",
        _ => "INVALID_REQUEST",
    });
    let body = opensandbox::Error { code: code.to_owned(), message: error.message.clone() };
    (error.status, Json(body)).into_response()
}

/// The refusal for a sandbox that is not there.
pub(super) fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::not_found(format!("Sandbox {shown} not found.")).code("SANDBOX::NOT_FOUND")
}

/// The refusal for an error of the engine about a sandbox.
pub(super) fn refused(error: Error) -> ApiError {
    match error {
        Error::NotFound(Missing::Sandbox(id)) => unknown(&id),
        error => refusal::refused(error),
    }
}

/// The refusal of a value of a request for a sandbox.
pub(super) fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::bad_request(message).code("SANDBOX::INVALID_PARAMETER")
}

/// The refusal of a path that means nothing here.
pub(super) async fn no_route(uri: Uri) -> ApiError {
    ApiError::not_found(format!("There is no {} here.", uri.path()))
}

/// The refusal of a part of the protocol that is not served.
pub(super) async fn not_supported(method: Method, uri: Uri) -> ApiError {
    let message = format!("{method} {} is not supported by this server.", uri.path());
    ApiError { status: StatusCode::NOT_IMPLEMENTED, ..ApiError::bad_request(message) }
}
