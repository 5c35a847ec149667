//! A Chat Completions server that answers by a script, streaming as the real ones do: over real TCP, or in the same process.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::ModelCapabilities;
use aludel_agent::upstream::http::{HttpOptions, Protocol, Transport};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use parking_lot::Mutex;
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A model of Chat Completions at this address, without a key, which takes functions and pictures.
pub fn chat_options(url: impl Into<String>, model: impl Into<String>) -> HttpOptions {
    HttpOptions {
        protocol: Protocol::CHAT_COMPLETIONS,
        url: url.into(),
        model: model.into(),
        key: None,
        capabilities: ModelCapabilities { function_calling: true, vision: true },
        idle_timeout: Duration::from_secs(20),
        headers: Vec::new(),
        max_output_tokens: None,
        requests: None,
    }
}

/// The server's answer to one request.
#[derive(Debug, Clone)]
pub enum Scripted {
    /// Streams this text.
    Text(&'static str),
    /// Streams a call of `python` with this program, the arguments in small fragments.
    Python(&'static str),
    /// Streams calls of these functions with these arguments, in one answer.
    Calls(Vec<(&'static str, String)>),
    /// Answers whole, as an upstream that does not stream.
    Whole(&'static str),
    /// Answers with this status, these headers and this body.
    Status(u16, &'static str, &'static str),
    /// Streams some text and then closes the connection.
    Drop(&'static str),
    /// Answers 200 with a body that is neither JSON nor events.
    Garbage(&'static str),
    /// Streams an event that is not a chunk.
    BadEvent,
    /// Streams an error event.
    ErrorEvent(&'static str),
    /// Streams these events as they are, and then ends in this way.
    Events(Vec<String>, End),
    /// Takes the request and says nothing.
    Hang,
    /// Takes the request and answers it later.
    Late(Duration, Box<Self>),
}

/// The end of a stream.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// In order, after `[DONE]`.
    Done,
    /// In order, without `[DONE]`.
    Close,
    /// The connection breaks.
    Break,
    /// Not at all: the connection stays open and silent.
    Hold,
}

/// A request as it came.
#[derive(Debug, Clone)]
struct Seen {
    /// The request line and the headers, in lower case.
    head: String,
    body: Value,
}

/// A running server. Requests beyond the script get a 500.
pub struct ScriptedUpstream {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl ScriptedUpstream {
    /// Starts a server that answers the first request by the first step, and so on.
    pub async fn start(script: Vec<Scripted>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port on loopback");
        let address = listener.local_addr().expect("its address");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut script = script.into_iter();
            while let Ok((stream, _)) = listener.accept().await {
                let step = script.next().unwrap_or(THE_END);
                let seen = Arc::clone(&seen);
                tokio::spawn(async move {
                    // A client that goes away is part of many tests.
                    let _gone = answer(stream, step, &seen).await;
                });
            }
        });
        Self { address, requests, task }
    }

    /// The base to configure, ending in `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The bodies of the requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().iter().map(|seen| seen.body.clone()).collect()
    }

    /// The request lines and headers of the requests so far, in lower case.
    pub fn heads(&self) -> Vec<String> {
        self.requests.lock().iter().map(|seen| seen.head.clone()).collect()
    }
}

impl Drop for ScriptedUpstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A scripted server in the same process: requests go to it without a connection, and beyond the script get a 500.
#[derive(Debug)]
pub struct ScriptedTransport {
    script: Mutex<VecDeque<Scripted>>,
    requests: Mutex<Vec<Seen>>,
}

impl ScriptedTransport {
    /// A server that answers the first request by the first step, and so on.
    pub fn new(script: Vec<Scripted>) -> Arc<Self> {
        Arc::new(Self { script: Mutex::new(script.into()), requests: Mutex::default() })
    }

    /// The bodies of the requests so far.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().iter().map(|seen| seen.body.clone()).collect()
    }

    /// The request lines and headers of the requests so far, in lower case.
    pub fn heads(&self) -> Vec<String> {
        self.requests.lock().iter().map(|seen| seen.head.clone()).collect()
    }
}

impl Transport for ScriptedTransport {
    fn send(&self, request: reqwest::Request) -> BoxFuture<'static, reqwest::Result<reqwest::Response>> {
        let lines = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}\r\n", String::from_utf8_lossy(value.as_bytes()).to_lowercase()));
        let head = format!("{} {}\r\n{}", request.method(), request.url().path(), lines.collect::<String>());
        let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        let body = value(body);
        let step = self.script.lock().pop_front();
        let step = step.unwrap_or(THE_END);
        let refusal = Reply::to_misplaced(&body);
        self.requests.lock().push(Seen { head, body });
        Box::pin(async move {
            if let Scripted::Late(time, _) = &step {
                tokio::time::sleep(*time).await;
            }
            match refusal.or_else(|| Reply::of(step)) {
                Some(reply) => Ok(reply.into_response()),
                None => std::future::pending().await,
            }
        })
    }
}

/// A body: as JSON, or as a string of its text.
fn value(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into())
}

/// The answer to what is not in the script any more.
const THE_END: Scripted = Scripted::Status(500, "", "the script is over");

/// An answer as it goes out.
struct Reply {
    status: u16,
    /// Lines of headers.
    headers: String,
    body: Body,
}

enum Body {
    /// One that is there at once.
    Whole(String),
    /// One that comes in pieces.
    Pieces(Vec<String>, End),
}

impl Reply {
    /// The refusal of a chat in which the answers of functions do not follow their calls, as OpenAI has it.
    fn to_misplaced(body: &Value) -> Option<Self> {
        let mut messages = body["messages"].as_array()?.iter().peekable();
        while let Some(message) = messages.next() {
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let mut open: HashSet<&Value> = calls.map(|call| &call["id"]).collect();
            while let Some(answer) = messages.next_if(|message| message["role"] == "tool") {
                open.remove(&answer["tool_call_id"]);
            }
            if let Some(id) = open.iter().next() {
                let message = format!("An assistant message with 'tool_calls' must be followed by tool messages: {id}");
                let body = json!({ "error": { "message": message, "type": "invalid_request_error" } });
                let headers = "content-type: application/json\r\n".to_owned();
                return Some(Self { status: 400, headers, body: Body::Whole(body.to_string()) });
            }
        }
        None
    }

    /// The answer of a step; `None` for one that never comes.
    fn of(step: Scripted) -> Option<Self> {
        let whole = |status, headers: &str, body: String| {
            Some(Self { status, headers: headers.to_owned(), body: Body::Whole(body) })
        };
        let pieces = |pieces, end| {
            let headers = "content-type: text/event-stream\r\n".to_owned();
            Some(Self { status: 200, headers, body: Body::Pieces(pieces, end) })
        };
        match step {
            Scripted::Text(text) => pieces(in_halves(&text_chunks(text)), End::Done),
            Scripted::Python(code) => {
                let calls = vec![("python", json!({ "code": code }).to_string())];
                pieces(in_halves(&call_chunks(&calls)), End::Done)
            }
            Scripted::Calls(calls) => pieces(in_halves(&call_chunks(&calls)), End::Done),
            Scripted::Whole(text) => {
                let body = json!({
                    "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
                    "choices": [
                        { "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" },
                    ],
                    "usage": { "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 },
                });
                whole(200, "content-type: application/json\r\n", body.to_string())
            }
            Scripted::Status(status, headers, body) => whole(status, headers, body.to_owned()),
            Scripted::Drop(text) => {
                let mut chunks = text_chunks(text);
                // Without the end, and without the last bytes that were announced.
                chunks.truncate(chunks.len().saturating_sub(2));
                pieces(in_halves(&chunks), End::Break)
            }
            Scripted::Garbage(body) => whole(200, "content-type: text/html\r\n", body.to_owned()),
            Scripted::BadEvent => pieces(vec![framed(r#"{"choices": 5}"#)], End::Close),
            Scripted::ErrorEvent(message) => {
                let event = json!({ "error": { "message": message, "type": "server_error" } });
                pieces(vec![framed(&event.to_string())], End::Close)
            }
            Scripted::Events(events, end) => pieces(events.iter().map(|event| framed(event)).collect(), end),
            Scripted::Late(_, step) => Self::of(*step),
            Scripted::Hang => None,
        }
    }

    fn into_response(self) -> reqwest::Response {
        let body = match self.body {
            Body::Whole(body) => reqwest::Body::from(body),
            Body::Pieces(mut pieces, end) => {
                pieces.extend(matches!(end, End::Done).then(|| framed("[DONE]")));
                let pieces = stream::iter(pieces).map(Ok::<_, io::Error>);
                reqwest::Body::wrap_stream(match end {
                    End::Done | End::Close => pieces.boxed(),
                    End::Break => pieces.chain(stream::iter([Err(io::ErrorKind::UnexpectedEof.into())])).boxed(),
                    End::Hold => pieces.chain(stream::pending()).boxed(),
                })
            }
        };
        let mut response = http::Response::new(body);
        *response.status_mut() = self.status.try_into().expect("a status");
        for line in self.headers.lines() {
            let (name, value) = line.split_once(':').expect("a header");
            let name: HeaderName = name.parse().expect("a header's name");
            response.headers_mut().append(name, HeaderValue::from_str(value.trim()).expect("a header's value"));
        }
        response.into()
    }

    async fn write(self, stream: &mut TcpStream) -> io::Result<()> {
        let Self { status, headers, body } = self;
        match body {
            Body::Whole(body) => {
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} Scripted\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
                stream.write_all(head.as_bytes()).await?;
                stream.shutdown().await
            }
            Body::Pieces(pieces, end) => {
                let head =
                    format!("HTTP/1.1 {status} OK\r\n{headers}transfer-encoding: chunked\r\nconnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).await?;
                for piece in pieces {
                    send(stream, &piece).await?;
                }
                match end {
                    End::Done => {
                        send(stream, &framed("[DONE]")).await?;
                        send_end(stream).await
                    }
                    End::Close => send_end(stream).await,
                    // The chunked body is not ended.
                    End::Break => stream.shutdown().await,
                    End::Hold => hang().await,
                }
            }
        }
    }
}

fn framed(event: &str) -> String {
    format!("data: {event}\n\n")
}

/// The events of an answer, each cut in two: clients must not count on whole events.
fn in_halves(chunks: &[Value]) -> Vec<String> {
    let mut pieces = vec![": keep-alive\n\n".to_owned()];
    for chunk in chunks {
        let event = framed(&chunk.to_string());
        let (start, end) = event.split_at(event.floor_char_boundary(event.len() / 2));
        pieces.extend([start.to_owned(), end.to_owned()]);
    }
    pieces
}

async fn answer(mut stream: TcpStream, step: Scripted, seen: &Mutex<Vec<Seen>>) -> io::Result<()> {
    let request = read_request(&mut stream).await?;
    let refusal = Reply::to_misplaced(&request.body);
    seen.lock().push(request);
    if let Scripted::Late(time, _) = &step {
        tokio::time::sleep(*time).await;
    }
    match refusal.or_else(|| Reply::of(step)) {
        Some(reply) => reply.write(&mut stream).await,
        None => hang().await,
    }
}

async fn hang() -> io::Result<()> {
    tokio::time::sleep(Duration::from_secs(600)).await;
    Ok(())
}

async fn read_request(stream: &mut TcpStream) -> io::Result<Seen> {
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(Seen { head: String::new(), body: Value::Null });
        }
        bytes.extend_from_slice(&buffer[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok())
            .unwrap_or(0);
        if bytes.len() >= end + 4 + length {
            let body = value(&bytes[end + 4..]);
            return Ok(Seen { head, body });
        }
    }
}

/// One piece of a chunked body.
async fn send(stream: &mut TcpStream, text: &str) -> io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    stream.flush().await
}

async fn send_end(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"0\r\n\r\n").await?;
    stream.shutdown().await
}

fn chunk(delta: &Value, finish: Option<&str>) -> Value {
    json!({
        "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }],
    })
}

fn usage_chunk() -> Value {
    json!({
        "id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
        "usage": { "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15 },
    })
}

fn text_chunks(text: &str) -> Vec<Value> {
    let mut chunks = vec![chunk(&json!({ "role": "assistant", "content": "" }), None)];
    let characters: Vec<char> = text.chars().collect();
    for piece in characters.chunks(5) {
        chunks.push(chunk(&json!({ "content": piece.iter().collect::<String>() }), None));
    }
    chunks.push(chunk(&json!({}), Some("stop")));
    chunks.push(usage_chunk());
    chunks
}

fn call_chunks(calls: &[(&str, String)]) -> Vec<Value> {
    let mut chunks = vec![chunk(&json!({ "role": "assistant", "content": null }), None)];
    for (index, (name, arguments)) in calls.iter().enumerate() {
        let start = json!({
            "index": index, "id": format!("call_{index}_{name}"), "type": "function", "function": { "name": name, "arguments": "" },
        });
        chunks.push(chunk(&json!({ "tool_calls": [start] }), None));
        let characters: Vec<char> = arguments.chars().collect();
        for piece in characters.chunks(3) {
            let fragment = piece.iter().collect::<String>();
            chunks.push(chunk(
                &json!({ "tool_calls": [{ "index": index, "function": { "arguments": fragment } }] }),
                None,
            ));
        }
    }
    chunks.push(chunk(&json!({}), Some("tool_calls")));
    chunks.push(usage_chunk());
    chunks
}
