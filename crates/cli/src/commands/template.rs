//! `aludel template`: what sandboxes start from.

mod archive;
mod build;

use aludel_agent::size;
use aludel_sandbox::Template;
use aludel_sandbox::template::{self, Choice, TemplateName, TemplateState};
use anyhow::Context as _;
use clap::Subcommand;

use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::{color, console, sandboxes, wrap};

/// Characters of a list's hash that are shown.
const SHOWN_HASH: usize = 12;

/// Build, list or move the templates of sandboxes
#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    Build(build::BuildArgs),
    /// List the templates
    #[command(visible_alias = "ls")]
    List,
    /// Show a template and its packages
    #[command(visible_alias = "show")]
    Info {
        /// Its name
        #[arg(default_value = "default")]
        name: Choice,
    },
    /// Remove templates of your own; one in use goes when they are pruned
    #[command(visible_alias = "rm")]
    Remove {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<TemplateName>,
        /// Those that all users of this host share, in `sandbox.shared`
        #[arg(long)]
        shared: bool,
    },
    Export(archive::ExportArgs),
    Import(archive::TemplateImportArgs),
    /// Remove templates that are out of date
    Prune,
}

pub(crate) async fn run(command: TemplateCommand, context: &CommandContext) -> anyhow::Result<Exit> {
    let mut console = Console::new();
    let data = context.config.server.data.to_path_buf();
    match command {
        TemplateCommand::Build(args) => {
            let template = build::run(args, context).await?;
            console.line(StandardStream::Stdout, &summary(&template))?;
        }
        TemplateCommand::List => list(context, &mut console).await?,
        TemplateCommand::Info { name: name @ Choice::Own(_) } => {
            info(&sandboxes::prepare(context, &name).await?, &mut console)?;
        }
        TemplateCommand::Info { name: Choice::Default } => {
            match sandboxes::template_state(sandboxes::directories(context)).await? {
                TemplateState::Ready(template) => info(&template, &mut console)?,
                TemplateState::Missing => console
                    .line(StandardStream::Stdout, "There is no template yet; `aludel template build` makes it.")?,
                TemplateState::Unbuildable(reason) => {
                    anyhow::bail!("there is no template, and it cannot be built here: {reason}")
                }
            }
        }
        TemplateCommand::Remove { names, shared } => {
            let directory = build::directory(context, shared);
            for name in names {
                let (directory, removed) = (directory.clone(), name.clone());
                let removed = tokio::task::spawn_blocking(move || template::remove(&directory, &removed)).await;
                if !removed.context("the removal ended early")?.context("cannot remove a template")? {
                    return Err(usage(format!("there is no template {name}; `aludel template list` shows them")));
                }
            }
        }
        TemplateCommand::Export(args) => {
            let file = archive::export(args, context).await?;
            console.line(StandardStream::Stdout, &file.display().to_string())?;
        }
        TemplateCommand::Import(args) => {
            let template = archive::import(args, context).await?;
            console.line(StandardStream::Stdout, &summary(&template))?;
        }
        TemplateCommand::Prune => {
            let removed = tokio::task::spawn_blocking(move || template::prune(&data)).await;
            let removed = removed.context("the removal ended early")?.context("cannot remove old templates")?;
            console.line(StandardStream::Stdout, &format!("Removed {removed}."))?;
        }
    }
    Ok(Exit::Success)
}

/// Lists the templates of all directories; of two with one name, the first is used.
async fn list(context: &CommandContext, console: &mut Console) -> anyhow::Result<()> {
    let directories = sandboxes::directories(context);
    let found = tokio::task::spawn_blocking(move || {
        let mut found = Vec::new();
        for (place, directory) in ["", "  shared"].into_iter().zip(directories) {
            if let TemplateState::Ready(template) = template::state(std::slice::from_ref(&directory)) {
                found.push(("default".to_owned(), template, place));
            }
            let named = template::list(&directory)?;
            found.extend(named.into_iter().map(|(name, template)| (name.to_string(), template, place)));
        }
        Ok::<_, aludel_sandbox::Error>(found)
    });
    let found = found.await.context("the look at the templates ended early")?.context("cannot list the templates")?;
    if found.is_empty() {
        console::status("there is no template yet; `aludel template build` makes the default one");
    }
    let width = found.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    for (name, template, place) in found {
        let (python, packages) = (template.python_version(), template.packages().len());
        let lock: String = template.lock().chars().take(SHOWN_HASH).collect();
        let preload = template.preload().join(", ");
        let preload = if preload.is_empty() { preload } else { format!("  preloads {preload}") };
        let bytes = size(template.bytes());
        let line = format!("{name:width$}  Python {python:8} {packages:4} packages {bytes:>8}  {lock}{place}{preload}");
        console.line(StandardStream::Stdout, &wrap::hanging(&line, 2))?;
    }
    Ok(())
}

fn summary(template: &Template) -> String {
    let (python, packages) = (template.python_version(), template.packages().len());
    let (bytes, root) = (size(template.bytes()), template.root().display());
    format!("Python {python}, {packages} packages, {bytes}, in {root}")
}

fn info(template: &Template, console: &mut Console) -> anyhow::Result<()> {
    console.line(StandardStream::Stdout, &color::strong(&summary(template)))?;
    for path in template.included() {
        console.line(StandardStream::Stdout, &format!("  {}", path.display()))?;
    }
    let width = template.packages().iter().map(|package| package.name.len()).max().unwrap_or(0);
    for package in template.packages() {
        console.line(StandardStream::Stdout, &format!("  {:width$}  {}", package.name, package.version))?;
    }
    Ok(())
}
