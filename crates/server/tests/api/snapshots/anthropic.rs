//! Anthropic's Messages, with the files and models beside them.

use aludel_testkit::Scripted;
use serde_json::{Value, json};

use super::case::Case;
use super::model::{Round, answers, calls, runs, says};
use super::programs::{EXITS, FAILS, MAKES_FILE, NEVER_ENDS, PRINTS, SHOWS_IMAGE};
use super::run::with;

const PATH: &str = "/v1/messages";
const BASH: &str = "bash_code_execution";
const EDITOR: &str = "text_editor_code_execution";

/// A request with these fields and no tool.
fn request(fields: &Value) -> Value {
    with(fields, json!({ "model": "m", "max_tokens": 100, "messages": [{ "role": "user", "content": "Go" }] }))
}

fn tool() -> Value {
    json!({ "type": "code_execution_20260120", "name": "code_execution" })
}

/// One with our tool.
fn with_tool(fields: &Value) -> Value {
    with(fields, request(&json!({ "tools": [tool()] })))
}

fn function() -> Value {
    json!({ "name": "weather", "input_schema": { "type": "object", "properties": {} } })
}

/// The same request whole and as a stream.
fn both(name: &'static str, script: &dyn Fn() -> Vec<Scripted>, body: &Value) -> Case {
    let streamed = with(&json!({ "stream": true }), body.clone());
    Case::new(name).model(script()).post(PATH, body.clone()).model(script()).post(PATH, streamed)
}

/// Another protocol's request is told apart by this.
fn versioned(case: Case) -> Case {
    case.header("anthropic-version", "2026-10-21")
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = turns();
    cases.extend(programs().into_iter().map(Case::on_both));
    cases.extend(conversations());
    cases.extend(objects());
    cases.extend(failures());
    cases
}

/// The model's words.
fn turns() -> Vec<Case> {
    vec![
        both("text", &|| vec![says("Hello there.")], &with_tool(&json!({}))).get("/v1/containers"),
        both("text_without_a_tool", &|| vec![says("Hello there.")], &request(&json!({}))),
        both("nothing_said", &|| vec![says("")], &with_tool(&json!({}))),
        both("refusal", &|| vec![Round::new().refuses("I will not.").ends("stop")], &with_tool(&json!({}))),
        both("length", &|| vec![Round::new().text("To be contin").ends("length")], &with_tool(&json!({}))),
        both("filter", &|| vec![Round::new().text("It is").ends("content_filter")], &with_tool(&json!({}))),
        both(
            "thinking",
            &|| vec![Round::new().thinks("Let me think.").text("Yes.").ends("stop")],
            &with_tool(&json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } })),
        ),
        both(
            "thinking_omitted",
            &|| vec![Round::new().thinks("Let me think.").text("Yes.").ends("stop")],
            &with_tool(&json!({ "thinking": { "type": "adaptive", "display": "omitted" } })),
        ),
        both(
            "thinking_unasked",
            &|| vec![Round::new().thinks("Let me think.").text("Yes.").ends("stop")],
            &with_tool(&json!({ "thinking": { "type": "disabled" } })),
        ),
        both(
            "stop_sequence",
            &|| vec![says("One END two.")],
            &with_tool(&json!({ "stop_sequences": ["never", "END"] })),
        ),
        both(
            "function",
            &|| vec![Round::new().text("Let me see.").call("weather", "{\"city\": \"Paris\"}").ends("tool_calls")],
            &request(
                &json!({ "tools": [function()], "tool_choice": { "type": "any", "disable_parallel_tool_use": true } }),
            ),
        ),
        Case::new("no_answer_wanted")
            .post(PATH, with_tool(&json!({ "max_tokens": 0 })))
            .post(PATH, with_tool(&json!({ "max_tokens": 0, "stream": true }))),
    ]
}

/// Programs.
fn programs() -> Vec<Case> {
    let ends = |name, program: &'static str| both(name, &|| vec![runs(program), says("Done.")], &with_tool(&json!({})));
    vec![
        ends("program", PRINTS),
        ends("program_with_an_error", FAILS),
        ends("program_that_exits", EXITS),
        ends("program_that_makes_a_file", MAKES_FILE),
        ends("program_that_shows_an_image", SHOWS_IMAGE),
        ends("program_that_never_ends", NEVER_ENDS)
            .settings(|settings| settings.limits.timeout = std::time::Duration::from_millis(300)),
        both(
            "two_programs_in_a_round",
            &|| vec![Round::new().program(PRINTS).program("x = 6 * 7\nx").ends("tool_calls"), says("Done.")],
            &with_tool(&json!({})),
        ),
        both(
            "program_and_function",
            &|| vec![Round::new().program(PRINTS).call("weather", "{}").ends("tool_calls")],
            &request(&json!({ "tools": [tool(), function()] })),
        ),
        both(
            "arguments_that_are_no_program",
            &|| vec![calls("python", &json!({ "code": 5 })), says("Done.")],
            &with_tool(&json!({})),
        ),
        both(
            "command",
            &|| vec![calls(BASH, &json!({ "command": "echo 42; exit 3" })), says("Done.")],
            &with_tool(&json!({})),
        ),
        both(
            "file_that_is_written_and_shown",
            &|| {
                let create = json!({ "command": "create", "path": "a.txt", "file_text": "one\n" });
                let view = json!({ "command": "view", "path": "a.txt" });
                let undo = json!({ "command": "undo_edit", "path": "a.txt" });
                vec![calls(EDITOR, &create), calls(EDITOR, &view), calls(EDITOR, &undo), says("Done.")]
            },
            &with_tool(&json!({})),
        ),
    ]
}

/// Conversations that go on.
fn conversations() -> Vec<Case> {
    let call =
        json!({ "type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": { "code": PRINTS } });
    let result =
        json!({ "type": "code_execution_result", "stdout": "42\n", "stderr": "", "return_code": 0, "content": [] });
    let result = json!({ "type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": result });
    let asked = json!({ "type": "tool_use", "id": "toolu_1", "name": "weather", "input": {} });
    let thoughts = json!({ "type": "thinking", "thinking": "Hm.", "signature": "s" });
    let answer = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny", "is_error": true });
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "iVBORw==" } });
    let document = json!({ "type": "document", "source": { "type": "text", "data": "Words." }, "title": "A title" });
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "Go" }, image, document] },
        { "role": "assistant", "content": [thoughts, { "type": "text", "text": "I go." }, call, result, asked] },
        { "role": "user", "content": [answer, { "type": "text", "text": "And?" }] },
    ]);
    let use_of = |name: &str, input: Value| json!({ "type": "server_tool_use", "id": format!("srvtoolu_{name}"), "name": name, "input": input });
    let result_of = |name: &str, content: Value| json!({ "type": format!("{name}_tool_result"), "tool_use_id": format!("srvtoolu_{name}"), "content": content });
    let printed = json!({ "type": "bash_code_execution_result", "stdout": "42\n", "stderr": "", "return_code": 3, "content": [] });
    let lost = json!({ "type": "text_editor_code_execution_tool_result_error", "error_code": "file_not_found" });
    let shell = json!([
        { "role": "user", "content": "Go" },
        { "role": "assistant", "content": [
            use_of(BASH, json!({ "command": "echo 42; exit 3" })), result_of(BASH, printed),
            use_of(EDITOR, json!({ "command": "view", "path": "a" })), result_of(EDITOR, lost),
        ] },
        { "role": "user", "content": "Go on" },
    ]);
    let first = json!([{ "type": "code_execution_20250522", "name": "code_execution" }]);
    let open = json!([
        { "role": "user", "content": "Go" },
        { "role": "assistant", "content": [call] },
        { "role": "user", "content": "Go on" },
    ]);
    let fields = json!({ "messages": messages, "tools": [tool(), function()], "system": [{ "type": "text", "text": "Be brief." }] });
    let upload = |id: &str| json!([{ "role": "user", "content": [{ "type": "container_upload", "file_id": id }] }]);
    vec![
        Case::new("history").model([says("Done.")]).post(PATH, with_tool(&fields)),
        Case::new("history_of_a_shell")
            .model([says("Done.")])
            .post(PATH, with_tool(&json!({ "messages": shell })))
            .model([says("Done.")])
            .post(PATH, request(&json!({ "messages": shell, "tools": first }))),
        Case::new("program_without_a_result")
            .model([says("Done.")])
            .post(PATH, with_tool(&json!({ "messages": open }))),
        versioned(Case::new("upload").upload("/v1/files", &[], "file", "data.csv"))
            .model([runs(PRINTS), says("Done.")])
            .post(PATH, with_tool(&json!({ "messages": upload("<file 1>") })))
            .get("/v1/containers/<cntr 1>/files")
            .model([runs(PRINTS), says("Done.")])
            .post(PATH, with_tool(&json!({ "container": "<cntr 1>" })))
            .post(PATH, with_tool(&json!({ "messages": upload("file-1") }))),
    ]
}

/// Files and models.
fn objects() -> Vec<Case> {
    let files =
        versioned(Case::new("files").upload("/v1/files", &[("expires_in_seconds", "3600")], "file", "data.csv"));
    let paths =
        ["/v1/files", "/v1/files?ids[]=<file 1>&ids[]=file-2", "/v1/files/<file 1>", "/v1/files/<file 1>/content"];
    let files = paths.into_iter().fold(files, |case, path| versioned(case.get(path)));
    let files = versioned(files.delete("/v1/files/<file 1>"));
    let made = Case::new("files_that_programs_made")
        .model([runs(MAKES_FILE), says("Done.")])
        .post(PATH, with_tool(&json!({})));
    let made = versioned(made.get("/v1/files/<cfile 1>"));
    let made = versioned(made.get("/v1/files/<cfile 1>/content"));
    let made = versioned(made.get("/v1/files?scope_id=<cntr 1>"));
    let made = versioned(made.get("/v1/files?scope_id=sess_none"));
    let made = versioned(made.delete("/v1/files/<cfile 1>"));
    vec![
        versioned(files.get("/v1/files/<file 1>")),
        versioned(made.get("/v1/files/<cfile 1>")),
        versioned(
            versioned(versioned(Case::new("models").get("/v1/models")).get("/v1/models/m")).get("/v1/models/none"),
        ),
        Case::new("tokens").post("/v1/messages/count_tokens", with_tool(&json!({ "max_tokens": null }))),
    ]
}

/// Refusals, and models' servers that fail.
fn failures() -> Vec<Case> {
    let fails = |name, script: &dyn Fn() -> Vec<Scripted>| both(name, script, &with_tool(&json!({})));
    vec![
        fails("model_is_over_its_limit", &|| vec![answers(429, "retry-after: 60", r#"{"error": {"message": "slow down"}}"#)]),
        fails("model_refuses", &|| vec![answers(400, "", r#"{"error": {"message": "no such parameter"}}"#)]),
        fails("model_breaks_off", &|| vec![Round::new().text("Half of it").breaks()]),
        fails("model_breaks_off_after_a_program", &|| vec![runs(PRINTS), Round::new().text("Half").breaks()]),
        Case::new("refusals").post_each(
            PATH,
            [
                json!({}),
                json!([]),
                request(&json!({ "max_tokens": "many" })),
                request(&json!({ "model": "none" })),
                request(&json!({ "thread": { "type": "create" } })),
                request(&json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] })),
                request(&json!({ "tools": [with(&json!({ "allowed_callers": ["code_execution_20260120"] }), function())] })),
                request(&json!({ "messages": [{ "role": "user", "content": [{ "type": "video" }] }] })),
                request(&json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t" }] }] })),
                with_tool(&json!({ "container": "cntr_none" })),
                with_tool(&json!({ "container": { "skills": [{}] } })),
            ],
        ),
        versioned(versioned(versioned(Case::new("unknown_paths").get("/v1/skills")).get("/messages")).delete("/v1/messages")),
        versioned(
            versioned(Case::new("keys").keys().get("/v1/models").header("x-api-key", "wrong"))
                .get("/v1/models")
                .header("x-api-key", "<other key>"),
        ),
    ]
}
