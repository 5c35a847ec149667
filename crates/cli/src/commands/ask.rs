//! `aludel ask`: a question to a model that can run programs.

use std::path::PathBuf;

use aludel_engine::transcript::Transcript;
use aludel_store::Store;
use clap::Args;

use crate::args::{ModelArgs, SandboxOptions};
use crate::config::Flag;
use crate::context::CommandContext;
use crate::ending::exit_of;
use crate::exit::{Exit, usage};
use crate::output_directory::OutputDirectory;
use crate::sandboxes::RunningBackend;
use crate::saved_conversation::SavedConversation;
use crate::screen::{Screen, TurnAudience};
use crate::show::TurnView;
use crate::turn::{self, Conversation, FinishedTurn, ModelAndApproval, Question};
use crate::{inputs, json, state};

/// Ask a model a question about your files; it writes and runs programs to answer it
///
/// The model's words go to stdout; the programs it writes, what they print and what they made go to stderr. Files that programs make or
/// change are copied to --out at the end, also when the model fails or Ctrl-C ends the turn.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{}\n\n{}", json::TURN_HELP, crate::exit::HELP))]
pub(crate) struct AskArgs {
    /// The question
    #[arg(value_name = "QUESTION", required_unless_present = "files")]
    question: Option<String>,
    /// Files to work on, or directories of them; NAME is their place in its directory
    #[arg(long = "file", value_name = "PATH[:NAME]", num_args = 1..)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Directory for files that programs make, and a transcript; files of the same name are replaced, but no figures
    /// [default: a new directory aludel-out, aludel-out-2 and so on, without a transcript]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// Print events as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

impl AskArgs {
    pub(crate) fn flags(&self) -> Vec<Flag> {
        self.model.flags().chain(self.sandbox.flags()).collect()
    }

    /// Takes the question, which may come after the files, as in `--file a.csv "And the slowest?"`.
    fn take_question(&mut self) -> anyhow::Result<String> {
        if let Some(question) = self.question.take() {
            return Ok(question);
        }
        let last = self.files.pop().filter(|last| !self.files.is_empty() && last.symlink_metadata().is_err());
        let question = last.and_then(|last| last.into_os_string().into_string().ok());
        question.ok_or_else(|| usage("no question was given: aludel ask QUESTION --file PATH..."))
    }
}

pub(crate) async fn run(mut args: AskArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let text = args.take_question()?;
    if text.trim().is_empty() {
        return Err(usage("the question is empty"));
    }
    let inputs = inputs::check(&args.files)?;
    let saved = args.model.continues.then(|| SavedConversation::read_to_continue(context)).transpose()?;
    let model_and_approval = args.model.model_and_approval(context)?;
    let out = match &args.out {
        Some(directory) => OutputDirectory::existing(directory.clone())?,
        None => OutputDirectory::unnamed(),
    };
    let view =
        if args.json { TurnAudience::Program } else { TurnAudience::Person(Box::new(TurnView::new(context.verbose))) };
    let question = Question { text: &text, inputs: &inputs };
    let store = state::open(context).await?;
    let sandboxes = RunningBackend::start_for_model(context).await?;
    let kernel = sandboxes.backend.capabilities().kernel();
    let transcript = Transcript::new(&text, &model_and_approval.model.name, kernel).after_figures(out.figures());
    let screen = Screen::new(view, out, transcript);
    let done = ask(&sandboxes, store, context, model_and_approval, saved, question, screen).await;
    sandboxes.backend.shutdown().await;
    let Some(FinishedTurn { mut screen, ending, saved }) = done? else { return Ok(Exit::Interrupted) };
    let exit = exit_of(&ending);
    if args.out.is_some() {
        turn::save_transcript(&screen.transcript, &mut screen.out)?;
    }
    let saved = saved?;
    match &mut screen.view {
        TurnAudience::Person(view) => view.files(&saved)?,
        TurnAudience::Program => json::end(json::EndLine::turn(exit, &ending, &screen.answer, &saved))?,
    }
    Ok(exit)
}

/// Asks one question, and saves it for `--continue` if there is an answer.
async fn ask(
    sandboxes: &RunningBackend,
    store: Store,
    context: &CommandContext,
    model_and_approval: ModelAndApproval,
    saved: Option<SavedConversation>,
    question: Question<'_>,
    screen: Screen,
) -> anyhow::Result<Option<FinishedTurn>> {
    let mut conversation = Conversation::open(sandboxes, store, context, model_and_approval, saved).await?;
    let done = conversation.ask(question, screen).await;
    let saved = match done {
        Ok(Some(_)) if !conversation.items().is_empty() => conversation.persist().await,
        _ => Ok(()),
    };
    conversation.close().await;
    saved?;
    done
}
