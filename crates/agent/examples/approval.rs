//! An agent with a code interpreter, a function of this program's own, and a rule that refuses some programs with a reason.
//!
//! `cargo run -p aludel-agent --example approval` asks the scripted demo model; with a URL and a model's name as arguments, that one.

use std::time::Duration;

use aludel_agent::upstream::demo::Demo;
use aludel_agent::upstream::http::{HttpOptions, HttpUpstream};
use aludel_agent::{Agent, ApprovalDecision, ApprovalRequest, CodeInterpreter, Event, Tool};
use aludel_sandbox::Interpreter;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::json;

/// The argument of the function that the model may call.
#[derive(Deserialize)]
struct Product {
    name: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let interpreter = Interpreter::new().await?;
    let csv =
        "date,session_id,product,stage,amount\n2026-01-05,S1,Tent,view,399.00\n13.02.2026,S1,Tent,purchase,399.00\n";
    interpreter.write("sales.csv", csv).await?;

    let mut arguments = std::env::args().skip(1);
    let builder = match (arguments.next(), arguments.next()) {
        (Some(url), Some(model)) => Agent::builder(HttpUpstream::new(HttpOptions::new(url, model))?),
        _ => Agent::builder(Demo::new(Duration::ZERO)),
    };
    let parameters = json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
    let stock = Tool::new("stock", "Pieces of a product in stock.", parameters, async |product: Product| match product
        .name
        .as_str()
    {
        "Tent" => Ok(12),
        name => Err(format!("there is no product {name}")),
    });
    let agent = builder.code_interpreter(CodeInterpreter::from(&interpreter).approve(no_charts)).tool(stock).build();

    let mut turn = agent.run_streamed("Make a report on these sales: monthly dynamics and the funnel.");
    while let Some(event) = turn.next().await {
        match event {
            Event::Text(text) | Event::Refusal(text) => print!("{text}"),
            Event::CodeWritten { code, .. } => println!("\n--- program of {} lines", code.lines().count()),
            Event::ApprovalDecided { denied: Some(reason), .. } => println!("--- refused: {reason}"),
            _ => {}
        }
    }
    println!("\n--- {:?}", turn.turn().map(|turn| turn.ending));

    // The same without the events.
    let turn = agent.run("Make a report on these sales.").await;
    println!("--- {} items, {} tokens", turn.items.len(), turn.usage.total());

    interpreter.close().await?;
    Ok(())
}

/// A rule of one's own: any function of the program will do, also one that asks a person.
async fn no_charts(request: ApprovalRequest) -> ApprovalDecision {
    if request.code.contains("matplotlib") {
        ApprovalDecision::Deny { reason: "no charts in this example".into() }
    } else {
        ApprovalDecision::Allow
    }
}
