//! `aludel backup`: copies what a server keeps, while it runs.

use std::path::PathBuf;

use aludel_agent::size;
use aludel_ignore::Ignore;
use aludel_sandbox::template;
use anyhow::{Context as _, bail};
use clap::Args;

use crate::console::Console;
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::state;

/// Copy the state of a server to a new directory, while it runs
///
/// Files, conversations, keys, approvals and the audit log, all as they are at one moment; what is acknowledged before is in it. Live
/// sandboxes are not: containers go on from their files. Nor are templates: the default one is built anew, and `aludel template export`
/// writes one of your own to an archive. In the same file system the
/// files are linked, which takes no room and does not outlive the disk; to another one they are copied.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Target, a directory that is not there yet
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) async fn run(args: BackupArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let BackupArgs { directory } = args;
    if directory.symlink_metadata().is_ok() {
        return Err(usage(format!("{} is there already; name a directory that is not", directory.display())));
    }
    let store = state::open_beside(context).await?;
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let made = match store.back_up(&state::directory(&directory)).await {
        Ok(made) => made,
        Err(error) => {
            std::fs::remove_dir_all(&directory).ignore("a partial copy is of no use");
            bail!("the state could not be copied to {}: {error}", directory.display());
        }
    };
    let how = if made.is_linked { "linked" } else { "copied" };
    let files = if made.blobs == 1 { "1 file".to_owned() } else { format!("{} files", made.blobs) };
    let mut console = Console::new();
    console.note(&format!("{}: {}, with {files} {how}", directory.display(), size(made.bytes)))?;
    let templates = template::list(&context.config.server.data).unwrap_or_default();
    if !templates.is_empty() {
        let names: Vec<_> = templates.iter().map(|(name, _)| name.to_string()).collect();
        let names = names.join(", ");
        console.note(&format!(
            "templates are not in it: {names}; `aludel template export NAME` writes one to an archive"
        ))?;
    }
    let Some(lost) = made.lost.first() else { return Ok(Exit::Success) };
    let files = if made.lost.len() == 1 { "1 file".to_owned() } else { format!("{} files", made.lost.len()) };
    bail!(
        "the copy is made, without {files} that the state names, for example {}, gone from the disk; an older copy may help",
        lost.display()
    );
}
