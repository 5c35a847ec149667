//! `aludel man`: writes the manual pages, for packages.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory;

use super::CliArguments;
use crate::exit::Exit;

/// Write the manual pages
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Directory to write them to
    directory: PathBuf,
}

pub(super) fn run(args: &ManArgs) -> anyhow::Result<Exit> {
    let directory = &args.directory;
    let written =
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(CliArguments::command(), directory));
    written.with_context(|| format!("the manual pages cannot be written to {}", directory.display()))?;
    Ok(Exit::Success)
}
