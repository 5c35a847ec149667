//! Models that do not chat.

use crate::common::{listen, model, settings};
use aludel_engine::Model;
use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::json;

#[tokio::test]
async fn embeddings_speech_and_transcripts_come_from_the_models_server() {
    let data = tempfile::tempdir().unwrap();
    let embedding = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5]}]}"#;
    let script = vec![
        Scripted::Status(200, "content-type: application/json\r\n", embedding),
        Scripted::Status(200, "content-type: audio/mpeg\r\n", "sound"),
        Scripted::Status(200, "content-type: application/json\r\n", r#"{"text":"hello"}"#),
        Scripted::Status(400, "content-type: application/json\r\n", r#"{"error":{"message":"no such voice"}}"#),
    ];
    let upstream = ScriptedUpstream::start(script).await;
    let ours = model("ours", upstream.url());
    let server = listen(data.path(), settings(), vec![ours]).await;
    let asked = json!({ "model": "ours", "input": "model" });
    assert_eq!(server.post("/v1/embeddings", asked.clone()).await.ok()["data"][0]["embedding"], json!([0.5]));
    let speech = server.post("/v1/audio/speech", asked.clone()).await;
    assert_eq!((&*speech.bytes, speech.headers["content-type"].to_str().unwrap()), (&b"sound"[..], "audio/mpeg"));
    let form = Form::new().part("file", Part::bytes(b"RIFF".to_vec()).file_name("a.wav")).text("model", "ours");
    let request = server.request(Method::POST, "/v1/audio/transcriptions").multipart(form);
    assert_eq!(server.ask(request).await.ok()["text"], "hello");
    let refused = server.post("/v1/audio/speech", asked).await;
    assert_eq!((refused.status.as_u16(), &*refused.bytes), (400, &br#"{"error":{"message":"no such voice"}}"#[..]));
    let heads = upstream.heads().join("\n");
    for path in ["/v1/embeddings", "/v1/audio/speech", "/v1/audio/transcriptions"] {
        assert!(heads.contains(&format!("post {path} ")), "{heads}");
    }
    let bodies = upstream.requests();
    assert_eq!(bodies[0], json!({ "model": "ours-upstream", "input": "model" }));
    let form = bodies[2].as_str().unwrap();
    assert!(form.contains("name=\"model\"\r\n\r\nours-upstream\r\n") && form.contains("RIFF"), "{form}");
    server.stop().await;
}

#[tokio::test]
async fn requests_that_nobody_can_answer_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(Vec::new()).await;
    let elsewhere = Model { endpoint: None, ..model("demo", upstream.url()) };
    let server = listen(data.path(), settings(), vec![elsewhere]).await;
    server.post("/v1/embeddings", json!({ "input": "x" })).await.refused(400, "'model'");
    server.post("/v1/embeddings", json!({ "model": 7 })).await.refused(400, "'model'");
    server.post("/v1/embeddings", json!({ "model": "none" })).await.refused(404, "none");
    server.post("/v1/embeddings", json!({ "model": "demo" })).await.refused(400, "has no /embeddings");
    let form = server.request(Method::POST, "/v1/images/edits").multipart(Form::new().text("prompt", "x"));
    server.ask(form).await.refused(400, "'model'");
    // The model's server might read another name in these.
    let twice = Form::new().text("model", "demo").text("model", "secret");
    let form = server.request(Method::POST, "/v1/images/edits").multipart(twice);
    server.ask(form).await.refused(400, "twice");
    let body = r#"{"model":"demo","x":"&model=secret&"}"#;
    let kind = "application/x-www-form-urlencoded";
    let request = server.request(Method::POST, "/v1/embeddings").header("content-type", kind).body(body);
    server.ask(request).await.refused(400, "not application/x-www");
    assert!(upstream.requests().is_empty());
    server.stop().await;
}
