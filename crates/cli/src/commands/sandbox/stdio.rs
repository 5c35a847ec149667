//! `aludel sandbox stdio`: sandboxes for a program in any language, which starts this one and exchanges JSON lines with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_sandbox::process::{Command, ExitStatus, ProcessOutput};
use aludel_sandbox::{Backend, Error, Limits, Sandbox, SandboxId, SandboxSpec};
use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::sync::{Mutex, Semaphore};

use crate::context::CommandContext;
use crate::exit::Exit;
use crate::json;
use crate::sandboxes::RunningBackend;

/// The longest request, bytes: a large file as base64 fits.
const MAX_LINE: u64 = 256 << 20;
/// Concurrent requests; the next line is read when one of them is done.
const MAX_REQUESTS: usize = 64;
/// Default limit of a program's output, bytes of each stream.
const DEFAULT_OUTPUT_BYTES: usize = 10 << 20;
/// The most a request may ask for.
const MAX_OUTPUT_BYTES: usize = 256 << 20;
/// The time limit of a program whose request has none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The names of the requests.
const OPERATIONS: [&str; 4] = ["create", "execute", "run", "close"];

/// Section of `--help` on the lines.
pub(super) const HELP: &str = "\
Each line of stdin is a request with an `id` of yours and one of:
  create    {}                                   answers {\"sandbox\": number}
  execute   {sandbox, code}                      runs a cell; answers what `aludel run --json` tells, as a list
  run       {sandbox, arguments, input, environment, directory, timeout_ms, most}
                                                 runs a program; input and the answer's stdout and stderr are base64;
                                                 status, signal or timed_out tells how it ended, dropped counts bytes
                                                 beyond `most`
  close     {sandbox}
Each line of stdout is {\"id\", \"ok\"} or {\"id\", \"error\": {\"kind\", \"message\"}}; kind is request, sandbox or start (the
program could not be started). Requests are worked on side by side, so answers come in any order. The end of stdin ends
everything.";

/// A request.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    Create {},
    Execute { sandbox: u64, code: String },
    Run(RunRequest),
    Close { sandbox: u64 },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunRequest {
    sandbox: u64,
    arguments: Vec<String>,
    #[serde(default)]
    input: String,
    #[serde(default)]
    environment: HashMap<String, String>,
    #[serde(default)]
    directory: String,
    timeout_ms: Option<u64>,
    most: Option<usize>,
}

/// Reason for which a request was not carried out.
enum Refusal {
    /// The request makes no sense.
    Request(String),
    Sandbox(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Sandbox(error)
    }
}

impl Refusal {
    fn json(&self) -> Value {
        let (kind, message) = match self {
            Self::Request(message) => ("request", message.clone()),
            Self::Sandbox(error @ (Error::Start(_) | Error::NoProcess)) => ("start", error.to_string()),
            Self::Sandbox(error) => ("sandbox", error.to_string()),
        };
        json!({ "kind": kind, "message": message })
    }
}

struct StdioServer {
    backend: Arc<dyn Backend>,
    limits: Limits,
    sandboxes: Mutex<HashMap<u64, Arc<dyn Sandbox>>>,
    next: AtomicU64,
}

pub(super) async fn run(context: &CommandContext) -> anyhow::Result<Exit> {
    let engine = RunningBackend::start(context, 0).await?;
    let server = Arc::new(StdioServer {
        backend: Arc::clone(&engine.backend),
        limits: context.config.sandbox.limits(),
        sandboxes: Mutex::default(),
        next: AtomicU64::new(1),
    });
    let slots = Arc::new(Semaphore::new(MAX_REQUESTS));
    let mut stdin = BufReader::new(tokio::io::stdin());
    loop {
        let mut line = Vec::new();
        let read = (&mut stdin).take(MAX_LINE).read_until(b'\n', &mut line).await.context("cannot read stdin")?;
        if read == 0 {
            break;
        }
        if !line.ends_with(b"\n") && read as u64 == MAX_LINE {
            anyhow::bail!("a request is longer than {MAX_LINE} bytes");
        }
        let (server, slot) = (Arc::clone(&server), Arc::clone(&slots).acquire_owned().await);
        tokio::spawn(async move {
            let (id, request) = read_line(&line);
            let carried = match request {
                Ok(request) => server.carry_out(request).await,
                Err(refusal) => Err(refusal),
            };
            let answer = match carried {
                Ok(answer) => json!({ "id": id, "ok": answer }),
                Err(refusal) => json!({ "id": id, "error": refusal.json() }),
            };
            json::print(&answer).ignore("a reader that is gone closes stdin as well");
            drop(slot);
        });
    }
    server.sandboxes.lock().await.clear();
    engine.backend.shutdown().await;
    Ok(Exit::Success)
}

/// The id of a line, null if it has none, and its request.
fn read_line(line: &[u8]) -> (Value, Result<Request, Refusal>) {
    let mut fields: Map<String, Value> = match serde_json::from_slice(line) {
        Ok(fields) => fields,
        Err(error) => return (Value::Null, Err(Refusal::Request(format!("a line is an object of JSON: {error}")))),
    };
    let id = fields.remove("id");
    let request = match (&id, fields.keys().next()) {
        (None, _) => Err("it has no id".to_owned()),
        (Some(_), Some(operation)) if fields.len() == 1 && OPERATIONS.contains(&operation.as_str()) => {
            let operation = operation.clone();
            serde_json::from_value(Value::Object(fields)).map_err(|error| format!("{operation}: {error}"))
        }
        _ => Err(format!("besides its id, a request has one of {}", OPERATIONS.join(", "))),
    };
    (id.unwrap_or_default(), request.map_err(Refusal::Request))
}

impl StdioServer {
    async fn carry_out(&self, request: Request) -> Result<Value, Refusal> {
        match request {
            Request::Create {} => {
                let spec = SandboxSpec::new(self.limits.clone());
                let sandbox = self.backend.create(SandboxId::unique(), spec).await?;
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                self.sandboxes.lock().await.insert(number, sandbox);
                Ok(json!({ "sandbox": number }))
            }
            Request::Execute { sandbox, code } => {
                let sandbox = self.sandbox(sandbox).await?;
                let mut execution = sandbox.execute(&code).await?;
                let mut events = Vec::new();
                while let Some(event) = execution.next().await {
                    events.push(json::value(&event));
                }
                Ok(Value::Array(events))
            }
            Request::Run(request) => self.run(request).await,
            Request::Close { sandbox } => {
                let Some(closed) = self.sandboxes.lock().await.remove(&sandbox) else { return Err(unknown(sandbox)) };
                closed.close().await?;
                Ok(json!({}))
            }
        }
    }

    async fn run(&self, request: RunRequest) -> Result<Value, Refusal> {
        let sandbox = self.sandbox(request.sandbox).await?;
        let input = BASE64_STANDARD.decode(&request.input);
        let input = input.map_err(|error| Refusal::Request(format!("input is not base64: {error}")))?;
        if request.arguments.is_empty() {
            return Err(Refusal::Request("arguments must name a program".into()));
        }
        let command = Command {
            arguments: request.arguments,
            environment: request.environment.into_iter().collect(),
            directory: if request.directory.is_empty() { ".".into() } else { request.directory },
            pty: None,
        };
        let limit = request.timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
        let most = request.most.unwrap_or(DEFAULT_OUTPUT_BYTES).min(MAX_OUTPUT_BYTES);
        let ProcessOutput { status, stdout, stderr, dropped } = sandbox.run(command, &input, limit, most).await?;
        let mut answer = Map::new();
        let (key, value) = match status {
            Some(ExitStatus::Code(code)) => ("status", json!(code)),
            Some(ExitStatus::Signal(signal)) => ("signal", json!(signal)),
            None => ("timed_out", json!(true)),
        };
        answer.insert(key.into(), value);
        answer.insert("stdout".into(), BASE64_STANDARD.encode(stdout).into());
        answer.insert("stderr".into(), BASE64_STANDARD.encode(stderr).into());
        answer.insert("dropped".into(), dropped.into());
        Ok(Value::Object(answer))
    }

    async fn sandbox(&self, number: u64) -> Result<Arc<dyn Sandbox>, Refusal> {
        self.sandboxes.lock().await.get(&number).cloned().ok_or_else(|| unknown(number))
    }
}

fn unknown(sandbox: u64) -> Refusal {
    Refusal::Request(format!("there is no sandbox {sandbox}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_id_of_its_request() {
        for (line, id, words) in [
            (r#"{"id": 2, "foo": {}}"#, json!(2), "create, execute, run, close"),
            (r#"{"id": "a"}"#, json!("a"), "create, execute, run, close"),
            (r#"{"id": 4, "execute": {"sandbox": 1}}"#, json!(4), "execute: missing field `code`"),
            (r#"{"id": 5, "create": {}, "close": {"sandbox": 1}}"#, json!(5), "one of create"),
            (r#"{"create": {}}"#, Value::Null, "it has no id"),
            ("[", Value::Null, "an object of JSON"),
        ] {
            let (found, request) = read_line(line.as_bytes());
            let Err(Refusal::Request(message)) = request else { panic!("{line} is a request") };
            assert!(found == id && message.contains(words), "{found} {message}");
        }
        assert!(matches!(read_line(br#"{"id": 1, "close": {"sandbox": 3}}"#), (_, Ok(Request::Close { sandbox: 3 }))));
    }
}
