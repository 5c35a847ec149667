//! Refusals in E2B's words.

use aludel_engine::{Error, Missing};
use aludel_wire::e2b;
use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::ext::ReasonPhrase;

use crate::client_sandboxes::ports::PortError;
use crate::client_sandboxes::refusal;
use crate::error::{ApiError, RenderedMark};

/// Code of the refusal for a sandbox that does not exist; its parameter is the sandbox's id.
const NO_SANDBOX: &str = "sandbox_not_found";
/// Tells the SDKs whether to try again, whatever the status.
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
        // Temporary errors have `Retry-After`. Without this header, the SDKs would try everything three times.
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

/// The control plane's refusal for a sandbox that does not exist.
pub(super) fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::not_found(format!("Sandbox \"{shown}\" doesn't exist or you don't have access to it"))
}

/// The control plane's refusal for an error of the engine about a sandbox.
pub(super) fn refused(error: Error) -> ApiError {
    match error {
        Error::NotFound(Missing::Sandbox(id)) => unknown(&id),
        error => refusal::refused(error),
    }
}

/// The refusal of a path that means nothing here.
pub(super) async fn no_route(uri: axum::http::Uri) -> ApiError {
    ApiError::not_found(format!("there is no {} here", uri.path()))
}

/// The refusal of a build of a template.
pub(super) async fn no_builds() -> ApiError {
    ApiError::bad_request(
        "templates are not built by this server's API; its operator makes them with `aludel template build --name NAME` and offers them \
         by the setting sandbox.templates",
    )
}

/// The refusal of a secret.
pub(super) async fn no_secrets() -> ApiError {
    ApiError::bad_request("secrets are not kept by this server; sandboxes have no network to use them in")
}

/// The refusal of a volume.
pub(super) async fn no_volumes() -> ApiError {
    ApiError::bad_request("volumes are not supported by this server; pause the sandbox, or copy its files")
}

/// The refusal of a path that a port of ours does not serve.
pub(super) fn not_served(port: u16, path: &str) -> ApiError {
    ApiError::not_found(format!("there is no {path} at port {port} of a sandbox"))
}

/// The refusal for a port of which nothing answers.
pub(super) fn closed_port(id: &str, port: u16, error: PortError) -> Response {
    let message = match error {
        PortError::Closed => "The sandbox is running but port is not open",
        PortError::NoHttp => "The program at this port did not answer in HTTP",
        PortError::Silent => return ApiError::too_slow().into_response(),
    };
    let body = e2b::NoSandbox { sandbox_id: id.to_owned(), message: message.to_owned(), code: 502, port: Some(port) };
    let mut response = (StatusCode::BAD_GATEWAY, Json(body)).into_response();
    response.extensions_mut().insert(RenderedMark);
    response
}

/// Bytes of the reason phrase of a status.
const MAX_PHRASE: usize = 200;

/// The message as the words beside the status: of most refusals E2B's Node client shows nothing else (`extractError`, 2.8).
fn reason_phrase(message: &str) -> Option<ReasonPhrase> {
    let plain = message.chars().map(|character| if matches!(character, ' '..='~') { character } else { '?' });
    ReasonPhrase::try_from(plain.take(MAX_PHRASE).collect::<String>()).ok()
}

/// A refusal of the code interpreter.
#[derive(Debug)]
pub(super) enum Refusal {
    /// In plain text.
    Plain(StatusCode, String),
    /// Like any other refusal.
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
                let phrase = reason_phrase(&message);
                let mut response = (status, message).into_response();
                response.extensions_mut().insert(RenderedMark);
                if let Some(phrase) = phrase {
                    response.extensions_mut().insert(phrase);
                }
                response
            }
            Self::Usual(error) => error.into_response(),
        }
    }
}
