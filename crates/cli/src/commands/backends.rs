//! `aludel backends`: where programs can run, and where they do.

use aludel_sandbox::probe::CheckStatus;
use clap::Args;
use serde_json::json;

use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::Exit;
use crate::sandboxes::{BackendCheck, BackendKind, Candidates, candidates};
use crate::wrap::hanging;
use crate::{color, json};

/// List the origins of sandboxes, and the one in use
///
/// A local sandbox is started and runs a program; the container engine is asked for its version, and no image is fetched;
/// a service is asked if the settings name it, and makes no sandbox.
/// The exit status is 0 when the backend in use is ready, and 4 when it is not.
#[derive(Debug, Args)]
pub(crate) struct BackendsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &BackendsArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let settings = &context.config.sandbox;
    let mut all = Vec::new();
    for backend in BackendKind::ALL {
        all.push(backend.check(context).await?);
    }
    let Candidates { backends, reason } = candidates(settings, &settings.template);
    let used = match &*backends {
        [only] => Some(*only),
        several => several
            .iter()
            .copied()
            .find(|backend| all.iter().any(|found| found.backend == *backend && found.is_ready())),
    };
    let is_ready = all.iter().any(|found| found.is_ready() && Some(found.backend) == used);
    let used = used.map(BackendKind::name);
    if args.json {
        let entry = |found: &BackendCheck| json!({ "name": found.backend.name(), "ready": found.is_ready(), "detail": found.detail });
        json::print(&json!({ "used": used, "backends": all.iter().map(entry).collect::<Vec<_>>() }))?;
    } else {
        show(&all, used, reason, is_ready)?;
    }
    Ok(if is_ready { Exit::Success } else { Exit::Ours })
}

fn show(all: &[BackendCheck], used: Option<&str>, reason: &str, is_ready: bool) -> anyhow::Result<()> {
    let mut console = Console::new();
    for found in all {
        let BackendCheck { backend, detail, .. } = found;
        let name = backend.name();
        let word = match found.status {
            CheckStatus::Ok => color::good("ready   "),
            CheckStatus::Degraded => color::warning("degraded"),
            CheckStatus::Missing => color::faint("missing "),
        };
        console.line(StandardStream::Stdout, &hanging(&format!("{word}  {name:11}  {detail}"), 23))?;
    }
    let verdict = match used {
        Some(name) if is_ready => color::good(&format!("Programs run in {name} sandboxes: {reason}.")),
        Some(name) => color::error(&format!("Programs would run in {name} sandboxes ({reason}), and cannot.")),
        None => color::error("Programs can run nowhere: no backend is ready."),
    };
    Ok(console.line(StandardStream::Stdout, &format!("\n{}", hanging(&verdict, 0)))?)
}
