//! Many live sandboxes at once: their memory, the start of one more among them, a cell in each, and their end.
//!
//! `cargo bench -p aludel-sandbox --bench live [-- COUNT]`, 1,000 if nothing is said. Each has imported pandas and run a cell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use aludel_sandbox::{
    Backend, ExecutionEvent, KernelStart, Limits, Local, LocalConfig, Require, Sandbox, SandboxId, SandboxSpec,
    template,
};
use futures_util::StreamExt;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Sandboxes that are made, and ended, at a time.
const AT_A_TIME: usize = 8;
/// Live sandboxes when the first starts are measured.
const FEW: usize = 10;
/// Starts measured among few and among many.
const STARTS: usize = 50;
/// Time for what the kernels do by themselves after a cell, such as their checkpoints.
const SETTLING: Duration = Duration::from_secs(5);
/// The cell of each.
const CELL: &str = "import pandas as pd\nframe = pd.DataFrame({'a': range(100)})\nprint(frame.a.sum())";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let count = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(1000);
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test");
    let template = template::ensure(&data, false, &mut |_| ())?;
    let (limits, require) = (Limits::default(), Require::Default);
    let local =
        Local::start(LocalConfig { data, template, limits, pool: 0, require, start: KernelStart::Fork }).await?;
    drop(make(&local).await?);
    tokio::time::sleep(SETTLING).await;

    let before = available()?;
    let mut live = many(&local, FEW).await?;
    report(&format!("create -> first result, {FEW} live"), starts(&local).await?);
    let start = Instant::now();
    live.extend(many(&local, count - FEW).await?);
    let seconds = start.elapsed().as_secs_f64();
    println!("{count} made, {:.0} a second, {AT_A_TIME} at a time", (count - FEW) as f64 / seconds);
    tokio::time::sleep(SETTLING).await;
    let taken = before.saturating_sub(available()?);
    println!("memory of all: {taken} MB, {:.2} MB each", taken as f64 / count as f64);
    report(&format!("create -> first result, {count} live"), starts(&local).await?);
    let mut cells = Vec::new();
    for sandbox in &live {
        let start = Instant::now();
        run(sandbox, "print(1+1)").await?;
        cells.push(start.elapsed());
    }
    report("print(1+1) in each, one after the other", cells);
    tokio::time::sleep(SETTLING).await;
    let taken = before.saturating_sub(available()?);
    println!("memory of all after a second cell: {taken} MB, {:.2} MB each", taken as f64 / count as f64);
    let start = Instant::now();
    futures_util::future::try_join_all(live.iter().map(|sandbox| sandbox.close())).await?;
    println!("all destroyed in {:.2} s", start.elapsed().as_secs_f64());
    drop(live);
    tokio::time::sleep(SETTLING).await;
    println!("memory that did not come back: {} MB", before.saturating_sub(available()?));
    local.shutdown().await;
    Ok(())
}

async fn many(local: &Local, count: usize) -> Result<Vec<Arc<dyn Sandbox>>, Failure> {
    let made = futures_util::stream::iter((0..count).map(|_| make(local))).buffer_unordered(AT_A_TIME);
    made.collect::<Vec<_>>().await.into_iter().collect()
}

async fn make(local: &Local) -> Result<Arc<dyn Sandbox>, Failure> {
    let made = local.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await?;
    run(&made, CELL).await?;
    Ok(made)
}

async fn starts(local: &Local) -> Result<Vec<Duration>, Failure> {
    let mut took = Vec::new();
    for _ in 0..STARTS {
        let start = Instant::now();
        let made = local.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await?;
        run(&made, "print(1+1)").await?;
        took.push(start.elapsed());
        made.close().await?;
    }
    Ok(took)
}

async fn run(sandbox: &Arc<dyn Sandbox>, code: &str) -> Result<(), Failure> {
    let mut execution = sandbox.execute(code).await?;
    while let Some(event) = execution.next().await {
        if let ExecutionEvent::Finished(finished) = event
            && finished.outcome != aludel_sandbox::Outcome::Completed
        {
            return Err(format!("{code}: {:?}", finished.outcome).into());
        }
    }
    Ok(())
}

/// Memory that the host could still give, in megabytes.
fn available() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or_default();
    Ok(line.split_whitespace().next().unwrap_or_default().parse::<u64>()? >> 10)
}

fn report(name: &str, mut took: Vec<Duration>) {
    took.sort();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    println!("{name:<42}{:>8.2} ms p50 {:>8.2} p90 {:>8.2} p99", at(0.5), at(0.9), at(0.99));
}
