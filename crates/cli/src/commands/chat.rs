//! `aludel chat`: a conversation with a model that can run programs.

mod command;
mod line;

use std::path::PathBuf;

use aludel_agent::{Item, code_of, size};
use aludel_engine::transcript::Transcript;
use clap::Args;

use self::command::{ChatCommand, HELP, HELP_COLUMN};
use self::line::{ChatLine, LineReader};
use crate::args::{ModelArgs, SandboxOptions};
use crate::config::Flag;
use crate::context::CommandContext;
use crate::exit::{Exit, words};
use crate::output_directory::OutputDirectory;
use crate::sandboxes::RunningBackend;
use crate::saved_conversation::SavedConversation;
use crate::screen::{Screen, TurnAudience};
use crate::show::TurnView;
use crate::turn::{Conversation, FinishedTurn, Question};
use crate::{color, console, inputs, state, terminal, wrap};

/// Talk with a model about your files; it writes and runs programs to answer
///
/// One question a line. Programs share their variables and files from question to question. What they make is copied to --out after each
/// answer. Ctrl-C stops the answer, Ctrl-D ends the conversation, --continue goes on with it later. /help lists the commands.
#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// Files to work on, or directories of them; NAME is their place in its directory
    #[arg(long = "file", value_name = "PATH[:NAME]", num_args = 1..)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Directory for files that programs make; a newer version of a file takes the place of the older one
    /// [default: a new directory aludel-out, aludel-out-2 and so on]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxOptions,
}

impl ChatArgs {
    pub(crate) fn flags(&self) -> Vec<Flag> {
        self.model.flags().chain(self.sandbox.flags()).collect()
    }
}

pub(crate) async fn run(args: ChatArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let files = inputs::check(&args.files)?;
    let saved = args.model.continues.then(|| SavedConversation::read_to_continue(context)).transpose()?;
    let model_and_approval = args.model.model_and_approval(context)?;
    let out = match &args.out {
        Some(directory) => OutputDirectory::existing(directory.clone())?,
        None => OutputDirectory::unnamed(),
    };
    let store = state::open(context).await?;
    let sandboxes = RunningBackend::start_for_model(context).await?;
    let result = async {
        let model = model_and_approval.model.name.clone();
        let mut conversation = Conversation::open(&sandboxes, store, context, model_and_approval, saved).await?;
        let mut chat = Chat {
            conversation: &mut conversation,
            out: Some(out),
            model,
            sandboxes: &sandboxes,
            is_verbose: context.verbose,
        };
        let ended = async {
            chat.conversation.add(&files).await?;
            chat.talk(LineReader::new(&state::directory(&context.config.server.data))?).await
        }
        .await;
        conversation.close().await;
        ended
    }
    .await;
    sandboxes.backend.shutdown().await;
    result
}

/// A conversation with a person.
struct Chat<'a, 'c> {
    conversation: &'a mut Conversation<'c>,
    /// The directory for files of programs; a screen has it while a question is answered.
    out: Option<OutputDirectory>,
    model: String,
    sandboxes: &'a RunningBackend,
    is_verbose: bool,
}

/// The course of a conversation after a line.
enum ChatStep {
    GoOn,
    End(Exit),
}

impl Chat<'_, '_> {
    async fn talk(&mut self, mut lines: LineReader) -> anyhow::Result<Exit> {
        console::status(&color::faint("/help lists the commands, Ctrl-D ends the conversation."));
        loop {
            let line = tokio::select! {
                line = lines.next() => line?,
                () = self.conversation.interrupted() => return Ok(Exit::Interrupted),
            };
            let text = match line {
                ChatLine::Text(text) => text,
                ChatLine::Dropped => continue,
                ChatLine::End => return Ok(Exit::Success),
            };
            let flow = match ChatCommand::parse(&text) {
                None => self.ask(&text).await?,
                Some(Ok(command)) => match self.carry_out(command).await {
                    Ok(flow) => flow,
                    Err(error) => {
                        console::fail(&words(&error));
                        ChatStep::GoOn
                    }
                },
                Some(Err(message)) => {
                    console::fail(&message);
                    ChatStep::GoOn
                }
            };
            if let ChatStep::End(exit) = flow {
                return Ok(exit);
            }
        }
    }

    /// Asks a question.
    async fn ask(&mut self, text: &str) -> anyhow::Result<ChatStep> {
        let Some(mut out) = self.out.take() else { anyhow::bail!("another question is being answered") };
        out.begin_again();
        let kernel = self.sandboxes.backend.capabilities().kernel();
        let transcript = Transcript::new(text, &self.model, kernel);
        let screen = Screen::new(TurnAudience::Person(Box::new(TurnView::new(self.is_verbose))), out, transcript);
        let question = Question { text, inputs: &[] };
        let Some(FinishedTurn { screen, ending: _, saved }) = self.conversation.ask(question, screen).await? else {
            return Ok(ChatStep::End(Exit::Interrupted));
        };
        match (saved, screen.view) {
            (Ok(saved), TurnAudience::Person(mut view)) => view.files(&saved)?,
            (Ok(_), TurnAudience::Program) => {}
            (Err(error), _) => console::fail(&words(&error)),
        }
        self.out = Some(screen.out);
        if !self.conversation.items().is_empty() {
            self.conversation.persist().await?;
        }
        Ok(ChatStep::GoOn)
    }

    async fn carry_out(&mut self, command: ChatCommand) -> anyhow::Result<ChatStep> {
        match command {
            ChatCommand::Help => {
                for line in HELP.lines() {
                    let column = if line.starts_with('/') { HELP_COLUMN } else { 0 };
                    console::status(&wrap::hanging(line, column));
                }
            }
            ChatCommand::Files => {
                let files = self.conversation.files().await?;
                for file in &files {
                    console::status(&format!("{} ({})", terminal::name(&file.path), size(file.bytes)));
                }
                if files.is_empty() {
                    console::status("There are no files; add some by /file PATH.");
                }
            }
            ChatCommand::File(paths) => {
                let files = inputs::check(&paths)?;
                self.conversation.add(&files).await?;
                for file in files {
                    console::status(&format!("{} {}", color::faint("added:"), terminal::name(file.name())));
                }
            }
            ChatCommand::Code => {
                let calls = self.conversation.items().iter().filter_map(|item| match item {
                    Item::Call(call) => Some(code_of(&call.arguments)),
                    _ => None,
                });
                for (index, code) in calls.enumerate() {
                    let code = code.unwrap_or_default();
                    console::status(&color::faint(&format!("── program {} ──", index + 1)));
                    console::status(&color::code(terminal::reveal(&code).trim_end()));
                }
            }
            ChatCommand::Save(directory) => {
                let saved = self.conversation.save(&mut OutputDirectory::existing(directory)?).await?;
                for path in saved.into_iter().filter_map(|saved| saved.path) {
                    console::status(&format!("{} {}", color::faint("file:"), path.display()));
                }
            }
            ChatCommand::Quit => return Ok(ChatStep::End(Exit::Success)),
        }
        Ok(ChatStep::GoOn)
    }
}
