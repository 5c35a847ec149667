//! The scripted model: it answers at once, and where it is given a function it first has a program run.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::http::{Connection, Message};

const PROGRAM: &str = "print(40+2)";
/// Answer of the model when there is nothing to run.
const WORDS: [&str; 10] = ["The", " sum", " of", " the", " first", " hundred", " primes", " is", " 24133", "."];

#[derive(Deserialize)]
struct Ask {
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    tools: Vec<Tool>,
    messages: Vec<Told>,
}

#[derive(Deserialize)]
struct Tool {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
}

#[derive(Deserialize)]
struct Told {
    role: String,
    #[serde(default)]
    content: Value,
}

/// The model's next step.
enum Act {
    Say(Vec<&'static str>),
    /// Have this function run the program.
    Call(String),
}

/// Serves on a port of its own choice, which it prints, until the process ends.
pub(crate) async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            if let Err(error) = converse(stream).await {
                eprintln!("upstream: {error:#}");
            }
        });
    }
}

async fn converse(stream: TcpStream) -> anyhow::Result<()> {
    let mut connection = Connection::new(stream)?;
    while let Some(message) = connection.receive().await? {
        for piece in answer(&message) {
            connection.send(piece.as_bytes()).await?;
        }
    }
    Ok(())
}

/// An answer, in the pieces in which it is sent.
fn answer(message: &Message) -> Vec<String> {
    match serde_json::from_slice::<Ask>(&message.body) {
        Err(error) => vec![whole("400 Bad Request", &json!({"error": {"message": error.to_string()}}))],
        Ok(ask) if ask.stream => stream(act(ask)),
        Ok(ask) => vec![whole("200 OK", &completion(act(ask)))],
    }
}

fn act(ask: Ask) -> Act {
    let run = ask.messages.iter().filter(|message| message.role == "tool").count();
    let wanted =
        ask.messages.iter().filter(|message| message.role == "user").find_map(|message| programs(&message.content));
    match (ask.messages.last(), ask.tools.into_iter().next()) {
        (_, Some(tool)) if run < wanted.unwrap_or(1) => Act::Call(tool.function.name),
        // Nobody gets this answer without having run the program.
        (Some(last), _) if last.role == "tool" => Act::Say(vec![if last.content.to_string().contains("42") {
            "The answer is 42."
        } else {
            "It did not run."
        }]),
        _ => Act::Say(WORDS.to_vec()),
    }
}

/// The number of programs that a user asks for, one after another, with the words "programs: 3". Otherwise it is one.
fn programs(content: &Value) -> Option<usize> {
    content.as_str()?.split("programs: ").nth(1)?.trim().parse().ok()
}

fn call(name: &str) -> Value {
    let arguments = json!({"code": PROGRAM}).to_string();
    json!([{"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}])
}

fn completion(act: Act) -> Value {
    let (message, reason) = match act {
        Act::Say(words) => (json!({"role": "assistant", "content": words.concat(), "refusal": null}), "stop"),
        Act::Call(name) => (json!({"role": "assistant", "content": null, "tool_calls": call(&name)}), "tool_calls"),
    };
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m",
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": reason}],
        "usage": {"prompt_tokens": 31, "completion_tokens": 10, "total_tokens": 41}
    })
}

fn whole(status: &str, body: &Value) -> String {
    let body = body.to_string();
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// One piece for each token, as servers of models send them.
fn stream(act: Act) -> Vec<String> {
    let (deltas, reason) = match act {
        Act::Say(words) => (words.into_iter().map(|word| json!({"content": word})).collect(), "stop"),
        Act::Call(name) => (vec![json!({"tool_calls": call(&name)})], "tool_calls"),
    };
    let mut pieces =
        vec!["HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_owned()];
    pieces.push(event(&chunk(&json!({"role": "assistant", "content": ""}), None)));
    pieces.extend(deltas.iter().map(|delta| event(&chunk(delta, None))));
    pieces.push(event(&chunk(&json!({}), Some(reason))));
    let mut last = event(&"[DONE]");
    last.push_str("0\r\n\r\n");
    pieces.push(last);
    pieces
}

fn chunk(delta: &Value, reason: Option<&str>) -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]
    })
}

fn event(data: &impl std::fmt::Display) -> String {
    let event = format!("data: {data}\n\n");
    let mut framed = String::with_capacity(event.len() + 16);
    // Writing to a string does not fail.
    let _ = write!(framed, "{:x}\r\n{event}\r\n", event.len());
    framed
}
