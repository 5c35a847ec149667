//! Files, uploads and conversations, over HTTP.

use crate::common::{files_in, settings, start, start_with};
use md5::{Digest, Md5};
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

/// Every byte there is, in no simple order.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u32;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(length)
    .collect()
}

#[tokio::test]
async fn a_file_comes_back_byte_for_byte_also_after_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let content = noise(5 << 20);
    let file = server.send("/v1/files", &[("purpose", "user_data")], "Übersicht 1.csv", &content).await.ok();
    assert_eq!(file["bytes"], content.len());
    assert_eq!((&file["object"], &file["status"]), (&json!("file"), &json!("processed")));
    assert_eq!((&file["filename"], &file["purpose"]), (&json!("Übersicht 1.csv"), &json!("user_data")));
    let id = file["id"].as_str().unwrap();
    assert!(id.starts_with("file-") && id.len() <= 64);
    let empty = server.upload("empty.txt", b"").await;
    server.stop().await;

    let server = start(data.path()).await;
    assert_eq!(server.get(&format!("/v1/files/{id}")).await.ok(), file);
    let answer = server.get(&format!("/v1/files/{id}/content")).await;
    assert!(answer.bytes == content, "{} bytes of {}", answer.bytes.len(), content.len());
    assert_eq!(answer.headers["content-type"], "text/csv");
    assert_eq!(answer.headers["content-disposition"], "attachment; filename*=UTF-8''%C3%9Cbersicht%201.csv");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    assert_eq!(server.get(&format!("/v1/files/{empty}/content")).await.bytes, b"");
    let deleted = server.delete(&format!("/v1/files/{id}")).await.ok();
    assert_eq!(deleted, json!({ "id": id, "object": "file", "deleted": true }));
    server.delete(&format!("/v1/files/{id}")).await.refused(404, id);
    server.get(&format!("/v1/files/{id}/content")).await.refused(404, id);
    server.stop().await;
}

#[tokio::test]
async fn lists_are_walked_with_after() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let mut ids = Vec::new();
    for number in 0..3 {
        ids.insert(0, server.upload(&format!("{number}.txt"), b"x").await);
    }
    let page = server.get("/v1/files?limit=2").await.ok();
    assert_eq!(
        (&page["has_more"], &page["first_id"], &page["last_id"]),
        (&json!(true), &json!(ids[0]), &json!(ids[1]))
    );
    let page = server.get(&format!("/v1/files?limit=2&after={}", ids[1])).await.ok();
    assert_eq!((&page["has_more"], &page["data"][0]["id"]), (&json!(false), &json!(ids[2])));
    assert_eq!(server.get("/v1/files?order=asc").await.ok()["data"][0]["id"], json!(ids[2]));
    assert_eq!(server.get("/v1/files?purpose=batch").await.ok()["data"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn hostile_uploads_get_a_clear_400_and_leave_nothing() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let purpose: &[(&str, &str)] = &[("purpose", "user_data")];
    let long = "a".repeat(300);
    for (name, words) in [
        ("../../etc/cron.d/x", "'..'"),
        ("/etc/passwd", "absolute"),
        ("a/../../b", "'..'"),
        ("..", "'..'"),
        ("a\u{7f}b", ""),
        ("C:\\Windows\\x", "backslash"),
        (&long, "255 are allowed"),
    ] {
        let error = server.send("/v1/files", purpose, name, b"x").await.refused(400, words);
        assert_eq!(error["type"], "invalid_request_error", "{name}");
    }
    for name in ["a%00b", "a\\0b"] {
        // Not decoded by anybody, so the first is a plain name.
        let answer = server.send("/v1/files", purpose, name, b"x").await;
        assert!([200, 400].contains(&answer.status.as_u16()), "{name}");
    }
    let raw = async |content_type: &str, body: &[u8]| {
        let request = server.request(Method::POST, "/v1/files").header("content-type", content_type);
        server.ask(request.body(body.to_vec())).await
    };
    let form = "multipart/form-data; boundary=b";
    let nul = b"--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\0b\"\r\n\r\nx\r\n--b--\r\n";
    raw(form, nul).await.refused(400, "");
    let latin = b"--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"\xfcber.csv\"\r\n\r\nx\r\n--b--\r\n";
    raw(form, latin).await.refused(400, "UTF-8");
    let above =
        b"--b\r\ncontent-disposition: form-data; name=file; filename=a; filename*=utf-8''..%2Fb\r\n\r\nx\r\n--b--\r\n";
    raw(form, above).await.refused(400, "");
    raw(form, b"--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx")
        .await
        .refused(400, "multipart");
    raw(form, b"not a form").await.refused(400, "multipart");
    raw(form, &vec![b'x'; 3 << 20]).await.refused(400, "no end");
    let endless = [b"--b\r\ncontent-disposition: form-data; name=\"".as_slice(), &vec![b'x'; 3 << 20]].concat();
    raw(form, &endless).await.refused(400, "no end");
    raw("multipart/form-data", b"--b--").await.refused(400, "");
    raw("text/plain", b"x").await.refused(400, "multipart/form-data");
    raw(
        form,
        &[b"--b\r\ncontent-disposition: form-data; name=\"x\"\r\n\r\nx\r\n".repeat(100), b"--b--\r\n".to_vec()]
            .concat(),
    )
    .await
    .refused(400, "parts");
    raw(
        form,
        &[
            b"--b\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\n".as_slice(),
            &[b'x'; 1 << 20],
            b"\r\n--b--\r\n",
        ]
        .concat(),
    )
    .await
    .refused(413, "'purpose'");
    let halves = Form::new().text("one", "x".repeat(40 << 10)).text("two", "x".repeat(40 << 10));
    let halves = server.ask(server.request(Method::POST, "/v1/files").multipart(halves)).await;
    halves.refused(413, "'two'");
    let named = Form::new().text("n".repeat(300), "x");
    let named = server.ask(server.request(Method::POST, "/v1/files").multipart(named)).await;
    named.refused(400, "longer than 256 bytes");
    server.send("/v1/files", &[], "a.txt", b"x").await.refused(400, "'purpose'");
    server.send("/v1/files", &[("purpose", "evil")], "a.txt", b"x").await.refused(400, "user_data");
    let twice =
        Form::new().part("file", Part::bytes(vec![1]).file_name("a")).part("file", Part::bytes(vec![2]).file_name("b"));
    let twice = server.ask(server.request(Method::POST, "/v1/files").multipart(twice)).await;
    twice.refused(400, "more than one");
    for file in server.get("/v1/files").await.ok()["data"].as_array().unwrap() {
        server.delete(&format!("/v1/files/{}", file["id"].as_str().unwrap())).await.ok();
    }
    server.stop().await;
    assert_eq!((files_in(&data.path().join("blobs")), files_in(&data.path().join("scratch"))), (0, 0));
}

#[tokio::test]
async fn a_tenant_can_store_so_much_and_no_more() {
    let data = tempfile::tempdir().unwrap();
    let server = start_with(data.path(), settings().engine(|engine| engine.storage = 3 << 20)).await;
    let first = server.upload("a", &noise(2 << 20)).await;
    let error =
        server.send("/v1/files", &[("purpose", "user_data")], "b", &noise(2 << 20)).await.refused(400, "used up");
    assert_eq!(error["code"], "storage_limit_exceeded");
    server.delete(&format!("/v1/files/{first}")).await.ok();
    server.upload("b", &noise(2 << 20)).await;
    server.stop().await;
}

#[tokio::test]
async fn an_upload_in_parts_becomes_a_file() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let content = noise(3000);
    let new = |bytes: usize| json!({ "bytes": bytes, "filename": "big.csv", "purpose": "user_data", "mime_type": "text/csv" });
    let upload = server.post("/v1/uploads", new(3000)).await.ok();
    assert_eq!((&upload["status"], &upload["object"]), (&json!("pending"), &json!("upload")));
    let path = format!("/v1/uploads/{}", upload["id"].as_str().unwrap());
    let mut parts = Vec::new();
    // Sent in another order than they are put together.
    for range in [1000..3000, 0..1000] {
        let form = Form::new().part("data", Part::bytes(content[range].to_vec()).file_name("blob"));
        let sent = server.ask(server.request(Method::POST, &format!("{path}/parts")).multipart(form)).await;
        parts.insert(0, sent.ok()["id"].clone());
    }
    server.post(&format!("{path}/complete"), json!({ "part_ids": [parts[0]] })).await.refused(400, "3000");
    server.post(&format!("{path}/complete"), json!({ "part_ids": [parts[0], parts[0]] })).await.refused(400, "twice");
    let complete =
        async |md5: &str| server.post(&format!("{path}/complete"), json!({ "part_ids": parts, "md5": md5 })).await;
    assert_eq!(complete("0").await.refused(400, "Send them again")["param"], "md5");
    let digest: String = Md5::digest(&content).iter().map(|byte| format!("{byte:02X}")).collect();
    let done = complete(&digest).await.ok();
    assert_eq!(done["status"], "completed");
    let file = done["file"]["id"].as_str().unwrap();
    assert!(server.get(&format!("/v1/files/{file}/content")).await.bytes == content);
    server.post(&format!("{path}/cancel"), json!({})).await.refused(400, "completed");
    let upload = server.post("/v1/uploads", new(1)).await.ok();
    let path = format!("/v1/uploads/{}/cancel", upload["id"].as_str().unwrap());
    let cancelled = server.ask(server.request(Method::POST, &path)).await.ok();
    assert_eq!(cancelled["status"], "cancelled");
    server.post("/v1/uploads", new(9 << 30)).await.refused(413, "8 GB");
    server.stop().await;
}

#[tokio::test]
async fn conversations_keep_what_was_said() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let body = json!({ "metadata": { "topic": "demo" }, "items": [{ "role": "user", "content": "Hello!" }] });
    let conversation = server.post("/v1/conversations", body).await.ok();
    assert_eq!((&conversation["object"], &conversation["metadata"]["topic"]), (&json!("conversation"), &json!("demo")));
    let path = format!("/v1/conversations/{}", conversation["id"].as_str().unwrap());
    let call = json!({ "type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "cntr_1", "outputs": [], "status": "completed" });
    let added = server
        .post(&format!("{path}/items"), json!({ "items": [call, { "role": "assistant", "content": "Hi" }] }))
        .await
        .ok();
    assert_eq!((&added["data"][0], &added["first_id"]), (&call, &json!("ci_1")));
    server.stop().await;

    let server = start(data.path()).await;
    let hidden = server.get(&format!("{path}/items/ci_1")).await.ok();
    assert_eq!((&hidden["code"], &hidden["outputs"]), (&json!("1"), &json!(null)), "they come on request");
    let items = server.get(&format!("{path}/items?order=asc&include[]=code_interpreter_call.outputs")).await.ok();
    let items: &Vec<Value> = items["data"].as_array().unwrap();
    assert_eq!(items[0]["content"], json!([{ "type": "input_text", "text": "Hello!" }]));
    assert_eq!((&items[0]["type"], &items[0]["status"], &items[1]), (&json!("message"), &json!("completed"), &call));
    assert_eq!(items[2]["content"][0]["type"], "output_text");
    assert!(items[2]["id"].as_str().unwrap().starts_with("msg_"));
    let rest = server.get(&format!("{path}/items?order=asc&after=ci_1")).await.ok();
    assert_eq!((&rest["data"], &rest["has_more"]), (&json!([items[2]]), &json!(false)));
    // The JSON is passed on as it is stored; ids have a column of their own.
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let stored = r#"{"type": "message", "id": "unread"}"#;
    assert_eq!(database.execute("UPDATE conversation_items SET item = ?1 WHERE id <> 'ci_1'", [stored]).unwrap(), 2);
    let page = server.get(&format!("{path}/items?limit=1")).await;
    assert!(String::from_utf8_lossy(&page.bytes).contains(stored), "{page:?}");
    assert_eq!(page.ok()["first_id"], items[2]["id"]);
    let asked = format!("{path}/items/ci_1?include=code_interpreter_call.outputs");
    assert_eq!(server.get(&asked).await.ok(), call);
    assert_eq!(server.delete(&format!("{path}/items/ci_1")).await.ok()["id"], conversation["id"]);
    server.get(&format!("{path}/items/ci_1")).await.refused(404, "ci_1");
    let updated = server.post(&path, json!({ "metadata": { "a": "b" } })).await.ok();
    assert_eq!(updated["metadata"], json!({ "a": "b" }));
    assert_eq!(server.get(&path).await.ok(), updated);
    server.post(&path, json!({ "metadata": { "a": 1 } })).await.refused(400, "'metadata'");
    server.post(&format!("{path}/items"), json!({ "items": [{}] })).await.refused(400, "items[0].type");
    server.post(&format!("{path}/items"), json!({ "items": vec![json!({}); 21] })).await.refused(400, "20");
    assert_eq!(server.delete(&path).await.ok()["object"], "conversation.deleted");
    server.get(&path).await.refused(404, "not found");
    server.stop().await;
}
