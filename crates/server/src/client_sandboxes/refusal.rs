//! Refusals of the engine and of a sandbox's files.

use std::time::Duration;

use aludel_engine::sandboxes::files::{FilesError, Problem};
use aludel_engine::{Error, ErrorKind, SandboxError};
use axum::http::StatusCode;

use crate::error::ApiError;

/// Puts an error of the engine into words.
pub(crate) fn refused(error: Error) -> ApiError {
    match error {
        Error::Invalid { field, reason } => ApiError::bad_request(format!("invalid {field}: {reason}")),
        Error::SessionsFull { .. } | Error::SessionsShared { .. } => {
            ApiError::too_many(format!("{error}; end some, or try again later"), Duration::from_secs(1))
        }
        error @ Error::StorageFull { .. } => {
            ApiError { status: StatusCode::INSUFFICIENT_STORAGE, ..ApiError::bad_request(error.to_string()) }
        }
        error if error.kind() == ErrorKind::Full => ApiError::too_many(error.to_string(), Duration::from_secs(1)),
        error @ Error::Sandbox(SandboxError::Start(_)) => ApiError::bad_request(error.to_string()),
        // A sandbox that is short of memory or processes: its own doing.
        error @ Error::Sandbox(SandboxError::KernelGone(_) | SandboxError::NotStopped | SandboxError::NoProcess) => {
            ApiError::unavailable(error.to_string())
        }
        error @ Error::Sandbox(SandboxError::Timeout { .. }) => {
            ApiError { status: StatusCode::GATEWAY_TIMEOUT, ..ApiError::unavailable(error.to_string()) }
        }
        // Requests that come after the end of the pause hear it from their dialect.
        Error::Sandbox(SandboxError::Paused) => paused(),
        Error::Sandbox(SandboxError::NotSupported(what)) => ApiError {
            status: StatusCode::NOT_IMPLEMENTED,
            ..ApiError::bad_request(format!("this server's sandboxes do not support {what}"))
        },
        error => error.into(),
    }
}

/// The refusal of a request to a sandbox that is paused, or about to be.
pub(crate) fn paused() -> ApiError {
    ApiError::conflict("The sandbox is paused; resume it first.")
}

/// Puts a failure of an operation on files into words.
pub(crate) fn refused_file(error: FilesError) -> ApiError {
    match error {
        FilesError::Refused { problem, message } => {
            let status = match problem {
                Problem::NotFound => StatusCode::NOT_FOUND,
                Problem::Full => StatusCode::INSUFFICIENT_STORAGE,
                Problem::Denied => StatusCode::FORBIDDEN,
                Problem::Busy => StatusCode::TOO_MANY_REQUESTS,
                Problem::Exists
                | Problem::IsADirectory
                | Problem::NotADirectory
                | Problem::TooMany
                | Problem::NotSupported
                | Problem::Invalid => StatusCode::BAD_REQUEST,
            };
            ApiError { status, ..ApiError::bad_request(message) }
        }
        FilesError::Sandbox(error) => refused(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_in_a_sandbox_is_no_defect_of_the_servers() {
        let limit = Duration::from_secs(30);
        let late = refused(SandboxError::Timeout { what: "start of a program", limit }.into());
        assert_eq!((late.status, late.cause), (StatusCode::GATEWAY_TIMEOUT, None));
        assert!(late.message.contains("start of a program within 30 s"), "{}", late.message);
        let gone = refused(SandboxError::KernelGone("the program that serves files has ended".into()).into());
        assert_eq!((gone.status, gone.cause), (StatusCode::SERVICE_UNAVAILABLE, None));
        let running = refused(SandboxError::NotStopped.into());
        assert_eq!((running.status, running.cause), (StatusCode::SERVICE_UNAVAILABLE, None));
        let crowded = refused(SandboxError::NoProcess.into());
        assert_eq!((crowded.status, crowded.cause), (StatusCode::SERVICE_UNAVAILABLE, None));
    }

    #[test]
    fn a_program_that_cannot_be_started_is_the_requests_mistake() {
        let refusal = refused(SandboxError::Start("/nowhere: No such file or directory".into()).into());
        assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
        assert!(refusal.message.contains("/nowhere"), "{}", refusal.message);
        assert_eq!(refused(SandboxError::Setup("x".into()).into()).status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
