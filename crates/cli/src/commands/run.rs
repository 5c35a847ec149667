//! `aludel run`: one program in a sandbox of its own.

use std::io::Read;
use std::path::PathBuf;

use aludel_agent::size;
use aludel_engine::sessions::LiveSession;
use aludel_sandbox::{Event, Execution, Finished};
use anyhow::Context as _;
use clap::Args;

use super::Context;
use crate::args::LimitArgs;
use crate::config::Flag;
use crate::exit::{Exit, usage};
use crate::inputs::{self, Input};
use crate::json;
use crate::out::Out;
use crate::sandboxes::Sandboxes;
use crate::show::{ProgramView, describe_only};
use crate::signals::Signals;

/// Bytes of a program. A kernel takes no more at once.
const MAX_PROGRAM: u64 = 16 << 20;

/// Run a Python program in a fresh sandbox
///
/// What the program prints is streamed; the value of its last expression is shown; images that it displays are saved. It works in a directory
/// of its own (/mnt/data) that holds the files given with --file, without network, and everything is gone afterwards but what --out keeps.
/// Ctrl-C interrupts the program, a second one kills it.
#[derive(Debug, Args)]
#[command(override_usage = "aludel run [OPTIONS] <FILE | - | -c CODE>")]
#[command(after_long_help = format!("{}\n\n{}", json::PROGRAM_HELP, crate::exit::HELP))]
pub(crate) struct RunArgs {
    /// The program; - reads it from standard input
    #[arg(value_name = "FILE", required_unless_present = "code", conflicts_with = "code")]
    program: Option<PathBuf>,
    /// The program itself
    #[arg(short, long, value_name = "CODE")]
    code: Option<String>,
    /// A file for the program to work on; may be given several times
    #[arg(long = "file", value_name = "PATH")]
    files: Vec<PathBuf>,
    /// Where to put files that the program makes; files of the same name are replaced
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Print events as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunArgs {
    pub(crate) fn flags(&self) -> Vec<Flag> {
        self.limits.flags().collect()
    }

    /// The text of the program.
    fn code(&self) -> anyhow::Result<String> {
        let Some(path) = &self.program else { return Ok(self.code.clone().unwrap_or_default()) };
        let mut bytes = Vec::new();
        let read = if path.as_os_str() == "-" {
            std::io::stdin().lock().take(MAX_PROGRAM + 1).read_to_end(&mut bytes)
        } else {
            std::fs::File::open(path).and_then(|file| file.take(MAX_PROGRAM + 1).read_to_end(&mut bytes))
        };
        let shown = path.display();
        match read {
            Ok(read) if read as u64 > MAX_PROGRAM => {
                return Err(usage(format!("the program {shown} is too long; at most {}", size(MAX_PROGRAM))));
            }
            Ok(_) => {}
            Err(error) => return Err(usage(format!("cannot read the program {shown}: {error}"))),
        }
        String::from_utf8(bytes).map_err(|error| usage(format!("the program {shown} is not UTF-8: {error}")))
    }
}

/// Whom the events are for.
enum View {
    Person(ProgramView),
    Program,
}

pub(crate) async fn run(args: RunArgs, context: &Context) -> anyhow::Result<Exit> {
    let code = args.code()?;
    let inputs = inputs::check(&args.files)?;
    let mut out = match &args.out {
        Some(directory) => Out::existing(directory.clone())?,
        None => Out::nowhere(),
    };
    let mut view = if args.json { View::Program } else { View::Person(ProgramView::of_program()) };
    let engine = Sandboxes::start_lean(context).await?;
    let result = in_session(&engine, context, &inputs, &code, &mut out, &mut view).await;
    engine.backend.shutdown().await;
    result
}

async fn in_session(
    engine: &Sandboxes,
    context: &Context,
    inputs: &[Input],
    code: &str,
    out: &mut Out,
    view: &mut View,
) -> anyhow::Result<Exit> {
    let session = LiveSession::create(engine.backend.clone(), context.config.sandbox.limits()).await;
    let session = session.context("cannot make a sandbox")?;
    inputs::add(&session, inputs).await?;
    let execution = session.execute(code).await.context("cannot start the program")?;
    let Some(finished) = watch(execution, out, view).await? else { return Ok(Exit::Interrupted) };
    let exit = Exit::of_outcome(&finished.outcome);
    let saved = out.copy(&session, &finished.files).await?;
    match view {
        View::Person(view) => {
            view.outcome(&finished)?;
            view.files(&saved)?;
        }
        View::Program => {
            let message = (exit != Exit::Success).then(|| describe_only(&finished));
            json::end(json::Ended::program(exit, &saved, message))?;
        }
    }
    session.close().await;
    Ok(exit)
}

/// Shows what the program does until it ends; `None` when the user did not want to wait for that.
async fn watch(mut execution: Execution, out: &mut Out, view: &mut View) -> anyhow::Result<Option<Finished>> {
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let mut interrupted = false;
    loop {
        let event = tokio::select! {
            event = execution.next() => event.context("the program's end is not known: its sandbox is gone")?,
            () = signals.next() => {
                if interrupted {
                    return Ok(None);
                }
                interrupted = true;
                execution.interrupter().interrupt();
                continue;
            }
        };
        match view {
            View::Person(view) => view.see(&event, out)?,
            View::Program => json::program(None, &event, out)?,
        }
        if let Event::Finished(finished) = event {
            return Ok(Some(finished));
        }
    }
}
