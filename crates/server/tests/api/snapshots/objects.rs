//! Models, files, uploads, containers, conversations: objects and lists.

use std::time::Duration;

use serde_json::json;

use super::case::{Body, Case, Shown};
use super::model::{runs, says};
use super::programs::{MAKES_FILE, SHOWS_IMAGE};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("server").get("/healthz").shown(Shown::AsItIs).get("/readyz").shown(Shown::AsItIs).get("/v1/models").get("/v1/models/m").keys(),
        Case::new("server_without_sandboxes").no_sandbox("no memory").get("/healthz").get("/readyz"),
        Case::new("files")
            .get("/v1/files")
            .upload("/v1/files", &[("purpose", "user_data")], "file", "data.csv")
            .upload(
                "/v1/files",
                &[
                    ("purpose", "vision"),
                    ("expires_after[anchor]", "created_at"),
                    ("expires_after[seconds]", "3600"),
                ],
                "file",
                "Ü 1.png",
            )
            .get("/v1/files/<file 1>")
            .get("/v1/files/<file 2>/content")
            .shown(Shown::AsItIs)
            .get("/v1/files")
            .get("/v1/files?order=asc&limit=1")
            .get("/v1/files?order=asc&limit=1&after=<file 1>")
            .get("/v1/files?purpose=vision")
            .delete("/v1/files/<file 1>")
            .get("/v1/files/<file 1>")
            .get("/v1/files/<file 1>/content")
            .delete("/v1/files/<file 1>"),
        Case::new("uploads")
            .post("/v1/uploads", upload(16))
            .upload("/v1/uploads/<upload 1>/parts", &[], "data", "1")
            .upload("/v1/uploads/<upload 1>/parts", &[], "data", "2")
            .post("/v1/uploads/<upload 1>/complete", json!({ "part_ids": ["<part 2>", "<part 1>"] }))
            .get("/v1/files/<file 1>/content")
            .shown(Shown::AsItIs)
            .post("/v1/uploads/<upload 1>/complete", json!({ "part_ids": ["<part 2>", "<part 1>"] }))
            .post("/v1/uploads/<upload 1>/cancel", json!({}))
            .upload("/v1/uploads/<upload 1>/parts", &[], "data", "3")
            .post("/v1/uploads", upload(1))
            .post("/v1/uploads/<upload 2>/cancel", json!({}))
            .post("/v1/uploads/<upload 2>/cancel", json!({}))
            .post("/v1/uploads/<upload 2>/complete", json!({ "part_ids": [] })),
        Case::new("containers")
            .get("/v1/containers")
            .upload("/v1/files", &[("purpose", "user_data")], "file", "data.csv")
            .post(
                "/v1/containers",
                json!({
                    "name": "first", "file_ids": ["<file 1>"], "memory_limit": "1g",
                    "expires_after": { "anchor": "last_active_at", "minutes": 5 }, "network_policy": { "type": "disabled" },
                    "skills": [],
                }),
            )
            .post("/v1/containers", json!({ "name": "second" }))
            .get("/v1/containers/<cntr 1>")
            .get("/v1/containers")
            .get("/v1/containers?name=second")
            .get("/v1/containers?order=asc&limit=1")
            .get("/v1/containers?order=asc&limit=1&after=<cntr 1>")
            .post("/v1/containers/<cntr 1>/files", json!({ "file_id": "<file 1>" }))
            .form("/v1/containers/<cntr 1>/files", &[("file_id", "<file 1>")])
            .upload("/v1/containers/<cntr 1>/files", &[], "file", "sub/other.csv")
            .get("/v1/containers/<cntr 1>/files?order=asc")
            .get("/v1/containers/<cntr 1>/files?limit=1")
            .get("/v1/containers/<cntr 1>/files/<cfile 1>")
            .get("/v1/containers/<cntr 1>/files/<cfile 1>/content")
            .shown(Shown::AsItIs)
            .delete("/v1/containers/<cntr 1>/files/<cfile 1>")
            .delete("/v1/containers/<cntr 1>/files/<cfile 1>")
            .get("/v1/containers/<cntr 1>/files/<cfile 1>")
            .get("/v1/containers/<cntr 1>/files/<cfile 1>/content")
            .get("/v1/containers/<cntr 2>/files/<cfile 2>")
            .delete("/v1/containers/<cntr 1>")
            .delete("/v1/containers/<cntr 1>")
            .get("/v1/containers/<cntr 1>")
            .get("/v1/containers/<cntr 1>/files"),
        Case::new("container_expires")
            .settings(|settings| settings.idle = Duration::from_secs(1))
            .model([runs(MAKES_FILE), says("Done."), runs("print(open('out.csv').read())"), says("Read.")])
            .post("/v1/responses", turn(&json!({ "type": "auto" })))
            .until("/v1/containers", "/data/0/status", "expired")
            .get("/v1/containers/<cntr 1>")
            .get("/v1/containers/<cntr 1>/files")
            .upload("/v1/containers/<cntr 1>/files", &[], "file", "late.csv")
            .post("/v1/responses", turn(&json!("<cntr 1>")))
            .post(
                "/v1/responses",
                json!({
                    "model": "m", "input": "And?", "previous_response_id": "<resp 1>",
                    "tools": [{ "type": "code_interpreter", "container": { "type": "auto" } }],
                    "include": ["code_interpreter_call.outputs"],
                }),
            ),
        Case::new("files_that_programs_make")
            .model([runs(MAKES_FILE), runs(SHOWS_IMAGE), says("Done.")])
            .post("/v1/responses", turn(&json!({ "type": "auto" })))
            .get("/v1/containers/<cntr 1>/files?order=asc")
            .get("/v1/containers/<cntr 1>/files/<cfile 1>/content")
            .shown(Shown::AsItIs)
            .delete("/v1/containers/<cntr 1>/files/<cfile 1>"),
        Case::new("conversations")
            .post("/v1/conversations", json!({}))
            .send("POST", "/v1/conversations", Body::Empty)
            .post(
                "/v1/conversations",
                json!({ "metadata": { "a": "b" }, "items": [
                    { "role": "user", "content": "Hello." },
                    { "role": "assistant", "content": "Hi." },
                    { "type": "message", "id": "msg_own", "role": "user", "content": [{ "type": "input_text", "text": "So?" }] },
                    { "type": "function_call_output", "call_id": "c", "output": "1" },
                    { "type": "of_another_kind", "x": 1 },
                ] }),
            )
            .get("/v1/conversations/<conv 3>")
            .get("/v1/conversations/<conv 3>/items?order=asc")
            .get("/v1/conversations/<conv 3>/items?limit=1")
            .get("/v1/conversations/<conv 3>/items?limit=1&after=msg_own")
            .get("/v1/conversations/<conv 3>/items/msg_own")
            .post("/v1/conversations/<conv 3>/items", json!({ "items": [{ "role": "user", "content": "More." }] }))
            .post("/v1/conversations/<conv 3>", json!({ "metadata": { "c": "d" } }))
            .delete("/v1/conversations/<conv 3>/items/msg_own")
            .get("/v1/conversations/<conv 3>/items/msg_own")
            .delete("/v1/conversations/<conv 3>")
            .get("/v1/conversations/<conv 3>"),
        Case::new("of_another_tenant")
            .keys()
            .model([says("Mine.")])
            .upload("/v1/files", &[("purpose", "user_data")], "file", "data.csv")
            .post("/v1/containers", json!({ "name": "mine", "file_ids": ["<file 1>"] }))
            .get("/v1/containers/<cntr 1>/files")
            .post("/v1/conversations", json!({}))
            .post("/v1/responses", json!({ "model": "m", "input": "Go" }))
            .post("/v1/uploads", upload(1))
            .get_as_other("/v1/files/<file 1>")
            .get_as_other("/v1/files")
            .get_as_other("/v1/containers/<cntr 1>")
            .get_as_other("/v1/containers/<cntr 1>/files/<cfile 1>/content")
            .get_as_other("/v1/conversations/<conv 1>")
            .get_as_other("/v1/responses/<resp 1>")
            .get_as_other("/v1/responses/<resp 1>?stream=true")
            .post("/v1/uploads/<upload 1>/cancel", json!({}))
            .header("authorization", "Bearer <other key>")
            .post("/v1/containers", json!({ "name": "theirs", "file_ids": ["<file 1>"] }))
            .header("authorization", "Bearer <other key>")
            .post("/v1/responses", json!({ "model": "m", "input": "Go", "previous_response_id": "<resp 1>" }))
            .header("authorization", "Bearer <other key>"),
    ]
}

fn upload(bytes: u64) -> serde_json::Value {
    json!({ "bytes": bytes, "filename": "data.csv", "purpose": "user_data", "mime_type": "text/csv" })
}

fn turn(container: &serde_json::Value) -> serde_json::Value {
    json!({ "model": "m", "input": "Go", "tools": [{ "type": "code_interpreter", "container": container }] })
}
