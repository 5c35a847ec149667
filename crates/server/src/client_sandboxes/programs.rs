//! Programs in the contexts of a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use aludel_engine::approvals::ApprovalMode;
use aludel_engine::execution::{LimitHit, Outcome, VariablesState};
use aludel_engine::executions::{self, ClientProgram, DirectEnd, DirectExecution};
use aludel_engine::sandboxes::{ClientSandbox, Context};
use aludel_engine::{Error, Language};

use super::refusal::refused;
use crate::app::App;

/// Names of errors that are no program's own.
const UNEXPECTED: &str = "UnexpectedEndOfExecution";
const ABORTED: &str = "ExecutionAborted";

/// A program that was started.
#[derive(Debug)]
pub(crate) struct StartedProgram {
    /// The id of its execution.
    pub(crate) id: String,
    /// Its context.
    pub(crate) context: Arc<Context>,
    /// Its number in its context.
    pub(crate) number: u64,
    /// Its events.
    pub(crate) execution: DirectExecution,
}

/// The context of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ContextChoice<'a> {
    /// The one of this id.
    Context(&'a str),
    /// The default context of this language; `None` for the sandbox's own language.
    Language(Option<&'a str>),
}

/// Starts a program in its context.
pub(crate) async fn start(
    app: &App,
    sandbox: &ClientSandbox,
    sender: &str,
    choice: ContextChoice<'_>,
    environment: BTreeMap<String, String>,
    code: String,
) -> Result<StartedProgram, Error> {
    let contexts = sandbox.contexts();
    let context = match choice {
        ContextChoice::Context(id) => {
            let context = contexts.get(Some(id)).await?;
            check_variables(app, sandbox, context.language(), &environment)?;
            context
        }
        ContextChoice::Language(None) => contexts.get(None).await?,
        ContextChoice::Language(Some(name)) => {
            let language = contexts.language(name)?;
            check_variables(app, sandbox, language.as_ref(), &environment)?;
            contexts.of_language(language).await?
        }
    };
    let target = contexts.target(&context, environment).await?;
    let number = context.count();
    let id = aludel_store::fresh_id("exec_");
    let (tenant, sender) = (sandbox.tenant().clone(), sender.to_owned());
    let program = ClientProgram { id: id.clone(), tenant, sender, target, code, timeout: None };
    Ok(StartedProgram { id, context, number, execution: executions::start(&app.engine, program)? })
}

/// Makes a context in this language, the sandbox's own for `None`.
pub(crate) async fn create_context(
    app: &App,
    sandbox: &ClientSandbox,
    directory: Option<&str>,
    language: Option<Language>,
) -> Result<Arc<Context>, Error> {
    check_variables(app, sandbox, language.as_ref(), &BTreeMap::new())?;
    sandbox.contexts().create(directory, language).await
}

/// Restarts a context, whose kernel may not have been started before.
pub(crate) async fn restart_context(app: &App, sandbox: &ClientSandbox, id: &str) -> Result<(), Error> {
    let contexts = sandbox.contexts();
    check_variables(app, sandbox, contexts.get(Some(id)).await?.language(), &BTreeMap::new())?;
    contexts.restart(id).await
}

/// Refuses variables for programs in another language than Python where programs need approval: nobody who approves one sees them, and a
/// shell runs the value of `PROMPT_COMMAND`.
fn check_variables(
    app: &App,
    sandbox: &ClientSandbox,
    language: Option<&Language>,
    environment: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let has_none = environment.is_empty() && sandbox.spec().environment.is_empty();
    match (language, &app.engine.approvals().mode) {
        (None, _) | (_, ApprovalMode::Never) => Ok(()),
        _ if has_none => Ok(()),
        (Some(language), ApprovalMode::Always | ApprovalMode::Rules(_)) => Err(Error::Invalid {
            field: "environment",
            reason: format!(
                "Programs in {} get no variables of the client's where programs need approval (approval.mode), which does not show them; \
                 use a sandbox without variables.",
                language.as_str()
            ),
        }),
    }
}

/// The language of a context, as clients know it.
pub(crate) fn language(context: &Context) -> &str {
    context.language().map_or("python", Language::as_str)
}

/// An error that is no program's own.
#[derive(Debug)]
pub(crate) struct ProgramFailure {
    /// Its name, as of an exception.
    pub(crate) name: &'static str,
    /// Its words.
    pub(crate) value: String,
    /// The program's traceback and these words, or these alone.
    pub(crate) traceback: String,
}

/// Words before the end of a program whose context has lost its variables unheard: the client of an earlier program had left. Notes on the
/// context that the client hears of a loss now.
pub(crate) fn note_loss(context: &Context, end: &DirectEnd) -> Option<&'static str> {
    let DirectEnd::Ran(outcome) = end else { return None };
    match outcome.finished.as_ref()?.state {
        VariablesState::Lost => {
            context.note_told_loss();
            None
        }
        VariablesState::Restarted => {
            Some("[A new interpreter ran this program: the one before has ended, and all variables are lost.]\n")
        }
        VariablesState::Kept | VariablesState::RolledBack => None,
    }
}

/// The error of an end that says more than the program's own, whose traceback goes before it.
pub(crate) fn failure(end: DirectEnd, raised: Option<String>) -> Option<ProgramFailure> {
    let (name, value) = match end {
        DirectEnd::Ran(outcome) => {
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
        DirectEnd::Denied { reason } => (ABORTED, format!("The program was not allowed to run: {reason}")),
        DirectEnd::Cancelled => (ABORTED, "Execution was aborted".to_owned()),
        DirectEnd::Failed(failure) => {
            let failure = refused(failure);
            if let Some(cause) = &failure.cause {
                tracing::error!("an execution failed: {cause}");
            }
            (UNEXPECTED, failure.message)
        }
    };
    let traceback = raised.map_or_else(|| value.clone(), |raised| format!("{raised}\n{value}"));
    Some(ProgramFailure { name, value, traceback })
}
