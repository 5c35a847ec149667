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
    for _ in 0..count {
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
    report("create", create);
    report("create -> first result", result);
    report("second result, at once", again);
    report("third result, 50 ms later", later);
    report("close", closed);
    local.shutdown().await;
    Ok(())
}

async fn run(sandbox: &Arc<dyn Sandbox>, code: &str) {
    let mut execution = sandbox.execute(code).await.expect("an execution");
    let mut text = String::new();
    while let Some(event) = execution.next().await {
        if let Event::Stdout(part) = event {
            text.push_str(&part);
        }
    }
    assert_eq!(text, "2\n");
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| millis(times[((times.len() - 1) as f64 * share) as usize]);
    println!("{name:<30}{:>9.2} ms median {:>9.2} ms p90 {:>9.2} ms min", at(0.5), at(0.9), at(0.0));
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
