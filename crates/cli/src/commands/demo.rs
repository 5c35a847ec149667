//! `aludel demo`: the whole loop on real data, without any model.

mod sample;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aludel_agent::size;
use aludel_engine::approvals::ApprovalMode;
use aludel_engine::transcript::Transcript;
use aludel_engine::turns::EndReason;
use anyhow::Context as _;
use clap::Args;

use crate::console::StandardStream;
use crate::context::CommandContext;
use crate::ending::exit_of;
use crate::exit::Exit;
use crate::output_directory::OutputDirectory;
use crate::sandboxes::RunningBackend;
use crate::screen::{Screen, TurnAudience};
use crate::show::TurnView;
use crate::turn::{self, Conversation, FinishedTurn, ModelAndApproval, Question};
use crate::{color, inputs, state, upstream};

const QUESTION: &str = "Analyze the attached Q1 2026 sales data. Calculate monthly dynamics, top 10 products, conversion funnel. \
                        Create PDF report with visualizations.";
/// The name of the sample file.
const SAMPLE: &str = "sales_q1_2026.csv";
/// Pause of the scripted model between two pieces, for people who watch.
const PACE: Duration = Duration::from_millis(4);

/// See the whole thing work: sample data, a scripted model, a real sandbox, a PDF report
///
/// The model is a script, so no key and no network are needed; everything else is real. Its first program fails on the data, it reads the
/// traceback and mends it, as models do.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory for the sample data and its results
    #[arg(long, value_name = "DIR", default_value = "aludel-demo")]
    out: PathBuf,
}

pub(crate) async fn run(args: DemoArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let mut out = OutputDirectory::existing(args.out.clone())?;
    let sample = out.place(SAMPLE)?;
    sample::write(&sample).with_context(|| format!("cannot write {}", sample.display()))?;
    let inputs = inputs::check(std::slice::from_ref(&sample))?;
    let mut view = TurnView::new(context.verbose);
    let console = view.console();
    console.note(&format!("{} {} ({} rows)", color::faint("sample data:"), sample.display(), sample::ROWS))?;
    console.note(&format!("{} {QUESTION}", color::faint("question:")))?;
    console.note(&format!(
        "{} scripted: it is compiled in and follows a script; the sandbox and the data are real",
        color::faint("model:")
    ))?;
    let store = state::open(context).await?;
    let sandboxes = RunningBackend::start(context, 0).await?;
    let pace = if std::io::stderr().is_terminal() { PACE } else { Duration::ZERO };
    let kernel = sandboxes.backend.capabilities().kernel();
    let transcript =
        Transcript::new(QUESTION, "demo (a script, not a language model)", kernel).after_figures(out.figures());
    let (model, approval) = (upstream::demo(pace), ApprovalMode::Never);
    let question = Question { text: QUESTION, inputs: &inputs };
    let screen = Screen::new(TurnAudience::Person(Box::new(view)), out, transcript);
    let done = async {
        let model_and_approval = ModelAndApproval { model, approval };
        let mut conversation = Conversation::open(&sandboxes, store, context, model_and_approval, None).await?;
        let done = conversation.ask(question, screen).await;
        conversation.close().await;
        done
    }
    .await;
    sandboxes.backend.shutdown().await;
    let Some(FinishedTurn { mut screen, ending, saved }) = done? else { return Ok(Exit::Interrupted) };
    let mut made: Vec<PathBuf> = saved?.into_iter().filter_map(|saved| saved.path).collect();
    made.extend(turn::save_transcript(&screen.transcript, &mut screen.out)?);
    if let TurnAudience::Person(view) = &mut screen.view {
        conclude(view, &ending, &made, &args.out)?;
    }
    Ok(exit_of(&ending))
}

/// Prints the results, and commands to try next.
fn conclude(view: &mut TurnView, ending: &EndReason, made: &[PathBuf], directory: &Path) -> anyhow::Result<()> {
    let console = view.console();
    console.end_line(StandardStream::Stdout)?;
    console.note(&format!("\n{}", color::strong(&format!("Made in {}/", directory.display()))))?;
    for path in made {
        let bytes = std::fs::metadata(path).map(|metadata| metadata.len()).unwrap_or_default();
        let name = path.strip_prefix(directory).unwrap_or(path);
        console.note(&format!("  {:<32} {}", name.display(), size(bytes)))?;
    }
    if *ending != EndReason::Answered {
        return Ok(());
    }
    console.note(&format!("\n{}", color::strong("Try next")))?;
    let sample = directory.join(SAMPLE);
    let sample = sample.display();
    for (command, what) in [
        (
            format!("aludel run -c 'import pandas as pd; pd.read_csv(\"{SAMPLE}\").head()' --file {sample}"),
            "your own code",
        ),
        (format!("aludel ask \"Which weekday sells best?\" --file {sample} --model NAME --url URL"), "a real model"),
        ("aludel doctor".to_owned(), "what this host can enforce"),
    ] {
        console.note(&format!("  {}  {}", color::code(&command), color::faint(&format!("# {what}"))))?;
    }
    Ok(())
}
