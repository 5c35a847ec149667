//! The reason of a turn that was cancelled.

use aludel_engine::turns::{Failure, FailureKind};
use tokio_util::sync::CancellationToken;

/// Tells clients why their turn was cancelled.
#[derive(Debug, Clone)]
pub(crate) struct CancelReason {
    /// Cancelled when the server ends.
    server_ends: CancellationToken,
}

impl CancelReason {
    /// The reasons of an engine that is ended by this token.
    pub(crate) fn of(server_ends: &CancellationToken) -> Self {
        Self { server_ends: server_ends.clone() }
    }

    /// The failure of a turn that was cancelled now. Whoever hears of it while the server goes on did not leave.
    pub(crate) fn failure(&self) -> Failure {
        if self.server_ends.is_cancelled() {
            return Failure::server_ends();
        }
        let message = "The answer was cancelled: its API key was revoked or has expired, or its client left.";
        Failure { should_retry: Some(false), ..Failure::new(FailureKind::Unavailable, message) }
    }
}
