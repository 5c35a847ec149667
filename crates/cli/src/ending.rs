//! The end of a turn, as an error and as the exit status of a command.

use aludel_engine::turns::{EndReason, FailureKind};
use anyhow::anyhow;

use crate::exit::Exit;
use crate::state;

/// The error that ended a turn, if it is neither the model's nor the sandbox's.
pub(crate) fn failure_of(ending: &EndReason) -> Option<anyhow::Error> {
    let EndReason::Failed { failure, cause } = ending else { return None };
    let words = cause.clone().unwrap_or_else(|| failure.message.clone());
    match failure.kind {
        FailureKind::RateLimited
        | FailureKind::Busy
        | FailureKind::Rejected
        | FailureKind::ContextExceeded
        | FailureKind::Upstream
        | FailureKind::Sandbox => None,
        FailureKind::DiskFull | FailureKind::Storage => Some(state::StateError(words).into()),
        FailureKind::StorageFull
        | FailureKind::TooLarge
        | FailureKind::SessionDeleted
        | FailureKind::Unavailable
        | FailureKind::Internal => Some(anyhow!(words)),
    }
}

/// The status of a turn that ended like this.
pub(crate) fn exit_of(ending: &EndReason) -> Exit {
    match ending {
        EndReason::Answered => Exit::Success,
        EndReason::Refused | EndReason::TooLong | EndReason::Filtered | EndReason::WaitsForClient { .. } => {
            Exit::ProgramFailed
        }
        EndReason::TokenBudget { .. } | EndReason::Budget { .. } => Exit::Limit,
        EndReason::Failed { .. } => Exit::Ours,
        EndReason::Cancelled => Exit::Interrupted,
    }
}
