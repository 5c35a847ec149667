//! Failures of the backend or the host. A program's own failure is an [`crate::Outcome`], not an error.

use std::io;
use std::path::PathBuf;

/// The sandbox could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A sandbox could not be made, or the host refused a step of it.
    #[error("the sandbox could not be set up: {0}")]
    Setup(String),
    /// There are as many sandboxes as there may be.
    #[error("the sandbox could not be set up: too many sandboxes")]
    Full,
    /// The backend was shut down, or the part of it that handled the request ended before it answered.
    #[error("the sandbox could not be set up: {0}")]
    Over(String),
    /// The part of the backend that held the workspace has ended, with every sandbox on it. No new sandbox can be made on it; its files can
    /// be read as long as it is referenced.
    #[error("the sandbox could not be set up: the workspace was lost")]
    WorkspaceLost,
    /// The backend did not answer in time. The request is undone.
    #[error("the sandbox could not be set up: no {what} within {} s", limit.as_secs())]
    Timeout {
        /// The answer that did not come.
        what: &'static str,
        /// Time that was waited.
        limit: std::time::Duration,
    },
    /// A living sandbox has the id already.
    #[error("there is a sandbox {0} already")]
    Exists(crate::SandboxId),
    /// The backend cannot do what was asked for.
    #[error("this backend does not support {0}")]
    NotSupported(&'static str),
    /// The kernel or its channel ended during a request.
    #[error("the kernel is gone: {0}")]
    KernelGone(String),
    /// The sandbox is paused: nothing can be started in it until it is resumed.
    #[error("the sandbox is paused")]
    Paused,
    /// The sandbox could not be paused, and goes on: a program in it did not stop in time, for example because it waits for a disk.
    #[error("the sandbox could not be paused: a program in it did not stop in time; try again")]
    NotStopped,
    /// Nothing in the sandbox listens on the port.
    #[error("nothing listens on port {0} of the sandbox")]
    PortClosed(u16),
    /// All terminals that a sandbox may have are open.
    #[error("all terminals of the sandbox are open; close one, or try again when a program has ended")]
    NoTerminal,
    /// A program could not be started in the sandbox: it does not exist or is not executable.
    #[error("the program could not be started: {0}")]
    Start(String),
    /// A program could not be started in the sandbox: there are as many processes in it as there may be.
    #[error(
        "the program could not be started: the sandbox has as many processes as it may have; end some, or try again later"
    )]
    NoProcess,
    /// The template is missing, damaged or could not be built.
    #[error("{0}")]
    Template(String),
    /// A path that is not inside the workspace, not a regular file, or too large.
    #[error("{path}: {reason}")]
    File {
        /// The path as it was asked for.
        path: String,
        /// The mistake.
        reason: String,
    },
    /// A host file or directory could not be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// The failure of a program's start, for the reason that the system gives as the last of its words.
    pub(crate) fn not_started(reason: String) -> Self {
        // EAGAIN in the words of both C libraries. Of what starts a program, only the bound on processes brings it.
        if reason.ends_with("Resource temporarily unavailable") { Self::NoProcess } else { Self::Start(reason) }
    }
}
