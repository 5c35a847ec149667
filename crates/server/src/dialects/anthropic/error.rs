//! Refusals in Anthropic's words.

use aludel_engine::{Error, Missing};
use aludel_wire::anthropic::{self, Details, ErrorEnvelope};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, RefusalKind};

/// The error code that makes clients send the whole conversation.
pub(super) const THREAD_UNSUPPORTED: &str = "thread_unsupported_request";

/// Renders a refusal.
pub(crate) fn refuse(error: &ApiError, request_id: &str) -> Response {
    (error.status, Json(envelope(error, Some(request_id.to_owned())))).into_response()
}

/// Renders a refusal as it stands in a body, or in a stream.
pub(super) fn envelope(error: &ApiError, request_id: Option<String>) -> ErrorEnvelope {
    let details = error
        .code
        .filter(|code| *code == THREAD_UNSUPPORTED)
        .map(|code| Details { error_code: code.to_owned(), unsupported: Some(error.param.iter().cloned().collect()) });
    let (r#type, message) = (kind_of(error).to_owned(), message_of(error));
    ErrorEnvelope { error: anthropic::Error { r#type, message, details }, request_id }
}

fn kind_of(error: &ApiError) -> &'static str {
    match (error.kind, error.status) {
        (RefusalKind::Authentication, _) => "authentication_error",
        (RefusalKind::RateLimit, _) => "rate_limit_error",
        (RefusalKind::Server, _) => "api_error",
        (_, StatusCode::FORBIDDEN) => "permission_error",
        (_, StatusCode::NOT_FOUND) => "not_found_error",
        (_, StatusCode::CONFLICT) => "conflict_error",
        (_, StatusCode::PAYLOAD_TOO_LARGE) => "request_too_large",
        (_, StatusCode::REQUEST_TIMEOUT) => "timeout_error",
        (RefusalKind::NotFound | RefusalKind::InvalidRequest, _) => "invalid_request_error",
    }
}

/// The message, preceded by the wrong parameter: clients show nothing else.
fn message_of(error: &ApiError) -> String {
    match &error.param {
        Some(param) if error.code == Some("missing_required_parameter") => format!("{param}: Field required"),
        Some(param) if !error.message.contains(param.as_str()) => format!("{param}: {}", error.message),
        _ => error.message.clone(),
    }
}

/// 404, in the words by which clients know it.
pub(super) fn no_container(id: &str) -> ApiError {
    ApiError::not_found(format!("Container not found: {id}"))
}

/// 404, for a file that does not exist or belongs to another tenant.
pub(super) fn no_file(id: &str) -> ApiError {
    ApiError::not_found(format!("File not found: {id}"))
}

/// An error of the engine, with this protocol's own texts where it has them.
pub(super) fn of_engine(error: Error) -> ApiError {
    match error {
        Error::NotFound(Missing::Session(id)) => no_container(&id),
        Error::NotFound(Missing::File(id)) => no_file(&id),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_the_field_once() {
        for (error, message) in [
            (ApiError::missing("model"), "model: Field required"),
            (ApiError::invalid("tools.0.type", "no such tool"), "tools.0.type: no such tool"),
            (ApiError::invalid("thread", "thread is not supported"), "thread is not supported"),
            (no_file("file-1"), "File not found: file-1"),
        ] {
            assert_eq!(message_of(&error), message);
        }
    }

    #[test]
    fn clients_learn_what_they_can_do_without() {
        let error = ApiError::bad_request("x").param("thread").code(THREAD_UNSUPPORTED);
        let body = serde_json::to_value(envelope(&error, None)).unwrap();
        assert_eq!(body["error"]["details"]["unsupported"], serde_json::json!(["thread"]));
        assert_eq!(body["type"], "error");
    }
}
