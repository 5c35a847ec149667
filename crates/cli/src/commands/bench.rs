//! `aludel bench`: how fast sandboxes start on this machine, beside what people would do without aludel.

use std::time::{Duration, Instant};

use aludel_agent::size;
use aludel_sandbox::{Event, Local, Sandbox, SandboxSpec};
use serde_json::json;

use crate::config::Config;
use crate::engine::Engine;
use crate::exit::Exit;
use crate::output::print_json;

#[derive(Debug, clap::Args)]
pub(crate) struct BenchArguments {
    /// How many sandboxes are measured
    #[arg(short, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

/// Medians and more of one series, milliseconds.
struct Series {
    name: &'static str,
    times: Vec<Duration>,
}

impl Series {
    fn at(&self, share: f64) -> f64 {
        let place = ((self.times.len().saturating_sub(1)) as f64 * share) as usize;
        self.times.get(place).map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    }
}

pub(crate) async fn run(arguments: &BenchArguments, config: &Config) -> anyhow::Result<Exit> {
    let engine = Engine::start(config, 0).await?;
    let mut all: Vec<Series> = peers(&engine.backend, config).await?.into();
    all.extend(on_demand(&engine.backend, config, arguments.n).await?);
    let memory = idle_memory(&engine.backend, config).await?;
    engine.backend.shutdown().await;
    let engine = Engine::start(config, config.pool.max(1)).await?;
    all.push(series("from the pool: claim to first result", pooled(&engine.backend, config, arguments.n).await?));
    engine.backend.shutdown().await;
    if arguments.json {
        let rows: Vec<_> = all
            .iter()
            .map(|series| json!({ "name": series.name, "n": series.times.len(), "median_ms": series.at(0.5), "p90_ms": series.at(0.9), "min_ms": series.at(0.0) }))
            .collect();
        print_json(&json!({ "series": rows, "idle_session_bytes": memory }));
        return Ok(Exit::Success);
    }
    println!("{:<54}{:>6}{:>10}{:>10}{:>10}", "milliseconds", "n", "median", "p90", "min");
    for series in &all {
        println!(
            "{:<54}{:>6}{:>10.2}{:>10.2}{:>10.2}",
            series.name,
            series.times.len(),
            series.at(0.5),
            series.at(0.9),
            series.at(0.0)
        );
    }
    println!("\nmemory of one idle session, beyond what it shares: {}", size(memory));
    Ok(Exit::Success)
}

fn series(name: &'static str, mut times: Vec<Duration>) -> Series {
    times.sort();
    Series { name, times }
}

async fn on_demand(backend: &Local, config: &Config, count: u32) -> anyhow::Result<Vec<Series>> {
    let (mut created, mut first, mut second, mut closed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..count {
        let start = Instant::now();
        let sandbox = create(backend, config).await?;
        created.push(start.elapsed());
        print_two(&sandbox).await?;
        first.push(start.elapsed());
        let start = Instant::now();
        print_two(&sandbox).await?;
        second.push(start.elapsed());
        let start = Instant::now();
        sandbox.close().await;
        closed.push(start.elapsed());
    }
    Ok(vec![
        series("on demand: create", created),
        series("on demand: create to first result", first),
        series("one more print(1+1)", second),
        series("close", closed),
    ])
}

async fn pooled(backend: &Local, config: &Config, count: u32) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..count {
        while backend.pooled() < config.pool.max(1) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let start = Instant::now();
        let sandbox = create(backend, config).await?;
        print_two(&sandbox).await?;
        times.push(start.elapsed());
        sandbox.close().await;
    }
    Ok(times)
}

async fn idle_memory(backend: &Local, config: &Config) -> anyhow::Result<u64> {
    let sandbox = create(backend, config).await?;
    print_two(&sandbox).await?;
    let (memory, _) = sandbox.memory().await;
    sandbox.close().await;
    Ok(memory)
}

async fn create(backend: &Local, config: &Config) -> anyhow::Result<Sandbox> {
    Ok(backend.create(SandboxSpec { limits: config.limits.clone(), workspace: None }).await?)
}

async fn print_two(sandbox: &Sandbox) -> anyhow::Result<()> {
    let text = output_of(sandbox, "print(1+1)").await?;
    anyhow::ensure!(text == "2\n", "print(1+1) printed {text:?}");
    Ok(())
}

async fn output_of(sandbox: &Sandbox, code: &str) -> anyhow::Result<String> {
    let mut execution = sandbox.execute(code).await?;
    let mut text = String::new();
    while let Some(event) = execution.next().await {
        match event {
            Event::Stdout(part) => text.push_str(&part),
            Event::Error(error) => anyhow::bail!(error.traceback),
            _ => {}
        }
    }
    Ok(text)
}

/// What there is to compare with, measured by a program inside: a new interpreter with the same imports, and a bare fork of a process that
/// is as large as the zygote, up to its first byte. Prints microseconds.
const PEERS: &str = "
import os, subprocess, sys, time
def new_interpreter():
    subprocess.run([sys.executable, '-c', 'import pandas, matplotlib.pyplot'], check=True)
def bare_fork():
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, b'x')
        os._exit(0)
    os.read(read, 1)
    os.waitpid(pid, 0)
    os.close(read), os.close(write)
for name, peer, count in (('imports', new_interpreter, 10), ('fork', bare_fork, 100)):
    peer()  # warms the caches
    for _ in range(count):
        start = time.perf_counter_ns()
        peer()
        print(name, (time.perf_counter_ns() - start) // 1000)
";

async fn peers(backend: &Local, config: &Config) -> anyhow::Result<[Series; 2]> {
    let sandbox = create(backend, config).await?;
    let printed = output_of(&sandbox, PEERS).await?;
    sandbox.close().await;
    let of = |name: &str| {
        let lines = printed.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        lines.map(Duration::from_micros).collect::<Vec<_>>()
    };
    Ok([
        series("a new python3 -c 'import pandas, matplotlib.pyplot'", of("imports")),
        series("a bare fork of a process as large", of("fork")),
    ])
}
