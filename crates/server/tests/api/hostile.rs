//! Requests of the Assistants API, Gemini's and MCP in which any place holds any value: each is taken, or refused in the dialect's words.

use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::common::{Answer, Server, listen, model, settings};

/// Values that stand where others are expected.
fn values() -> [Value; 9] {
    let long = "x".repeat(300_000);
    let deep = (0..60).fold(Value::Null, |inner, _| json!([inner]));
    [
        json!(null),
        json!(true),
        json!(-1),
        json!(1e300),
        json!("../../etc/passwd\0"),
        json!(long),
        deep,
        json!([{}]),
        json!({}),
    ]
}

/// The places of a document, as pointers.
fn places(document: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match document {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, inner)| places(inner, &format!("{at}/{}", name.replace('/', "~1")), found))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, inner)| places(inner, &format!("{at}/{index}"), found))
        }
        _ => {}
    }
}

/// Sends a request with each value in each of its places. `refused` is true for an answer that refuses in the dialect's words.
async fn torment(server: &Server, path: &str, body: &Value, refused: impl Fn(&Value) -> bool) {
    let mut found = Vec::new();
    places(body, "", &mut found);
    let mut taken = 0;
    for place in &found {
        for value in values() {
            let mut sent = body.clone();
            *sent.pointer_mut(place).unwrap() = value.clone();
            let answer = ask(server, path, &sent).await;
            let shown = value.to_string().chars().take(40).collect::<String>();
            let said = || String::from_utf8_lossy(&answer.bytes[..answer.bytes.len().min(500)]).into_owned();
            match answer.status {
                StatusCode::OK => taken += 1,
                status if status.is_client_error() => {
                    assert!(refused(&answer.json()), "{path} {place} {shown}: {}", said())
                }
                status => panic!("{path} {place} {shown}: {status} {}", said()),
            }
        }
    }
    // The control: not all that is odd is wrong.
    assert!(taken > 0 && ask(server, path, body).await.status == StatusCode::OK, "{path}");
}

async fn ask(server: &Server, path: &str, body: &Value) -> Answer {
    let request = server.request(Method::POST, path).header("accept", "application/json, text/event-stream");
    let modern = body.pointer("/params/_meta/io.modelcontextprotocol~1protocolVersion").is_some();
    let request = match body["method"].as_str().filter(|_| modern && path == "/mcp") {
        Some(method) => {
            let name = body["params"]["name"].as_str().or(body["params"]["uri"].as_str()).unwrap_or("x");
            let name = if name.bytes().all(|byte| byte.is_ascii_graphic()) { name } else { "x" };
            request
                .header("mcp-protocol-version", "2026-07-28")
                .header("mcp-method", method.chars().filter(char::is_ascii_graphic).take(1000).collect::<String>())
                .header("mcp-name", &name[..name.len().min(1000)])
        }
        None => request,
    };
    server.ask(request.json(body)).await
}

async fn server(data: &std::path::Path) -> Server {
    let script = (0..2000).map(|_| Scripted::Text("Done.")).collect();
    let upstream = ScriptedUpstream::start(script).await;
    let url = upstream.url();
    Box::leak(Box::new(upstream));
    listen(data, settings(), vec![model("m", url)]).await
}

#[tokio::test]
async fn any_value_anywhere_is_taken_or_refused_by_the_assistants() {
    let data = tempfile::tempdir().unwrap();
    let server = server(data.path()).await;
    let refused = |body: &Value| body["error"]["message"].is_string() && body["error"]["type"].is_string();
    let function = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    let assistant = json!({
        "model": "m", "name": "a", "instructions": "b", "tools": [{ "type": "code_interpreter" }, function],
        "tool_resources": { "code_interpreter": { "file_ids": [] } }, "metadata": { "k": "v" }, "temperature": 1,
        "response_format": { "type": "json_object" },
    });
    torment(&server, "/v1/assistants", &assistant, refused).await;
    let made = server.post("/v1/assistants", assistant).await.ok();
    let content = json!([{ "type": "text", "text": "?" }, { "type": "image_url", "image_url": { "url": "https://example.com/a.png" } }]);
    let thread = json!({ "messages": [{ "role": "user", "content": "?", "attachments": [] }], "metadata": {} });
    torment(&server, "/v1/threads", &thread, refused).await;
    let of = server.post("/v1/threads", thread.clone()).await.ok()["id"].as_str().unwrap().to_owned();
    torment(&server, &format!("/v1/threads/{of}/messages"), &json!({ "role": "user", "content": content }), refused)
        .await;
    let run = json!({
        "assistant_id": made["id"], "thread": thread, "truncation_strategy": { "type": "last_messages", "last_messages": 1 },
        "tool_choice": { "type": "code_interpreter" }, "max_completion_tokens": 300, "stream": true,
    });
    torment(&server, "/v1/threads/runs", &run, refused).await;
    server.stop().await;
}

#[tokio::test]
async fn any_value_anywhere_is_taken_or_refused_by_gemini() {
    let data = tempfile::tempdir().unwrap();
    let server = server(data.path()).await;
    let refused = |body: &Value| body["error"]["code"].is_u64() && body["error"]["status"].is_string();
    let request = json!({
        "contents": [
            { "role": "user", "parts": [{ "text": "?" }, { "inlineData": { "mimeType": "text/csv", "data": "YQ==" } }] },
            { "role": "model", "parts": [
                { "executableCode": { "language": "PYTHON", "code": "1" } }, { "codeExecutionResult": { "outcome": "OUTCOME_OK", "output": "1" } }
            ] },
            { "role": "user", "parts": [{ "text": "?" }] },
        ],
        "tools": [{ "codeExecution": {} }, { "functionDeclarations": [{ "name": "f", "parameters": { "type": "OBJECT" } }] }],
        "toolConfig": { "functionCallingConfig": { "mode": "AUTO" } },
        "generationConfig": { "temperature": 1, "maxOutputTokens": 100, "stopSequences": ["x"] },
        "systemInstruction": { "parts": [{ "text": "b" }] },
    });
    torment(&server, "/v1beta/models/m:generateContent", &request, refused).await;
    let asked = json!({ "contents": [{ "parts": [{ "text": "?" }] }] });
    for method in ["streamGenerateContent?alt=sse", "countTokens"] {
        torment(&server, &format!("/v1/models/m:{method}"), &asked, refused).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn any_value_anywhere_is_taken_or_refused_by_mcp() {
    let data = tempfile::tempdir().unwrap();
    let server = server(data.path()).await;
    let refused = |body: &Value| body["error"]["code"].is_i64() && body["error"]["message"].is_string();
    let meta = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {} });
    for (method, mut params) in [
        ("tools/call", json!({ "name": "python", "arguments": { "code": "x", "session": "", "timeout_seconds": 1 } })),
        ("tools/call", json!({ "name": "wait", "arguments": { "execution": "exec_1" } })),
        ("tools/call", json!({ "name": "files", "arguments": { "action": "list", "path": "a", "content": "b" } })),
        ("resources/list", json!({ "cursor": "x" })),
        ("server/discover", json!({})),
    ] {
        params["_meta"] = meta.clone();
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        torment(&server, "/mcp", &body, refused).await;
    }
    let client = json!({ "name": "a", "version": "1" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    torment(&server, "/mcp", &json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }), refused)
        .await;
    server.stop().await;
}
