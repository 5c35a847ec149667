//! Gemini's Interactions API: whole and as streams, stored and continued, in the background.

use std::time::Duration;

use aludel_engine::approvals::{ApprovalMode, ApprovalPolicy, OnTimeout};
use aludel_testkit::Scripted;
use serde_json::{Value, json};

use super::case::Case;
use super::model::{Round, answers, calls, later, runs, says};
use super::programs::{FAILS, NEVER_ENDS, PRINTS, SHOWS_IMAGE};
use super::run::with;

const PATH: &str = "/v1/interactions";
const FIRST: &str = "/v1/interactions/<int 1>";

fn request(fields: &Value) -> Value {
    with(fields, json!({ "model": "m", "input": "Go" }))
}

/// A request with our tool.
fn with_tool(fields: &Value) -> Value {
    with(fields, request(&json!({ "tools": [{ "type": "code_execution" }] })))
}

/// The same request whole and as a stream, and the stream again from the store.
fn both(name: &'static str, script: &dyn Fn() -> Vec<Scripted>, body: &Value) -> Case {
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    Case::new(name)
        .model(script())
        .post(PATH, body.clone())
        .model(script())
        .post(PATH, streamed)
        .same_stream("/v1/interactions/<int 2>?stream=true")
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = turns();
    cases.extend(conversations());
    cases.extend(background());
    cases.extend(failures());
    cases.push(refusals());
    cases
}

/// Kinds of answers.
fn turns() -> Vec<Case> {
    let function = json!({ "type": "function", "name": "weather", "parameters": { "type": "object" } });
    vec![
        both("text", &|| vec![says("Hello there.")], &request(&json!({ "system_instruction": "Be short." }))),
        both("program", &|| vec![runs(PRINTS), says("It is 42.")], &with_tool(&json!({}))).on_both(),
        both("program_fails", &|| vec![runs(FAILS), says("No.")], &with_tool(&json!({}))).on_both(),
        both(
            "two_programs_in_a_round",
            &|| vec![Round::new().program(PRINTS).program("x = 6 * 7\nx").ends("tool_calls"), says("Done.")],
            &with_tool(&json!({})),
        )
        .on_both(),
        both("image", &|| vec![runs(SHOWS_IMAGE), says("There.")], &with_tool(&json!({}))),
        both(
            "thoughts",
            &|| vec![Round::new().thinks("Let me see.").text("Yes.").ends("stop")],
            &request(&json!({ "generation_config": { "thinking_summaries": "auto", "thinking_level": "low" } })),
        ),
        both(
            "thoughts_untold",
            &|| vec![Round::new().thinks("Let me see.").text("Yes.").ends("stop")],
            &request(&json!({})),
        ),
        both(
            "stop_sequence",
            &|| vec![says("One, two END three.")],
            &request(&json!({ "generation_config": { "stop_sequences": ["END"] } })),
        ),
        both("length", &|| vec![Round::new().text("To be contin").ends("length")], &request(&json!({}))),
        both("filter", &|| vec![Round::new().text("It is").ends("content_filter")], &request(&json!({}))),
        both(
            "function",
            &|| vec![Round::new().text("Let me see.").call("weather", "{\"city\": \"Paris\"}").ends("tool_calls")],
            &request(&json!({ "tools": [function], "generation_config": { "tool_choice": "any" } })),
        ),
        both(
            "schema",
            &|| vec![says("{\"a\": 1}")],
            &request(&json!({ "response_format":
                { "type": "text", "mime_type": "application/json", "schema": { "type": "object" } } })),
        ),
        both(
            "no_tokens_left_after_a_word",
            &|| {
                vec![Round::new().text("Let me see.").call("browser", "{}").ends_with_tokens(
                    "tool_calls",
                    2_000_000,
                    5,
                )]
            },
            &with_tool(&json!({})),
        ),
        both("bad_arguments", &|| vec![calls("python", &json!([1])), says("I could not.")], &with_tool(&json!({}))),
    ]
}

/// Interactions that go on with others.
fn conversations() -> Vec<Case> {
    let function = json!({ "type": "function", "name": "weather", "parameters": { "type": "object" } });
    let next = |fields: &Value| with(fields, with_tool(&json!({ "previous_interaction_id": "<int 1>" })));
    vec![
        Case::new("goes_on")
            .model([runs("x = 6 * 7\nx"), says("It is 42."), says("As before.")])
            .post(PATH, with_tool(&json!({})))
            .post(PATH, next(&json!({ "input": "And again?" })))
            .get("/v1/interactions/<int 2>?include_input=true")
            .get(&format!("{FIRST}?stream=false"))
            .delete(FIRST)
            .get(FIRST)
            .delete(FIRST)
            .post(PATH, next(&json!({}))),
        Case::new("function_is_answered")
            .model([calls("weather", &json!({ "city": "Paris" })), says("Sunny."), says("And now?")])
            .post(PATH, request(&json!({ "tools": [function] })))
            .post(
                PATH,
                next(&json!({ "tools": [function], "input":
                    [{ "type": "function_result", "call_id": "call_0_weather", "name": "weather", "result": { "sky": "clear" } }] })),
            )
            // The call of the first one is never answered here.
            .post(PATH, next(&json!({ "tools": [function], "input": "Never mind." }))),
        Case::new("steps_of_the_client")
            .model([says("It is 42.")])
            .post(
                PATH,
                with_tool(&json!({ "store": false, "input": [
                    { "type": "user_input", "content": [{ "type": "text", "text": "6 x 7?" },
                        { "type": "image", "data": "iVBORw0KGgo=", "mime_type": "image/png" }] },
                    { "type": "thought", "signature": "aludel.TGV0IG1lIHNlZS4=" },
                    { "type": "code_execution_call", "id": "c1", "arguments": { "language": "python", "code": "6 * 7" } },
                    { "type": "code_execution_result", "call_id": "c1", "result": "42", "is_error": false },
                    { "type": "model_output", "content": [{ "type": "text", "text": "It is…" }] },
                    { "type": "user_input", "content": [{ "type": "text", "text": "Yes?" }] },
                ] })),
            )
            .get(FIRST),
        Case::new("environment")
            .model([runs("x = 6 * 7\nx"), says("Set."), runs(PRINTS), says("Got.")])
            .post(PATH, with_tool(&json!({ "environment": { "type": "remote" } })))
            .post(PATH, with_tool(&json!({ "environment": "<cntr 1>" })))
            .post(PATH, with_tool(&json!({ "environment": { "type": "remote", "environment_id": "cntr_1" } }))),
        Case::new("of_another_tenant")
            .keys()
            .model([says("Hello."), says("Hello.")])
            .post(PATH, request(&json!({})))
            .get(FIRST)
            .get_as_other(FIRST)
            .get_as_other(&format!("{FIRST}?stream=true"))
            .delete(FIRST)
            .header("authorization", "Bearer <other key>")
            .post(&format!("{FIRST}/cancel"), json!({}))
            .header("authorization", "Bearer <other key>")
            .post(PATH, request(&json!({ "previous_interaction_id": "<int 1>" })))
            .header("authorization", "Bearer <other key>")
            .get(FIRST)
            .header("authorization", ""),
    ]
}

fn background() -> Vec<Case> {
    let begun = with_tool(&json!({ "background": true }));
    let always = ApprovalPolicy {
        mode: ApprovalMode::Always,
        timeout: Duration::from_secs(300),
        on_timeout: OnTimeout::Deny,
        ..ApprovalPolicy::default()
    };
    let stream = format!("{FIRST}?stream=true");
    vec![
        Case::new("background")
            .model([later(runs(PRINTS)), says("Done.")])
            .post(PATH, begun.clone())
            .until(FIRST, "/status", "completed")
            .get(FIRST)
            .get(&format!("{stream}&last_event_id=7"))
            .get(&format!("{stream}&last_event_id=x"))
            .post(&format!("{FIRST}/cancel"), json!({})),
        Case::new("background_stream")
            .model([runs(PRINTS), says("Done.")])
            .post(PATH, with(&json!({ "stream": true }), begun.clone()))
            .same_stream(&stream)
            .restart()
            .same_stream(&stream),
        Case::new("background_cancelled")
            .model([Round::new().text("Once upon").falls_silent()])
            .post(PATH, begun.clone())
            .until_told(&stream, "upon")
            .post(&format!("{FIRST}/cancel"), json!({}))
            .get(&stream)
            .post(PATH, with_tool(&json!({ "previous_interaction_id": "<int 1>" }))),
        Case::new("background_goes_on")
            .model([runs(NEVER_ENDS)])
            .post(PATH, begun.clone())
            .until_told(&stream, "code_execution_call")
            .post(PATH, with_tool(&json!({ "previous_interaction_id": "<int 1>" })))
            .delete(FIRST)
            .get(FIRST),
        Case::new("approval_survives_a_restart")
            .approvals(always)
            .model([runs(PRINTS), says("Done.")])
            .post(PATH, begun)
            .until("/v1/approvals?status=pending", "/data/0/status", "pending")
            .get("/v1/approvals?status=pending")
            .restart()
            .post("/v1/approvals/<appr 1>", json!({ "decision": "approve", "sha256": "<sha256 1>" }))
            .until(FIRST, "/status", "completed")
            .get(FIRST)
            .get(&stream),
    ]
}

fn failures() -> Vec<Case> {
    let stream = || request(&json!({ "stream": true }));
    vec![
        Case::new("model_refuses")
            .model([answers(400, "", "bad"), answers(400, "", "bad")])
            .post(PATH, request(&json!({})))
            .get(FIRST)
            .post(PATH, stream())
            .get("/v1/interactions/<int 1>"),
        Case::new("model_breaks_off")
            .model([Round::new().text("It is").breaks()])
            .post(PATH, stream())
            .get(FIRST)
            .without_model(),
    ]
}

fn refusals() -> Case {
    let file = |content: Value| json!({ "input": [content] });
    Case::new("refusals").post_each(
        PATH,
        [
            json!({ "model": "nobody", "input": "Go" }),
            json!({ "input": "Go" }),
            json!({ "model": "m" }),
            json!({ "agent": "deep-research", "input": "Go" }),
            request(&json!({ "tools": [{ "type": "google_search" }] })),
            request(&json!({ "background": true, "store": false })),
            request(&json!({ "previous_interaction_id": "int_none" })),
            request(&json!({ "environment": "cntr_1" })),
            with_tool(&json!({ "environment": "cntr_1" })),
            with_tool(&json!({ "environment": { "type": "remote", "sources": [{ "type": "repository" }] } })),
            with_tool(
                &json!({ "environment": { "sources": [{ "type": "inline", "content": "", "target": "../a" }] } }),
            ),
            request(&file(json!({ "type": "document", "data": "YQ==", "mime_type": "application/pdf" }))),
            request(&file(json!({ "type": "image", "uri": "gs://bucket/a.png" }))),
            request(&file(json!({ "type": "image", "uri": "files/none" }))),
            request(&file(json!({ "type": "function_result", "call_id": "c1", "result": "1" }))),
        ],
    )
}
