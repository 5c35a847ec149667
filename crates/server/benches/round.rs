//! The cost of programs in responses: the real server and store, the local sandbox, and a model in the same process that answers at once.
//!
//! `cargo bench -p aludel-server --bench round [-- extra | many] [COUNT]`

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark may panic, and its tasks end with it")]

#[path = "stack/mod.rs"]
mod stack;

use std::time::{Duration, Instant};

use aludel_agent::Item;
use aludel_agent::upstream::{Delta, FinishReason, ModelCapabilities, ModelRequest, Upstream, UpstreamError};
use aludel_sandbox::{Backend, ExecutionEvent, Limits, Sandbox, SandboxId, SandboxSpec};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use serde_json::{Value, json};

use self::stack::Stack;

/// Programs of one response, beside a response with one.
const EXTRA: usize = 10;
/// Clients of `many`.
const CLIENTS: usize = 16;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let count = arguments.iter().find_map(|argument| argument.parse().ok());
    let wants = |name: &str| arguments.iter().all(|argument| argument.parse::<usize>().is_ok() || argument == name);
    let stack = Stack::start(Scripted).await;
    if wants("extra") {
        extra(&stack, count.unwrap_or(50)).await;
    }
    if wants("many") {
        many(&stack, count.unwrap_or(400)).await;
    }
    stack.stop().await;
}

/// One more program in one response, beside the same program in the same sandbox without a server.
async fn extra(stack: &Stack, count: usize) {
    let container = stack.post("/v1/containers", &json!({ "name": "extra" })).await;
    let tool = json!({ "type": "code_interpreter", "container": container["id"] });
    let sandbox = stack.local.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await.unwrap();
    let (mut none, mut one, mut more, mut cells, mut wrote) = (vec![], vec![], vec![], vec![], vec![]);
    for number in 0..count + 1 {
        let start = Instant::now();
        for cell in 0..EXTRA {
            run(&*sandbox, &program(number, cell)).await;
        }
        let cell = start.elapsed() / EXTRA as u32;
        let plain = respond(stack, &tool, 0, "0").await;
        let first = respond(stack, &tool, 1, "1").await;
        let many = respond(stack, &tool, 1 + EXTRA, "2").await;
        let writing = respond(stack, &tool, 1 + EXTRA, "write").await;
        if number > 0 {
            none.push(plain);
            one.push(first);
            cells.push(cell);
            more.push(many.saturating_sub(first) / EXTRA as u32);
            wrote.push(writing.saturating_sub(first) / EXTRA as u32);
        }
    }
    report("a response without a program", &mut none);
    report("a response with a program", &mut one);
    let cell = report("a cell, without the server", &mut cells);
    let extra = report("one more program in a response", &mut more);
    let wrote = report("one more that writes a file", &mut wrote);
    println!("over the cell itself {:>28.2} ms, with a file {:.2} ms", extra - cell, wrote - cell);
}

/// Whole responses, each with one program in a container of its own.
async fn many(stack: &Stack, count: usize) {
    let tool = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
    respond(stack, &tool, 1, "warm").await;
    for (name, programs) in [("whole responses without a program", 0), ("whole responses with a program", 1)] {
        let each = count.div_ceil(CLIENTS);
        let start = Instant::now();
        let clients = (0..CLIENTS).map(|_| async {
            let mut took = Vec::new();
            for _ in 0..each {
                took.push(respond(stack, &tool, programs, "many").await);
            }
            took
        });
        let mut took = futures_util::future::join_all(clients).await.concat();
        let seconds = start.elapsed().as_secs_f64();
        report(name, &mut took);
        println!("{name:<35}{:>9.1} /s, {CLIENTS} clients", took.len() as f64 / seconds);
    }
}

/// Asks for a response with so many programs, and returns the time that it took.
async fn respond(stack: &Stack, tool: &Value, programs: usize, kind: &str) -> Duration {
    let body = json!({ "model": "m", "input": format!("{programs} {kind}"), "tools": [tool] });
    let start = Instant::now();
    let answer = stack.post("/v1/responses", &body).await;
    let took = start.elapsed();
    let calls = answer["output"].as_array().unwrap().iter().filter(|item| item["type"] == "code_interpreter_call");
    assert_eq!((calls.count(), &answer["status"]), (programs, &json!("completed")), "{answer}");
    took
}

/// A model that calls for as many programs as the question says, one after the other, and answers at once.
struct Scripted;

impl Upstream for Scripted {
    fn name(&self) -> &str {
        "m"
    }

    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities { function_calling: true, vision: false }
    }

    fn call(&self, request: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        let question = request.items.iter().rev().find_map(|item| match item {
            Item::User(parts) => Some(aludel_agent::text_of(parts)),
            _ => None,
        });
        let question = question.unwrap_or_default();
        let (programs, kind) = question.trim().split_once(' ').unwrap();
        let done = request.items.iter().filter(|item| matches!(item, Item::Output(_))).count();
        let deltas = if done < programs.parse().unwrap() {
            let code = match kind {
                "write" => format!("open('made-{done}.txt', 'w').write('{done}' * 1000)"),
                _ => program(0, done),
            };
            vec![
                Delta::CallStarted { index: 0, id: format!("call_{done}"), name: "python".to_owned() },
                Delta::CallArguments { index: 0, fragment: json!({ "code": code }).to_string() },
                Delta::Finished(FinishReason::Stop),
            ]
        } else {
            vec![Delta::Text("Done.".to_owned()), Delta::Finished(FinishReason::Stop)]
        };
        stream::iter(deltas.into_iter().map(Ok)).boxed()
    }
}

/// A program that nothing has run before, so that nothing can be left out.
fn program(number: usize, cell: usize) -> String {
    format!("print({number} + {cell})")
}

async fn run(sandbox: &dyn Sandbox, code: &str) {
    let mut execution = sandbox.execute(code).await.unwrap();
    while let Some(event) = execution.next().await {
        if let ExecutionEvent::Finished(finished) = event {
            assert_eq!(finished.outcome, aludel_sandbox::Outcome::Completed);
        }
    }
}

/// Prints a row, and returns its median in milliseconds.
fn report(name: &str, times: &mut [Duration]) -> f64 {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
    let [median, p90, p99, min] = [0.5, 0.9, 0.99, 0.0].map(at);
    println!("{name:<35}{median:>9.2} ms p50 {p90:>9.2} p90 {p99:>9.2} p99 {min:>9.2} min");
    median
}
