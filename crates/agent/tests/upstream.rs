//! A Chat Completions upstream against recorded answers of real servers. No sandbox is needed.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test may panic and explains itself")]

mod common;

use std::time::{Duration, Instant, SystemTime};

use aludel_agent::upstream::http::{HttpOptions, HttpUpstream, Protocol};
use aludel_agent::upstream::{
    Delta, FinishReason, ModelRequest, Sampling, ToolChoice, Unreachable, Upstream, UpstreamError,
};
use aludel_agent::{Call, Item, Secret};
use aludel_testkit::{End, Scripted, ScriptedUpstream};
use common::options_at;
use futures_util::StreamExt;
use serde_json::json;
use tokio::io::AsyncWriteExt;

async fn ask(url: String) -> (Vec<Delta>, Option<UpstreamError>) {
    ask_of(&HttpUpstream::new(options_at(url)).unwrap(), vec![Item::user("Hello?")]).await
}

/// Asks once and returns what came, up to the first error.
async fn ask_of(chat: &HttpUpstream, items: Vec<Item>) -> (Vec<Delta>, Option<UpstreamError>) {
    ask_with(chat, items, Sampling::default()).await
}

async fn ask_with(chat: &HttpUpstream, items: Vec<Item>, sampling: Sampling) -> (Vec<Delta>, Option<UpstreamError>) {
    let request = ModelRequest {
        owner: String::new(),
        instructions: String::new(),
        items,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        sampling,
        headers: reqwest::header::HeaderMap::new(),
    };
    let mut stream = chat.call(request);
    let mut deltas = Vec::new();
    while let Some(delta) = stream.next().await {
        match delta {
            Ok(delta) => deltas.push(delta),
            Err(error) => return (deltas, Some(error)),
        }
    }
    (deltas, None)
}

async fn ask_scripted(script: Vec<Scripted>) -> (Vec<Delta>, Option<UpstreamError>) {
    ask(ScriptedUpstream::start(script).await.url()).await
}

fn delta(delta: &serde_json::Value) -> String {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }).to_string()
}

fn finish(reason: &str) -> String {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }).to_string()
}

/// The calls in the deltas: id, name and arguments of each.
fn calls(deltas: &[Delta]) -> Vec<(String, String, String)> {
    let mut calls = Vec::new();
    for delta in deltas {
        match delta {
            Delta::CallStarted { index, id, name } => {
                assert_eq!(*index, calls.len());
                calls.push((id.clone(), name.clone(), String::new()));
            }
            Delta::CallArguments { index, fragment } => calls[*index].2.push_str(fragment),
            _ => {}
        }
    }
    calls
}

#[tokio::test]
async fn calls_are_told_apart_however_they_are_numbered() {
    let call = |call: serde_json::Value| delta(&json!({ "tool_calls": [call] }));
    let whole = |index: Option<u32>, id: Option<&str>, name: &str, arguments: &str| {
        call(json!({ "index": index, "id": id, "function": { "name": name, "arguments": arguments } }))
    };
    for (how, events) in [
        ("every call has number 0", vec![whole(Some(0), Some("a"), "f", "{}"), whole(Some(0), Some("b"), "g", "[]")]),
        ("no numbers, but ids", vec![whole(None, Some("a"), "f", "{}"), whole(None, Some("b"), "g", "[]")]),
        (
            "no numbers, ids and names repeated with every piece",
            vec![
                whole(None, Some("a"), "f", "{"),
                whole(None, Some("a"), "f", "}"),
                whole(None, Some("b"), "g", "["),
                whole(None, Some("b"), "g", "]"),
            ],
        ),
        (
            "the id is repeated with every piece",
            vec![
                whole(Some(0), Some("a"), "f", "{"),
                whole(Some(0), Some("a"), "", "}"),
                whole(Some(1), Some("b"), "g", "[]"),
            ],
        ),
        (
            "the pieces of two calls are interleaved",
            vec![
                whole(Some(0), Some("a"), "f", "{"),
                whole(Some(1), Some("b"), "g", "["),
                whole(Some(0), None, "", "}"),
                whole(Some(1), None, "", "]"),
            ],
        ),
    ] {
        let events = events.into_iter().chain([finish("tool_calls")]).collect();
        let (deltas, error) = ask_scripted(vec![Scripted::Events(events, End::Done)]).await;
        assert_eq!(error, None, "{how}");
        let expected = [("a", "f", "{}"), ("b", "g", "[]")].map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(calls(&deltas), expected, "{how}");
    }
}

#[tokio::test]
async fn a_whole_answer_counts_however_the_connection_ends() {
    for end in [End::Done, End::Close, End::Break, End::Hold] {
        let events = vec![delta(&json!({ "content": "All of it." })), finish("stop")];
        let started = Instant::now();
        let (deltas, error) = ask_scripted(vec![Scripted::Events(events, end)]).await;
        assert_eq!(error, None, "{end:?}");
        assert_eq!(deltas, [Delta::Text("All of it.".into()), Delta::Finished(FinishReason::Stop)], "{end:?}");
        assert!(started.elapsed() < Duration::from_secs(18), "{end:?}: nobody waits for the idle timeout");
    }
}

#[tokio::test]
async fn a_partial_answer_does_not_count() {
    let events = vec![delta(&json!({ "content": "Half of" }))];
    let (deltas, error) = ask_scripted(vec![Scripted::Events(events, End::Close)]).await;
    assert_eq!(deltas, [Delta::Text("Half of".into())]);
    assert!(matches!(error, Some(UpstreamError::Dropped { .. })), "{error:?}");
}

#[tokio::test]
async fn reasons_to_stop_have_many_names() {
    for (reason, expected) in [
        ("stop", FinishReason::Stop),
        ("tool_calls", FinishReason::Stop),
        ("length", FinishReason::Length),
        ("MAX_TOKENS", FinishReason::Length),
        ("content_filter", FinishReason::ContentFilter),
        ("SAFETY", FinishReason::ContentFilter),
    ] {
        let (deltas, _) = ask_scripted(vec![Scripted::Events(vec![finish(reason)], End::Done)]).await;
        assert_eq!(deltas, [Delta::Finished(expected)], "{reason}");
    }
    let (_, error) = ask_scripted(vec![Scripted::Events(vec![finish("error")], End::Done)]).await;
    assert!(matches!(error, Some(UpstreamError::Reported { .. })), "{error:?}");
}

#[tokio::test]
async fn an_empty_reason_to_stop_is_none() {
    let silent = json!({ "choices": [{ "index": 0, "delta": { "content": "Half of" }, "finish_reason": "" }] });
    let silent = silent.to_string();
    let (deltas, error) = ask_scripted(vec![Scripted::Events(vec![silent.clone()], End::Close)]).await;
    assert_eq!(deltas, [Delta::Text("Half of".into())]);
    assert!(matches!(error, Some(UpstreamError::Dropped { .. })), "{error:?}");
    let (deltas, error) = ask_scripted(vec![Scripted::Events(vec![silent, finish("length")], End::Done)]).await;
    assert_eq!((deltas.last(), error), (Some(&Delta::Finished(FinishReason::Length)), None));
    let whole = r#"{"choices": [{"message": {"content": "All."}, "finish_reason": ""}]}"#;
    let whole = Scripted::Status(200, "content-type: application/json\r\n", whole);
    let (deltas, error) = ask_scripted(vec![whole]).await;
    assert_eq!(deltas, [Delta::Text("All.".into()), Delta::Finished(FinishReason::Stop)]);
    assert_eq!(error, None);
}

#[tokio::test]
async fn an_error_without_a_message_is_shown_as_it_came() {
    let event = json!({ "error": { "code": "E42" } }).to_string();
    let (_, error) = ask_scripted(vec![Scripted::Events(vec![event], End::Done)]).await;
    assert!(error.unwrap().to_string().contains("E42"));
}

#[tokio::test]
async fn a_broken_upstream_is_asked_again_when_it_says() {
    let down = Scripted::Status(503, "retry-after: 0.25\r\n", "restarting");
    let (deltas, error) = ask_scripted(vec![down, Scripted::Text("Here.")]).await;
    assert_eq!(error, None);
    let Delta::Retrying { wait, .. } = &deltas[0] else { panic!("{deltas:?}") };
    assert_eq!(*wait, Duration::from_millis(250));
    // Longer than anyone waits: an error at once.
    let started = Instant::now();
    let (deltas, error) = ask_scripted(vec![Scripted::Status(503, "retry-after: 3600\r\n", "maintenance")]).await;
    assert_eq!(deltas, []);
    assert!(matches!(error, Some(UpstreamError::Server { status: 503, .. })), "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_wait_is_told_in_seconds_milliseconds_or_as_a_date() {
    async fn wait(headers: String) -> Duration {
        let busy = Scripted::Status(429, headers.leak(), "busy");
        let (deltas, error) = ask_scripted(vec![busy, Scripted::Text("Here.")]).await;
        assert_eq!(error, None);
        let Delta::Retrying { wait, .. } = &deltas[0] else { panic!("{deltas:?}") };
        *wait
    }
    let date = |seconds| httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(seconds));
    assert_eq!(wait("retry-after-ms: 20\r\nretry-after: 7\r\n".to_owned()).await, Duration::from_millis(20));
    let until = wait(format!("retry-after: {}\r\n", date(3))).await;
    assert!((1..=3).contains(&until.as_secs()), "{until:?}");
    assert_eq!(wait("retry-after: Sun, 06 Nov 1994 08:49:37 GMT\r\n".to_owned()).await, Duration::ZERO);
    // A day that is too far away is no reason to ask again before.
    let far = Scripted::Status(429, format!("retry-after: {}\r\n", date(3600)).leak(), "busy");
    let (deltas, error) = ask_scripted(vec![far]).await;
    assert_eq!(deltas, []);
    let Some(UpstreamError::RateLimited { retry_after: Some(wait), .. }) = error else { panic!("{error:?}") };
    assert!((3590..=3600).contains(&wait.as_secs()));
}

#[tokio::test]
async fn an_upstream_that_refuses_stream_options_is_asked_without_them() {
    let refusal = r#"{"error": {"message": "Extra inputs are not permitted: stream_options"}}"#;
    let script = vec![Scripted::Status(422, "content-type: application/json\r\n", refusal), Scripted::Text("Fine.")];
    let upstream = ScriptedUpstream::start(script).await;
    let (deltas, error) = ask(upstream.url()).await;
    assert_eq!((error, deltas.last()), (None, Some(&Delta::Finished(FinishReason::Stop))));
    let requests = upstream.requests();
    assert!(requests[0].get("stream_options").is_some() && requests[1].get("stream_options").is_none());
}

/// A conversation in which a program was run after some thought.
fn thoughtful() -> Vec<Item> {
    let call = Call { id: "c1".into(), name: "python".into(), arguments: "{}".into() };
    vec![Item::user("Why?"), Item::Reasoning("Hm.".into()), Item::Call(call), Item::output("c1", "42")]
}

#[tokio::test]
async fn thoughts_go_back_to_those_who_want_them() {
    let think = || Scripted::Events(vec![delta(&json!({ "reasoning_content": "Hm." })), finish("stop")], End::Done);
    let other = || Scripted::Events(vec![delta(&json!({ "reasoning": "Hm." })), finish("stop")], End::Done);
    let refusal = |words| Scripted::Status(400, "", words);
    for (how, script, expected) in [
        ("shown under this name", vec![think(), think()], vec![false, true]),
        ("shown under another name", vec![other(), other()], vec![false, false]),
        ("missed", vec![refusal("The reasoning_content must be passed back"), think()], vec![false, true]),
        (
            "not known",
            vec![think(), refusal("property 'reasoning_content' is unsupported"), think(), think()],
            vec![false, true, false, false],
        ),
    ] {
        let upstream = ScriptedUpstream::start(script).await;
        let chat = HttpUpstream::new(options_at(upstream.url())).unwrap();
        while upstream.requests().len() < expected.len() {
            let (_, error) = ask_of(&chat, thoughtful()).await;
            assert_eq!(error, None, "{how}");
        }
        let sent: Vec<bool> = upstream
            .requests()
            .iter()
            .map(|request| request["messages"][1].get("reasoning_content").is_some())
            .collect();
        assert_eq!(sent, expected, "{how}");
    }
}

#[tokio::test]
async fn a_model_of_openais_at_another_address_gets_the_limit_under_its_own_name() {
    let words =
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
    let script = vec![Scripted::Status(400, "", words), Scripted::Text("Fine."), Scripted::Text("Fine.")];
    let upstream = ScriptedUpstream::start(script).await;
    let options = HttpOptions { max_output_tokens: Some(50), ..options_at(upstream.url()) };
    let chat = HttpUpstream::new(options).unwrap();
    for _ in 0..2 {
        assert_eq!(ask_of(&chat, vec![Item::user("Hi")]).await.1, None);
    }
    let limits = upstream.requests().into_iter().map(|request| {
        ["max_tokens", "max_completion_tokens"].map(|name| request.get(name).and_then(serde_json::Value::as_u64))
    });
    assert_eq!(limits.collect::<Vec<_>>(), [[Some(50), None], [None, Some(50)], [None, Some(50)]]);
}

#[tokio::test]
async fn a_conversation_that_is_too_long_is_told_by_codes_and_by_words() {
    let openai = r#"{"error":{"message":"Too big.","type":"invalid_request_error","code":"context_length_exceeded"}}"#;
    let llama = r#"{"error":{"code":400,"message":"the request is too big","type":"exceed_context_size_error"}}"#;
    let vllm = r#"{"message":"This model's maximum context length is 8 tokens.","type":"BadRequestError","code":400}"#;
    let anthropic =
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 > 8"}}"#;
    let gemini = r#"{"error":{"code":400,"message":"The input token count (9) exceeds the maximum number of tokens allowed (8).","status":"INVALID_ARGUMENT"}}"#;
    for (sent, expected) in
        [(openai, true), (llama, true), (vllm, true), (anthropic, true), (gemini, true), ("no", false)]
    {
        let upstream = ScriptedUpstream::start(vec![Scripted::Status(400, "", sent)]).await;
        let chat = HttpUpstream::new(options_at(upstream.url())).unwrap();
        let error = ask_with(&chat, vec![Item::user("Hi")], Sampling::default()).await.1;
        let Some(UpstreamError::Rejected { exceeds_context, .. }) = error else { panic!("{sent}: {error:?}") };
        assert_eq!(exceeds_context, expected, "{sent}");
    }
}

#[tokio::test]
async fn a_model_that_does_not_think_is_not_told_how_much() {
    let words = "Unrecognized request argument supplied: reasoning_effort";
    let value = "Unsupported value: 'reasoning_effort' does not support 'foo' with this model.";
    let refusal = |words| Scripted::Status(400, "", words);
    let script = vec![refusal(value), refusal(words), Scripted::Text("Fine."), Scripted::Text("Fine.")];
    let upstream = ScriptedUpstream::start(script).await;
    let chat = HttpUpstream::new(options_at(upstream.url())).unwrap();
    let ask = async |effort: &str| {
        let sampling = Sampling { reasoning_effort: Some(effort.to_owned()), ..Sampling::default() };
        ask_with(&chat, vec![Item::user("Hi")], sampling).await.1
    };
    // A value that one client chose is not remembered.
    assert!(matches!(ask("foo").await, Some(UpstreamError::Rejected { .. })));
    assert_eq!([ask("low").await, ask("low").await], [None, None]);
    let sent = upstream.requests().into_iter().map(|request| request.get("reasoning_effort").is_some());
    assert_eq!(sent.collect::<Vec<_>>(), [true, true, false, false]);
}

#[tokio::test]
async fn everything_is_bounded() {
    let arguments = |size| {
        delta(&json!({ "tool_calls": [{ "index": 0, "function": { "name": "f", "arguments": "x".repeat(size) } }] }))
    };
    let calls =
        (0..100).map(|index| delta(&json!({ "tool_calls": [{ "index": index, "function": { "name": "f" } }] })));
    for (events, words) in [
        (vec![arguments(1 << 19), arguments(1 << 20)], "the arguments of a call"),
        (calls.collect(), "calls"),
        (vec!["x".repeat(9 << 20)], "one event"),
    ] {
        let (_, error) = ask_scripted(vec![Scripted::Events(events, End::Done)]).await;
        let Some(UpstreamError::TooLarge { what, .. }) = error else { panic!("{words}: {error:?}") };
        assert!(what.contains(words), "{what}");
    }
}

#[tokio::test]
async fn what_keeps_a_connection_from_being_made_is_named() {
    let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain_http = format!("https://{}/v1", plain.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        // Closed unread, the greeting would reset the connection.
        std::future::pending::<()>().await;
    });
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    for (url, expected) in [
        // The words in the path are not what went wrong.
        (format!("http://{closed}/tls/dns/v1"), Unreachable::Refused),
        ("http://no-such-host.invalid/v1".to_owned(), Unreachable::Dns),
        (plain_http, Unreachable::Tls),
    ] {
        let (_, error) = ask(url.clone()).await;
        let Some(UpstreamError::Unreachable { cause, .. }) = error else { panic!("{url}: {error:?}") };
        assert_eq!(cause, expected, "{url}");
    }
}

#[test]
fn options_that_cannot_work_are_refused_at_once() {
    let with_key = |key: &str| HttpOptions {
        protocol: Protocol::CHAT_COMPLETIONS,
        key: Some(Secret::new(key).from_origin("env:TEST_KEY")),
        ..options_at("http://localhost/v1".into())
    };
    for (options, words) in [
        (options_at("localhost:8000/v1".into()), "http"),
        (options_at("ftp://localhost/v1".into()), "http"),
        (options_at("http://user:hunter2@localhost/v1".into()), "key"),
        (with_key("two\nlines"), "env:TEST_KEY"),
        (with_key(" "), "env:TEST_KEY"),
    ] {
        let error = HttpUpstream::new(options.clone()).unwrap_err();
        assert!(error.contains(words), "{options:?}: {error}");
        assert!(!error.contains("hunter2") && !error.contains("two\nlines"), "{error}");
    }
}
