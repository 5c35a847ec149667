//! Chat clients that know of no tool: programs, pictures and files as Markdown in the text.

use crate::common::{KEYS_FRESH, Server, listen, model, settings};
use aludel_engine::{Model, ProgramParts};
use aludel_store::NewKey;
use aludel_testkit::{End, Scripted, ScriptedUpstream};
use parking_lot::Mutex;
use reqwest::Method;
use serde_json::{Value, json};
use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

const PROGRAM: &str = "print('marker-7f3a', 6 * 7)";

fn interpreting(upstream: &ScriptedUpstream, shown: ProgramParts) -> Model {
    Model { code_interpreter: Some(shown), ..model("m", upstream.url()) }
}

fn ask(messages: &Value) -> Value {
    json!({ "model": "m", "messages": messages })
}

async fn answer(server: &Server, messages: &Value) -> Value {
    server.post("/v1/chat/completions", ask(messages)).await.ok()["choices"][0]["message"].clone()
}

/// The address behind a word of Markdown, below the server.
fn path_of(content: &str, link: &str) -> String {
    let rest = content.split(link).nth(1).unwrap_or_else(|| panic!("no {link} in {content}"));
    let address = rest.split_once('(').unwrap().1.split_once(')').unwrap().0;
    format!("/v1/{}", address.split_once("/v1/").unwrap().1)
}

#[tokio::test]
async fn a_client_without_tools_gets_programs_and_files_in_its_text() {
    let data = tempfile::tempdir().unwrap();
    let script =
        vec![Scripted::Python("show()"), Scripted::Text("Here."), Scripted::Python(PROGRAM), Scripted::Text("42")];
    let upstream = ScriptedUpstream::start(script).await;
    let settings = settings().server(|server| server.url = Some("https://aludel.example.com/".to_owned()));
    let mut server = listen(data.path(), settings, vec![interpreting(&upstream, ProgramParts::All)]).await;
    let NewKey { id: key_id, secret: key } = server.store.create_key("chat", None).await.unwrap();
    server.use_key(&key);
    let question = json!({ "role": "user", "content": "a picture?" });
    let message = answer(&server, &json!([question])).await;
    let content = message["content"].as_str().unwrap();
    assert!(content.starts_with("````python\nshow()\n````\n\n<details id=\"cntr_"), "{content}");
    assert!(content.ends_with("\n\nHere.") || content.contains("Here.\n\n- ["), "{content}");
    assert!(message.get("code_interpreter_calls").is_none() && message.get("files").is_none(), "{message}");
    // A browser has no key.
    server.use_key("none");
    let picture = path_of(content, "![");
    let shown = server.get(&picture).await;
    assert_eq!((&shown.bytes[..4], shown.status.as_u16()), (&b"\x89PNG"[..], 200));
    assert!(shown.headers["content-disposition"].to_str().unwrap().starts_with("inline"));
    let forged = picture.replacen("/links/", "/links/A", 1);
    server.get(&forged).await.refused(404, "not one of this server's");
    // The next question comes with nothing but texts, and goes on in the same container.
    server.use_key(&key);
    let answered = json!({ "role": "assistant", "content": content });
    let more = answer(&server, &json!([question, answered, { "role": "user", "content": "6 x 7?" }])).await;
    let id = |content: &str| content.split("<details id=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    assert_eq!(id(more["content"].as_str().unwrap()), id(content));
    let requests = upstream.requests();
    let seen = requests[2]["messages"].as_array().unwrap();
    let call = seen.iter().find(|message| message["role"] == "assistant").unwrap();
    assert_eq!(call["tool_calls"][0]["function"]["name"], "python", "{seen:?}");
    assert!(!requests[2].to_string().contains("<details"), "{seen:?}");
    server.store.revoke_key(key_id).await.unwrap();
    tokio::time::sleep(KEYS_FRESH).await;
    server.get(&picture).await.refused(401, "was revoked");
    server.stop().await;
}

#[tokio::test]
async fn programs_of_one_round_come_one_after_the_other() {
    let data = tempfile::tempdir().unwrap();
    let call = |code: &str| ("python", json!({ "code": code }).to_string());
    let script =
        vec![Scripted::Calls(vec![call(PROGRAM), call("show()")]), Scripted::Text("Both."), Scripted::Text("Yes.")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![interpreting(&upstream, ProgramParts::All)]).await;
    let question = json!({ "role": "user", "content": "?" });
    let content = answer(&server, &json!([question])).await["content"].clone();
    let answered = json!({ "role": "assistant", "content": content });
    answer(&server, &json!([question, answered, question])).await;
    let requests = upstream.requests();
    let seen = requests[2]["messages"].as_array().unwrap();
    let calls = seen.iter().filter_map(|message| message["tool_calls"][0]["function"]["arguments"].as_str());
    let calls: Vec<&str> = calls.collect();
    assert_eq!(calls, [call(PROGRAM).1, call("show()").1], "{content}");
    let outputs: Vec<&Value> = seen.iter().filter(|message| message["role"] == "tool").collect();
    assert_eq!(outputs.len(), 2, "{content}");
    assert!(outputs[0].to_string().contains("marker-7f3a 42"), "{content}");
    assert!(!outputs[1].to_string().contains("marker-7f3a"), "{content}");
    server.stop().await;
}

#[tokio::test]
async fn an_answer_without_a_program_takes_no_place_of_a_container() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text("Hello.")]).await;
    let settings = settings().engine(|engine| engine.sessions = 0);
    let server = listen(data.path(), settings, vec![interpreting(&upstream, ProgramParts::All)]).await;
    let messages = json!([{ "role": "user", "content": "hello" }]);
    assert_eq!(answer(&server, &messages).await["content"], "Hello.");
    // A client that asks for the tool is told at once.
    let asked = json!({ "model": "m", "messages": messages, "tools": [{ "type": "code_interpreter" }] });
    server.post("/v1/chat/completions", asked).await.refused(429, "server.containers");
    server.stop().await;
}

#[tokio::test]
async fn a_link_that_fails_is_logged_without_its_token() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Python("show()"), Scripted::Text("Here.")]).await;
    let server = listen(data.path(), settings(), vec![interpreting(&upstream, ProgramParts::All)]).await;
    let message = answer(&server, &json!([{ "role": "user", "content": "a picture?" }])).await;
    let picture = path_of(message["content"].as_str().unwrap(), "![");
    let token = picture.split('/').nth(3).unwrap();
    // As a disk that lost it would.
    std::fs::remove_dir_all(data.path().join("blobs")).unwrap();
    let log = Log::default();
    let logging = tracing::subscriber::set_default(tracing_subscriber::registry().with(log.clone()));
    server.get(&picture).await.refused(500, "");
    drop(logging);
    let log = log.0.lock().clone();
    assert!(log.contains("GET /v1/links/") && !log.contains(token), "{log}");
    server.stop().await;
}

/// The events of a log and their fields, one after the other.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut log = self.0.lock();
        event.record(&mut |_: &Field, value: &dyn Debug| writeln!(log, "{value:?}").unwrap());
    }
}

#[tokio::test]
async fn streams_say_the_same_and_as_much_as_was_asked_for() {
    let data = tempfile::tempdir().unwrap();
    let script = || vec![Scripted::Python(PROGRAM), Scripted::Text("It is 42.")];
    for (shown, has_code, has_output) in
        [(ProgramParts::All, true, true), (ProgramParts::Output, false, true), (ProgramParts::Files, false, false)]
    {
        let upstream = ScriptedUpstream::start([script(), script()].concat()).await;
        let server = listen(data.path(), settings(), vec![interpreting(&upstream, shown)]).await;
        let question = json!([{ "role": "user", "content": "6 x 7?" }]);
        let whole = answer(&server, &question).await["content"].as_str().unwrap().to_owned();
        let mut body = ask(&question);
        body["stream"] = true.into();
        let stream = server.post("/v1/chat/completions", body).await;
        let stream = String::from_utf8(stream.bytes.to_vec()).unwrap();
        let chunks = stream.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
        let received: String = chunks
            .filter_map(|chunk: Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        let without_ids = |text: &str| {
            let parts: Vec<&str> = text.split('"').filter(|part| !part.starts_with("cntr_")).collect();
            parts.join("\"")
        };
        assert_eq!(without_ids(&received), without_ids(&whole));
        assert_eq!(whole.contains(PROGRAM), has_code, "{whole}");
        assert_eq!(whole.contains("marker-7f3a 42"), has_output, "{whole}");
        assert!(whole.ends_with("It is 42."), "{whole}");
        assert!(!stream.contains("code_interpreter_calls"), "{stream}");
        server.stop().await;
    }
}

#[tokio::test]
async fn whoever_knows_the_tool_or_wants_the_model_alone_gets_what_it_asked_for() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![
        Scripted::Whole("passed on"),
        Scripted::Python(PROGRAM),
        Scripted::Text("42"),
        Scripted::Python(PROGRAM),
        Scripted::Text("42"),
        Scripted::Python(PROGRAM),
        Scripted::Text("42"),
        Scripted::Python(PROGRAM),
        Scripted::Text("42"),
    ];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![interpreting(&upstream, ProgramParts::All)]).await;
    let question = json!([{ "role": "user", "content": "?" }]);
    let mut body = ask(&question);
    body["logprobs"] = true.into();
    let passed = server.post("/v1/chat/completions", body).await.ok();
    assert!(passed.to_string().contains("passed on"), "{passed}");
    let mut body = ask(&question);
    body["tools"] = json!([{ "type": "code_interpreter" }]);
    let message = server.post("/v1/chat/completions", body).await.ok()["choices"][0]["message"].clone();
    assert_eq!((&message["content"], &message["code_interpreter_calls"][0]["code"]), (&json!("42"), &json!(PROGRAM)));
    // A container that is not there is no reason to fail.
    let unknown = format!("<details id=\"{}\">", aludel_store::SessionId::new());
    let messages = json!([question[0], { "role": "assistant", "content": unknown }, question[0]]);
    let content = answer(&server, &messages).await["content"].as_str().unwrap().to_owned();
    assert!(content.contains("marker-7f3a 42") && !content.contains(&unknown), "{content}");
    // One chat, by the name that its product sends, is one container.
    let mut ids = Vec::new();
    for _ in 0..2 {
        let request = server.request(Method::POST, "/v1/chat/completions").header("x-openwebui-chat-id", "chat-1");
        let message = server.ask(request.json(&ask(&question))).await.ok();
        let content = message["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        ids.push(content.split("<details id=\"").nth(1).unwrap().split('"').next().unwrap().to_owned());
    }
    assert_eq!(ids[0], ids[1]);
    server.stop().await;
}

#[tokio::test]
async fn a_container_that_a_client_was_told_of_outlives_an_answer_that_was_cut() {
    let data = tempfile::tempdir().unwrap();
    let hello = json!({ "choices": [{ "index": 0, "delta": { "content": "Half" } }] }).to_string();
    let script = vec![
        Scripted::Python("x = 1"),
        Scripted::Drop("Half"),
        Scripted::Python("x"),
        Scripted::Text("1"),
        Scripted::Python("x = 1"),
        Scripted::Events(vec![hello], End::Hold),
        Scripted::Python("x"),
        Scripted::Text("1"),
        Scripted::Python("x = 1"),
        Scripted::Drop("Half"),
    ];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), settings(), vec![interpreting(&upstream, ProgramParts::All)]).await;
    let question = json!({ "role": "user", "content": "?" });
    for is_left in [false, true] {
        let mut body = ask(&json!([question]));
        body["stream"] = true.into();
        let mut stream = server.request(Method::POST, "/v1/chat/completions").json(&body).send().await.unwrap();
        let mut received = String::new();
        while let Some(piece) = stream.chunk().await.unwrap() {
            received.push_str(std::str::from_utf8(&piece).unwrap());
            if is_left && received.contains("Half") {
                break;
            }
        }
        drop(stream);
        let chunks = received.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok());
        let content: String = chunks
            .filter_map(|chunk: Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(received.contains("error"), !is_left, "{received}");
        let container = content.split("<details id=\"").nth(1).unwrap().split('"').next().unwrap();
        // The answer of a client that left ends at some time.
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.get(&format!("/v1/containers/{container}")).await.ok();
        let more = answer(&server, &json!([question, { "role": "assistant", "content": content }, question])).await;
        let more = more["content"].as_str().unwrap();
        assert!(more.contains(container) && !more.contains("NameError"), "{more}");
        server.delete(&format!("/v1/containers/{container}")).await.ok();
    }
    // A client that waits for the whole was told nothing.
    server.post("/v1/chat/completions", ask(&json!([question]))).await.refused(502, "in the middle");
    assert_eq!(server.get("/v1/containers").await.ok()["data"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn pictures_of_messages_are_files_for_programs() {
    let data = tempfile::tempdir().unwrap();
    let script = || vec![Scripted::Python(PROGRAM), Scripted::Text("42")];
    let upstream = ScriptedUpstream::start([script(), script(), script()].concat()).await;
    let server = listen(data.path(), settings(), vec![interpreting(&upstream, ProgramParts::All)]).await;
    let picture = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } });
    let (one, two) = ("data:image/png;base64,iVBORw0KGgo=", "data:image/jpeg;base64,/9j/");
    // Addresses, and pictures in a form that only the model may know, are as before.
    let others = [picture("https://a.example/a.png"), picture("data:image/svg+xml;utf8,<svg/>")];
    let text = json!({ "type": "text", "text": "Crop it." });
    let content = json!([text, picture(one), picture(one), others[0], others[1]]);
    let question = json!({ "role": "user", "content": content });
    let first = answer(&server, &json!([question])).await["content"].clone();
    let container =
        first.as_str().unwrap().split("<details id=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let paths = async || {
        let listed = server.get(&format!("/v1/containers/{container}/files")).await.ok();
        let listed = listed["data"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap().to_owned());
        let mut paths: Vec<String> = listed.collect();
        paths.sort();
        paths
    };
    let placed = paths().await;
    assert_eq!(placed.len(), 1, "{placed:?}");
    assert!(placed[0].starts_with("/mnt/data/input_") && placed[0].ends_with(".png"), "{placed:?}");
    let asked = upstream.requests()[0].to_string();
    assert_eq!(asked.matches(&format!("attached a file: {}]", placed[0])).count(), 2, "{asked}");
    // The next request brings it again, and another one.
    let answered = json!({ "role": "assistant", "content": first });
    let more = json!({ "role": "user", "content": [text, picture(two)] });
    answer(&server, &json!([question, answered, more])).await;
    let both = paths().await;
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(both.contains(&placed[0]) && both.iter().any(|path| path.ends_with(".jpg")), "{both:?}");
    server.stop().await;
}
