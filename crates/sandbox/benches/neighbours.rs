//! Time of `1+1` in one sandbox while others do nothing, and while four of them misbehave.
//!
//! `cargo bench -p aludel-sandbox --bench neighbours [-- COUNT]`

use std::time::{Duration, Instant};

use std::sync::Arc;

use aludel_sandbox::{
    Backend, ExecutionEvent, KernelStart, Limits, Local, LocalConfig, Require, Sandbox, SandboxId, SandboxSpec,
    template,
};

const ABUSERS: [(&str, &str); 4] = [
    ("forks", "import os, time\nwhile True:\n    try: os.fork() or time.sleep(1)\n    except OSError: pass"),
    (
        "fills its disk",
        "n = 0\nwhile True:\n    try: open(f'f{n}', 'wb').write(bytes(1 << 20)); n += 1\n    except OSError: n = 0",
    ),
    (
        "fills its memory",
        "held = []\nwhile True:\n    try: held.append(bytearray(1 << 20))\n    except MemoryError: held.clear()",
    ),
    ("prints", "while True: print('x' * 10000)"),
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: usize = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(300);
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test");
    let template = template::ensure(&data, false, &mut |_| ())?;
    let limits = Limits { timeout: Duration::from_secs(600), ..Limits::default() };
    let config = LocalConfig {
        data,
        template,
        limits: limits.clone(),
        pool: 0,
        require: Require::Default,
        start: KernelStart::Fork,
    };
    let local = Local::start(config).await?;
    let spec = || SandboxSpec::new(limits.clone());
    let quiet = local.create(SandboxId::unique(), spec()).await?;
    run(&quiet).await;
    let idle = measure(&quiet, count).await;
    report("alone", &idle);
    let mut running = Vec::new();
    for (name, program) in ABUSERS {
        let sandbox = local.create(SandboxId::unique(), spec()).await?;
        let mut execution = sandbox.execute(program).await?;
        let reader = tokio::spawn(async move { while execution.next().await.is_some() {} });
        running.push((sandbox, reader));
        tokio::time::sleep(Duration::from_secs(1)).await;
        report(&format!("while one {name}"), &measure(&quiet, count / 3).await);
        if running.len() < ABUSERS.len() {
            // One after another, then all of them.
            let (sandbox, reader) = running.pop().ok_or("just pushed")?;
            reader.abort();
            sandbox.close().await.expect("the sandbox ends");
        }
    }
    for (_, program) in &ABUSERS[..3] {
        let sandbox = local.create(SandboxId::unique(), spec()).await?;
        let mut execution = sandbox.execute(program).await?;
        let reader = tokio::spawn(async move { while execution.next().await.is_some() {} });
        running.push((sandbox, reader));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let busy = measure(&quiet, count).await;
    report("while all four do", &busy);
    println!("ratio: {:.1} median, {:.1} p99", at(&busy, 0.5) / at(&idle, 0.5), at(&busy, 0.99) / at(&idle, 0.99));
    local.shutdown().await;
    Ok(())
}

async fn measure(sandbox: &Arc<dyn Sandbox>, count: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..count {
        // Long enough for the checkpoint, as between the programs of a model.
        tokio::time::sleep(Duration::from_millis(40)).await;
        let start = Instant::now();
        run(sandbox).await;
        times.push(start.elapsed());
    }
    times.sort();
    times
}

async fn run(sandbox: &Arc<dyn Sandbox>) {
    let mut execution = sandbox.execute("1+1").await.expect("an execution");
    let mut answered = false;
    while let Some(event) = execution.next().await {
        answered |= matches!(event, ExecutionEvent::Result(_));
    }
    assert!(answered);
}

fn at(times: &[Duration], share: f64) -> f64 {
    times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0
}

fn report(name: &str, times: &[Duration]) {
    println!("{name:<28}{:>8.2} ms median {:>8.2} ms p99", at(times, 0.5), at(times, 0.99));
}
