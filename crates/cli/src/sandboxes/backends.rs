//! The choice of a backend. Each has a file in the directory of this one, which starts and checks it, and arms in [`BackendKind`].

mod backend_check;
mod docker;
mod e2b;
mod local;
mod opensandbox;

use aludel_sandbox::template::Choice;

pub(crate) use self::backend_check::BackendCheck;
pub(super) use self::local::local_config;
use super::{BackendOptions, RunningBackend, tell};
use crate::config::{BackendSetting, RequireSetting, SandboxSection};
use crate::context::CommandContext;

/// A backend that programs can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendKind {
    E2b,
    OpenSandbox,
    Local,
    Docker,
}

impl BackendKind {
    /// All of them, in the order of `auto`.
    pub(crate) const ALL: &[Self] = &[Self::E2b, Self::OpenSandbox, Self::Local, Self::Docker];

    /// Its word in the settings.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::E2b => "e2b",
            Self::OpenSandbox => "opensandbox",
            Self::Local => "local",
            Self::Docker => "docker",
        }
    }

    /// The settings that decide if it can be used.
    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::E2b => "sandbox.e2b.url, sandbox.e2b.key",
            Self::OpenSandbox => "sandbox.opensandbox.url, sandbox.opensandbox.key",
            Self::Local => "sandbox.require",
            Self::Docker => "sandbox.docker.host",
        }
    }

    /// Returns true if the settings allow to use it without being named. A key in the environment alone must not make programs leave this
    /// host.
    fn is_set_up(self, settings: &SandboxSection) -> bool {
        match self {
            Self::E2b => settings.has_e2b_key(),
            Self::OpenSandbox => settings.has_opensandbox_url(),
            Self::Local | Self::Docker => true,
        }
    }

    /// Starts it.
    pub(super) async fn start(
        self,
        context: &CommandContext,
        wanted: BackendOptions<'_>,
    ) -> anyhow::Result<RunningBackend> {
        match self {
            Self::E2b => e2b::start(context, wanted).await,
            Self::OpenSandbox => opensandbox::start(context, wanted).await,
            Self::Local => local::start(context, wanted).await,
            Self::Docker => docker::start(context, wanted).await,
        }
    }

    /// Checks it. Downloads no image, and makes no sandbox of a service; skips one that no setting names. Others run a sandbox.
    pub(crate) async fn check(self, context: &CommandContext) -> anyhow::Result<BackendCheck> {
        let (status, detail) = match self {
            Self::E2b => e2b::check(context).await?,
            Self::OpenSandbox => opensandbox::check(context).await?,
            Self::Local => local::check(context).await?,
            Self::Docker => docker::check(context).await?,
        };
        Ok(BackendCheck { backend: self, status, detail })
    }
}

/// Backends of which the first that works is taken.
pub(crate) struct Candidates {
    /// The backends, in the order in which they are tried.
    pub(crate) backends: Vec<BackendKind>,
    /// The reason for the choice, in words.
    pub(crate) reason: &'static str,
}

/// Returns the backends to try for sandboxes of this template.
pub(crate) fn candidates(settings: &SandboxSection, template: &Choice) -> Candidates {
    let named = |backend| (vec![backend], "sandbox.backend names it");
    let (backends, reason) = match *settings.backend {
        BackendSetting::Local => named(BackendKind::Local),
        BackendSetting::Docker => named(BackendKind::Docker),
        BackendSetting::E2b => named(BackendKind::E2b),
        BackendSetting::OpenSandbox => named(BackendKind::OpenSandbox),
        // Other backends do not have our templates.
        BackendSetting::Auto if *template != Choice::Default => {
            (vec![BackendKind::Local], "only local sandboxes have templates (sandbox.template)")
        }
        BackendSetting::Auto => {
            let backends = BackendKind::ALL.iter().copied().filter(|backend| backend.is_set_up(settings)).collect();
            (backends, "it is the first that is ready (sandbox.backend = \"auto\")")
        }
    };
    Candidates { backends, reason }
}

/// Fails if a template was asked for by name, which only local sandboxes have.
fn refuse_template(wanted: BackendOptions<'_>, instead: &str, setting: &str) -> anyhow::Result<()> {
    if let Some(name) = wanted.template.own() {
        anyhow::bail!("{instead} instead of the template `{name}` (sandbox.template); name one by {setting}");
    }
    Ok(())
}

/// Warns about missing parts of the isolation, or refuses to continue.
fn check_isolation(context: &CommandContext, warnings: &[String]) -> anyhow::Result<()> {
    if *context.config.sandbox.require == RequireSetting::Strict && !warnings.is_empty() {
        anyhow::bail!("{}, and sandbox.require is strict", warnings.join(", "));
    }
    tell(warnings, context.verbose);
    Ok(())
}
