//! A real server's figures and traces, with nothing of anybody's content.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test may panic, and its tasks end with it"
)]

mod collector;
mod common;

use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::Fallback;
use aludel_engine::approvals::{ApprovalMode, ApprovalPolicy};
use aludel_server::Traces;
use aludel_testkit::{Scripted, ScriptedUpstream};
use collector::{Collector, Span};
use common::{Answer, Server, Settings, listen, listen_with, model, settings};
use reqwest::Method;
use serde_json::{Value, json};

/// Stands in the prompt, in the program, in what it puts out and in the answer.
const MARKER: &str = "marker-7f3a";
const PROGRAM: &str = "print('marker-7f3a', 6 * 7)";
const ANSWER: &str = "It is 42, marker-7f3a.";

fn measured() -> Settings {
    settings().server(|server| server.metrics = true)
}

fn response() -> Value {
    json!({
        "model": "scripted", "input": format!("{MARKER}: six times seven?"),
        "tools": [{ "type": "code_interpreter", "container": { "type": "auto" } }],
    })
}

async fn figures(server: &Server) -> String {
    let answer = server.get("/metrics").await;
    assert_eq!(answer.status, 200);
    String::from_utf8(answer.bytes).unwrap()
}

/// The value of a series, as it is written.
#[track_caller]
fn value<'f>(figures: &'f str, series: &str) -> &'f str {
    let line = figures.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{figures}"))
}

/// A request, this one too, may be counted a moment after its client has the last byte.
async fn figures_with(server: &Server, wanted: &[impl AsRef<str>]) -> String {
    let mut lacking = String::new();
    for _ in 0..1000 {
        let figures = figures(server).await;
        match wanted.iter().find(|line| !figures.lines().any(|one| one == line.as_ref())) {
            None => return figures,
            Some(line) => lacking = format!("no {} in\n{figures}", line.as_ref()),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{lacking}")
}

/// The request that asks is the only one.
const ALONE: &str = "aludel_http_requests_in_flight 1";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn figures_count_what_a_turn_did_and_say_nothing_of_it() {
    let data = tempfile::tempdir().unwrap();
    let script = vec![Scripted::Python(PROGRAM), Scripted::Text(ANSWER), Scripted::Status(400, "", "no")];
    let upstream = ScriptedUpstream::start(script).await;
    let server = listen(data.path(), measured(), vec![model("scripted", upstream.url())]).await;
    let answer = server.post("/v1/responses", response()).await.ok();
    assert_eq!(answer["status"], "completed", "{answer}");
    server.post("/v1/responses", response()).await.refused(400, "rejected");
    let expected = [
        (r#"aludel_http_requests_total{method="POST",route="/v1/responses",status="400"}"#, "1"),
        (r#"aludel_http_requests_total{method="POST",route="/v1/responses",status="200"}"#, "1"),
        (r#"aludel_http_request_duration_seconds_count{method="POST",route="/v1/responses"}"#, "2"),
        (r#"aludel_turns_total{api="responses",ending="answered"}"#, "1"),
        (r#"aludel_turns_total{api="responses",ending="upstream_failed"}"#, "1"),
        (r#"aludel_model_calls_total{model="scripted",result="answered"}"#, "2"),
        (r#"aludel_model_calls_total{model="scripted",result="rejected"}"#, "1"),
        (r#"aludel_model_tokens_total{model="scripted",direction="input"}"#, "20"),
        (r#"aludel_model_tokens_total{model="scripted",direction="output"}"#, "10"),
        (r#"aludel_model_first_word_seconds_count{model="scripted"}"#, "2"),
        (r#"aludel_executions_total{outcome="completed"}"#, "1"),
        ("aludel_execution_duration_seconds_count", "1"),
        (r#"aludel_sandbox_starts_total{result="ok"}"#, "1"),
        ("aludel_sandbox_start_duration_seconds_count", "1"),
        ("aludel_containers_live", "1"),
        ("aludel_containers_limit", "64"),
        ("aludel_sandboxes_ready", "0"),
        ("aludel_backend_degraded", "0"),
    ];
    let lines: Vec<String> = expected.iter().map(|(series, count)| format!("{series} {count}")).collect();
    let figures = figures_with(&server, &[lines, vec![ALONE.to_owned()]].concat()).await;
    assert!(!figures.contains(MARKER), "{figures}");
    assert!(figures.contains("# TYPE aludel_turns_total counter\n") && !figures.contains("# EOF"), "{figures}");
    let open = server.request(Method::GET, "/metrics").header("accept", "application/openmetrics-text; version=1.0.0");
    let open = open.send().await.unwrap().text().await.unwrap();
    assert!(open.contains("# TYPE aludel_turns counter\n") && open.ends_with("# EOF\n"), "{open}");
    // The dashboard asks for nothing else.
    let dashboard = include_str!("../../../packaging/grafana/aludel.json");
    assert!(serde_json::from_str::<Value>(dashboard).is_ok());
    let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let asked_for = dashboard.match_indices("aludel_").map(|(start, _)| {
        let rest = &dashboard[start..];
        &rest[..rest.find(|letter| !is_of_name(letter)).unwrap()]
    });
    let mut count = 0;
    for name in asked_for {
        let is_there =
            figures.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        assert!(is_there, "{name}");
        count += 1;
    }
    assert!(count > 20, "{count}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_clients_make_up_makes_no_series() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![]).await;
    let server = listen(data.path(), measured(), vec![model("scripted", upstream.url())]).await;
    let once = async |number: usize| {
        server.get(&format!("/v1/made-up/{number}")).await.refused(404, "Unknown request URL");
        server.get(&format!("/v1/files/file-{number}")).await.refused(404, "");
        server.get(&format!("/v1/models/made-up-{number}")).await.refused(404, "");
        let body = json!({ "model": format!("made-up-{number}"), "input": "x", "messages": [] });
        server.post("/v1/responses", body.clone()).await.refused(404, "does not exist");
        server.post("/v1/chat/completions", body).await.refused(404, "does not exist");
        let method = Method::from_bytes(format!("MADEUP{number}").as_bytes()).unwrap();
        Answer::of(server.request(method, "/v1/models").send().await.unwrap()).await.refused(405, "");
    };
    once(0).await;
    // A request that had ended is in the next figures, and so is the request for figures itself.
    for _ in 0..2 {
        figures_with(&server, &[ALONE]).await;
    }
    let before = figures_with(&server, &[ALONE]).await.lines().count();
    for number in 1..=170 {
        once(number).await;
    }
    let line = r#"aludel_http_requests_total{method="other",route="/v1/models",status="405"} 171"#;
    let after = figures_with(&server, &[line, ALONE]).await;
    assert_eq!(after.lines().count(), before, "{after}");
    assert!(!after.contains("made-up"), "{after}");
    server.stop().await;
}

#[tokio::test]
async fn figures_are_off_by_default_and_need_the_key_that_all_else_needs() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), settings(), Vec::new()).await;
    server.get("/metrics").await.refused(404, "metrics = true");
    server.stop().await;
    let data = tempfile::tempdir().unwrap();
    // No room for any request: the figures are asked for all the more.
    let server = listen(data.path(), measured().server(|server| server.requests = 0), Vec::new()).await;
    assert!(figures(&server).await.contains("aludel_build_info{version="));
    server.get("/v1/models").await.refused(429, "answering 0 requests");
    let foreign = server.request(Method::GET, "/metrics").header("host", "example.com").send().await.unwrap();
    Answer::of(foreign).await.refused(403, "only to localhost");
    server.stop().await;
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), measured(), Vec::new()).await;
    let key = server.store.create_key("a test", None).await.unwrap().secret;
    server.get("/metrics").await.refused(401, "API key");
    let server = server.with_key(&key);
    assert_eq!(value(&figures(&server).await, "aludel_containers_live"), "0");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_goes_away_is_counted_and_leaves_nothing_open() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Hang, Scripted::Hang]).await;
    let server = listen(data.path(), measured(), vec![model("scripted", upstream.url())]).await;
    let chat = json!({ "model": "scripted", "messages": [{ "role": "user", "content": "x" }] });
    let asked = async |times: usize| {
        let so_often = async {
            while upstream.requests().len() < times {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(50), so_often).await.expect("the model is asked");
    };
    // The model is asked, and then the client goes away.
    let request = server.request(Method::POST, "/v1/chat/completions").json(&chat).send();
    tokio::select! {
        _ = request => panic!("the model said nothing"),
        () = asked(1) => {}
    }
    let gone = r#"aludel_http_requests_total{method="POST",route="/v1/chat/completions",status="499"} 1"#;
    figures_with(&server, &[gone]).await;
    let mut streamed = response();
    streamed["stream"] = true.into();
    let request = server.request(Method::POST, "/v1/responses").json(&streamed);
    let mut stream = request.send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    asked(2).await;
    drop(stream);
    let cancelled = r#"aludel_turns_total{api="responses",ending="cancelled"} 1"#;
    let left = r#"aludel_model_calls_total{model="scripted",result="left"} 2"#;
    figures_with(&server, &[cancelled, left, ALONE]).await;
    server.stop().await;
}

/// A trace as a client begins one.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

async fn ask_in_trace(server: &Server, path: &str, body: &Value) -> Answer {
    let request = server.request(Method::POST, path).header("traceparent", format!("00-{TRACE}-{PARENT}-01"));
    Answer::of(request.json(body).send().await.unwrap()).await
}

/// The span of a name.
#[track_caller]
fn the<'s>(spans: &'s [Span], name: &str) -> &'s Span {
    let named: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(named.len(), 1, "{name} in {spans:#?}");
    named[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_turn_is_a_trace_that_goes_on_where_the_client_began_it_and_says_nothing_of_the_contents() {
    let data = tempfile::tempdir().unwrap();
    let collector = Collector::start().await;
    let script = vec![Scripted::Python(PROGRAM), Scripted::Text(ANSWER), Scripted::Whole("passed on")];
    let upstream = ScriptedUpstream::start(script).await;
    let traced = settings().server(|server| server.traces = Some(Traces::to(&collector.url()).unwrap()));
    let server = listen(data.path(), traced, vec![model("scripted", upstream.url())]).await;
    assert_eq!(ask_in_trace(&server, "/v1/responses", &response()).await.ok()["status"], "completed");
    let chat = json!({ "model": "scripted", "messages": [{ "role": "user", "content": MARKER }] });
    ask_in_trace(&server, "/v1/chat/completions", &chat).await.ok();
    server.stop().await;

    assert!(!collector.text().contains(MARKER));
    let spans = collector.spans();
    assert!(spans.iter().all(|span| span.trace == TRACE), "{spans:#?}");
    let request = the(&spans, "POST /v1/responses");
    assert_eq!((request.parent.as_str(), request.kind), (PARENT, collector::SERVER));
    assert_eq!(request.attribute("http.response.status_code"), Some("200"));
    assert!(request.attribute("aludel.request.id").unwrap().starts_with("req_"));
    let program = the(&spans, "execute_tool python");
    assert_eq!(program.parent, request.id);
    assert_eq!(program.attribute("gen_ai.operation.name"), Some("execute_tool"));
    assert_eq!(program.attribute("gen_ai.tool.name"), Some("python"));
    assert_eq!(program.attribute("gen_ai.tool.call.id"), Some("call_0_python"));
    assert_eq!(program.attribute("error.type"), None);
    assert_eq!(the(&spans, "create sandbox").parent, request.id);
    let passed = the(&spans, "POST /v1/chat/completions");
    let calls: Vec<&Span> = spans.iter().filter(|span| span.name == "chat scripted").collect();
    assert_eq!(calls.len(), 3, "{spans:#?}");
    assert_eq!(calls[2].attribute("gen_ai.usage.output_tokens"), Some("4"), "of what is handed on, too");
    for (call, parent) in calls.iter().zip([&request.id, &request.id, &passed.id]) {
        assert_eq!((&call.parent, call.kind), (parent, collector::CLIENT));
        assert_eq!(call.attribute("gen_ai.operation.name"), Some("chat"));
        assert_eq!(call.attribute("gen_ai.request.model"), Some("scripted"));
    }
    assert_eq!(calls[0].attribute("gen_ai.usage.input_tokens"), Some("10"));
    assert_eq!(calls[0].attribute("gen_ai.usage.output_tokens"), Some("5"));
    // The model's server goes on from the call, whether we carry it out or hand it on.
    for (head, call) in upstream.heads().iter().zip(&calls) {
        assert!(head.contains(&format!("traceparent: 00-{TRACE}-{}-01", call.id)), "{head} {spans:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_turn_that_goes_on_after_a_restart_is_a_trace_and_is_counted() {
    let data = tempfile::tempdir().unwrap();
    let collector = Collector::start().await;
    let upstream = ScriptedUpstream::start(vec![Scripted::Python(PROGRAM), Scripted::Text(ANSWER)]).await;
    let start = async || {
        let traces = Some(Traces::to(&collector.url()).unwrap());
        let settings = measured().server(|server| server.traces = traces);
        let models = vec![model("scripted", upstream.url())];
        let mode = ApprovalMode::Always;
        let approvals = ApprovalPolicy { mode, ..ApprovalPolicy::default() };
        listen_with(data.path(), settings, models, approvals).await
    };
    let server = start().await;
    let mut background = response();
    background["background"] = true.into();
    server.post("/v1/responses", background).await.ok();
    let mut asked = Value::Null;
    while asked.is_null() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        asked = server.get("/v1/approvals?status=pending").await.ok()["data"][0].clone();
    }
    server.stop().await;

    let server = start().await;
    let path = format!("/v1/approvals/{}", asked["id"].as_str().unwrap());
    server.post(&path, json!({ "decision": "approve", "sha256": asked["sha256"] })).await.ok();
    let expected = [
        r#"aludel_turns_total{api="responses",ending="answered"} 1"#,
        r#"aludel_model_calls_total{model="scripted",result="answered"} 1"#,
        r#"aludel_executions_total{outcome="completed"} 1"#,
    ];
    figures_with(&server, &expected).await;
    server.stop().await;
    let spans = collector.spans();
    let resumed = the(&spans, "go on after a restart");
    let program = the(&spans, "execute_tool python");
    assert_eq!((&program.parent, &program.trace), (&resumed.id, &resumed.trace));
    let call = spans.iter().filter(|span| span.name == "chat scripted").find(|call| call.parent == resumed.id);
    let head = &upstream.heads()[1];
    assert!(head.contains(&format!("traceparent: 00-{}-{}-01", resumed.trace, call.unwrap().id)), "{head}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_model_that_fails_and_the_one_that_stands_in_are_counted_by_their_own_names() {
    let data = tempfile::tempdir().unwrap();
    let collector = Collector::start().await;
    let busy = ScriptedUpstream::start(vec![Scripted::Status(400, "", "no"), Scripted::Text(ANSWER)]).await;
    let mut first = model("first", busy.url());
    // Nobody listens there.
    let dead = model("dead", "http://127.0.0.1:9/v1".to_owned()).upstream;
    first.upstream = Arc::new(Fallback::new(dead, vec![("second".into(), first.upstream.clone())]).unwrap());
    first.endpoint = None;
    let traces = Some(Traces::to(&collector.url()).unwrap());
    let settings = measured().server(|server| server.traces = traces);
    let server = listen(data.path(), settings, vec![first, model("second", busy.url())]).await;
    let call = |model: &str, result: &str, count: u8| {
        format!("aludel_model_calls_total{{model=\"{model}\",result=\"{result}\"}} {count}")
    };
    figures_with(&server, &[call("first", "unreachable", 0), call("second", "answered", 0)]).await;
    let mut body = response();
    body["model"] = "first".into();
    server.post("/v1/responses", body.clone()).await.refused(400, "rejected");
    server.post("/v1/responses", body).await.ok();
    let expected = [
        call("first", "unreachable", 2),
        call("first", "answered", 0),
        call("second", "rejected", 1),
        call("second", "answered", 1),
    ];
    figures_with(&server, &expected).await;
    server.stop().await;
    let spans = collector.spans();
    let names = |name: &str| spans.iter().filter(|span| span.name == name).count();
    assert_eq!((names("chat first"), names("chat second")), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn contents_are_told_when_they_are_asked_for_and_failures_have_a_type() {
    let data = tempfile::tempdir().unwrap();
    let collector = Collector::start().await;
    let script = vec![Scripted::Python("print('marker-7f3a')\n1 / 0"), Scripted::Status(401, "", "no")];
    let upstream = ScriptedUpstream::start(script).await;
    let traces = Some(Traces::to(&collector.url()).unwrap());
    let telling = settings().server(|server| (server.traces, server.log_contents) = (traces, true));
    let server = listen(data.path(), telling, vec![model("scripted", upstream.url())]).await;
    server.post("/v1/responses", response()).await;
    server.stop().await;

    let spans = collector.spans();
    let program = the(&spans, "execute_tool python");
    assert_eq!(program.attribute("error.type"), Some("exception"));
    assert!(program.attribute("gen_ai.tool.call.arguments").unwrap().contains("1 / 0"));
    let result = program.attribute("gen_ai.tool.call.result").unwrap();
    assert!(result.contains(MARKER) && result.contains("ZeroDivisionError"), "{result}");
    let call = spans.iter().find(|span| span.attribute("error.type") == Some("unauthorized")).unwrap();
    assert!(call.attribute("gen_ai.input.messages").unwrap().contains("six times seven?"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_traces_of_our_own_the_clients_trace_goes_to_the_model_as_it_is() {
    let data = tempfile::tempdir().unwrap();
    let upstream = ScriptedUpstream::start(vec![Scripted::Text(ANSWER), Scripted::Whole("passed on")]).await;
    let server = listen(data.path(), settings(), vec![model("scripted", upstream.url())]).await;
    ask_in_trace(&server, "/v1/responses", &json!({ "model": "scripted", "input": "x" })).await.ok();
    let chat = json!({ "model": "scripted", "messages": [{ "role": "user", "content": "x" }] });
    ask_in_trace(&server, "/v1/chat/completions", &chat).await.ok();
    assert_eq!(upstream.heads().len(), 2);
    for head in upstream.heads() {
        assert!(head.contains(&format!("traceparent: 00-{TRACE}-{PARENT}-01")), "{head}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_collector_that_is_dead_harms_nothing_and_what_it_loses_is_counted() {
    // Taken, so that nobody else gets it, but nobody listens.
    let dead = tokio::net::TcpSocket::new_v4().unwrap();
    dead.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let data = tempfile::tempdir().unwrap();
    let traces = Some(Traces::to(&format!("http://{}", dead.local_addr().unwrap())).unwrap());
    let server = listen(data.path(), measured().server(|server| server.traces = traces), Vec::new()).await;
    for _ in 0..80 {
        server.get("/v1/models").await.ok();
    }
    let lost = async || value(&figures(&server).await, "aludel_trace_spans_lost_total").parse::<u64>().unwrap();
    while lost().await < 80 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_with_words() {
    for (address, words) in
        [("collector:4318", "is not an address"), ("http://c:1/?key=x", "OTEL_EXPORTER_OTLP_HEADERS")]
    {
        let error = Traces::to(address).unwrap_err();
        assert!(error.contains(words), "{address}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sandboxes_that_clients_own_are_counted_too() {
    let data = tempfile::tempdir().unwrap();
    let server = listen(data.path(), measured(), Vec::new()).await;
    assert_eq!(server.post("/v2/sandboxes", json!({ "templateID": "base" })).await.status, 201);
    let expected = [r#"aludel_sandbox_starts_total{result="ok"} 1"#, "aludel_sandbox_start_duration_seconds_count 1"];
    figures_with(&server, &expected).await;
    server.stop().await;
}
