//! Containers over HTTP, the sandbox behind them real.

use std::time::{Duration, Instant};

use crate::common::{Server, files_in, listen, model, settings, start, start_with};
use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::Method;
use serde_json::{Value, json};

async fn create(server: &Server, body: Value) -> (String, Value) {
    let container = server.post("/v1/containers", body).await.ok();
    (format!("/v1/containers/{}", container["id"].as_str().unwrap()), container)
}

#[tokio::test]
async fn a_container_says_what_clients_expect() {
    let data = tempfile::tempdir().unwrap();
    let server = start_with(data.path(), settings().engine(|engine| engine.max_memory = 5 << 30)).await;
    let (path, container) = create(&server, json!({ "name": "plain" })).await;
    let id = container["id"].as_str().unwrap();
    assert!(id.starts_with("cntr_") && id.len() == "cntr_".len() + 48);
    let expected = json!({
        "id": id, "object": "container", "name": "plain", "status": "running", "created_at": container["created_at"],
        "last_active_at": container["last_active_at"], "memory_limit": "1g",
        "expires_after": { "anchor": "last_active_at", "minutes": 20 }, "network_policy": { "type": "disabled" },
    });
    assert_eq!(container, expected);
    let body = json!({
        "name": "full", "memory_limit": "4g", "expires_after": { "anchor": "last_active_at", "minutes": 7 },
        "network_policy": { "type": "disabled" }, "file_ids": null, "skills": [],
    });
    let (_, full) = create(&server, body).await;
    assert_eq!((&full["memory_limit"], &full["expires_after"]["minutes"]), (&json!("4g"), &json!(7)));
    let found = server.get("/v1/containers?name=plain").await.ok();
    assert_eq!((found["data"].as_array().unwrap().len(), &found["data"][0]["id"]), (1, &json!(id)));
    let first = server.get("/v1/containers?limit=1").await.ok();
    assert_eq!((&first["data"][0]["name"], &first["has_more"]), (&json!("full"), &json!(true)));
    for (body, words) in [
        (json!({ "name": "n", "memory_limit": "16g" }), "The largest possible value is '4g'"),
        (json!({}), "'name'"),
        (json!({ "name": "x".repeat(300) }), "256"),
        (json!({ "name": "n", "memory_limit": "2g" }), "memory_limit"),
        (json!({ "name": "n", "expires_after": { "anchor": "last_active_at", "minutes": 0 } }), "minutes"),
        (json!({ "name": "n", "expires_after": { "anchor": "created_at", "minutes": 5 } }), "expires_after"),
        (json!({ "name": "n", "network_policy": { "type": "allowlist", "allowed_domains": ["a.b"] } }), "no network"),
        (json!({ "name": "n", "skills": [{ "type": "skill_reference", "skill_id": "s" }] }), "skills"),
        (json!({ "name": "n", "file_ids": vec!["file-1"; 51] }), "50"),
    ] {
        server.post("/v1/containers", body).await.refused(400, words);
    }
    server.post("/v1/containers", json!({ "name": "n", "file_ids": ["file-1"] })).await.refused(404, "file-1");
    server.post("/v1/containers", json!({ "name": "n", "file_ids": ["../x"] })).await.refused(404, "../x");
    assert_eq!(
        server.get("/v1/containers").await.ok()["data"].as_array().unwrap().len(),
        2,
        "nothing is left of those"
    );
    let deleted = server.delete(&path).await.ok();
    assert_eq!(deleted, json!({ "id": id, "object": "container.deleted", "deleted": true }));
    server.get(&path).await.refused(404, &format!("Container with id '{id}' not found."));
    server.delete(&path).await.refused(404, "not found");
    server.stop().await;
}

#[tokio::test]
async fn programs_find_the_variables_of_their_container_and_nobody_is_told_their_values() {
    let data = tempfile::tempdir().unwrap();
    let prints = |name: &str| Scripted::Python(&*format!("print(os.environ['{name}'])").leak());
    let done = Scripted::Text("Done.");
    let script =
        vec![prints("A"), done.clone(), prints("B"), done.clone(), prints("A"), done.clone(), prints("C"), done];
    let upstream = ScriptedUpstream::start(script).await;
    let models = || vec![model("m", upstream.url())];
    let server = listen(data.path(), settings(), models()).await;
    let ask = async |server: &Server, path: &str, container: Value| {
        let tools = json!([{ "type": "code_interpreter", "container": container }]);
        let message = json!([{ "role": "user", "content": "Go" }]);
        let body = match path {
            "/v1/responses" => json!({
                "model": "m", "input": message, "tools": tools, "include": ["code_interpreter_call.outputs"]
            }),
            _ => json!({ "model": "m", "messages": message, "tools": tools }),
        };
        server.post(path, body).await.ok()
    };
    let printed = |response: &Value| response["output"][0]["outputs"][0]["logs"].clone();

    let first = ask(&server, "/v1/responses", json!({ "type": "auto", "env": { "A": "sesame-1" } })).await;
    assert_eq!(printed(&first), "sesame-1\n");
    assert_eq!(first["tools"][0]["container"], json!({ "type": "auto", "env": { "A": "" } }));
    let stored = server.get(&format!("/v1/responses/{}", first["id"].as_str().unwrap())).await.ok();
    assert_eq!(stored["tools"], first["tools"]);
    let id = first["output"][0]["container_id"].as_str().unwrap().to_owned();

    let (path, made) = create(&server, json!({ "name": "c", "env": { "B": "sesame-2" } })).await;
    assert!(!made.to_string().contains("sesame"), "{made}");
    let second = ask(&server, "/v1/responses", made["id"].clone()).await;
    assert_eq!(printed(&second), "sesame-2\n");
    server.stop().await;

    // After a restart, in another sandbox.
    let server = listen(data.path(), settings(), models()).await;
    let third = ask(&server, "/v1/responses", json!(id)).await;
    assert_eq!(printed(&third), "sesame-1\n");
    let chat = ask(&server, "/v1/chat/completions", json!({ "type": "auto", "env": { "C": "3" } })).await;
    assert!(chat.to_string().contains("\"logs\":\"3\\n\""), "{chat}");
    for body in [json!({ "A": 1 }), json!(["A"]), json!({ "A=B": "" }), json!({ "A": "x".repeat(64 << 10) })] {
        let error = server.post("/v1/containers", json!({ "name": "n", "env": body })).await.refused(400, "nvalid");
        assert_eq!(error["param"], "env");
    }
    server.delete(&path).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn files_in_containers_survive_a_restart_byte_for_byte() {
    let data = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..=255).collect::<Vec<u8>>().repeat(4000);
    let server = start(data.path()).await;
    let file = server.upload("Ü 1.csv", &content).await;
    let (path, _) = create(&server, json!({ "name": "c", "file_ids": [file] })).await;
    let direct = server.send(&format!("{path}/files"), &[], "sub/direct.png", b"\x89PNG\r\n\x1a\n\0").await.ok();
    let copied = server.post(&format!("{path}/files"), json!({ "file_id": file })).await.ok();
    assert_eq!((&direct["path"], &direct["source"]), (&json!("/mnt/data/sub/direct.png"), &json!("user")));
    assert_eq!((&copied["path"], &copied["bytes"]), (&json!("/mnt/data/Ü 1-2.csv"), &json!(content.len())));
    // The container has its own copy.
    server.delete(&format!("/v1/files/{file}")).await.ok();
    let before = server.get(&format!("{path}/files?order=asc")).await.ok();
    assert_eq!(before["data"].as_array().unwrap().len(), 3);
    server.stop().await;

    let server = start(data.path()).await;
    assert_eq!(server.get(&path).await.ok()["status"], "running");
    assert_eq!(server.get(&format!("{path}/files?order=asc")).await.ok(), before);
    let file_path = |file: &Value| format!("{path}/files/{}", file["id"].as_str().unwrap());
    for (file, expected) in [(&before["data"][0], content.as_slice()), (&direct, b"\x89PNG\r\n\x1a\n\0")] {
        assert_eq!(&server.get(&file_path(file)).await.ok(), file);
        let answer = server.get(&format!("{}/content", file_path(file))).await;
        assert!(answer.status == 200 && answer.bytes == expected);
    }
    let answer = server.get(&format!("{}/content", file_path(&direct))).await;
    assert_eq!(answer.headers["content-type"], "image/png");
    assert_eq!(answer.headers["content-disposition"], "attachment; filename*=UTF-8''direct.png");
    let replaced = server.send(&format!("{path}/files"), &[], "sub/direct.png", b"new").await.ok();
    assert_eq!((&replaced["id"], &replaced["bytes"]), (&direct["id"], &json!(3)));
    let deleted = server.delete(&file_path(&direct)).await.ok();
    assert_eq!((&deleted["object"], &deleted["deleted"]), (&json!("container.file.deleted"), &json!(true)));
    let gone = format!("File {} not found on container", direct["id"].as_str().unwrap());
    server.get(&file_path(&direct)).await.refused(404, &gone);
    server.get(&format!("{}/content", file_path(&direct))).await.refused(404, &gone);
    server.delete(&path).await.ok();
    server.stop().await;
    assert_eq!(files_in(&data.path().join("blobs")), 0);
}

#[tokio::test]
async fn hostile_names_and_bodies_get_a_clear_400() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let (path, _) = create(&server, json!({ "name": "c" })).await;
    let files = format!("{path}/files");
    for (name, words) in
        [("../x", "'..'"), ("/etc/passwd", "absolute"), ("a/../../x", "'..'"), ("a//b", "empty"), ("a\\b", "backslash")]
    {
        server.send(&files, &[], name, b"x").await.refused(400, words);
    }
    let deep = format!("{}x", "d/".repeat(40));
    server.send(&files, &[], &deep, b"x").await.refused(400, "parts");
    server.send(&files, &[], "large", &vec![0; 65 << 20]).await.refused(400, "64 MB");
    server.post(&files, json!({})).await.refused(400, "'file_id'");
    server.post(&files, json!({ "file_id": 3 })).await.refused(400, "'file_id'");
    server.post(&files, json!({ "file_id": "file-0" })).await.refused(404, "file-0");
    let empty =
        server.request(Method::POST, &files).header("content-type", "multipart/form-data; boundary=b").body("--b--");
    server.ask(empty).await.refused(400, "'file'");
    assert_eq!(server.get(&files).await.ok()["data"], json!([]));
    server.stop().await;
    assert_eq!(files_in(&data.path().join("blobs")), 0);
}

#[tokio::test]
async fn after_its_time_a_container_says_so_and_its_files_can_still_be_fetched() {
    let data = tempfile::tempdir().unwrap();
    let idle = Duration::from_millis(600);
    let server = start_with(data.path(), settings().engine(|engine| engine.idle = idle)).await;
    let (path, _) = create(&server, json!({ "name": "c" })).await;
    let file = server.send(&format!("{path}/files"), &[], "a.txt", b"kept").await.ok();
    // Asking keeps it alive.
    let made = Instant::now();
    while made.elapsed() < idle * 3 / 2 {
        assert_eq!(server.get(&path).await.ok()["status"], "running");
        tokio::time::sleep(idle / 20).await;
    }
    tokio::time::sleep(idle + Duration::from_millis(200)).await;
    assert_eq!(server.get(&path).await.ok()["status"], "expired");
    server.send(&format!("{path}/files"), &[], "b.txt", b"late").await.refused(400, "Container is expired.");
    let content = format!("{path}/files/{}/content", file["id"].as_str().unwrap());
    assert_eq!(server.get(&content).await.bytes, b"kept");
    assert_eq!(server.get(&path).await.ok()["status"], "expired", "reading does not bring it back");
    server.stop().await;
}

#[tokio::test]
async fn files_of_old_containers_go_away_in_the_end() {
    let data = tempfile::tempdir().unwrap();
    let soon = Duration::from_millis(10);
    let settings = settings().engine(|engine| (engine.idle, engine.retention) = (soon, soon));
    let server = start_with(data.path(), settings.clone()).await;
    let (path, _) = create(&server, json!({ "name": "c" })).await;
    server.post("/v1/containers", json!({ "name": "d" })).await.ok();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop().await;
    // A server looks at once, and then each minute.
    let server = start_with(data.path(), settings).await;
    for _ in 0..600 {
        if server.get(&path).await.status == 404 {
            return server.stop().await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it is still there");
}

#[tokio::test]
async fn files_of_one_name_are_told_apart() {
    let data = tempfile::tempdir().unwrap();
    let upstream =
        ScriptedUpstream::start([(); 5].map(|()| [Scripted::Python("1"), Scripted::Text("Seen.")]).concat()).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let asked = |place: usize| upstream.requests()[2 * place]["messages"].to_string();
    let tools = json!([{ "type": "code_interpreter", "container": { "type": "auto" } }]);
    let inline = |data: &str| json!({ "type": "input_file", "filename": "q.csv", "file_data": format!("data:text/csv;base64,{data}") });
    let january = server.upload("q.csv", b"JAN").await;
    let february = server.upload("q.csv", b"FEB").await;
    let mut previous = Value::Null;
    for (place, (part, names)) in [
        (json!({ "type": "input_file", "file_id": january }), &["q.csv"][..]),
        (json!({ "type": "input_file", "file_id": february }), &["q.csv", "q-2.csv"]),
        (inline("TUFS"), &["q.csv", "q-2.csv", "q-3.csv"]),
        // It is there already.
        (inline("RkVC"), &["q.csv", "q-2.csv", "q-3.csv", "q-2.csv"]),
    ]
    .into_iter()
    .enumerate()
    {
        let body = json!({ "model": "m", "input": [{ "role": "user", "content": [part] }], "tools": tools, "previous_response_id": previous });
        previous = server.post("/v1/responses", body).await.ok()["id"].clone();
        let asked = asked(place);
        let told: Vec<&str> =
            asked.split("attached a file: /mnt/data/").skip(1).filter_map(|rest| rest.split(']').next()).collect();
        assert_eq!(told, names, "{asked}");
    }
    let container = server.get("/v1/containers").await.ok()["data"][0]["id"].as_str().unwrap().to_owned();
    let files = server.get(&format!("/v1/containers/{container}/files")).await.ok();
    assert_eq!(files["data"].as_array().unwrap().len(), 3, "{files}");
    let file = |file: Value| json!({ "type": "file", "file": file });
    let inline = |data: &str| file(json!({ "filename": "q.csv", "file_data": format!("data:text/csv;base64,{data}") }));
    let content =
        [file(json!({ "file_id": january })), file(json!({ "file_id": february })), inline("TUFS"), inline("TUFS")];
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": content }], "tools": [{ "type": "code_interpreter" }] });
    server.post("/v1/chat/completions", body).await.ok();
    let asked = asked(4);
    for (name, times) in [("q.csv", 1), ("q-2.csv", 1), ("q-3.csv", 2)] {
        assert_eq!(asked.matches(&format!("/mnt/data/{name}]")).count(), times, "{asked}");
    }
    server.stop().await;
}
