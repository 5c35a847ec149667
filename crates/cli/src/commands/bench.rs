//! `aludel bench`: figures of this machine.

mod compare;
mod contenders;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aludel_agent::size;
use aludel_sandbox::{Backend, ExecutionEvent, Limits, Outcome, Sandbox, SandboxId, SandboxSpec};
use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::console::{Console, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage};
use crate::sandboxes::RunningBackend;
use crate::{color, json};

/// The program that is timed.
const PROGRAM: &str = "print(1+1)";
/// The lower bound: a bare fork of a process as large as a kernel, which runs the program, up to its output.
const FORK: &str = "
import gc, os, time
def fork():
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        get_ipython().run_cell('print(1+1)')
        os._exit(0)
    os.read(read, 8)
    yield
    os.waitpid(pid, 0)
    os.close(read), os.close(write)
gc.freeze()
";
/// Measured by a program inside, so that only the start of the interpreter differs: a new one with the imports of a ready sandbox, and
/// [`FORK`]. Prints milliseconds.
const PEERS: &str = "
import subprocess, sys
def imports():
    subprocess.run([sys.executable, '-c', 'import pandas, matplotlib.pyplot'], check=True)
    yield
for peer, count in ((imports, 5), (fork, 100)):
    list(peer())  # warms the caches
    for _ in range(count):
        start = time.perf_counter()
        for _ in peer():
            print(peer.__name__, (time.perf_counter() - start) * 1000)
";
/// Sandboxes in the pool.
const POOL: usize = 4;
/// Limit of the time until the pool is full.
const POOL_PATIENCE: Duration = Duration::from_secs(30);

/// Measure the time of a fresh sandbox, from the request to the first result of print(1+1)
///
/// Beside it: sandboxes from a pool that is kept ready, a new Python process with the same imports, and a bare fork.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Operation to measure
    #[arg(value_enum, default_value_t = BenchTarget::Start, hide_possible_values = true)]
    what: BenchTarget,
    /// Number of sandboxes to start
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Measure the other ways to run a program that are installed, too, in turns: docker, bwrap, ipykernel, kern and zygo
    #[arg(long)]
    compare: bool,
    /// Print one JSON object; with --compare, write all measurements to this file
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Operations that can be measured.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum BenchTarget {
    /// The start of sandboxes.
    Start,
}

pub(crate) async fn run(args: BenchArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let BenchArgs { what: BenchTarget::Start, count, compare, json } = args;
    if compare {
        compare::run(context, count, json.as_deref()).await?;
        return Ok(Exit::Success);
    }
    if json.as_ref().is_some_and(|file| file.as_os_str() != "-") {
        return Err(usage("--json writes to a file with --compare only"));
    }
    let limits = context.config.sandbox.limits();
    let on_demand = RunningBackend::start(context, 0).await?;
    let measured = async {
        let times = starts(&*on_demand.backend, 0, &limits, count).await?;
        Ok::<_, anyhow::Error>((
            times,
            idle_memory(&*on_demand.backend, &limits).await?,
            peers(&*on_demand.backend, &limits).await?,
        ))
    };
    let measured = measured.await;
    on_demand.backend.shutdown().await;
    let (on_demand, memory, [cold, fork]) = measured?;
    let pool = RunningBackend::start(context, POOL).await?;
    let pooled = starts(&*pool.backend, POOL, &limits, count).await;
    pool.backend.shutdown().await;
    let report = Report { on_demand, pooled: pooled?, cold, fork, memory };
    if json.is_some() {
        report.print_json()?
    } else {
        report.show()?
    }
    Ok(Exit::Success)
}

/// Measurements of a run.
struct Report {
    on_demand: Times,
    pooled: Times,
    cold: Times,
    fork: Times,
    memory: u64,
}

impl Report {
    fn rows(&self) -> [(&'static str, &Times); 4] {
        [
            ("sandbox, made on demand", &self.on_demand),
            ("sandbox, taken from the pool", &self.pooled),
            ("new python3, pandas + matplotlib", &self.cold),
            ("bare fork that runs it", &self.fork),
        ]
    }

    fn show(&self) -> anyhow::Result<()> {
        let mut console = Console::new();
        let head = format!("{:<34}{:>10}{:>10}{:>10}{:>10}", "to the first result, ms", "median", "p90", "p99", "min");
        console.line(StandardStream::Stdout, &color::strong(&head))?;
        for (name, times) in self.rows() {
            let columns: String =
                [times.at(0.5), times.at(0.9), times.at(0.99), times.at(0.0)].map(|ms| format!("{ms:>10.2}")).concat();
            console.line(StandardStream::Stdout, &format!("{name:<34}{columns}"))?;
        }
        let faster = self.cold.at(0.5) / self.on_demand.at(0.5);
        let slower = self.on_demand.at(0.5) / self.fork.at(0.5);
        let words = format!(
            "\nOn demand, a sandbox is {faster:.0} times as fast as a new interpreter, and takes {slower:.1} times as long as a bare fork."
        );
        console.line(StandardStream::Stdout, &words)?;
        let memory = match self.memory {
            0 => "not counted on this host".to_owned(),
            bytes => size(bytes),
        };
        Ok(console.line(StandardStream::Stdout, &format!("Memory of an idle session: {memory}."))?)
    }

    fn print_json(&self) -> anyhow::Result<()> {
        let times = |times: &Times| {
            json!({
                "count": times.0.len(), "median_ms": times.at(0.5), "p90_ms": times.at(0.9),
                "p99_ms": times.at(0.99), "min_ms": times.at(0.0), "max_ms": times.at(1.0),
            })
        };
        json::print(&json!({
            "on_demand": times(&self.on_demand),
            "pooled": times(&self.pooled),
            "new_interpreter": times(&self.cold),
            "bare_fork": times(&self.fork),
            "idle_session_bytes": self.memory,
        }))
    }
}

/// Measured times in milliseconds, sorted; at least one.
struct Times(Vec<f64>);

impl Times {
    fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    /// The percentile at this share, by nearest rank.
    fn at(&self, share: f64) -> f64 {
        let rank = ((self.0.len() as f64 * share).ceil() as usize).max(1);
        self.0.get(rank - 1).copied().unwrap_or(f64::NAN)
    }
}

/// Times from the request to the end of the first program, one sandbox after another. A pool has time to refill in between.
async fn starts(backend: &dyn Backend, pool: usize, limits: &Limits, count: u32) -> anyhow::Result<Times> {
    let mut times = Vec::new();
    for _ in 0..count {
        wait_for_pool(backend, pool).await?;
        let start = Instant::now();
        let sandbox = create(backend, limits).await?;
        let printed = execute(&*sandbox, PROGRAM).await?;
        times.push(start.elapsed().as_secs_f64() * 1000.0);
        if printed.trim() != "2" {
            bail!("{PROGRAM} printed {printed:?}");
        }
        sandbox.close().await?;
    }
    Ok(Times::new(times))
}

/// Returns when the pool is full; a refill would be measured too.
async fn wait_for_pool(backend: &dyn Backend, pool: usize) -> anyhow::Result<()> {
    let full = async {
        while backend.health().pooled < pool {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(POOL_PATIENCE, full).await.context("the pool does not fill")
}

/// Memory of an idle session that has run something.
async fn idle_memory(backend: &dyn Backend, limits: &Limits) -> anyhow::Result<u64> {
    let sandbox = create(backend, limits).await?;
    execute(&*sandbox, PROGRAM).await?;
    let memory = sandbox.usage().await.memory;
    sandbox.close().await?;
    Ok(memory)
}

/// New interpreters, and bare forks.
async fn peers(backend: &dyn Backend, limits: &Limits) -> anyhow::Result<[Times; 2]> {
    let sandbox = create(backend, limits).await?;
    execute(&*sandbox, FORK).await?;
    let printed = execute(&*sandbox, PEERS).await?;
    sandbox.close().await?;
    let of = |name: &str| {
        let times = printed.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Times::new(times.collect())
    };
    Ok([of("imports"), of("fork")])
}

async fn create(backend: &dyn Backend, limits: &Limits) -> anyhow::Result<Arc<dyn Sandbox>> {
    let spec = SandboxSpec::new(limits.clone());
    backend.create(SandboxId::unique(), spec).await.context("cannot make a sandbox")
}

/// Runs a program that must succeed and returns its output.
async fn execute(sandbox: &dyn Sandbox, code: &str) -> anyhow::Result<String> {
    let mut execution = sandbox.execute(code).await.context("cannot start the program")?;
    let mut printed = String::new();
    while let Some(event) = execution.next().await {
        match event {
            ExecutionEvent::Stdout(text) => printed.push_str(&text),
            ExecutionEvent::Finished(finished) if finished.outcome == Outcome::Completed => return Ok(printed),
            ExecutionEvent::Finished(finished) => {
                bail!("the program did not complete: {}", aludel_agent::describe_outcome(&finished))
            }
            ExecutionEvent::Stderr(_)
            | ExecutionEvent::Display(_)
            | ExecutionEvent::Result(_)
            | ExecutionEvent::Error(_)
            | ExecutionEvent::Calls(_) => {}
        }
    }
    bail!("the program's end is not known")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks() {
        let times = Times::new((1..=10).rev().map(f64::from).collect());
        assert_eq!([0.0, 0.5, 0.9, 1.0].map(|share| times.at(share)), [1.0, 5.0, 9.0, 10.0]);
        assert_eq!(Times::new(vec![7.0]).at(0.9), 7.0);
    }
}
