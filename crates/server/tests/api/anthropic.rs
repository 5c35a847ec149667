//! Anthropic's dialect over HTTP.

use crate::common::{listen, model, settings};
use aludel_testkit::{Scripted, ScriptedUpstream};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";

fn request(messages: Value) -> Value {
    let tools = json!([
        { "type": "code_execution_20260120", "name": "code_execution" },
        { "name": "weather", "input_schema": { "type": "object", "properties": {} } },
    ]);
    json!({ "model": "m", "max_tokens": 100, "tools": tools, "messages": messages })
}

#[tokio::test]
async fn one_file_may_be_named_any_number_of_times() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("seen")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let file = server.upload("a.csv", b"a").await;
    let block = json!({ "type": "container_upload", "file_id": file });
    let body = request(json!([{ "role": "user", "content": vec![block; 150] }]));
    server.post(PATH, body).await.ok();
    let container = server.get("/v1/containers").await.ok()["data"][0].clone();
    assert_eq!(container, json!(null), "no program ran");
    let asked = upstream.requests()[0].to_string();
    assert_eq!(asked.matches("attached a file: /mnt/data/a.csv").count(), 150);
    server.stop().await;
}
