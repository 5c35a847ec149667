//! E2B's control plane and code interpreter with scripted programs: what needs no sandbox of the host.

use std::sync::Arc;

use crate::common::{Answer, KEYS_FRESH, Server, client, listen, listen_with, serve_on, settings, start, start_with};
use aludel_engine::approvals::{ApprovalMode, ApprovalPolicy};
use aludel_sandbox::memory::Memory;
use reqwest::Method;
use serde_json::{Value, json};

async fn create(server: &Server, more: Value) -> Value {
    let mut body = json!({ "templateID": "base" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = server.post("/v2/sandboxes", body).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.json()
}

/// Asks a sandbox at a port, with these headers.
async fn ask(server: &Server, sandbox: &Value, port: u16, path: &str, headers: &[(&str, &str)], body: Value) -> Answer {
    let request = server.request(Method::POST, path).json(&body);
    let request = request.header("E2b-Sandbox-Id", sandbox["sandboxID"].as_str().unwrap());
    let request = request.header("E2b-Sandbox-Port", port.to_string());
    server.ask(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

async fn execute(server: &Server, sandbox: &Value, body: Value) -> Vec<Value> {
    let token = sandbox["envdAccessToken"].as_str().unwrap();
    let answer = ask(server, sandbox, 49999, "/execute", &[("X-Access-Token", token)], body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.bytes.is_ascii());
    String::from_utf8(answer.bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn no_command_runs_where_programs_need_approval() {
    let data = tempfile::tempdir().unwrap();
    let approvals = ApprovalPolicy { mode: ApprovalMode::Always, ..ApprovalPolicy::default() };
    let server = listen_with(data.path(), settings(), Vec::new(), approvals).await;
    let sandbox = create(&server, json!({})).await;
    let message = json!({ "process": { "cmd": "/bin/true" } }).to_string();
    let frame = [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message.as_bytes()].concat();
    let request = server.request(Method::POST, "/process.Process/Start").body(frame);
    let request = request.header("content-type", "application/connect+json");
    let request = request.header("E2b-Sandbox-Id", sandbox["sandboxID"].as_str().unwrap());
    let request = request.header("X-Access-Token", sandbox["envdAccessToken"].as_str().unwrap());
    let answer = server.ask(request).await;
    let text = String::from_utf8_lossy(&answer.bytes).into_owned();
    assert!(text.contains("permission_denied") && text.contains("approval.mode"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn no_variables_run_a_shells_commands_where_programs_need_approval() {
    let data = tempfile::tempdir().unwrap();
    let approvals = ApprovalPolicy { mode: ApprovalMode::Always, ..ApprovalPolicy::default() };
    let server = listen_with(data.path(), settings(), Vec::new(), approvals).await;
    let sandbox = create(&server, json!({ "envVars": { "PROMPT_COMMAND": "id" } })).await;
    let token = sandbox["envdAccessToken"].as_str().unwrap();
    for (path, body) in [("/contexts", json!({})), ("/execute", json!({ "code": "1" }))] {
        let mut body = body;
        body["language"] = "bash".into();
        let answer = ask(&server, &sandbox, 49999, path, &[("X-Access-Token", token)], body).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(String::from_utf8_lossy(&answer.bytes).contains("approval.mode"), "{answer:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn both_generations_make_list_and_end_sandboxes() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let first = create(&server, json!({ "metadata": { "a": "1", "b": "x y" } })).await;
    let made = server.post("/sandboxes", json!({ "templateID": "code-interpreter-v1", "timeout": 60 })).await;
    assert_eq!(made.status, 201);
    let second = made.json();
    assert!(second["envdAccessToken"].is_string() && second["domain"].is_string());
    assert_eq!(second["trafficAccessToken"], Value::Null);
    let id = |sandbox: &Value| sandbox["sandboxID"].as_str().unwrap().to_owned();
    let ids = |answer: &Answer| answer.ok().as_array().unwrap().iter().map(id).collect::<Vec<_>>();
    let all = server.get("/v2/sandboxes").await;
    assert_eq!(ids(&all), [id(&second), id(&first)]);
    assert!(!all.headers.contains_key("x-next-token"));
    let page = server.get("/v2/sandboxes?limit=1").await;
    let token = page.headers["x-next-token"].to_str().unwrap();
    assert_eq!(ids(&page), [id(&second)]);
    assert_eq!(ids(&server.get(&format!("/v2/sandboxes?limit=1&nextToken={token}")).await), [id(&first)]);
    assert_eq!(ids(&server.get("/v2/sandboxes?order=asc").await), [id(&first), id(&second)]);
    assert_eq!(ids(&server.get("/v2/sandboxes?metadata=a%3D1%26b%3Dx%252520y").await), [id(&first)]);
    assert_eq!(ids(&server.get("/v2/sandboxes?metadata=a%3D2").await), [""; 0]);
    assert_eq!(ids(&server.get("/v2/sandboxes?state=paused").await), [""; 0]);
    assert_eq!(ids(&server.get("/v2/sandboxes?template=base&state=running,paused").await), [id(&first)]);
    let path = format!("/sandboxes/{}", id(&first));
    let detail = server.get(&path).await.ok();
    assert_eq!(detail["metadata"]["b"], "x y");
    assert_eq!(server.post(&format!("{path}/timeout"), json!({ "timeout": 5 })).await.status, 204);
    assert_eq!(server.post(&format!("/v2{path}/connect"), json!({ "timeout": 4000 })).await.status, 200);
    let later = server.get(&path).await.ok();
    assert!(later["endAt"].as_str() > detail["endAt"].as_str());
    assert_eq!(server.get(&format!("{path}/metrics")).await.ok().as_array().unwrap().len(), 1);
    assert_eq!(server.get(&format!("/v2{path}/logs")).await.ok(), json!({ "logs": [] }));
    assert_eq!(server.delete(&path).await.status, 204);
    for gone in [server.delete(&path).await, server.get(&path).await] {
        assert_eq!((gone.status.as_u16(), &gone.json()["code"]), (404, &json!(404)));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_paused_sandbox_whose_files_are_lost_is_unknown() {
    let data = tempfile::tempdir().unwrap();
    let backend = Memory::default();
    let (address, store, _engine) = serve_on(data.path(), settings(), Arc::new(backend.clone())).await;
    let key = store.create_key("k", None).await.unwrap().secret;
    let post = async |path: String, body: Value| {
        let request = client().post(format!("http://{address}{path}")).json(&body);
        Answer::of(request.header("x-api-key", &key).header("open-sandbox-api-key", &key).send().await.unwrap()).await
    };
    let mut ids = Vec::new();
    for _ in 0..2 {
        let made = post("/v2/sandboxes".to_owned(), json!({ "templateID": "base" })).await.json();
        let id = made["sandboxID"].as_str().unwrap().to_owned();
        assert_eq!(post(format!("/sandboxes/{id}/pause"), json!({ "memory": false })).await.status, 204);
        ids.push(id);
    }
    backend.lose();
    let ways = [
        (format!("/sandboxes/{}/connect", ids[0]), json!(404)),
        (format!("/v1/sandboxes/{}/resume", ids[1]), json!("SANDBOX::NOT_FOUND")),
    ];
    for (path, code) in ways {
        for _ in 0..2 {
            let gone = post(path.clone(), json!({})).await;
            assert_eq!((gone.status.as_u16(), &gone.json()["code"]), (404, &code), "{path}");
        }
    }
}

#[tokio::test]
async fn a_pause_keeps_the_memory_unless_it_is_asked_not_to() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let sandbox = create(&server, json!({ "autoPause": true, "autoPauseMemory": false })).await;
    let path = format!("/sandboxes/{}", sandbox["sandboxID"].as_str().unwrap());
    execute(&server, &sandbox, json!({ "code": "x = 1" })).await;
    for (pause, value) in
        [(json!({}), "1"), (json!({ "memory": true }), "1"), (json!({ "memory": false }), "NameError")]
    {
        assert_eq!(server.post(&format!("{path}/pause"), pause.clone()).await.status, 204);
        assert_eq!(server.post(&format!("{path}/connect"), json!({})).await.status, 201);
        let lines = execute(&server, &sandbox, json!({ "code": "x" })).await;
        assert!([&lines[1]["text"], &lines[1]["name"]].contains(&&json!(value)), "{pause}: {lines:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn programs_that_a_pause_ends_are_told_of_it() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let sandbox = create(&server, json!({})).await;
    let path = format!("/sandboxes/{}/pause", sandbox["sandboxID"].as_str().unwrap());
    let run = async |code: &str| {
        let request = server.request(Method::POST, "/execute").json(&json!({ "code": code }));
        let request = request.header("E2b-Sandbox-Id", sandbox["sandboxID"].as_str().unwrap());
        let request = request.header("E2b-Sandbox-Port", "49999");
        request.header("X-Access-Token", sandbox["envdAccessToken"].as_str().unwrap()).send().await.unwrap()
    };
    let mut running = run("wait()").await;
    let mut text = Vec::new();
    while !text.windows(5).any(|bytes| bytes == b"begun") {
        text.extend(running.chunk().await.unwrap().unwrap());
    }
    let waiting = run("print('marker-7f3a', 6 * 7)").await;
    assert_eq!(server.post(&path, json!({ "memory": false })).await.status, 204);
    for ended in [running, waiting] {
        let text = ended.text().await.unwrap();
        assert!(text.contains("UnexpectedEndOfExecution") && !text.contains("The server failed"), "{text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn requests_of_other_users_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let sandbox = create(&server, json!({})).await;
    let token = sandbox["envdAccessToken"].as_str().unwrap();
    let message = json!({ "process": { "cmd": "/bin/true" } }).to_string();
    let frame = [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message.as_bytes()].concat();
    let words = "invalid username: 'root'; everything in this sandbox belongs to the user 'user'";
    for (method, path, status) in [
        (Method::GET, "/files?path=a&username=root", 401),
        (Method::POST, "/files?path=a&username=root", 401),
        (Method::POST, "/process.Process/Start", 200),
    ] {
        let request = server.request(method, path).body(frame.clone()).basic_auth("root", Some(""));
        let request = request.header("content-type", "application/connect+json").header("X-Access-Token", token);
        let refused = server.ask(request.header("E2b-Sandbox-Id", sandbox["sandboxID"].as_str().unwrap())).await;
        assert_eq!(refused.status, status, "{path}");
        assert!(String::from_utf8_lossy(&refused.bytes).contains(words), "{path}: {refused:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn requests_that_come_while_their_sandbox_is_being_paused_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let backend = Memory::with_commands(|_, _| {});
    let (address, store, _engine) = serve_on(data.path(), settings(), Arc::new(backend.clone())).await;
    let key = store.create_key("k", None).await.unwrap().secret;
    let asked = |path: &str, body: Value| {
        let request = client().post(format!("http://{address}{path}")).json(&body);
        request.header("x-api-key", &key).header("open-sandbox-api-key", &key)
    };
    let made = Answer::of(asked("/v2/sandboxes", json!({ "templateID": "base" })).send().await.unwrap()).await.json();
    let (id, token) = (made["sandboxID"].as_str().unwrap(), made["envdAccessToken"].as_str().unwrap());
    backend.hold_pauses(true);
    let pausing = tokio::spawn(asked(&format!("/sandboxes/{id}/pause"), json!({})).send());
    let context = || {
        let request = client().post(format!("http://{address}/contexts")).json(&json!({}));
        request.header("E2b-Sandbox-Id", id).header("E2b-Sandbox-Port", "49999").header("X-Access-Token", token).send()
    };
    let refused = loop {
        let answer = Answer::of(context().await.unwrap()).await;
        if answer.status != 200 {
            break answer;
        }
    };
    let also = asked(&format!("/v1/sandboxes/{id}/proxy/44772/code"), json!({ "code": "1" }));
    for refused in [refused, Answer::of(also.send().await.unwrap()).await] {
        let text = String::from_utf8_lossy(&refused.bytes);
        assert!(refused.status == 409 && text.contains("is paused"), "{} {text}", refused.status);
    }
    let command = json!({ "process": { "cmd": "/bin/true" } }).to_string();
    let frame = [&[0][..], &u32::try_from(command.len()).unwrap().to_be_bytes(), command.as_bytes()].concat();
    let start = client().post(format!("http://{address}/process.Process/Start")).body(frame);
    let start = start.header("content-type", "application/connect+json").header("X-Access-Token", token);
    let refused = Answer::of(start.header("E2b-Sandbox-Id", id).send().await.unwrap()).await;
    let text = String::from_utf8_lossy(&refused.bytes);
    assert!(text.contains("unavailable") && text.contains("is paused"), "{text}");
    backend.hold_pauses(false);
    assert_eq!(pausing.await.unwrap().unwrap().status(), 204);
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_in_e2bs_words() {
    let data = tempfile::tempdir().unwrap();
    let server = start_with(data.path(), settings().engine(|engine| engine.sessions = 1)).await;
    for (body, status) in [
        (json!({}), 400),
        (json!({ "templateID": 3 }), 400),
        (json!({ "templateID": "unknown" }), 404),
        (json!({ "templateID": "base", "timeout": 0 }), 400),
        (json!({ "templateID": "base", "timeout": 100_000_000 }), 400),
        (json!({ "templateID": "base", "metadata": { "a": 1 } }), 400),
        (json!({ "templateID": "base", "envVars": { "a=b": "" } }), 400),
        (json!({ "templateID": "mcp-gateway", "mcp": { "time": {} } }), 400),
        (json!({ "templateID": "base", "volumeMounts": [{ "name": "v", "path": "/v" }] }), 400),
        (json!({ "templateID": "base", "network": { "maskRequestHost": "a\nb" } }), 400),
        (json!({ "templateID": "base", "network": { "maskRequestHost": "x".repeat(301) } }), 400),
    ] {
        let refused = server.post("/v2/sandboxes", body.clone()).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["code"]), (status, &json!(status)), "{body}");
        assert!(refused.json()["message"].is_string());
    }
    create(&server, json!({})).await;
    let full = server.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!(full.status, 429);
    assert_eq!(full.headers["should-retry"], "true");
    for query in ["limit=0", "limit=x", "nextToken=x", "order=up", "startedAfter=now"] {
        assert_eq!(server.get(&format!("/v2/sandboxes?{query}")).await.status, 400, "{query}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_sandbox_is_reached_with_its_own_token_alone() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let key = server.store.create_key("one", None).await.unwrap();
    let other = server.store.create_key("other", None).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    // The form that some versions of the SDKs want.
    let digits = key.secret.strip_prefix(aludel_store::KEY_PREFIX).unwrap();
    let make = server.request(Method::POST, "/v2/sandboxes").header("X-API-KEY", format!("e2b_{digits}"));
    let network = json!({ "allowPublicTraffic": false });
    let made = server.ask(make.json(&json!({ "templateID": "base", "network": network }))).await;
    assert_eq!(made.status, 201, "{made:?}");
    let sandbox = made.json();
    let path = format!("/sandboxes/{}", sandbox["sandboxID"].as_str().unwrap());
    let get = |key: &str| server.request(Method::GET, &path).header("X-API-KEY", key);
    assert_eq!(server.ask(get(&other.secret)).await.status, 404);
    assert_eq!(server.ask(get(&key.secret)).await.status, 200);
    assert_eq!(server.get(&path).await.status, 401);
    let probed = server.get("/health").await;
    assert_eq!((probed.status.as_u16(), probed.json()), (200, json!({ "status": "healthy" })));

    let token = sandbox["envdAccessToken"].as_str().unwrap();
    let traffic = sandbox["trafficAccessToken"].as_str().unwrap();
    let list = "/process.Process/List";
    assert_eq!(ask(&server, &sandbox, 49983, list, &[("X-Access-Token", token)], json!({})).await.status, 200);
    for wrong in [&[][..], &[("X-Access-Token", "ea_0")], &[("X-API-KEY", key.secret.as_str())]] {
        assert_eq!(ask(&server, &sandbox, 49983, list, wrong, json!({})).await.status, 401, "{wrong:?}");
        assert_eq!(ask(&server, &sandbox, 49999, "/execute", wrong, json!({ "code": "1" })).await.status, 401);
        assert_eq!(ask(&server, &sandbox, 49999, "/contexts", wrong, json!({})).await.status, 403);
    }
    let traffic = &[("E2B-Traffic-Access-Token", traffic)];
    // The last two are ours with another method.
    for path in ["/", "/any/path", "/execute", "/docs", "/openapi.json", "/healthz", "/metrics", "/health"] {
        let refused = ask(&server, &sandbox, 8001, path, &[], json!({})).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["code"]), (403, &json!(403)), "{path}");
        let closed = ask(&server, &sandbox, 8001, path, traffic, json!({})).await;
        assert_eq!((closed.status.as_u16(), &closed.json()["port"]), (502, &json!(8001)), "{path}");
    }
    assert_eq!(ask(&server, &sandbox, 49999, "/contexts", traffic, json!({})).await.status, 200);
    let unknown = json!({ "sandboxID": "i00000000000000000000" });
    let gone = ask(&server, &unknown, 49983, list, &[("X-Access-Token", token)], json!({})).await;
    assert_eq!(gone.status, 502);
    assert!(gone.json()["message"].as_str().unwrap().contains("was not found"));
    let signed = server.get("/files?path=a&signature=v1_x").await;
    assert_eq!((signed.status.as_u16(), signed.json()), (401, json!({ "code": 401, "message": "invalid signature" })));
    server.store.revoke_key(key.id).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    let revoked = ask(&server, &sandbox, 49983, list, &[("X-Access-Token", token)], json!({})).await;
    assert_eq!(revoked.status, 401);
    assert!(revoked.json()["message"].as_str().unwrap().contains("was revoked"), "{revoked:?}");
    assert_eq!(ask(&server, &sandbox, 8001, "/", traffic, json!({})).await.status, 401);
    server.stop().await;
}

/// The ways of a sandbox lead to what its own port serves: neither to the control plane of its tenant nor from one port to another's
/// routes.
#[tokio::test]
async fn a_sandbox_is_no_way_to_the_rest_of_its_tenant() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let key = server.store.create_key("one", None).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    let server = server.with_key(&key.secret);
    let sandbox = create(&server, json!({})).await;
    let (id, token) = (sandbox["sandboxID"].as_str().unwrap(), sandbox["envdAccessToken"].as_str().unwrap());
    let stranger = crate::common::client();
    let control = ["/sandboxes", "/v2/sandboxes", "/snapshots", "/templates/aliases/base"].map(str::to_owned);
    let own = ["", "/timeout", "/connect", "/pause", "/refreshes", "/resume", "/metrics", "/logs"];
    let control = control.into_iter().chain(own.map(|rest| format!("/sandboxes/{id}{rest}")));
    let envd = ["/files?path=x", "/envs", "/metrics", "/process.Process/List", "/filesystem.Filesystem/Stat"];
    let interpreter = ["/execute", "/contexts", "/contexts/x", "/contexts/x/restart"];
    let elsewhere = |paths: &[&str], port: u16| paths.iter().map(|path| ((*path).to_owned(), port)).collect::<Vec<_>>();
    let mut ways: Vec<(String, u16)> = control.flat_map(|path| [(path.clone(), 49983), (path, 49999)]).collect();
    ways.extend(elsewhere(&envd, 49999).into_iter().chain(elsewhere(&interpreter, 49983)));
    for (path, port) in ways {
        for method in [Method::GET, Method::POST, Method::DELETE] {
            // By headers, and by the name of the host; a stranger without the token, and somebody who was given it.
            let host = format!("{port}-{id}.sandboxes.example");
            for (by_name, token) in [(false, None), (true, None), (false, Some(token)), (true, Some(token))] {
                let way =
                    stranger.request(method.clone(), format!("http://{}{path}", crate::common::connector::HOST_NAME));
                let way = match by_name {
                    true => way.header("host", &host),
                    false => way.header("E2b-Sandbox-Id", id).header("E2b-Sandbox-Port", port),
                };
                let way = token.iter().fold(way, |way, token| way.header("X-Access-Token", *token));
                let answer = server.ask(way.json(&json!({ "templateID": "base", "timeout": 60 }))).await;
                let what = format!("{method} {path} at {port} {token:?} {}", String::from_utf8_lossy(&answer.bytes));
                assert!(matches!(answer.status.as_u16(), 401 | 404), "{}: {what}", answer.status);
            }
        }
    }
    // The control: the same paths, each at its own place.
    assert_eq!(server.get("/sandboxes").await.ok().as_array().unwrap().len(), 1);
    let own = [("X-Access-Token", token)];
    assert_eq!(ask(&server, &sandbox, 49983, "/process.Process/List", &own, json!({})).await.status, 200);
    assert_eq!(ask(&server, &sandbox, 49999, "/contexts", &[], json!({})).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn programs_run_in_contexts_and_tell_line_by_line() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let sandbox = create(&server, json!({})).await;
    let lines = execute(&server, &sandbox, json!({ "code": "print('marker-7f3a', 6 * 7)", "context_id": null })).await;
    assert_eq!(lines[0], json!({ "type": "number_of_executions", "execution_count": 1 }));
    assert_eq!((&lines[1]["type"], &lines[1]["text"]), (&json!("stdout"), &json!("marker-7f3a 42\n")));
    assert!(lines[1]["timestamp"].is_string());
    assert_eq!(lines[2..], [json!({ "type": "end_of_execution" })]);
    let lines = execute(&server, &sandbox, json!({ "code": "print('marker-7f3a')\n1 / 0" })).await;
    assert_eq!((&lines[0]["execution_count"], &lines[2]["name"]), (&json!(2), &json!("ZeroDivisionError")));
    let lines = execute(&server, &sandbox, json!({ "code": "show()" })).await;
    assert_eq!((&lines[1]["pdf"], &lines[1]["is_main_result"]), (&json!("JVBERg=="), &json!(false)));
    assert!(lines[1]["png"].is_string());

    let interpreter = async |path: &str, body: Value| ask(&server, &sandbox, 49999, path, &[], body).await;
    let context = interpreter("/contexts", json!({ "cwd": "/tmp" })).await.ok();
    assert_eq!((&context["language"], &context["cwd"]), (&json!("python"), &json!("/tmp")));
    let id = context["id"].as_str().unwrap();
    let lines = execute(&server, &sandbox, json!({ "code": "show()", "context_id": id })).await;
    assert_eq!(lines[0]["execution_count"], 1);
    assert_eq!(interpreter(&format!("/contexts/{id}/restart"), json!({})).await.ok(), Value::Null);
    assert_eq!(interpreter("/contexts/nothing/restart", json!({})).await.status, 404);
    assert_eq!(interpreter("/contexts", json!({ "language": "cobol" })).await.status, 400);
    let token = sandbox["envdAccessToken"].as_str().unwrap();
    for (more, words) in [
        (json!({ "env_vars": { "": "x" } }), "'' cannot be an environment variable"),
        (json!({ "env_vars": { "a=b": "x" } }), "'a=b' cannot be an environment variable"),
        (json!({ "env_vars": { "a\0": "x" } }), r"'a\0' cannot be an environment variable"),
        (json!({ "env_vars": { "a": "\0" } }), "'a' cannot be an environment variable"),
        (json!({ "language": "cobol" }), "cobol"),
        (json!({ "language": "no language" }), "the name of a language"),
    ] {
        let mut body = json!({ "code": "1" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = ask(&server, &sandbox, 49999, "/execute", &[("X-Access-Token", token)], body).await;
        let text = String::from_utf8_lossy(&refused.bytes);
        assert!(refused.status == 400 && text.contains(words), "{more}: {} {text}", refused.status);
    }
    let both = json!({ "code": "1", "context_id": id, "language": "python" });
    let refused = ask(&server, &sandbox, 49999, "/execute", &[("X-Access-Token", token)], both).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.bytes, b"Only one of context_id or language can be provided");
    server.stop().await;
}

#[tokio::test]
async fn frames_that_are_none_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let sandbox = create(&server, json!({})).await;
    let token = sandbox["envdAccessToken"].as_str().unwrap().to_owned();
    let send = async |path: &str, kind: &str, body: Vec<u8>| {
        let request = server.request(Method::POST, path).body(body).header("Content-Type", kind);
        let request = request.header("E2b-Sandbox-Id", sandbox["sandboxID"].as_str().unwrap());
        server.ask(request.header("X-Access-Token", &token)).await
    };
    let streams = "application/connect+json";
    for body in [&b""[..], b"{}", b"\0\0\0\0\x09{}", b"\x01\0\0\0\x02{}", b"\0\0\0\0\x02[]", b"\0\0\0\0\x02{x"] {
        // Told in the last frame, where clients of streams look.
        let refused = send("/process.Process/Connect", streams, body.to_vec()).await;
        let end: Value = serde_json::from_slice(&refused.bytes[5..]).unwrap();
        assert_eq!(
            (refused.status.as_u16(), &refused.headers["content-type"], refused.bytes[0]),
            (200, &streams.parse().unwrap(), 2)
        );
        assert_eq!(end["error"]["code"], "invalid_argument", "{body:?}");
    }
    assert_eq!(
        send("/process.Process/Connect", "application/json", b"{}".to_vec()).await.json()["code"],
        "unimplemented"
    );
    let deep = [vec![b'['; 200], vec![b']'; 200]].concat();
    assert_eq!(send("/process.Process/List", "application/json", b"{}".to_vec()).await.status, 200);
    for (path, kind, body, code) in [
        ("/filesystem.Filesystem/Stat", "application/json", deep, "invalid_argument"),
        ("/filesystem.Filesystem/Stat", "application/proto", Vec::new(), "unimplemented"),
        ("/filesystem.Filesystem/Unheard", "application/json", b"{}".to_vec(), "unimplemented"),
        (
            "/process.Process/SendSignal",
            "application/json",
            b"{\"process\":{\"pid\":9},\"signal\":\"SIGNAL_SIGKILL\"}".to_vec(),
            "not_found",
        ),
    ] {
        let refused = send(path, kind, body).await;
        assert_eq!(refused.json()["code"], code, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn rules_for_a_network_let_nothing_out_and_secrets_are_refused_in_its_own_form() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let sandbox = create(&server, json!({ "network": { "denyOut": ["0.0.0.0/0"], "rules": {} } })).await;
    let path = format!("/sandboxes/{}/network", sandbox["sandboxID"].as_str().unwrap());
    let put = async |path: &str, body: Value| server.ask(server.request(Method::PUT, path).json(&body)).await;
    for body in [json!({ "denyOut": ["0.0.0.0/0"] }), json!({ "allow_internet_access": false, "allowOut": [] })] {
        assert_eq!(put(&path, body).await.status, 204);
    }
    let wanted = [
        json!({ "allowOut": ["1.1.1.1"] }),
        json!({ "allow_internet_access": true }),
        json!({ "rules": { "a.example": [] } }),
        json!({ "egressProxy": { "url": "http://a" } }),
    ];
    for body in wanted {
        let refused = put(&path, body.clone()).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.json()["message"].as_str().unwrap().contains("no network"), "{refused:?}");
        if body.get("allow_internet_access").is_none() {
            let made = server.post("/v2/sandboxes", json!({ "templateID": "base", "network": body })).await;
            assert_eq!(made.status, 400, "{body}");
        }
    }
    assert_eq!(put("/sandboxes/none/network", json!({})).await.status, 404);
    for path in ["/secrets", "/secrets/a", "/templates"] {
        let refused = server.get(path).await;
        assert_eq!((refused.status.as_u16(), refused.json()["code"].as_i64()), (400, Some(400)), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_creation_with_an_idempotency_key_is_done_once() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let create = async |key: &str, timeout: u32| {
        let body = json!({ "templateID": "base", "timeout": timeout });
        server.ask(server.request(Method::POST, "/v2/sandboxes").header("Idempotency-Key", key).json(&body)).await
    };
    let id = |answer: Answer| {
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["sandboxID"].as_str().unwrap().to_owned()
    };
    // A repetition that comes while the first is being made waits for it.
    let (first, second) = tokio::join!(create("one", 60), create("one", 60));
    let (first, second) = (id(first), id(second));
    assert_eq!(first, second);
    assert_eq!(id(create("one", 60).await), first);
    assert_ne!(id(create("two", 60).await), first);
    for (key, timeout, status, words) in
        [("one".to_owned(), 61, 409, "another body"), ("x".repeat(256), 60, 400, "255")]
    {
        let refused = create(&key, timeout).await;
        let message = refused.json()["message"].to_string();
        assert!(refused.status == status && message.contains(words), "{message}");
    }
    server.delete(&format!("/sandboxes/{first}")).await;
    assert_ne!(id(create("one", 61).await), first, "it has ended");
    server.stop().await;
}
