//! Linux namespaces on this host.

use std::sync::Arc;

use aludel_sandbox::probe::{self, CheckStatus};
use aludel_sandbox::{KernelSpec, KernelStart, Local, LocalConfig, Template};
use anyhow::Context as _;

use crate::context::CommandContext;
use crate::sandboxes::{BackendOptions, RunningBackend, prepare_unless, tell};
use crate::state;

/// Starts the local backend.
pub(super) async fn start(context: &CommandContext, wanted: BackendOptions<'_>) -> anyhow::Result<RunningBackend> {
    let template = prepare_unless(context, wanted.template, wanted.cancellation).await?;
    let template = if wanted.is_lean {
        let kernel = KernelSpec::clone(template.kernel()).lean();
        template.with_kernel(kernel)
    } else {
        template
    };
    let packages = template.packages().iter().map(|package| package.name.clone()).collect();
    let started = Local::start(local_config(context, template, wanted.pool)).await;
    let backend = started.map_err(|error| {
        let mend = probe::mend(&error, &context.config.server.data);
        let mend = mend.unwrap_or_else(|| "`aludel doctor` names the missing parts".to_owned());
        anyhow::Error::from(error).context(format!("sandboxes cannot be started here; {mend}"))
    })?;
    tell(backend.warnings(), context.verbose);
    Ok(RunningBackend { backend: Arc::new(backend), packages })
}

/// The settings of a backend with this template.
pub(in crate::sandboxes) fn local_config(context: &CommandContext, template: Template, pool: usize) -> LocalConfig {
    let template = match context.config.sandbox.hash_seed.0 {
        Some(seed) => {
            let kernel = KernelSpec::clone(template.kernel()).with_hash_seed(seed);
            template.with_kernel(kernel)
        }
        None => template,
    };
    LocalConfig {
        data: context.config.server.data.to_path_buf(),
        template,
        limits: context.config.sandbox.limits(),
        pool,
        require: (*context.config.sandbox.require).into(),
        start: if context.config.sandbox.fresh.0 { KernelStart::Fresh } else { KernelStart::Fork },
    }
}

/// Starts a sandbox.
pub(super) async fn check(context: &CommandContext) -> anyhow::Result<(CheckStatus, String)> {
    let looked = tokio::task::spawn_blocking(probe::probe).await.context("the examination ended early")?;
    if let Some(missing) = looked.iter().find(|check| check.status == CheckStatus::Missing) {
        let detail = format!("{}: {}; `aludel doctor` tells the remedy", missing.name, missing.detail);
        return Ok((CheckStatus::Missing, detail));
    }
    state::make_data_directory(context)?;
    let tried = probe::sandbox(&context.config.server.data, (*context.config.sandbox.require).into()).await;
    if tried.status == CheckStatus::Missing {
        return Ok((CheckStatus::Missing, format!("{}; `aludel doctor` tells the remedy", tried.detail)));
    }
    let degraded = looked.iter().filter(|check| check.status == CheckStatus::Degraded).map(|check| check.name);
    let degraded = degraded.collect::<Vec<_>>().join(", ");
    if degraded.is_empty() {
        return Ok((CheckStatus::Ok, tried.detail));
    }
    Ok((CheckStatus::Degraded, format!("{}; with less protection: {degraded} (see `aludel doctor`)", tried.detail)))
}
