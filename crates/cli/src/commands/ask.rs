//! `aludel ask`: a question to a model that can run programs.

use std::path::PathBuf;

use aludel_engine::approvals::ApprovalMode;
use aludel_engine::transcript::Transcript;
use clap::Args;

use super::Context;
use crate::args::{LimitArgs, flag};
use crate::config::{Endpoint, Flag, Model, Section};
use crate::exit::{Exit, usage};
use crate::out::Out;
use crate::sandboxes::Sandboxes;
use crate::screen::{self, Screen, View};
use crate::show::TurnView;
use crate::turn::{self, Done, Question};
use crate::{approval, console, inputs, json, paint, state, terminal, upstream};

/// Where files go when nobody says where.
const OUT: &str = "aludel-out";

/// Ask a model a question about your files; it writes and runs programs to answer it
///
/// The model's words go to stdout; the programs it writes, what they print and what they made go to stderr. Files that programs make or change
/// are copied to --out at the end, also when the model fails or Ctrl-C ends the turn.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{}\n\n{}", json::TURN_HELP, crate::exit::HELP))]
pub(crate) struct AskArgs {
    /// The question
    #[arg(value_name = "QUESTION")]
    question: String,
    /// A file to work on; may be given several times
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Which of the configured models to ask, or with --url, the name of another [default: the first]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Where the model is, for example http://localhost:11434/v1; the key of another url is not sent there
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Where its key is: env:NAME or file:PATH
    #[arg(long, value_name = "WHERE")]
    key: Option<String>,
    /// Ask before each program runs; without it, `approval.mode` of the configuration holds
    #[arg(long)]
    approve: bool,
    /// Where to put files that programs make, and a transcript; files of the same name are replaced, but no figures
    /// [default: aludel-out, without a transcript]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Print events as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

impl AskArgs {
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let name = flag("--model", Section::Model, "name", self.model.as_ref());
        let url = flag("--url", Section::Model, "url", self.url.as_ref());
        let key = flag("--key", Section::Model, "key", self.key.as_ref());
        name.into_iter().chain(url).chain(key).chain(self.limits.flags()).collect()
    }
}

pub(crate) async fn run(args: AskArgs, context: &Context) -> anyhow::Result<Exit> {
    if args.question.trim().is_empty() {
        return Err(usage("the question is empty"));
    }
    let configured = context.config.approval.mode()?;
    let (approval, asked_by) =
        if args.approve { (ApprovalMode::Always, "--approve") } else { (configured, "approval.mode = \"always\"") };
    if matches!(approval, ApprovalMode::Always) && !approval::can_be_asked() {
        return Err(usage(format!("{asked_by} needs a terminal to ask at; without one, no program could be allowed")));
    }
    let inputs = inputs::check(&args.files)?;
    let Some(model) = context.config.models.first() else { return Err(usage("no model is configured")) };
    let asked = upstream::first(&context.config.models, &context.surroundings)?;
    console::tell(&paint::faint(&describe(model)));
    let out = match &args.out {
        Some(directory) => Out::existing(directory.clone())?,
        None => Out::possible(PathBuf::from(OUT))?,
    };
    let view = if args.json { View::Program } else { View::Person(Box::new(TurnView::new())) };
    let question = Question { text: &args.question, inputs: &inputs, model: asked, approval };
    let store = state::open(context).await?;
    let sandboxes = Sandboxes::start(context, 0).await?;
    let kernel = sandboxes.backend.capabilities().kernel();
    let transcript = Transcript::new(&args.question, &*model.name, kernel).after_figures(out.figures());
    let screen = Screen::new(view, out, transcript);
    let done = turn::run(&sandboxes, store, context, question, screen).await;
    sandboxes.backend.shutdown().await;
    let Some(Done { mut screen, ending, saved }) = done? else { return Ok(Exit::Interrupted) };
    let exit = screen::exit_of(&ending);
    if args.out.is_some() {
        turn::save_transcript(&screen.transcript, &mut screen.out)?;
    }
    match &mut screen.view {
        View::Person(view) => view.files(&saved)?,
        View::Program => json::end(json::Ended::turn(exit, &ending, &screen.answer, &saved))?,
    }
    Ok(exit)
}

/// Who is asked, so that nobody wonders.
fn describe(model: &Model) -> String {
    match &model.endpoint {
        Endpoint::Http(http) => format!("asking {} at {}", terminal::name(&model.name), terminal::name(&http.url)),
        Endpoint::Demo => {
            "asking the demo model: a script that knows one analysis (see `aludel demo`), not a language model. \
                           To ask a real one, give --model and --url, or a [[model]] in aludel.toml."
                .to_owned()
        }
    }
}
