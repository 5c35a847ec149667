//! Create → first result, beside a fresh interpreter with the same imports and beside a bare fork of the zygote's size.
//!
//! `cargo bench -p aludel-sandbox --bench start [-- COUNT]`

use std::time::{Duration, Instant};

use std::sync::Arc;

use aludel_sandbox::{
    Backend, Event, Limits, Local, LocalConfig, Require, Sandbox, SandboxId, SandboxSpec, Start, template,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: usize = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(100);
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/aludel-test");
    let template = template::ensure(&data, false, &mut |_| ())?;
    let limits = Limits::default();
    let start = Instant::now();
    let config =
        LocalConfig { data, template, limits: limits.clone(), pool: 0, require: Require::Default, start: Start::Fork };
    let local = Local::start(config).await?;
    println!("zygote ready                  {:>9.1} ms", millis(start.elapsed()));
    let mut create = Vec::new();
    let mut result = Vec::new();
    let mut again = Vec::new();
    let mut later = Vec::new();
    let mut closed = Vec::new();
    let mut floor = Vec::new();
    let peer = local.create(SandboxId::unique(), SandboxSpec::new(limits.clone())).await?;
    output(&peer, FORK).await;
    for _ in 0..count {
        let took = output(&peer, "print(fork())").await;
        floor.push(Duration::from_secs_f64(took.trim().parse()?));
        let start = Instant::now();
        let sandbox = local.create(SandboxId::unique(), SandboxSpec::new(limits.clone())).await?;
        create.push(start.elapsed());
        run(&sandbox, "print(1+1)").await;
        result.push(start.elapsed());
        let start = Instant::now();
        run(&sandbox, "print(1+1)").await;
        again.push(start.elapsed());
        // As a model or a person does, who needs a moment for the next program.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let start = Instant::now();
        run(&sandbox, "print(1+1)").await;
        later.push(start.elapsed());
        let start = Instant::now();
        sandbox.close().await.expect("the sandbox ends");
        closed.push(start.elapsed());
    }
    report("a bare fork that runs it", floor);
    report("create", create);
    report("create -> first result", result);
    report("second result, at once", again);
    report("third result, 50 ms later", later);
    report("close", closed);
    local.shutdown().await;
    Ok(())
}

/// The floor: a bare fork of a process as large as the zygote, which runs the same, up to its output. Measured inside a
/// sandbox by a kernel that has just started.
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

async fn run(sandbox: &Arc<dyn Sandbox>, code: &str) {
    assert_eq!(output(sandbox, code).await, "2\n");
}

async fn output(sandbox: &Arc<dyn Sandbox>, code: &str) -> String {
    let mut execution = sandbox.execute(code).await.expect("an execution");
    let mut text = String::new();
    while let Some(event) = execution.next().await {
        if let Event::Stdout(part) = event {
            text.push_str(&part);
        }
    }
    text
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| millis(times[((times.len() - 1) as f64 * share) as usize]);
    let [median, p90, p99, min] = [0.5, 0.9, 0.99, 0.0].map(at);
    println!("{name:<30}{median:>9.2} ms median {p90:>9.2} ms p90 {p99:>9.2} ms p99 {min:>9.2} ms min");
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
