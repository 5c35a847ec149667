//! Exit statuses of the program.

use std::io;
use std::process::ExitCode;

use aludel_sandbox::{KernelDeath, Outcome};

use crate::config::ConfigError;

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
    /// aludel, the model or the host failed.
    Ours,
    /// The user stopped it.
    Interrupted,
    /// A command that was run in a sandbox ended with this status.
    Of(u8),
    /// Our output has no reader any more, for example after `| head`.
    OutputClosed,
}

/// Section of `--help` on exit statuses.
pub(crate) const HELP: &str = "\
Exit status:
  0    success
  1    the program failed; for `ask`: there is no answer
  2    the command line or the configuration is wrong
  3    a limit was hit
  4    aludel, the model or the host failed
  130  interrupted
  141  its output has no reader any more";

impl Exit {
    /// The number that the shell sees.
    pub(crate) fn status(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::ProgramFailed => 1,
            Self::Usage => 2,
            Self::Limit => 3,
            Self::Ours => 4,
            Self::Interrupted => 130,
            Self::OutputClosed => 141,
            Self::Of(status) => status,
        }
    }

    /// The status of a program that ended like this.
    pub(crate) fn of_outcome(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Completed | Outcome::KernelDied(KernelDeath::Exited(0)) => Self::Success,
            Outcome::Failed(_) | Outcome::KernelDied(_) => Self::ProgramFailed,
            Outcome::Limit(_) => Self::Limit,
            Outcome::Interrupted => Self::Interrupted,
        }
    }

    /// The status for an error that ended a command.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        let closed = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        };
        if error.is::<UsageError>() || error.is::<ConfigError>() {
            Self::Usage
        } else if error.is::<LimitError>() {
            Self::Limit
        } else if error.is::<InterruptedError>() {
            Self::Interrupted
        } else if let Some(NotStartedError(reason)) = error.downcast_ref() {
            // The statuses of shells.
            Self::Of(if reason.ends_with("No such file or directory") { 127 } else { 126 })
        } else if error.chain().any(closed) {
            Self::OutputClosed
        } else {
            Self::Ours
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.status())
    }
}

/// Something the user can mend by writing another command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct UsageError(String);

/// A usage error as the edge's error type.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    UsageError(text.into()).into()
}

/// More than a limit allows.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct LimitError(String);

/// An error about a limit as the edge's error type.
pub(crate) fn limit(text: impl Into<String>) -> anyhow::Error {
    LimitError(text.into()).into()
}

/// The end of a command by the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct InterruptedError(&'static str);

/// The end of a command by the user as the edge's error type.
pub(crate) fn interrupted(text: &'static str) -> anyhow::Error {
    InterruptedError(text).into()
}

/// A command that a sandbox could not start, and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotStartedError(String);

/// A command that a sandbox could not start as the edge's error type.
pub(crate) fn not_started(reason: String) -> anyhow::Error {
    NotStartedError(reason).into()
}

/// An error with its causes, each printed once: some messages contain their cause's.
pub(crate) fn words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !words.ends_with(&cause) {
            words.push_str(if words.is_empty() { "" } else { ": " });
            words.push_str(&cause);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let full = anyhow::anyhow!("no space").context("write: no space").context("cannot save");
        assert_eq!(words(&full), "cannot save: write: no space");
    }

    #[test]
    fn errors_have_their_status() {
        assert_eq!(Exit::of_error(&usage("no")), Exit::Usage);
        assert_eq!(Exit::of_error(&limit("full").context("no")), Exit::Limit);
        assert_eq!(Exit::of_error(&anyhow::Error::from(ConfigError::NoHome)), Exit::Usage);
        let closed = Err::<(), _>(io::Error::from(io::ErrorKind::BrokenPipe)).context("write").unwrap_err();
        assert_eq!(Exit::of_error(&closed), Exit::OutputClosed);
        assert_eq!(Exit::of_error(&interrupted("ended").context("no")), Exit::Interrupted);
        assert_eq!(Exit::of_error(&anyhow::anyhow!("host")), Exit::Ours);
        assert_eq!(Exit::of_error(&not_started("x: No such file or directory".into()).context("no")), Exit::Of(127));
        assert_eq!(Exit::of_error(&not_started("/: Permission denied".into())), Exit::Of(126));
    }
}
