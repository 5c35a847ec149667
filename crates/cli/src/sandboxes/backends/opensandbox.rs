//! Sandboxes of a server that speaks OpenSandbox's protocol.

use std::sync::Arc;

use aludel_sandbox::OpenSandbox;
use aludel_sandbox::probe::CheckStatus;
use anyhow::Context as _;

use super::backend_check::{answered, failed};
use super::{check_isolation, refuse_template};
use crate::config::BackendSetting;
use crate::console;
use crate::context::CommandContext;
use crate::sandboxes::{BackendOptions, RunningBackend};

/// Starts the OpenSandbox backend.
pub(super) async fn start(context: &CommandContext, wanted: BackendOptions<'_>) -> anyhow::Result<RunningBackend> {
    refuse_template(wanted, "a sandbox of OpenSandbox has its image", "sandbox.opensandbox.image")?;
    let settings = context.config.sandbox.opensandbox(&context.host)?;
    let warnings = OpenSandbox::warnings(settings.network);
    let backend = OpenSandbox::start(settings).await.context("sandboxes of OpenSandbox cannot be used")?;
    console::status(&format!("programs and their files go to {}", backend.url()));
    check_isolation(context, &warnings)?;
    Ok(RunningBackend { backend: Arc::new(backend), packages: Vec::new() })
}

/// Asks the server, if the settings name it.
pub(super) async fn check(context: &CommandContext) -> anyhow::Result<(CheckStatus, String)> {
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
