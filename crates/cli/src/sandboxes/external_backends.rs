//! Backends whose sandboxes are outside of this program.

use std::sync::Arc;

use aludel_sandbox::{Docker, E2b, OpenSandbox};
use anyhow::Context as _;

use super::{BackendOptions, RunningBackend, tell};
use crate::config::RequireSetting;
use crate::context::CommandContext;
use crate::{console, state};

/// Starts the docker backend.
pub(super) async fn docker(context: &CommandContext, wanted: BackendOptions<'_>) -> anyhow::Result<RunningBackend> {
    refuse_template(wanted, "a container has its image", "sandbox.docker.image")?;
    state::make_data_directory(context)?;
    let settings = context.config.sandbox.docker(&context.config.server.data, wanted.pool);
    let mut progress = |step: &str| console::status(step);
    let backend = Docker::start(settings, &mut progress).await.context("containers cannot be used as sandboxes")?;
    if context.verbose {
        console::status(&format!("sandboxes are containers of the engine {}", backend.engine()));
    }
    check(context, &backend.warnings())?;
    Ok(RunningBackend { backend: Arc::new(backend), packages: Vec::new() })
}

/// Starts the E2B backend.
pub(super) async fn e2b(context: &CommandContext, wanted: BackendOptions<'_>) -> anyhow::Result<RunningBackend> {
    refuse_template(wanted, "a sandbox of E2B has one of the service", "sandbox.e2b.template")?;
    let settings = context.config.sandbox.e2b(&context.host)?;
    let backend = E2b::start(settings).await.context("sandboxes of E2B cannot be used")?;
    console::status(&format!("programs and their files go to {}", backend.url()));
    check(context, &E2b::warnings())?;
    Ok(RunningBackend { backend: Arc::new(backend), packages: Vec::new() })
}

/// Starts the OpenSandbox backend.
pub(super) async fn opensandbox(
    context: &CommandContext,
    wanted: BackendOptions<'_>,
) -> anyhow::Result<RunningBackend> {
    refuse_template(wanted, "a sandbox of OpenSandbox has its image", "sandbox.opensandbox.image")?;
    let settings = context.config.sandbox.opensandbox(&context.host)?;
    let warnings = OpenSandbox::warnings(settings.network);
    let backend = OpenSandbox::start(settings).await.context("sandboxes of OpenSandbox cannot be used")?;
    console::status(&format!("programs and their files go to {}", backend.url()));
    check(context, &warnings)?;
    Ok(RunningBackend { backend: Arc::new(backend), packages: Vec::new() })
}

fn refuse_template(wanted: BackendOptions<'_>, instead: &str, setting: &str) -> anyhow::Result<()> {
    if let Some(name) = wanted.template.own() {
        anyhow::bail!("{instead} instead of the template `{name}` (sandbox.template); name one by {setting}");
    }
    Ok(())
}

/// Warns about missing parts of the isolation, or refuses to continue.
fn check(context: &CommandContext, warnings: &[String]) -> anyhow::Result<()> {
    if *context.config.sandbox.require == RequireSetting::Strict && !warnings.is_empty() {
        anyhow::bail!("{}, and sandbox.require is strict", warnings.join(", "));
    }
    tell(warnings, context.verbose);
    Ok(())
}
