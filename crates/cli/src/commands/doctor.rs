//! `aludel doctor`: what this host can do, and what to do about the rest.

mod attack;

use aludel_agent::size;
use aludel_sandbox::Profile;
use aludel_sandbox::probe::{self, Check, Status};
use aludel_sandbox::template::{self, State};
use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::Context;
use crate::console::{Console, Stream};
use crate::exit::Exit;
use crate::{json, paint, state};

/// Check what this host can enforce, and say how to mend the rest
///
/// One sandbox is started and runs a program; without a template, from the interpreter alone.
/// The exit status is 0 when sandboxes can start, also with less protection than possible, and 4 when they cannot.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Run hostile programs against the sandbox of this host; takes about half a minute
    #[arg(long)]
    attack: bool,
    /// Give hostile programs so many times the time, for a machine that is emulated or very busy
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=25), requires = "attack")]
    slow: u32,
    /// Give hostile programs a sandbox for services: a loopback device and terminals
    #[arg(long, requires = "attack")]
    services: bool,
}

pub(crate) async fn run(args: &DoctorArgs, context: &Context) -> anyhow::Result<Exit> {
    if args.attack {
        let profile = if args.services { Profile::Services } else { Profile::Data };
        return attack::run(context, args.slow, profile, args.json).await;
    }
    let data = context.config.server.data.to_path_buf();
    let directory = data.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let mut checks = probe::probe();
        checks.push(template_check(&directory));
        checks
    });
    let mut checks = looked.await.context("the examination ended early")?;
    // Anything missing was told already.
    if checks.iter().all(|check| check.status != Status::Missing) {
        state::make_data_directory(context)?;
        checks.push(probe::sandbox(&data, (*context.config.sandbox.require).into()).await);
    }
    let usable = checks.iter().all(|check| check.status != Status::Missing);
    if args.json {
        let checks: Vec<_> = checks.iter().map(as_json).collect();
        json::print(&json!({ "usable": usable, "checks": checks }))?;
    } else {
        show(&checks, usable)?;
    }
    Ok(if usable { Exit::Success } else { Exit::Ours })
}

/// The template belongs to the list: without one, nothing starts.
fn template_check(data: &std::path::Path) -> Check {
    let (status, detail, mend) = match template::state(data) {
        State::Ready(template) => {
            let (python, packages) = (template.python_version(), template.packages().len());
            (Status::Ok, format!("Python {python}, {packages} packages, {}", size(template.bytes())), None)
        }
        State::Missing => (
            Status::Ok,
            "not built yet; the first command that needs it does that, in a minute or two".to_owned(),
            Some("aludel template build".to_owned()),
        ),
        State::Unbuildable(reason) => (Status::Missing, "cannot be built".to_owned(), Some(reason)),
    };
    Check { name: "template", status, detail, mend }
}

fn show(checks: &[Check], usable: bool) -> anyhow::Result<()> {
    let mut console = Console::new();
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    for Check { name, status, detail, mend } in checks {
        let word = match status {
            Status::Ok => paint::good("ok      "),
            Status::Degraded => paint::warning("degraded"),
            Status::Missing => paint::error("missing "),
        };
        console.line(Stream::Stdout, &format!("{word}  {name:width$}  {detail}"))?;
        if let Some(mend) = mend {
            console.line(Stream::Stdout, &format!("{:10}{:width$}  {} {mend}", "", "", paint::strong("→")))?;
        }
    }
    let degraded = checks.iter().filter(|check| check.status == Status::Degraded).count();
    let verdict = match (usable, degraded) {
        (false, _) => paint::error("Sandboxes cannot start here until the missing parts are mended."),
        (true, 0) => paint::good("Everything is in place."),
        (true, _) => paint::warning("Sandboxes work here, with less protection where it says so."),
    };
    Ok(console.line(Stream::Stdout, &format!("\n{verdict}"))?)
}

fn as_json(check: &Check) -> serde_json::Value {
    let Check { name, status, detail, mend } = check;
    let status = match status {
        Status::Ok => "ok",
        Status::Degraded => "degraded",
        Status::Missing => "missing",
    };
    json!({ "name": name, "status": status, "detail": detail, "mend": mend })
}
