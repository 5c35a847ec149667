//! Refusals: of HTTP requests as JSON-RPC errors, and of tool calls as texts for the model.

use aludel_engine::{Error, ErrorKind};
use axum::Json;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use rmcp::model::{ErrorCode, ErrorData, RequestId};
use serde_json::json;
use tracing::error;

use crate::error::ApiError;

/// Renders a refusal of a request.
pub(super) fn refuse(error: &ApiError, _request_id: &str) -> Response {
    let mut response = answer(error.status, None, &ErrorData::new(code(error.status), error.message.clone(), None));
    if error.status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// The code of a refusal with this status.
pub(super) fn code(status: StatusCode) -> ErrorCode {
    if status.is_server_error() { ErrorCode::INTERNAL_ERROR } else { ErrorCode::INVALID_REQUEST }
}

/// An error of JSON-RPC. If the request has no id, or an unreadable one, it is null: clients refuse an error without that field.
pub(super) fn answer(status: StatusCode, id: Option<&RequestId>, error: &ErrorData) -> Response {
    (status, Json(json!({ "jsonrpc": "2.0", "id": id, "error": error }))).into_response()
}

/// The reason for which a tool call failed, as a text for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolError(pub(super) String);

impl ToolError {
    /// A session that is not there, or is another tenant's.
    pub(super) fn no_session(id: &str) -> Self {
        let id = aludel_agent::excerpt::line(id, 80);
        Self(format!("There is no session '{id}'. Leave `session` out to begin a new one."))
    }
}

impl From<Error> for ToolError {
    fn from(error: Error) -> Self {
        Self(match error.kind() {
            ErrorKind::Storage | ErrorKind::Sandbox | ErrorKind::Internal if !matches!(error, Error::DiskFull(_)) => {
                error!("a tool call failed: {error}");
                "The server failed to do this; its log says why. Try again.".to_owned()
            }
            ErrorKind::Full => format!("There is no room now: {error}. Try again later."),
            _ => format!("This cannot be done: {error}."),
        })
    }
}

impl From<aludel_store::Error> for ToolError {
    fn from(error: aludel_store::Error) -> Self {
        Error::from(error).into()
    }
}
