//! Google's dialect over HTTP.

use crate::common::{Answer, KEYS_FRESH, Server, listen, model, settings};
use aludel_store::NewKey;
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
    let answered = (answer.status.as_u16(), &body["error"]["code"], &body["error"]["status"]);
    assert_eq!(answered, (status, &json!(status), &json!(name)), "{body}");
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
    let answered = parts(&answer);
    let kinds: Vec<&str> =
        answered.iter().map(|part| part.as_object().unwrap().keys().next().unwrap().as_str()).collect();
    let code = ["executableCode", "codeExecutionResult"];
    assert_eq!(kinds[..5], [code[0], code[1], code[0], code[1], "inlineData"], "{answered:?}");
    assert_eq!(answered[0]["executableCode"]["language"], "PYTHON");
    let result =
        json!({ "id": answered[0]["executableCode"]["id"], "outcome": "OUTCOME_OK", "output": "marker-7f3a 42\n" });
    assert_eq!(answered[1]["codeExecutionResult"], result);
    assert!(answered[5]["text"].as_str().unwrap().starts_with("It is 42."));
    let candidate = &answer["candidates"][0];
    assert_eq!((&candidate["finishReason"], &candidate["content"]["role"]), (&json!("STOP"), &json!("model")));
    assert!(answer["usageMetadata"]["totalTokenCount"].is_u64() && answer["modelVersion"] == "m");
    assert!(upstream.requests()[0].to_string().contains("/mnt/data/input_file_0.csv"));
    // The client sends the parts back, and a question.
    let more = json!([{ "role": "user", "parts": first }, candidate["content"], { "parts": { "text": "1 / 0?" } }]);
    let answer = send(&server, GENERATE, &json!({ "contents": more, "tools": [{ "code_execution": {} }] })).await.ok();
    let again = parts(&answer);
    let session = |part: &Value| part["executableCode"]["id"].as_str().unwrap().split('.').next().unwrap().to_owned();
    assert_eq!(session(&again[0]), session(&answered[0]));
    let result = &again[1]["codeExecutionResult"];
    assert_eq!(result["outcome"], "OUTCOME_FAILED");
    assert!(result["output"].as_str().unwrap().contains("ZeroDivisionError"), "{result}");
    let seen = upstream.requests()[3]["messages"].to_string();
    assert!(seen.contains("marker-7f3a 42") && !seen.contains("executableCode"), "{seen}");
    server.stop().await;
}

#[tokio::test]
async fn a_new_file_takes_the_place_of_an_earlier_one_of_its_name() {
    let data = tempfile::tempdir().unwrap();
    let script = || vec![Scripted::Python("print('marker-7f3a', 6 * 7)"), Scripted::Text("It is 42.")];
    let upstream = ScriptedUpstream::start([script(), script(), script()].concat()).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let file = |name: Value, data: &str| json!({ "inlineData": { "mimeType": "text/csv", "data": data, "displayName": name } });
    let first = json!([{ "text": "?" }, file(json!(null), "b2xk"), file(json!("report.csv"), "b2xk")]);
    let answer = send(&server, GENERATE, &question(&first)).await.ok();
    let container = parts(&answer)[0]["executableCode"]["id"].as_str().unwrap().split('.').next().unwrap().to_owned();
    let files = format!("/v1/containers/{container}/files");
    let content = async |name: &str| {
        let listed = server.get(&files).await.ok();
        let path = json!(format!("/mnt/data/{name}"));
        let mut listed = listed["data"].as_array().unwrap().iter();
        let id = listed.find(|file| file["path"] == path).unwrap()["id"].as_str().unwrap().to_owned();
        String::from_utf8(server.get(&format!("{files}/{id}/content")).await.bytes.to_vec()).unwrap()
    };
    // The client keeps the newest messages only, so the new file is the first again.
    let answered = &answer["candidates"][0]["content"];
    let again = json!({ "role": "user", "parts": [file(json!(null), "bmV3"), file(json!("report.csv"), "bmV3")] });
    let body = json!({ "contents": [answered, again], "tools": [{ "codeExecution": {} }] });
    let more = send(&server, GENERATE, &body).await.ok();
    assert_eq!((content("input_file_0.csv").await, content("report.csv").await), ("new".into(), "new".into()));
    // Files of earlier messages are not copied again: a program may have changed them.
    let old = json!({ "role": "user", "parts": [file(json!("report.csv"), "b2xk")] });
    let contents = json!([old, more["candidates"][0]["content"], { "parts": { "text": "?" } }]);
    send(&server, GENERATE, &json!({ "contents": contents, "tools": [{ "codeExecution": {} }] })).await.ok();
    assert_eq!(content("report.csv").await, "new");
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
            part.as_object_mut().unwrap().remove("thoughtSignature");
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

/// LangChain repeats no part but the calls of functions.
#[tokio::test]
async fn a_call_of_a_function_leads_to_the_session() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![Scripted::Python("print('marker-7f3a', 6 * 7)"), Scripted::Calls(vec![("add", "{}".to_owned())])];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let mut body = question(&json!([{ "text": "?" }]));
    body["tools"] = json!([{ "codeExecution": {} }, { "functionDeclarations": [{ "name": "add" }] }]);
    let answer = send(&server, GENERATE, &body).await.ok();
    let [program, _, call] = parts(&answer).as_slice() else { panic!("{answer}") };
    assert!(program["thoughtSignature"].is_string() && call["functionCall"].is_object(), "{answer}");
    assert_eq!(program["thoughtSignature"], call["thoughtSignature"]);
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
    error(&send(&server, "/v1beta/models/m:embedContent", &body).await, 404, "NOT_FOUND", "embedContent");
    error(&send(&server, GENERATE, &json!({})).await, 400, "INVALID_ARGUMENT", "contents");
    error(&send(&server, GENERATE, &json!({ "contents": [7] })).await, 400, "INVALID_ARGUMENT", "contents");
    error(&server.get("/v1beta/nothing").await, 404, "NOT_FOUND", "");
    let counted = send(&server, "/v1beta/models/m:countTokens", &body).await.ok();
    assert!(counted["totalTokens"].as_u64().unwrap() > 1, "{counted}");
    let listed = server.ask(server.request(Method::GET, "/v1/models").header("x-goog-api-key", "any")).await.ok();
    assert_eq!(listed["models"][0]["name"], "models/m");
    assert_eq!(server.get("/v1beta/models/m").await.ok()["name"], "models/m");
    assert!(server.get("/v1/models").await.ok().get("data").is_some(), "OpenAI's");
    let key = server.store.create_key("k", None).await.unwrap().secret;
    tokio::time::sleep(KEYS_FRESH).await;
    error(&send(&server, GENERATE, &body).await, 401, "UNAUTHENTICATED", "key");
    let with_key = server.request(Method::GET, "/v1/models").header("x-goog-api-key", &key);
    server.ask(with_key).await.ok();
    server.use_key(&key);
    server.get("/v1beta/models").await.ok();
    server.stop().await;
}

/// Sends one piece of an upload, without a key.
async fn piece(server: &Server, address: &str, command: &str, offset: usize, bytes: &'static [u8]) -> Answer {
    let request = server.request(Method::POST, address).header("x-goog-upload-command", command);
    server.ask(request.header("x-goog-upload-offset", offset).body(bytes)).await
}

/// Begins an upload; returns the path to which its bytes go.
async fn begin(server: &Server, key: &str, file: &Value) -> String {
    let request = server.request(Method::POST, "/upload/v1/files").header("x-goog-api-key", key);
    let request = request.header("x-goog-upload-protocol", "resumable").header("x-goog-upload-command", "start");
    let begun = server.ask(request.json(&json!({ "file": file }))).await;
    let address = begun.headers["x-goog-upload-url"].to_str().unwrap().to_owned();
    begun.ok();
    assert!(!address.contains("//upload"), "{address}");
    address[address.find("/upload").unwrap()..].to_owned()
}

#[tokio::test]
async fn pieces_that_are_not_all_there_are_not_joined() {
    let data = tempfile::tempdir().unwrap();
    let settings = settings().engine(|engine| engine.storage = 1 << 20);
    let settings = settings.server(|server| server.url = Some("https://a.example/".to_owned()));
    let server = listen(data.path(), settings, Vec::new()).await;
    let key = server.store.create_key("a", None).await.unwrap().secret;
    let address = begin(&server, &key, &json!({ "displayName": "a", "sizeBytes": (600 << 10) + 1 })).await;
    piece(&server, &address, "upload", 0, &[b'x'; 600 << 10]).await.ok();
    // There is no room for a copy.
    error(&piece(&server, &address, "finalize", 0, b"").await, 400, "INVALID_ARGUMENT", "were announced");
    server.stop().await;
}

#[tokio::test]
async fn a_client_may_choose_a_files_id_and_has_it_alone() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let key = server.store.create_key("a", None).await.unwrap().secret;
    let other = server.store.create_key("b", None).await.unwrap().secret;
    let ask = async |key: &str, method, path: &str| {
        server.ask(server.request(method, path).header("x-goog-api-key", key)).await
    };
    let chosen = json!({ "name": "files/sales-2026", "displayName": "s.csv", "mimeType": "text/csv", "sizeBytes": 3 });
    let path = "/v1/files/sales-2026";
    let late = begin(&server, &key, &chosen).await;
    for key in [&key, &other] {
        let address = begin(&server, key, &chosen).await;
        let made = piece(&server, &address, "upload, finalize", 0, b"a\n1").await.ok()["file"].clone();
        // The base64 of the digits of `printf 'a\\n1' | sha256sum`.
        let digest = "NGYzOTVhMmU5ZWExYzA2ODAzNDhkMzg0MTM1NDU4MjcwZTllNmY1YWYzNTc2MTUxZmVjMjQ2YjdiNmRlOThlNg==";
        assert_eq!((&made["name"], &made["sha256Hash"]), (&json!("files/sales-2026"), &json!(digest)));
        assert!(made["uri"].as_str().unwrap().ends_with("/files/sales-2026"), "{made}");
        assert_eq!(ask(key, Method::GET, path).await.ok(), made);
        assert_eq!(ask(key, Method::GET, "/v1/files").await.ok()["files"], json!([made]));
    }
    error(&piece(&server, &late, "upload, finalize", 0, b"a\n1").await, 400, "INVALID_ARGUMENT", "got its name");
    let start = async |name: &str| {
        let request = server.request(Method::POST, "/upload/v1/files").header("x-goog-api-key", &key);
        let request = request.header("x-goog-upload-command", "start");
        server.ask(request.json(&json!({ "file": { "name": name, "sizeBytes": 1 } }))).await
    };
    error(&start("sales-2026").await, 409, "ALREADY_EXISTS", "delete it first");
    let address = begin(&server, &key, &json!({ "displayName": "t.csv", "sizeBytes": 1 })).await;
    let made = piece(&server, &address, "upload, finalize", 0, b"a").await.ok()["file"]["name"].clone();
    error(&start(made.as_str().unwrap()).await, 409, "ALREADY_EXISTS", "delete it first");
    for name in ["files/A", "files/../a", "files/-a", &"a".repeat(41)] {
        error(&start(name).await, 400, "INVALID_ARGUMENT", "40 lowercase letters");
    }
    ask(&key, Method::DELETE, path).await.ok();
    error(&ask(&key, Method::GET, path).await, 404, "NOT_FOUND", "does not exist");
    ask(&other, Method::GET, path).await.ok();
    start("sales-2026").await.ok();
    server.stop().await;
}

#[tokio::test]
async fn files_come_in_pieces_without_a_key_and_are_in_the_workspace() {
    let data = tempfile::tempdir().unwrap();
    let upstream =
        ScriptedUpstream::start(vec![Scripted::Python("print('marker-7f3a', 6 * 7)"), Scripted::Text("42")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let NewKey { id: key_id, secret: key } = server.store.create_key("a", None).await.unwrap();
    let other = server.store.create_key("b", None).await.unwrap().secret;
    let ask = async |key: &str, method, path: &str| {
        server.ask(server.request(method, path).header("x-goog-api-key", key)).await
    };
    let file = json!({ "display_name": "Sales", "mimeType": "text/csv", "size_bytes": "8" });
    let address = begin(&server, &key, &file).await;
    let forged = address.replacen("upload_id=", "upload_id=A", 1);
    error(&piece(&server, &forged, "upload, finalize", 0, b"a,b\n1,2\n").await, 404, "NOT_FOUND", "upload_id");
    let keyless = server.request(Method::POST, "/upload/v1/files").header("x-goog-upload-command", "start");
    error(&server.ask(keyless.json(&json!({}))).await, 401, "UNAUTHENTICATED", "key");
    let first = piece(&server, &address, "upload", 0, b"a,b\n").await;
    assert_eq!((&first.headers["x-goog-upload-status"], first.status.as_u16()), (&"active".parse().unwrap(), 200));
    error(&piece(&server, &address, "upload", 0, b"1,2\n").await, 400, "INVALID_ARGUMENT", "must be 4");
    error(&piece(&server, &address, "upload", 4, b"1,2,3,4\n").await, 413, "INVALID_ARGUMENT", "4 bytes");
    let state = piece(&server, &address, "query", 0, b"").await;
    assert_eq!(state.headers["x-goog-upload-size-received"], "4");
    let last = piece(&server, &address, "upload, finalize", 4, b"1,2\n").await;
    assert_eq!(last.headers["x-goog-upload-status"], "final");
    let file = last.ok()["file"].clone();
    let answered = (&file["displayName"], &file["mimeType"], &file["sizeBytes"], &file["state"]);
    assert_eq!(answered, (&json!("Sales"), &json!("text/csv"), &json!("8"), &json!("ACTIVE")), "{file}");
    // Its client may have missed the answer.
    for (command, offset, bytes) in
        [("upload, finalize", 4, &b"1,2\n"[..]), ("upload, finalize", 8, b""), ("finalize", 0, b"")]
    {
        let again = piece(&server, &address, command, offset, bytes).await;
        assert_eq!(
            (again.ok()["file"].clone(), &again.headers["x-goog-upload-status"]),
            (file.clone(), &"final".parse().unwrap())
        );
    }
    error(&piece(&server, &address, "upload", 8, b"").await, 400, "INVALID_ARGUMENT", "completed");
    // Files in one piece, and one that breaks its word.
    let image = begin(&server, &key, &json!({ "displayName": "a.png", "mimeType": "image/png", "sizeBytes": 4 })).await;
    error(&piece(&server, &image, "upload, finalize", 0, b"abc").await, 400, "INVALID_ARGUMENT", "3 bytes came");
    let image = piece(&server, &image, "upload, finalize", 0, b"\x89PNG").await.ok()["file"].clone();
    let path = format!("/v1/{}", file["name"].as_str().unwrap());
    assert_eq!(ask(&key, Method::GET, &path).await.ok(), file);
    assert_eq!(&ask(&key, Method::GET, &format!("{path}:download?alt=media")).await.bytes[..], b"a,b\n1,2\n");
    error(&ask(&other, Method::GET, &path).await, 404, "NOT_FOUND", "does not exist");
    let page = ask(&key, Method::GET, "/v1/files?pageSize=1").await.ok();
    assert_eq!(page["files"], json!([image]));
    let next = format!("/v1/files?pageSize=1&pageToken={}", page["nextPageToken"].as_str().unwrap());
    assert_eq!(ask(&key, Method::GET, &next).await.ok(), json!({ "files": [file] }));
    // A request names them, one of them twice.
    let named = |file: &Value| json!({ "fileData": { "fileUri": file["uri"], "mimeType": "text/csv" } });
    let body = question(&json!([named(&file), named(&image), { "file_data": { "file_uri": file["name"] } }]));
    let send = async |key: &str, body: &Value| {
        server.ask(server.request(Method::POST, GENERATE).header("x-goog-api-key", key).json(body)).await
    };
    error(&send(&other, &body).await, 404, "NOT_FOUND", "does not exist");
    let elsewhere = question(&json!([{ "fileData": { "fileUri": "gs://bucket/a.csv" } }]));
    error(&send(&key, &elsewhere).await, 400, "INVALID_ARGUMENT", "send its bytes");
    let answer = send(&key, &body).await.ok();
    let program = parts(&answer)[0]["executableCode"]["id"].as_str().unwrap().to_owned();
    let listed = server.request(Method::GET, &format!("/v1/containers/{}/files", program.split('.').next().unwrap()));
    let listed = server.ask(listed.bearer_auth(&key)).await.ok();
    let mut paths: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    paths.sort();
    assert_eq!(paths, ["/mnt/data/Sales.csv", "/mnt/data/a.png"]);
    let asked = upstream.requests()[0].to_string();
    assert_eq!(asked.matches("attached a file: /mnt/data/Sales.csv").count(), 2, "{asked}");
    assert_eq!(ask(&key, Method::DELETE, &path).await.ok(), json!({}));
    error(&ask(&key, Method::GET, &path).await, 404, "NOT_FOUND", "does not exist");
    server.store.revoke_key(key_id).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    error(&piece(&server, &address, "query", 0, b"").await, 401, "UNAUTHENTICATED", "was revoked");
    server.stop().await;
}
