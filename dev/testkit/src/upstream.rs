//! A Chat Completions server that answers by a script, over real TCP, streaming as the real ones do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with one request.
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
}

/// How a stream ends.
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
                let step = script.next().unwrap_or(Scripted::Status(500, "", "the script is over"));
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
        self.requests.lock().expect("no panic while it is held").iter().map(|seen| seen.body.clone()).collect()
    }

    /// The request lines and headers of the requests so far, in lower case.
    pub fn heads(&self) -> Vec<String> {
        self.requests.lock().expect("no panic while it is held").iter().map(|seen| seen.head.clone()).collect()
    }
}

impl Drop for ScriptedUpstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, step: Scripted, seen: &Mutex<Vec<Seen>>) -> std::io::Result<()> {
    let request = read_request(&mut stream).await?;
    seen.lock().expect("no panic while it is held").push(request);
    match step {
        Scripted::Text(text) => events(&mut stream, text_chunks(text), true).await,
        Scripted::Python(code) => {
            let calls = vec![("python", json!({ "code": code }).to_string())];
            events(&mut stream, call_chunks(&calls), true).await
        }
        Scripted::Calls(calls) => events(&mut stream, call_chunks(&calls), true).await,
        Scripted::Whole(text) => {
            let body = json!({
                "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }],
                "usage": { "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 },
            });
            respond(&mut stream, 200, "content-type: application/json\r\n", &body.to_string()).await
        }
        Scripted::Status(status, headers, body) => respond(&mut stream, status, headers, body).await,
        Scripted::Drop(text) => {
            let mut chunks = text_chunks(text);
            // Without the end, and without the last bytes that were announced.
            chunks.truncate(chunks.len().saturating_sub(2));
            events(&mut stream, chunks, false).await
        }
        Scripted::Garbage(body) => respond(&mut stream, 200, "content-type: text/html\r\n", body).await,
        Scripted::BadEvent => {
            begin(&mut stream).await?;
            send(&mut stream, "data: {\"choices\": 5}\n\n").await?;
            send_end(&mut stream).await
        }
        Scripted::ErrorEvent(message) => {
            begin(&mut stream).await?;
            send(
                &mut stream,
                &format!("data: {}\n\n", json!({ "error": { "message": message, "type": "server_error" } })),
            )
            .await?;
            send_end(&mut stream).await
        }
        Scripted::Events(events, end) => {
            begin(&mut stream).await?;
            for event in events {
                send(&mut stream, &format!("data: {event}\n\n")).await?;
            }
            match end {
                End::Done => {
                    send(&mut stream, "data: [DONE]\n\n").await?;
                    send_end(&mut stream).await
                }
                End::Close => send_end(&mut stream).await,
                End::Break => stream.shutdown().await,
                End::Hold => hang().await,
            }
        }
        Scripted::Hang => hang().await,
    }
}

async fn hang() -> std::io::Result<()> {
    tokio::time::sleep(Duration::from_secs(600)).await;
    Ok(())
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<Seen> {
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
            let body = serde_json::from_slice(&bytes[end + 4..]).unwrap_or(Value::Null);
            return Ok(Seen { head, body });
        }
    }
}

async fn respond(stream: &mut TcpStream, status: u16, headers: &str, body: &str) -> std::io::Result<()> {
    let response = format!(
        "HTTP/1.1 {status} Scripted\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}

async fn begin(stream: &mut TcpStream) -> std::io::Result<()> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await
}

/// One piece of a chunked body.
async fn send(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    stream.flush().await
}

async fn send_end(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"0\r\n\r\n").await?;
    stream.shutdown().await
}

async fn events(stream: &mut TcpStream, chunks: Vec<Value>, complete: bool) -> std::io::Result<()> {
    begin(stream).await?;
    send(stream, ": keep-alive\n\n").await?;
    for chunk in chunks {
        let event = format!("data: {chunk}\n\n");
        // Cut where no character is: clients must not count on whole events.
        let cut = event.floor_char_boundary(event.len() / 2);
        send(stream, &event[..cut]).await?;
        send(stream, &event[cut..]).await?;
    }
    if complete {
        send(stream, "data: [DONE]\n\n").await?;
        send_end(stream).await
    } else {
        // The chunked body is not ended.
        stream.shutdown().await
    }
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
