//! Getting from a configuration to a backend that runs.

use aludel_sandbox::{Local, LocalConfig, Template, template};
use anyhow::Context;

use crate::config::Config;
use crate::paint;
use crate::progress::TemplateProgress;

/// A running backend and what it runs.
pub(crate) struct Engine {
    pub(crate) backend: Local,
    pub(crate) template: Template,
}

impl Engine {
    /// Prepares the template if need be and starts the backend, telling the person about both on stderr.
    pub(crate) async fn start(config: &Config, pool: usize) -> anyhow::Result<Self> {
        let template = prepare(config, false).await?;
        let settings = LocalConfig {
            data: config.data.clone(),
            template: template.clone(),
            limits: config.limits.clone(),
            pool,
            require: config.require,
        };
        let backend = Local::start(settings)
            .await
            .context("sandboxes cannot be started here; `aludel doctor` says what is missing")?;
        for warning in backend.warnings() {
            eprintln!("{} {warning}", paint::warning("warning:"));
        }
        Ok(Self { backend, template })
    }
}

/// Makes sure that the template is there.
pub(crate) async fn prepare(config: &Config, force: bool) -> anyhow::Result<Template> {
    let data = config.data.clone();
    let built = tokio::task::spawn_blocking(move || {
        let mut progress = TemplateProgress::new();
        template::ensure(&data, force, &mut |step| progress.show(&step))
    });
    Ok(built.await??)
}
