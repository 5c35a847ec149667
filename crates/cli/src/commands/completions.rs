//! `aludel completions`: lets a shell complete the command line.

use clap::CommandFactory;
use clap_complete::Shell;

use super::CliArguments;
use crate::console::{Console, StandardStream};
use crate::exit::Exit;

/// Print a script that lets a shell complete commands and flags
#[derive(Debug, clap::Args)]
#[command(after_help = "For example: aludel completions bash > ~/.local/share/bash-completion/completions/aludel")]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut CliArguments::command(), "aludel", &mut script);
    Console::new().write(StandardStream::Stdout, &String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
