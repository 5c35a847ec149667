//! What went wrong with a request, for the client and for the operator.

use std::time::Duration;

use aludel_wire::openai;
use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::dialects::openai::containers::no_container;
use crate::dialects::openai::files::no_file;

/// Tells the official clients whether to try again, whatever the status says.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Why a request was not done. Everything that a client sees of it is in the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) kind: ErrorKind,
    pub(crate) code: Option<&'static str>,
    /// The parameter that is wrong.
    pub(crate) param: Option<String>,
    pub(crate) message: String,
    /// What the client is told to do; without it, its own rules hold.
    pub(crate) should_retry: Option<bool>,
    /// When to come again.
    pub(crate) retry_after: Option<Duration>,
    /// What the operator is told, and the client is not.
    pub(crate) cause: Option<String>,
}

/// The kinds of errors that clients know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    InvalidRequest,
    Authentication,
    NotFound,
    RateLimit,
    Server,
}

impl ErrorKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::NotFound => "not_found_error",
            Self::RateLimit => "rate_limit_error",
            Self::Server => "server_error",
        }
    }
}

impl ApiError {
    fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> Self {
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

    /// 400: the request makes no sense.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
    }

    /// 400: a parameter has a value that it cannot have.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).param(param).code("invalid_value")
    }

    /// 400: a parameter is not there.
    pub(crate) fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::bad_request(format!("Missing required parameter: '{param}'."))
            .param(param)
            .code("missing_required_parameter")
    }

    /// 401: nobody knows who is asking.
    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorKind::Authentication, message).code("invalid_api_key")
    }

    /// 403: not from there.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorKind::InvalidRequest, message)
    }

    /// 404: there is no such thing, or it is somebody else's.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message)
    }

    /// 405: the path exists, the method does not.
    pub(crate) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::InvalidRequest, message)
    }

    /// 408: the client stopped sending.
    pub(crate) fn too_slow() -> Self {
        let message = "The request's body did not arrive in time.";
        Self::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::InvalidRequest, message)
    }

    /// 409: it is not as the client thinks.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self { should_retry: Some(false), ..Self::new(StatusCode::CONFLICT, ErrorKind::InvalidRequest, message) }
    }

    /// 413: more than is taken.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::InvalidRequest, message).code("request_too_large")
    }

    /// 429: not now.
    pub(crate) fn too_many(message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, ErrorKind::RateLimit, message).code("rate_limit_exceeded");
        Self { retry_after: Some(retry_after), ..error }
    }

    /// 503: the server is about to end.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Server, message)
    }

    /// 500: our fault. The cause is for the log.
    pub(crate) fn internal(cause: impl std::fmt::Display) -> Self {
        let message = "The server failed to do this; its log says why, under the request's id (x-request-id).";
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::Server, message).code("server_error");
        Self { cause: Some(cause.to_string()), ..error }
    }

    /// An error of which only the status is known.
    pub(crate) fn of_status(status: StatusCode) -> Self {
        let kind = if status.is_server_error() { ErrorKind::Server } else { ErrorKind::InvalidRequest };
        let words = status.canonical_reason().unwrap_or("refused");
        Self::new(status, kind, format!("The request could not be read: {words}."))
    }

    pub(crate) fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    pub(crate) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// As it stands in a body.
    pub(crate) fn body(&self) -> openai::ErrorEnvelope {
        let error = openai::Error {
            message: self.message.clone(),
            r#type: self.kind.word().to_owned(),
            param: self.param.clone(),
            code: self.code.map(str::to_owned),
        };
        openai::ErrorEnvelope { error }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil().max(1.0) as u64));
        }
        if let Some(retry) = self.should_retry {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static(if retry { "true" } else { "false" }));
        }
        // The layer around all routes writes it to the log.
        response.extensions_mut().insert(Failure(self.cause));
        response
    }
}

/// What the operator is told of an answer that is an error.
#[derive(Debug, Clone)]
pub(crate) struct Failure(pub(crate) Option<String>);

impl From<aludel_store::Error> for ApiError {
    fn from(error: aludel_store::Error) -> Self {
        Self::internal(error)
    }
}

impl From<aludel_engine::Error> for ApiError {
    fn from(error: aludel_engine::Error) -> Self {
        use aludel_engine::{Error, Missing};
        match error {
            Error::NotFound(Missing::Session(id)) => no_container(&id),
            Error::NotFound(Missing::File(id)) => no_file(&id).param("file_ids"),
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
            Error::StorageFull { limit } => {
                let mb = limit >> 20;
                let message = format!("The {mb} MB that you may store here are used up; delete files or containers.");
                Self::bad_request(message).code("storage_limit_exceeded")
            }
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
            error => Self::internal(error),
        }
    }
}

impl From<aludel_engine::turns::Failure> for ApiError {
    fn from(failure: aludel_engine::turns::Failure) -> Self {
        use aludel_engine::turns::{Failure, FailureKind};
        let Failure { kind, message, retry_after_ms, should_retry, cause } = failure;
        let error = match kind {
            FailureKind::RateLimited | FailureKind::Busy => {
                Self::too_many(message, Duration::from_millis(retry_after_ms.unwrap_or(1000)))
            }
            FailureKind::Rejected => Self::bad_request(message),
            FailureKind::Upstream => Self { status: StatusCode::BAD_GATEWAY, message, ..Self::internal("") },
            FailureKind::TooLarge => Self::too_large(message),
            FailureKind::Unavailable => Self::unavailable(message),
            FailureKind::Sandbox => Self::internal(""),
            FailureKind::Internal => Self { message, ..Self::internal("") },
        };
        // The engine has told the operator; the layer around all routes need not.
        Self { should_retry, cause, ..error }
    }
}

impl From<&aludel_agent::upstream::UpstreamError> for ApiError {
    fn from(error: &aludel_agent::upstream::UpstreamError) -> Self {
        aludel_engine::turns::Failure::of_upstream(error).into()
    }
}
