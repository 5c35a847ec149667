//! Checks of backends: the local one starts a sandbox, the others are only asked for an answer.

use aludel_sandbox::probe::{self, CheckStatus};
use aludel_sandbox::{Docker, E2b, Error, OpenSandbox};
use anyhow::Context as _;

use super::BackendKind;
use crate::config::{BackendSetting, RequireSetting};
use crate::context::CommandContext;
use crate::exit::words;
use crate::state;

/// A backend that was tried.
pub(crate) struct BackendCheck {
    pub(crate) place: BackendKind,
    /// Degraded if it enforces less than it could.
    pub(crate) status: CheckStatus,
    /// The finding, in words.
    pub(crate) detail: String,
}

impl BackendCheck {
    /// Returns true if sandboxes can start.
    pub(crate) fn is_ready(&self) -> bool {
        self.status != CheckStatus::Missing
    }
}

/// Checks a backend. Downloads no image, and makes no sandbox of a service; skips one that no setting names.
pub(crate) async fn examine(context: &CommandContext, place: BackendKind) -> anyhow::Result<BackendCheck> {
    let (status, detail) = match place {
        BackendKind::Local => local(context).await?,
        BackendKind::Docker => docker(context).await,
        BackendKind::E2b => e2b(context).await?,
        BackendKind::OpenSandbox => opensandbox(context).await?,
    };
    Ok(BackendCheck { place, status, detail })
}

async fn local(context: &CommandContext) -> anyhow::Result<(CheckStatus, String)> {
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

async fn docker(context: &CommandContext) -> (CheckStatus, String) {
    let settings = context.config.sandbox.docker(&context.config.server.data, 0);
    match Docker::probe(settings.host.as_deref()).await {
        Ok((engine, warnings)) => answered(context, &engine, &format!("the image is {}", settings.image), &warnings),
        Err(error) => failed(error),
    }
}

async fn e2b(context: &CommandContext) -> anyhow::Result<(CheckStatus, String)> {
    let settings = &context.config.sandbox;
    if !settings.has_e2b_key() && *settings.backend != BackendSetting::E2b {
        return Ok((CheckStatus::Missing, "no key is set (sandbox.e2b.key)".to_owned()));
    }
    let settings = settings.e2b(&context.host)?;
    let origin = format!("the template is {}", settings.template);
    Ok(match E2b::probe(settings).await {
        Ok(url) => answered(context, &url, &origin, &E2b::warnings()),
        Err(error) => failed(error),
    })
}

async fn opensandbox(context: &CommandContext) -> anyhow::Result<(CheckStatus, String)> {
    let settings = &context.config.sandbox;
    if !settings.has_opensandbox_url() && *settings.backend != BackendSetting::OpenSandbox {
        return Ok((CheckStatus::Missing, "no address is set (sandbox.opensandbox.url)".to_owned()));
    }
    let settings = settings.opensandbox(&context.host)?;
    let (origin, warnings) = (format!("the image is {}", settings.image), OpenSandbox::warnings(settings.network));
    Ok(match OpenSandbox::probe(settings).await {
        Ok(url) => answered(context, &url, &origin, &warnings),
        Err(error) => failed(error),
    })
}

/// The result for an engine or a service that answers. `origin` describes the place of its sandboxes.
fn answered(context: &CommandContext, name: &str, origin: &str, warnings: &[String]) -> (CheckStatus, String) {
    let warnings = warnings.join(", ");
    if warnings.is_empty() {
        (CheckStatus::Ok, format!("{name} answers; {origin}"))
    } else if *context.config.sandbox.require == RequireSetting::Strict {
        (CheckStatus::Missing, format!("{warnings}, and sandbox.require is strict"))
    } else {
        (CheckStatus::Degraded, format!("{name} answers; {origin}; {warnings}"))
    }
}

fn failed(error: Error) -> (CheckStatus, String) {
    let detail = match error {
        Error::Setup(reason) => reason,
        error => words(&error.into()),
    };
    (CheckStatus::Missing, detail)
}
