//! Getting from a configuration to a backend that runs.

use std::path::Path;
use std::sync::Arc;

use aludel_sandbox::probe::{self, Status};
use aludel_sandbox::template::Choice;
use aludel_sandbox::{Backend, Docker, KernelSpec, Local, LocalConfig, Start, Template, template};
use anyhow::Context as _;

use crate::commands::Context;
use crate::config::{BackendChoice, Require};
use crate::exit::words;
use crate::progress::TemplateProgress;
use crate::{console, state};

/// A running backend and what its sandboxes come with.
pub(crate) struct Sandboxes {
    /// Source of sandboxes.
    pub(crate) backend: Arc<dyn Backend>,
    /// Packages that programs find installed.
    pub(crate) packages: Vec<String>,
}

impl Sandboxes {
    /// Starts the backend that the settings name, telling the person on stderr what that takes.
    pub(crate) async fn start(context: &Context, pool: usize) -> anyhow::Result<Self> {
        Self::start_as(context, pool, false).await
    }

    /// The same for a single program.
    pub(crate) async fn start_lean(context: &Context) -> anyhow::Result<Self> {
        Self::start_as(context, 0, true).await
    }

    async fn start_as(context: &Context, pool: usize, is_lean: bool) -> anyhow::Result<Self> {
        match *context.config.sandbox.backend {
            BackendChoice::Local => local(context, pool, is_lean).await,
            BackendChoice::Docker => docker(context).await,
            // Containers have no templates.
            BackendChoice::Auto if *context.config.sandbox.template != Choice::Default => {
                local(context, pool, is_lean).await
            }
            BackendChoice::Auto => {
                let of_local = match local(context, pool, is_lean).await {
                    Ok(started) => return Ok(started),
                    Err(error) => words(&error),
                };
                let of_docker = match docker(context).await {
                    Ok(started) => {
                        console::warn(&format!(
                            "sandboxes are containers, since local ones are not possible: {of_local}"
                        ));
                        return Ok(started);
                    }
                    Err(error) => words(&error),
                };
                anyhow::bail!(
                    "no backend can be used (sandbox.backend = \"auto\")\n  local: {of_local}\n  docker: {of_docker}"
                )
            }
        }
    }
}

/// Starts the docker backend.
async fn docker(context: &Context) -> anyhow::Result<Sandboxes> {
    if let Choice::Own(name) = &*context.config.sandbox.template {
        anyhow::bail!(
            "a container has its image instead of the template `{name}` (sandbox.template); name one by sandbox.docker.image"
        );
    }
    state::make_data_directory(context)?;
    let settings = context.config.sandbox.docker(&context.config.server.data);
    let mut told = |step: &str| console::tell(step);
    let backend = Docker::start(settings, &mut told).await.context("containers cannot be used as sandboxes")?;
    if context.verbose {
        console::tell(&format!("sandboxes are containers of the engine {}", backend.engine()));
    }
    let warnings = backend.warnings();
    if *context.config.sandbox.require == Require::Strict && !warnings.is_empty() {
        anyhow::bail!("{}, and sandbox.require is strict", warnings.join(", "));
    }
    tell(&warnings, context.verbose);
    // The image is the operator's: nobody knows its packages before a program looks.
    Ok(Sandboxes { backend: Arc::new(backend), packages: Vec::new() })
}

/// Starts the local backend.
async fn local(context: &Context, pool: usize, is_lean: bool) -> anyhow::Result<Sandboxes> {
    let template = prepare(context).await?;
    let template = if is_lean {
        let kernel = KernelSpec::clone(template.kernel()).lean();
        template.with_kernel(kernel)
    } else {
        template
    };
    let packages = template.packages().iter().map(|package| package.name.clone()).collect();
    let settings = LocalConfig {
        data: context.config.server.data.to_path_buf(),
        template,
        limits: context.config.sandbox.limits(),
        pool,
        require: (*context.config.sandbox.require).into(),
        start: if context.config.sandbox.fresh.0 { Start::Fresh } else { Start::Fork },
    };
    let started = Local::start(settings).await;
    let backend = started.context("sandboxes cannot be started here; `aludel doctor` names the missing parts")?;
    tell(backend.warnings(), context.verbose);
    Ok(Sandboxes { backend: Arc::new(backend), packages })
}

/// Says what the host cannot enforce: on one line, for it is the same every time, and one by one on request.
fn tell(warnings: &[String], verbose: bool) {
    if verbose {
        for warning in warnings {
            console::warn(warning);
        }
    } else if !warnings.is_empty() {
        let words = warnings.join("; ");
        console::warn(&format!("{words} (see `aludel doctor`)"));
    }
}

/// Returns the template that the settings name. The default one is built where it is missing.
pub(crate) async fn prepare(context: &Context) -> anyhow::Result<Template> {
    match &*context.config.sandbox.template {
        Choice::Default => prepare_default(context, false).await,
        Choice::Own(name) => {
            let (data, name) = (context.config.server.data.to_path_buf(), name.clone());
            let found = tokio::task::spawn_blocking(move || template::find(&data, &name)).await;
            found.context("the look for the template ended early")?.context("the sandboxes' template cannot be used")
        }
    }
}

/// Makes sure that the default template is there. `force` makes it anew, also where no sandbox can start, as while an image is built.
pub(crate) async fn prepare_default(context: &Context, force: bool) -> anyhow::Result<Template> {
    let data = context.config.server.data.to_path_buf();
    state::make_data_directory(context)?;
    if !force && matches!(template::state(&data), template::State::Missing) {
        // Before more than a gigabyte is fetched for nothing.
        require_sandboxes(&data).await?;
    }
    let built = tokio::task::spawn_blocking(move || {
        let mut progress = TemplateProgress::of_default();
        template::ensure(&data, force, &mut |step| progress.show(&step))
    });
    built.await.context("the template's builder ended")?.context("the Python template cannot be prepared")
}

/// Says that no sandbox can be started here, if so.
pub(crate) async fn require_sandboxes(data: &Path) -> anyhow::Result<()> {
    let tried = probe::sandbox(data).await;
    if tried.status == Status::Missing {
        let mend = tried.mend.map(|mend| format!("; {mend}")).unwrap_or_default();
        anyhow::bail!("sandboxes cannot be started here: {}{mend}", tried.detail);
    }
    Ok(())
}
