//! Sandboxes of a service that speaks E2B's protocol.

use std::sync::Arc;

use aludel_sandbox::E2b;
use aludel_sandbox::probe::CheckStatus;
use anyhow::Context as _;

use super::backend_check::{answered, failed};
use super::{check_isolation, refuse_template};
use crate::config::BackendSetting;
use crate::console;
use crate::context::CommandContext;
use crate::sandboxes::{BackendOptions, RunningBackend};

/// Starts the E2B backend.
pub(super) async fn start(context: &CommandContext, wanted: BackendOptions<'_>) -> anyhow::Result<RunningBackend> {
    refuse_template(wanted, "a sandbox of E2B has one of the service", "sandbox.e2b.template")?;
    let settings = context.config.sandbox.e2b(&context.host)?;
    let backend = E2b::start(settings).await.context("sandboxes of E2B cannot be used")?;
    console::status(&format!("programs and their files go to {}", backend.url()));
    check_isolation(context, &E2b::warnings())?;
    Ok(RunningBackend { backend: Arc::new(backend), packages: Vec::new() })
}

/// Asks the service, if the settings name it.
pub(super) async fn check(context: &CommandContext) -> anyhow::Result<(CheckStatus, String)> {
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
