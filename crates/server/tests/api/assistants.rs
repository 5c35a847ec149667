//! Runs of assistants whose time is over, whose client goes away, or whose server is killed.

use std::time::Duration;

use aludel_store::{QuotaCheck, RunId, RunUpdate, Store, Tenant, ThreadId, TurnId};
use aludel_testkit::{Scripted, ScriptedUpstream};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::common::{Answer, Server, listen, model, settings};

async fn post(server: &Server, path: &str, body: &Value) -> Answer {
    server.ask(server.request(Method::POST, path).json(body)).await
}

async fn get(server: &Server, path: &str) -> Value {
    server.ask(server.request(Method::GET, path)).await.ok()
}

fn id(object: &Value) -> String {
    object["id"].as_str().unwrap().to_owned()
}

/// An assistant and a thread with a question.
async fn begun(server: &Server) -> (String, String) {
    let function = json!({ "type": "function", "function": { "name": "weather" } });
    let tools = json!([{ "type": "code_interpreter" }, function]);
    let assistant = post(server, "/v1/assistants", &json!({ "model": "m", "tools": tools })).await.ok();
    let question = json!({ "messages": [{ "role": "user", "content": "?" }] });
    (id(&assistant), id(&post(server, "/v1/threads", &question).await.ok()))
}

/// Waits until a run has this status.
async fn until(server: &Server, run: &str, status: &str) -> Value {
    loop {
        let found = get(server, run).await;
        if found["status"] == status {
            return found;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_run_expires_and_lets_its_thread_go() {
    let data = tempfile::tempdir().unwrap();
    let upstream =
        ScriptedUpstream::start(vec![Scripted::Python("wait()"), Scripted::Calls(vec![("weather", "{}".into())])])
            .await;
    let settings = settings().server(|server| server.run_lifetime = Duration::from_secs(3));
    let server = listen(data.path(), settings, vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    let runs = format!("/v1/threads/{thread}/runs");
    // One that computes, and one that waits for its client.
    for steps in [1, 1] {
        let run = post(&server, &runs, &json!({ "assistant_id": assistant })).await.ok();
        let path = format!("{runs}/{}", id(&run));
        let run = until(&server, &path, "expired").await;
        assert_eq!((&run["expires_at"], &run["required_action"]), (&Value::Null, &Value::Null));
        let found = get(&server, &format!("{path}/steps")).await;
        let statuses: Vec<&Value> = found["data"].as_array().unwrap().iter().map(|step| &step["status"]).collect();
        assert_eq!(statuses, vec!["expired"; steps]);
    }
    post(&server, &format!("/v1/threads/{thread}/messages"), &json!({ "role": "user", "content": "?" })).await.ok();
    server.stop().await;
}

/// Also in the other protocols that put the end of a program into its output.
#[tokio::test]
async fn the_end_of_a_program_is_a_line_of_its_own() {
    let data = tempfile::tempdir().unwrap();
    let exits = [Scripted::Python("print('begun', end=''); os._exit(3)"), Scripted::Text("Done.")];
    let upstream = ScriptedUpstream::start(exits.iter().cycle().take(6).cloned().collect()).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    let runs = format!("/v1/threads/{thread}/runs");
    let path = format!("{runs}/{}", id(&post(&server, &runs, &json!({ "assistant_id": assistant })).await.ok()));
    until(&server, &path, "completed").await;
    let steps = get(&server, &format!("{path}/steps?order=asc")).await;
    let tools = json!([{ "type": "code_interpreter", "container": { "type": "auto" } }]);
    let include = ["code_interpreter_call.outputs"];
    let body = json!({ "model": "m", "input": "Go", "tools": tools, "include": include });
    let response = post(&server, "/v1/responses", &body).await.ok();
    let body = json!({ "model": "models/m", "input": "Go", "tools": [{ "type": "code_execution" }] });
    let interaction = post(&server, "/v1beta/interactions", &body).await.ok();
    for answer in [steps, response, interaction] {
        assert!(answer.to_string().contains(r"begun\nThe program ended the interpreter"), "{answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_run_goes_on_without_the_client_that_followed_it() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Python("x = 1"), Scripted::Text("Done.")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    let runs = format!("/v1/threads/{thread}/runs");
    let body = json!({ "assistant_id": assistant, "stream": true });
    drop(server.request(Method::POST, &runs).json(&body).send().await.unwrap());
    let run = id(&get(&server, &runs).await["data"][0]);
    until(&server, &format!("{runs}/{run}"), "completed").await;
    let messages = get(&server, &format!("/v1/threads/{thread}/messages")).await;
    assert_eq!(messages["data"][0]["content"][0]["text"]["value"], "Done.");
    server.stop().await;
}

#[tokio::test]
async fn a_run_that_a_killed_server_left_has_failed() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("Again.")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    let runs = format!("/v1/threads/{thread}/runs");
    let done = post(&server, &runs, &json!({ "assistant_id": assistant })).await.ok();
    until(&server, &format!("{runs}/{}", id(&done)), "completed").await;
    server.stop().await;
    // State as of a server that was killed: a run under way, and no turn that drives it.
    let store = Store::open(data.path()).await.unwrap();
    let (run, turn) = (RunId::new(), TurnId::new());
    let mut object = done.clone();
    (object["id"], object["status"]) = (run.as_str().into(), "in_progress".into());
    let new = aludel_store::NewRun {
        id: run.clone(),
        thread: ThreadId::parse(&thread).unwrap(),
        turn: turn.clone(),
        expires_at: i64::MAX,
        object,
        messages: Vec::new(),
    };
    store.begin_run(&Tenant::local(), new).await.unwrap();
    drop(store);
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let found = get(&server, &format!("{runs}/{run}")).await;
    assert_eq!((&found["status"], &found["last_error"]["code"]), (&json!("failed"), &json!("server_error")));
    post(&server, &format!("/v1/threads/{thread}/messages"), &json!({ "role": "user", "content": "?" })).await.ok();
    // Whoever carried it out before changes nothing any more.
    let late = RunUpdate { has_ended: true, ..RunUpdate::default() };
    assert!(!server.store.update_run(&Tenant::local(), &run, &turn, late, QuotaCheck::Checked).await.unwrap());
    server.stop().await;
}

#[tokio::test]
async fn files_of_one_name_are_told_apart_and_placed_once() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![Scripted::Python("x = 1"), Scripted::Text("One."), Scripted::Python("x"), Scripted::Text("Two.")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    let mut files = Vec::new();
    for content in ["first", "second", "gone"] {
        files.push(server.upload("a.csv", content.as_bytes()).await);
    }
    let attachments: Vec<Value> = files.iter().map(|file| json!({ "file_id": file })).collect();
    let message = json!({ "role": "user", "content": "?", "attachments": attachments });
    post(&server, &format!("/v1/threads/{thread}/messages"), &message).await.ok();
    server.ask(server.request(Method::DELETE, &format!("/v1/files/{}", files[2]))).await.ok();
    let runs = format!("/v1/threads/{thread}/runs");
    for _ in 0..2 {
        let run = post(&server, &runs, &json!({ "assistant_id": assistant })).await.ok();
        until(&server, &format!("{runs}/{}", id(&run)), "completed").await;
    }
    let container = id(&get(&server, "/v1/containers").await["data"][0]);
    let found = get(&server, &format!("/v1/containers/{container}/files")).await;
    let mut paths: Vec<&str> =
        found["data"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    let by_id = |file: &str| format!("/mnt/data/{file}");
    let named = ["/mnt/data/a-2.csv", "/mnt/data/a.csv"];
    assert_eq!(paths, [named[0], named[1], &by_id(&files[0]), &by_id(&files[1]), "/mnt/data/made.txt"]);
    let received = upstream.requests()[2]["messages"].to_string();
    assert!(received.contains(&format!("- /mnt/data/a.csv (file id {})", files[0])), "{received}");
    assert!(
        received.contains("[The user attached a file: /mnt/data/a-2.csv]") && !received.contains(&files[2]),
        "{received}"
    );
    server.stop().await;
}

#[tokio::test]
async fn a_run_can_be_answered_again_after_an_answer_that_failed() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![Scripted::Calls(vec![("weather", "{}".into())]), Scripted::Text("Sunny.")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    let runs = format!("/v1/threads/{thread}/runs");
    let run = post(&server, &runs, &json!({ "assistant_id": assistant, "metadata": { "a": "b" } })).await.ok();
    let path = format!("{runs}/{}", id(&run));
    let waiting = until(&server, &path, "requires_action").await;
    let call = &waiting["required_action"]["submit_tool_outputs"]["tool_calls"][0]["id"];
    let outputs = json!({ "tool_outputs": [{ "tool_call_id": call, "output": "x".repeat(200_000) }] });
    // There is room for the step, but not for the rest of the run beside it.
    let used = server.store.bytes_of(&Tenant::local()).await.unwrap();
    server.store.limit_storage(used + 300_000);
    post(&server, &format!("{path}/submit_tool_outputs"), &outputs).await.refused(400, "used up");
    assert_eq!(get(&server, &path).await["status"], "requires_action");
    server.store.limit_storage(u64::MAX);
    // A request that says nothing changes nothing.
    assert_eq!(post(&server, &path, &json!({})).await.ok()["metadata"]["a"], "b");
    post(&server, &format!("{path}/submit_tool_outputs"), &outputs).await.ok();
    until(&server, &path, "completed").await;
    server.stop().await;
}

#[tokio::test]
async fn pictures_and_files_outlast_answers_of_the_client() {
    let data = tempfile::tempdir().unwrap();
    let weather = || Scripted::Calls(vec![("weather", "{}".into())]);
    let script = vec![
        Scripted::Python("show(100_000)"),
        Scripted::Python("x = 1"),
        weather(),
        weather(),
        Scripted::Text("Here."),
    ];
    let upstream = ScriptedUpstream::start(script).await;
    let mut server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    let runs = format!("/v1/threads/{thread}/runs");
    let path = format!("{runs}/{}", id(&post(&server, &runs, &json!({ "assistant_id": assistant })).await.ok()));
    for _ in 0..2 {
        let waiting = until(&server, &path, "requires_action").await;
        assert!(waiting.get("owed").is_none(), "{waiting}");
        assert_eq!(post(&server, &path, &json!({ "metadata": { "a": "b" } })).await.ok().get("owed"), None);
        server.stop().await;
        server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
        let call = &waiting["required_action"]["submit_tool_outputs"]["tool_calls"][0]["id"];
        let outputs = json!({ "tool_outputs": [{ "tool_call_id": call, "output": "Sunny." }] });
        post(&server, &format!("{path}/submit_tool_outputs"), &outputs).await.ok();
    }
    until(&server, &path, "completed").await;
    let steps = get(&server, &format!("{path}/steps?order=asc")).await.to_string();
    let message = get(&server, &format!("/v1/threads/{thread}/messages")).await["data"][0].clone();
    let image = message["content"][0]["image_file"]["file_id"].as_str().unwrap_or_else(|| panic!("{message}"));
    assert!(steps.contains(&format!(r#""image":{{"file_id":"{image}"}}"#)), "{image} in {steps}");
    assert_eq!(message["content"][1]["text"]["value"], "Here.");
    let attached = message["attachments"].as_array().unwrap();
    assert_eq!(attached.len(), 1, "{message}");
    let file = attached[0]["file_id"].as_str().unwrap();
    assert!(steps.contains(&format!("[file /mnt/data/made.txt: {file}]")), "{file} in {steps}");
    server.stop().await;
}

#[tokio::test]
async fn a_thread_has_a_bounded_number_of_files() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let mut messages = Vec::new();
    for _ in 0..11 {
        let mut attachments = Vec::new();
        for _ in 0..19 {
            let file = server.upload("a.csv", b"x").await;
            attachments.push(json!({ "file_id": file }));
        }
        messages.push(json!({ "role": "user", "content": "?", "attachments": attachments }));
    }
    post(&server, "/v1/threads", &json!({ "messages": messages })).await.refused(400, "more than 200 files");
    let last = messages.pop().unwrap();
    let thread = id(&post(&server, "/v1/threads", &json!({ "messages": messages })).await.ok());
    let path = format!("/v1/threads/{thread}/messages");
    post(&server, &path, &last).await.refused(400, "more than 200 files");
    assert_eq!(get(&server, &format!("{path}?limit=100")).await["data"].as_array().unwrap().len(), 10);
    server.stop().await;
}

#[tokio::test]
async fn a_cancel_is_heard_when_the_run_has_just_begun_to_wait() {
    let data = tempfile::tempdir().unwrap();
    let script = (0..20).map(|_| Scripted::Calls(vec![("weather", "{}".into())])).collect();
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    for _ in 0..20 {
        let (assistant, thread) = begun(&server).await;
        let runs = format!("/v1/threads/{thread}/runs");
        let run = post(&server, &runs, &json!({ "assistant_id": assistant })).await.ok();
        let path = format!("{runs}/{}", id(&run));
        while get(&server, &path).await["status"] != "requires_action" {}
        post(&server, &format!("{path}/cancel"), &json!({})).await.ok();
        until(&server, &path, "cancelled").await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_message_that_is_refused_leaves_no_files() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Python("wait()")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    let kept = server.upload("kept.csv", b"x").await;
    let messages = format!("/v1/threads/{thread}/messages");
    let message = |file: &str| json!({ "role": "user", "content": "?", "attachments": [{ "file_id": file }] });
    post(&server, &messages, &message(&kept)).await.ok();
    post(&server, &format!("/v1/threads/{thread}/runs"), &json!({ "assistant_id": assistant })).await.ok();
    let refused = server.upload("refused.csv", b"x").await;
    for file in [&refused, &kept] {
        post(&server, &messages, &message(file)).await.refused(400, "active");
    }
    let files = &get(&server, &format!("/v1/threads/{thread}")).await["tool_resources"]["code_interpreter"]["file_ids"];
    assert_eq!(*files, json!([kept]));
    server.ask(server.request(Method::DELETE, &format!("/v1/threads/{thread}"))).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn nothing_is_left_of_a_thread_whose_run_computes() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Python("wait()")]).await;
    let server = listen(data.path(), settings(), vec![model("m", upstream.url())]).await;
    let (assistant, thread) = begun(&server).await;
    post(&server, &format!("/v1/threads/{thread}/runs"), &json!({ "assistant_id": assistant })).await.ok();
    while upstream.requests().is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    server.ask(server.request(Method::DELETE, &format!("/v1/threads/{thread}"))).await.ok();
    assert_eq!(get(&server, "/v1/containers").await["data"], json!([]));
    // One that cannot begin leaves neither its thread nor a container.
    let wrong = json!({ "assistant_id": assistant, "truncation_strategy": { "type": "none" } });
    post(&server, "/v1/threads/runs", &wrong).await.refused(400, "truncation_strategy");
    assert_eq!(get(&server, "/v1/containers").await["data"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn messages_that_come_at_once_lose_none_of_their_files() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    let thread = id(&post(&server, "/v1/threads", &json!({})).await.ok());
    let messages = format!("/v1/threads/{thread}/messages");
    let mut files = Vec::new();
    for number in 0..12 {
        files.push(server.upload(&format!("{number}.csv"), b"1").await);
    }
    let tools = json!([{ "type": "code_interpreter" }]);
    let bodies = files
        .iter()
        .map(|file| json!({ "role": "user", "content": "?", "attachments": [{ "file_id": file, "tools": tools }] }));
    let bodies: Vec<Value> = bodies.collect();
    let sent = bodies.iter().map(|body| post(&server, &messages, body));
    for answer in futures_util::future::join_all(sent).await {
        answer.ok();
    }
    let thread = get(&server, &format!("/v1/threads/{thread}")).await;
    let kept = thread["tool_resources"]["code_interpreter"]["file_ids"].as_array().unwrap().len();
    assert_eq!(kept, files.len());
    server.stop().await;
}
