//! Chat Completions: turns of ours, and what is handed on to the model's server.

use std::sync::Arc;
use std::time::Duration;

use aludel_engine::approvals::{ApprovalMode, ApprovalPolicy, OnTimeout};
use aludel_testkit::{End, Scripted};
use serde_json::{Value, json};

use super::case::{Case, Shown};
use super::model::{Round, answers, calls, runs, says};
use super::programs::{EXITS, FAILS, MAKES_FILE, NEVER_ENDS, PRINTS, READS_FILE, SHOWS_IMAGE};
use super::run::with;

const PATH: &str = "/v1/chat/completions";

/// A request with these fields and no tool.
fn request(fields: &Value) -> Value {
    with(fields, json!({ "model": "m", "messages": [{ "role": "user", "content": "Go" }] }))
}

/// One with the interpreter.
fn with_tool(fields: &Value) -> Value {
    with(fields, request(&json!({ "tools": [{ "type": "code_interpreter" }] })))
}

fn function() -> Value {
    json!({ "type": "function", "function": { "name": "weather", "parameters": { "type": "object", "properties": {} } } })
}

/// The same request whole and as a stream, with and without the usage.
fn both(name: &'static str, script: &dyn Fn() -> Vec<Scripted>, body: &Value) -> Case {
    let streamed = with(&json!({ "stream": true, "stream_options": { "include_usage": true } }), body.clone());
    Case::new(name).model(script()).post(PATH, body.clone()).model(script()).post(PATH, streamed)
}

/// The same, when nothing comes of it: handed on, and as a turn of ours.
fn fails(name: &'static str, script: &dyn Fn() -> Vec<Scripted>) -> Case {
    [request(&json!({})), with_tool(&json!({}))]
        .into_iter()
        .flat_map(|body| [body.clone(), with(&json!({ "stream": true }), body)])
        .fold(Case::new(name), |case, body| {
            let passes = body.get("tools").is_none();
            let case = case.model(script().into_iter().take(if passes { 1 } else { usize::MAX })).post(PATH, body);
            if passes { case.shown(Shown::AsItIs) } else { case }
        })
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = turns();
    cases.extend(programs().into_iter().map(Case::on_both));
    cases.extend(conversations());
    cases.extend(handed_on());
    cases.extend(failures());
    cases
}

/// Answers that run no program.
fn turns() -> Vec<Case> {
    let text = || vec![says("Hello there.")];
    vec![
        both("text", &text, &with_tool(&json!({})))
            .model(text())
            .post(PATH, with_tool(&json!({ "stream": true })))
            .get("/v1/containers"),
        both("text_of_a_model_to_which_nothing_is_handed_on", &text, &request(&json!({}))).passes_nothing(),
        both("nothing_said", &|| vec![says("")], &with_tool(&json!({}))),
        both("refusal", &|| vec![Round::new().refuses("I will not.").ends("stop")], &with_tool(&json!({}))),
        both("length", &|| vec![Round::new().text("To be contin").ends("length")], &with_tool(&json!({}))),
        both("filter", &|| vec![Round::new().text("It is").ends("content_filter")], &with_tool(&json!({}))),
        both(
            "reasoning",
            &|| vec![Round::new().thinks("Let me think.").text("Yes.").ends("stop")],
            &with_tool(&json!({})),
        ),
        both("stop_word", &|| vec![says("One, two, three, four.")], &with_tool(&json!({ "stop": "three" }))),
        both("stop_words", &|| vec![says("One, two, three.")], &with_tool(&json!({ "stop": ["four", "two"] }))),
        both(
            "fields_for_the_model",
            &|| vec![says("{}")],
            &with_tool(&json!({
                "seed": 1, "presence_penalty": 0.1, "frequency_penalty": 0.2, "logit_bias": { "1": 2 }, "user": "me",
                "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "flex", "verbosity": "low",
                "metadata": { "a": "b" }, "temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "max_completion_tokens": 99,
                "reasoning_effort": "low", "parallel_tool_calls": false, "response_format": { "type": "json_object" },
                "logprobs": false, "modalities": ["text"], "n": 1,
            })),
        ),
        both(
            "schema",
            &|| vec![Round::new().text("I will compute.").program(PRINTS).ends("tool_calls"), says("{\"answer\": 42}")],
            &with_tool(
                &json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": {} } } }),
            ),
        ),
        Case::new("two_choices")
            .model((0..2).map(|_| says("Hello.")))
            .post(PATH, with_tool(&json!({ "n": 2 })))
            .model((0..2).map(|_| says("Hello.")))
            .post(PATH, with_tool(&json!({ "n": 2, "stream": true, "stream_options": { "include_usage": true } })))
            .shown(Shown::ByChoice),
        Case::new("roles_and_parts").model([says("ok")]).post(
            PATH,
            with_tool(&json!({ "messages": [
                { "role": "system", "content": "One." },
                { "role": "developer", "content": [{ "type": "text", "text": "Two." }] },
                { "role": "user", "content": [
                    { "type": "text", "text": "Look:" },
                    { "type": "image_url", "image_url": { "url": "https://example.com/a.png" } },
                ] },
                { "role": "assistant", "content": null, "refusal": "No.", "reasoning_content": "Hm." },
                { "role": "user", "content": "Please." },
                { "role": "assistant", "content": [{ "type": "refusal", "refusal": "No!" }] },
                { "role": "user", "content": "Pretty please." },
            ] })),
        ),
        Case::new("asked_again_with_the_same_key")
            .model([says("Once.")])
            .post(PATH, with_tool(&json!({})))
            .header("idempotency-key", "a")
            .post(PATH, with_tool(&json!({})))
            .header("idempotency-key", "a"),
    ]
}

/// Turns with programs.
fn programs() -> Vec<Case> {
    let run = |name, code: &'static str| both(name, &|| vec![runs(code), says("Done.")], &with_tool(&json!({})));
    let both_tools = json!([{ "type": "code_interpreter" }, function()]);
    let approvals = ApprovalPolicy {
        mode: ApprovalMode::Rules(Arc::new(aludel_rules::Rules::parse("default = \"refuse\"").unwrap())),
        timeout: Duration::from_secs(1),
        on_timeout: OnTimeout::Deny,
        ..ApprovalPolicy::default()
    };
    vec![
        run("program", PRINTS).get("/v1/containers").get("/v1/approvals"),
        run("program_fails", FAILS),
        run("program_never_ends", NEVER_ENDS).settings(|settings| settings.limits.timeout = Duration::from_secs(1)),
        run("program_exits", EXITS),
        run("program_is_refused", "import nothing").approvals(approvals.clone()),
        run("program_is_not_approved", PRINTS).approvals(ApprovalPolicy { mode: ApprovalMode::Always, ..approvals }),
        run("image", SHOWS_IMAGE),
        run("file", MAKES_FILE).get("/v1/containers/<cntr 1>/files"),
        both(
            "two_rounds",
            &|| {
                vec![
                    Round::new().text("Let me see.").program("x = 6 * 7\nx").ends("tool_calls"),
                    Round::new().text("And now:").program("print(x)").program(MAKES_FILE).ends("tool_calls"),
                    says("It is 42."),
                ]
            },
            &with_tool(&json!({})),
        ),
        both(
            "calls_that_cannot_be_run",
            &|| {
                vec![
                    Round::new()
                        .call("python", "{\"code\": ")
                        .call("python", "{}")
                        .call("browser", "{}")
                        .ends("tool_calls"),
                    says("Sorry."),
                ]
            },
            &with_tool(&json!({})),
        ),
        both(
            "stop_word_before_a_program",
            &|| vec![Round::new().text("Let me see.").program(PRINTS).ends("tool_calls")],
            &with_tool(&json!({ "stop": ["me"] })),
        ),
        both(
            "no_tokens_left",
            &|| vec![Round::new().program(PRINTS).ends_with_tokens("tool_calls", 2_000_000, 5)],
            &with_tool(&json!({})),
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
        both(
            "function",
            &|| vec![calls("weather", &json!({ "city": "Bonn" }))],
            &with_tool(&json!({ "tools": both_tools })),
        ),
        both(
            "function_beside_a_program",
            &|| {
                vec![
                    Round::new()
                        .text("Both:")
                        .program(PRINTS)
                        .call("weather", "{\"city\": \"Bonn\"}")
                        .call("weather", "{\"city\": \"Rome\"}")
                        .ends("tool_calls"),
                ]
            },
            &with_tool(&json!({ "tools": both_tools })),
        ),
        Case::new("tool_choice").model((0..6).map(|_| says("ok"))).post_each(
            PATH,
            [
                json!("required"),
                json!({ "type": "code_interpreter" }),
                json!({ "type": "hosted_tool", "name": "code_interpreter" }),
                json!({ "type": "function", "function": { "name": "weather" } }),
                json!({ "type": "allowed_tools", "allowed_tools": {
                    "mode": "required", "tools": [{ "type": "function", "function": { "name": "weather" } }],
                } }),
                json!({ "type": "allowed_tools", "allowed_tools": { "tools": [{ "type": "code_interpreter" }] } }),
            ]
            .map(|choice| with_tool(&json!({ "tools": both_tools, "tool_choice": choice }))),
        ),
    ]
}

/// Requests that go on from earlier ones.
fn conversations() -> Vec<Case> {
    let both_tools = json!([{ "type": "code_interpreter" }, function()]);
    let program = json!({
        "id": "<ci 1>", "type": "code_interpreter_call", "container_id": "<cntr 1>", "code": "x = 6 * 7",
        "status": "completed", "outputs": [],
    });
    let call = json!({ "id": "<call 1>", "type": "function", "function": { "name": "weather", "arguments": "{}" } });
    vec![
        Case::new("goes_on_in_the_same_container")
            .model([runs("x = 6 * 7"), says("Noted."), runs("print(x)"), says("42.")])
            .post(PATH, with_tool(&json!({})))
            .post(
                PATH,
                with_tool(&json!({ "messages": [
                    { "role": "user", "content": "Go" },
                    { "role": "assistant", "content": "Noted.", "code_interpreter_calls": [program] },
                    { "role": "user", "content": "And?" },
                ] })),
            ),
        Case::new("programs_are_known_by_the_function_that_was_called_beside_them")
            .model([
                Round::new().program("x = 6 * 7").call("weather", "{}").ends("tool_calls"),
                runs("print(x)"),
                says("42."),
            ])
            .post(PATH, with_tool(&json!({ "tools": both_tools })))
            .post(
                PATH,
                with_tool(&json!({ "tools": both_tools, "messages": [
                    { "role": "user", "content": "Go" },
                    { "role": "assistant", "content": null, "tool_calls": [call] },
                    { "role": "tool", "tool_call_id": "<call 1>", "content": "sunny" },
                ] })),
            ),
        Case::new("session_by_name")
            .model([runs("x = 6 * 7"), says("Noted."), runs("print(x)"), says("42."), runs("print(x)"), says("42!")])
            .post(PATH, with_tool(&json!({ "metadata": { "session_id": "s" } })))
            .post(PATH, with_tool(&json!({ "metadata": { "session_id": "s" } })))
            .post(PATH, with_tool(&json!({ "litellm_metadata": { "session_id": "s" } })))
            .get("/v1/containers"),
        Case::new("files_of_messages")
            .model([runs(READS_FILE), says("Read.")])
            .upload("/v1/files", &[("purpose", "user_data")], "file", "data.csv")
            .post(
                PATH,
                with_tool(&json!({ "messages": [{ "role": "user", "content": [
                    { "type": "file", "file": { "file_id": "<file 1>" } },
                    { "type": "file", "file": { "filename": "b.txt", "file_data": "data:text/plain;base64,aGVsbG8=" } },
                ] }] })),
            )
            .get("/v1/containers/<cntr 1>/files?order=asc"),
        Case::new("container_of_its_own")
            .model([runs(PRINTS), says("Done.")])
            .post("/v1/containers", json!({ "name": "mine" }))
            .post(PATH, with_tool(&json!({ "tools": [{ "type": "code_interpreter", "container": "<cntr 1>" }] }))),
    ]
}

/// Requests without our tool.
fn handed_on() -> Vec<Case> {
    let chunks = || {
        let chunk =
            |text: &str| format!("{{\"choices\": [ {{\"delta\": {{\"content\":\"{text}\"}} , \"odd\": 1e2}} ]}}");
        Scripted::Events(vec![chunk("Hel"), chunk("lo")], End::Done)
    };
    let bytes =
        "{ \"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],  \"model\" :\"m\", \"odd\": 1e2, \"odd\": 1 }";
    vec![
        Case::new("handed_on")
            .model([Scripted::Whole("Hello."), chunks(), chunks()])
            .post_bytes(PATH, bytes)
            .shown(Shown::AsItIs)
            .post(PATH, request(&json!({ "stream": true })))
            .shown(Shown::AsItIs)
            .post(PATH, request(&json!({ "stream": true, "tools": [function()], "logprobs": true })))
            .shown(Shown::AsItIs),
        Case::new("handed_on_with_headers")
            .model([answers(
                200,
                "content-type: application/json\r\nx-ratelimit-limit-requests: 5\r\nopenai-version: 1\r\nserver: other\r\n\
                 set-cookie: a=b\r\nx-request-id: theirs\r\n",
                "{ }",
            )])
            .post(PATH, request(&json!({})))
            .header("openai-beta", "x=y")
            .header("cookie", "c=d")
            .shown(Shown::AsItIs),
    ]
}

/// Models that do not answer.
fn failures() -> Vec<Case> {
    const AT_ONCE: &str = "retry-after: 0\r\n";
    let error = r#"{ "error": {"message": "no such parameter", "type": "invalid_request_error"} }"#;
    vec![
        fails("model_rejects", &|| vec![answers(400, "content-type: application/json\r\n", error)]),
        fails("model_rejects_the_key", &|| vec![answers(401, "", "who are you")]),
        fails("model_is_over_its_limit", &|| vec![answers(429, "retry-after: 60\r\n", "slow down")]),
        fails("model_server_fails", &|| (0..3).map(|_| answers(500, AT_ONCE, "oops")).collect()),
        fails("model_cannot_be_reached", &Vec::new).unreachable(),
        fails("model_talks_garbage", &|| vec![Scripted::Garbage("<html>hello</html>")]),
        fails("model_reports_an_error", &|| (0..3).map(|_| Round::new().fails("overloaded")).collect()),
        both(
            "model_reports_an_error_in_the_middle",
            &|| vec![Round::new().text("Once upon").fails("overloaded")],
            &with_tool(&json!({})),
        ),
        both(
            "connection_breaks_in_the_middle",
            &|| vec![Round::new().text("Once upon").breaks()],
            &with_tool(&json!({})),
        ),
        both("model_falls_silent", &|| vec![Round::new().text("Once upon").falls_silent()], &with_tool(&json!({})))
            .patience(Duration::from_secs(1)),
        both("sandbox_fails", &|| vec![runs(PRINTS)], &with_tool(&json!({}))).no_sandbox("no memory"),
        both(
            "model_fails_after_a_program",
            &|| vec![runs(PRINTS), answers(400, "", "too much")],
            &with_tool(&json!({})),
        ),
        Case::new("one_of_two_choices_fails")
            .without_model()
            .model([answers(400, "", "no"), Round::new().falls_silent()])
            .post(PATH, with_tool(&json!({ "n": 2 }))),
    ]
}
