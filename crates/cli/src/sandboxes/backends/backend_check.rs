//! The finding about a backend.

use aludel_sandbox::Error;
use aludel_sandbox::probe::CheckStatus;

use super::BackendKind;
use crate::config::RequireSetting;
use crate::context::CommandContext;
use crate::exit::words;

/// A backend that was tried.
pub(crate) struct BackendCheck {
    pub(crate) backend: BackendKind,
    /// Degraded if it enforces less than it could.
    pub(crate) status: CheckStatus,
    /// The finding, in words.
    pub(crate) detail: String,
}

impl BackendCheck {
    /// Returns true if sandboxes can start.
    pub(crate) fn is_ready(&self) -> bool {
        self.status != CheckStatus::Missing
    }
}

/// The result for an engine or a service that answers. `origin` describes the place of its sandboxes.
pub(super) fn answered(
    context: &CommandContext,
    name: &str,
    origin: &str,
    warnings: &[String],
) -> (CheckStatus, String) {
    let warnings = warnings.join(", ");
    if warnings.is_empty() {
        (CheckStatus::Ok, format!("{name} answers; {origin}"))
    } else if *context.config.sandbox.require == RequireSetting::Strict {
        (CheckStatus::Missing, format!("{warnings}, and sandbox.require is strict"))
    } else {
        (CheckStatus::Degraded, format!("{name} answers; {origin}; {warnings}"))
    }
}

/// The result for one that gives an error.
pub(super) fn failed(error: Error) -> (CheckStatus, String) {
    let detail = match error {
        Error::Setup(reason) => reason,
        error => words(&error.into()),
    };
    (CheckStatus::Missing, detail)
}
