//! Failures of the model's server, as clients hear of them.

use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::Method;
use serde_json::json;

use crate::common::{listen, model, settings};

#[tokio::test]
async fn a_stream_that_failed_at_once_begins_anew_when_it_is_repeated() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![Scripted::Status(429, "retry-after: 60\r\n", "slow down"), Scripted::Text("Hello.")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let body = json!({ "model": "m", "input": "hello", "stream": true });
    let refused = server.post("/v1/responses", body.clone()).await;
    assert_eq!((refused.status.as_u16(), &refused.headers["retry-after"]), (429, &"60".parse().unwrap()));
    let retried = server.request(Method::POST, "/v1/responses").header("x-stainless-retry-count", "1");
    let retried = server.ask(retried.json(&body)).await;
    assert!(String::from_utf8_lossy(&retried.bytes).contains("event: response.completed"), "{retried:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_conversation_that_is_too_long_for_the_model_has_its_code() {
    let data = tempfile::tempdir().unwrap();
    let refusal = || Scripted::Status(400, "", "This model's maximum context length is 8 tokens.");
    let upstream = ScriptedUpstream::start(vec![refusal(), refusal(), refusal()]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let tool = json!([{ "type": "code_interpreter", "container": { "type": "auto" } }]);
    let chat = json!({ "model": "m", "messages": [{ "role": "user", "content": "hello" }], "tools": tool });
    let response = |stream: bool| json!({ "model": "m", "input": "hello", "stream": stream, "tools": tool });
    for (path, body) in
        [("/v1/chat/completions", chat), ("/v1/responses", response(false)), ("/v1/responses", response(true))]
    {
        let refused = server.post(path, body).await;
        assert_eq!(
            (refused.status.as_u16(), &refused.json()["error"]["code"]),
            (400, &json!("context_length_exceeded"))
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_failed_response_whose_id_nobody_knows_is_not_kept() {
    let data = tempfile::tempdir().unwrap();
    let refusal = || Scripted::Status(400, "", "bad");
    let script = vec![refusal(), refusal(), Scripted::Drop("It is")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let stored = || {
        let query = "SELECT (SELECT count(*) FROM turns) + (SELECT count(*) FROM responses)";
        database.query_row(query, [], |row| row.get::<_, u64>(0)).unwrap()
    };
    for stream in [false, true] {
        let body = json!({ "model": "m", "input": "hello", "stream": stream });
        server.post("/v1/responses", body).await.refused(400, "bad");
        assert_eq!(stored(), 0);
    }
    server.post("/v1/responses", json!({ "model": "m", "input": "hello", "stream": true })).await;
    assert_eq!(stored(), 2, "a client that was told its id can ask for it");
    server.stop().await;
}
