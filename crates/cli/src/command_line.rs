//! The command line: options of all commands, and the command.

use std::path::PathBuf;

use clap::Parser;

use crate::args::flag;
use crate::commands::CliCommand;
use crate::config::{Flag, Section, help};
use crate::exit;

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
