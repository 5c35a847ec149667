//! The bound on what a key stores, under clients that try to get past it.

use std::path::Path;

use crate::common::{Server, Settings, listen, model, settings, start_with};
use aludel_store::Store;
use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

const MB: u64 = 1 << 20;

fn one_megabyte() -> Settings {
    settings().engine(|engine| engine.storage = MB)
}

/// Bytes of all files below a directory.
fn bytes_in(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let bytes = |path: &Path| if path.is_dir() { bytes_in(path) } else { path.metadata().unwrap().len() };
    entries.map(|entry| bytes(&entry.path())).sum()
}

/// Bytes of blobs and of the database, without what that keeps free for later.
fn stored(data: &Path) -> u64 {
    let database = rusqlite::Connection::open(data.join("aludel.db")).unwrap();
    let query = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size";
    bytes_in(&data.join("blobs"))
        + bytes_in(&data.join("scratch"))
        + database.query_row(query, [], |row| row.get::<_, u64>(0)).unwrap()
}

async fn responses(data: &Path, script: Vec<Scripted>) -> (Server, ScriptedUpstream) {
    let upstream = ScriptedUpstream::start(script).await;
    (listen(data, one_megabyte(), vec![model("m", upstream.url())]).await, upstream)
}

fn request(fields: &Value) -> Value {
    let tools = json!([{ "type": "code_interpreter", "container": { "type": "auto" } }]);
    let mut body = json!({ "model": "m", "input": "Go", "tools": tools });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn figures_stay_within_the_bound_and_the_turn_says_so() {
    let data = tempfile::tempdir().unwrap();
    let script = (0..6).flat_map(|_| [Scripted::Python("show(100_000)"), Scripted::Text("Done.")]);
    let (server, _upstream) = responses(data.path(), script.collect()).await;
    let empty = stored(data.path());
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let answer = server.post("/v1/responses", request(&json!({}))).await;
        if answer.status == 400 {
            let error = answer.refused(400, "used up");
            assert_eq!(error["code"], "storage_limit_exceeded");
            continue;
        }
        let response = answer.ok();
        match response["status"].as_str().unwrap() {
            "completed" => done.push(response["id"].as_str().unwrap().to_owned()),
            _ => {
                assert!(response["error"]["message"].as_str().unwrap().contains("1 MB"), "{response}");
                failed.push(response["id"].as_str().unwrap().to_owned());
            }
        }
    }
    assert!(!done.is_empty() && done.len() + failed.len() <= 6);
    assert!(stored(data.path()) <= empty + MB, "{} bytes beside {empty}", stored(data.path()));
    for id in done.iter().chain(&failed) {
        let kept = server.get(&format!("/v1/responses/{id}")).await.ok();
        assert_eq!(kept["status"] == "completed", done.contains(id), "{kept}");
    }
    server.stop().await;
}

#[tokio::test]
async fn uploads_at_once_stay_within_the_bound() {
    let data = tempfile::tempdir().unwrap();
    let server = start_with(data.path(), one_megabyte()).await;
    let empty = stored(data.path());
    let new = json!({ "bytes": 400_000, "filename": "a.csv", "purpose": "user_data", "mime_type": "text/csv" });
    let upload = server.post("/v1/uploads", new).await.ok();
    let path = format!("/v1/uploads/{}/parts", upload["id"].as_str().unwrap());
    let sending = (0..10).map(|number| {
        let part = Part::bytes(vec![number; 400_000]).file_name("a.csv");
        let form = Form::new().text("purpose", "user_data");
        let (path, form) = match number % 2 {
            0 => ("/v1/files", form.part("file", part)),
            _ => (path.as_str(), form.part("data", part)),
        };
        server.ask(server.request(Method::POST, path).multipart(form))
    });
    let answers = futures_util::future::join_all(sending).await;
    let taken = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((1..=2).contains(&taken), "{taken} were taken");
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!(answer.refused(400, "used up")["code"], "storage_limit_exceeded");
    }
    assert!(stored(data.path()) <= empty + MB, "{} bytes beside {empty}", stored(data.path()));
    server.stop().await;
}

#[tokio::test]
async fn conversations_stay_within_the_bound() {
    let data = tempfile::tempdir().unwrap();
    let script = (0..10).map(|_| Scripted::Text("Done."));
    let (server, _upstream) = responses(data.path(), script.collect()).await;
    let empty = stored(data.path());
    let text = "x".repeat(150_000);
    let message = json!({ "type": "message", "role": "user", "content": text });
    let conversation = server.post("/v1/conversations", json!({})).await.ok();
    let id = conversation["id"].as_str().unwrap();
    let mut refused = 0;
    for number in 0..10 {
        let answer = match number % 2 {
            0 => server.post(&format!("/v1/conversations/{id}/items"), json!({ "items": [message] })).await,
            _ => server.post("/v1/responses", json!({ "model": "m", "input": [message], "conversation": id })).await,
        };
        if answer.status != 200 {
            assert_eq!(answer.refused(400, "used up")["code"], "storage_limit_exceeded");
            refused += 1;
        }
    }
    assert!((1..10).contains(&refused), "{refused} were refused");
    assert!(stored(data.path()) <= empty + MB, "{} bytes beside {empty}", stored(data.path()));
    server.delete(&format!("/v1/conversations/{id}")).await.ok();
    server.upload("a.csv", &[0; 100_000]).await;
    server.stop().await;
}

#[tokio::test]
async fn work_is_counted_for_its_key() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Python("show()"), Scripted::Text("A picture.")]).await;
    let mut server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let key = server.store.create_key("one", None).await.unwrap();
    server.use_key(&key.secret);
    let tool = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
    server.post("/v1/responses", json!({ "model": "m", "input": "hello", "tools": [tool] })).await.ok();
    server.stop().await;
    let metered = Store::open(data.path()).await.unwrap().metered(0).await.unwrap();
    assert!(metered.iter().all(|row| row.tenant.as_str() == key.id.as_str()), "{metered:?}");
    let of = |model: &str| metered.iter().find(|row| row.model == model).map(|row| row.work).unwrap();
    let work = of("m");
    // Two rounds of the model's.
    assert_eq!((work.requests, work.input_tokens, work.output_tokens, work.programs), (1, 20, 10, 1));
    assert_eq!(of("").requests, 0);
}
