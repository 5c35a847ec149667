//! Containers of an engine, Docker's or Podman's.

use std::sync::Arc;

use aludel_sandbox::Docker;
use aludel_sandbox::probe::CheckStatus;
use anyhow::Context as _;

use super::backend_check::{answered, failed};
use super::{check_isolation, refuse_template};
use crate::context::CommandContext;
use crate::sandboxes::{BackendOptions, RunningBackend};
use crate::{console, state};

/// Starts the docker backend.
pub(super) async fn start(context: &CommandContext, wanted: BackendOptions<'_>) -> anyhow::Result<RunningBackend> {
    refuse_template(wanted, "a container has its image", "sandbox.docker.image")?;
    state::make_data_directory(context)?;
    let settings = context.config.sandbox.docker(&context.config.server.data, wanted.pool);
    let mut progress = |step: &str| console::status(step);
    let backend = Docker::start(settings, &mut progress).await.context("containers cannot be used as sandboxes")?;
    if context.verbose {
        console::status(&format!("sandboxes are containers of the engine {}", backend.engine()));
    }
    check_isolation(context, &backend.warnings())?;
    Ok(RunningBackend { backend: Arc::new(backend), packages: Vec::new() })
}

/// Runs a sandbox if the image is there.
pub(super) async fn check(context: &CommandContext) -> anyhow::Result<(CheckStatus, String)> {
    state::make_data_directory(context)?;
    let settings = context.config.sandbox.docker(&context.config.server.data, 0);
    let origin = format!("the image is {}", settings.image);
    Ok(match Docker::probe(settings).await {
        Ok((engine, warnings)) => answered(context, &engine, &origin, &warnings),
        Err(error) => failed(error),
    })
}
