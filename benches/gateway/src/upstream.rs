//! A model that says the same every time, or runs `print(40+2)` first if it has a tool for it.

use tokio::net::TcpListener;

use crate::wire::{Connection, Message};

pub(crate) async fn serve() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        let mut connection = Connection::new(stream)?;
        tokio::spawn(async move {
            while let Ok(Some(message)) = connection.receive().await {
                if connection.send(&answer(&message)).await.is_err() {
                    return;
                }
            }
        });
    }
}

fn answer(message: &Message) -> Vec<u8> {
    let body = String::from_utf8_lossy(&message.body);
    let has = |words: &str| body.contains(words);
    let is_stream = has("\"stream\":true") || has("\"stream\": true");
    let has_run = has("\"role\":\"tool\"") || has("\"role\": \"tool\"");
    let tool = ["litellm_code_execution", "python"].into_iter().find(|name| has(&format!("\"{name}\"")));
    match tool.filter(|_| !has_run) {
        Some(name) => {
            let arguments = "{\\\"code\\\": \\\"print(40+2)\\\"}";
            let call = format!(
                r#"{{"index":0,"id":"call_1","type":"function","function":{{"name":"{name}","arguments":"{arguments}"}}}}"#
            );
            reply(is_stream, &format!(r#""content":null,"tool_calls":[{call}]"#), "tool_calls")
        }
        None => reply(is_stream, r#""content":"It is 42, said the model.""#, "stop"),
    }
}

fn reply(is_stream: bool, said: &str, reason: &str) -> Vec<u8> {
    const ABOUT: &str = r#""id":"chatcmpl-1","created":1,"model":"m""#;
    const USAGE: &str = r#""usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}"#;
    if !is_stream {
        let body = format!(
            r#"{{{ABOUT},"object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant",{said}}},"finish_reason":"{reason}"}}],{USAGE}}}"#
        );
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
        return format!("{head} {}\r\n\r\n{body}", body.len()).into_bytes();
    }
    let chunk = |delta: &str, reason: &str| {
        format!(
            r#"data: {{{ABOUT},"object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{{delta}}},"finish_reason":{reason}}}]}}"#
        )
    };
    let mut text =
        String::from("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
    let usage = format!(r#"data: {{{ABOUT},"object":"chat.completion.chunk","choices":[],{USAGE}}}"#);
    let frames = [
        chunk(&format!(r#""role":"assistant",{said}"#), "null"),
        chunk("", &format!("\"{reason}\"")),
        usage,
        "data: [DONE]".to_owned(),
    ];
    for frame in frames {
        text.push_str(&format!("{:x}\r\n{frame}\n\n\r\n", frame.len() + 2));
    }
    text.push_str("0\r\n\r\n");
    text.into_bytes()
}
