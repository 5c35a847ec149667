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

#[tokio::test]
async fn a_question_or_a_call_that_is_sent_again_does_not_part_a_call_and_its_answer() {
    let data = tempfile::tempdir().unwrap();
    let call = || Scripted::Calls(vec![("f", "{}".to_owned())]);
    let script = vec![call(), Scripted::Text("One."), Scripted::Text("Two."), Scripted::Text("Three.")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let ask = async |input: Value, previous: &Value| {
        let tools = json!([{ "type": "function", "name": "f", "parameters": { "type": "object", "properties": {} } }]);
        let body = json!({ "model": "m", "input": input, "tools": tools, "previous_response_id": previous });
        server.post("/v1/responses", body).await.ok()
    };
    let first = ask(json!("?"), &Value::Null).await;
    let sent = first["output"][0].clone();
    let question = json!({ "role": "user", "content": "?" });
    let answer = json!({ "type": "function_call_output", "call_id": sent["call_id"], "output": "done" });
    let call =
        json!({ "type": "function_call", "call_id": sent["call_id"], "name": "f", "arguments": sent["arguments"] });
    let roles = ["user", "user", "assistant", "tool"];
    // Semantic Kernel sends the question again, and LlamaIndex the call, too.
    for input in [json!([question, answer]), json!([question, call, answer])] {
        let next = ask(input, &first["id"]).await;
        assert_eq!(next["status"], "completed", "{next}");
        let asked = upstream.requests();
        let messages = asked.last().unwrap()["messages"].as_array().unwrap();
        assert_eq!(messages.iter().map(|message| &message["role"]).collect::<Vec<_>>(), roles, "{messages:?}");
    }
    server.stop().await;
}
