//! `aludel doctor`: the abilities of this host, and remedies for missing ones.

mod attack;

use std::collections::BTreeMap;
use std::path::PathBuf;

use aludel_agent::size;
use aludel_sandbox::probe::{self, Check, CheckStatus};
use aludel_sandbox::template::{self, TemplateName, TemplateState};
use aludel_sandbox::{Profile, Template};
use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use crate::config::Config;
use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::Exit;
use crate::sandboxes::{BackendCheck, BackendKind, Candidates, candidates};
use crate::wrap::hanging;
use crate::{color, json, sandboxes, state};

/// The minor version of Python 3 from which on sandboxes share nearly all objects of imported modules.
const SHARING_MINOR: u32 = 12;

/// Check the isolation that this host can enforce, and suggest remedies
///
/// One sandbox is started and runs a program; without a template, from the interpreter alone.
/// The exit status is 0 when sandboxes can start, also with less protection than possible, and 4 when they cannot.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Run hostile programs against the sandbox of this host; takes about a minute
    #[arg(long)]
    attack: bool,
    /// Give hostile programs so many times the time, for a machine that is emulated or very busy
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=25), requires = "attack")]
    slow: u32,
    /// Give hostile programs a sandbox for services: a loopback device and terminals
    #[arg(long, requires = "attack")]
    services: bool,
}

pub(crate) async fn run(args: &DoctorArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    if args.attack {
        let profile = if args.services { Profile::Services } else { Profile::Data };
        return attack::run(context, args.slow, profile, args.json).await;
    }
    let settings = &context.config.sandbox;
    let Candidates { backends, reason } = candidates(settings, &settings.template);
    let (mut checks, mut used) = (Vec::new(), None);
    for backend in backends {
        let of_backend = match backend {
            BackendKind::Local => host(context).await?,
            _ => vec![elsewhere(context, backend).await?],
        };
        let is_ready = of_backend.iter().all(|check| check.status != CheckStatus::Missing);
        checks.extend(of_backend);
        if is_ready {
            used = Some(backend);
            break;
        }
    }
    if args.json {
        let checks: Vec<_> = checks.iter().map(as_json).collect();
        json::print(&json!({ "usable": used.is_some(), "backend": used.map(BackendKind::name), "checks": checks }))?;
    } else {
        show(&checks, used, reason)?;
    }
    Ok(if used.is_some() { Exit::Success } else { Exit::Ours })
}

/// The parts of this host that sandboxes need, and a trial of one.
async fn host(context: &CommandContext) -> anyhow::Result<Vec<Check>> {
    let data = context.config.server.data.to_path_buf();
    let directories = sandboxes::directories(context);
    let looked = tokio::task::spawn_blocking(move || {
        let mut checks = probe::probe();
        checks.push(template_check(&directories));
        checks
    });
    let mut checks = looked.await.context("the examination ended early")?;
    // Missing parts were printed already.
    if checks.iter().all(|check| check.status != CheckStatus::Missing) {
        state::make_data_directory(context)?;
        checks.push(probe::sandbox(&data, (*context.config.sandbox.require).into()).await);
    }
    let (directories, named) = (sandboxes::directories(context), named_templates(&context.config));
    let looked = tokio::task::spawn_blocking(move || {
        let named = named.iter().map(|(name, settings)| named_template_check(&directories, name, settings));
        named.collect::<Vec<_>>()
    });
    checks.extend(looked.await.context("the examination ended early")?);
    Ok(checks)
}

/// The templates of the operator's own that settings name, each with these settings.
fn named_templates(config: &Config) -> BTreeMap<TemplateName, Vec<&'static str>> {
    let sandbox = &config.sandbox;
    let usual = sandbox.template.own().map(|name| (name, "sandbox.template"));
    let offered = sandbox.templates.0.iter().map(|name| (name, "sandbox.templates"));
    let of_keys = sandbox.key_templates.0.values().map(|name| (name, "sandbox.key_templates"));
    let of_models = config.models.iter().filter_map(|model| Some((model.template.own()?, "`template` of a model")));
    let mut named: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, setting) in usual.into_iter().chain(offered).chain(of_keys).chain(of_models) {
        let settings = named.entry(name.clone()).or_default();
        if !settings.contains(&setting) {
            settings.push(setting);
        }
    }
    named
}

/// A template that settings name: without it, what they are for does not start.
fn named_template_check(directories: &[PathBuf], name: &TemplateName, settings: &[&str]) -> Check {
    let settings = settings.join(", ");
    let (status, detail, mend) = match template::find(directories, name) {
        Ok(template) => (CheckStatus::Ok, format!("`{name}` ({settings}): {}", describe(&template)), None),
        Err(error) => (
            CheckStatus::Missing,
            format!("{settings}: {error}"),
            Some("build it, or name another in the settings".to_owned()),
        ),
    };
    Check { name: "template", status, detail, mend }
}

fn describe(template: &Template) -> String {
    let (python, packages) = (template.python_version(), template.packages().len());
    format!("Python {python}, {packages} packages, {}{}", size(template.bytes()), memory_note(python))
}

/// The note on memory for versions of Python in which sandboxes copy a page for each object that they look at.
fn memory_note(python: &str) -> &'static str {
    let minor = python.strip_prefix("3.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if minor.is_some_and(|minor| minor < SHARING_MINOR) {
        "; with Python 3.12 or newer, each sandbox takes less memory"
    } else {
        ""
    }
}

/// The engine or the service that starts sandboxes.
async fn elsewhere(context: &CommandContext, backend: BackendKind) -> anyhow::Result<Check> {
    let BackendCheck { status, detail, .. } = backend.check(context).await?;
    let settings = backend.settings();
    let mend =
        (status == CheckStatus::Missing).then(|| format!("another value of {settings}, or another sandbox.backend"));
    Ok(Check { name: backend.name(), status, detail, mend })
}

/// The template is on the list because nothing starts without one.
fn template_check(directories: &[PathBuf]) -> Check {
    let (status, detail, mend) = match template::state(directories) {
        TemplateState::Ready(template) => (CheckStatus::Ok, describe(&template), None),
        TemplateState::Missing => (
            CheckStatus::Ok,
            "not built yet; the first command that needs it does that, in a minute or two".to_owned(),
            Some("aludel template build".to_owned()),
        ),
        TemplateState::Unbuildable(reason) => (CheckStatus::Missing, "cannot be built".to_owned(), Some(reason)),
    };
    Check { name: "template", status, detail, mend }
}

fn show(checks: &[Check], used: Option<BackendKind>, reason: &str) -> anyhow::Result<()> {
    let mut console = Console::new();
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    for Check { name, status, detail, mend } in checks {
        let word = match status {
            CheckStatus::Ok => color::good("ok      "),
            CheckStatus::Degraded => color::warning("degraded"),
            CheckStatus::Missing => color::error("missing "),
        };
        console.line(StandardStream::Stdout, &hanging(&format!("{word}  {name:width$}  {detail}"), width + 12))?;
        if let Some(mend) = mend {
            let line = format!("{:10}{:width$}  {} {mend}", "", "", color::strong("→"));
            console.line(StandardStream::Stdout, &hanging(&line, width + 14))?;
        }
    }
    let degraded = checks.iter().filter(|check| check.status == CheckStatus::Degraded).count();
    let verdict = match (used, degraded) {
        (None, _) => color::error("Sandboxes cannot start here until the missing parts are mended."),
        (Some(BackendKind::Local), 0) => color::good("Everything is in place."),
        (Some(BackendKind::Local), _) => color::warning("Sandboxes work here, with less protection where it says so."),
        (Some(backend), _) => color::good(&format!("Programs run in {} sandboxes: {reason}.", backend.name())),
    };
    Ok(console.line(StandardStream::Stdout, &format!("\n{}", hanging(&verdict, 0)))?)
}

fn as_json(check: &Check) -> serde_json::Value {
    let Check { name, status, detail, mend } = check;
    let status = match status {
        CheckStatus::Ok => "ok",
        CheckStatus::Degraded => "degraded",
        CheckStatus::Missing => "missing",
    };
    json!({ "name": name, "status": status, "detail": detail, "mend": mend })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_share_less_memory_are_told() {
        assert!(memory_note("3.9.2").contains("3.12 or newer") && memory_note("3.11.7").contains("3.12 or newer"));
        assert!(["3.12.0", "3.14.1", "4.0"].map(memory_note).iter().all(|note| note.is_empty()));
    }
}
