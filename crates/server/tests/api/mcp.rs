//! The Model Context Protocol over HTTP, message by message. Its own clients are in `tests/clients/mcp`.

use std::time::Duration;

use crate::common::{Answer, KEYS_FRESH, Server, Settings, listen, listen_with, settings, start};
use aludel_engine::ApprovalPolicy;
use aludel_engine::approvals::ApprovalMode;
use aludel_store::DailyBudget;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const PRINTS: &str = "print('marker-7f3a', 6 * 7)";

/// A client that sends each request for itself, with these capabilities.
struct Modern<'a> {
    server: &'a Server,
    capabilities: Value,
}

impl<'a> Modern<'a> {
    fn new(server: &'a Server) -> Self {
        Self { server, capabilities: json!({}) }
    }

    fn request(&self, method: &str, mut params: Value) -> RequestBuilder {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": { "name": "a test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default().to_owned();
        let request = post(self.server, &json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }));
        let request = request.header("mcp-protocol-version", MODERN).header("mcp-method", method);
        if name.is_empty() { request } else { request.header("mcp-name", name) }
    }

    async fn ask(&self, method: &str, params: Value) -> Value {
        let answer = message(&self.server.ask(self.request(method, params)).await);
        assert_eq!(answer["id"], 7, "{answer}");
        answer
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await["result"].take()
    }

    async fn python(&self, code: &str) -> Value {
        self.call("python", json!({ "code": code })).await
    }
}

fn post(server: &Server, body: &Value) -> RequestBuilder {
    let request = server.request(Method::POST, "/mcp").json(body);
    request.header("accept", "application/json, text/event-stream")
}

/// The last message of an answer, which is JSON or a stream of events.
#[track_caller]
fn message(answer: &Answer) -> Value {
    let text = String::from_utf8_lossy(&answer.bytes);
    let last = text.lines().rev().find_map(|line| line.strip_prefix("data: "));
    serde_json::from_str(last.unwrap_or(&text)).unwrap_or_else(|_| panic!("{}: {text}", answer.status))
}

/// Shakes hands. Returns the connection's id.
async fn connect(server: &Server) -> String {
    let params =
        json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "old", "version": "1" } });
    let request = post(server, &json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }));
    let answer = server.ask(request).await;
    assert_eq!(message(&answer)["result"]["protocolVersion"], LEGACY);
    let id = answer.headers["mcp-session-id"].to_str().unwrap().to_owned();
    let request = post(server, &json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    assert_eq!(server.ask(request.header("mcp-session-id", &id)).await.status, 202);
    id
}

/// Calls `python` over a connection.
fn over(server: &Server, connection: &str, code: &str) -> RequestBuilder {
    let params = json!({ "name": "python", "arguments": { "code": code } });
    let request = post(server, &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }));
    request.header("mcp-session-id", connection).header("mcp-protocol-version", LEGACY)
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

fn quick() -> Settings {
    settings().server(|server| server.mcp_return_after = Duration::from_millis(50))
}

/// Waits until the audit log has an entry of a program's end, and returns it.
async fn end_in_audit_log(server: &Server) -> String {
    loop {
        let log = server.store.audit_log(0, 100).await.unwrap();
        if let Some(entry) = log.into_iter().find(|entry| entry.event == "ended") {
            return entry.outcome;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_client_without_connections_goes_on_in_the_session_that_it_names() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let client = Modern::new(&server);
    let found = client.ask("server/discover", json!({})).await;
    assert_eq!(found["result"]["supportedVersions"].as_array().unwrap().last().unwrap(), MODERN);
    let tools = client.ask("tools/list", json!({})).await;
    let tools = tools["result"]["tools"].as_array().unwrap().clone();
    assert_eq!(
        tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["python", "wait", "files"]
    );
    assert_eq!(tools[0]["inputSchema"]["properties"]["session"]["type"], "string", "no null in {}", tools[0]);
    assert_eq!(tools[0]["outputSchema"]["required"], json!(["status"]));
    let result = client.python(PRINTS).await;
    assert!(text(&result).starts_with("marker-7f3a 42\n(session cntr_"), "{result}");
    assert_eq!((&result["isError"], &result["structuredContent"]["status"]), (&json!(false), &json!("ok")));
    let made = client.python("x = 1").await;
    let session = made["structuredContent"]["session"].clone();
    assert_ne!(session, result["structuredContent"]["session"]);
    let link = &made["content"][1];
    assert_eq!((&link["type"], &link["name"], &link["size"]), (&json!("resource_link"), &json!("made.txt"), &json!(4)));
    let same = client.call("python", json!({ "code": "x", "session": session })).await;
    assert_eq!(same["structuredContent"]["result"], "1");
    let other = client.python("x").await;
    assert_eq!((&other["isError"], &other["structuredContent"]["status"]), (&json!(true), &json!("error")));
    assert_eq!(other["structuredContent"]["error"]["name"], "NameError");
    assert!(text(&other).contains("NameError: name 'x' is not defined"), "{other}");
    let read = client.ask("resources/read", json!({ "uri": link["uri"] })).await;
    assert_eq!(read["result"]["contents"][0]["text"], "made");
    let listed = client.ask("resources/list", json!({})).await;
    assert_eq!(listed["result"]["resources"][0]["uri"], link["uri"]);
    server.stop().await;
}

#[tokio::test]
async fn a_file_that_is_handed_out_counts_as_memory() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings().server(|server| server.bodies = 4 << 20), Vec::new()).await;
    let client = Modern::new(&server);
    for (bytes, is_read) in [(1 << 10, true), (1 << 20, false)] {
        let file = server.upload("a.txt", &vec![b'x'; bytes]).await;
        server.post("/v1/containers", json!({ "name": "n", "file_ids": [file] })).await.ok();
        let listed = client.ask("resources/list", json!({})).await;
        let read = client.ask("resources/read", json!({ "uri": listed["result"]["resources"][0]["uri"] })).await;
        assert_eq!(read["result"]["contents"][0]["text"].is_string(), is_read, "{read}");
        assert_eq!(read["error"]["message"].as_str().is_some_and(|words| words.contains("memory")), !is_read, "{read}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_message_on_a_stream_counts_as_long_as_its_call() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings().server(|server| server.bodies = 4 << 20), Vec::new()).await;
    let mut stream = server.request(Method::GET, "/sse").send().await.unwrap();
    let begin = String::from_utf8(stream.chunk().await.unwrap().unwrap().to_vec()).unwrap();
    let address = begin.trim().rsplit("data: ").next().unwrap().to_owned();
    let hello = json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello });
    assert_eq!(server.post(&address, hello).await.status, 202);
    assert_eq!(
        server.post(&address, json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await.status,
        202
    );
    let mut statuses = Vec::new();
    for id in 1..=20 {
        let meta = json!({ "filler": "x".repeat(300 << 10) });
        let call = json!({ "name": "python", "arguments": { "code": "wait()" }, "_meta": meta });
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call });
        statuses.push(server.post(&address, call).await.status.as_u16());
    }
    assert_eq!((statuses[0], statuses[19]), (202, 429), "{statuses:?}");
    drop(stream);
    server.stop().await;
}

#[tokio::test]
async fn a_picture_is_shown_and_a_text_comes_first() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let result = Modern::new(&server).python("show()").await;
    let kinds: Vec<&str> =
        result["content"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "image"]);
    assert_eq!(result["content"][1]["mimeType"], "image/png");
    assert_eq!(result["content"][1]["data"], "iVBORw0KGgo=");
    assert!(!text(&result).contains("Files:"), "{result}");
    server.stop().await;
}

#[tokio::test]
async fn a_connection_has_a_session_and_its_end_leaves_that_alone() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let connection = connect(&server).await;
    let made = message(&server.ask(over(&server, &connection, "x = 1")).await);
    let same = message(&server.ask(over(&server, &connection, "x")).await);
    assert_eq!(same["result"]["structuredContent"]["result"], "1");
    assert!(same["result"].get("resultType").is_none());
    let end = server.request(Method::DELETE, "/mcp").header("mcp-session-id", &connection);
    assert_eq!(server.ask(end).await.status, 204);
    assert_eq!(server.ask(over(&server, &connection, "x")).await.status, 404);
    let session = &made["result"]["structuredContent"]["session"];
    let again = Modern::new(&server).call("python", json!({ "code": "x", "session": session })).await;
    assert_eq!(again["structuredContent"]["result"], "1");
    // Without a connection it is served all the same.
    let params = json!({ "name": "python", "arguments": { "code": PRINTS } });
    let alone = post(&server, &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }));
    assert!(text(&message(&server.ask(alone).await)["result"]).starts_with("marker"));
    server.stop().await;
}

#[tokio::test]
async fn a_program_with_less_time_than_the_call_is_told_to_have_used_it_up() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let result = Modern::new(&server).call("python", json!({ "code": "wait()", "timeout_seconds": 0.2 })).await;
    assert_eq!((&result["isError"], &result["structuredContent"]["status"]), (&json!(true), &json!("timeout")));
    assert_eq!(result["structuredContent"]["stdout"], "begun\n");
    server.stop().await;
}

#[tokio::test]
async fn a_used_up_budget_is_for_programs_and_not_for_their_results() {
    let data = tempfile::tempdir().unwrap();
    let mut server = listen(data.path(), quick(), Vec::new()).await;
    let key = server.store.create_key("one", None).await.unwrap();
    server.use_key(&key.secret);
    let started = Modern::new(&server).call("python", json!({ "code": "wait()", "timeout_seconds": 0.4 })).await;
    let budget = DailyBudget { program_seconds: Some(0), ..DailyBudget::default() };
    assert!(server.store.set_budget(key.id, budget).await.unwrap());
    tokio::time::sleep(KEYS_FRESH).await;
    connect(&server).await;
    let client = Modern::new(&server);
    let refused = client.python("x").await;
    assert!(text(&refused).contains("budget of 0 seconds of programs a day"), "{refused}");
    let execution = &started["structuredContent"]["execution"];
    let mut result = started.clone();
    while result["structuredContent"]["status"] == "running" {
        result = client.call("wait", json!({ "execution": execution })).await;
    }
    assert_eq!(result["structuredContent"]["status"], "timeout");
    server.stop().await;
}

#[tokio::test]
async fn a_long_program_goes_on_and_is_waited_for() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), quick(), Vec::new()).await;
    let client = Modern::new(&server);
    let started = client.call("python", json!({ "code": "wait()", "timeout_seconds": 0.4 })).await;
    assert_eq!((&started["isError"], &started["structuredContent"]["status"]), (&json!(false), &json!("running")));
    assert!(text(&started).contains("it last printed: begun"), "{started}");
    let execution = &started["structuredContent"]["execution"];
    let mut result = client.call("wait", json!({ "execution": execution })).await;
    assert_eq!(result["structuredContent"]["status"], "running");
    while result["structuredContent"]["status"] == "running" {
        result = client.call("wait", json!({ "execution": execution })).await;
    }
    assert_eq!((&result["isError"], &result["structuredContent"]["status"]), (&json!(true), &json!("timeout")));
    assert_eq!(result["structuredContent"]["stdout"], "begun\n");
    // The result stays for a while.
    assert_eq!(client.call("wait", json!({ "execution": execution })).await, result);
    assert!(text(&client.call("wait", json!({ "execution": "exec_1" })).await).contains("no execution 'exec_1'"));
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_program_along() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let call = json!({ "name": "python", "arguments": { "code": "wait()" } });
    let request = Modern::new(&server).request("tools/call", call).timeout(Duration::from_millis(300));
    assert!(request.send().await.unwrap_err().is_timeout());
    assert_eq!(end_in_audit_log(&server).await, "The program was interrupted before its end.");
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_breaks_cancels_nothing_and_a_notice_does() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let connection = connect(&server).await;
    let request = over(&server, &connection, "wait()").timeout(Duration::from_millis(300));
    request.send().await.unwrap().bytes().await.unwrap_err();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let log = server.store.audit_log(0, 100).await.unwrap();
    assert_eq!(log.iter().map(|entry| entry.event.as_str()).collect::<Vec<_>>(), ["started"]);
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    assert_eq!(server.ask(post(&server, &cancelled).header("mcp-session-id", &connection)).await.status, 202);
    assert_eq!(end_in_audit_log(&server).await, "The program was interrupted before its end.");
    server.stop().await;
}

#[tokio::test]
async fn files_are_written_listed_read_and_deleted() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let client = Modern::new(&server);
    let written =
        client.call("files", json!({ "action": "write", "path": "/mnt/data/sub/a.csv", "content": "a,b" })).await;
    let link = &written["content"][1];
    let session = link["uri"].as_str().unwrap().split('/').nth(3).unwrap().to_owned();
    let files = async |arguments: Value| {
        let mut all = arguments;
        all["session"] = json!(session);
        client.call("files", all).await
    };
    assert!(text(&files(json!({ "action": "list" })).await).starts_with("/mnt/data/sub/a.csv (3 bytes)\n"));
    assert_eq!(text(&files(json!({ "action": "read", "path": "sub/a.csv" })).await), "a,b");
    let binary = json!({ "action": "write", "path": "b.bin", "content": "/w==", "encoding": "base64" });
    assert_eq!(files(binary).await["isError"], false);
    assert!(text(&files(json!({ "action": "read", "path": "b.bin" })).await).contains("is no text"));
    assert_eq!(files(json!({ "action": "delete", "path": "sub/a.csv" })).await["isError"], false);
    for (arguments, words) in [
        (json!({ "action": "read", "path": "sub/a.csv" }), "no file 'sub/a.csv'"),
        (json!({ "action": "delete", "path": "sub/a.csv" }), "no file 'sub/a.csv'"),
        (json!({ "action": "write", "path": "../../etc/passwd", "content": "x" }), "'..' is not allowed"),
        (json!({ "action": "write", "path": "x" }), "`content`"),
        (json!({ "action": "write", "path": "x", "content": "!", "encoding": "base64" }), "base64"),
        (json!({ "action": "read" }), "`path`"),
        (json!({ "action": "burn" }), "cannot be read"),
    ] {
        let result = files(arguments).await;
        assert!(result["isError"] == true && text(&result).contains(words), "{words}: {result}");
    }
    server.stop().await;
}

#[tokio::test]
async fn nothing_of_one_tenant_is_there_for_another() {
    let data = tempfile::tempdir().unwrap();
    let mut server = listen(data.path(), quick(), Vec::new()).await;
    let (one, other) =
        (server.store.create_key("one", None).await.unwrap(), server.store.create_key("other", None).await.unwrap());
    server.use_key(&one.secret);
    let connection = connect(&server).await;
    let mut made = Modern::new(&server).python("x = 1").await;
    while made["structuredContent"]["status"] == "running" {
        let execution = &made["structuredContent"]["execution"];
        made = Modern::new(&server).call("wait", json!({ "execution": execution })).await;
    }
    let running = Modern::new(&server).call("python", json!({ "code": "wait()", "timeout_seconds": 5 })).await;
    server.use_key(&other.secret);
    let client = Modern::new(&server);
    let session = &made["structuredContent"]["session"];
    let result = client.call("python", json!({ "code": "x", "session": session })).await;
    assert!(text(&result).contains("There is no session"), "{result}");
    let listed = client.call("files", json!({ "action": "list", "session": session })).await;
    assert!(text(&listed).contains("There is no session"), "{listed}");
    let waited = client.call("wait", json!({ "execution": running["structuredContent"]["execution"] })).await;
    assert!(text(&waited).contains("There is no execution"), "{waited}");
    let read = client.ask("resources/read", json!({ "uri": made["content"][1]["uri"] })).await;
    assert_eq!(read["error"]["code"], -32602, "{read}");
    assert_eq!(read["error"]["data"]["uri"], made["content"][1]["uri"]);
    assert_eq!(client.ask("resources/list", json!({})).await["result"]["resources"], json!([]));
    assert_eq!(server.ask(over(&server, &connection, "x")).await.status, 404);
    server.ask(server.request(Method::DELETE, "/mcp").header("mcp-session-id", &connection)).await;
    server.use_key(&one.secret);
    assert_eq!(server.ask(over(&server, &connection, PRINTS)).await.status, 200);
    server.stop().await;
}

/// A server on which every program waits for approval.
async fn held(data: &std::path::Path) -> Server {
    let policy = ApprovalPolicy { mode: ApprovalMode::Always, ..ApprovalPolicy::default() };
    listen_with(data, quick(), Vec::new(), policy).await
}

/// Answers the question of a call.
fn answer(code: &str, asked: &Value, action: &str, decision: &str) -> Value {
    json!({
        "name": "python", "arguments": { "code": code }, "requestState": asked["requestState"],
        "inputResponses": { "approve": { "action": action, "content": { "decision": decision } } },
    })
}

#[tokio::test]
async fn a_user_approves_exactly_the_program_that_was_shown_and_once() {
    let data = tempfile::tempdir().unwrap();
    let server = held(data.path()).await;
    let client = Modern { server: &server, capabilities: json!({ "elicitation": {} }) };
    let asked = client.python(PRINTS).await;
    assert_eq!(asked["resultType"], "input_required");
    let question = &asked["inputRequests"]["approve"];
    assert_eq!(question["method"], "elicitation/create");
    assert!(question["params"]["message"].as_str().unwrap().contains(PRINTS));
    assert_eq!(question["params"]["requestedSchema"]["required"], json!(["decision"]));
    // Another program with the same approval.
    let other = client.ask("tools/call", answer("x = 1", &asked, "accept", "run once")).await;
    assert!(text(&other["result"]).contains("not the one that was asked about"), "{other}");
    let mut ran = client.ask("tools/call", answer(PRINTS, &asked, "accept", "run once")).await["result"].take();
    while ran["structuredContent"]["status"] == "running" {
        ran = client.call("wait", json!({ "execution": asked["requestState"] })).await;
    }
    assert!(text(&ran).starts_with("marker-7f3a 42"), "{ran}");
    // The same once more is the same result, and no other run.
    client.ask("tools/call", answer(PRINTS, &asked, "accept", "run once")).await;
    let log = server.store.audit_log(0, 100).await.unwrap();
    let events: Vec<&str> = log.iter().map(|entry| entry.event.as_str()).collect();
    assert_eq!(events, ["asked", "approved", "started", "ended"]);
    assert_eq!(log[1].actor, "the user of MCP client a test");
    server.stop().await;
}

#[tokio::test]
async fn a_program_that_nobody_approved_does_not_run() {
    let data = tempfile::tempdir().unwrap();
    let server = held(data.path()).await;
    let client = Modern { server: &server, capabilities: json!({ "elicitation": { "form": {} } }) };
    for (action, decision) in
        [("accept", "deny"), ("accept", "anything"), ("decline", "run once"), ("cancel", "run once")]
    {
        let asked = client.python(PRINTS).await;
        let result = client.ask("tools/call", answer(PRINTS, &asked, action, decision)).await["result"].take();
        assert!(text(&result).starts_with("Not approved, so the program did not run"), "{result}");
        assert_eq!((&result["isError"], &result["structuredContent"]["status"]), (&json!(true), &json!("error")));
    }
    let made_up =
        client.ask("tools/call", answer(PRINTS, &json!({ "requestState": "exec_1" }), "accept", "run once")).await;
    assert!(text(&made_up["result"]).contains("nobody was asked"), "{made_up}");
    // A client that cannot ask: the operator decides.
    let waits = Modern::new(&server).python(PRINTS).await;
    assert!(text(&waits).contains("waits for the operator's approval (appr_"), "{waits}");
    assert_eq!(waits["structuredContent"]["status"], "running");
    let log = server.store.audit_log(0, 100).await.unwrap();
    assert!(log.iter().all(|entry| entry.event != "started"), "{log:?}");
    server.stop().await;
}

#[tokio::test]
async fn only_the_operator_decides_where_keys_may_not() {
    let data = tempfile::tempdir().unwrap();
    let mut server = held(data.path()).await;
    let key = server.store.create_key("one", None).await.unwrap();
    server.use_key(&key.secret);
    let client = Modern { server: &server, capabilities: json!({ "elicitation": {} }) };
    let waits = client.python(PRINTS).await;
    assert_eq!(waits["structuredContent"]["status"], "running", "{waits}");
    let state = json!({ "requestState": waits["structuredContent"]["execution"] });
    let result = client.ask("tools/call", answer(PRINTS, &state, "accept", "run once")).await;
    assert!(text(&result["result"]).contains("Only the operator decides"), "{result}");
    server.stop().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_in_json_rpc() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let raw = async |body: Vec<u8>| {
        let request = server.request(Method::POST, "/mcp").header("accept", "application/json, text/event-stream");
        server.ask(request.header("content-type", "application/json").body(body)).await
    };
    for (body, status, code, words) in [
        (b"{".to_vec(), 400, -32700, "JSON-RPC"),
        (b"[]".to_vec(), 400, -32600, "Batches"),
        (b"7".to_vec(), 400, -32700, "JSON-RPC"),
        (vec![b'['; 1 << 20], 400, -32600, "levels deep"),
        ([b"[".as_slice(), &b"0,".repeat(3 << 20)].concat(), 413, -32600, "values"),
        (
            br#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":3}}"#.to_vec(),
            400,
            -32602,
            "initialize",
        ),
        (br#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#.to_vec(), 400, -32602, "ping"),
    ] {
        let answer = raw(body).await;
        let error = message(&answer);
        assert_eq!((answer.status.as_u16(), &error["error"]["code"]), (status, &json!(code)), "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(words), "{error}");
    }
    let client = Modern::new(&server);
    let unknown = client.ask("tools/call", json!({ "name": "burn", "arguments": {} })).await;
    assert_eq!(unknown["error"]["code"], -32602);
    assert_eq!(client.ask("prompts/list", json!({})).await["error"]["code"], -32601);
    for (arguments, words) in [
        (json!({}), "missing field `code`"),
        (json!({ "code": 3 }), "expected a string"),
        (json!({ "code": " " }), "The program is empty"),
        (json!({ "code": "1", "timeout_seconds": "soon" }), "cannot be read"),
        (json!({ "code": "1", "session": "cntr_none" }), "no session 'cntr_none'"),
        (json!({ "code": "#".repeat((4 << 20) + 1) }), "4194304"),
    ] {
        let result = client.call("python", arguments).await;
        assert!(text(&result).contains(words), "{words}: {result}");
        assert_eq!((&result["isError"], &result["structuredContent"]["status"]), (&json!(true), &json!("error")));
        assert!(text(&result).starts_with(result["structuredContent"]["note"].as_str().unwrap()), "{result}");
    }
    for (header, value) in [("host", "evil.example"), ("origin", "https://evil.example")] {
        let answer = server.ask(client.request("tools/list", json!({})).header(header, value)).await;
        assert_eq!((answer.status.as_u16(), &message(&answer)["error"]["code"]), (403, &json!(-32600)), "{header}");
    }
    let plain = server
        .ask(server.request(Method::POST, "/mcp").json(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" })))
        .await;
    assert_eq!(plain.status, 406);
    assert!(message(&plain)["error"]["message"].as_str().unwrap().contains("text/event-stream"));
    server.store.create_key("one", None).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    let refused = server.ask(client.request("tools/list", json!({}))).await;
    assert_eq!((refused.status.as_u16(), refused.headers["www-authenticate"].as_bytes()), (401, b"Bearer".as_slice()));
    assert!(message(&refused)["error"]["message"].as_str().unwrap().contains("API key"));
    server.stop().await;
}

#[tokio::test]
async fn connections_are_bounded_and_end_with_their_clients() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let first = connect(&server).await;
    for _ in 1..1024 {
        connect(&server).await;
    }
    let params = json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "", "version": "" } });
    let shake = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let refused = server.ask(post(&server, &shake)).await;
    assert_eq!(refused.status, 429);
    assert!(message(&refused)["error"]["message"].as_str().unwrap().contains("as many MCP connections"));
    server.ask(server.request(Method::DELETE, "/mcp").header("mcp-session-id", &first)).await;
    while server.ask(post(&server, &shake)).await.status != 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.stop().await;
}
