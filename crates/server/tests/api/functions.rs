//! Functions of clients, in the requests to the model's server.

use crate::common::{listen, model, settings};
use aludel_testkit::{Scripted, ScriptedUpstream};
use serde_json::{Value, json};

#[tokio::test]
async fn a_function_is_as_strict_for_the_model_as_its_client_has_it() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start([(); 6].map(|()| Scripted::Text("Fine.")).to_vec()).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let schema = json!({ "type": "object", "properties": {} });
    for (index, strict) in [Some(true), None].into_iter().enumerate() {
        let mut function = json!({ "name": "f", "parameters": schema });
        let mut tool = json!({ "name": "f", "input_schema": schema });
        if let Some(strict) = strict {
            (function["strict"], tool["strict"]) = (strict.into(), strict.into());
        }
        let mut flat = function.clone();
        flat["type"] = "function".into();
        let messages = json!([{ "role": "user", "content": "?" }]);
        let interpreter = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
        let function = json!({ "type": "function", "function": function });
        for (path, body) in [
            ("/v1/responses", json!({ "model": "m", "input": "?", "tools": [flat] })),
            ("/v1/chat/completions", json!({ "model": "m", "messages": messages, "tools": [interpreter, function] })),
            ("/v1/messages", json!({ "model": "m", "max_tokens": 10, "messages": messages, "tools": [tool] })),
        ] {
            server.post(path, body).await.ok();
        }
        for asked in &upstream.requests()[3 * index..] {
            let tools = asked["tools"].as_array().unwrap();
            let sent = tools.iter().find(|tool| tool["function"]["name"] == "f").unwrap();
            assert_eq!(sent["function"].get("strict"), strict.map(Value::from).as_ref(), "{asked}");
        }
    }
    server.stop().await;
}
