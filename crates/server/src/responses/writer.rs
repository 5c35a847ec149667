//! From what happens in a turn to the events that clients know, and to the items that stay.
//!
//! The set of events is closed: some clients fail on one that they do not know. An item has the same id in all of its events.

use std::collections::HashMap;

use aludel_agent::upstream::Usage;
use aludel_engine::SessionFile;
use aludel_store::fresh_id;
use serde_json::{Map, Value, json};

use super::ask::Include;
use super::context::{digest_of, wrapped};
use crate::turn::{Ended, Told};

/// A response that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    /// The fields that do not change.
    base: Map<String, Value>,
    include: Include,
    /// What the client calls us if programs are calls of an MCP server.
    mcp: Option<String>,
    container: Option<String>,
    sequence: u64,
    output: Vec<Value>,
    /// The message that is being written, by its place.
    message: Option<usize>,
    thoughts: Option<usize>,
    /// Programs, by the call that they belong to.
    programs: HashMap<String, Program>,
    /// Files that were made and are not cited yet.
    uncited: Vec<SessionFile>,
    usage: Usage,
    events: Vec<Told>,
}

#[derive(Debug)]
struct Program {
    place: usize,
    code: String,
    is_written: bool,
    is_running: bool,
}

/// How a response stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Status {
    Queued,
    InProgress,
    Completed,
    Incomplete(&'static str),
    Failed { code: &'static str, message: String },
    Cancelled,
}

impl Status {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Whether a call was a request for approval in an earlier response.
pub(super) fn is_approval(call_id: &str) -> bool {
    call_id.starts_with("mcpr_")
}

/// An event as it stands in a stream of this protocol.
pub(super) fn framed(told: &Told) -> String {
    format!("event: {}\ndata: {}\n\n", told.kind, told.text)
}

impl Writer {
    pub(super) fn new(base: Map<String, Value>, include: Include, mcp: Option<String>) -> Self {
        Self {
            base,
            include,
            mcp,
            container: None,
            sequence: 0,
            output: Vec::new(),
            message: None,
            thoughts: None,
            programs: HashMap::new(),
            uncited: Vec::new(),
            usage: Usage::default(),
            events: Vec::new(),
        }
    }

    /// Where programs run.
    pub(super) fn set_container(&mut self, id: String) {
        self.container = Some(id);
    }

    /// Goes on where another one stopped: with these items, of which the last is a program that did not run yet.
    pub(super) fn restore(&mut self, output: Vec<Value>, usage: Usage, sequence: u64, call_id: &str) {
        let place = output.len().saturating_sub(1);
        let code = output.last().and_then(|item| item.get("code")?.as_str()).unwrap_or_default().to_owned();
        let program = Program { place, code, is_written: true, is_running: false };
        self.programs.insert(call_id.to_owned(), program);
        (self.output, self.usage, self.sequence) = (output, usage, sequence);
    }

    /// The events since this was last asked.
    pub(super) fn take_events(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.events)
    }

    /// Whether nothing was written yet.
    pub(super) fn is_empty(&self) -> bool {
        self.output.is_empty()
    }

    /// The items so far, with everything that programs put out.
    pub(super) fn output(&self) -> &[Value] {
        &self.output
    }

    pub(super) fn use_tokens(&mut self, usage: Usage) {
        self.usage += usage;
    }

    /// The response as it stands, with everything that programs put out.
    pub(super) fn object(&self, status: &Status) -> Value {
        let mut object = self.base.clone();
        let ended = !matches!(status, Status::Queued | Status::InProgress);
        object.insert("status".into(), status.word().into());
        let completed_at = (*status == Status::Completed).then(aludel_store::now);
        object.insert("completed_at".into(), json!(completed_at));
        object.insert("output".into(), Value::Array(self.output.clone()));
        // Also before the end, as soon as there is any: what was used counts after a restart.
        let is_known = ended || self.usage != Usage::default();
        object.insert("usage".into(), if is_known { usage_of(&self.usage) } else { Value::Null });
        object.insert(
            "error".into(),
            match status {
                Status::Failed { code, message } => json!({ "code": code, "message": message }),
                _ => Value::Null,
            },
        );
        object.insert(
            "incomplete_details".into(),
            match status {
                Status::Incomplete(reason) => json!({ "reason": reason }),
                _ => Value::Null,
            },
        );
        Value::Object(object)
    }

    /// Tells of the response itself.
    pub(super) fn tell_of_response(&mut self, kind: &str, status: &Status) {
        let response = shown(self.object(status), self.include);
        self.tell(kind, json!({ "response": response }));
    }

    fn tell(&mut self, kind: &str, mut fields: Value) {
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("type".into(), kind.into());
            fields.insert("sequence_number".into(), self.sequence.into());
        }
        self.events.push(Told { sequence: self.sequence, kind: kind.to_owned(), text: fields.to_string() });
        self.sequence += 1;
    }

    fn tell_of_item(&mut self, kind: &str, place: usize) {
        let Some(item) = self.output.get(place) else { return };
        let item = shown_item(item.clone(), self.include);
        self.tell(kind, json!({ "output_index": place, "item": item }));
    }

    fn id_at(&self, place: usize) -> Value {
        self.output.get(place).and_then(|item| item.get("id")).cloned().unwrap_or_default()
    }

    fn set(&mut self, place: usize, field: &str, value: Value) {
        if let Some(item) = self.output.get_mut(place).and_then(Value::as_object_mut) {
            item.insert(field.to_owned(), value);
        }
    }

    fn start(&mut self, item: Value) -> usize {
        self.output.push(item);
        let place = self.output.len() - 1;
        self.tell_of_item("response.output_item.added", place);
        place
    }

    /// The model writes.
    pub(super) fn text(&mut self, delta: &str) {
        self.end_thoughts();
        let place = match self.message {
            Some(place) => place,
            None => self.start_message(),
        };
        if let Some(Value::String(text)) =
            self.output.get_mut(place).and_then(|item| item.pointer_mut("/content/0/text"))
        {
            text.push_str(delta);
        }
        let id = self.id_at(place);
        self.tell(
            "response.output_text.delta",
            json!({ "item_id": id, "output_index": place, "content_index": 0, "delta": delta, "logprobs": [] }),
        );
    }

    fn start_message(&mut self) -> usize {
        let id = fresh_id("msg_");
        let place = self
            .start(json!({ "id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": [] }));
        let part = json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
        self.set(place, "content", json!([part]));
        self.tell(
            "response.content_part.added",
            json!({ "item_id": id, "output_index": place, "content_index": 0, "part": part }),
        );
        self.message = Some(place);
        place
    }

    /// Ends the message that is being written. `files` are those that a link in it may mean; the last message of a response cites
    /// everything that was made and not linked, too.
    fn end_message(&mut self, files: &[SessionFile], is_last: bool, status: &str) {
        let Some(place) = self.message.take() else { return };
        let id = self.id_at(place);
        let text =
            self.output.get(place).and_then(|item| item.pointer("/content/0/text")?.as_str()).unwrap_or_default();
        let text = text.to_owned();
        let mut annotations = Vec::new();
        let container = self.container.clone().unwrap_or_default();
        let mut linked = Vec::new();
        for (start, end, file) in links(&text, files) {
            linked.push((start, end, file.clone()));
        }
        self.uncited.retain(|file| !linked.iter().any(|(_, _, linked)| linked.id == file.id));
        if is_last {
            annotations.extend(self.uncited.drain(..).map(|file| citation(&container, &file, 0, 0)));
        }
        annotations.extend(linked.iter().map(|(start, end, file)| citation(&container, file, *start, *end)));
        for (index, annotation) in annotations.iter().enumerate() {
            self.tell(
                "response.output_text.annotation.added",
                json!({
                    "item_id": id, "output_index": place, "content_index": 0, "annotation_index": index,
                    "annotation": annotation,
                }),
            );
        }
        self.tell(
            "response.output_text.done",
            json!({ "item_id": id, "output_index": place, "content_index": 0, "text": text, "logprobs": [] }),
        );
        let part = json!({ "type": "output_text", "text": text, "annotations": annotations, "logprobs": [] });
        self.set(place, "content", json!([part]));
        self.set(place, "status", status.into());
        self.tell(
            "response.content_part.done",
            json!({ "item_id": id, "output_index": place, "content_index": 0, "part": part }),
        );
        self.tell_of_item("response.output_item.done", place);
    }

    /// The model thinks aloud.
    pub(super) fn think(&mut self, delta: &str) {
        self.end_message(&[], false, "completed");
        let place = match self.thoughts {
            Some(place) => place,
            None => {
                let item =
                    json!({ "id": fresh_id("rs_"), "type": "reasoning", "summary": [], "status": "in_progress" });
                let place = self.start(item);
                self.set(place, "content", json!([{ "type": "reasoning_text", "text": "" }]));
                self.thoughts = Some(place);
                place
            }
        };
        if let Some(Value::String(text)) =
            self.output.get_mut(place).and_then(|item| item.pointer_mut("/content/0/text"))
        {
            text.push_str(delta);
        }
    }

    fn end_thoughts(&mut self) {
        let Some(place) = self.thoughts.take() else { return };
        let text =
            self.output.get(place).and_then(|item| item.pointer("/content/0/text")?.as_str()).unwrap_or_default();
        let wrapped = wrapped(text);
        self.set(place, "encrypted_content", wrapped.into());
        self.set(place, "status", "completed".into());
        self.tell_of_item("response.output_item.done", place);
    }

    /// The model begins a program. `files` are those that a message before it may link.
    pub(super) fn start_program(&mut self, call_id: &str, files: &[SessionFile]) {
        self.end_thoughts();
        self.end_message(files, false, "completed");
        if self.mcp.is_some() {
            // Told when it is known whether it has to wait.
            return;
        }
        let item = json!({
            "id": fresh_id("ci_"), "type": "code_interpreter_call", "status": "in_progress", "code": "",
            "container_id": self.container, "outputs": [],
        });
        let place = self.start(item);
        self.tell_of_program("in_progress", place);
        let program = Program { place, code: String::new(), is_written: false, is_running: false };
        self.programs.insert(call_id.to_owned(), program);
    }

    fn tell_of_program(&mut self, what: &str, place: usize) {
        let id = self.id_at(place);
        self.tell(&format!("response.code_interpreter_call.{what}"), json!({ "output_index": place, "item_id": id }));
    }

    /// The model goes on writing a program.
    pub(super) fn code(&mut self, call_id: &str, delta: &str) {
        let Some(program) = self.programs.get_mut(call_id) else { return };
        program.code.push_str(delta);
        let place = program.place;
        let id = self.id_at(place);
        self.tell(
            "response.code_interpreter_call_code.delta",
            json!({ "output_index": place, "item_id": id, "delta": delta }),
        );
    }

    /// The program is complete; this is what is run.
    pub(super) fn code_done(&mut self, call_id: &str, code: &str) {
        let Some(program) = self.programs.get_mut(call_id).filter(|program| !program.is_written) else { return };
        program.is_written = true;
        code.clone_into(&mut program.code);
        let place = program.place;
        let id = self.id_at(place);
        self.set(place, "code", code.into());
        self.tell(
            "response.code_interpreter_call_code.done",
            json!({ "output_index": place, "item_id": id, "code": code }),
        );
    }

    /// A program that was approved, or need not be, is about to run.
    pub(super) fn start_mcp_call(&mut self, call_id: &str, code: &str) {
        let Some(label) = self.mcp.clone() else { return };
        let arguments = json!({ "code": code }).to_string();
        let request = is_approval(call_id).then_some(call_id);
        let id = fresh_id("mcp_");
        let place = self.start(json!({
            "id": id, "type": "mcp_call", "status": "in_progress", "server_label": label, "name": "python",
            "arguments": "", "output": null, "error": null, "approval_request_id": request,
            // Not of the protocol, and sent back by clients: what comes later goes on in the same place.
            "container_id": self.container,
        }));
        self.tell("response.mcp_call.in_progress", json!({ "output_index": place, "item_id": id }));
        let fields = json!({ "output_index": place, "item_id": id, "arguments": arguments });
        self.tell("response.mcp_call_arguments.done", fields);
        self.set(place, "arguments", arguments.into());
        let program = Program { place, code: code.to_owned(), is_written: true, is_running: true };
        self.programs.insert(call_id.to_owned(), program);
    }

    /// A program waits for approval.
    pub(super) fn ask_for_approval(&mut self, call: &aludel_agent::Call) {
        self.end_thoughts();
        let id = format!("{}{}", fresh_id("mcpr_").get(..29).unwrap_or("mcpr_"), digest_of(&call.arguments));
        let place = self.start(json!({
            "id": id, "type": "mcp_approval_request", "server_label": self.mcp, "name": "python",
            "arguments": call.arguments, "container_id": self.container,
        }));
        self.tell_of_item("response.output_item.done", place);
    }

    /// The program runs.
    pub(super) fn run_program(&mut self, call_id: &str) {
        let Some(program) = self.programs.get_mut(call_id).filter(|program| !program.is_running) else { return };
        program.is_running = true;
        let place = program.place;
        self.set(place, "status", "interpreting".into());
        self.tell_of_program("interpreting", place);
    }

    /// The program ended.
    pub(super) fn end_program(&mut self, call_id: &str, ended: Ended) {
        let Some(program) = self.programs.remove(call_id) else { return };
        let outputs = ended.outputs();
        let Ended { status, logs, made, images: _ } = ended;
        for file in made {
            self.uncited.retain(|known| known.path != file.path);
            self.uncited.push(file);
        }
        if self.mcp.is_some() {
            return self.end_mcp_call(&program, status, &logs);
        }
        self.set(program.place, "code", program.code.into());
        self.set(program.place, "outputs", Value::Array(outputs));
        self.set(program.place, "status", status.into());
        if status == "completed" {
            self.tell_of_program("completed", program.place);
        }
        self.tell_of_item("response.output_item.done", program.place);
    }

    fn end_mcp_call(&mut self, program: &Program, status: &str, logs: &str) {
        let (what, field) = if status == "completed" { ("completed", "output") } else { ("failed", "error") };
        self.set(program.place, field, logs.into());
        self.set(program.place, "status", status.into());
        let id = self.id_at(program.place);
        self.tell(&format!("response.mcp_call.{what}"), json!({ "output_index": program.place, "item_id": id }));
        self.tell_of_item("response.output_item.done", program.place);
    }

    /// A call of a function of the client's.
    pub(super) fn function_call(&mut self, call: &aludel_agent::Call) {
        self.end_thoughts();
        let id = fresh_id("fc_");
        let place = self.start(json!({
            "id": id, "type": "function_call", "status": "in_progress", "call_id": call.id, "name": call.name, "arguments": "",
        }));
        let arguments = &call.arguments;
        let fields = json!({ "item_id": id, "output_index": place, "delta": arguments });
        self.tell("response.function_call_arguments.delta", fields);
        let fields = json!({ "item_id": id, "output_index": place, "name": call.name, "arguments": arguments });
        self.tell("response.function_call_arguments.done", fields);
        self.set(place, "arguments", arguments.clone().into());
        self.set(place, "status", "completed".into());
        self.tell_of_item("response.output_item.done", place);
    }

    /// Ends whatever is open. Files that were made are cited by the last message; there is one even if the model wrote none, for a client
    /// that sees none asks again.
    pub(super) fn finish(&mut self, status: &Status, files: &[SessionFile], needs_message: bool) {
        let item_status = if *status == Status::Completed { "completed" } else { "incomplete" };
        self.end_thoughts();
        let open: Vec<String> = self.programs.keys().cloned().collect();
        for call_id in open {
            self.end_program(&call_id, Ended::incomplete());
        }
        if self.message.is_none() && needs_message {
            self.start_message();
        }
        self.end_message(files, true, item_status);
    }

    /// Tells how it ended. Nothing comes after it.
    pub(super) fn end(&mut self, status: &Status) {
        let kind = match status {
            Status::Failed { .. } => "response.failed",
            Status::Completed => "response.completed",
            // There is no event for a response that was cancelled; its object says it.
            Status::Incomplete(_) | Status::Cancelled | Status::Queued | Status::InProgress => "response.incomplete",
        };
        self.tell_of_response(kind, status);
    }
}

/// The response as a client gets it: with the programs' output and the wrapped thoughts only if it asked for them.
pub(super) fn shown(mut object: Value, include: Include) -> Value {
    for item in object.get_mut("output").and_then(Value::as_array_mut).into_iter().flatten() {
        *item = shown_item(item.take(), include);
    }
    object
}

/// One item, the same way.
pub(super) fn shown_item(mut item: Value, include: Include) -> Value {
    let kind = item.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_open = item.get("status").is_some_and(|status| status == "in_progress");
    if let Some(fields) = item.as_object_mut() {
        if kind == "code_interpreter_call" && !include.outputs && !is_open {
            fields.insert("outputs".into(), Value::Null);
        }
        if kind == "reasoning" && !include.reasoning {
            fields.remove("encrypted_content");
        }
    }
    item
}

fn usage_of(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "input_tokens_details": { "cached_tokens": usage.cached, "cache_write_tokens": 0 },
        "output_tokens": usage.output,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning },
        "total_tokens": usage.total(),
    })
}

/// Reads what [`usage_of`] wrote.
pub(super) fn read_usage(usage: &Value) -> Usage {
    let count = |path: &str| usage.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    Usage {
        input: count("/input_tokens"),
        cached: count("/input_tokens_details/cached_tokens"),
        output: count("/output_tokens"),
        reasoning: count("/output_tokens_details/reasoning_tokens"),
    }
}

fn citation(container: &str, file: &SessionFile, start: usize, end: usize) -> Value {
    json!({
        "type": "container_file_citation",
        "container_id": container,
        "file_id": file.id.as_str(),
        "filename": file.path.rsplit('/').next().unwrap_or(&file.path),
        "start_index": start,
        "end_index": end,
    })
}

/// The links `sandbox:/mnt/data/…` of a text that mean one of the files, with their offsets in characters, the end exclusive.
fn links<'a>(text: &str, files: &'a [SessionFile]) -> Vec<(usize, usize, &'a SessionFile)> {
    const SCHEME: &str = "sandbox:";
    let mut found = Vec::new();
    for (byte, _) in text.match_indices(SCHEME) {
        let Some(rest) = text.get(byte + SCHEME.len()..) else { continue };
        // The longest path that fits: one file's name may begin with another's.
        let file = files.iter().filter(|file| rest.starts_with(&file.path)).max_by_key(|file| file.path.len());
        let Some(file) = file else { continue };
        let start = text.get(..byte).map_or(0, |before| before.chars().count());
        let end = start + SCHEME.len() + file.path.chars().count();
        found.push((start, end, file));
    }
    found
}

#[cfg(test)]
mod tests {
    use aludel_store::{ContainerFileId, Source};

    use super::*;

    fn file(path: &str) -> SessionFile {
        SessionFile {
            id: ContainerFileId::new(),
            path: format!("/mnt/data/{path}"),
            bytes: 1,
            mime: "text/csv".into(),
            source: Source::Assistant,
            created_at: 0,
        }
    }

    fn types(writer: &mut Writer) -> Vec<String> {
        let events = writer.take_events();
        for (number, told) in events.iter().enumerate() {
            let event: Value = serde_json::from_str(&told.text).unwrap();
            assert_eq!(
                (event["type"].as_str(), event["sequence_number"].as_u64()),
                (Some(&*told.kind), Some(number as u64))
            );
        }
        events.into_iter().map(|told| told.kind).collect()
    }

    #[test]
    fn links_are_counted_in_characters_and_mean_the_longest_name() {
        let files = [file("a.csv"), file("a.csv.gz"), file("ü b.csv")];
        let text =
            "It’s 😀 [x](sandbox:/mnt/data/a.csv.gz) and [y](sandbox:/mnt/data/ü b.csv), not sandbox:/mnt/data/none";
        let found = links(text, &files);
        let cut = |start, end| text.chars().skip(start).take(end - start).collect::<String>();
        assert_eq!(found.len(), 2);
        assert_eq!(cut(found[0].0, found[0].1), "sandbox:/mnt/data/a.csv.gz");
        assert_eq!(cut(found[1].0, found[1].1), "sandbox:/mnt/data/ü b.csv");
        assert_eq!((found[0].2, found[1].2), (&files[1], &files[2]));
    }

    #[test]
    fn one_program_and_an_answer_come_in_the_recorded_order() {
        let mut writer = Writer::new(Map::new(), Include::default(), None);
        writer.set_container("cntr_1".into());
        writer.tell_of_response("response.created", &Status::InProgress);
        writer.tell_of_response("response.in_progress", &Status::InProgress);
        writer.start_program("c", &[]);
        writer.code("c", "1+");
        writer.code("c", "1");
        writer.code_done("c", "1+1");
        writer.run_program("c");
        writer.run_program("c");
        let made = file("out.csv");
        let images = vec!["data:image/png;base64,AA==".into()];
        writer.end_program("c", Ended { status: "completed", images, logs: "2".into(), made: vec![made.clone()] });
        writer.text("It is ");
        writer.text("2.");
        writer.finish(&Status::Completed, &[made], true);
        writer.end(&Status::Completed);
        assert_eq!(
            types(&mut writer),
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.code_interpreter_call.in_progress",
                "response.code_interpreter_call_code.delta",
                "response.code_interpreter_call_code.delta",
                "response.code_interpreter_call_code.done",
                "response.code_interpreter_call.interpreting",
                "response.code_interpreter_call.completed",
                "response.output_item.done",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.delta",
                "response.output_text.annotation.added",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ]
        );
        let object = writer.object(&Status::Completed);
        assert_eq!(object["output"][1]["content"][0]["annotations"][0]["start_index"], 0);
        assert_eq!(object["output"][0]["outputs"][1]["logs"], "2");
        assert_eq!(shown(object, Include::default())["output"][0]["outputs"], Value::Null);
    }
}
