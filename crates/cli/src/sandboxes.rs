//! Getting from a configuration to a backend that runs.

use std::sync::Arc;

use aludel_sandbox::{Backend, Local, LocalConfig, Start, Template, template};
use anyhow::Context as _;

use crate::commands::Context;
use crate::progress::TemplateProgress;
use crate::{console, state};

/// A running backend and what its sandboxes start from.
pub(crate) struct Sandboxes {
    /// Where sandboxes come from.
    pub(crate) backend: Arc<dyn Backend>,
    /// What they start from.
    pub(crate) template: Template,
}

impl Sandboxes {
    /// Prepares the template if need be and starts the backend, telling the person about both on stderr.
    pub(crate) async fn start(context: &Context, pool: usize) -> anyhow::Result<Self> {
        let template = prepare(context, false).await?;
        let settings = LocalConfig {
            data: (*context.config.server.data).clone(),
            template: template.clone(),
            limits: context.config.sandbox.limits(),
            pool,
            require: (*context.config.sandbox.require).into(),
            start: if *context.config.sandbox.fresh { Start::Fresh } else { Start::Fork },
        };
        let started = Local::start(settings).await;
        let backend = started.context("sandboxes cannot be started here; `aludel doctor` says what is missing")?;
        tell(backend.warnings(), context.verbose);
        Ok(Self { backend: Arc::new(backend), template })
    }
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

/// Makes sure that the template is there.
pub(crate) async fn prepare(context: &Context, force: bool) -> anyhow::Result<Template> {
    let data = (*context.config.server.data).clone();
    state::make_data_directory(context)?;
    let built = tokio::task::spawn_blocking(move || {
        let mut progress = TemplateProgress::new();
        template::ensure(&data, force, &mut |step| progress.show(&step))
    });
    built.await.context("the template's builder ended")?.context("the Python template cannot be prepared")
}
