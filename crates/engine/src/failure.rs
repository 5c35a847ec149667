//! The failure of a turn, for clients.

use std::error::Error as _;
use std::time::Duration;

use aludel_agent::upstream::UpstreamError;
use aludel_store::SessionId;
use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind};

/// The failure of a turn: without addresses, keys and other facts that only the operator may know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its kind.
    pub kind: FailureKind,
    /// The message.
    pub message: String,
    /// Time after which asking again makes sense, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Advice about asking again: `false` once a program has run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub should_retry: Option<bool>,
    /// The cause for the operator's log.
    #[serde(skip)]
    pub cause: Option<String>,
}

/// The kinds of failures of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The model is over its rate limit.
    RateLimited,
    /// The model has its most concurrent requests.
    Busy,
    /// The model's server rejected the request.
    Rejected,
    /// The conversation is longer than the model reads.
    ContextExceeded,
    /// The model's server failed, or cannot be asked.
    Upstream,
    /// The sandbox failed: our fault or the host's.
    Sandbox,
    /// The session was deleted under its program.
    SessionDeleted,
    /// The output exceeds its limit.
    TooLarge,
    /// The server is shutting down, or was restarted.
    Unavailable,
    /// The tenant's storage is full.
    StorageFull,
    /// The file system of the state has no room.
    DiskFull,
    /// The state could not be read or written: a fault of the server or the host.
    Storage,
    /// Our fault or the host's.
    Internal,
}

/// The message for a full disk.
pub const DISK_FULL: &str =
    "The disk of the server is full, so this could not be stored; its operator has to make room.";

/// The message for failures that only the log explains.
const SEE_LOG: &str = "The server failed to do this; its log says why, under the request's id (x-request-id).";

impl Failure {
    /// A failure of a kind, with a message for clients.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, should_retry: None, cause: None }
    }

    /// Our fault or the host's. The cause is for the log.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        Self { cause: Some(cause.to_string()), ..Self::new(FailureKind::Internal, SEE_LOG) }
    }

    /// Converts an error of the engine into a failure. `what` says in the log what was being done.
    pub(crate) fn while_doing(what: &'static str) -> impl FnOnce(Error) -> Self {
        move |error| match error {
            Error::StorageFull { .. } => error.into(),
            Error::DiskFull(_) => Self { cause: Some(format!("{what}: {error}")), ..error.into() },
            _ => Self { kind: kind_of(&error), ..Self::internal(format_args!("{what}: {}", with_causes(&error))) },
        }
    }

    /// The server is ending.
    pub fn server_ends() -> Self {
        Self::new(FailureKind::Unavailable, "The server is ending; try again in a moment.")
    }

    /// The turn was cancelled. Only clients that are still connected hear of it.
    pub fn cancelled() -> Self {
        let message = "The answer was cancelled: its API key was revoked or has expired, or its client left.";
        Self { should_retry: Some(false), ..Self::new(FailureKind::Unavailable, message) }
    }

    /// The sandbox failed. The cause is for the log.
    pub fn of_sandbox(cause: impl std::fmt::Display) -> Self {
        let message = "The sandbox failed; the server's log says why, under the request's id (x-request-id).";
        Self { cause: Some(cause.to_string()), ..Self::new(FailureKind::Sandbox, message) }
    }

    /// The session was deleted, by its own client, while a program ran in it or was about to.
    pub(crate) fn session_deleted(id: &SessionId) -> Self {
        let message = format!("The container {id} was deleted while a program of this answer needed it.");
        Self { should_retry: Some(false), ..Self::new(FailureKind::SessionDeleted, message) }
    }

    /// The failure of a model's server.
    pub fn of_upstream(error: &UpstreamError) -> Self {
        let after = |wait: Duration| Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        let (kind, retry_after_ms) = match error {
            UpstreamError::RateLimited { retry_after, .. } => {
                (FailureKind::RateLimited, after(retry_after.unwrap_or(Duration::from_secs(5))))
            }
            UpstreamError::Busy { .. } => (FailureKind::Busy, after(Duration::from_secs(1))),
            // A redirection or an address that is not there is the configuration's fault, not the request's.
            UpstreamError::Rejected { exceeds_context: true, .. } => (FailureKind::ContextExceeded, None),
            UpstreamError::Rejected { status: 400.., .. } => (FailureKind::Rejected, None),
            _ => (FailureKind::Upstream, None),
        };
        Self { retry_after_ms, cause: Some(error.to_string()), ..Self::new(kind, words(error)) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::StorageFull { limit } => {
                let message = format!(
                    "{} MB may be stored here and are used up; delete files, containers or responses.",
                    limit >> 20
                );
                Self { should_retry: Some(false), ..Self::new(FailureKind::StorageFull, message) }
            }
            Error::DiskFull(_) => {
                Self { cause: Some(error.to_string()), ..Self::new(FailureKind::DiskFull, DISK_FULL) }
            }
            _ => Self { kind: kind_of(&error), ..Self::internal(with_causes(&error)) },
        }
    }
}

/// An error with its causes, each printed once: some messages contain their cause's.
fn with_causes(error: &Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.ends_with(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        cause = error.source();
    }
    words
}

fn kind_of(error: &Error) -> FailureKind {
    match error.kind() {
        ErrorKind::Storage => FailureKind::Storage,
        _ => FailureKind::Internal,
    }
}

/// The text of an upstream's failure, without addresses and keys, which only the operator should know.
fn words(error: &UpstreamError) -> String {
    match error {
        UpstreamError::RateLimited { detail, .. } => format!("The model is over its rate limit or quota: {detail}"),
        UpstreamError::Busy { .. } => "As many requests as this model takes are under way; try again.".into(),
        UpstreamError::Rejected { status: 400.., detail, .. } => {
            format!("The model's server rejected the request: {detail}")
        }
        UpstreamError::Server { detail, .. } | UpstreamError::Reported { detail, .. } => {
            format!("The model's server failed: {detail}")
        }
        UpstreamError::Dropped { .. } => "The model's server ended the connection in the middle of its answer.".into(),
        UpstreamError::Idle { after, .. } => {
            format!("The model's server sent nothing for {} s.", after.as_secs())
        }
        _ => "The model cannot be asked; the server's log says why, under the request's id (x-request-id).".into(),
    }
}
