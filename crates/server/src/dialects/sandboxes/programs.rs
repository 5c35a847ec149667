//! Programs in the contexts of a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use aludel_engine::Error;
use aludel_engine::execution::{LimitHit, Outcome};
use aludel_engine::executions::{self, End, Execution, Program};
use aludel_engine::sandboxes::{Context, LiveSandbox};

use super::refusal::refused;
use crate::app::App;

/// Names of errors that are no program's own.
const UNEXPECTED: &str = "UnexpectedEndOfExecution";
const ABORTED: &str = "ExecutionAborted";

/// A program that was started.
#[derive(Debug)]
pub(crate) struct Started {
    /// The id of its execution.
    pub(crate) id: String,
    /// Its context.
    pub(crate) context: Arc<Context>,
    /// Its number in its context.
    pub(crate) number: u64,
    /// Its events.
    pub(crate) execution: Execution,
}

/// Starts a program in the context of this id, or in the default one.
pub(crate) async fn start(
    app: &App,
    live: &LiveSandbox,
    sender: &str,
    context: Option<&str>,
    environment: BTreeMap<String, String>,
    code: String,
) -> Result<Started, Error> {
    let contexts = live.contexts();
    let context = contexts.get(context).await?;
    let target = contexts.target(&context, environment).await?;
    let number = context.count();
    let id = aludel_store::fresh_id("exec_");
    let (tenant, sender) = (live.tenant().clone(), sender.to_owned());
    let program = Program { id: id.clone(), tenant, sender, target, code, timeout: None };
    Ok(Started { id, context, number, execution: executions::start(&app.engine, program)? })
}

/// An error that is no program's own.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Its name, as of an exception.
    pub(crate) name: &'static str,
    /// Its words.
    pub(crate) value: String,
}

/// The error that tells of an end for which the program told none.
pub(crate) fn failure(end: End) -> Option<Failure> {
    let (name, value) = match end {
        End::Ran(outcome) => {
            let name = match outcome.finished.as_ref()?.outcome {
                Outcome::Completed | Outcome::Failed(_) => return None,
                Outcome::Interrupted => "KeyboardInterrupt",
                Outcome::Limit(LimitHit::Memory { .. }) => "MemoryError",
                Outcome::Limit(LimitHit::WallClock { .. } | LimitHit::CpuTime { .. }) => "TimeoutError",
                Outcome::Limit(LimitHit::Disk { .. } | LimitHit::Files { .. }) => "OSError",
                Outcome::KernelDied(_) => UNEXPECTED,
            };
            (name, outcome.words)
        }
        End::Refused { reason } => (ABORTED, format!("The program was not allowed to run: {reason}")),
        End::Cancelled => (ABORTED, "Execution was aborted".to_owned()),
        End::Failed(failure) => {
            let failure = refused(failure);
            if let Some(cause) = &failure.cause {
                tracing::error!("an execution failed: {cause}");
            }
            (UNEXPECTED, failure.message)
        }
    };
    Some(Failure { name, value })
}
