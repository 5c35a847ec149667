//! The cost of programs in responses: the real server and store, the local sandbox, and a model in the same process that answers at once.
//!
//! `cargo bench -p aludel-server --bench round [-- extra | many] [COUNT]`

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aludel_agent::Item;
use aludel_agent::upstream::{Capabilities, Delta, FinishReason, Request, Upstream, UpstreamError};
use aludel_engine::{ApprovalPolicy, Engine, Model, Settings};
use aludel_sandbox::{
    Backend, Event, Limits, Local, LocalConfig, Require, Sandbox, SandboxId, SandboxSpec, Start, template,
};
use aludel_server::{App, serve};
use aludel_store::Store;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Programs of one response, beside a response with one.
const EXTRA: usize = 10;
/// Clients of `many`.
const CLIENTS: usize = 16;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let count = arguments.iter().find_map(|argument| argument.parse().ok());
    let wants = |name: &str| arguments.iter().all(|argument| argument.parse::<usize>().is_ok() || argument == name);
    let stack = Stack::start().await;
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
        let plain = stack.respond(&tool, 0, "0").await;
        let first = stack.respond(&tool, 1, "1").await;
        let many = stack.respond(&tool, 1 + EXTRA, "2").await;
        let writing = stack.respond(&tool, 1 + EXTRA, "write").await;
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
    stack.respond(&tool, 1, "warm").await;
    for (name, programs) in [("whole responses without a program", 0), ("whole responses with a program", 1)] {
        let each = count.div_ceil(CLIENTS);
        let start = Instant::now();
        let clients = (0..CLIENTS).map(|_| async {
            let mut took = Vec::new();
            for _ in 0..each {
                took.push(stack.respond(&tool, programs, "many").await);
            }
            took
        });
        let mut took = futures_util::future::join_all(clients).await.concat();
        let seconds = start.elapsed().as_secs_f64();
        report(name, &mut took);
        println!("{name:<35}{:>9.1} /s, {CLIENTS} clients", took.len() as f64 / seconds);
    }
}

/// A server with everything below it.
struct Stack {
    local: Local,
    client: reqwest::Client,
    url: String,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    _data: tempfile::TempDir,
}

impl Stack {
    async fn start() -> Self {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let templates: PathBuf = target.join("aludel-test");
        let template = template::ensure(&templates, false, &mut |_| ()).unwrap();
        // Beside the build, on a disk: what it costs to store is what is measured.
        let data = tempfile::tempdir_in(&target).unwrap();
        let limits = Limits::default();
        let config = LocalConfig {
            data: data.path().to_owned(),
            template,
            limits: limits.clone(),
            pool: 4,
            require: Require::Default,
            start: Start::Fork,
        };
        let local = Local::start(config).await.unwrap();
        let store = Store::open(&data.path().join("state")).await.unwrap();
        let settings = Settings { limits, ..Settings::default() };
        let model = Model::new("m", "a bench", Arc::new(Scripted));
        let backend = Arc::new(local.clone());
        let engine = Engine::new(store, backend, [model], ApprovalPolicy::default(), Vec::new(), settings);
        let app = App::new(Arc::new(engine), aludel_server::Settings::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let stopped = async {
                let _dropped = stopped.await;
            };
            serve(app, listener, stopped).await.unwrap();
        });
        // A second installation fails, and the first one serves.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { local, client, url, stop, running, _data: data }
    }

    async fn stop(self) {
        let Self { local, stop, running, .. } = self;
        drop(stop);
        running.await.unwrap();
        local.shutdown().await;
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.client.post(format!("{}{path}", self.url)).json(body).send().await.unwrap();
        let (status, answer) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{status}: {answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// Asks for a response with so many programs, and returns the time that it took.
    async fn respond(&self, tool: &Value, programs: usize, kind: &str) -> Duration {
        let body = json!({ "model": "m", "input": format!("{programs} {kind}"), "tools": [tool] });
        let start = Instant::now();
        let answer = self.post("/v1/responses", &body).await;
        let took = start.elapsed();
        let calls = answer["output"].as_array().unwrap().iter().filter(|item| item["type"] == "code_interpreter_call");
        assert_eq!((calls.count(), &answer["status"]), (programs, &json!("completed")), "{answer}");
        took
    }
}

/// A model that calls for as many programs as the question says, one after the other, and answers at once.
struct Scripted;

impl Upstream for Scripted {
    fn name(&self) -> &str {
        "m"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { function_calling: true, vision: false }
    }

    fn call(&self, request: Request) -> BoxStream<'static, Result<Delta, UpstreamError>> {
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
        if let Event::Finished(finished) = event {
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
