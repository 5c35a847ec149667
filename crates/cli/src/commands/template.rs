//! `aludel template`: what sandboxes start from.

mod build;

use aludel_agent::size;
use aludel_sandbox::Template;
use aludel_sandbox::template::{self, State};
use anyhow::Context as _;
use clap::Subcommand;

use super::Context;
use crate::console::{Console, Stream};
use crate::exit::Exit;
use crate::paint;

/// Build or inspect what sandboxes start from
#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    Build(build::BuildArgs),
    /// Show the template and its packages
    #[command(visible_aliases = ["list", "show"])]
    Info,
    /// Remove templates that are out of date
    Prune,
}

pub(crate) async fn run(command: TemplateCommand, context: &Context) -> anyhow::Result<Exit> {
    let mut console = Console::new();
    let data = context.config.server.data.to_path_buf();
    match command {
        TemplateCommand::Build(args) => {
            let template = build::run(args, context).await?;
            console.line(Stream::Stdout, &summary(&template))?;
        }
        TemplateCommand::Info => match state(data).await? {
            State::Ready(template) => info(&template, &mut console)?,
            State::Missing => {
                console.line(Stream::Stdout, "There is no template yet; `aludel template build` makes it.")?
            }
            State::Unbuildable(reason) => anyhow::bail!("there is no template, and it cannot be built here: {reason}"),
        },
        TemplateCommand::Prune => {
            let removed = tokio::task::spawn_blocking(move || template::prune(&data)).await;
            let removed = removed.context("the removal ended early")?.context("cannot remove old templates")?;
            console.line(Stream::Stdout, &format!("Removed {removed}."))?;
        }
    }
    Ok(Exit::Success)
}

async fn state(data: std::path::PathBuf) -> anyhow::Result<State> {
    tokio::task::spawn_blocking(move || template::state(&data)).await.context("the look at the template ended early")
}

fn summary(template: &Template) -> String {
    let (python, packages) = (template.python_version(), template.packages().len());
    let (bytes, root) = (size(template.bytes()), template.root().display());
    format!("Python {python}, {packages} packages, {bytes}, in {root}")
}

fn info(template: &Template, console: &mut Console) -> anyhow::Result<()> {
    console.line(Stream::Stdout, &paint::strong(&summary(template)))?;
    let width = template.packages().iter().map(|package| package.name.len()).max().unwrap_or(0);
    for package in template.packages() {
        console.line(Stream::Stdout, &format!("  {:width$}  {}", package.name, package.version))?;
    }
    Ok(())
}
