//! The ends of steps and runs.

use aludel_wire::assistants::{LastError, Run, RunStatus, RunStep, StepStatus};

/// The end of an open step.
#[derive(Debug, Clone)]
pub(super) enum StepEnd {
    /// Completed.
    Completed,
    /// Cut off by a limit; the text is the reason in its incomplete message.
    CutOff(&'static str),
    /// Cancelled with the run.
    Cancelled,
    Expired,
    Failed(LastError),
}

/// Ends a step.
pub(super) fn end_of_step(step: &mut RunStep, end: &StepEnd, now: i64) {
    step.expires_at = None;
    match end {
        StepEnd::Completed | StepEnd::CutOff(_) => {
            (step.status, step.completed_at) = (StepStatus::Completed, Some(now));
        }
        StepEnd::Cancelled => (step.status, step.cancelled_at) = (StepStatus::Cancelled, Some(now)),
        StepEnd::Expired => (step.status, step.expires_at) = (StepStatus::Expired, Some(now)),
        StepEnd::Failed(error) => {
            (step.status, step.failed_at) = (StepStatus::Failed, Some(now));
            step.last_error = Some(error.clone());
        }
    }
}

/// Sets a run's state and the times that belong to it.
pub(super) fn end_of_run(run: &mut Run, status: RunStatus, last_error: Option<LastError>, now: i64) {
    run.status = status;
    run.last_error = last_error;
    if status.is_terminal() {
        (run.expires_at, run.required_action) = (None, None);
    }
    match status {
        RunStatus::Completed => run.completed_at = Some(now),
        RunStatus::Failed => run.failed_at = Some(now),
        RunStatus::Cancelled => run.cancelled_at = Some(now),
        RunStatus::Queued
        | RunStatus::InProgress
        | RunStatus::RequiresAction
        | RunStatus::Cancelling
        | RunStatus::Incomplete
        | RunStatus::Expired => {}
    }
}

/// The run as clients see it, with its tokens once it has ended.
pub(super) fn for_client(run: Run) -> Run {
    let usage = run.usage.filter(|_| run.status.is_terminal());
    Run { usage, ..run }
}
