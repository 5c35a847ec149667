//! `aludel template build`.

use std::ffi::OsString;
use std::path::PathBuf;

use aludel_sandbox::template::{self, Recipe, TemplateName};
use aludel_sandbox::{Require, Template, trial_of};
use anyhow::Context as _;
use clap::{ArgGroup, Args};

use super::super::CommandContext;
use crate::exit::usage;
use crate::progress::TemplateProgress;
use crate::{sandboxes, state, template_build};

/// Build the default template, or one of your own
///
/// Without a name it is the default one, unless it is there and current. With --name it is one of your own, of --requirements, of the
/// default one's packages (--with-default) or both: pip resolves them, from the index that it is configured for, to a list with hashes that
/// stays in the template; the packages are installed from that list, and a sandbox is tried before the name leads to it. IPython comes
/// along. `aludel run --template NAME` and the setting `sandbox.template` use it.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("packages").args(["requirements", "with_default"]).multiple(true)))]
pub(crate) struct BuildArgs {
    /// Name of a template of your own, such as ml; one that has the name is replaced
    #[arg(long, value_name = "NAME", requires = "packages")]
    name: Option<TemplateName>,
    /// Its packages: a requirements file, as pip reads it, with hashes or without
    #[arg(long, value_name = "FILE", requires = "name")]
    requirements: Option<PathBuf>,
    /// The default template's packages besides, in its versions unless the file of --requirements names others
    #[arg(long, requires = "name")]
    with_default: bool,
    /// Its interpreter: a version, such as 3.13, or a path [default: as for the default template]
    #[arg(long, value_name = "PYTHON", requires = "name")]
    python: Option<OsString>,
    /// Directories of packages that pip looks into besides its index
    #[arg(long, value_name = "DIR", requires = "name")]
    find_links: Vec<PathBuf>,
    /// Modules that the server imports before anybody asks, so that no program waits for them; numpy, pandas and matplotlib are, where
    /// installed
    #[arg(long, value_name = "MODULE", value_delimiter = ',', requires = "name")]
    preload: Vec<String>,
    /// Packages without a wheel, too: the programs that they are built by run on this host, as you
    #[arg(long, requires = "name")]
    allow_source: bool,
    /// Programs of this host besides them, such as /usr/lib/R: directories or files below /usr, /opt or /etc, which stand at the same paths
    /// inside, with the libraries that they need. Programs can read all of it
    #[arg(long, value_name = "PATH", requires = "name")]
    include: Vec<PathBuf>,
    /// Debian packages, which no template takes
    #[arg(long, value_name = "LIST", hide = true)]
    apt: Option<OsString>,
    /// For all users of this host, in `sandbox.shared`
    #[arg(long)]
    shared: bool,
    /// Build it anew even then, and where sandboxes cannot start, as while an image is built
    #[arg(long)]
    force: bool,
}

/// Carries it out.
pub(super) async fn run(args: BuildArgs, context: &CommandContext) -> anyhow::Result<Template> {
    let BuildArgs {
        name,
        requirements,
        with_default,
        python,
        find_links,
        preload,
        allow_source,
        include,
        apt,
        shared,
        force,
    } = args;
    if apt.is_some() {
        return Err(usage(
            "--apt: a template takes no Debian packages, since their scripts would run on this host. Install them here and take their files with \
             --include; or wheels that bring their programs, such as imageio-ffmpeg; or sandbox.backend = \"docker\" with sandbox.docker.image, an image made FROM aludel/default with apt-get install",
        ));
    }
    let directory = directory(context, shared);
    let Some(name) = name else {
        return sandboxes::build_default(context, directory, force).await;
    };
    state::make_data_directory(context)?;
    if !force {
        // Before packages are downloaded in vain.
        sandboxes::require_sandboxes(&context.config.server.data).await?;
    }
    let recipe = Recipe { requirements, with_default, python, find_links, preload, allow_source, include };
    let into = directory.clone();
    let built = template_build::build(TemplateProgress::of_own(), move |cancellation, progress| {
        template::build_own(&into, &recipe, force, Some(cancellation), progress)
    });
    let built = built.await.with_context(|| format!("the template `{name}` cannot be built"))?;
    adopt(built, name, directory, !force, context).await
}

/// The directory of the user's templates, or of those that all users share.
pub(super) fn directory(context: &CommandContext, shared: bool) -> PathBuf {
    if shared { context.config.sandbox.shared.0.clone() } else { context.config.server.data.to_path_buf() }
}

/// Gives a new template its name, after a trial of a sandbox if it is `tried`.
pub(super) async fn adopt(
    built: Template,
    name: TemplateName,
    directory: PathBuf,
    tried: bool,
    context: &CommandContext,
) -> anyhow::Result<Template> {
    if tried && let Err(error) = trial_of(&context.config.server.data, built.clone(), Require::Default).await {
        let removed = tokio::task::spawn_blocking(move || template::discard(built)).await;
        removed.context("the removal ended early")??;
        return Err(error).context(format!("no sandbox works in the template `{name}`, so it was not kept"));
    }
    let template = built.clone();
    let assigned = tokio::task::spawn_blocking(move || template::assign(&directory, &name, &template)).await;
    assigned.context("the naming ended early")?.context("the template cannot be named")?;
    Ok(built)
}
