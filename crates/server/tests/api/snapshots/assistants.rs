//! The Assistants API: runs as streams and polled, and the objects around them.

use aludel_testkit::Scripted;
use serde_json::{Value, json};

use super::case::Case;
use super::model::{Round, answers, runs, says};
use super::programs::{FAILS, MAKES_FILE, NEVER_ENDS, PRINTS, SHOWS_IMAGE};
use super::run::with;

const RUNS: &str = "/v1/threads/<thread 1>/runs";
const RUN: &str = "/v1/threads/<thread 1>/runs/<run 1>";
const STEPS: &str = "/v1/threads/<thread 1>/runs/<run 1>/steps?order=asc";
const MESSAGES: &str = "/v1/threads/<thread 1>/messages";

fn function() -> Value {
    let parameters = json!({ "type": "object", "properties": {} });
    json!({ "type": "function", "function": { "name": "weather", "parameters": parameters } })
}

/// An assistant with our tool and a function, a thread with a question, and answers of the model.
fn begun(name: &'static str, script: Vec<Scripted>) -> Case {
    let assistant = json!({ "model": "m", "name": "A", "tools": [{ "type": "code_interpreter" }, function()] });
    let thread = json!({ "messages": [{ "role": "user", "content": "Go" }] });
    Case::new(name).model(script).post("/v1/assistants", assistant).post("/v1/threads", thread)
}

/// A run of it with these fields.
fn run(fields: &Value) -> Value {
    with(fields, json!({ "assistant_id": "<asst 1>" }))
}

fn streamed() -> Value {
    run(&json!({ "stream": true }))
}

fn asks() -> Scripted {
    Round::new().text("Let me see.").call("weather", "{\"city\": \"Paris\"}").ends("tool_calls")
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = streams();
    cases.extend(polled());
    cases.extend(objects());
    cases
}

/// Runs as streams.
fn streams() -> Vec<Case> {
    let stream = |name, script| begun(name, script).post(RUNS, streamed());
    vec![
        stream("text", vec![says("Hello there.")]),
        stream("nothing_said", vec![says("")]),
        stream("program", vec![runs(PRINTS), says("It is 42.")]).get(STEPS).get(MESSAGES).get(RUN).on_both(),
        stream("text_and_program", vec![Round::new().text("Let me.").program(FAILS).ends("tool_calls"), says("No.")])
            .on_both(),
        stream(
            "two_programs_in_a_round",
            vec![Round::new().program(PRINTS).program("x = 6 * 7\nx").ends("tool_calls"), says("Done.")],
        )
        .on_both(),
        stream(
            "image_and_files",
            vec![runs(SHOWS_IMAGE), runs(MAKES_FILE), says("It is [here](sandbox:/mnt/data/out.csv), so.")],
        )
        .get(MESSAGES)
        .get("/v1/files"),
        stream("length", vec![Round::new().text("To be contin").ends("length")]).get(MESSAGES),
        stream("filter", vec![Round::new().text("It is").ends("content_filter")]),
        stream("function", vec![asks(), says("Sunny.")])
            .get(RUN)
            .post(
                "/v1/threads/<thread 1>/runs/<run 1>/submit_tool_outputs",
                json!({ "stream": true, "tool_outputs": [{ "tool_call_id": "<call 1>", "output": "sun" }] }),
            )
            .get(STEPS),
        begun("thread_and_run", vec![says("Hello.")]).post(
            "/v1/threads/runs",
            run(&json!({ "stream": true, "thread": { "messages": [{ "role": "user", "content": "Hi" }] } })),
        ),
        stream("upstream_fails", vec![answers(400, "", "{\"error\": {\"message\": \"no\"}}")]),
    ]
}

/// Runs that are asked for until they have ended.
fn polled() -> Vec<Case> {
    let ask = json!({ "role": "user", "content": "More" });
    vec![
        begun("locked_and_cancelled", vec![runs(NEVER_ENDS)])
            .post(RUNS, run(&json!({ "additional_instructions": "Be short.", "additional_messages": [ask.clone()] })))
            .post(RUNS, run(&json!({})))
            .post(MESSAGES, ask.clone())
            .until(STEPS, "/data/0/type", "tool_calls")
            .post("/v1/threads/<thread 1>/runs/<run 1>/cancel", json!({}))
            .until(RUN, "/status", "cancelled")
            .get(RUN)
            .post("/v1/threads/<thread 1>/runs/<run 1>/cancel", json!({}))
            .post(MESSAGES, ask)
            .without_model(),
        begun("waits_over_a_restart", vec![asks(), says("Sunny.")])
            .post(RUNS, run(&json!({})))
            .until(RUN, "/status", "requires_action")
            .restart()
            .get(RUNS)
            .post(
                "/v1/threads/<thread 1>/runs/<run 1>/submit_tool_outputs",
                json!({ "tool_outputs": [{ "tool_call_id": "<call 1>", "output": "sun" }] }),
            )
            .until(RUN, "/status", "completed")
            .get(MESSAGES),
    ]
}

/// Objects, and what is wrong with requests for them.
fn objects() -> Vec<Case> {
    let tools = json!([{ "type": "code_interpreter" }, { "type": "file_search" }, function()]);
    let null_search = json!({ "code_interpreter": { "file_ids": [] }, "file_search": null });
    vec![
        Case::new("assistants")
            .post("/v1/assistants", json!({ "model": "m", "name": "A", "tools": tools, "metadata": { "k": "v" } }))
            .post("/v1/assistants/<asst 1>", json!({ "instructions": "Say.", "tools": [] }))
            .post("/v1/assistants", json!({ "model": "m" }))
            .get("/v1/assistants?limit=1")
            .get("/v1/assistants?before=<asst 1>")
            .delete("/v1/assistants/<asst 1>")
            .get("/v1/assistants/<asst 1>"),
        Case::new("threads")
            .post("/v1/threads", json!({}))
            .post("/v1/threads/<thread 1>", json!({ "metadata": { "k": "v" }, "tool_resources": null_search }))
            .post(MESSAGES, json!({ "role": "user", "content": [{ "type": "text", "text": { "value": "One" } }] }))
            .post(MESSAGES, json!({ "role": "assistant", "content": "Two" }))
            .get("/v1/threads/<thread 1>/messages?limit=1")
            .post("/v1/threads/<thread 1>/messages/<msg 1>", json!({ "metadata": { "k": "v" } }))
            .delete("/v1/threads/<thread 1>/messages/<msg 1>")
            .delete("/v1/threads/<thread 1>")
            .get(MESSAGES),
        Case::new("wrong_assistants")
            .post_each(
                "/v1/assistants",
                [
                    json!({}),
                    json!({ "model": 5 }),
                    json!({ "model": "m", "tools": 5 }),
                    json!({ "model": "m", "tools": [5] }),
                    json!({ "model": "m", "tools": [{ "type": "retrieval" }] }),
                    json!({ "model": "m", "tools": [{ "type": "function" }] }),
                    json!({ "model": "m", "tools": vec![json!({ "type": "code_interpreter" }); 129] }),
                    json!({ "model": "m", "name": "x".repeat(257) }),
                    json!({ "model": "m", "temperature": 3 }),
                    json!({ "model": "m", "response_format": "xml" }),
                    json!({ "model": "m", "metadata": { "k": 5 } }),
                    json!({ "model": "m", "tool_resources": { "code_interpreter": { "file_ids": ["file-1"] } } }),
                    json!({ "model": "m", "tool_resources": { "file_search": { "vector_store_ids": ["vs_1"] } } }),
                ],
            )
            .post("/v1/assistants", json!({ "model": "m" }))
            .header("openai-beta", "assistants=v1")
            .post("/v1/vector_stores", json!({ "name": "s" }))
            .get("/v1/vector_stores/vs_1/files"),
        begun("wrong_runs", Vec::new())
            .post_each(
                RUNS,
                [
                    json!({}),
                    json!({ "assistant_id": "asst_none" }),
                    json!({ "assistant_id": "../x" }),
                    run(&json!({ "model": "none" })),
                    run(&json!({ "tool_choice": { "type": "file_search" }, "tools": [] })),
                    run(&json!({ "truncation_strategy": { "type": "last_messages" } })),
                    run(&json!({ "additional_messages": [{ "role": "system", "content": "x" }] })),
                    run(&json!({ "additional_messages": [{ "role": "user", "content": [] }] })),
                ],
            )
            .post_each(
                MESSAGES,
                [
                    json!({ "content": "x" }),
                    json!({ "role": "user", "content": "" }),
                    json!({ "role": "user", "content": [{ "type": "image_file", "image_file": { "file_id": "file-1" } }] }),
                    json!({ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "file:///etc/passwd" } }] }),
                    json!({ "role": "user", "content": "x", "attachments": [{ "file_id": "file-1" }] }),
                ],
            )
            .get("/v1/threads/<thread 1>/runs?limit=0")
            .get("/v1/threads/<thread 1>/runs/run_none")
            .get("/v1/threads/<thread 1>/runs/run_none/steps/step_none")
            .post("/v1/threads/<thread 1>/runs/run_none/cancel", json!({}))
            .get("/v1/threads/thread_none/messages/msg_none"),
        begun("other_tenants", vec![says("Hello.")])
            .keys()
            .post(RUNS, streamed())
            .get_as_other("/v1/assistants/<asst 1>")
            .get_as_other("/v1/assistants")
            .get_as_other("/v1/threads/<thread 1>")
            .get_as_other(MESSAGES)
            .get_as_other(RUN)
            .get_as_other(STEPS)
            .get("/v1/threads/<thread 1>")
            .header("api-key", "<other key>"),
    ]
}
