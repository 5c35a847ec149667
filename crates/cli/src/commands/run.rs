//! `aludel run`: one program in a sandbox of its own.

mod audience;
mod input;

use std::path::PathBuf;

use aludel_engine::sessions::SessionSandbox;
use aludel_sandbox::{Cell, Execution, ExecutionEvent, Finished, INPUT, Outcome};
use anyhow::Context as _;
use clap::Args;

use crate::args::SandboxOptions;
use crate::config::{Flag, nearest};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::inputs;
use crate::output_directory::OutputDirectory;
use crate::program::{self, LoadedProgram, ProgramSource};
use crate::sandboxes::RunningBackend;
use crate::show::ProgramView;
use crate::signals::Signals;
use crate::socket::{self, ProgramUpdate, ServerLookup, ServerProgram};
use crate::{console, json, terminal};
use audience::{Audience, ProgramAudience};
use input::LineRead;

/// Run a Python program in a fresh sandbox
///
/// The program's output is streamed; the value of its last expression is shown; images that it displays are saved. It works in a directory
/// of its own (/mnt/data) that holds itself and the files given with --file, without network, and what it made is copied out at its end.
/// Standard input is read to its end, 64 MB at most, and handed over if its text or that of a module given with it has stdin, input(,
/// fileinput or open(0, or an argument is -; at a terminal, input() asks there. Ctrl-C interrupts the program, a second one kills it.
#[derive(Debug, Args)]
#[command(override_usage = "aludel run [OPTIONS] <FILE | DIR | - | -c CODE> [ARG]... [-- ARG...]")]
#[command(after_long_help = format!("{}\n\n{}", json::PROGRAM_HELP, crate::exit::HELP))]
pub(crate) struct RunArgs {
    /// The program: a file, a notebook (.ipynb), or a directory with a __main__.py; - reads it from standard input
    #[arg(value_name = "FILE", required_unless_present_any = ["code", "files"])]
    program: Option<PathBuf>,
    /// Arguments of the program: its sys.argv. Options of aludel's own end at the first, or at --
    #[arg(value_name = "ARG", allow_hyphen_values = true)]
    arguments: Vec<String>,
    #[arg(last = true, hide = true)]
    further_arguments: Vec<String>,
    /// The program itself
    #[arg(short, long, value_name = "CODE")]
    code: Option<String>,
    /// Files for the program to work on, or directories of them; NAME is their place in its directory
    #[arg(long = "file", value_name = "PATH[:NAME]", num_args = 1..)]
    files: Vec<PathBuf>,
    /// A variable of the program's environment; without a value, the one that it has here. May be given several times
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<String>,
    /// Directory for files that the program makes; files of the same name are replaced [default: a new directory aludel-out, aludel-out-2
    /// and so on; with --json, nowhere]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// Start a sandbox of its own, also if a server runs on this data directory that could run the program at once
    #[arg(long)]
    no_server: bool,
    /// Print events as JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Says that the first argument goes to the program, if it looks like a misspelt option of ours: they end at it.
fn note_slip(argument: &str, program: &LoadedProgram) {
    let Some(option) = argument.split('=').next().filter(|option| option.starts_with("--")) else { return };
    let written = option.trim_start_matches('-');
    // Most programs have the names of their options in their text.
    if written.is_empty() || program.cells.iter().any(|cell| cell.contains(option)) {
        return;
    }
    let command = RunArgs::augment_args(clap::Command::new("run"));
    let ours = command.get_arguments().filter_map(clap::Arg::get_long);
    if let Some(meant) = nearest(written, ours) {
        let written = terminal::name(written);
        console::status(&format!(
            "--{written} goes to the program; if --{meant} was meant, options of `aludel run` come before its arguments \
             (`-- --{written}` says that it is the program's)"
        ));
    }
}

impl RunArgs {
    pub(crate) fn flags(&self) -> Vec<Flag> {
        self.sandbox.flags().collect()
    }

    /// Reads the program and all that it is given.
    fn program(&mut self, context: &CommandContext) -> anyhow::Result<LoadedProgram> {
        if self.program.is_none() && self.code.is_none() {
            // `--file a.csv program.py`: the last file is the program.
            self.program = self.files.pop().filter(|_| !self.files.is_empty());
        }
        let mut arguments = std::mem::take(&mut self.arguments);
        let source = match (self.program.take(), self.code.take()) {
            (Some(path), Some(_)) if path.extension().is_some_and(|kind| kind == "py" || kind == "ipynb") => {
                return Err(usage(format!("{} cannot be used with -c: give one program", path.display())));
            }
            (first, Some(code)) => {
                // As after `python3 -c`, all words are the program's arguments.
                let first = first.map(|first| first.into_os_string().into_string());
                let first = first.transpose().map_err(|word| usage(format!("{} is no Unicode", word.display())))?;
                arguments.splice(..0, first);
                ProgramSource::Text(code)
            }
            (Some(path), None) => ProgramSource::Path(path),
            (None, None) => return Err(usage("no program was given: a FILE, - or -c CODE")),
        };
        let first = arguments.first().cloned();
        arguments.append(&mut self.further_arguments);
        let mut environment = program::environment(&self.environment, &context.host)?;
        let columns = terminal::columns(&context.host).filter(|_| !self.json);
        if let Some(columns) = columns.filter(|_| environment.iter().all(|(name, _)| name != terminal::COLUMNS)) {
            environment.push((terminal::COLUMNS.to_owned(), columns.to_string()));
        }
        let files = inputs::check(&self.files)?;
        inputs::require_room(&files, context.config.sandbox.limits().disk)?;
        let program = LoadedProgram::read(source, arguments, environment, files)?;
        if let Some(first) = first {
            note_slip(&first, &program);
        }
        Ok(program)
    }
}

pub(crate) async fn run(mut args: RunArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let mut program = args.program(context)?;
    let out = match &args.out {
        Some(directory) => OutputDirectory::existing(directory.clone())?,
        // Readers of events get all displayed values in them, and ask for files if they want some.
        None if args.json => OutputDirectory::nowhere(),
        None => OutputDirectory::unnamed(),
    };
    let view = if args.json { ProgramAudience::Program } else { ProgramAudience::Person(ProgramView::of_program()) };
    let mut audience = Audience { view, out, notebook: program.notebook.take() };
    program.asks &= !args.json;
    // A server runs programs that need no terminal.
    if context.config.server.socket.0 && !args.no_server && !program.asks {
        let declined = match socket::reach(context, &program).await? {
            ServerLookup::Server(server_program) => match at_server(server_program, context, &mut audience).await? {
                ServerOutcome::Over(exit) => return Ok(exit),
                ServerOutcome::Declined(reason) => Some(reason),
            },
            ServerLookup::Nobody(reason) => reason,
        };
        if let Some(reason) = declined.filter(|_| context.verbose) {
            console::status(&format!("the server does not run the program, so it gets a sandbox of its own: {reason}"));
        }
    }
    let engine = RunningBackend::start_lean(context).await?;
    let result = in_session(&engine, context, &program, &mut audience).await;
    engine.backend.shutdown().await;
    result
}

/// Outcome of asking a server.
enum ServerOutcome {
    /// The program is over.
    Over(Exit),
    /// Nothing of the program ran there, for this reason.
    Declined(String),
}

/// Runs the program at a server.
async fn at_server(
    mut server_program: ServerProgram,
    context: &CommandContext,
    audience: &mut Audience,
) -> anyhow::Result<ServerOutcome> {
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let mut interrupted = false;
    loop {
        let update = tokio::select! {
            update = server_program.next() => update?,
            () = signals.next() => {
                if interrupted {
                    return Ok(ServerOutcome::Over(Exit::Interrupted));
                }
                interrupted = true;
                server_program.interrupt().await;
                continue;
            }
        };
        match update {
            ProgramUpdate::Declined(reason) => return Ok(ServerOutcome::Declined(reason)),
            ProgramUpdate::AwaitsApproval(id) => {
                console::status(&format!("the program waits for approval: `aludel approvals approve {id}`"));
            }
            ProgramUpdate::Event(event) => audience.see(&event)?,
            ProgramUpdate::Ended(finished, files) => {
                let mut files = server_program.into_files(files, context.config.sandbox.limits())?;
                audience.see(&ExecutionEvent::Finished(finished.clone()))?;
                return Ok(ServerOutcome::Over(audience.end(&finished, &mut files).await?));
            }
            ProgramUpdate::Refused(reason) => return Ok(ServerOutcome::Over(audience.refused(&reason)?)),
            ProgramUpdate::Cancelled => return Ok(ServerOutcome::Over(Exit::Interrupted)),
        }
    }
}

async fn in_session(
    engine: &RunningBackend,
    context: &CommandContext,
    program: &LoadedProgram,
    audience: &mut Audience,
) -> anyhow::Result<Exit> {
    let sandbox = &context.config.sandbox;
    let session =
        SessionSandbox::create(None, engine.backend.clone(), sandbox.limits(), None, sandbox.env.0.clone()).await;
    let mut session = session.context("cannot make a sandbox")?;
    inputs::add(&session, &program.inputs).await?;
    session.configure(&program.options).await.context("cannot hand over the program's arguments")?;
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let (mut made, mut cells) = (Vec::new(), program.cells.iter().peekable());
    let tools: Vec<String> = program.asks.then(|| INPUT.to_owned()).into_iter().collect();
    while let Some(code) = cells.next() {
        let cell = Cell { tools: &tools, ..Cell::new(code) };
        let execution = session.execute(cell).await.context("cannot start the program")?;
        let Some(mut finished) = watch(execution, &mut signals, audience).await? else { return Ok(Exit::Interrupted) };
        let is_last = finished.outcome != Outcome::Completed || cells.peek().is_none();
        if is_last {
            finished.add_files(std::mem::take(&mut made));
        } else {
            made.extend_from_slice(&finished.files);
        }
        audience.see(&ExecutionEvent::Finished(finished.clone()))?;
        if is_last {
            let exit = audience.end(&finished, &mut session).await?;
            session.close().await;
            return Ok(exit);
        }
    }
    anyhow::bail!("there is no program")
}

/// Shows the program's output and returns its end; `None` if the user did not wait for it.
async fn watch(
    mut execution: Execution,
    signals: &mut Signals,
    audience: &mut Audience,
) -> anyhow::Result<Option<Finished>> {
    let (mut interrupted, mut line) = (false, LineRead::default());
    loop {
        let event = tokio::select! {
            answer = line.next() => {
                execution.answer(vec![answer]);
                continue;
            }
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
        match event {
            ExecutionEvent::Finished(finished) => return Ok(Some(finished)),
            ExecutionEvent::Calls(calls) => {
                audience.see(&ExecutionEvent::Stdout(input::prompt(&calls)))?;
                line.begin();
            }
            event => audience.see(&event)?,
        }
    }
}
