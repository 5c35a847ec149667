//! `aludel backends`: where programs can run, and where they do.

use aludel_sandbox::{Docker, E2b, Error, OpenSandbox, probe};
use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::Context;
use crate::config::{BackendChoice, Require};
use crate::console::{Console, Stream};
use crate::exit::{Exit, words};
use crate::sandboxes::{Candidates, Place, candidates};
use crate::{json, paint, state};

/// Tell where sandboxes can run, and where they do
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

/// A backend, and the reason why it cannot be used if it cannot.
struct Found {
    place: Place,
    detail: String,
    is_ready: bool,
}

pub(crate) async fn run(args: &BackendsArgs, context: &Context) -> anyhow::Result<Exit> {
    let settings = &context.config.sandbox;
    let mut all = Vec::new();
    for place in Place::ALL {
        all.push(match place {
            Place::Local => local(context).await?,
            Place::Docker => docker(context).await,
            Place::E2b => e2b(context).await?,
            Place::OpenSandbox => opensandbox(context).await?,
        });
    }
    let Candidates { places, reason } = candidates(settings, &settings.template);
    let used = match &*places {
        [only] => Some(*only),
        several => {
            several.iter().copied().find(|place| all.iter().any(|found| found.place == *place && found.is_ready))
        }
    };
    let is_ready = all.iter().any(|found| found.is_ready && Some(found.place) == used);
    let used = used.map(Place::name);
    if args.json {
        let entry =
            |found: &Found| json!({ "name": found.place.name(), "ready": found.is_ready, "detail": found.detail });
        json::print(&json!({ "used": used, "backends": all.iter().map(entry).collect::<Vec<_>>() }))?;
    } else {
        show(&all, used, reason, is_ready)?;
    }
    Ok(if is_ready { Exit::Success } else { Exit::Ours })
}

async fn local(context: &Context) -> anyhow::Result<Found> {
    let place = Place::Local;
    let looked = tokio::task::spawn_blocking(probe::probe).await.context("the examination ended early")?;
    if let Some(missing) = looked.iter().find(|check| check.status == probe::Status::Missing) {
        let detail = format!("{}: {}; `aludel doctor` tells the remedy", missing.name, missing.detail);
        return Ok(Found { place, detail, is_ready: false });
    }
    state::make_data_directory(context)?;
    let tried = probe::sandbox(&context.config.server.data, (*context.config.sandbox.require).into()).await;
    let is_ready = tried.status != probe::Status::Missing;
    let degraded = looked.iter().filter(|check| check.status == probe::Status::Degraded).map(|check| check.name);
    let degraded = degraded.collect::<Vec<_>>().join(", ");
    let detail = match (is_ready, degraded.is_empty()) {
        (true, false) => format!("{}; with less protection: {degraded} (see `aludel doctor`)", tried.detail),
        (true, true) => tried.detail,
        (false, _) => format!("{}; `aludel doctor` tells the remedy", tried.detail),
    };
    Ok(Found { place, detail, is_ready })
}

async fn docker(context: &Context) -> Found {
    let settings = context.config.sandbox.docker(&context.config.server.data);
    let (is_ready, detail) = match Docker::probe(settings.host.as_deref()).await {
        Ok((_, warnings)) if *context.config.sandbox.require == Require::Strict && !warnings.is_empty() => {
            (false, format!("{}, and sandbox.require is strict", warnings.join(", ")))
        }
        Ok((engine, _)) => (true, format!("{engine} answers; the image is {}", settings.image)),
        Err(Error::Setup(reason)) => (false, reason),
        Err(error) => (false, words(&error.into())),
    };
    Found { place: Place::Docker, detail, is_ready }
}

async fn e2b(context: &Context) -> anyhow::Result<Found> {
    let (place, settings) = (Place::E2b, &context.config.sandbox);
    if !settings.has_e2b_key() && *settings.backend != BackendChoice::E2b {
        let detail = "no key is set (sandbox.e2b.key)".to_owned();
        return Ok(Found { place, detail, is_ready: false });
    }
    let settings = settings.e2b(&context.surroundings)?;
    let origin = format!("the template is {}", settings.template);
    Ok(service(context, place, E2b::probe(settings).await, &E2b::warnings(), &origin))
}

async fn opensandbox(context: &Context) -> anyhow::Result<Found> {
    let (place, settings) = (Place::OpenSandbox, &context.config.sandbox);
    if !settings.has_opensandbox_url() && *settings.backend != BackendChoice::OpenSandbox {
        let detail = "no address is set (sandbox.opensandbox.url)".to_owned();
        return Ok(Found { place, detail, is_ready: false });
    }
    let settings = settings.opensandbox(&context.surroundings)?;
    let origin = format!("the image is {}", settings.image);
    let warnings = OpenSandbox::warnings(settings.network);
    Ok(service(context, place, OpenSandbox::probe(settings).await, &warnings, &origin))
}

/// A service that was asked.
fn service(context: &Context, place: Place, asked: Result<String, Error>, warnings: &[String], origin: &str) -> Found {
    let (is_ready, detail) = match asked {
        Ok(_) if *context.config.sandbox.require == Require::Strict => {
            (false, format!("{}, and sandbox.require is strict", warnings.join(", ")))
        }
        Ok(url) => (true, format!("{url} answers; {origin}")),
        Err(Error::Setup(reason)) => (false, reason),
        Err(error) => (false, words(&error.into())),
    };
    Found { place, detail, is_ready }
}

fn show(all: &[Found], used: Option<&str>, reason: &str, is_ready: bool) -> anyhow::Result<()> {
    let mut console = Console::new();
    for Found { place, detail, is_ready } in all {
        let name = place.name();
        let word = if *is_ready { paint::good("ready  ") } else { paint::faint("missing") };
        console.line(Stream::Stdout, &format!("{word}  {name:11}  {detail}"))?;
    }
    let verdict = match used {
        Some(name) if is_ready => paint::good(&format!("Programs run in {name} sandboxes: {reason}.")),
        Some(name) => paint::error(&format!("Programs would run in {name} sandboxes ({reason}), and cannot.")),
        None => paint::error("Programs can run nowhere: no backend is ready."),
    };
    Ok(console.line(Stream::Stdout, &format!("\n{verdict}"))?)
}
