//! Bytes through the whole server: output of programs and commands to its clients, and an upload into a sandbox.
//!
//! `cargo bench -p aludel-server --bench bytes [-- COUNT]`, the median of five if nothing is said. The upload is beside `cp` of the same
//! file into memory, where sandboxes keep their files.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a benchmark may panic, and its tasks end with it")]

#[path = "stack/mod.rs"]
mod stack;

use std::io::Write;
use std::time::{Duration, Instant};

use aludel_agent::upstream::{Delta, ModelCapabilities, ModelRequest, Upstream, UpstreamError};
use aludel_sandbox::{Backend, ExecutionEvent, Limits, SandboxId, SandboxSpec};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use serde_json::{Value, json};

use self::stack::Stack;

/// Megabytes that a program prints: all that is kept of its output.
const PRINTED: usize = 6;
/// Megabytes that a command prints, of which none are left out.
const COMMANDED: usize = 200;
/// Megabytes of the upload.
const UPLOADED: usize = 500;
/// Memory of the host, as a directory.
const MEMORY: &str = "/dev/shm";

#[tokio::main]
async fn main() {
    let count = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(5);
    let stack = Stack::start(Silent).await;
    into_buffer(&stack, count).await;
    let made = stack.post("/v2/sandboxes", &json!({ "templateID": "base" })).await;
    let client = Client { stack: &stack, sandbox: &made };
    client.program(count).await;
    client.command(count).await;
    upload(&stack, count).await;
    stack.stop().await;
}

/// A program's output into the bounded buffer of its execution, without a server.
async fn into_buffer(stack: &Stack, count: usize) {
    let sandbox = stack.local.create(SandboxId::unique(), SandboxSpec::new(Limits::default())).await.unwrap();
    let mut took = Vec::new();
    for _ in 0..=count {
        let (start, mut printed) = (Instant::now(), 0);
        let mut execution = sandbox.execute(&print_much()).await.unwrap();
        while let Some(event) = execution.next().await {
            if let ExecutionEvent::Stdout(text) = event {
                printed += text.len();
            }
        }
        assert_eq!(printed, PRINTED << 20);
        took.push(start.elapsed());
    }
    report("a program's output into the buffer", PRINTED, took);
}

/// A client of E2B's API.
struct Client<'a> {
    stack: &'a Stack,
    sandbox: &'a Value,
}

impl Client<'_> {
    fn request(&self, port: u16, path: &str) -> reqwest::RequestBuilder {
        let field = |name: &str| self.sandbox[name].as_str().unwrap();
        let request = self.stack.client.post(format!("{}{path}", self.stack.url));
        let request = request.header("E2b-Sandbox-Id", field("sandboxID")).header("E2b-Sandbox-Port", port);
        request.header("X-Access-Token", field("envdAccessToken"))
    }

    /// A program's output to a client.
    async fn program(&self, count: usize) {
        let mut took = Vec::new();
        for _ in 0..=count {
            let start = Instant::now();
            let body = json!({ "code": print_much() });
            assert!(read(self.request(49999, "/execute").json(&body)).await > PRINTED << 20);
            took.push(start.elapsed());
        }
        report("a program's output to a client", PRINTED, took);
    }

    /// A command's output to a client, in base64 as the protocol has it.
    async fn command(&self, count: usize) {
        let bytes = COMMANDED << 20;
        let script = format!("head -c {bytes} /dev/zero");
        let message = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", script] } }).to_string();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let frame = [&[0][..], &length, message.as_bytes()].concat();
        let mut took = Vec::new();
        for _ in 0..=count {
            let start = Instant::now();
            let request = self.request(49983, "/process.Process/Start").body(frame.clone());
            assert!(read(request.header("content-type", "application/connect+json")).await > bytes);
            took.push(start.elapsed());
        }
        report("a command's output to a client", COMMANDED, took);
    }
}

/// A file into a live container, beside `cp`.
async fn upload(stack: &Stack, count: usize) {
    let part = vec![b'7'; 1 << 20];
    let mut source = tempfile::NamedTempFile::new_in(MEMORY).unwrap();
    (0..UPLOADED).for_each(|_| source.write_all(&part).unwrap());
    let (mut copies, mut uploads) = (Vec::new(), Vec::new());
    for _ in 0..=count {
        let copy = tempfile::NamedTempFile::new_in(MEMORY).unwrap();
        let start = Instant::now();
        let status = std::process::Command::new("cp").args([source.path(), copy.path()]).status().unwrap();
        assert!(status.success());
        copies.push(start.elapsed());
        drop(copy);
        let container = stack.post("/v1/containers", &json!({ "name": "uploads" })).await;
        let url = format!("{}/v1/containers/{}", stack.url, container["id"].as_str().unwrap());
        let pieces = (0..UPLOADED).map(|_| Ok::<_, std::io::Error>(vec![b'7'; 1 << 20]));
        let file = reqwest::Body::wrap_stream(stream::iter(pieces));
        let form = reqwest::multipart::Form::new()
            .part("file", reqwest::multipart::Part::stream_with_length(file, (UPLOADED << 20) as u64).file_name("big"));
        let start = Instant::now();
        let answer = stack.client.post(format!("{url}/files")).multipart(form).send().await.unwrap();
        assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        uploads.push(start.elapsed());
        stack.client.delete(url).send().await.unwrap();
    }
    report("cp into memory", UPLOADED, copies);
    report("an upload into a container", UPLOADED, uploads);
}

async fn read(request: reqwest::RequestBuilder) -> usize {
    let answer = request.send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
    let (mut count, mut body) = (0, answer.bytes_stream());
    while let Some(bytes) = body.next().await {
        count += bytes.unwrap().len();
    }
    count
}

fn print_much() -> String {
    format!("import sys\nfor _ in range({}): sys.stdout.write('x' * 65535 + '\\n')", PRINTED * 16)
}

/// A model that nobody asks.
struct Silent;

impl Upstream for Silent {
    fn name(&self) -> &str {
        "m"
    }

    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities { function_calling: true, vision: false }
    }

    fn call(&self, _: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        stream::empty().boxed()
    }
}

/// Prints the median rate, without the first, which warms caches.
fn report(name: &str, megabytes: usize, mut took: Vec<Duration>) {
    took.remove(0);
    took.sort();
    let rate = |time: &Duration| megabytes as f64 / time.as_secs_f64();
    println!(
        "{name:<36}{:>8.0} MB/s median {:>8.0} slowest {:>8.0} fastest",
        rate(&took[took.len() / 2]),
        rate(took.last().unwrap()),
        rate(&took[0])
    );
}
