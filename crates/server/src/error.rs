//! Refusals of requests, for the client and the operator. Each dialect renders them in its own form.

use std::time::Duration;

use aludel_engine::turns::DISK_FULL;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::DecodeError;

/// A refusal of a request. The client sees only the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: RefusalKind,
    pub(crate) code: Option<&'static str>,
    /// The parameter that is wrong.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    /// Advice to the client about a retry; without it, the client's own rules apply.
    pub(crate) should_retry: Option<bool>,
    /// Time to wait before a retry.
    pub(crate) retry_after: Option<Duration>,
    /// The cause for the operator's log.
    pub(crate) cause: Option<String>,
}

/// Kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalKind {
    InvalidRequest,
    Authentication,
    NotFound,
    RateLimit,
    Server,
}

/// The words of an error for the end of a sentence.
pub(crate) fn without_stop(error: &DecodeError) -> String {
    error.to_string().trim_end_matches('.').to_owned()
}

impl ApiError {
    fn new(status: StatusCode, kind: RefusalKind, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
            should_retry: None,
            retry_after: None,
            cause: None,
        }
    }

    /// 400: an invalid request.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, RefusalKind::InvalidRequest, message)
    }

    /// 400: an invalid value of a parameter.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).param(param).code("invalid_value")
    }

    /// 400: a parameter that should be base64, and this is wrong with it.
    pub(crate) fn not_base64(param: impl Into<String>, error: &DecodeError) -> Self {
        let param = param.into();
        let message = format!("The data in '{param}' is not valid base64: {}.", without_stop(error));
        Self::invalid(param, message)
    }

    /// 400: a missing parameter.
    pub(crate) fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::bad_request(format!("Missing required parameter: '{param}'."))
            .param(param)
            .code("missing_required_parameter")
    }

    /// 401: the caller is unknown.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, RefusalKind::Authentication, message).code("invalid_api_key")
    }

    /// 403: forbidden.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, RefusalKind::InvalidRequest, message)
    }

    /// 404: it does not exist, or belongs to another tenant.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, RefusalKind::NotFound, message)
    }

    /// 405: the path exists, the method does not.
    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, RefusalKind::InvalidRequest, message)
    }

    /// 408: the client stopped sending.
    pub(crate) fn too_slow() -> Self {
        let message = "The request's body did not arrive in time.";
        Self::new(StatusCode::REQUEST_TIMEOUT, RefusalKind::InvalidRequest, message)
    }

    /// 409: a conflict with the object's state.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self { should_retry: Some(false), ..Self::new(StatusCode::CONFLICT, RefusalKind::InvalidRequest, message) }
    }

    /// 413: too large.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, RefusalKind::InvalidRequest, message).code("request_too_large")
    }

    /// 429: too many requests.
    pub(crate) fn too_many(message: impl Into<String>, retry_after: Duration) -> Self {
        let error =
            Self::new(StatusCode::TOO_MANY_REQUESTS, RefusalKind::RateLimit, message).code("rate_limit_exceeded");
        Self { retry_after: Some(retry_after), ..error }
    }

    /// 503: the server is shutting down.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, RefusalKind::Server, message)
    }

    /// 507: the disk is full. The cause is for the log.
    pub(crate) fn disk_full(cause: impl std::fmt::Display) -> Self {
        let error = Self::new(StatusCode::INSUFFICIENT_STORAGE, RefusalKind::Server, DISK_FULL).code("disk_full");
        Self { cause: Some(cause.to_string()), ..error }
    }

    /// 500: our fault. The cause is for the log.
    pub(crate) fn internal(cause: impl std::fmt::Display) -> Self {
        let message = "The server failed to do this; its log says why, under the request's id (x-request-id).";
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, RefusalKind::Server, message).code("server_error");
        Self { cause: Some(cause.to_string()), ..error }
    }

    /// An error with nothing but a status.
    pub(crate) fn of_status(status: StatusCode) -> Self {
        let kind = if status.is_server_error() { RefusalKind::Server } else { RefusalKind::InvalidRequest };
        let words = status.canonical_reason().unwrap_or("refused");
        Self::new(status, kind, format!("The request could not be read: {words}."))
    }

    pub(crate) fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        // The layer around the dialect's routes renders it, and logs its cause.
        response.extensions_mut().insert(self);
        response
    }
}

/// The mark of an error response that is already in its dialect's form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RenderedMark;

/// Texts of no protocol in particular, where sessions are containers, as in the settings. Dialects convert errors for which they have texts
/// of their own before.
impl From<aludel_engine::Error> for ApiError {
    fn from(error: aludel_engine::Error) -> Self {
        use aludel_engine::{Error, Missing};
        match error {
            Error::NotFound(Missing::Session(id)) => Self::not_found(format!("Container with id '{id}' not found.")),
            Error::NotFound(Missing::File(id)) => {
                Self::not_found(format!("No such File object: {id}")).param("file_ids")
            }
            Error::NotFound(Missing::Model { name, known }) => {
                let known = known.join(", ");
                let message = format!("The model '{name}' does not exist here; there are: {known}.");
                Self::not_found(message).param("model").code("model_not_found")
            }
            Error::Expired(_) => Self::bad_request("Container is expired."),
            Error::SessionsFull { limit } => {
                let message = format!("All {limit} containers (server.containers) are in use; try again later.");
                Self::too_many(message, Duration::from_secs(10))
            }
            Error::SessionsShared { limit } => {
                let message = format!(
                    "Your share of the {limit} containers (server.containers) is in use; try again later, or delete some."
                );
                Self::too_many(message, Duration::from_secs(10))
            }
            Error::StorageFull { limit } => {
                let mb = limit >> 20;
                let message = format!("The {mb} MB that you may store here are used up; delete files or containers.");
                Self::bad_request(message).code("storage_limit_exceeded")
            }
            error @ Error::DiskFull(_) => Self::disk_full(error),
            Error::WorkspaceFull { limit } => {
                let mb = limit >> 20;
                Self::invalid("file", format!("The file does not fit: the files of a container may have {mb} MB."))
            }
            Error::TooManyFiles { limit } => {
                Self::invalid("file_ids", format!("Too many 'file_ids': at most {limit} are allowed."))
            }
            Error::InvalidName { shown, reason } => Self::invalid(
                "file",
                format!("Invalid file name '{shown}': {reason}. Use a plain name such as data.csv."),
            ),
            Error::FileRefused { path, reason } => {
                Self::invalid("file", format!("The container cannot take the file '{path}': {reason}."))
            }
            Error::Invalid { field, reason } => Self::invalid(field, format!("Invalid {field}: {reason}.")),
            error => Self::internal(error),
        }
    }
}

impl From<aludel_store::Error> for ApiError {
    fn from(error: aludel_store::Error) -> Self {
        aludel_engine::Error::from(error).into()
    }
}

/// OpenAI's code for a conversation that is longer than the model reads.
pub(crate) const CONTEXT_EXCEEDED: &str = "context_length_exceeded";

impl From<aludel_engine::turns::Failure> for ApiError {
    fn from(failure: aludel_engine::turns::Failure) -> Self {
        use aludel_engine::turns::{Failure, FailureKind};
        let Failure { kind, message, retry_after_ms, should_retry, cause } = failure;
        let error = match kind {
            FailureKind::RateLimited | FailureKind::Busy => {
                Self::too_many(message, Duration::from_millis(retry_after_ms.unwrap_or(1000)))
            }
            FailureKind::Rejected | FailureKind::SessionDeleted => Self::bad_request(message),
            FailureKind::ContextExceeded => Self::bad_request(message).code(CONTEXT_EXCEEDED),
            FailureKind::StorageFull => Self::bad_request(message).code("storage_limit_exceeded"),
            FailureKind::Upstream => Self { status: StatusCode::BAD_GATEWAY, message, ..Self::internal("") },
            FailureKind::TooLarge => Self::too_large(message),
            FailureKind::Unavailable => Self::unavailable(message),
            FailureKind::DiskFull => Self::disk_full(""),
            FailureKind::Sandbox => Self::internal(""),
            FailureKind::Storage | FailureKind::Internal => Self { message, ..Self::internal("") },
        };
        // The engine has logged it; the layer around all routes need not.
        Self { should_retry, cause, ..error }
    }
}

impl From<&aludel_agent::upstream::UpstreamError> for ApiError {
    fn from(error: &aludel_agent::upstream::UpstreamError) -> Self {
        aludel_engine::turns::Failure::of_upstream(error).into()
    }
}
