//! Every error that a client can get before anything is done, one request after another.

use serde_json::{Value, json};

use super::case::{Body, Case};
use super::model::says;
use super::run::with;

const RESPONSES: &str = "/v1/responses";
const CHAT: &str = "/v1/chat/completions";

fn response(fields: &Value) -> Value {
    with(fields, json!({ "model": "m", "input": "Go" }))
}

fn completion(fields: &Value) -> Value {
    let common = json!({
        "model": "m", "messages": [{ "role": "user", "content": "Go" }], "tools": [{ "type": "code_interpreter" }],
    });
    with(fields, common)
}

fn in_container(container: &Value) -> Value {
    json!([{ "type": "code_interpreter", "container": container }])
}

fn many(count: usize, value: &Value) -> Value {
    vec![value.clone(); count].into()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = of_http();
    cases.extend(of_room());
    cases.extend(of_objects());
    cases.extend(of_responses());
    cases.extend(of_chat());
    cases
}

/// Requests that are wrong as HTTP.
fn of_http() -> Vec<Case> {
    let small = "/v1/containers";
    vec![
        Case::new("routes")
            .get("/")
            .get("/v1/nothing")
            .get("/v1/models/other")
            .post("/v1/models", json!({}))
            .delete("/v1/responses")
            .send("PATCH", "/v1/files/file-1", Body::Empty)
            .get("/v1/files/%FF%FE")
            .get("/v1/files/..%2F..%2Fetc%2Fpasswd")
            .get("/metrics"),
        Case::new("bodies")
            .post_bytes(small, "{\"name\": ")
            .post_bytes(small, "[]")
            .post_bytes(small, "3")
            .post_bytes(small, "")
            .post_bytes(small, b"\xff\xfe".to_vec())
            .post_bytes(small, "[".repeat(200))
            .post_bytes(small, format!("[{}0]", "0,".repeat(2_000_001)))
            .post_bytes(RESPONSES, "{\"model\": ")
            .post_bytes(CHAT, "{\"model\": ")
            .post_bytes(CHAT, "[]")
            .post_bytes(CHAT, "[".repeat(200))
            .post_bytes("/v1/conversations", "no"),
        Case::new("keys")
            .keys()
            .get("/v1/files")
            .header("authorization", "")
            .get("/v1/files")
            .header("authorization", "Bearer wrong")
            .get("/v1/files")
            .header("authorization", "Basic wrong")
            .get("/v1/nothing")
            .header("authorization", "")
            .get("/metrics")
            .header("authorization", "")
            .get("/healthz")
            .header("authorization", ""),
        Case::new("without_keys")
            .get("/v1/files")
            .header("origin", "https://example.com")
            .get("/v1/files")
            .header("origin", "http://localhost:3000")
            .get("/v1/files")
            .header("host", "example.com")
            .get("/v1/files")
            .header("authorization", "Bearer any"),
    ]
}

/// No room.
fn of_room() -> Vec<Case> {
    let turn = response(&json!({ "tools": in_container(&json!({ "type": "auto" })) }));
    vec![
        Case::new("too_many_requests").server(|server| server.requests = 0).get("/v1/files"),
        Case::new("too_many_requests_of_one_key").keys().server(|server| server.requests_per_key = 0).get("/v1/files"),
        Case::new("too_many_containers")
            .settings(|settings| settings.sessions = 0)
            .post(RESPONSES, turn.clone())
            .post(RESPONSES, with(&json!({ "stream": true }), turn.clone()))
            .post(CHAT, completion(&json!({})))
            .post(CHAT, completion(&json!({ "stream": true }))),
        Case::new("storage_is_full")
            .settings(|settings| settings.storage = 4096 + 1200)
            .upload("/v1/files", &[("purpose", "user_data")], "file", "large.csv")
            .upload("/v1/files", &[("purpose", "user_data")], "file", "large.csv")
            .post("/v1/uploads", json!({ "bytes": 5000, "filename": "a", "purpose": "batch", "mime_type": "text/csv" }))
            .post("/v1/containers", json!({ "name": "c" }))
            .upload("/v1/containers/<cntr 1>/files", &[], "file", "large.csv"),
        Case::new("storage_is_used_up")
            .settings(|settings| settings.storage = 4096 + 8)
            .upload("/v1/files", &[("purpose", "user_data")], "file", "data.csv")
            .post(RESPONSES, turn.clone())
            .post(CHAT, completion(&json!({}))),
        Case::new("workspace_is_full")
            .settings(|settings| settings.limits.disk = 4)
            .post("/v1/containers", json!({ "name": "c" }))
            .upload("/v1/containers/<cntr 1>/files", &[], "file", "data.csv"),
    ]
}

/// Files, uploads, containers, conversations, approvals.
fn of_objects() -> Vec<Case> {
    let upload = |fields: &Value| {
        with(fields, json!({ "bytes": 1, "filename": "a", "purpose": "batch", "mime_type": "text/csv" }))
    };
    let without = |mut value: Value, name: &str| {
        value.as_object_mut().unwrap().remove(name);
        value
    };
    let container = |fields: &Value| with(fields, json!({ "name": "c" }));
    let item = |item: &Value| json!({ "items": [item] });
    let long = "x".repeat(600);
    vec![
        Case::new("pages")
            .get("/v1/files?limit=0")
            .get("/v1/files?limit=10001")
            .get("/v1/files?order=up")
            .get("/v1/containers?limit=101")
            .get("/v1/containers?limit=x")
            .get("/v1/approvals?status=odd")
            .get("/v1/containers?%FF=%FE"),
        Case::new("files")
            .post("/v1/files", json!({}))
            .form("/v1/files", &[("purpose", "user_data")])
            .upload("/v1/files", &[], "file", "data.csv")
            .upload("/v1/files", &[("purpose", "odd")], "file", "data.csv")
            .upload("/v1/files", &[("purpose", "batch"), ("expires_after[seconds]", "1")], "file", "data.csv")
            .upload("/v1/files", &[("purpose", "batch"), ("expires_after[seconds]", "x")], "file", "data.csv")
            .upload(
                "/v1/files",
                &[("purpose", "batch"), ("expires_after[anchor]", "now"), ("expires_after[seconds]", "3600")],
                "file",
                "data.csv",
            )
            .upload("/v1/files", &[("purpose", "batch"), ("file", "text")], "file", "data.csv")
            .upload("/v1/files", &[("purpose", &"x".repeat(70_000))], "file", "data.csv")
            .upload("/v1/files", &[("purpose", "batch")], "file", "../data.csv")
            .upload("/v1/files", &[("purpose", "batch")], "file", "/etc/passwd")
            .upload("/v1/files", &[("purpose", "batch")], "file", "a//b")
            .upload("/v1/files", &[("purpose", "batch")], "file", "a\\b")
            .upload("/v1/files", &[("purpose", "batch")], "file", "__pycache__/x.pyc")
            .post_bytes("/v1/files", "--b\r\nno form")
            .header("content-type", "multipart/form-data; boundary=b")
            .post_bytes("/v1/files", "--b--")
            .header("content-type", "multipart/form-data")
            .form("/v1/files", &[("a", "b"); 65])
            .get("/v1/files/file-1")
            .get("/v1/files/other")
            .get("/v1/files/file-1/content")
            .delete("/v1/files/file-1"),
        Case::new("uploads")
            .post_each(
                "/v1/uploads",
                [
                    json!({}),
                    without(upload(&json!({})), "bytes"),
                    without(upload(&json!({})), "purpose"),
                    without(upload(&json!({})), "mime_type"),
                    upload(&json!({ "bytes": "many" })),
                    upload(&json!({ "bytes": 9_000_000_000_u64 })),
                    upload(&json!({ "filename": "../a" })),
                    upload(&json!({ "purpose": "odd" })),
                    upload(&json!({ "expires_after": { "anchor": "created_at", "seconds": 1 } })),
                    upload(&json!({ "expires_after": { "anchor": "now", "seconds": 3600 } })),
                    upload(&json!({ "expires_after": 3 })),
                    upload(&json!({})),
                ],
            )
            .post("/v1/uploads/upload_1/parts", json!({}))
            .post("/v1/uploads/upload_1/complete", json!({}))
            .post("/v1/uploads/odd/cancel", json!({}))
            .post("/v1/uploads/<upload 1>/parts", json!({}))
            .form("/v1/uploads/<upload 1>/parts", &[])
            .post_each(
                "/v1/uploads/<upload 1>/complete",
                [json!({}), json!({ "part_ids": [] }), json!({ "part_ids": ["part_1"] }), json!({ "part_ids": 3 })],
            ),
        Case::new("containers")
            .post_each(
                "/v1/containers",
                [
                    json!({}),
                    container(&json!({ "name": 3 })),
                    container(&json!({ "name": "x".repeat(257) })),
                    container(&json!({ "file_ids": ["odd"] })),
                    container(&json!({ "file_ids": ["file-1"] })),
                    container(&json!({ "file_ids": "file-1" })),
                    container(&json!({ "file_ids": many(51, &json!("file-1")) })),
                    container(&json!({ "memory_limit": "2g" })),
                    container(&json!({ "memory_limit": "4g" })),
                    container(&json!({ "network_policy": { "type": "allowlist", "allowed_domains": ["a.com"] } })),
                    container(&json!({ "network_policy": { "type": "odd" } })),
                    container(&json!({ "skills": [{ "type": "skill_reference" }] })),
                    container(&json!({ "expires_after": { "anchor": "last_active_at", "minutes": 0 } })),
                    container(&json!({ "expires_after": { "anchor": "last_active_at", "minutes": 20_000 } })),
                    container(&json!({ "expires_after": { "anchor": "created_at", "minutes": 1 } })),
                    container(&json!({})),
                ],
            )
            .get("/v1/containers/cntr_1")
            .get("/v1/containers/odd")
            .delete("/v1/containers/cntr_1")
            .get("/v1/containers/cntr_1/files")
            .get("/v1/containers/<cntr 1>/files/cfile_1")
            .get("/v1/containers/<cntr 1>/files/odd/content")
            .delete("/v1/containers/<cntr 1>/files/cfile_1")
            .post("/v1/containers/cntr_1/files", json!({ "file_id": "file-1" }))
            .post_each(
                "/v1/containers/<cntr 1>/files",
                [json!({}), json!({ "file_id": 3 }), json!({ "file_id": "odd" }), json!({ "file_id": "file-1" })],
            )
            .form("/v1/containers/<cntr 1>/files", &[])
            .form("/v1/containers/<cntr 1>/files", &[("file_id", "file-1")])
            .upload("/v1/containers/<cntr 1>/files", &[], "file", "../x"),
        Case::new("conversations")
            .post_each(
                "/v1/conversations",
                [
                    json!({ "metadata": 3 }),
                    json!({ "metadata": { "a": 3 } }),
                    json!({ "metadata": { "a": long } }),
                    json!({ "items": 3 }),
                    item(&json!("text")),
                    item(&json!({})),
                    item(&json!({ "type": "message" })),
                    item(&json!({ "type": 3 })),
                    item(&json!({ "role": "user" })),
                    item(&json!({ "role": "user", "content": 3 })),
                    item(&json!({ "role": "user", "content": "a", "id": "x".repeat(65) })),
                    json!({ "items": many(21, &json!({ "role": "user", "content": "a" })) }),
                    json!({}),
                ],
            )
            .post("/v1/conversations/<conv 1>", json!({ "metadata": "x" }))
            .post("/v1/conversations/<conv 1>/items", json!({}))
            .get("/v1/conversations/<conv 1>/items/msg_1")
            .get("/v1/conversations/<conv 1>/items?after=msg_1")
            .delete("/v1/conversations/<conv 1>/items/msg_1")
            .get("/v1/conversations/conv_1")
            .get("/v1/conversations/odd")
            .get("/v1/conversations/conv_1/items")
            .get("/v1/conversations/conv_1/items/msg_1")
            .post("/v1/conversations/conv_1", json!({}))
            .post("/v1/conversations/conv_1/items", item(&json!({ "role": "user", "content": "a" })))
            .delete("/v1/conversations/conv_1"),
        Case::new("approvals").get("/v1/approvals/appr_1").get("/v1/approvals/odd").post_each(
            "/v1/approvals/appr_1",
            [
                json!({}),
                json!({ "decision": "maybe" }),
                json!({ "decision": "approve" }),
                json!({ "decision": "approve", "sha256": 3 }),
                json!({ "decision": "refuse", "sha256": "0", "reason": "x".repeat(5000) }),
                json!({ "decision": "refuse", "sha256": "0" }),
            ],
        ),
    ]
}

fn of_responses() -> Vec<Case> {
    let message = |content: &Value| json!({ "input": [{ "role": "user", "content": content }] });
    let part = |part: &Value| message(&json!([part]));
    let tools = |tool: &Value| json!({ "tools": [tool] });
    let container = |container: &Value| json!({ "tools": in_container(container) });
    let mcp = |fields: &Value| {
        tools(&with(fields, json!({ "type": "mcp", "server_label": "py", "server_url": "http://<host>/mcp" })))
    };
    let choice = |choice: &Value| json!({ "tool_choice": choice });
    let format = |format: &Value| json!({ "text": { "format": format } });
    let cases = |name, bodies: Vec<Value>| Case::new(name).post_each(RESPONSES, bodies.iter().map(response));
    vec![
        cases(
            "responses",
            vec![
                json!({ "model": null }),
                json!({ "model": 3 }),
                json!({ "model": "other" }),
                json!({ "model": "other", "stream": true }),
                json!({ "input": null }),
                json!({ "input": 3 }),
                json!({ "instructions": 3 }),
                json!({ "previous_response_id": "odd" }),
                json!({ "previous_response_id": "resp_1" }),
                json!({ "conversation": "odd" }),
                json!({ "conversation": "conv_1" }),
                json!({ "conversation": 3 }),
                json!({ "conversation": "conv_1", "previous_response_id": "resp_1" }),
                json!({ "store": "yes" }),
                json!({ "background": 1 }),
                json!({ "stream": "yes" }),
                json!({ "max_tool_calls": -1 }),
                json!({ "max_output_tokens": "x" }),
                json!({ "temperature": 3 }),
                json!({ "prompt": { "id": "pmpt_1" }, "model": null }),
                json!({ "moderation": { "model": "m" } }),
                json!({ "temperature": "hot" }),
                json!({ "top_p": -1 }),
                json!({ "reasoning": "hard" }),
                json!({ "include": "all" }),
                json!({ "metadata": { "a": 3 } }),
                json!({ "parallel_tool_calls": "no" }),
                json!({ "text": 3 }),
                format(&json!({ "type": "xml" })),
                format(&json!({})),
                format(&json!({ "type": "json_schema" })),
                format(&json!({ "type": "json_schema", "name": "n" })),
            ],
        )
        .get("/v1/responses/resp_1")
        .get("/v1/responses/odd")
        .get("/v1/responses/resp_1?stream=true")
        .get("/v1/responses/resp_1?stream=true&starting_after=x")
        .get("/v1/responses/resp_1/input_items")
        .post("/v1/responses/resp_1/cancel", json!({}))
        .delete("/v1/responses/resp_1")
        .post("/v1/responses/input_tokens", response(&json!({ "previous_response_id": "resp_1" })))
        .model([says("Here.")])
        .post(RESPONSES, response(&json!({})))
        .get("/v1/responses/<resp 1>/input_items?limit=0")
        .get("/v1/responses/<resp 1>/input_items?after=none"),
        cases(
            "input_items",
            vec![
                json!({ "input": ["text"] }),
                json!({ "input": [{}] }),
                json!({ "input": [{ "role": "user" }] }),
                json!({ "input": [{ "type": "message", "content": "a" }] }),
                json!({ "input": [{ "role": "odd", "content": "a" }] }),
                json!({ "input": [{ "type": "odd" }] }),
                json!({ "input": [{ "type": "item_reference", "id": "msg_1" }] }),
                json!({ "input": [{ "role": "user", "content": "a", "id": 3 }] }),
                json!({ "input": [{ "type": "function_call_output", "call_id": "c", "output": "1" }] }),
                json!({ "input": many(10_001, &json!(0)) }),
                part(&json!({ "type": "odd" })),
                part(&json!("text")),
                part(&json!({ "type": "input_image" })),
                part(&json!({ "type": "input_image", "file_id": "file-1" })),
                part(&json!({ "type": "input_image", "image_url": "data:image/png;base64,?" })),
                part(&json!({ "type": "input_file" })),
                part(&json!({ "type": "input_file", "file_id": "file-1" })),
                part(&json!({ "type": "input_file", "file_url": "https://example.com/a" })),
                with(
                    &part(&json!({ "type": "input_file", "filename": "../a", "file_data": "AA==" })),
                    container(&json!({ "type": "auto" })),
                ),
            ],
        ),
        cases(
            "tools",
            vec![
                json!({ "tools": 3 }),
                json!({ "tools": many(257, &json!({})) }),
                tools(&json!({})),
                tools(&json!({ "type": "web_search" })),
                tools(&json!({ "type": "code_interpreter" })),
                container(&json!(3)),
                container(&json!("odd")),
                container(&json!("cntr_1")),
                container(&json!({})),
                container(&json!({ "type": "odd" })),
                container(&json!({ "type": "auto", "color": "red" })),
                container(&json!({ "type": "auto", "file_ids": "file-1" })),
                container(&json!({ "type": "auto", "file_ids": ["odd"] })),
                container(&json!({ "type": "auto", "file_ids": ["file-1"] })),
                container(&json!({ "type": "auto", "file_ids": many(51, &json!("file-1")) })),
                container(&json!({ "type": "auto", "memory_limit": "2g" })),
                container(&json!({ "type": "auto", "memory_limit": "64g" })),
                container(&json!({ "type": "auto", "network_policy": { "type": "allowlist" } })),
                tools(&json!({ "type": "function" })),
                tools(&json!({ "type": "function", "name": "" })),
                tools(&json!({ "type": "function", "name": "a b" })),
                tools(&json!({ "type": "mcp" })),
                tools(&json!({ "type": "mcp", "server_label": "py" })),
                mcp(&json!({ "server_url": "https://example.com/mcp" })),
                mcp(&json!({ "require_approval": 3 })),
                mcp(&json!({ "require_approval": "sometimes" })),
                choice(&json!("odd")),
                choice(&json!(3)),
                choice(&json!({})),
                choice(&json!({ "type": "odd" })),
                choice(&json!({ "type": "code_interpreter" })),
                choice(&json!({ "type": "mcp" })),
                choice(&json!({ "type": "function" })),
                choice(&json!({ "type": "function", "name": "f" })),
            ],
        ),
    ]
}

fn of_chat() -> Vec<Case> {
    let messages = |message: &Value| json!({ "messages": [message] });
    let part = |part: &Value| messages(&json!({ "role": "user", "content": [part] }));
    let call = |call: &Value| messages(&json!({ "role": "assistant", "tool_calls": [call] }));
    let tools = |tool: &Value| json!({ "tools": [{ "type": "code_interpreter" }, tool] });
    let choice = |choice: &Value| json!({ "tool_choice": choice });
    let whole_call = json!({ "id": "c", "function": { "name": "f", "arguments": "{}" } });
    let cases = |name, bodies: Vec<Value>| Case::new(name).post_each(CHAT, bodies.iter().map(completion));
    vec![
        cases(
            "chat",
            vec![
                json!({ "model": null }),
                json!({ "model": 3 }),
                json!({ "model": "other" }),
                json!({ "model": "other", "tools": null }),
                json!({ "model": 3, "tools": null }),
                json!({ "model": "other", "stream": true }),
                json!({ "messages": null }),
                json!({ "messages": 3 }),
                json!({ "messages": [] }),
                json!({ "messages": many(10_001, &json!(0)) }),
                json!({ "logprobs": true }),
                json!({ "top_logprobs": 2 }),
                json!({ "audio": {} }),
                json!({ "prediction": {} }),
                json!({ "functions": [] }),
                json!({ "function_call": "auto" }),
                json!({ "modalities": ["text", "audio"] }),
                json!({ "temperature": 3 }),
                json!({ "top_p": 2 }),
                json!({ "max_tokens": "x" }),
                json!({ "max_completion_tokens": -1 }),
                json!({ "n": 0 }),
                json!({ "n": 9 }),
                json!({ "n": "two" }),
                json!({ "stop": ["1", "2", "3", "4", "5"] }),
                json!({ "stop": 3 }),
                json!({ "stream": "yes" }),
                json!({ "stream_options": 3 }),
                json!({ "response_format": { "type": "xml" } }),
                json!({ "response_format": { "type": "json_schema" } }),
                json!({ "parallel_tool_calls": "no" }),
                json!({ "reasoning_effort": 3 }),
            ],
        ),
        cases(
            "messages",
            vec![
                messages(&json!("text")),
                messages(&json!({})),
                messages(&json!({ "role": "odd", "content": "a" })),
                messages(&json!({ "role": "user" })),
                messages(&json!({ "role": "user", "content": 3 })),
                messages(&json!({ "role": "tool", "content": "a" })),
                messages(&json!({ "role": "tool", "tool_call_id": "c", "content": "a" })),
                call(&json!({})),
                call(&json!({ "id": "c" })),
                call(&whole_call),
                messages(&json!({ "role": "assistant", "tool_calls": [whole_call, whole_call] })),
                part(&json!({ "type": "odd" })),
                part(&json!("text")),
                part(&json!({ "type": "image_url" })),
                part(&json!({ "type": "file" })),
                part(&json!({ "type": "file", "file": { "filename": "a.csv" } })),
                part(&json!({ "type": "file", "file": { "filename": "a.csv", "file_data": "?" } })),
                part(&json!({ "type": "file", "file": { "filename": "../a", "file_data": "AA==" } })),
                part(&json!({ "type": "file", "file": { "file_id": "file-1" } })),
            ],
        ),
        cases(
            "chat_tools",
            vec![
                json!({ "tools": vec![json!({ "type": "code_interpreter" }); 257] }),
                tools(&json!({ "type": "code_interpreter" })),
                tools(&json!({ "type": "web_search" })),
                tools(&json!({})),
                tools(&json!({ "type": "function" })),
                tools(&json!({ "type": "function", "function": {} })),
                tools(&json!({ "type": "function", "function": { "name": "a b" } })),
                json!({ "tools": in_container(&json!(3)) }),
                json!({ "tools": in_container(&json!("odd")) }),
                json!({ "tools": in_container(&json!("cntr_1")) }),
                json!({ "tools": in_container(&json!({ "type": "odd" })) }),
                choice(&json!("odd")),
                choice(&json!(3)),
                choice(&json!({})),
                choice(&json!({ "type": "odd" })),
                choice(&json!({ "type": "function" })),
                choice(&json!({ "type": "function", "function": { "name": "f" } })),
            ],
        ),
        Case::new("chat_without_tools").passes_nothing().post(
            CHAT,
            json!({ "model": "m", "messages": [{ "role": "user", "content": "Go" }], "tool_choice": "required" }),
        ),
    ]
}
