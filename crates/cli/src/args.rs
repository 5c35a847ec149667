//! What can be written on the command line.

use std::path::PathBuf;

use clap::Parser;

use crate::commands::Command;
use crate::config::{Flag, Section};
use crate::exit;

/// A self-hosted code interpreter: a model writes code, this machine runs it in a sandbox.
#[derive(Debug, Parser)]
#[command(name = "aludel", version, max_term_width = 100, after_help = exit::HELP)]
pub(crate) struct Arguments {
    /// Configuration file [default: ./aludel.toml, then ~/.config/aludel/aludel.toml, then /etc/aludel/aludel.toml]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// Directory of templates, running sandboxes and what a server keeps
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    data: Option<String>,
    /// Say more about what is going on
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) verbose: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Arguments {
    /// The parts of the configuration that are given here.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let data = flag("--data", Section::Server, "data", self.data.as_ref());
        data.into_iter().chain(self.command.flags()).collect()
    }
}

/// A part of the configuration, if it was given.
pub(crate) fn flag(flag: &'static str, section: Section, key: &'static str, text: Option<&String>) -> Option<Flag> {
    text.map(|text| Flag { flag, section, key, text: text.clone() })
}

/// Limits that can be given for one command.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitArgs {
    /// Wall clock of one program, for example 30s or 5m [default: 60s]
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// Memory of all its processes, for example 512m or 2g [default: 1g]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
}

impl LimitArgs {
    pub(crate) fn flags(&self) -> impl Iterator<Item = Flag> {
        let timeout = flag("--timeout", Section::Sandbox, "timeout", self.timeout.as_ref());
        timeout.into_iter().chain(flag("--memory", Section::Sandbox, "memory", self.memory.as_ref()))
    }
}
