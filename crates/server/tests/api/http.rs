//! Rules for every request: ids, errors, bounds, keys.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Answer, KEYS_FRESH, client, files_in, listen, listen_with, model, settings};
use aludel_engine::{ApprovalPolicy, Engine};
use aludel_sandbox::memory::Memory;
use aludel_server::{App, ServeError, serve};
use aludel_store::{DailyBudget, Store};
use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn every_answer_has_an_id_and_every_error_its_envelope() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let health = server.get("/healthz").await;
    assert_eq!((health.status.as_u16(), health.bytes.as_slice()), (200, b"ok\n".as_slice()));
    let first = server.get("/v1/models").await;
    let second = server.get("/v1/models").await;
    assert_eq!(first.ok()["object"], "list");
    assert_ne!(first.headers["x-request-id"], second.headers["x-request-id"]);
    server.get("/v1/nothing").await.refused(404, "GET /v1/nothing");
    server.get("/").await.refused(404, "/v1");
    // A browser is led to a page.
    let page = server.request(Method::GET, "/").header("accept", "text/html,application/xhtml+xml,*/*;q=0.8");
    let page = server.ask(page).await;
    assert!(page.headers["content-type"].to_str().unwrap().starts_with("text/html"), "{page:?}");
    server.post("/v1/models", json!({})).await.refused(405, "POST");
    let error = server.get("/v1/files/file-none").await.refused(404, "file-none");
    assert_eq!(error["type"], "not_found_error");
    server.get("/v1/files/..%2F..%2Fetc%2Fpasswd").await.refused(404, "No such File");
    server.get("/v1/files/%FF%FE").await.refused(400, "");
    server.get("/v1/containers?limit=0").await.refused(400, "'limit'");
    server.get("/v1/containers?order=up").await.refused(400, "'order'");
    let error = server.get("/v1/models/gpt-9").await.refused(404, "gpt-9");
    assert_eq!(error["code"], "model_not_found");
    server.stop().await;
}

#[tokio::test]
async fn bodies_that_are_no_json_too_deep_or_too_large_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let send = async |body: Vec<u8>| server.ask(server.request(Method::POST, "/v1/containers").body(body)).await;
    send(b"{\"name\": ".to_vec()).await.refused(400, "parse the JSON body");
    send(b"[]".to_vec()).await.refused(400, "must be an object");
    send(b"{\"name\": 3}".to_vec()).await.refused(400, "'name'");
    let error = send(b"".to_vec()).await.refused(400, "Missing required parameter: 'name'");
    assert_eq!((&error["param"], &error["code"]), (&json!("name"), &json!("missing_required_parameter")));
    send(vec![b'['; 1 << 20]).await.refused(400, "levels deep");
    send([b"[".as_slice(), &b"0,".repeat(3 << 20)].concat()).await.refused(413, "values");
    send(b"\xff\xfe".to_vec()).await.refused(400, "JSON");
    // One byte too many, sent without a length: it is counted as it comes.
    let chunks = futures_util::stream::iter((0..65).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 20])));
    let body = reqwest::Body::wrap_stream(chunks);
    let answer = server.request(Method::POST, "/v1/containers").body(body).send().await;
    // The server answers and stops reading; a client may see the answer or the broken pipe.
    if let Ok(answer) = answer {
        Answer::of(answer).await.refused(413, "64 MB");
    }
    server.post("/v1/containers", json!({ "name": "still here" })).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn with_keys_nobody_gets_in_without_one() {
    let data = tempfile::tempdir().unwrap();
    let mut server = listen(data.path(), settings(), Vec::new()).await;
    server.get("/v1/files").await.ok();
    let key = server.store.create_key("one", None).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    let error = server.get("/v1/files").await.refused(401, "provide an API key");
    assert_eq!((&error["type"], &error["code"]), (&json!("authentication_error"), &json!("invalid_api_key")));
    let health = server.get("/healthz").await;
    assert_eq!((health.status.as_u16(), &health.headers["x-aludel-backend"]), (200, &"memory".parse().unwrap()));
    server.use_key("sk-aludel-wrong");
    server.get("/v1/files").await.refused(401, "Incorrect API key");
    server.get("/v1/nothing").await.refused(401, "Incorrect API key");
    server.use_key(&key.secret);
    server.get("/v1/files").await.ok();
    assert!(server.store.revoke_key(key.id).await.unwrap());
    // A key's verdict is cached for a moment.
    tokio::time::sleep(KEYS_FRESH).await;
    server.get("/v1/files").await.refused(401, "Incorrect API key");
    server.stop().await;
}

#[tokio::test]
async fn a_head_is_bounded_for_whoever_has_no_key() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    server.store.create_key("one", None).await.unwrap();
    let with = |bytes: usize| server.request(Method::GET, "/v1/files").bearer_auth("k".repeat(bytes));
    assert_eq!(server.ask(with(32 << 10)).await.status, 401);
    match with(80 << 10).send().await {
        Ok(answer) => assert_eq!(answer.status(), 431),
        // The connection may be closed before the answer is read, for there is more to come.
        Err(error) => {
            let error = format!("{error:?}");
            let closed = ["ConnectionReset", "BrokenPipe", "IncompleteMessage"];
            assert!(closed.iter().any(|reason| error.contains(reason)), "{error}");
        }
    }
    assert_eq!(server.ask(with(32 << 10)).await.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn a_key_whose_budget_is_used_up_may_read_and_delete() {
    let data = tempfile::tempdir().unwrap();
    let mut server = listen(data.path(), settings(), Vec::new()).await;
    let key = server.store.create_key("one", None).await.unwrap();
    server.use_key(&key.secret);
    let file = server.upload("a.txt", b"mine").await;
    let budget = DailyBudget { requests: Some(0), ..DailyBudget::default() };
    assert!(server.store.set_budget(key.id.clone(), budget).await.unwrap());
    tokio::time::sleep(KEYS_FRESH).await;
    let asked = server.post("/v1/responses", json!({ "model": "m", "input": "x" })).await;
    assert_eq!(asked.headers["x-should-retry"], "false");
    let wait: u64 = asked.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=24 * 3600).contains(&wait), "{wait}");
    assert_eq!(asked.refused(429, "budget of 0 requests a day")["code"], "insufficient_quota");
    let asked = server.post("/v1/messages", json!({ "model": "m", "max_tokens": 1, "messages": [] })).await;
    assert_eq!((asked.status.as_u16(), &asked.json()["error"]["type"]), (429, &json!("rate_limit_error")));
    server.post("/v1/responses/resp_1/cancel", json!({})).await.refused(404, "not found");
    let counted = server.post("/v1/responses/input_tokens", json!({ "model": "m", "input": "hello world" })).await;
    // Three of the text, and some of the model's form of a message.
    assert_eq!(counted.ok()["input_tokens"], 7);
    let signal = server.post("/process.Process/SendSignal", json!({})).await;
    assert_ne!(signal.status, 429, "{signal:?}");
    server.get(&format!("/v1/files/{file}")).await.ok();
    server.delete(&format!("/v1/files/{file}")).await.ok();
    assert!(server.store.set_budget(key.id, DailyBudget::default()).await.unwrap());
    tokio::time::sleep(KEYS_FRESH).await;
    server.upload("b.txt", b"mine").await;
    server.stop().await;
}

#[tokio::test]
async fn tenants_do_not_see_each_other() {
    let data = tempfile::tempdir().unwrap();
    let mut server = listen(data.path(), settings(), Vec::new()).await;
    let (one, other) =
        (server.store.create_key("one", None).await.unwrap(), server.store.create_key("other", None).await.unwrap());
    server.use_key(&one.secret);
    let file = server.upload("a.txt", b"mine").await;
    let container = server.post("/v1/containers", json!({ "name": "c", "file_ids": [file] })).await.ok();
    let container = container["id"].as_str().unwrap();
    let inside = server.get(&format!("/v1/containers/{container}/files")).await.ok();
    let inside = inside["data"][0]["id"].as_str().unwrap();
    let conversation = server.post("/v1/conversations", json!({})).await.ok();
    let conversation = conversation["id"].as_str().unwrap();
    let upload = json!({ "bytes": 1, "filename": "a", "purpose": "batch", "mime_type": "text/plain" });
    let upload = server.post("/v1/uploads", upload).await.ok();
    let upload = upload["id"].as_str().unwrap();
    let paths = [
        format!("/v1/files/{file}"),
        format!("/v1/files/{file}/content"),
        format!("/v1/containers/{container}"),
        format!("/v1/containers/{container}/files"),
        format!("/v1/containers/{container}/files/{inside}"),
        format!("/v1/containers/{container}/files/{inside}/content"),
        format!("/v1/conversations/{conversation}"),
        format!("/v1/conversations/{conversation}/items"),
    ];
    for path in &paths {
        assert_eq!(server.get(path).await.status, 200, "the control: {path}");
    }
    server.use_key(&other.secret);
    for path in &paths {
        server.get(path).await.refused(404, "o");
    }
    for path in [&paths[0], &paths[2], &paths[4], &paths[6]] {
        server.delete(path).await.refused(404, "o");
    }
    server.send(&format!("/v1/containers/{container}/files"), &[], "x.txt", b"x").await.refused(404, "not found");
    server
        .post(&format!("/v1/containers/{container}/files"), json!({ "file_id": file }))
        .await
        .refused(404, "not found");
    server.post("/v1/containers", json!({ "name": "c", "file_ids": [file] })).await.refused(404, &file);
    server
        .post(&format!("/v1/conversations/{conversation}"), json!({ "metadata": {} }))
        .await
        .refused(404, "not found");
    server.post(&format!("/v1/uploads/{upload}/complete"), json!({ "part_ids": [] })).await.refused(404, "Upload");
    for list in ["/v1/files", "/v1/containers"] {
        assert_eq!(server.get(list).await.ok()["data"], json!([]));
    }
    server.use_key(&one.secret);
    for path in &paths {
        assert_eq!(server.get(path).await.status, 200, "the control: {path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_key_decides_about_its_own_programs_only_where_the_operator_lets_it() {
    let decision = || json!({ "decision": "approve", "sha256": "00" });
    for by_key in [false, true] {
        let data = tempfile::tempdir().unwrap();
        let policy = ApprovalPolicy { by_key, ..ApprovalPolicy::default() };
        let mut server = listen_with(data.path(), settings(), Vec::new(), policy).await;
        server.post("/v1/approvals/appr_1", decision()).await.refused(404, "not found");
        let key = server.store.create_key("one", None).await.unwrap();
        server.use_key(&key.secret);
        let (status, words) = if by_key { (404, "not found") } else { (403, "Only the operator decides") };
        server.post("/v1/approvals/appr_1", decision()).await.refused(status, words);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_listener_that_others_reach_needs_keys() {
    let data = tempfile::tempdir().unwrap();
    let backend = Arc::new(Memory::default());
    let store = Store::open(data.path()).await.unwrap();
    let serve_on = async |address: &str| {
        let engine =
            Engine::new(store.clone(), backend.clone(), [], Default::default(), Vec::new(), Default::default());
        let app = App::new(Arc::new(engine), Default::default());
        serve(app, TcpListener::bind(address).await.unwrap(), async {}).await
    };
    assert!(matches!(serve_on("0.0.0.0:0").await, Err(ServeError::NoKeys(_))));
    assert!(serve_on("127.0.0.1:0").await.is_ok());
    store.create_key("k", None).await.unwrap();
    assert!(serve_on("0.0.0.0:0").await.is_ok());
}

#[tokio::test]
async fn readiness_follows_the_backend() {
    let data = tempfile::tempdir().unwrap();
    let backend = Memory::default();
    let store = Store::open(data.path()).await.unwrap();
    store.create_key("k", None).await.unwrap();
    let shared = Arc::new(backend.clone());
    let engine = Engine::new(store, shared, [], Default::default(), Vec::new(), Default::default());
    let app = App::new(Arc::new(engine), Default::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/readyz", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(serve(app, listener, async move { drop(stopped.await) }));
    // Whoever asks has no key.
    let client = client();
    let ready = async || Answer::of(client.get(&url).send().await.unwrap()).await;
    assert_eq!(ready().await.bytes, b"ready\n");
    backend.fail(Some("no memory"));
    ready().await.refused(503, "no memory");
    backend.fail(None);
    assert_eq!(ready().await.bytes, b"ready\n");
    drop(stop);
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn web_pages_of_strangers_cannot_use_a_server_without_keys() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let with =
        async |name: &str, value: &str| server.ask(server.request(Method::GET, "/v1/files").header(name, value)).await;
    with("origin", "https://evil.example").await.refused(403, "Web pages");
    with("origin", "null").await.refused(403, "Web pages");
    with("host", "rebound.example").await.refused(403, "localhost");
    with("origin", "http://localhost:5173").await.ok();
    with("host", "localhost").await.ok();
    server.stop().await;
}

#[tokio::test]
async fn too_many_requests_at_once_are_told_to_come_again() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings().server(|server| server.requests = 2), Vec::new()).await;
    let mut slow = Vec::new();
    for _ in 0..2 {
        slow.push(half_a_request(server.address()).await);
    }
    let answer = server.get("/v1/files").await;
    answer.refused(429, "try again");
    assert_eq!(answer.headers["retry-after"], "1");
    for mut stream in slow {
        stream.write_all(b"{\"name\":\"x\"}").await.unwrap();
        let mut head = [0; 15];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
    }
    for _ in 0..1000 {
        if server.get("/v1/files").await.status == 200 {
            return server.stop().await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the places were not given back");
}

#[tokio::test]
async fn the_memory_of_large_bodies_is_shared() {
    let data = tempfile::tempdir().unwrap();
    let settings = settings().server(|server| server.bodies = 128 << 20);
    let mut server = listen(data.path(), settings, Vec::new()).await;
    let (one, other) =
        (server.store.create_key("one", None).await.unwrap(), server.store.create_key("other", None).await.unwrap());
    // One tenant sends most of large bodies, and holds them.
    let mut held = Vec::new();
    for _ in 0..6 {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        let head = format!(
            "POST /v1/containers HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
            one.secret,
            17 << 20
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let sent = stream.write_all(&vec![b' '; 16 << 20]).await;
        held.push((stream, sent));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let large = format!("{{\"name\": \"x\", \"more\": \"{}\"}}", "x".repeat(4 << 20));
    let send = async |server: &crate::common::Server, body: String| {
        server.ask(server.request(Method::POST, "/v1/containers").body(body)).await
    };
    server.use_key(&one.secret);
    send(&server, large.clone()).await.refused(429, "large requests of yours");
    server.post("/v1/containers", json!({ "name": "small" })).await.ok();
    server.use_key(&other.secret);
    send(&server, large.clone()).await.ok();
    drop(held);
    server.use_key(&one.secret);
    for attempt in 0.. {
        if send(&server, large.clone()).await.status == 200 {
            break;
        }
        assert!(attempt < 100, "the memory was not given back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Few bytes that take much memory.
    let crowded = format!("{{\"name\": \"x\", \"input\": [{}{{}}]}}", "{\"\":0},".repeat(40_000));
    assert!(crowded.len() < 1 << 20);
    send(&server, crowded).await.refused(413, "more memory");
    server.stop().await;
}

#[tokio::test]
async fn the_memory_of_what_a_request_refers_to_is_counted() {
    let data = tempfile::tempdir().unwrap();
    let settings = settings().server(|server| server.bodies = 128 << 20);
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("fine"); 3]).await;
    let server = listen(data.path(), settings, vec![model("m", upstream.url())]).await;
    let ask = async |path: &str, mut body: Value| {
        body["model"] = json!("m");
        body["max_tokens"] = json!(10);
        server.post(path, body).await
    };
    // One image, which is in memory as often as it is named.
    let image = server.upload("a.png", &vec![7; 2 << 20]).await;
    let images = |kind: &str, count| {
        let part = match kind {
            "input_image" => json!({ "type": kind, "file_id": image }),
            _ => json!({ "type": kind, "source": { "type": "file", "file_id": image } }),
        };
        json!([{ "role": "user", "content": vec![part; count] }])
    };
    ask("/v1/responses", json!({ "input": images("input_image", 2) })).await.ok();
    ask("/v1/responses", json!({ "input": images("input_image", 40) })).await.refused(413, "more memory");
    ask("/v1/messages", json!({ "messages": images("image", 2) })).await.ok();
    assert_eq!(ask("/v1/messages", json!({ "messages": images("image", 40) })).await.status, 413);
    // Items of few bytes that take much memory, brought in requests that each may.
    let conversation = server.post("/v1/conversations", json!({})).await.ok()["id"].clone();
    let items = format!("/v1/conversations/{}/items", conversation.as_str().unwrap());
    let text = json!({ "type": "input_text", "text": "x", "crowd": vec![json!({}); 500] });
    let item = json!({ "type": "message", "role": "user", "content": [text] });
    for _ in 0..4 {
        server.post(&items, json!({ "items": vec![&item; 15] })).await.ok();
    }
    let body = json!({ "conversation": conversation, "input": "x" });
    ask("/v1/responses", body).await.refused(413, "more memory");
    assert_eq!(upstream.requests().len(), 2);
    // All of it was given back.
    ask("/v1/responses", json!({ "input": images("input_image", 2) })).await.ok();
    server.stop().await;
}

/// As they are in memory until a client, which may be slow, has taken them.
#[tokio::test]
async fn large_answers_count_as_memory() {
    let data = tempfile::tempdir().unwrap();
    let settings = settings().server(|server| server.bodies = 4 << 20);
    let server = listen(data.path(), settings, Vec::new()).await;
    let conversation = server.post("/v1/conversations", json!({})).await.ok()["id"].clone();
    let items = format!("/v1/conversations/{}/items", conversation.as_str().unwrap());
    let text = json!({ "type": "input_text", "text": "x".repeat(400 << 10) });
    let item = json!({ "type": "message", "role": "user", "content": [text] });
    for _ in 0..12 {
        server.post(&items, json!({ "items": [&item] })).await.ok();
    }
    server.get(&format!("{items}?limit=12")).await.refused(413, "more memory than one request may");
    server.get(&format!("{items}?limit=2")).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn a_server_without_keys_is_not_opened_by_a_proxy() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let from = async |addresses: &str| {
        server.ask(server.request(Method::GET, "/v1/files").header("x-forwarded-for", addresses)).await
    };
    from("192.0.2.7").await.refused(403, "proxy");
    from("127.0.0.1, 192.0.2.7").await.refused(403, "proxy");
    from("unknown").await.refused(403, "proxy");
    from("127.0.0.1, ::1").await.ok();
    let added = server.request(Method::GET, "/v1/files").header("x-forwarded-for", "127.0.0.1");
    server.ask(added.header("x-forwarded-for", "192.0.2.7")).await.refused(403, "proxy");
    let key = server.store.create_key("one", None).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    let request = server.request(Method::GET, "/v1/files").header("x-forwarded-for", "192.0.2.7");
    server.ask(request.bearer_auth(key.secret)).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn streams_ask_proxies_to_pass_them_on_at_once() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("fine"); 2]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    for (stream, word) in [(true, Some("no")), (false, None)] {
        let answer = server.post("/v1/responses", json!({ "model": "m", "input": "x", "stream": stream })).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers.get("x-accel-buffering").map(|word| word.to_str().unwrap()), word);
    }
    server.stop().await;
}

/// A request that has its place, and of which the server waits for the body.
async fn half_a_request(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/containers HTTP/1.1\r\nhost: {address}\r\nexpect: 100-continue\r\ncontent-length: 12\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

#[tokio::test]
async fn a_stream_that_was_cut_is_asked_anew_under_its_key() {
    for path in ["/v1/responses", "/v1/chat/completions"] {
        let data = tempfile::tempdir().unwrap();
        let upstream = ScriptedUpstream::start(vec![Scripted::Hang, Scripted::Text("back again")]).await;
        let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
        let tool = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
        let mut body = json!({ "model": "m", "input": "hello", "tools": [tool], "stream": true });
        if path.ends_with("completions") {
            let messages = json!([{ "role": "user", "content": "hello" }]);
            body = json!({ "model": "m", "messages": messages, "tools": [{ "type": "code_interpreter" }], "stream": true });
        }
        let request = || server.request(Method::POST, path).header("idempotency-key", "once").json(&body);
        let is_asked = async {
            while upstream.requests().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            _ = server.ask(request()) => panic!("{path}: the model said nothing"),
            () = is_asked => {}
        }
        let again = server.ask(request()).await;
        assert_eq!(again.status, 200, "{path}");
        assert!(String::from_utf8_lossy(&again.bytes).contains("again"), "{path}");
        // That one was heard to its end: it is the answer from now on.
        assert!(server.ask(request()).await.bytes == again.bytes, "{path}");
        assert_eq!(upstream.requests().len(), 2, "{path}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_response_that_cannot_be_stored_gives_back_what_it_took() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("fine")]).await;
    let settings = settings().engine(|engine| engine.sessions = 1);
    let server = listen(data.path(), settings, vec![model("m", upstream.url())]).await;
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let tool = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
    let body = json!({ "model": "m", "input": "hello", "tools": [tool] });
    let interaction = json!({ "model": "m", "input": "hello", "tools": [{ "type": "code_execution" }] });
    for (table, path, body) in [
        ("turns", "/v1/responses", &body),
        ("responses", "/v1/responses", &body),
        ("turns", "/v1beta/interactions", &interaction),
        ("interactions", "/v1beta/interactions", &interaction),
    ] {
        let trigger = format!("CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END");
        database.execute_batch(&trigger).unwrap();
        for _ in 0..2 {
            // A container of its own each time, and room for one.
            let refused = server.post(path, body.clone()).await;
            assert_eq!(refused.status, 500, "{path}, {table}: {:?}", refused.json());
        }
        assert_eq!(server.get("/v1/containers").await.ok()["data"], json!([]), "{path}, {table}");
        database.execute_batch("DROP TRIGGER t").unwrap();
    }
    let turns: u64 = database.query_row("SELECT count(*) FROM turns", [], |row| row.get(0)).unwrap();
    assert_eq!(turns, 0, "nobody drives them");
    assert_eq!(server.post("/v1/responses", body).await.ok()["status"], "completed");
    server.stop().await;
}

#[tokio::test]
async fn a_request_that_is_refused_leaves_no_container() {
    let data = tempfile::tempdir().unwrap();
    let settings = settings().engine(|engine| engine.sessions = 0);
    let server = listen(data.path(), settings, vec![model("m", "http://localhost:9/v1".to_owned())]).await;
    let file = server.upload("a.txt", b"a").await;
    let auto = json!({ "type": "code_interpreter", "container": { "type": "auto", "file_ids": [file] } });
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let missing = json!([{ "role": "user", "content": [{ "type": "input_file", "file_id": "file-none" }] }]);
    for (path, status, body) in [
        ("/v1/responses", 429, json!({ "model": "m", "input": "hello", "tools": [auto] })),
        ("/v1/responses", 404, json!({ "model": "m", "input": missing, "tools": [auto] })),
        ("/v1/chat/completions", 429, json!({ "model": "m", "messages": messages, "tools": [auto] })),
        (
            "/v1beta/interactions",
            429,
            json!({ "model": "m", "input": "hello", "tools": [{ "type": "code_execution" }] }),
        ),
    ] {
        let refused = server.post(path, body).await;
        assert_eq!(refused.status, status, "{path}: {:?}", refused.json());
        assert_eq!(server.get("/v1/containers").await.ok()["data"], json!([]), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_request_brings_each_file_once_and_not_too_many() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("one"), Scripted::Text("two")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let file = server.upload("a.txt", b"a").await;
    let tools = json!([{ "type": "code_interpreter" }]);
    let responses = |parts: Vec<Value>| {
        json!({ "model": "m", "tools": [{ "type": "code_interpreter", "container": { "type": "auto" } }],
                "input": [{ "role": "user", "content": parts }] })
    };
    let chat =
        |parts: Vec<Value>| json!({ "model": "m", "tools": tools, "messages": [{ "role": "user", "content": parts }] });
    let stored = json!({ "type": "input_file", "file_id": file });
    server.post("/v1/responses", responses(vec![stored; 300])).await.ok();
    let container = server.get("/v1/containers").await.ok()["data"][0]["id"].as_str().unwrap().to_owned();
    let files = server.get(&format!("/v1/containers/{container}/files")).await.ok();
    assert_eq!(files["data"].as_array().unwrap().len(), 1, "{files}");
    let stored = json!({ "type": "file", "file": { "file_id": file } });
    server.post("/v1/chat/completions", chat(vec![stored; 300])).await.ok();
    let name = |number| format!("{number}.txt");
    let inline: Vec<Value> = (0..201)
        .map(|number| json!({ "type": "input_file", "filename": name(number), "file_data": "data:text/plain;base64,YQ==" }))
        .collect();
    server.post("/v1/responses", responses(inline)).await.refused(400, "at most 200 files");
    let inline: Vec<Value> = (0..201)
        .map(|number| json!({ "type": "file", "file": { "filename": name(number), "file_data": "data:text/plain;base64,YQ==" } }))
        .collect();
    server.post("/v1/chat/completions", chat(inline)).await.refused(400, "at most 200 files");
    // An error names the place of the file.
    let odd = json!({ "type": "file", "file": { "filename": "a.txt", "file_data": "abc d" } });
    let error = server.post("/v1/chat/completions", chat(vec![odd])).await.refused(400, "");
    let place = "messages[0].content[0].file.file_data";
    let words = format!("The data in '{place}' is not valid base64: Invalid symbol 32, offset 3.");
    assert_eq!((&error["message"], &error["param"]), (&json!(words), &json!(place)));
    let gone = json!({ "type": "file", "file": { "file_id": "file-none" } });
    let error = server.post("/v1/chat/completions", chat(vec![gone])).await.refused(404, "file-none");
    assert_eq!(error["param"], "messages[0].content[0].file.file_id");
    server.stop().await;
}

#[tokio::test]
async fn an_idempotency_key_is_of_one_request() {
    let data = tempfile::tempdir().unwrap();
    let upstream =
        ScriptedUpstream::start(vec![Scripted::Text("one"), Scripted::Text("two"), Scripted::Text("three")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let ask = |path: &str, body: Value| {
        server.ask(server.request(Method::POST, path).header("idempotency-key", "once").json(&body))
    };
    let first = ask("/v1/responses", json!({ "model": "m", "input": "hello" })).await.ok();
    let other = ask("/v1/responses", json!({ "model": "m", "input": "good bye" })).await;
    assert_eq!(other.headers["x-should-retry"], "false");
    assert_eq!(other.refused(409, "another body")["code"], "idempotency_key_reused");
    assert_eq!(
        ask("/v1/responses", json!({ "model": "m", "input": "hello", "stream": false })).await.ok()["id"],
        first["id"]
    );
    let tool = json!({ "type": "code_interpreter" });
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let chat = json!({ "model": "m", "messages": messages, "tools": [tool] });
    let completion = ask("/v1/chat/completions", chat.clone()).await.ok();
    assert_eq!(completion["choices"][0]["message"]["content"], "two");
    // The repetition may ask for another form.
    let mut streamed = chat;
    streamed["stream"] = true.into();
    let stream = ask("/v1/chat/completions", streamed).await;
    let stream = String::from_utf8_lossy(&stream.bytes).into_owned();
    assert!(stream.contains("\"content\":\"two\"") && stream.ends_with("data: [DONE]\n\n"), "{stream}");
    // Equal requests, of which one says that it comes again: the others were answered.
    let retried = server.request(Method::POST, "/v1/responses").header("x-stainless-retry-count", "1");
    let retried = server.ask(retried.json(&json!({ "model": "m", "input": "hello" }))).await.ok();
    assert_ne!(retried["id"], first["id"]);
    assert_eq!(upstream.requests().len(), 3);
    server.stop().await;
}

#[tokio::test]
async fn images_of_a_stored_response_are_blobs_that_go_with_it() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Python("show()"), Scripted::Text("A picture.")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let tool = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
    let include = ["code_interpreter_call.outputs"];
    let body = json!({ "model": "m", "input": "hello", "tools": [tool], "include": include, "stream": true });
    let answered = server.post("/v1/responses", body).await;
    let text = String::from_utf8_lossy(&answered.bytes).into_owned();
    assert!(text.contains("data:image/png;base64,iVBORw0KGgo="), "{text}");
    let id = text.split('"').find(|part| part.starts_with("resp_")).unwrap().to_owned();
    server.stop().await;
    let blobs = || files_in(&data.path().join("blobs"));
    assert_eq!(blobs(), 3, "the image as a file of its container, and what the log holds");
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    let query = "SELECT count(*) FROM turn_events WHERE event LIKE '%iVBORw0K%' OR event LIKE '%JVBERg%'";
    assert_eq!(database.query_row(query, [], |row| row.get::<_, u64>(0)).unwrap(), 0);
    let server = listen(data.path(), settings(), Vec::new()).await;
    let again = server.get(&format!("/v1/responses/{id}?stream=true")).await;
    assert_eq!(String::from_utf8_lossy(&again.bytes), text);
    server.delete(&format!("/v1/responses/{id}")).await.ok();
    assert_eq!(blobs(), 1, "the container's own stays");
    server.stop().await;
}

#[tokio::test]
async fn a_request_in_the_background_is_repeated_while_it_starts() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start((0..20).map(|_| Scripted::Text("hello")).collect()).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    for (path, key) in [("/v1/responses", "id"), ("/v1beta/interactions", "id")] {
        for number in 0..10 {
            let body = json!({ "model": "m", "input": "hello", "background": true });
            let once = format!("{path} {number}");
            let ask = || server.ask(server.request(Method::POST, path).header("idempotency-key", &once).json(&body));
            let (one, two, three) = tokio::join!(ask(), ask(), ask());
            let [one, two, three] = [one, two, three].map(|answer| answer.ok()[key].clone());
            assert!(one == two && two == three && one.is_string(), "{one} {two} {three}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_stored_response_is_repeated_from_the_store() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![
        Scripted::Python("print('marker-7f3a', 6 * 7)"),
        Scripted::Text("42"),
        Scripted::Status(400, "", "bad"),
        Scripted::Text("anew"),
    ];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let tool = json!({ "type": "code_interpreter", "container": { "type": "auto" } });
    let ask = |key: &str, stream: bool| {
        let body = json!({ "model": "m", "input": "hello", "tools": [tool], "stream": stream });
        server.ask(server.request(Method::POST, "/v1/responses").header("idempotency-key", key).json(&body))
    };
    let answered = ask("a", true).await;
    assert!(answered.bytes == ask("a", true).await.bytes);
    let failed = ask("b", false).await;
    let again = ask("b", false).await;
    assert_eq!((failed.status, again.status), (400.try_into().unwrap(), failed.status));
    assert!(failed.json()["error"] == again.json()["error"], "{:?}", again.json());
    assert_eq!(upstream.requests().len(), 3);
    // A repeated request is answered from the store, and not after the response was deleted.
    let text = String::from_utf8_lossy(&answered.bytes).into_owned();
    let id = text.split('"').find(|part| part.starts_with("resp_")).unwrap();
    let database = rusqlite::Connection::open(data.path().join("aludel.db")).unwrap();
    database.execute("DELETE FROM turns WHERE id = ?1", [id]).unwrap();
    assert_eq!(ask("a", true).await.status, 400);
    server.delete(&format!("/v1/responses/{id}")).await.ok();
    assert_eq!(ask("a", true).await.status, 200);
    assert_eq!(upstream.requests().len(), 4, "another request");
    server.stop().await;
}

#[tokio::test]
async fn web_pages_ask_where_the_operator_lets_them() {
    let data = tempfile::tempdir().unwrap();
    let page = |request: reqwest::RequestBuilder| request.header("origin", "https://app.example.com");
    let server = listen(data.path(), settings(), Vec::new()).await;
    server.ask(page(server.request(Method::GET, "/v1/models"))).await.refused(403, "server.origins");
    server.stop().await;
    let origins = "https://app.example.com,http://localhost:3000".parse().unwrap();
    let mut server = listen(data.path(), settings().server(|server| server.origins = origins), Vec::new()).await;
    let key = server.store.create_key("page", None).await.unwrap().secret;
    server.use_key(&key);
    let answer = server.ask(page(server.request(Method::GET, "/v1/models"))).await;
    assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example.com");
    assert!(answer.headers["access-control-expose-headers"].to_str().unwrap().contains("x-request-id"));
    answer.ok();
    // A browser asks without a key first, and reads refusals, too.
    server.use_key("none");
    let before = page(server.request(Method::OPTIONS, "/v1/responses"))
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type,x-stainless-os");
    let answer = server.ask(before).await;
    assert_eq!(answer.status.as_u16(), 200);
    assert_eq!(answer.headers["access-control-allow-headers"], "authorization,content-type,x-stainless-os");
    let refused = server.ask(page(server.request(Method::GET, "/v1/models"))).await;
    assert_eq!((refused.status.as_u16(), refused.headers.contains_key("access-control-allow-origin")), (401, true));
    server.use_key(&key);
    let other = server.request(Method::GET, "/v1/models").header("origin", "https://evil.example");
    assert!(!server.ask(other).await.headers.contains_key("access-control-allow-origin"));
    server.stop().await;
}

#[tokio::test]
async fn a_connection_outlives_a_refusal_by_the_head() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let key = server.store.create_key("mine", None).await.unwrap().secret;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let mut ask = async |key: &str, bytes: usize, body: Option<usize>| {
        let head = format!(
            "POST /v1/containers HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-length: {bytes}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        if let Some(bytes) = body {
            // As clients do that send the head first.
            tokio::time::sleep(Duration::from_millis(30)).await;
            stream.write_all(format!("{{\"name\":\"{}\"}}", "x".repeat(bytes - 11)).as_bytes()).await.unwrap();
        }
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            let read = stream.read_buf(&mut answer).await.unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        }
        String::from_utf8(answer).unwrap()
    };
    for _ in 0..2 {
        let refused = ask("sk-wrong", 20, Some(20)).await;
        assert!(refused.starts_with("HTTP/1.1 401") && !refused.contains("connection: close"), "{refused}");
    }
    assert!(ask(&key, 20, Some(20)).await.starts_with("HTTP/1.1 200"));
    // For a large one nobody waits, and the client is told so.
    let refused = ask("sk-wrong", 1 << 20, None).await;
    assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("connection: close"), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn a_packed_body_is_refused_by_its_encoding() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let request = server.request(Method::POST, "/v1/responses").header("content-encoding", "gzip").body("\x1f");
    server.ask(request).await.refused(400, "encoded ('gzip')");
    server.stop().await;
}
