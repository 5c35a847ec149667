//! Refusals in OpenAI's words.

use aludel_wire::openai;
use axum::Json;
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, RefusalKind};

/// Renders a refusal.
pub(crate) fn refuse(error: &ApiError, _request_id: &str) -> Response {
    (error.status, Json(body(error))).into_response()
}

/// Renders a refusal as it stands in a body.
pub(super) fn body(error: &ApiError) -> openai::ErrorEnvelope {
    let kind = match error.kind {
        RefusalKind::InvalidRequest => "invalid_request_error",
        RefusalKind::Authentication => "authentication_error",
        RefusalKind::NotFound => "not_found_error",
        RefusalKind::RateLimit => "rate_limit_error",
        RefusalKind::Server => "server_error",
    };
    let error = openai::Error {
        message: error.message.clone(),
        r#type: kind.to_owned(),
        param: error.param.clone(),
        code: error.code.map(str::to_owned),
    };
    openai::ErrorEnvelope { error }
}
