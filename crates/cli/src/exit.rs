//! How the program ends.

use std::process::ExitCode;

/// Exit statuses, which are part of the command line's contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All went well.
    Success,
    /// The program that was run failed, or there is no answer.
    ProgramFailed,
    /// The command line or the configuration is wrong.
    Usage,
    /// A limit was hit.
    Limit,
    /// aludel or the host failed.
    Ours,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Success => 0,
            Exit::ProgramFailed => 1,
            Exit::Usage => 2,
            Exit::Limit => 3,
            Exit::Ours => 4,
        })
    }
}

/// Something the user can mend by writing another command line or configuration.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A usage error as the edge's error type.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    UsageError(text.into()).into()
}

/// The status for an error that ended a command.
pub(crate) fn of_error(error: &anyhow::Error) -> Exit {
    if error.is::<UsageError>() { Exit::Usage } else { Exit::Ours }
}
