//! OpenSandbox's lifecycle and its code interpreter with scripted programs: what needs no sandbox of the host.

use crate::common::{Answer, KEYS_FRESH, Server, listen_with, settings, start, start_with};
use aludel_engine::approvals::{ApprovalMode, ApprovalPolicy};
use reqwest::Method;
use serde_json::{Value, json};

const IMAGE: &str = "opensandbox/code-interpreter:v1.1.0";

async fn create(server: &Server, more: Value) -> String {
    let mut body = json!({ "image": { "uri": IMAGE }, "timeout": 300, "resourceLimits": { "cpu": "1" } });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = server.post("/v1/sandboxes", body).await;
    assert_eq!(made.status, 202, "{made:?}");
    made.json()["id"].as_str().unwrap().to_owned()
}

/// The path of a port of a sandbox, and the headers that it needs, as the endpoint gives them.
async fn endpoint(server: &Server, id: &str, port: u16) -> (String, Vec<(String, String)>) {
    let answered = server.get(&format!("/v1/sandboxes/{id}/endpoints/{port}?use_server_proxy=false")).await.ok();
    let (_host, path) = answered["endpoint"].as_str().unwrap().split_once('/').unwrap();
    let headers = answered["headers"].as_object().into_iter().flatten();
    (format!("/{path}"), headers.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect())
}

async fn ask(server: &Server, id: &str, method: Method, path: &str, body: Option<Value>) -> Answer {
    let (base, headers) = endpoint(server, id, 44772).await;
    let request = server.request(method, &format!("{base}{path}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
    server
        .ask(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await
}

/// The events of a program, without their times.
async fn run(server: &Server, id: &str, code: &str) -> Vec<Value> {
    let body = json!({ "code": code, "context": { "language": "python" } });
    let answer = ask(server, id, Method::POST, "/code", Some(body)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let text = String::from_utf8(answer.bytes).unwrap();
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    let events = events.map(|event| serde_json::from_str::<Value>(event).unwrap());
    events
        .map(|mut event| {
            assert!(event.as_object_mut().unwrap().remove("timestamp").unwrap().is_i64());
            event
        })
        .collect()
}

#[tokio::test]
async fn the_id_of_a_request_is_the_clients_and_an_empty_answer_has_a_length() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let answered = async |path: &str, id: &str| {
        let answer = server.ask(server.request(Method::GET, path).header("x-request-id", id)).await;
        answer.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(answered("/v1/sandboxes", "mine").await, "mine");
    assert_eq!(answered("/v1/sandboxes/missing", &"x".repeat(128)).await, "x".repeat(128));
    for (path, id) in [("/v1/sandboxes", ""), ("/v1/sandboxes", &*"x".repeat(129)), ("/v1/models", "mine")] {
        assert!(answered(path, id).await.starts_with("req_"), "{path} {id}");
    }
    let id = create(&server, json!({})).await;
    // Without a length it would be chunked, and clients would look for JSON in it.
    let deleted = ask(&server, &id, Method::DELETE, "/code/contexts?language=python", None).await;
    assert_eq!(
        (deleted.status.as_u16(), &deleted.headers["content-length"], deleted.bytes.len()),
        (200, &"0".parse().unwrap(), 0)
    );
}

#[tokio::test]
async fn sandboxes_are_made_found_and_ended() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let first = create(&server, json!({ "metadata": { "a": "1", "b": "x y" }, "entrypoint": ["tail"] })).await;
    let second = create(&server, json!({ "timeout": null, "env": { "A": "1", "B": null } })).await;
    let ids = |answer: &Answer| {
        let items = answer.ok()["items"].as_array().unwrap().clone();
        items.iter().map(|sandbox| sandbox["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = server.get("/v1/sandboxes").await;
    assert_eq!(ids(&all), [second.clone(), first.clone()]);
    let page = server.get("/v1/sandboxes?pageSize=1&page=2").await;
    assert_eq!(ids(&page), [first.as_str()]);
    let pagination = json!({ "page": 2, "pageSize": 1, "totalItems": 2, "totalPages": 2, "hasNextPage": false });
    assert_eq!(page.ok()["pagination"], pagination);
    assert_eq!(ids(&server.get("/v1/sandboxes?metadata=a%3D1%26b%3Dx%2520y").await), [first.as_str()]);
    assert_eq!(ids(&server.get("/v1/sandboxes?state=Paused").await), [""; 0]);
    assert_eq!(
        ids(&server.get("/v1/sandboxes?state=RUNNING").await),
        ids(&server.get("/v1/sandboxes?state=Running").await)
    );
    assert_eq!(ids(&server.get("/v1/sandboxes?state=Paused&state=Running&metadata=a%3D2").await), [""; 0]);
    let path = format!("/v1/sandboxes/{first}");
    let detail = server.get(&path).await.ok();
    assert_eq!((&detail["status"]["state"], &detail["entrypoint"]), (&json!("Running"), &json!(["tail"])));
    let patch = server.request(Method::PATCH, &format!("{path}/metadata")).json(&json!({ "a": null, "c": "3" }));
    assert_eq!(server.ask(patch).await.ok()["metadata"], json!({ "b": "x y", "c": "3" }));
    let renewed = server.post(&format!("{path}/renew-expiration"), json!({ "expiresAt": detail["expiresAt"] })).await;
    assert!(renewed.ok()["expiresAt"].as_str().unwrap().starts_with(&detail["expiresAt"].as_str().unwrap()[..16]));
    assert_eq!(server.post("/v1/metrics/events", json!({})).await.status, 204);
    assert_eq!(server.delete(&path).await.status, 204);
    for gone in [server.delete(&path).await, server.get(&path).await] {
        assert_eq!((gone.status.as_u16(), &gone.json()["code"]), (404, &json!("SANDBOX::NOT_FOUND")));
    }
    server.stop().await;
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_in_opensandboxs_words() {
    let data = tempfile::tempdir().unwrap();
    let server = start_with(data.path(), settings().engine(|engine| engine.sessions = 1)).await;
    let image = json!({ "uri": IMAGE });
    let allow = json!([{ "action": "allow", "target": "example.com" }]);
    for body in [
        json!({}),
        json!({ "image": { "uri": "nginx" } }),
        json!({ "image": image, "timeout": 0 }),
        json!({ "image": image, "timeout": 100_000_000 }),
        json!({ "image": image, "metadata": { "a": 1 } }),
        json!({ "image": image, "env": { "a=b": "" } }),
        json!({ "image": image, "volumes": [{ "name": "v" }] }),
        json!({ "image": image, "networkPolicy": { "defaultAction": "allow" } }),
        json!({ "image": image, "networkPolicy": { "defaultAction": "deny", "egress": allow } }),
        json!({ "snapshotId": "s" }),
    ] {
        let refused = server.post("/v1/sandboxes", body.clone()).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.json()["message"].is_string() && refused.json()["code"].is_string());
    }
    let id = create(&server, json!({ "networkPolicy": { "defaultAction": "deny", "egress": [] } })).await;
    let full = server.post("/v1/sandboxes", json!({ "image": image })).await;
    assert_eq!((full.status.as_u16(), &full.json()["code"]), (429, &json!("TOO_MANY_REQUESTS")));
    for query in ["page=0", "pageSize=x", "pageSize=1000"] {
        assert_eq!(server.get(&format!("/v1/sandboxes?{query}")).await.status, 400, "{query}");
    }
    for end in ["yesterday", "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"] {
        let renewed = server.post(&format!("/v1/sandboxes/{id}/renew-expiration"), json!({ "expiresAt": end })).await;
        assert_eq!(renewed.status, 400, "{end}");
    }
    for path in ["/v1/pools", "/v1/templates/a", &format!("/v1/sandboxes/{id}/snapshots")] {
        let refused = server.post(path, json!({})).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["code"]), (501, &json!("NOT_SUPPORTED")), "{path}");
    }
    let (base, _) = endpoint(&server, &id, 44772).await;
    assert_eq!(server.get(&format!("{base}/unknown")).await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn programs_are_told_of_as_they_run() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    let id = create(&server, json!({})).await;
    let events = run(&server, &id, "print('marker-7f3a')\n1 / 0").await;
    assert_eq!(events[0]["type"], "init");
    assert_eq!(events[1], json!({ "type": "execution_count", "execution_count": 1 }));
    assert_eq!(events[2], json!({ "type": "stdout", "text": "marker-7f3a\n" }));
    let error = &events[3]["error"];
    assert_eq!((&error["ename"], &error["evalue"]), (&json!("ZeroDivisionError"), &json!("division by zero")));
    assert_eq!(events.len(), 4);
    run(&server, &id, "x = 1").await;
    let events = run(&server, &id, "x").await;
    assert_eq!(events[2], json!({ "type": "result", "results": { "text": "1" } }));
    assert_eq!(events[3]["type"], "execution_complete");
    let shown = run(&server, &id, "show()").await;
    assert_eq!(shown[2]["results"]["image/png"], "iVBORw0KGgo=");
    let made = ask(&server, &id, Method::POST, "/code/context", Some(json!({ "language": "python" }))).await.ok();
    let path = format!("/code/contexts/{}", made["id"].as_str().unwrap());
    assert_eq!(ask(&server, &id, Method::GET, &path, None).await.ok(), made);
    let list = async |language| {
        ask(&server, &id, Method::GET, &format!("/code/contexts?language={language}"), None).await.ok()
    };
    assert_eq!((list("python").await, list("java").await), (json!([made]), json!([])));
    for language in ["java", "python"] {
        let path = format!("/code/contexts?language={language}");
        assert_eq!(ask(&server, &id, Method::DELETE, &path, None).await.status, 200);
    }
    assert_eq!(list("python").await, json!([]));
    for (body, status, code) in [
        (json!({ "code": "1", "context": { "language": "java" } }), 400, "NOT_SUPPORTED"),
        (json!({ "code": "1", "context": { "id": "c" } }), 404, "CONTEXT_NOT_FOUND"),
        (json!({ "context": {} }), 400, "INVALID_REQUEST_BODY"),
    ] {
        let refused = ask(&server, &id, Method::POST, "/code", Some(body)).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["code"]), (status, &json!(code)));
    }
    let idle = ask(&server, &id, Method::DELETE, "/code?id=exec_0", None).await;
    assert_eq!(idle.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn a_program_is_interrupted_by_its_id_or_its_contexts() {
    let data = tempfile::tempdir().unwrap();
    let server = listen_with(data.path(), settings(), Vec::new(), ApprovalPolicy::default()).await;
    let id = create(&server, json!({})).await;
    let made = ask(&server, &id, Method::POST, "/code/context", Some(json!({}))).await.ok();
    let context = made["id"].as_str().unwrap().to_owned();
    let (base, headers) = endpoint(&server, &id, 44772).await;
    for by_context in [false, true] {
        let request = server
            .request(Method::POST, &format!("{base}/code"))
            .json(&json!({ "code": "wait()", "context": { "id": context } }));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
        let mut answer = request.send().await.unwrap();
        let mut text = String::new();
        while !text.contains("begun") {
            text.push_str(str::from_utf8(&answer.chunk().await.unwrap().unwrap()).unwrap());
        }
        let init: Value = serde_json::from_str(text.split("\n\n").next().unwrap()).unwrap();
        let execution = if by_context { context.as_str() } else { init["text"].as_str().unwrap() };
        let stopped = ask(&server, &id, Method::DELETE, &format!("/code?id={execution}"), None).await;
        assert_eq!(stopped.status, 200);
        while let Some(chunk) = answer.chunk().await.unwrap() {
            text.push_str(str::from_utf8(&chunk).unwrap());
        }
        assert!(text.contains("KeyboardInterrupt"), "{text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_use_of_a_sandbox_is_told_every_second() {
    let data = tempfile::tempdir().unwrap();
    let server = listen_with(data.path(), settings(), Vec::new(), ApprovalPolicy::default()).await;
    let id = create(&server, json!({})).await;
    let (base, headers) = endpoint(&server, &id, 44772).await;
    let request = server.request(Method::GET, &format!("{base}/metrics/watch"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(name, value));
    let mut figures = request.send().await.unwrap();
    let mut text = String::new();
    while text.matches("\n\n").count() < 2 {
        text.push_str(str::from_utf8(&figures.chunk().await.unwrap().unwrap()).unwrap());
    }
    for figure in text.split_terminator("\n\n") {
        let figure: Value = serde_json::from_str(figure).unwrap();
        assert!(figure["mem_total_mib"].as_f64().unwrap() > 0.0, "{figure}");
    }
    drop(figures);
    server.stop().await;
}

#[tokio::test]
async fn contexts_are_not_open_to_who_knows_the_id() {
    let data = tempfile::tempdir().unwrap();
    let server = start(data.path()).await;
    // Without `secureAccess`: anybody may have the address of one of its ports, and the id stands in it.
    let id = create(&server, json!({})).await;
    let (_, headers) = endpoint(&server, &id, 44772).await;
    let contexts = async |token: &str| {
        let request = server.request(Method::GET, "/contexts").header("e2b-sandbox-id", &id);
        let request = request.header("e2b-sandbox-port", "49999").header("x-access-token", token);
        server.ask(request).await.status.as_u16()
    };
    assert_eq!((contexts("").await, contexts("ea_0").await, contexts(&headers[0].1).await), (401, 401, 200));
    server.stop().await;
}

#[tokio::test]
async fn a_sandbox_is_reached_by_its_token_or_its_owners_key() {
    let data = tempfile::tempdir().unwrap();
    let mut server = start(data.path()).await;
    let key = server.store.create_key("one", None).await.unwrap();
    let other = server.store.create_key("other", None).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    server.use_key(&key.secret);
    let id = create(&server, json!({ "secureAccess": true })).await;
    let (base, headers) = endpoint(&server, &id, 44772).await;
    let (program, access) = endpoint(&server, &id, 8001).await;
    let (egress, policy_token) = endpoint(&server, &id, 18080).await;
    let token = headers[0].1.as_str();
    assert_eq!(ask(&server, &id, Method::GET, "/ping", None).await.status, 200);
    server.use_key("");
    let ping = format!("{base}/ping");
    let with = |path: &str, name: &str, value: &str| server.request(Method::GET, path).header(name, value);
    for (path, name, value, status) in [
        (&ping, "x-execd-access-token", token, 200),
        (&ping, "x-execd-access-token", "ea_0", 401),
        (&ping, "open-sandbox-api-key", &key.secret, 200),
        (&ping, "open-sandbox-api-key", &other.secret, 404),
        (&ping, "accept", "*/*", 401),
        (&program, "opensandbox-secure-access", &access[0].1, 502),
        (&program, "opensandbox-secure-access", token, 401),
        (&program, "open-sandbox-api-key", &other.secret, 404),
        (&program, "accept", "*/*", 401),
        (&format!("{egress}/policy"), "opensandbox-egress-auth", &policy_token[0].1, 200),
        (&format!("/v1/sandboxes/{id}"), "open-sandbox-api-key", &other.secret, 404),
        (&format!("/v1/sandboxes/{id}"), "x-execd-access-token", token, 401),
        (&"/v1/sandboxes/i0/proxy/8001/".to_owned(), "open-sandbox-api-key", &key.secret, 404),
        (&format!("/v1/sandboxes/{id}/proxy/0/"), "open-sandbox-api-key", &key.secret, 404),
        (&format!("/v1/sandboxes/{id}/proxy/99999/"), "open-sandbox-api-key", &key.secret, 404),
    ] {
        let answer = server.ask(with(path, name, value)).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {name}: {value}");
    }
    let list = server.ask(with("/v1/sandboxes", "open-sandbox-api-key", &other.secret)).await;
    assert_eq!(list.ok()["items"], json!([]));
    server.store.set_expiry(key.id, Some(0)).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    assert_eq!(server.ask(with(&ping, "x-execd-access-token", token)).await.status, 401);
    server.stop().await;
}

#[tokio::test]
async fn no_command_runs_where_programs_need_approval() {
    let data = tempfile::tempdir().unwrap();
    let approvals = ApprovalPolicy { mode: ApprovalMode::Always, ..ApprovalPolicy::default() };
    let server = listen_with(data.path(), settings(), Vec::new(), approvals).await;
    let id = create(&server, json!({})).await;
    for (path, body) in [("/command", json!({ "command": "true" })), ("/session", json!({}))] {
        let refused = ask(&server, &id, Method::POST, path, Some(body)).await;
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.json()["message"].as_str().unwrap().contains("approval.mode"));
    }
    server.stop().await;
}
