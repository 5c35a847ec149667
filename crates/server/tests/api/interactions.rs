//! Gemini's interactions over HTTP.

use crate::common::{Answer, KEYS_FRESH, Server, listen, model, settings};
use aludel_testkit::{Scripted, ScriptedUpstream};
use serde_json::{Value, json};

const PATH: &str = "/v1beta/interactions";

fn question(fields: &Value) -> Value {
    let mut body = json!({ "model": "models/m", "input": "?", "tools": [{ "type": "code_execution" }] });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

async fn create(server: &Server, fields: &Value) -> Answer {
    server.post(PATH, question(fields)).await
}

fn steps<'a>(answer: &'a Value, kind: &str) -> Vec<&'a Value> {
    answer["steps"].as_array().unwrap().iter().filter(|step| step["type"] == kind).collect()
}

#[track_caller]
fn refused(answer: &Answer, status: u16, name: &str, words: &str) {
    let body = answer.json();
    let answered = (answer.status.as_u16(), &body["error"]["code"], &body["error"]["status"]);
    assert_eq!(answered, (status, &json!(status), &json!(name)), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains(words), "{body}");
}

/// The paths of the files in an environment.
async fn files_in(server: &Server, environment: &Value) -> Vec<String> {
    let path = format!("/v1/containers/{}/files", environment.as_str().unwrap());
    let listed = server.get(&path).await.ok();
    let paths = listed["data"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap().to_owned());
    let mut paths: Vec<String> = paths.collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn the_next_interaction_has_the_variables_and_files_of_the_one_before() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![
        Scripted::Python("x = 1"),
        Scripted::Text("Set."),
        Scripted::Python("x"),
        Scripted::Text("Got."),
        Scripted::Python("x"),
        Scripted::Text("None."),
        Scripted::Python("x"),
        Scripted::Text("Got."),
    ];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let first = create(&server, &json!({ "labels": { "a": "b" } })).await.ok();
    assert_eq!(
        (&first["status"], &first["object"], &first["model"]),
        (&json!("completed"), &json!("interaction"), &json!("m"))
    );
    let text = first["steps"].as_array().unwrap().last().unwrap()["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("Set.\n\n- [made.txt](http://") && text.contains("/v1/links/"), "{text}");
    let link = &text[text.find("/v1/links/").unwrap()..text.find(") (").unwrap()];
    assert_eq!(server.get(link).await.bytes, b"made");
    let next = create(&server, &json!({ "previous_interaction_id": first["id"] })).await.ok();
    assert_eq!(next["environment_id"], first["environment_id"]);
    assert_eq!(steps(&next, "code_execution_result")[0]["result"], "1\n");
    // The model sees what was before.
    let seen = upstream.requests()[2]["messages"].to_string();
    assert!(seen.contains("x = 1") && seen.contains("Set.") && !seen.contains("code_execution"), "{seen}");
    let other = create(&server, &json!({})).await.ok();
    assert_ne!(other["environment_id"], first["environment_id"]);
    assert_eq!(steps(&other, "code_execution_result")[0]["is_error"], true);
    let named = json!({ "environment": { "type": "remote", "environment_id": first["environment_id"] } });
    let named = create(&server, &named).await.ok();
    assert_eq!(steps(&named, "code_execution_result")[0]["result"], "1\n");
    server.stop().await;
}

#[tokio::test]
async fn files_of_every_kind_are_in_the_workspace() {
    let data = tempfile::tempdir().unwrap();
    let script = || [Scripted::Python("print('marker-7f3a', 6 * 7)"), Scripted::Text("42")];
    let upstream = ScriptedUpstream::start([script(), script(), script()].concat()).await;
    let mut server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let key = server.store.create_key("a", None).await.unwrap().secret;
    let other = server.store.create_key("b", None).await.unwrap().secret;
    tokio::time::sleep(KEYS_FRESH).await;
    server.use_key(&key);
    let kept = server.upload("sales.csv", b"a,b\n").await;
    let kept = format!("files/{}", kept.strip_prefix("file-").unwrap());
    let csv = json!({ "type": "document", "data": "YSxiCg==", "mime_type": "text/csv" });
    let input = json!([
        { "type": "text", "text": "?" },
        csv,
        csv,
        { "type": "image", "data": "iVBORw0KGgo=", "mime_type": "image/png" },
        { "type": "document", "uri": kept },
    ]);
    let source = json!({ "type": "inline", "content": "x = 1", "target": "/mnt/data/lib/a.py" });
    let environment = json!({ "type": "remote", "sources": [source] });
    let asked = json!({ "input": input, "environment": environment });
    server.use_key(&other);
    refused(&create(&server, &asked).await, 404, "NOT_FOUND", "does not exist");
    server.use_key(&key);
    let first = create(&server, &asked).await.ok();
    let paths = files_in(&server, &first["environment_id"]).await;
    let named = |ending: &str| paths.iter().filter(|path| path.contains("/input_") && path.ends_with(ending)).count();
    assert_eq!((named(".csv"), named(".png"), paths.len()), (1, 1, 4), "{paths:?}");
    assert!(
        ["/mnt/data/sales.csv", "/mnt/data/lib/a.py"].iter().all(|path| paths.contains(&(*path).to_owned())),
        "{paths:?}"
    );
    let seen = upstream.requests()[0].to_string();
    assert_eq!(seen.matches("attached a file: /mnt/data/").count(), 4, "{seen}");
    // A file that is gone does not keep the conversation from going on, and is what another of the name becomes.
    server.delete(&format!("/v1beta/{kept}")).await.ok();
    let more = json!([{ "type": "document", "data": "YyxkCg==", "mime_type": "text/csv" }]);
    let next = create(&server, &json!({ "previous_interaction_id": first["id"], "input": more })).await.ok();
    assert_eq!(files_in(&server, &next["environment_id"]).await.len(), 5);
    assert!(upstream.requests()[2].to_string().contains("is gone"));
    let again = json!({ "previous_interaction_id": next["id"], "input": [{ "type": "document", "uri": kept }] });
    refused(&create(&server, &again).await, 404, "NOT_FOUND", "does not exist");
    // Nobody else's environment, and nobody else's interaction.
    server.use_key(&other);
    refused(&create(&server, &json!({ "environment": first["environment_id"] })).await, 404, "NOT_FOUND", "");
    refused(&create(&server, &json!({ "previous_interaction_id": first["id"] })).await, 404, "NOT_FOUND", "not found");
    refused(&server.get(&format!("{PATH}/{}", first["id"].as_str().unwrap())).await, 404, "NOT_FOUND", "not found");
    server.stop().await;
}

#[tokio::test]
async fn what_cannot_be_begun_leaves_no_session_and_no_row() {
    let data = tempfile::tempdir().unwrap();
    let refusal = Scripted::Status(400, "", "bad");
    let upstream = ScriptedUpstream::start(vec![refusal]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let tenant = aludel_store::Tenant::local();
    let before = server.store.bytes_of(&tenant).await.unwrap();
    let source = json!({ "type": "inline", "content": "", "target": "../a" });
    let outside = json!({ "environment": { "type": "remote", "sources": [source] } });
    refused(&create(&server, &outside).await, 400, "INVALID_ARGUMENT", "not allowed");
    assert_eq!(server.store.bytes_of(&tenant).await.unwrap(), before);
    let plain = json!({ "tools": [] });
    refused(&create(&server, &plain).await, 400, "INVALID_ARGUMENT", "bad");
    assert_eq!(server.store.bytes_of(&tenant).await.unwrap(), before);
    server.stop().await;
}

#[tokio::test]
async fn an_interaction_is_bounded_by_what_a_tenant_may_store() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("Hello.")]).await;
    let settings = settings().engine(|engine| engine.storage = 200 << 10);
    let server = listen(data.path(), settings, vec![model("m", upstream.url())]).await;
    let long = "x".repeat(256 << 10);
    let full = create(&server, &json!({ "tools": [], "input": long })).await;
    refused(&full, 400, "INVALID_ARGUMENT", "may be stored");
    create(&server, &json!({ "tools": [] })).await.ok();
    server.stop().await;
}
