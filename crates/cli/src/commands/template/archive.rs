//! `aludel template export` and `import`.

use std::path::PathBuf;

use aludel_sandbox::Template;
use aludel_sandbox::template::{self, Choice, TemplateName};
use anyhow::Context as _;
use clap::Args;

use super::super::CommandContext;
use super::build::{adopt, directory};
use crate::progress::TemplateProgress;
use crate::{sandboxes, state};

/// Write a template to an archive, for a host that reaches no package index
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Its name, or default
    name: Choice,
    /// File to write [default: NAME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Carries it out, and returns the file.
pub(super) async fn export(args: ExportArgs, context: &CommandContext) -> anyhow::Result<PathBuf> {
    let ExportArgs { name, output } = args;
    let template = sandboxes::prepare(context, &name).await?;
    let file = output.unwrap_or_else(|| format!("{name}.tar.gz").into());
    let into = file.clone();
    let written = tokio::task::spawn_blocking(move || {
        let mut progress = TemplateProgress::of_archive();
        template::export(&template, &into, &mut |step| progress.show(&step))
    });
    written.await.context("the archive's writer ended")?.with_context(|| format!("cannot export `{name}`"))?;
    Ok(file)
}

/// Take a template from an archive that `template export` wrote
///
/// The archive is trusted as packages are: it holds the programs that sandboxes run. It is for hosts of the same architecture.
#[derive(Debug, Args)]
pub(crate) struct TemplateImportArgs {
    /// The archive
    file: PathBuf,
    /// Name that it gets here; one that has the name is replaced [default: none, for the default template of this version]
    #[arg(long, value_name = "NAME")]
    name: Option<TemplateName>,
    /// For all users of this host, in `sandbox.shared`
    #[arg(long)]
    shared: bool,
}

/// Carries it out.
pub(super) async fn import(args: TemplateImportArgs, context: &CommandContext) -> anyhow::Result<Template> {
    let TemplateImportArgs { file, name, shared } = args;
    state::make_data_directory(context)?;
    let (directory, into) = (directory(context, shared), directory(context, shared));
    let import = if name.is_some() { template::import } else { template::import_default };
    let imported = tokio::task::spawn_blocking(move || {
        let mut progress = TemplateProgress::of_archive();
        import(&into, &file, &mut |step| progress.show(&step))
    });
    let imported = imported.await.context("the archive's reader ended")?;
    let imported = imported.context("the template cannot be imported")?;
    match name {
        Some(name) => adopt(imported, name, directory, true, context).await,
        None => Ok(imported),
    }
}
