//! The start of sandboxes and their cells, beside a bare fork of a process as large as the zygote which runs the same.
//!
//! `cargo bench -p aludel-sandbox --bench start [-- COUNT]` prints every row with its ratio to the bare fork. With `-- leftovers COUNT` it
//! makes that many sandboxes on all processors instead, and prints what the host holds meanwhile; with `-- rate COUNT`, it makes that many
//! at a time for five seconds, and prints their rate and the processor time that each took.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use aludel_sandbox::{
    Backend, ExecutionEvent, KernelStart, Limits, Local, LocalConfig, Require, Sandbox, SandboxId, SandboxSpec,
    template,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Measurements of each row before the next row has its turn: what else the machine does then meets all of them.
const BLOCK: usize = 20;
/// Sandboxes in the pool.
const POOL: usize = 4;
/// Time between two claims from the pool, and between two cells that do not follow at once.
const PAUSE: Duration = Duration::from_millis(20);
/// Time that what was left over may take to be gone.
const SETTLING: Duration = Duration::from_millis(300);

/// The floor, measured inside a sandbox by a kernel that has just started: up to the output of the fork, and many of them one after
/// another.
const FORK: &str = "
import gc, os, time
def fork():
    read, write = os.pipe()
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        get_ipython().run_cell('print(1+1)', store_history=True)
        os._exit(0)
    assert os.read(read, 8) == b'2\\n'
    took = time.perf_counter() - start
    os.waitpid(pid, 0)
    os.close(read), os.close(write)
    return took
gc.freeze()
";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let count = arguments.iter().filter_map(|argument| argument.parse().ok()).next().unwrap_or(100);
    if arguments.iter().any(|argument| argument == "leftovers") {
        return leftovers(count).await;
    }
    if arguments.iter().any(|argument| argument == "rate") {
        return at_a_time(count).await;
    }
    let start = Instant::now();
    let on_demand = backend(0).await?;
    println!("zygote ready after {:.0} ms", millis(start.elapsed()));
    let pool = backend(POOL).await?;
    let peer = sandbox(&on_demand).await?;
    output(&peer, FORK).await?;
    let warm = sandbox(&on_demand).await?;
    let mut rows = Rows::default();
    // The first block of each warms caches.
    for block in 0..=count.div_ceil(BLOCK) {
        if block == 1 {
            rows = Rows::default();
        }
        rows.measure(&on_demand, &pool, &peer, &warm).await?;
    }
    rows.report();
    let seconds = Duration::from_secs(2);
    let (mut ours, mut forks) = (0.0, 0.0);
    for _ in 0..3 {
        forks += fork_rate(&on_demand, seconds).await? / 3.0;
        ours += rate(&on_demand, processors()?, seconds).await? / 3.0;
    }
    println!(
        "create, run, destroy on all processors: {ours:.0} a second, {:.0} % of the bare fork's {forks:.0}",
        100.0 * ours / forks
    );
    on_demand.shutdown().await;
    pool.shutdown().await;
    Ok(())
}

/// Times by row.
#[derive(Default)]
struct Rows {
    fork: Vec<Duration>,
    create: Vec<Duration>,
    first: Vec<Duration>,
    close: Vec<Duration>,
    pooled: Vec<Duration>,
    later: Vec<Duration>,
    at_once: Vec<Duration>,
}

impl Rows {
    /// Measures a block of each row.
    async fn measure(
        &mut self,
        on_demand: &Local,
        pool: &Local,
        peer: &Arc<dyn Sandbox>,
        warm: &Arc<dyn Sandbox>,
    ) -> Result<(), Failure> {
        for _ in 0..BLOCK {
            let took = output(peer, "print(fork())").await?;
            self.fork.push(Duration::from_secs_f64(took.trim().parse()?));
        }
        tokio::time::sleep(SETTLING).await;
        for _ in 0..BLOCK {
            let start = Instant::now();
            let made = sandbox(on_demand).await?;
            self.create.push(start.elapsed());
            run(&made, "print(1+1)").await?;
            self.first.push(start.elapsed());
            tokio::time::sleep(PAUSE).await;
            let start = Instant::now();
            made.close().await?;
            self.close.push(start.elapsed());
        }
        while pool.health().pooled < POOL {
            tokio::time::sleep(PAUSE).await;
        }
        tokio::time::sleep(SETTLING).await;
        let mut next = tokio::time::interval(PAUSE);
        for _ in 0..BLOCK {
            next.tick().await;
            let start = Instant::now();
            let made = sandbox(pool).await?;
            run(&made, "print(1+1)").await?;
            self.pooled.push(start.elapsed());
            made.close().await?;
        }
        tokio::time::sleep(SETTLING).await;
        for _ in 0..BLOCK {
            tokio::time::sleep(PAUSE).await;
            let start = Instant::now();
            run(warm, "print(1+1)").await?;
            self.later.push(start.elapsed());
        }
        for _ in 0..BLOCK {
            let start = Instant::now();
            run(warm, "print(1+1)").await?;
            self.at_once.push(start.elapsed());
        }
        Ok(())
    }

    fn report(mut self) {
        self.fork.sort();
        let floor = at(&self.fork, 0.5);
        println!("{:<40}{:>8}{:>8}{:>8}{:>8}   p50, p90, p99 to the bare fork's p50", "ms", "p50", "p90", "p99", "min");
        for (name, mut times) in [
            ("a bare fork that runs it", self.fork),
            ("create -> first result", self.first),
            ("  of it, create", self.create),
            ("close", self.close),
            ("from the pool, claims 20 ms apart", self.pooled),
            ("the next cell, 20 ms after the last", self.later),
            ("the next cell, at once", self.at_once),
        ] {
            times.sort();
            let [p50, p90, p99, min] = [0.5, 0.9, 0.99, 0.0].map(|share| at(&times, share));
            let [r50, r90, r99] = [p50, p90, p99].map(|time| time / floor);
            println!("{name:<40}{p50:>8.2}{p90:>8.2}{p99:>8.2}{min:>8.2}   {r50:>8.2} x {r90:>8.2} x {r99:>8.2} x");
        }
    }
}

/// Sandboxes made, used and destroyed in a second, some at a time.
async fn rate(local: &Local, at_a_time: usize, time: Duration) -> Result<f64, Failure> {
    let start = Instant::now();
    let worker = || async {
        let mut count = 0;
        while start.elapsed() < time {
            let made = sandbox(local).await?;
            run(&made, "print(1+1)").await?;
            made.close().await?;
            count += 1;
        }
        Ok::<_, Failure>(count)
    };
    let counts: usize = futures_util::future::try_join_all((0..at_a_time).map(|_| worker())).await?.iter().sum();
    Ok(counts as f64 / start.elapsed().as_secs_f64())
}

/// Makes, uses and destroys this many sandboxes at a time.
async fn at_a_time(count: usize) -> Result<(), Failure> {
    let local = backend(0).await?;
    rate(&local, count, Duration::from_secs(1)).await?;
    let (before, start) = (Busy::now()?, Instant::now());
    let rate = rate(&local, count, Duration::from_secs(5)).await?;
    let (after, seconds) = (Busy::now()?, start.elapsed().as_secs_f64());
    println!(
        "{count} at a time: {rate:.0} a second, {:.1} ms of a processor each, the processors busy {:.0} % of the time",
        (after.busy - before.busy) * 1000.0 / (rate * seconds),
        100.0 * (after.busy - before.busy) / (after.all - before.all)
    );
    local.shutdown().await;
    Ok(())
}

/// Processor time of the whole host, seconds.
struct Busy {
    busy: f64,
    all: f64,
}

impl Busy {
    fn now() -> Result<Self, Failure> {
        let text = std::fs::read_to_string("/proc/stat")?;
        let ticks: Vec<f64> = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .take(8)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let (all, idle) = (ticks.iter().sum::<f64>(), ticks.iter().skip(3).take(2).sum::<f64>());
        Ok(Self { busy: (all - idle) / 100.0, all: all / 100.0 })
    }
}

/// Bare forks made, used and ended in a second by as many kernels as there are processors.
async fn fork_rate(local: &Local, time: Duration) -> Result<f64, Failure> {
    let worker = || async {
        let peer = sandbox(local).await?;
        output(&peer, FORK).await?;
        let end = time.as_secs_f64();
        let code = format!(
            "count, start = 0, time.time()\nwhile time.time() < start + {end}: fork(); count += 1\nprint(count)"
        );
        let count: usize = output(&peer, &code).await?.trim().parse()?;
        peer.close().await?;
        Ok::<_, Failure>(count)
    };
    Ok(on_all_processors(worker).await? as f64 / time.as_secs_f64())
}

async fn on_all_processors<F: Future<Output = Result<usize, Failure>>>(work: impl Fn() -> F) -> Result<usize, Failure> {
    let counts = futures_util::future::try_join_all((0..processors()?).map(|_| work())).await?;
    Ok(counts.iter().sum())
}

fn processors() -> Result<usize, Failure> {
    Ok(std::thread::available_parallelism()?.get())
}

/// Makes many sandboxes on all processors, and prints what the host and this process hold meanwhile.
async fn leftovers(count: usize) -> Result<(), Failure> {
    let local = backend(0).await?;
    let made = AtomicUsize::new(0);
    println!(
        "{:>9}{:>10}{:>14}{:>13}{:>8}{:>8}{:>9}{:>10}",
        "made", "a second", "available MB", "resident MB", "files", "mounts", "groups", "processes"
    );
    for part in 0..=10 {
        let start = Instant::now();
        let until = count * part / 10;
        let worker = || async {
            while made.fetch_add(1, Ordering::Relaxed) < until {
                let sandbox = sandbox(&local).await?;
                run(&sandbox, "print(1+1)").await?;
                sandbox.close().await?;
            }
            made.fetch_sub(1, Ordering::Relaxed);
            Ok(0)
        };
        on_all_processors(worker).await?;
        let rate = (count / 10) as f64 / start.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLING).await;
        let Held { available, resident, files, mounts, groups, processes } = Held::now()?;
        println!("{until:>9}{rate:>10.0}{available:>14}{resident:>13}{files:>8}{mounts:>8}{groups:>9}{processes:>10}");
    }
    local.shutdown().await;
    Ok(())
}

/// Figures of the host and of this process, memory in megabytes.
struct Held {
    available: u64,
    resident: u64,
    files: usize,
    mounts: usize,
    groups: u64,
    processes: usize,
}

impl Held {
    fn now() -> Result<Self, Failure> {
        let read = |path: &str| std::fs::read_to_string(path);
        let field = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) >> 10
        };
        let groups = read("/proc/cgroups")?;
        let numbers = groups.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
        let is_number = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().parse::<u32>().is_ok();
        Ok(Self {
            available: field(&read("/proc/meminfo")?, "MemAvailable:"),
            resident: field(&read("/proc/self/status")?, "VmRSS:"),
            files: std::fs::read_dir("/proc/self/fd")?.count(),
            mounts: read("/proc/self/mountinfo")?.lines().count(),
            groups: numbers.sum(),
            processes: std::fs::read_dir("/proc")?.flatten().filter(is_number).count(),
        })
    }
}

async fn backend(pool: usize) -> Result<Local, Failure> {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test");
    let template = template::ensure(&data, false, &mut |_| ())?;
    let (limits, require) = (Limits::default(), Require::Default);
    Ok(Local::start(LocalConfig { data, template, limits, pool, require, start: KernelStart::Fork }).await?)
}

async fn sandbox(local: &Local) -> Result<Arc<dyn Sandbox>, Failure> {
    Ok(local.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await?)
}

async fn run(sandbox: &Arc<dyn Sandbox>, code: &str) -> Result<(), Failure> {
    match output(sandbox, code).await?.as_str() {
        "2\n" => Ok(()),
        other => Err(format!("{code} printed {other:?}").into()),
    }
}

async fn output(sandbox: &Arc<dyn Sandbox>, code: &str) -> Result<String, Failure> {
    let mut execution = sandbox.execute(code).await?;
    let mut text = String::new();
    while let Some(event) = execution.next().await {
        if let ExecutionEvent::Stdout(part) = event {
            text.push_str(&part);
        }
    }
    Ok(text)
}

/// The time that this share of all does not exceed, milliseconds.
fn at(sorted: &[Duration], share: f64) -> f64 {
    let rank = ((sorted.len() as f64 * share).ceil() as usize).max(1);
    sorted.get(rank - 1).copied().map_or(f64::NAN, millis)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
