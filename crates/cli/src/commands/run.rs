//! `aludel run`: one execution in a fresh sandbox.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use aludel_agent::describe_outcome;
use aludel_session::{Event, Execution, Finished, Outcome, Session};
use anyhow::Context;

use crate::config::{Config, Flags};
use crate::engine::Engine;
use crate::exit::{Exit, usage};
use crate::output::{Errors, Figures, Printer, copy_files, deliver, event_json, print_json};
use crate::paint;

/// The largest program that is read, bytes.
const MAX_PROGRAM: u64 = 16 << 20;

/// Exit status: 0 success, 1 the program failed, 2 usage, 3 a limit was hit, 4 aludel or the host failed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0 success, 1 the program failed, 2 usage, 3 a limit was hit, 4 aludel or the host failed.\n\
With --json, every line is an object with a `type`: stdout, stderr, display, result, error, finished, saved."
)]
pub(crate) struct RunArguments {
    /// The program's file, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "code", conflicts_with = "code")]
    program: Option<PathBuf>,
    /// The program itself
    #[arg(short, value_name = "CODE")]
    code: Option<String>,
    /// Puts a file into the workspace (/mnt/data, where the program starts); may be repeated
    #[arg(long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Copies created files and displayed images here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) limits: LimitFlags,
    /// Prints events as JSON, one a line
    #[arg(long)]
    json: bool,
}

/// What one program may use.
#[derive(Debug, clap::Args)]
pub(super) struct LimitFlags {
    /// How long one program may take, for example 30s
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// How much memory it may use, for example 512m
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
}

impl LimitFlags {
    /// The settings that the flags override.
    pub(super) fn flags(&self) -> Flags {
        let timeout = self.timeout.iter().map(|text| ("sandbox.timeout", text.clone()));
        let memory = self.memory.iter().map(|text| ("sandbox.memory", text.clone()));
        timeout.chain(memory).collect()
    }
}

pub(crate) async fn run(arguments: &RunArguments, config: &Config) -> anyhow::Result<Exit> {
    let code = read_program(arguments)?;
    check_files(&arguments.file)?;
    let engine = Engine::start(config, 0).await?;
    let session = Session::create(engine.backend.clone(), config.limits.clone()).await?;
    let result = execute(arguments, &session, &code).await;
    session.close().await?;
    engine.backend.shutdown().await;
    result
}

async fn execute(arguments: &RunArguments, session: &Session, code: &str) -> anyhow::Result<Exit> {
    add_files(session, &arguments.file).await?;
    let execution = session.execute(code).await?;
    let figures = Figures::new(arguments.out.clone().filter(|_| !arguments.json));
    let mut printer = Printer::new(figures, Errors::Apart);
    let finished = watch(execution, |event| {
        if arguments.json {
            print_json(&event_json(event));
            return Ok(());
        }
        printer.event(event)
    })
    .await?;
    let exit = exit_of(&finished.outcome);
    if arguments.json {
        if let Some(out) = &arguments.out {
            for path in copy_files(session, &finished.files, out).await? {
                print_json(&serde_json::json!({ "type": "saved", "path": path }));
            }
        }
        return Ok(exit);
    }
    if !matches!(finished.outcome, Outcome::Completed | Outcome::Failed(_)) {
        eprintln!("{}", paint::error(&describe_outcome(&finished)));
    }
    let made: BTreeSet<String> = finished.files.iter().map(|file| file.path.clone()).collect();
    for path in deliver(session, &made, arguments.out.as_deref()).await? {
        eprintln!("{}", paint::faint(&format!("saved {}", path.display())));
    }
    if printer.figures().unsaved() > 0 {
        eprintln!(
            "{}",
            paint::faint(&format!(
                "{} displayed image(s) not kept; keep them with --out DIR",
                printer.figures().unsaved()
            ))
        );
    }
    Ok(exit)
}

/// Passes every event on until the end. Ctrl-C interrupts the program; pressed again, it does not wait for it.
async fn watch(
    mut execution: Execution,
    mut show: impl FnMut(&Event) -> anyhow::Result<()>,
) -> anyhow::Result<Finished> {
    let mut interrupted = false;
    loop {
        let event = tokio::select! {
            event = execution.next() => event,
            pressed = tokio::signal::ctrl_c() => {
                pressed.context("listen for Ctrl-C")?;
                if interrupted {
                    anyhow::bail!("interrupted twice; the sandbox was ended");
                }
                interrupted = true;
                execution.interrupter().interrupt();
                continue;
            }
        };
        let Some(event) = event else { anyhow::bail!("the execution ended without an outcome") };
        show(&event)?;
        if let Event::Finished(finished) = event {
            return Ok(finished);
        }
    }
}

fn exit_of(outcome: &Outcome) -> Exit {
    match outcome {
        Outcome::Completed => Exit::Success,
        Outcome::Failed(_) | Outcome::Interrupted | Outcome::KernelDied(_) => Exit::ProgramFailed,
        Outcome::Limit(_) => Exit::Limit,
    }
}

fn read_program(arguments: &RunArguments) -> anyhow::Result<String> {
    if let Some(code) = &arguments.code {
        return Ok(code.clone());
    }
    let path = arguments.program.as_deref().unwrap_or(Path::new("-"));
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(MAX_PROGRAM + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_PROGRAM + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| usage(format!("{}: {error}", path.display())))?;
    if bytes.len() as u64 > MAX_PROGRAM {
        return Err(usage(format!("{}: a program has at most {MAX_PROGRAM} bytes", path.display())));
    }
    String::from_utf8(bytes).map_err(|_| usage(format!("{}: the program is not UTF-8 text", path.display())))
}

/// Says what is wrong with the files before anything is started.
pub(super) fn check_files(files: &[PathBuf]) -> anyhow::Result<()> {
    let mut names = BTreeSet::new();
    for file in files {
        let metadata = std::fs::metadata(file).map_err(|error| usage(format!("{}: {error}", file.display())))?;
        if !metadata.is_file() {
            return Err(usage(format!("{}: not a regular file", file.display())));
        }
        let name = file_name(file)?;
        if !names.insert(name.clone()) {
            return Err(usage(format!("two files are called {name}; rename one of them")));
        }
    }
    Ok(())
}

/// Puts host files into the workspace, under their own names.
pub(super) async fn add_files(session: &Session, files: &[PathBuf]) -> anyhow::Result<()> {
    for file in files {
        session.add_file(&file_name(file)?, file).await?;
    }
    Ok(())
}

fn file_name(file: &Path) -> anyhow::Result<String> {
    let name = file.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| usage(format!("{}: its name is not UTF-8 text", file.display())))
}
