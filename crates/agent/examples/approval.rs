//! An agent with a code interpreter, and a rule that refuses some programs with a reason.
//!
//! `cargo run -p aludel-agent --example approval` asks the scripted demo model; with a URL and a model's name as arguments, that one.

use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::Capabilities;
use aludel_agent::upstream::demo::Demo;
use aludel_agent::upstream::http::{HttpOptions, HttpUpstream, Protocol};
use aludel_agent::{Agent, Approval, ApprovalRequest, BareSandbox, CodeInterpreter, Event};
use aludel_sandbox::{Backend, Limits, Local, LocalConfig, Require, SandboxId, SandboxSpec, Start, template};
use futures_util::StreamExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = std::env::temp_dir().join("aludel-example");
    let template = template::ensure(&data, false, &mut |progress| eprintln!("{progress:?}"))?;
    let limits = Limits::default();
    let backend = Local::start(LocalConfig {
        data: data.clone(),
        template,
        limits: limits.clone(),
        pool: 0,
        require: Require::Default,
        start: Start::Fork,
    })
    .await?;
    let disk = limits.disk;
    let sandbox = backend.create(SandboxId::unique(), SandboxSpec::new(limits)).await?;
    let csv =
        "date,session_id,product,stage,amount\n2026-01-05,S1,Tent,view,399.00\n13.02.2026,S1,Tent,purchase,399.00\n";
    sandbox.workspace().write("sales.csv", &mut csv.as_bytes(), disk)?;

    let mut arguments = std::env::args().skip(1);
    let builder = match (arguments.next(), arguments.next()) {
        (Some(url), Some(model)) => Agent::builder(HttpUpstream::new(HttpOptions {
            protocol: Protocol::ChatCompletions,
            url,
            model,
            key: None,
            capabilities: Capabilities { function_calling: true, vision: false },
            idle_timeout: Duration::from_secs(120),
            headers: Vec::new(),
            max_output_tokens: None,
            requests: None,
        })?),
        _ => Agent::builder(Demo::new(Duration::ZERO)),
    };
    let agent = builder
        .code_interpreter(CodeInterpreter::new(Arc::new(BareSandbox(sandbox.clone()))).approve(no_charts))
        .build();

    let mut turn = agent.run_streamed("Make a report on these sales: monthly dynamics and the funnel.");
    while let Some(event) = turn.next().await {
        match event {
            Event::Text(text) => print!("{text}"),
            Event::CodeFinished { code, .. } => println!("\n--- program of {} lines", code.lines().count()),
            Event::ApprovalDecided { denied: Some(reason), .. } => println!("--- refused: {reason}"),
            _ => {}
        }
    }
    println!("\n--- {:?}", turn.turn().map(|turn| turn.ending));

    // The same without the events.
    let turn = agent.run("Make a report on these sales.").await;
    println!("--- {} items, {} tokens", turn.items.len(), turn.usage.total());

    sandbox.close().await?;
    backend.shutdown().await;
    Ok(())
}

/// A rule of one's own: any function of the program will do, also one that asks a person.
async fn no_charts(request: ApprovalRequest) -> Approval {
    if request.code.contains("matplotlib") {
        Approval::Deny { reason: "no charts in this example".into() }
    } else {
        Approval::Allow
    }
}
