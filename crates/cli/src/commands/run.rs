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
use crate::out::{Made, Out};
use crate::sandboxes::Sandboxes;
use crate::show::{ProgramView, describe_only};
use crate::signals::Signals;
use crate::socket::{self, Reached, Told, Visit};
use crate::{console, json};

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
    /// Start a sandbox of its own, also if a server runs on this data directory that could run the program at once
    #[arg(long)]
    no_server: bool,
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

/// The audience of the events.
enum View {
    Person(ProgramView),
    Program,
}

impl View {
    fn see(&mut self, event: &Event, out: &mut Out) -> anyhow::Result<()> {
        match self {
            Self::Person(view) => view.see(event, out),
            Self::Program => json::program(None, event, out),
        }
    }

    /// Copies out what an ended program made, and tells of its end.
    async fn end(&mut self, finished: &Finished, from: &mut impl Made, out: &mut Out) -> anyhow::Result<Exit> {
        let exit = Exit::of_outcome(&finished.outcome);
        let saved = out.copy(from, &finished.files).await?;
        match self {
            Self::Person(view) => {
                view.outcome(finished)?;
                view.files(&saved)?;
            }
            Self::Program => {
                let message = (exit != Exit::Success).then(|| describe_only(finished));
                json::end(json::Ended::program(exit, &saved, message))?;
            }
        }
        Ok(exit)
    }
}

pub(crate) async fn run(args: RunArgs, context: &Context) -> anyhow::Result<Exit> {
    let code = args.code()?;
    let inputs = inputs::check(&args.files)?;
    let mut out = match &args.out {
        Some(directory) => Out::existing(directory.clone())?,
        None => Out::nowhere(),
    };
    let mut view = if args.json { View::Program } else { View::Person(ProgramView::of_program()) };
    if *context.config.server.socket && !args.no_server {
        let declined = match socket::reach(context, &code, &inputs).await? {
            Reached::Server(visit) => match at_server(visit, context, &mut out, &mut view).await? {
                AtServer::Over(exit) => return Ok(exit),
                AtServer::Declined(reason) => Some(reason),
            },
            Reached::Nobody(reason) => reason,
        };
        if let Some(reason) = declined.filter(|_| context.verbose) {
            console::tell(&format!("the server does not run the program, so it gets a sandbox of its own: {reason}"));
        }
    }
    let engine = Sandboxes::start_lean(context).await?;
    let result = in_session(&engine, context, &inputs, &code, &mut out, &mut view).await;
    engine.backend.shutdown().await;
    result
}

/// Outcome of asking a server.
enum AtServer {
    /// The program is over.
    Over(Exit),
    /// Nothing of the program ran there, for this reason.
    Declined(String),
}

/// Runs the program at a server.
async fn at_server(mut visit: Visit, context: &Context, out: &mut Out, view: &mut View) -> anyhow::Result<AtServer> {
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let mut interrupted = false;
    loop {
        let told = tokio::select! {
            told = visit.next() => told?,
            () = signals.next() => {
                if interrupted {
                    return Ok(AtServer::Over(Exit::Interrupted));
                }
                interrupted = true;
                visit.interrupt().await;
                continue;
            }
        };
        match told {
            Told::Declined(reason) => return Ok(AtServer::Declined(reason)),
            Told::Held(id) => {
                console::tell(&format!("the program waits for approval: `aludel approvals approve {id}`"));
            }
            Told::Event(event) => view.see(&event, out)?,
            Told::Ended(finished, files) => {
                let mut files = visit.into_files(files, context.config.sandbox.limits())?;
                view.see(&Event::Finished(finished.clone()), out)?;
                return Ok(AtServer::Over(view.end(&finished, &mut files, out).await?));
            }
            Told::Refused(reason) => {
                let message = format!("the program was not allowed to run: {reason}");
                console::fail(&message);
                if matches!(view, View::Program) {
                    json::end(json::Ended::program(Exit::ProgramFailed, &[], Some(message)))?;
                }
                return Ok(AtServer::Over(Exit::ProgramFailed));
            }
            Told::Cancelled => return Ok(AtServer::Over(Exit::Interrupted)),
        }
    }
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
    let mut session = session.context("cannot make a sandbox")?;
    inputs::add(&session, inputs).await?;
    let execution = session.execute(code).await.context("cannot start the program")?;
    let Some(finished) = watch(execution, out, view).await? else { return Ok(Exit::Interrupted) };
    let exit = view.end(&finished, &mut session, out).await?;
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
        view.see(&event, out)?;
        if let Event::Finished(finished) = event {
            return Ok(Some(finished));
        }
    }
}
