//! Refusals in E2B's words.

use aludel_engine::{Error, Kind};
use aludel_wire::e2b;
use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::error::{ApiError, Told};

/// Code of the refusal for a sandbox that is not there; its parameter is the sandbox.
const NO_SANDBOX: &str = "sandbox_not_found";
/// Tells the SDKs whether to try again, whatever the status says.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// Renders a refusal.
pub(super) fn refuse(error: &ApiError, _request_id: &str) -> Response {
    let (code, message) = (error.status.as_u16(), error.message.clone());
    let mut response = if error.code == Some(NO_SANDBOX) {
        let sandbox_id = error.param.clone().unwrap_or_default();
        (error.status, Json(e2b::NoSandbox { sandbox_id, message, code, port: None })).into_response()
    } else {
        (error.status, Json(e2b::Error { code, message })).into_response()
    };
    if error.status.is_server_error() || error.status == StatusCode::TOO_MANY_REQUESTS {
        // What may heal says when; without a word, the SDKs would wait three times for anything.
        let again = if error.retry_after.is_some() { "true" } else { "false" };
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static(again));
    }
    response
}

/// The refusal of the data plane for a sandbox that is not there.
pub(super) fn no_sandbox(id: &str) -> ApiError {
    let error = ApiError::of_status(StatusCode::BAD_GATEWAY);
    let message = "The sandbox was not found".to_owned();
    ApiError { message, param: Some(id.to_owned()), code: Some(NO_SANDBOX), ..error }
}

/// The refusal of the control plane for a sandbox that is not there.
pub(super) fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::not_found(format!("Sandbox \"{shown}\" doesn't exist or you don't have access to it"))
}

/// The refusal of a path that means nothing here.
pub(super) async fn no_route(uri: axum::http::Uri) -> ApiError {
    ApiError::not_found(format!("there is no {} here", uri.path()))
}

/// Puts an error of the engine into words.
pub(super) fn refused(error: Error) -> ApiError {
    match error {
        Error::InvalidSandbox { field, reason } => ApiError::bad_request(format!("invalid {field}: {reason}")),
        Error::SessionsFull { .. } | Error::SessionsShared { .. } => {
            ApiError::too_many(format!("{error}; end some, or try again later"), std::time::Duration::from_secs(10))
        }
        error if error.kind() == Kind::Full => ApiError::bad_request(error.to_string()),
        Error::Sandbox(aludel_engine::SandboxError::NotSupported(what)) => ApiError {
            status: StatusCode::NOT_IMPLEMENTED,
            ..ApiError::bad_request(format!("this server's sandboxes do not support {what}"))
        },
        error => error.into(),
    }
}

/// A refusal of the code interpreter.
#[derive(Debug)]
pub(super) enum Refusal {
    /// In plain text.
    Plain(StatusCode, String),
    /// Like every other one.
    Usual(Box<ApiError>),
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self::Usual(Box::new(error))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Plain(status, message) => {
                let mut response = (status, message).into_response();
                response.extensions_mut().insert(Told);
                response
            }
            Self::Usual(error) => error.into_response(),
        }
    }
}
