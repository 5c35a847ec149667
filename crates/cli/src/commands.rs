//! The command line: options of all commands, and the commands, a file each.

mod approvals;
mod ask;
mod audit;
mod backends;
mod backup;
mod bench;
mod chat;
mod completions;
mod config;
mod demo;
mod doctor;
mod keys;
mod man;
mod mcp;
mod run;
mod sandbox;
mod serve;
mod template;
mod usage;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::args::flag;
use crate::config::{Config, Flag, Section, help};
use crate::context::CommandContext;
use crate::exit::{self, Exit};

/// A self-hosted code interpreter: a model writes code, this machine runs it in a sandbox.
#[derive(Debug, Parser)]
#[command(name = "aludel", version, max_term_width = 100, after_help = exit::HELP)]
pub(crate) struct CliArguments {
    /// Configuration file [default: ./aludel.toml, then ~/.config/aludel/aludel.toml, then /etc/aludel/aludel.toml]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options", help = help(Section::Server, "data"))]
    data: Option<String>,
    /// Say more about what is going on
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

impl CliArguments {
    /// The parts of the configuration that are given here.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let data = flag("--data", Section::Server, "data", self.data.as_ref());
        data.into_iter().chain(self.command.flags()).collect()
    }
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    Run(run::RunArgs),
    Ask(ask::AskArgs),
    Chat(chat::ChatArgs),
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Mcp(mcp::McpArgs),
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    #[command(subcommand)]
    Approvals(approvals::ApprovalsCommand),
    Audit(audit::AuditArgs),
    Usage(usage::UsageArgs),
    Backup(backup::BackupArgs),
    Doctor(doctor::DoctorArgs),
    Backends(backends::BackendsArgs),
    Config(config::ConfigArgs),
    Sandbox(sandbox::SandboxArgs),
    #[command(subcommand)]
    Template(template::TemplateCommand),
    Bench(bench::BenchArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Man(man::ManArgs),
}

impl CliCommand {
    /// Carries it out.
    pub(crate) async fn run(self, context: &CommandContext) -> anyhow::Result<Exit> {
        match self {
            Self::Run(args) => run::run(args, context).await,
            Self::Ask(args) => ask::run(args, context).await,
            Self::Chat(args) => chat::run(args, context).await,
            Self::Demo(args) => demo::run(args, context).await,
            Self::Serve(args) => serve::run(args, context).await,
            Self::Mcp(args) => mcp::run(args, context).await,
            Self::Keys(command) => keys::run(command, context).await,
            Self::Approvals(command) => approvals::run(command, context).await,
            Self::Audit(args) => audit::run(args, context).await,
            Self::Usage(args) => usage::run(&args, context).await,
            Self::Backup(args) => backup::run(args, context).await,
            Self::Doctor(args) => doctor::run(&args, context).await,
            Self::Backends(args) => backends::run(&args, context).await,
            Self::Config(args) => config::run(&args, context),
            Self::Sandbox(args) => sandbox::run(args, context).await,
            Self::Template(command) => template::run(command, context).await,
            Self::Bench(args) => bench::run(args, context).await,
            Self::Completions(args) => completions::run(&args),
            Self::Man(args) => man::run(&args),
        }
    }

    /// The parts of the configuration that its flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        match self {
            Self::Run(args) => args.flags(),
            Self::Ask(args) => args.flags(),
            Self::Chat(args) => args.flags(),
            Self::Serve(args) => args.flags(),
            Self::Mcp(args) => args.flags(),
            Self::Demo(_)
            | Self::Keys(_)
            | Self::Approvals(_)
            | Self::Audit(_)
            | Self::Usage(_)
            | Self::Backup(_)
            | Self::Doctor(_)
            | Self::Backends(_)
            | Self::Config(_)
            | Self::Sandbox(_)
            | Self::Template(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Man(_) => Vec::new(),
        }
    }

    /// Returns true if its output is a stream of JSON lines, the last of which is its end.
    pub(crate) fn speaks_json(&self) -> bool {
        match self {
            Self::Run(args) => args.json,
            Self::Ask(args) => args.json,
            Self::Chat(_)
            | Self::Demo(_)
            | Self::Serve(_)
            | Self::Mcp(_)
            | Self::Keys(_)
            | Self::Approvals(_)
            | Self::Audit(_)
            | Self::Usage(_)
            | Self::Backup(_)
            | Self::Doctor(_)
            | Self::Backends(_)
            | Self::Config(_)
            | Self::Sandbox(_)
            | Self::Template(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }

    /// Opens the log, if that is what it says on stderr.
    pub(crate) fn open_log(&self, config: &Config) {
        if matches!(self, Self::Serve(_)) || matches!(self, Self::Mcp(args) if args.serves()) {
            serve::open_log(config);
        }
    }
}
