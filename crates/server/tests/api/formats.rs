//! Answers whose format the client asks for and parses, in every dialect.

use crate::common::{listen, model, settings};
use aludel_testkit::{End, Scripted, ScriptedUpstream};
use reqwest::Method;
use serde_json::{Value, json};

const ANSWER: &str = r#"{"n": 1}"#;

/// Words and a program in one round, then the answer.
fn script() -> Vec<Scripted> {
    let delta = |delta: Value| json!({ "choices": [{ "index": 0, "delta": delta }] }).to_string();
    let arguments = json!({ "code": "x = 1" }).to_string();
    let call = json!({ "index": 0, "id": "call_1", "type": "function", "function": { "name": "python", "arguments": arguments } });
    let events = vec![delta(json!({ "content": "Let me compute." })), delta(json!({ "tool_calls": [call] }))];
    vec![Scripted::Events(events, End::Done), Scripted::Text(ANSWER)]
}

#[tokio::test]
async fn nothing_but_the_answer_is_text_if_it_has_a_format() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start((0..5).flat_map(|_| script()).collect()).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let named = json!({ "type": "json_schema", "name": "n", "schema": schema });
    let interpreter = json!([{ "type": "code_interpreter", "container": { "type": "auto" } }]);

    let asked = json!({ "model": "m", "input": "?", "tools": interpreter, "text": { "format": named } });
    let answer = server.post("/v1/responses", asked.clone()).await.ok();
    let output = answer["output"].as_array().unwrap();
    let kinds: Vec<&str> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["code_interpreter_call", "message"]);
    assert_eq!(output[1]["content"][0]["text"], ANSWER);
    assert_eq!(output[1]["content"][0]["annotations"][0]["filename"], "made.txt");

    let mut streamed = asked;
    streamed["stream"] = true.into();
    let events = String::from_utf8(server.post("/v1/responses", streamed).await.bytes.to_vec()).unwrap();
    let texts = events.lines().filter_map(|line| line.strip_prefix("data: ")).filter_map(|line| {
        let event: Value = serde_json::from_str(line).ok()?;
        (event["type"] == "response.output_text.done").then(|| event["text"].as_str().unwrap().to_owned())
    });
    assert_eq!(texts.collect::<Vec<_>>(), [ANSWER]);

    let messages = json!([{ "role": "user", "content": "?" }]);
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let asked = json!({ "model": "m", "messages": messages, "tools": interpreter, "response_format": format });
    let answer = server.post("/v1/chat/completions", asked).await.ok();
    assert_eq!(answer["choices"][0]["message"]["content"], ANSWER);

    let config = json!({ "responseMimeType": "application/json", "responseJsonSchema": schema });
    let contents = json!([{ "role": "user", "parts": [{ "text": "?" }] }]);
    let asked = json!({ "contents": contents, "tools": [{ "codeExecution": {} }], "generationConfig": config });
    let request = server.request(Method::POST, "/v1beta/models/m:generateContent").json(&asked);
    let answer = server.ask(request).await.ok();
    let parts = answer["candidates"][0]["content"]["parts"].as_array().unwrap();
    let texts: Vec<&Value> = parts.iter().filter_map(|part| part.get("text")).collect();
    assert_eq!(texts, [ANSWER], "no words before it, and no links after it");

    let format = json!({ "type": "text", "mime_type": "application/json", "schema": schema });
    let asked =
        json!({ "model": "m", "input": "?", "tools": [{ "type": "code_execution" }], "response_format": format });
    let request = server.request(Method::POST, "/v1beta/interactions").json(&asked);
    let answer = server.ask(request).await.ok();
    let outputs = answer["steps"].as_array().unwrap().iter().filter(|step| step["type"] == "model_output");
    let texts: Vec<&Value> =
        outputs.flat_map(|step| step["content"].as_array().unwrap()).map(|part| &part["text"]).collect();
    assert_eq!(texts, [ANSWER]);
    server.stop().await;
}
