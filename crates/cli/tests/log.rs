//! Log of `aludel serve`: on its standard error, and in the file that the configuration names.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use aludel_testkit::{Scripted, ScriptedUpstream};
use common::{aludel, signal, wait_until};
use serde_json::{Value, json};

/// Stands in the prompt, in the program, in what it puts out and in the answer.
const MARKER: &str = "marker-7f3a";

/// Serves while requests are made, and returns what was answered and the standard error.
fn served<T>(settings: &str, upstream: &str, work: impl FnOnce(&str) -> T) -> (T, String) {
    let data = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(aludel_testkit::data().join("templates"), data.path().join("templates")).unwrap();
    let config = format!("[server]\n{settings}\n[[model]]\nname = 'scripted'\nurl = '{upstream}'\n");
    std::fs::write(data.path().join("aludel.toml"), config).unwrap();
    let mut child = serving(data.path()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
    let answers = work(address);
    signal(&child, "TERM");
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    (answers, said)
}

fn serving(data: &Path) -> std::process::Command {
    let mut command = aludel(data);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data);
    command
}

/// One request; the whole answer as text.
fn ask(address: &str, request: &str, body: &Value) -> String {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn id_of(answer: &str) -> &str {
    answer.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap_or_else(|| panic!("{answer}"))
}

/// A turn with the tool.
fn turn(address: &str, more: &Value) -> String {
    let mut body = json!({
        "model": "scripted", "input": format!("{MARKER}: six times seven?"),
        "tools": [{ "type": "code_interpreter", "container": { "type": "auto" } }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ask(address, "POST /v1/responses", &body)
}

fn script() -> Vec<Scripted> {
    vec![
        Scripted::Python("print('marker-7f3a', 6 * 7)"),
        Scripted::Text("It is 42, marker-7f3a."),
        Scripted::Status(401, "", "no"),
        Scripted::Python("import time; time.sleep(1)"),
        Scripted::Text("It is 42, marker-7f3a."),
    ]
}

/// A turn with a program, one that fails, one in the background, a path that nobody serves, and a model that there is not.
fn everything(address: &str) -> [String; 5] {
    let streamed = turn(address, &json!({ "stream": true }));
    let failed = turn(address, &json!({}));
    let background = turn(address, &json!({ "background": true }));
    let object: Value = serde_json::from_str(background.split_once("\r\n\r\n").unwrap().1).unwrap();
    let path = format!("GET /v1/responses/{}", object["id"].as_str().unwrap());
    wait_until(|| ask(address, &path, &Value::Null).contains("\"completed\""), "the background's end");
    let misspelt = turn(address, &json!({ "model": MARKER }));
    [streamed, failed, background, ask(address, "GET /v1/\u{9b}31m", &Value::Null), misspelt]
}

/// The values of a line that are the same every time.
fn seen(line: &Value) -> Value {
    let mut line = line.clone();
    let fields = line.as_object_mut().unwrap();
    assert!(fields.remove("time").unwrap().as_str().unwrap().ends_with('Z'));
    assert!(fields.remove("request").unwrap().as_str().unwrap().starts_with("req_"));
    assert!(fields.remove("seconds").unwrap().as_f64().unwrap() > 0.0);
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_one_line_for_every_request_with_its_id_and_without_what_was_said() {
    let upstream = ScriptedUpstream::start(script()).await;
    let url = upstream.url();
    let (answers, said) = tokio::task::spawn_blocking(move || served("log = 'json'", &url, everything)).await.unwrap();
    let lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?} in {said}"))).collect();
    assert!(!said.contains(MARKER) && answers[0].contains(MARKER), "{said}");
    assert!(lines[0]["message"].as_str().unwrap().contains("no API keys"), "{said}");
    let about = |id: &str| lines.iter().filter(|line| line["request"] == id).collect::<Vec<_>>();

    let [line] = about(id_of(&answers[0]))[..] else { panic!("{said}") };
    let answer = line["answer"].as_str().unwrap();
    assert!(answer.starts_with("resp_") && answers[0].contains(answer));
    let expected = json!({
        "level": "info", "message": "request", "method": "POST", "route": "/v1/responses", "status": 200, "tenant": "local",
        "model": "scripted", "answer": answer, "ending": "answered", "input_tokens": 20, "output_tokens": 10,
        "executions": 1,
    });
    assert_eq!(seen(line), expected);

    let [failure, line] = about(id_of(&answers[1]))[..] else { panic!("{said}") };
    assert!(failure["level"] == "error" && failure["message"].as_str().unwrap().contains("refused the key"), "{said}");
    assert_eq!((&line["status"], &line["ending"]), (&json!(502), &json!("upstream_failed")));

    let [line, ended] = about(id_of(&answers[2]))[..] else { panic!("{said}") };
    assert_eq!((&line["message"], &line["status"], &line["ending"]), (&json!("request"), &json!(200), &Value::Null));
    assert_eq!((&ended["message"], &ended["ending"]), (&json!("turn"), &json!("answered")));
    assert!(ended["answer"].is_string() && ended["answer"] == line["answer"]);
    assert!(answers[3].starts_with("HTTP/1.1 404 "), "{}", answers[3]);
    let [line] = about(id_of(&answers[4]))[..] else { panic!("{said}") };
    let told = (&line["status"], &line["code"], &line["param"]);
    assert_eq!(told, (&json!(404), &json!("model_not_found"), &json!("model")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_another_one_stands_in_for_or_that_is_asked_again_is_told_with_the_request() {
    let upstream = ScriptedUpstream::start(vec![Scripted::Status(503, "", "busy"), Scripted::Text("42")]).await;
    // Nobody listens there.
    let models =
        format!("http://127.0.0.1:9/v1'\nfallback = ['second']\n[[model]]\nname = 'second'\nurl = '{}", upstream.url());
    let (answer, said) =
        tokio::task::spawn_blocking(move || served("log = 'json'", &models, |address| turn(address, &json!({}))))
            .await
            .unwrap();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let about: Vec<&Value> = lines.iter().filter(|line| line["request"] == id_of(&answer)).collect();
    let [instead, again, request] = about[..] else { panic!("{said}") };
    assert_eq!((&instead["level"], &instead["message"]), (&json!("warning"), &json!("`second` is asked instead")));
    assert_eq!((&instead["model"], &again["model"]), (&json!("scripted"), &json!("second")));
    assert!(instead["error"].as_str().unwrap().contains("127.0.0.1:9"), "{said}");
    assert_eq!((&again["level"], &again["attempt"]), (&json!("info"), &json!(1)));
    assert!(again["error"].as_str().unwrap().contains("503"), "{said}");
    assert_eq!((&request["ending"], &request["status"]), (&json!("answered"), &json!(200)));
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_stand_in_the_log_when_they_are_asked_for() {
    let upstream = ScriptedUpstream::start(script()).await;
    let url = upstream.url();
    let settings = "log = 'json'\nlog_contents = true";
    let (_, said) =
        tokio::task::spawn_blocking(move || served(settings, &url, |address| turn(address, &json!({})))).await.unwrap();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |message: &str| lines.iter().filter(|line| line["message"] == message).collect::<Vec<_>>();
    let [execution] = of("execution")[..] else { panic!("{said}") };
    assert_eq!(execution["code"], "print('marker-7f3a', 6 * 7)");
    // A line end could begin a line that is not the log's.
    assert_eq!(execution["output"], "marker-7f3a 42 ");
    let [first, second] = of("model call")[..] else { panic!("{said}") };
    assert!(first["input"].as_str().unwrap().contains("six times seven?"));
    assert_eq!(second["output"], "It is 42, marker-7f3a.");
}

#[tokio::test(flavor = "multi_thread")]
async fn text_tells_failures_alone_and_off_tells_nothing() {
    for (settings, failures) in [("", 1), ("log = 'off'", 0)] {
        let upstream = ScriptedUpstream::start(script()).await;
        let url = upstream.url();
        let twice = |address: &str| [turn(address, &json!({})), turn(address, &json!({}))];
        let (answers, said) = tokio::task::spawn_blocking(move || served(settings, &url, twice)).await.unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("/v1/") || line.contains("req_")).collect();
        assert_eq!(lines.len(), failures, "{settings}: {said}");
        assert!(lines.iter().all(|line| line.starts_with(&format!("{}: ", id_of(&answers[1])))), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_client_gets_the_operator_is_told_once_why_a_model_failed() {
    let refusals = (0..4).map(|_| Scripted::Status(401, "", "no")).collect();
    let upstream = ScriptedUpstream::start(refusals).await;
    let url = upstream.url();
    let four = |address: &str| {
        let chat = |more: Value| {
            let mut body =
                json!({ "model": "scripted", "messages": [{ "role": "user", "content": "six times seven?" }] });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            ask(address, "POST /v1/chat/completions", &body)
        };
        [
            turn(address, &json!({ "stream": true })),
            chat(json!({ "tools": [{ "type": "code_interpreter" }] })),
            chat(json!({ "tools": [{ "type": "code_interpreter" }], "stream": true })),
            chat(json!({})),
        ]
    };
    let (answers, said) = tokio::task::spawn_blocking(move || served("", &url, four)).await.unwrap();
    for answer in &answers {
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with(id_of(answer))).collect();
        assert!(matches!(lines[..], [line] if line.contains("401")), "{answer}\n{said}");
    }
}

#[test]
fn a_server_that_cannot_start_says_so_as_an_error_in_the_log() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("aludel.toml"), "[server]\nlog = 'json'\nlisten = '0.0.0.0:0'\n").unwrap();
    let ended = common::said(aludel(data.path()).args(["serve", "--data"]).arg(data.path()));
    let line: Value = serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    assert_eq!((ended.status, &line["level"]), (Some(2), &json!("error")), "{line}");
    assert!(line["message"].as_str().unwrap().starts_with("0.0.0.0:"), "{line}");
}

#[test]
fn figures_and_traces_are_on_where_the_configuration_says_so() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = format!("metrics = true\ntraces = 'http://{}'", collector.local_addr().unwrap());
    let taken = std::thread::spawn(move || {
        let (mut stream, _) = collector.accept().unwrap();
        let mut bytes = vec![0; 64 << 10];
        let count = stream.read(&mut bytes).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    });
    let (figures, said) = served(&settings, "http://127.0.0.1:9/v1", |address| {
        ask(address, "GET /v1/models", &Value::Null);
        ask(address, "GET /metrics", &Value::Null)
    });
    assert!(
        figures.contains("aludel_http_requests_total{method=\"GET\",route=\"/v1/models\",status=\"200\"} 1"),
        "{figures}"
    );
    assert!(taken.join().unwrap().starts_with("POST /v1/traces HTTP/1.1"), "{said}");
}
