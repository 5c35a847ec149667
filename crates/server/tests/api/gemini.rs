//! Google's dialect over HTTP.

use crate::common::{Answer, KEYS_FRESH, Server, listen, model, settings};
use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::Method;
use serde_json::{Value, json};

const GENERATE: &str = "/v1beta/models/m:generateContent";

fn question(parts: &Value) -> Value {
    json!({ "contents": [{ "role": "user", "parts": parts }], "tools": [{ "codeExecution": {} }] })
}

async fn send(server: &Server, path: &str, body: &Value) -> Answer {
    server.ask(server.request(Method::POST, path).json(body)).await
}

fn parts(answer: &Value) -> &Vec<Value> {
    answer["candidates"][0]["content"]["parts"].as_array().unwrap()
}

fn error(answer: &Answer, status: u16, name: &str, words: &str) {
    let body = answer.json();
    let told = (answer.status.as_u16(), &body["error"]["code"], &body["error"]["status"]);
    assert_eq!(told, (status, &json!(status), &json!(name)), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains(words), "{body}");
}

#[tokio::test]
async fn programs_are_parts_in_order_and_the_next_request_goes_on() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![
        Scripted::Python("print('marker-7f3a', 6 * 7)"),
        Scripted::Python("show()"),
        Scripted::Text("It is 42."),
        Scripted::Python("print('marker-7f3a')\n1 / 0"),
        Scripted::Text("No."),
    ];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let first = json!([{ "text": "6 x 7?" }, { "inline_data": { "mime_type": "text/csv", "data": "YSxiCg==" } }]);
    let answer = send(&server, GENERATE, &question(&first)).await.ok();
    let told = parts(&answer);
    let kinds: Vec<&str> = told.iter().map(|part| part.as_object().unwrap().keys().next().unwrap().as_str()).collect();
    let code = ["executableCode", "codeExecutionResult"];
    assert_eq!(kinds[..5], [code[0], code[1], code[0], code[1], "inlineData"], "{told:?}");
    assert_eq!(told[0]["executableCode"]["language"], "PYTHON");
    let result =
        json!({ "id": told[0]["executableCode"]["id"], "outcome": "OUTCOME_OK", "output": "marker-7f3a 42\n" });
    assert_eq!(told[1]["codeExecutionResult"], result);
    assert!(told[5]["text"].as_str().unwrap().starts_with("It is 42."));
    let candidate = &answer["candidates"][0];
    assert_eq!((&candidate["finishReason"], &candidate["content"]["role"]), (&json!("STOP"), &json!("model")));
    assert!(answer["usageMetadata"]["totalTokenCount"].is_u64() && answer["modelVersion"] == "m");
    assert!(upstream.requests()[0].to_string().contains("/mnt/data/input_file_0.csv"));
    // The client sends the parts back, and a question.
    let more = json!([{ "role": "user", "parts": first }, candidate["content"], { "parts": { "text": "1 / 0?" } }]);
    let answer = send(&server, GENERATE, &json!({ "contents": more, "tools": [{ "code_execution": {} }] })).await.ok();
    let again = parts(&answer);
    let session = |part: &Value| part["executableCode"]["id"].as_str().unwrap().split('.').next().unwrap().to_owned();
    assert_eq!(session(&again[0]), session(&told[0]));
    let result = &again[1]["codeExecutionResult"];
    assert_eq!(result["outcome"], "OUTCOME_FAILED");
    assert!(result["output"].as_str().unwrap().contains("ZeroDivisionError"), "{result}");
    let seen = upstream.requests()[3]["messages"].to_string();
    assert!(seen.contains("marker-7f3a 42") && !seen.contains("executableCode"), "{seen}");
    server.stop().await;
}

#[tokio::test]
async fn a_stream_is_nothing_but_data_and_adds_up_to_the_whole() {
    let data = tempfile::tempdir().unwrap();
    let script = || vec![Scripted::Python("print('marker-7f3a', 6 * 7)"), Scripted::Text("It is 42, I think.")];
    let upstream = ScriptedUpstream::start([script(), script(), script()].concat()).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let mut body = question(&json!([{ "text": "?" }]));
    body["generationConfig"] = json!({ "stopSequences": [", I"] });
    let stream = send(&server, "/v1/models/m:streamGenerateContent?alt=sse", &body).await;
    let text = String::from_utf8(stream.bytes.to_vec()).unwrap();
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with("data: {")), "{text}");
    let frames: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let whole = send(&server, GENERATE, &body).await.ok();
    let mut added: Vec<Value> = Vec::new();
    for part in frames.iter().flat_map(|frame| parts(frame).clone()) {
        match (added.last_mut(), &part["text"]) {
            (Some(Value::Object(last)), Value::String(text)) if last.contains_key("text") => {
                let before = last["text"].as_str().unwrap().to_owned();
                last.insert("text".into(), (before + text).into());
            }
            _ => added.push(part),
        }
    }
    let without_ids = |parts: &[Value]| {
        let mut parts = parts.to_vec();
        for part in &mut parts {
            for kind in ["executableCode", "codeExecutionResult"] {
                part.get_mut(kind).and_then(Value::as_object_mut).map(|part| part.remove("id"));
            }
        }
        parts
    };
    assert_eq!(without_ids(&added), without_ids(parts(&whole)));
    assert_eq!(added[2]["text"], "It is 42");
    let last = frames.last().unwrap();
    assert_eq!(last["candidates"][0]["finishReason"], "STOP");
    assert_eq!(last["usageMetadata"], whole["usageMetadata"]);
    let list = send(&server, "/v1/models/m:streamGenerateContent", &body).await.ok();
    assert_eq!(without_ids(parts(&list[0])), without_ids(&added));
    server.stop().await;
}

#[tokio::test]
async fn the_clients_functions_go_to_the_client() {
    let data = tempfile::tempdir().unwrap();
    let call = Scripted::Calls(vec![("add", r#"{"a": 1}"#.to_owned())]);
    let upstream = ScriptedUpstream::start(vec![call, Scripted::Text("2")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let mut body = question(&json!([{ "text": "1 + 1?" }]));
    body["tools"] = json!([{ "codeExecution": {} }, { "functionDeclarations": [{ "name": "add" }] }]);
    let answer = send(&server, GENERATE, &body).await.ok();
    let called = parts(&answer)[0]["functionCall"].clone();
    assert_eq!((&called["name"], &called["args"]), (&json!("add"), &json!({ "a": 1 })));
    assert_eq!(answer["candidates"][0]["finishReason"], "STOP");
    let response = json!({ "functionResponse": { "name": "add", "response": { "result": 2 } } });
    let contents = body["contents"].as_array_mut().unwrap();
    contents.push(answer["candidates"][0]["content"].clone());
    contents.push(json!({ "role": "user", "parts": [response] }));
    let answer = send(&server, GENERATE, &body).await.ok();
    assert_eq!(parts(&answer)[0]["text"], "2");
    server.stop().await;
}

#[tokio::test]
async fn errors_and_models_are_in_its_words() {
    let data = tempfile::tempdir().unwrap();
    let refusal = || Scripted::Status(400, "", "bad");
    let upstream = ScriptedUpstream::start(vec![refusal(), refusal()]).await;
    let mut server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let body = question(&json!([{ "text": "?" }]));
    for path in [GENERATE, "/v1/models/m:streamGenerateContent?alt=sse"] {
        error(&send(&server, path, &body).await, 400, "INVALID_ARGUMENT", "bad");
    }
    error(&send(&server, "/v1/models/other:generateContent", &body).await, 404, "NOT_FOUND", "other");
    error(&send(&server, "/v1/models/m:embedContent", &body).await, 404, "NOT_FOUND", "embedContent");
    error(&send(&server, GENERATE, &json!({})).await, 400, "INVALID_ARGUMENT", "contents");
    error(&send(&server, GENERATE, &json!({ "contents": [7] })).await, 400, "INVALID_ARGUMENT", "contents");
    error(&server.get("/v1beta/nothing").await, 404, "NOT_FOUND", "");
    let counted = send(&server, "/v1beta/models/m:countTokens", &body).await.ok();
    assert!(counted["totalTokens"].as_u64().unwrap() > 1, "{counted}");
    let listed = server.ask(server.request(Method::GET, "/v1/models").header("x-goog-api-key", "any")).await.ok();
    assert_eq!(listed["models"][0]["name"], "models/m");
    assert_eq!(server.get("/v1beta/models/m").await.ok()["name"], "models/m");
    assert!(server.get("/v1/models").await.ok().get("data").is_some(), "OpenAI's");
    let key = server.store.create_key("k").await.unwrap().secret;
    tokio::time::sleep(KEYS_FRESH).await;
    error(&send(&server, GENERATE, &body).await, 401, "UNAUTHENTICATED", "key");
    let with_key = server.request(Method::GET, "/v1/models").header("x-goog-api-key", &key);
    server.ask(with_key).await.ok();
    server.use_key(&key);
    server.get("/v1beta/models").await.ok();
    server.stop().await;
}
