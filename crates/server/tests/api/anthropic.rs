//! Anthropic's dialect over HTTP.

use crate::common::{Answer, Server, listen, model, settings};
use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::Method;
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";

fn request(messages: &Value) -> Value {
    let tools = json!([
        { "type": "code_execution_20260120", "name": "code_execution" },
        { "name": "weather", "input_schema": { "type": "object", "properties": {} } },
    ]);
    json!({ "model": "m", "max_tokens": 100, "tools": tools, "messages": messages })
}

async fn once(server: &Server, body: &Value) -> Answer {
    server.ask(server.request(Method::POST, PATH).header("idempotency-key", "once").json(body)).await
}

#[tokio::test]
async fn one_file_may_be_named_any_number_of_times() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("seen")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let file = server.upload("a.csv", b"a").await;
    let block = json!({ "type": "container_upload", "file_id": file });
    let body = request(&json!([{ "role": "user", "content": vec![block; 150] }]));
    server.post(PATH, body).await.ok();
    let container = server.get("/v1/containers").await.ok()["data"][0].clone();
    assert_eq!(container, json!(null), "no program ran");
    let asked = upstream.requests()[0].to_string();
    assert_eq!(asked.matches("attached a file: /mnt/data/a.csv").count(), 150);
    server.stop().await;
}

#[tokio::test]
async fn messages_of_one_role_in_a_row_are_one() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("fine")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let call = |id: &str| {
        let block = json!({ "type": "tool_use", "id": id, "name": "weather", "input": {} });
        json!({ "role": "assistant", "content": [block] })
    };
    let result = |id: &str| {
        let block = json!({ "type": "tool_result", "tool_use_id": id, "content": id });
        json!({ "role": "user", "content": [block] })
    };
    let user = |text: &str| json!({ "role": "user", "content": text });
    let messages = [user("one"), user("two"), call("a"), call("b"), result("a"), result("b"), user("three")];
    server.post(PATH, request(&json!(messages))).await.ok();
    let seen = upstream.requests()[0]["messages"].as_array().unwrap().clone();
    let roles: Vec<&str> = seen.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"], "{seen:?}");
    assert_eq!(seen[1]["tool_calls"].as_array().unwrap().len(), 2, "{seen:?}");
    assert!(seen[0].to_string().contains("one") && seen[0].to_string().contains("two"), "{seen:?}");
    // An error names the message as the client sent it.
    let refused = server.post(PATH, request(&json!([user("one"), call("a"), call("b"), user("x"), result("a")]))).await;
    assert_eq!(refused.status, 400);
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("messages.2: ") && message.ends_with("immediately after: b."), "{message}");
    let refused = server.post(PATH, request(&json!([user("one"), call("a"), result("a"), result("c")]))).await;
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("messages.3.content.0"), "{refused:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_whole_answer_can_be_asked_for_again_as_a_stream() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![Scripted::Python("print('marker-7f3a', 6 * 7)"), Scripted::Text("It is 42.")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let mut body = request(&json!([{ "role": "user", "content": "6 x 7?" }]));
    body["context_management"] = json!({ "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] });
    let whole = once(&server, &body).await.ok();
    assert_eq!(whole["context_management"], json!({ "applied_edits": [] }));
    body["stream"] = true.into();
    let stream = String::from_utf8(once(&server, &body).await.bytes.to_vec()).unwrap();
    let events: Vec<Value> =
        stream.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"message_start"), "{stream}");
    assert_eq!(kinds.last(), Some(&"message_stop"), "{stream}");
    assert_eq!(events[0]["message"]["id"], whole["id"]);
    let told: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(told, "It is 42.");
    assert_eq!(events[events.len() - 2]["context_management"], whole["context_management"]);
    assert_eq!(upstream.requests().len(), 2);
    server.stop().await;
}
