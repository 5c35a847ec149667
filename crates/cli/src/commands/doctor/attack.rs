//! `aludel doctor --attack`: hostile programs against the sandbox of this host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use aludel_sandbox::attack::{Attack, AttackResult, suite};
use aludel_sandbox::{Backend, Profile};
use anyhow::Context as _;
use serde_json::json;
use tokio::task::JoinSet;

use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::Exit;
use crate::sandboxes::RunningBackend;
use crate::{color, json, terminal};

/// Attacks at a time: enough that waits for limits do not add up, few enough that attacks do not disturb one another.
const AT_ONCE: usize = 3;

pub(super) async fn run(context: &CommandContext, slow: u32, profile: Profile, as_json: bool) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let engine = RunningBackend::start(context, 0).await?;
    let results = all(&engine.backend, slow, profile).await;
    engine.backend.shutdown().await;
    let results = results?;
    let held = results.iter().all(|(_, verdict)| *verdict == AttackResult::Held);
    if as_json {
        let rows: Vec<_> = results
            .iter()
            .map(|(attack, verdict)| {
                let (word, detail) = words(verdict);
                json!({ "name": attack.name, "threat": attack.threat, "verdict": word, "detail": detail })
            })
            .collect();
        json::print(&json!({ "held": held, "attacks": rows }))?;
    } else {
        show(&results, started.elapsed().as_secs_f64())?;
    }
    Ok(if held { Exit::Success } else { Exit::Ours })
}

async fn all(backend: &Arc<dyn Backend>, slow: u32, profile: Profile) -> anyhow::Result<Vec<(Attack, AttackResult)>> {
    let mut waiting = suite()?.into_iter();
    let mut running = JoinSet::new();
    let mut results = Vec::new();
    loop {
        while running.len() < AT_ONCE
            && let Some((_, attack)) = waiting.next()
        {
            let backend = Arc::clone(backend);
            running.spawn(async move {
                let verdict = attack.run(&*backend, slow, profile).await;
                (attack, verdict)
            });
        }
        let Some(done) = running.join_next().await else { return Ok(results) };
        let (attack, verdict) = done.context("an attack ended early")?;
        // An attack that got no sandbox, or failed because of its neighbour, is shown like the others.
        results.push((attack, verdict.unwrap_or_else(|error| AttackResult::Unproven(error.to_string()))));
    }
}

fn show(results: &[(Attack, AttackResult)], seconds: f64) -> anyhow::Result<()> {
    let mut threats: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (attack, verdict) in results {
        let (held, all) = threats.entry(&attack.threat).or_default();
        *held += usize::from(*verdict == AttackResult::Held);
        *all += 1;
    }
    let mut console = Console::new();
    for (threat, (held, all)) in &threats {
        let mark = if held == all { color::good("held  ") } else { color::error("BROKEN") };
        console.line(StandardStream::Stdout, &format!("{mark}  {threat:28}  {held:>3} of {all}"))?;
    }
    for (attack, verdict) in results.iter().filter(|(_, verdict)| *verdict != AttackResult::Held) {
        let (word, detail) = words(verdict);
        let detail = terminal::name(&detail.unwrap_or_default());
        console.line(StandardStream::Stdout, &format!("\n{} {}: {detail}", color::error(word), attack.name))?;
    }
    let held = results.iter().filter(|(_, verdict)| *verdict == AttackResult::Held).count();
    Ok(console
        .line(StandardStream::Stdout, &format!("\n{held} of {} attacks held in {seconds:.0} s.", results.len()))?)
}

fn words(verdict: &AttackResult) -> (&'static str, Option<String>) {
    match verdict {
        AttackResult::Held => ("held", None),
        AttackResult::Broken(what) => ("broken", Some(what.clone())),
        AttackResult::Unproven(why) => ("unproven", Some(format!("it or its control could not be run: {why}"))),
    }
}
