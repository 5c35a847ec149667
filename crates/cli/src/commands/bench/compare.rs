//! `aludel bench --compare`: other ways to run a program on this machine, compared with ours.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::contenders::{Contender, others};
use super::{POOL, Times};
use crate::console::{self, Console, StandardStream};
use crate::context::CommandContext;
use crate::sandboxes::{self, RunningBackend};
use crate::{color, json};

/// A way that takes longer than this is measured only in some rounds, milliseconds.
const SLOW: f64 = 100.0;
/// Number of rounds for each measurement of a slow way.
const SELDOM: u32 = 5;

/// The measurements of all.
#[derive(Serialize)]
struct Comparison {
    /// The program.
    program: &'static str,
    processors: usize,
    version: &'static str,
    contenders: Vec<Row>,
    skipped: Vec<SkippedContender>,
}

/// Those of one.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    /// True if pandas and Matplotlib are imported before the program.
    imports: bool,
    /// In the order in which they were measured.
    milliseconds: Vec<f64>,
}

#[derive(Serialize)]
struct SkippedContender {
    name: &'static str,
    reason: String,
}

/// Measures all available ways in turns, so that other load on the machine affects all of them.
pub(super) async fn run(context: &CommandContext, count: u32, json: Option<&Path>) -> anyhow::Result<()> {
    let limits = context.config.sandbox.limits();
    let template = sandboxes::prepare(context, &context.config.sandbox.template).await?;
    let on_demand = RunningBackend::start(context, 0).await?;
    let pooled = RunningBackend::start(context, POOL).await?;
    let cache = tempfile::tempdir()?;
    let mut data = Comparison {
        program: super::PROGRAM,
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        version: env!("CARGO_PKG_VERSION"),
        contenders: Vec::new(),
        skipped: Vec::new(),
    };
    let measured = async {
        let mut contenders = vec![
            Contender::sandbox("aludel, made on demand", &on_demand.backend, 0, &limits),
            Contender::sandbox("aludel, from the pool", &pooled.backend, POOL, &limits),
            Contender::fork(&on_demand.backend, &limits).await?,
        ];
        let mut skip = |name, reason: String| {
            console::status(&format!("{} {name}: {reason}", color::faint("left out:")));
            data.skipped.push(SkippedContender { name, reason });
        };
        for found in tokio::task::block_in_place(|| others(template.root(), cache.path())) {
            match found {
                Ok(contender) => contenders.push(contender),
                Err((name, reason)) => skip(name, reason),
            }
        }
        let mut ready = Vec::new();
        for mut contender in contenders {
            // The first run warms caches, and shows if it works.
            match contender.measure().await {
                Ok(took) => ready.push((contender, took > SLOW, Vec::new())),
                Err(error) => skip(contender.name, format!("it does not work here: {error}")),
            }
        }
        for round in 0..count {
            for (contender, is_slow, times) in &mut ready {
                if !*is_slow || round % SELDOM == 0 {
                    times.push(contender.measure().await?);
                }
            }
        }
        let row = |(Contender { name, imports, .. }, _, milliseconds)| Row { name, imports, milliseconds };
        data.contenders.extend(ready.into_iter().map(row));
        anyhow::Ok(())
    };
    let measured = measured.await;
    on_demand.backend.shutdown().await;
    pooled.backend.shutdown().await;
    measured?;
    match json {
        Some(file) if file.as_os_str() == "-" => json::print(&data),
        Some(file) => {
            let written = std::fs::write(file, serde_json::to_vec_pretty(&data)?);
            written.with_context(|| format!("cannot write {}", file.display()))?;
            show(&data)
        }
        None => show(&data),
    }
}

/// Prints a table.
fn show(data: &Comparison) -> anyhow::Result<()> {
    let mut console = Console::new();
    let head =
        format!("{:<30}{:<9}{:>9}{:>9}{:>9}{:>9}", "to the first result, ms", "imports", "p50", "p90", "p99", "ratio");
    console.line(StandardStream::Stdout, &color::strong(&head))?;
    let ours = data.contenders.first().map_or(f64::NAN, |row| Times::new(row.milliseconds.clone()).at(0.5));
    for Row { name, imports, milliseconds } in &data.contenders {
        let times = Times::new(milliseconds.clone());
        let columns: String = [0.5, 0.9, 0.99].map(|share| format!("{:>9.2}", times.at(share))).concat();
        let (imports, ratio) = (if *imports { "yes" } else { "no" }, times.at(0.5) / ours);
        console.line(StandardStream::Stdout, &format!("{name:<30}{imports:<9}{columns}{ratio:>9.2}"))?;
    }
    Ok(console.line(StandardStream::Stdout, "imports: pandas and Matplotlib before the program, print(1+1)")?)
}
