//! Reasons for which the engine could not do something. Dialects render them in their protocol's terms.

use std::fmt;
use std::io;
use std::path::PathBuf;

use aludel_agent::RuntimeError;

/// A failure of the engine. A program's own failure is an outcome, and a turn's is its ending.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such thing, or it belongs to another tenant.
    #[error("there is no {0}")]
    NotFound(Missing),
    /// The session was idle too long.
    #[error("the session {0} is expired")]
    Expired(String),
    /// The most sessions are live, and all are in use.
    #[error("all {limit} sessions (server.containers) are in use")]
    SessionsFull {
        /// Sessions that may be live at once.
        limit: usize,
    },
    /// The tenant has its share of live sessions, and all of them are in use.
    #[error("all sessions of this key's share of {limit} (server.containers) are in use")]
    SessionsShared {
        /// Sessions that may be live at once, of all tenants.
        limit: usize,
    },
    /// The most executions without a turn are under way.
    #[error("all {limit} executions that may be under way at once are taken")]
    ExecutionsFull {
        /// Executions under way at once.
        limit: usize,
    },
    /// The tenant has its share of the executions without a turn.
    #[error("this key's share of the {limit} executions that may be under way at once is taken")]
    ExecutionsShared {
        /// Executions under way at once, of all tenants.
        limit: usize,
    },
    /// The tenant's storage is full.
    #[error("the {} MB that may be stored (server.storage) are used up", limit >> 20)]
    StorageFull {
        /// Bytes that the tenant may store.
        limit: u64,
    },
    /// The file system of the state has no room.
    #[error("the disk of the data directory is full: {0}")]
    DiskFull(#[source] aludel_store::Error),
    /// A file does not fit beside the session's other files.
    #[error("the files of a session may have {} MB", limit >> 20)]
    WorkspaceFull {
        /// Bytes of all files together.
        limit: u64,
    },
    /// More files than a new session may have.
    #[error("at most {limit} files are allowed")]
    TooManyFiles {
        /// Files at once.
        limit: usize,
    },
    /// A file name that is no plain relative path.
    #[error("the file name '{shown}': {reason}")]
    InvalidName {
        /// The name, shortened and escaped.
        shown: String,
        /// The rule that it breaks.
        reason: String,
    },
    /// The workspace does not take the file.
    #[error("the file '{path}' cannot be taken: {reason}")]
    FileRefused {
        /// The path as it was asked for.
        path: String,
        /// The workspace's reason.
        reason: String,
    },
    /// A file of the host could not be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The state could not be read or written.
    #[error(transparent)]
    Store(aludel_store::Error),
    /// A sandbox has the most of something that it may have at once.
    #[error("a sandbox has at most {limit} {things} at once; end one, or try again later")]
    SandboxFull {
        /// The most that there may be.
        limit: usize,
        /// The plural of the thing's name.
        things: &'static str,
    },
    /// A request to a session or a sandbox that it cannot meet.
    #[error("{field}: {reason}")]
    Invalid {
        /// The part of the request.
        field: &'static str,
        /// The rule that it breaks.
        reason: String,
    },
    /// The sandbox layer failed.
    #[error(transparent)]
    Sandbox(#[from] aludel_sandbox::Error),
    /// A defect of ours.
    #[error("{0}")]
    Internal(String),
}

/// The kinds of failures that callers treat differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The tenant has no such thing.
    NotFound,
    /// Its time is over.
    Expired,
    /// No room now; perhaps later.
    Full,
    /// The request cannot be carried out as it is.
    Invalid,
    /// The state failed: our fault or the host's.
    Storage,
    /// The sandbox failed: our fault or the host's.
    Sandbox,
    /// A defect of ours.
    Internal,
}

/// A thing that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// A session, by its id.
    Session(String),
    /// An uploaded file, by its id.
    File(String),
    /// A sandbox that a client owned, by its id.
    Sandbox(String),
    /// A context of a sandbox, by its id.
    Context(String),
    /// A model, by its name, and the names that there are.
    Model {
        /// The name that was asked for.
        name: String,
        /// All names, sorted.
        known: Vec<String>,
    },
}

impl Error {
    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Expired(_) => ErrorKind::Expired,
            Self::SessionsFull { .. }
            | Self::SessionsShared { .. }
            | Self::ExecutionsFull { .. }
            | Self::ExecutionsShared { .. }
            | Self::StorageFull { .. }
            | Self::SandboxFull { .. }
            | Self::Sandbox(aludel_sandbox::Error::NoTerminal) => ErrorKind::Full,
            Self::WorkspaceFull { .. }
            | Self::TooManyFiles { .. }
            | Self::InvalidName { .. }
            | Self::Invalid { .. }
            | Self::FileRefused { .. } => ErrorKind::Invalid,
            Self::DiskFull(_) | Self::Store(_) | Self::Io { .. } => ErrorKind::Storage,
            Self::Sandbox(_) => ErrorKind::Sandbox,
            Self::Internal(_) => ErrorKind::Internal,
        }
    }

    /// A session that is not there.
    pub fn no_session(id: impl fmt::Display) -> Self {
        Self::NotFound(Missing::Session(id.to_string()))
    }

    /// A defect of ours, in words for the log.
    pub fn internal(cause: impl fmt::Display) -> Self {
        Self::Internal(cause.to_string())
    }
}

impl From<Error> for RuntimeError {
    fn from(error: Error) -> Self {
        match error {
            Error::Sandbox(error) => Self::Sandbox(error),
            error => Self::Other(error.to_string()),
        }
    }
}

impl From<RuntimeError> for Error {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Sandbox(error) => Self::Sandbox(error),
            RuntimeError::Other(cause) => Self::Internal(cause),
        }
    }
}

impl From<aludel_store::Error> for Error {
    fn from(error: aludel_store::Error) -> Self {
        match error {
            aludel_store::Error::Full { limit } => Self::StorageFull { limit },
            error if error.is_disk_full() => Self::DiskFull(error),
            error => Self::Store(error),
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Session(id) => write!(formatter, "session {id}"),
            Self::File(id) => write!(formatter, "file {id}"),
            Self::Sandbox(id) => write!(formatter, "sandbox {id}"),
            Self::Context(id) => write!(formatter, "context {id}"),
            Self::Model { name, known } => write!(formatter, "model '{name}'; there are: {}", known.join(", ")),
        }
    }
}
