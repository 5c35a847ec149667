//! The command line: one file a command.

mod ask;
mod bench;
mod config;
mod demo;
mod doctor;
mod run;
mod template;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::config::{Config, Flags, Raw};
use crate::exit::Exit;

/// A self-hosted code interpreter: any model writes code, your machine runs it in a sandbox.
#[derive(Debug, Parser)]
#[command(name = "aludel", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, clap::Args)]
struct Global {
    /// Configuration file [default: ./aludel.toml, then ~/.config/aludel/aludel.toml, then /etc/aludel/aludel.toml]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where templates and sessions are kept [default: ~/.local/share/aludel]
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See the whole thing work, without any model: sample data in, a report out
    Demo(demo::DemoArguments),
    /// Run one program in a fresh sandbox
    Run(run::RunArguments),
    /// Ask a model that may run code
    Ask(ask::AskArguments),
    /// Tell what this host can enforce, what is missing, and how to mend it
    Doctor(doctor::DoctorArguments),
    /// Print the configuration and where each value comes from
    Config(config::ConfigArguments),
    /// Build or list templates
    Template(template::TemplateArguments),
    /// Measure how fast sandboxes start here
    Bench(bench::BenchArguments),
}

/// Runs the command to its end.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<Exit> {
    let Arguments { global, command } = arguments;
    let mut flags: Flags = Vec::new();
    if let Some(data) = &global.data {
        flags.push(("server.data", data.display().to_string()));
    }
    match &command {
        Command::Run(run) => flags.extend(run.limits.flags()),
        Command::Ask(ask) => flags.extend(ask.limits.flags()),
        _ => {}
    }
    let raw = Raw::load(global.config.as_deref(), &flags)?;
    if let Command::Config(arguments) = &command {
        return config::run(arguments, &raw);
    }
    let config = raw.resolve()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let exit = runtime.block_on(dispatch(command, config));
    // A read of the terminal that nobody waits for any more must not keep us.
    runtime.shutdown_timeout(std::time::Duration::from_millis(100));
    exit
}

async fn dispatch(command: Command, config: Config) -> anyhow::Result<Exit> {
    match command {
        Command::Demo(arguments) => demo::run(&arguments, &config).await,
        Command::Run(arguments) => run::run(&arguments, &config).await,
        Command::Ask(arguments) => ask::run(&arguments, &config).await,
        Command::Doctor(arguments) => doctor::run(&arguments, &config),
        Command::Config(_) => Ok(Exit::Success),
        Command::Template(arguments) => template::run(&arguments, &config).await,
        Command::Bench(arguments) => bench::run(&arguments, &config).await,
    }
}
