//! Getting from a configuration to a backend that runs.

mod backends;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aludel_sandbox::probe::{self, CheckStatus};
use aludel_sandbox::template::{BuildCancellation, BuildProgress, Choice, TemplateName, TemplateState};
use aludel_sandbox::{Backend, Local, OfferedTemplate, Template, Templates, template};
use anyhow::Context as _;

pub(crate) use self::backends::{BackendCheck, BackendKind, Candidates, candidates};
use crate::config::MAX_TEMPLATES;
use crate::context::CommandContext;
use crate::exit::{Exit, usage, words};
use crate::progress::TemplateProgress;
use crate::{console, state, template_build};

/// A running backend and what its sandboxes come with.
pub(crate) struct RunningBackend {
    /// Source of sandboxes.
    pub(crate) backend: Arc<dyn Backend>,
    /// Packages that programs find installed.
    pub(crate) packages: Vec<String>,
}

impl RunningBackend {
    /// Starts the configured backend, with progress on stderr.
    pub(crate) async fn start(context: &CommandContext, pool: usize) -> anyhow::Result<Self> {
        Self::start_as(context, BackendOptions { pool, ..BackendOptions::of(&context.config.sandbox.template) }).await
    }

    /// The same for a single program.
    pub(crate) async fn start_lean(context: &CommandContext) -> anyhow::Result<Self> {
        let options = BackendOptions { is_lean: true, ..BackendOptions::of(&context.config.sandbox.template) };
        Self::start_as(context, options).await
    }

    /// The same for the programs of one model, the first.
    pub(crate) async fn start_for_model(context: &CommandContext) -> anyhow::Result<Self> {
        let of_model = context.config.models.first().map(|model| &*model.template);
        let of_model = of_model.filter(|template| **template != Choice::Default);
        let template = of_model.unwrap_or(&context.config.sandbox.template);
        Self::start_as(context, BackendOptions::of(template)).await
    }

    /// The same for a server, with the further templates that it has. The request to end the build of a template makes it fail.
    pub(crate) async fn start_for_server(
        context: &CommandContext,
        cancellation: &BuildCancellation,
    ) -> anyhow::Result<Self> {
        let config = &context.config;
        let (pool, cancellation) = (config.sandbox.pool.0, Some(cancellation));
        let options = BackendOptions { pool, cancellation, ..BackendOptions::of(&config.sandbox.template) };
        let usual = Self::start_as(context, options).await?;
        let names: BTreeSet<_> = config.models.iter().filter_map(|model| model.template.own()).collect();
        let names: BTreeSet<_> = names
            .into_iter()
            .chain(&config.sandbox.templates.0)
            .chain(config.sandbox.key_templates.0.values())
            .collect();
        let own = config.sandbox.template.own();
        let names: Vec<_> = names.into_iter().filter(|name| Some(*name) != own).collect();
        if names.is_empty() && own.is_none() {
            return Ok(usual);
        }
        if names.len() > MAX_TEMPLATES {
            return Err(usage(format!("a server has at most {MAX_TEMPLATES} templates besides sandbox.template")));
        }
        if !names.is_empty() && usual.backend.capabilities().backend != "local" {
            anyhow::bail!("templates (sandbox.templates, `template` of a model) need local sandboxes");
        }
        let named = match own {
            Some(name) => Some(OfferedTemplate::new(name.clone(), &find(context, name).await?)),
            None => None,
        };
        let mut further = Vec::new();
        for name in names {
            let template = find(context, name).await?;
            let offer = OfferedTemplate::new(name.clone(), &template);
            // One ready sandbox is enough here; the usual template has the pool.
            let started = Local::start(backends::local_config(context, template, config.sandbox.pool.0.min(1))).await;
            let started = started.with_context(|| format!("no sandbox can be started from the template `{name}`"))?;
            further.push((offer, Arc::new(started) as Arc<dyn Backend>));
        }
        Ok(Self { backend: Arc::new(Templates::new(usual.backend, named, further)), packages: usual.packages })
    }

    async fn start_as(context: &CommandContext, wanted: BackendOptions<'_>) -> anyhow::Result<Self> {
        let Candidates { backends, .. } = candidates(&context.config.sandbox, wanted.template);
        let mut failed: Vec<(BackendKind, anyhow::Error)> = Vec::new();
        for backend in backends {
            match backend.start(context, wanted).await {
                Ok(started) => {
                    if !failed.is_empty() {
                        let failed = reasons(&failed).join("; ");
                        console::warn(&format!(
                            "sandboxes run in {}, since others are not possible: {failed}",
                            backend.name()
                        ));
                    }
                    return Ok(started);
                }
                Err(error) if Exit::of_error(&error) == Exit::Interrupted => return Err(error),
                Err(error) => failed.push((backend, error)),
            }
        }
        match failed.pop() {
            // With a single backend, its error says everything.
            Some((_, error)) if failed.is_empty() => Err(error),
            Some(last) => {
                failed.push(last);
                let reasons = reasons(&failed).join("\n  ");
                anyhow::bail!("no backend can be used (sandbox.backend = \"auto\")\n  {reasons}")
            }
            None => anyhow::bail!("there is no backend to try"),
        }
    }
}

fn reasons(failed: &[(BackendKind, anyhow::Error)]) -> Vec<String> {
    failed.iter().map(|(backend, error)| format!("{}: {}", backend.name(), words(error))).collect()
}

/// Properties of a backend to start.
#[derive(Clone, Copy)]
struct BackendOptions<'a> {
    template: &'a Choice,
    /// Sandboxes that are kept ready.
    pool: usize,
    /// True if nothing is imported ahead.
    is_lean: bool,
    /// The request to end the build of the template.
    cancellation: Option<&'a BuildCancellation>,
}

impl<'a> BackendOptions<'a> {
    /// A backend that keeps no sandboxes ready.
    fn of(template: &'a Choice) -> Self {
        Self { template, pool: 0, is_lean: false, cancellation: None }
    }
}

/// Prints the limits that the host cannot enforce: on one line, or one by one if `verbose`.
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

/// Returns a template. Builds the default one if it is missing.
pub(crate) async fn prepare(context: &CommandContext, template: &Choice) -> anyhow::Result<Template> {
    prepare_unless(context, template, None).await
}

/// The same, which fails when the request comes to end the build.
async fn prepare_unless(
    context: &CommandContext,
    template: &Choice,
    cancellation: Option<&BuildCancellation>,
) -> anyhow::Result<Template> {
    match template {
        Choice::Default => prepare_default(context, cancellation).await,
        Choice::Own(name) => find(context, name).await,
    }
}

/// The directories of templates: the user's, and the one that all users of the host share.
pub(crate) fn directories(context: &CommandContext) -> Vec<PathBuf> {
    vec![context.config.server.data.to_path_buf(), context.config.sandbox.shared.0.clone()]
}

/// The state of the default template in these directories.
pub(crate) async fn template_state(directories: Vec<PathBuf>) -> anyhow::Result<TemplateState> {
    tokio::task::spawn_blocking(move || template::state(&directories))
        .await
        .context("the look at the template ended early")
}

/// Returns a template of the operator's own.
async fn find(context: &CommandContext, name: &TemplateName) -> anyhow::Result<Template> {
    let (directories, name) = (directories(context), name.clone());
    let found = tokio::task::spawn_blocking(move || template::find(&directories, &name)).await;
    let found = found.context("the look for the template ended early")?;
    found.map_err(|error| usage(format!("the template of the sandboxes cannot be used: {error}")))
}

/// Ensures that the default template exists. `force` makes it anew, even if no sandbox can start, as during the build of an image.
async fn prepare_default(
    context: &CommandContext,
    cancellation: Option<&BuildCancellation>,
) -> anyhow::Result<Template> {
    let data = context.config.server.data.to_path_buf();
    state::make_data_directory(context)?;
    match template_state(directories(context)).await? {
        TemplateState::Ready(template) => return Ok(template),
        // Before more than a gigabyte is downloaded in vain.
        TemplateState::Missing => require_sandboxes(&data).await?,
        // The build says why.
        TemplateState::Unbuildable(_) => {}
    }
    ensure(data, false, cancellation).await
}

/// Builds the default template in this directory, unless it exists and is current.
pub(crate) async fn build_default(
    context: &CommandContext,
    directory: PathBuf,
    force: bool,
) -> anyhow::Result<Template> {
    state::make_data_directory(context)?;
    if !force && matches!(template_state(vec![directory.clone()]).await?, TemplateState::Missing) {
        require_sandboxes(&context.config.server.data).await?;
    }
    ensure(directory, force, None).await
}

async fn ensure(directory: PathBuf, force: bool, cancellation: Option<&BuildCancellation>) -> anyhow::Result<Template> {
    let progress = TemplateProgress::of_default();
    let work = move |cancellation: &BuildCancellation, progress: &mut dyn FnMut(BuildProgress)| {
        template::ensure_unless(&directory, force, Some(cancellation), progress)
    };
    let built = match cancellation {
        Some(cancellation) => template_build::build_unless(progress, cancellation, work).await,
        None => template_build::build(progress, work).await,
    };
    built.context("the Python template cannot be prepared")
}

/// Fails if no sandbox can be started here.
pub(crate) async fn require_sandboxes(data: &Path) -> anyhow::Result<()> {
    let tried = probe::sandbox(data, aludel_sandbox::Require::Default).await;
    if tried.status == CheckStatus::Missing {
        let mend = tried.mend.map(|mend| format!("; {mend}")).unwrap_or_default();
        anyhow::bail!("sandboxes cannot be started here: {}{mend}", tried.detail);
    }
    Ok(())
}
