//! The writer of a response's events and items.
//!
//! The set of events is closed: some clients fail on an unknown one. An item has the same id in all of its events.

use std::collections::HashMap;

use aludel_agent::upstream::TokenUsage;
use aludel_engine::SessionFile;
use aludel_engine::sessions::{LINK, path_at};
use aludel_engine::turns::{Frame, ItemId, ToolCall};
use aludel_wire::openai::responses::{
    self, Annotation, CodeInterpreterCall, ContainerFileCitation, ContentPart, Event, FunctionCall, IncompleteDetails,
    InputTokensDetails, Item, ItemStatus, McpApprovalRequest, McpCall, Message, MessageContent, OutputText,
    OutputTokensDetails, Reasoning, ReasoningText, Response, ResponseError, Role, StreamEvent,
};

use super::context::digest_of;
use super::include::{Include, for_client, shown_item};
use super::request::PYTHON;
use crate::dialects::openai::program::ProgramEnd;
use crate::dialects::reasoning::wrapped;

/// A response that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    /// The response without its output.
    base: Response,
    include: Include,
    /// The client's name for this server if programs are calls of an MCP server.
    mcp: Option<String>,
    container: Option<String>,
    sequence: u64,
    output: Vec<Item>,
    /// The message that is being written, by its place.
    message: Option<usize>,
    reasoning: Option<usize>,
    /// Programs that have not ended.
    programs: HashMap<ItemId, Program>,
    /// Files that were made and are not cited yet.
    uncited: Vec<SessionFile>,
    usage: TokenUsage,
    frames: Vec<Frame>,
    /// Time of the event that is being rendered, seconds since 1970.
    now: i64,
}

#[derive(Debug)]
struct Program {
    index: usize,
    code: String,
    is_written: bool,
    is_running: bool,
}

/// The status of a response.
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
    fn on_the_wire(&self) -> responses::Status {
        match self {
            Self::Queued => responses::Status::Queued,
            Self::InProgress => responses::Status::InProgress,
            Self::Completed => responses::Status::Completed,
            Self::Incomplete(_) => responses::Status::Incomplete,
            Self::Failed { .. } => responses::Status::Failed,
            Self::Cancelled => responses::Status::Cancelled,
        }
    }
}

/// Returns true if a call was a request for approval in an earlier response.
pub(super) fn is_approval(call_id: &str) -> bool {
    call_id.starts_with("mcpr_")
}

impl Writer {
    pub(super) fn new(base: Response, include: Include, mcp: Option<String>) -> Self {
        Self {
            base,
            include,
            mcp,
            container: None,
            sequence: 0,
            output: Vec::new(),
            message: None,
            reasoning: None,
            programs: HashMap::new(),
            uncited: Vec::new(),
            usage: TokenUsage::default(),
            frames: Vec::new(),
            now: 0,
        }
    }

    /// Sets the time, seconds since 1970.
    pub(super) fn set_time(&mut self, now: i64) {
        self.now = now;
    }

    /// Continues the numbers of frames from `sequence`, unless they are beyond it.
    pub(super) fn skip_to(&mut self, sequence: u64) {
        self.sequence = self.sequence.max(sequence);
    }

    /// Sets the container that programs run in.
    pub(super) fn set_container(&mut self, id: String) {
        self.container = Some(id);
    }

    /// Takes the frames that were rendered since the last call.
    pub(super) fn take_frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }

    /// Returns true if nothing was written yet.
    pub(super) fn is_empty(&self) -> bool {
        self.output.is_empty()
    }

    fn id_at(&self, index: usize) -> String {
        self.output.get(index).map(Item::id).unwrap_or_default().to_owned()
    }

    pub(super) fn use_tokens(&mut self, usage: TokenUsage) {
        self.usage += usage;
    }

    /// The present state of the response, with all output of programs.
    pub(super) fn object(&self, status: &Status) -> Response {
        let ended = !matches!(status, Status::Queued | Status::InProgress);
        // Also before the end, as soon as there is any: the usage counts after a restart.
        let is_known = ended || self.usage != TokenUsage::default();
        Response {
            status: status.on_the_wire(),
            completed_at: (*status == Status::Completed).then_some(self.now),
            output: self.output.clone(),
            usage: is_known.then(|| usage_of(&self.usage)),
            error: match status {
                Status::Failed { code, message } => {
                    Some(ResponseError { code: (*code).to_owned(), message: message.clone() })
                }
                _ => None,
            },
            incomplete_details: match status {
                Status::Incomplete(reason) => Some(IncompleteDetails { reason: (*reason).to_owned() }),
                _ => None,
            },
            ..self.base.clone()
        }
    }

    /// Sends the event that the response exists.
    pub(super) fn create(&mut self, status: &Status) {
        let response = self.for_client(status);
        self.emit(Event::Created { response });
    }

    /// Sends the event that the response is queued.
    pub(super) fn queue(&mut self) {
        let response = self.for_client(&Status::Queued);
        self.emit(Event::Queued { response });
    }

    /// Sends the event that the response is being written.
    pub(super) fn begin(&mut self) {
        let response = self.for_client(&Status::InProgress);
        self.emit(Event::InProgress { response });
    }

    /// The response so far, in the form for the client.
    pub(super) fn for_client(&self, status: &Status) -> Box<Response> {
        Box::new(for_client(self.object(status), self.include))
    }

    fn emit(&mut self, event: Event) {
        let sequence = self.sequence;
        let kind = event.kind().to_owned();
        let text = StreamEvent { event, sequence_number: sequence }.json();
        self.frames.push(Frame { sequence, kind, text });
        self.sequence += 1;
    }

    fn emit_added(&mut self, index: usize) {
        if let Some(item) = self.shown_at(index) {
            self.emit(Event::OutputItemAdded { output_index: index, item });
        }
    }

    fn emit_done(&mut self, index: usize) {
        if let Some(item) = self.shown_at(index) {
            self.emit(Event::OutputItemDone { output_index: index, item });
        }
    }

    fn shown_at(&self, index: usize) -> Option<Box<Item>> {
        Some(Box::new(shown_item(self.output.get(index)?.clone(), self.include)))
    }

    fn start(&mut self, item: Item) -> usize {
        self.output.push(item);
        let index = self.output.len() - 1;
        self.emit_added(index);
        index
    }

    /// Adds text of the model.
    pub(super) fn text(&mut self, item: &ItemId, delta: &str) {
        self.end_thoughts();
        let index = match self.message.filter(|index| self.message_at(*index).is_some()) {
            Some(index) => index,
            None => self.start_message(item, ContentPart::output_text("")),
        };
        let Some((item_id, text)) = self.message_at(index) else { return };
        text.text.push_str(delta);
        self.emit(Event::OutputTextDelta {
            item_id,
            output_index: index,
            content_index: 0,
            delta: delta.to_owned(),
            logprobs: Vec::new(),
        });
    }

    /// Adds words with which the model refuses to answer.
    pub(super) fn refuse(&mut self, item: &ItemId, delta: &str) {
        self.end_thoughts();
        let index = match self.message.filter(|index| self.refusal_at(*index).is_some()) {
            Some(index) => index,
            None => self.start_message(item, ContentPart::Refusal { refusal: String::new() }),
        };
        let Some((item_id, refusal)) = self.refusal_at(index) else { return };
        refusal.push_str(delta);
        let delta = delta.to_owned();
        self.emit(Event::RefusalDelta { item_id, output_index: index, content_index: 0, delta });
    }

    /// The id and the text of the message at a place.
    fn message_at(&mut self, index: usize) -> Option<(String, &mut OutputText)> {
        let (id, part) = self.part_at(index)?;
        let ContentPart::OutputText(text) = part else { return None };
        Some((id, text))
    }

    /// The id and the text of the refusal at a place.
    fn refusal_at(&mut self, index: usize) -> Option<(String, &mut String)> {
        let (id, part) = self.part_at(index)?;
        let ContentPart::Refusal { refusal } = part else { return None };
        Some((id, refusal))
    }

    fn part_at(&mut self, index: usize) -> Option<(String, &mut ContentPart)> {
        let Some(Item::Message(message)) = self.output.get_mut(index) else { return None };
        let Some(MessageContent::Parts(parts)) = &mut message.content else { return None };
        Some((message.id.clone().unwrap_or_default(), parts.first_mut()?))
    }

    /// Begins a message with this part, which is empty.
    fn start_message(&mut self, item: &ItemId, part: ContentPart) -> usize {
        self.end_message(&[], false, ItemStatus::Completed);
        let id = item.with_prefix("msg_");
        let index = self.start(Item::Message(Message {
            id: Some(id.clone()),
            status: Some(ItemStatus::InProgress),
            role: Some(Role::Assistant),
            content: Some(MessageContent::Parts(Vec::new())),
            phase: None,
        }));
        if let Some(Item::Message(message)) = self.output.get_mut(index) {
            message.content = Some(MessageContent::Parts(vec![part.clone()]));
        }
        self.emit(Event::ContentPartAdded { item_id: id, output_index: index, content_index: 0, part });
        self.message = Some(index);
        index
    }

    /// Ends the open message. `files` are the possible targets of its links; the last message of a response also cites every file that was
    /// not linked.
    fn end_message(&mut self, files: &[SessionFile], is_last: bool, status: ItemStatus) {
        let Some(index) = self.message.take() else { return };
        if let Some((item_id, refusal)) = self.refusal_at(index).map(|(id, refusal)| (id, refusal.clone())) {
            let whole = refusal.clone();
            self.emit(Event::RefusalDone { item_id, output_index: index, content_index: 0, refusal: whole });
            return self.end_part(index, ContentPart::Refusal { refusal }, status);
        }
        let Some((item_id, text)) = self.message_at(index).map(|(id, text)| (id, text.text.clone())) else { return };
        let container = self.container.clone().unwrap_or_default();
        let linked = links(&text, files);
        self.uncited.retain(|file| !linked.iter().any(|(_, _, linked)| linked.id == file.id));
        let mut annotations = Vec::new();
        if is_last {
            annotations.extend(self.uncited.drain(..).map(|file| citation(&container, &file, 0, 0)));
        }
        annotations.extend(linked.iter().map(|(start, end, file)| citation(&container, file, *start, *end)));
        for (annotation_index, annotation) in annotations.iter().enumerate() {
            self.emit(Event::OutputTextAnnotationAdded {
                item_id: item_id.clone(),
                output_index: index,
                content_index: 0,
                annotation_index,
                annotation: annotation.clone(),
            });
        }
        self.emit(Event::OutputTextDone {
            item_id,
            output_index: index,
            content_index: 0,
            text: text.clone(),
            logprobs: Vec::new(),
        });
        let part = ContentPart::OutputText(OutputText { annotations, ..OutputText::new(text) });
        self.end_part(index, part, status);
    }

    /// Ends a message with its only part.
    fn end_part(&mut self, index: usize, part: ContentPart, status: ItemStatus) {
        let item_id = self.id_at(index);
        if let Some(Item::Message(message)) = self.output.get_mut(index) {
            message.content = Some(MessageContent::Parts(vec![part.clone()]));
            message.status = Some(status);
        }
        self.emit(Event::ContentPartDone { item_id, output_index: index, content_index: 0, part });
        self.emit_done(index);
    }

    /// Adds reasoning of the model.
    pub(super) fn think(&mut self, item: &ItemId, delta: &str) {
        self.end_message(&[], false, ItemStatus::Completed);
        let index = match self.reasoning {
            Some(index) => index,
            None => {
                let (id, status) = (Some(item.with_prefix("rs_")), Some(ItemStatus::InProgress));
                let index = self.start(Item::Reasoning(Reasoning { id, status, ..Reasoning::default() }));
                self.reasoning = Some(index);
                index
            }
        };
        if let Some(Item::Reasoning(reasoning)) = self.output.get_mut(index) {
            let parts = reasoning.content.get_or_insert_with(|| vec![ReasoningText::new("")]);
            parts.iter_mut().for_each(|part| part.text.push_str(delta));
        }
    }

    fn end_thoughts(&mut self) {
        let Some(index) = self.reasoning.take() else { return };
        if let Some(Item::Reasoning(reasoning)) = self.output.get_mut(index) {
            let text: String = reasoning.content.iter().flatten().map(|part| part.text.as_str()).collect();
            reasoning.encrypted_content = Some(wrapped(&text));
            reasoning.status = Some(ItemStatus::Completed);
        }
        self.emit_done(index);
    }

    /// Ends a message that is followed by others.
    pub(super) fn end_text(&mut self, linked: &[SessionFile]) {
        self.end_message(linked, false, ItemStatus::Completed);
    }

    /// Begins a program.
    pub(super) fn start_program(&mut self, item: &ItemId) {
        self.end_thoughts();
        if self.mcp.is_some() {
            // Sent once it is known whether it has to wait.
            return;
        }
        let id = item.with_prefix("ci_");
        let index = self.start(Item::CodeInterpreterCall(CodeInterpreterCall {
            id: id.clone(),
            status: Some(ItemStatus::InProgress),
            code: Some(String::new()),
            container_id: self.container.clone(),
            outputs: Some(Vec::new()),
        }));
        self.emit(Event::CodeInterpreterCallInProgress { item_id: id, output_index: index });
        let program = Program { index, code: String::new(), is_written: false, is_running: false };
        self.programs.insert(item.clone(), program);
    }

    fn program_at(&mut self, index: usize) -> Option<&mut CodeInterpreterCall> {
        match self.output.get_mut(index) {
            Some(Item::CodeInterpreterCall(program)) => Some(program),
            _ => None,
        }
    }

    /// Adds a piece of a program.
    pub(super) fn code(&mut self, item: &ItemId, delta: &str) {
        let Some(program) = self.programs.get_mut(item) else { return };
        program.code.push_str(delta);
        let output_index = program.index;
        let item_id = self.id_at(output_index);
        self.emit(Event::CodeInterpreterCallCodeDelta { item_id, output_index, delta: delta.to_owned() });
    }

    /// Completes a program: exactly this code is run.
    pub(super) fn code_done(&mut self, item: &ItemId, code: &str) {
        let Some(program) = self.programs.get_mut(item).filter(|program| !program.is_written) else { return };
        program.is_written = true;
        code.clone_into(&mut program.code);
        let output_index = program.index;
        let item_id = self.id_at(output_index);
        if let Some(call) = self.program_at(output_index) {
            call.code = Some(code.to_owned());
        }
        self.emit(Event::CodeInterpreterCallCodeDone { item_id, output_index, code: code.to_owned() });
    }

    /// Begins the run of a program that is approved or needs no approval.
    pub(super) fn start_mcp_call(&mut self, item: &ItemId, call_id: &str, code: &str) {
        let Some(server_label) = self.mcp.clone() else { return };
        let arguments = aludel_agent::arguments_of(code);
        let item_id = item.with_prefix("mcp_");
        let output_index = self.start(Item::McpCall(McpCall {
            id: item_id.clone(),
            status: Some(ItemStatus::InProgress),
            server_label,
            name: PYTHON.to_owned(),
            approval_request_id: is_approval(call_id).then(|| call_id.to_owned()),
            container_id: self.container.clone(),
            ..McpCall::default()
        }));
        self.emit(Event::McpCallInProgress { item_id: item_id.clone(), output_index });
        self.emit(Event::McpCallArgumentsDone { item_id, output_index, arguments: arguments.clone() });
        if let Some(Item::McpCall(call)) = self.output.get_mut(output_index) {
            call.arguments = arguments;
        }
        let program = Program { index: output_index, code: code.to_owned(), is_written: true, is_running: true };
        self.programs.insert(item.clone(), program);
    }

    /// Adds a request for approval of a program.
    pub(super) fn ask_for_approval(&mut self, call: &ToolCall) {
        self.end_thoughts();
        let item = call.item.with_prefix("mcpr_");
        let id = format!("{}{}", item.get(..29).unwrap_or("mcpr_"), digest_of(&call.arguments));
        let index = self.start(Item::McpApprovalRequest(McpApprovalRequest {
            id,
            server_label: self.mcp.clone(),
            name: PYTHON.to_owned(),
            arguments: call.arguments.clone(),
            container_id: self.container.clone(),
        }));
        self.emit_done(index);
    }

    /// Marks a program as running.
    pub(super) fn run_program(&mut self, item: &ItemId) {
        let Some(program) = self.programs.get_mut(item).filter(|program| !program.is_running) else { return };
        program.is_running = true;
        let output_index = program.index;
        if let Some(call) = self.program_at(output_index) {
            call.status = Some(ItemStatus::Interpreting);
        }
        let item_id = self.id_at(output_index);
        self.emit(Event::CodeInterpreterCallInterpreting { item_id, output_index });
    }

    /// Adds the end of a program.
    pub(super) fn end_program(&mut self, item: &ItemId, ended: ProgramEnd) {
        let Some(program) = self.programs.remove(item) else { return };
        let outputs = ended.outputs();
        let ProgramEnd { status, logs, files, .. } = ended;
        for file in files {
            self.uncited.retain(|known| known.path != file.path);
            self.uncited.push(file);
        }
        let status = match status {
            "completed" => ItemStatus::Completed,
            "failed" => ItemStatus::Failed,
            _ => ItemStatus::Incomplete,
        };
        let output_index = program.index;
        let item_id = self.id_at(output_index);
        match self.output.get_mut(output_index) {
            Some(Item::McpCall(call)) => {
                call.status = Some(status);
                if status == ItemStatus::Completed {
                    call.output = Some(logs);
                    self.emit(Event::McpCallCompleted { item_id, output_index });
                } else {
                    call.error = Some(logs);
                    self.emit(Event::McpCallFailed { item_id, output_index });
                }
            }
            Some(Item::CodeInterpreterCall(call)) => {
                call.code = Some(program.code);
                call.outputs = Some(outputs);
                call.status = Some(status);
                if status == ItemStatus::Completed {
                    self.emit(Event::CodeInterpreterCallCompleted { item_id, output_index });
                }
            }
            _ => {}
        }
        self.emit_done(output_index);
    }

    /// Adds a call of a client's function.
    pub(super) fn function_call(&mut self, call: &ToolCall) {
        self.end_thoughts();
        let item_id = call.item.with_prefix("fc_");
        let output_index = self.start(Item::FunctionCall(FunctionCall {
            id: Some(item_id.clone()),
            status: Some(ItemStatus::InProgress),
            call_id: call.call_id.clone(),
            name: call.name.clone(),
            arguments: String::new(),
        }));
        let arguments = call.arguments.clone();
        let delta = arguments.clone();
        self.emit(Event::FunctionCallArgumentsDelta { item_id: item_id.clone(), output_index, delta });
        let (name, whole) = (call.name.clone(), arguments.clone());
        self.emit(Event::FunctionCallArgumentsDone { item_id, output_index, name, arguments: whole });
        if let Some(Item::FunctionCall(call)) = self.output.get_mut(output_index) {
            call.arguments = arguments;
            call.status = Some(ItemStatus::Completed);
        }
        self.emit_done(output_index);
    }

    /// Ends the open item. The last message cites the files that were made; `needed` is a message for a client that would repeat its
    /// request without one.
    pub(super) fn finish(&mut self, status: &Status, files: &[SessionFile], needed: Option<&ItemId>) {
        let item_status = if *status == Status::Completed { ItemStatus::Completed } else { ItemStatus::Incomplete };
        self.end_thoughts();
        // In the order in which they began, since the map has none.
        let mut open: Vec<(usize, ItemId)> =
            self.programs.iter().map(|(item, program)| (program.index, item.clone())).collect();
        open.sort_by_key(|(index, _)| *index);
        for (_, item) in open {
            self.end_program(&item, ProgramEnd::incomplete());
        }
        if let (None, Some(item)) = (self.message, needed) {
            self.start_message(item, ContentPart::output_text(""));
        }
        self.end_message(files, true, item_status);
    }

    /// Sends its end, the last frame.
    pub(super) fn end(&mut self, status: &Status) {
        let response = self.for_client(status);
        self.emit(match status {
            Status::Failed { .. } => Event::Failed { response },
            Status::Completed => Event::Completed { response },
            // A cancelled response has no event; its object shows it.
            Status::Incomplete(_) | Status::Cancelled | Status::Queued | Status::InProgress => {
                Event::Incomplete { response }
            }
        });
    }
}

fn usage_of(usage: &TokenUsage) -> responses::Usage {
    responses::Usage {
        input_tokens: usage.input,
        input_tokens_details: InputTokensDetails { cached_tokens: usage.cached, cache_write_tokens: 0 },
        output_tokens: usage.output,
        output_tokens_details: OutputTokensDetails { reasoning_tokens: usage.reasoning },
        total_tokens: usage.total(),
    }
}

fn citation(container: &str, file: &SessionFile, start_index: usize, end_index: usize) -> Annotation {
    Annotation::ContainerFileCitation(ContainerFileCitation {
        container_id: container.to_owned(),
        file_id: file.id.as_str().to_owned(),
        filename: file.path.rsplit('/').next().unwrap_or(&file.path).to_owned(),
        start_index,
        end_index,
    })
}

/// The links `sandbox:/mnt/data/…` of a text that match one of the files, with their offsets in characters, the end exclusive.
fn links<'a>(text: &str, files: &'a [SessionFile]) -> Vec<(usize, usize, &'a SessionFile)> {
    let mut found = Vec::new();
    for (byte, _) in text.match_indices(LINK) {
        let Some(rest) = text.get(byte + LINK.len()..) else { continue };
        // The longest matching path: one file's name may begin with another's.
        let named = files.iter().filter_map(|file| Some((path_at(rest, &file.path)?, file)));
        let Some((length, file)) = named.max_by_key(|(_, file)| file.path.len()) else { continue };
        let start = text.get(..byte).map_or(0, |before| before.chars().count());
        let end = start + LINK.len() + rest.get(..length).map_or(0, |path| path.chars().count());
        found.push((start, end, file));
    }
    found
}

#[cfg(test)]
mod tests {
    use aludel_engine::KernelSpec;
    use aludel_store::{FileOrigin, SessionFileId};
    use serde_json::{Value, json};

    use super::super::request::ParsedRequest;
    use super::*;

    fn file(path: &str) -> SessionFile {
        SessionFile {
            id: SessionFileId::new(),
            path: format!("/mnt/data/{path}"),
            bytes: 1,
            mime: "text/csv".into(),
            source: FileOrigin::Assistant,
            created_at: 0,
            published_id: None,
        }
    }

    fn types(writer: &mut Writer) -> Vec<String> {
        let frames = writer.take_frames();
        for (number, frame) in frames.iter().enumerate() {
            let event: Value = serde_json::from_str(&frame.text).unwrap();
            assert_eq!(
                (event["type"].as_str(), event["sequence_number"].as_u64()),
                (Some(&*frame.kind), Some(number as u64))
            );
        }
        frames.into_iter().map(|frame| frame.kind).collect()
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
        let text = "[it](sandbox:/mnt/data/%C3%BC%20b.csv)";
        let found = links(text, &files);
        assert_eq!((found[0].0, found[0].1, found[0].2), (5, text.len() - 1, &files[2]));
    }

    #[test]
    fn one_program_and_an_answer_come_in_the_recorded_order() {
        let request = ParsedRequest::read(
            json!({ "model": "m", "input": "?" }).as_object().unwrap().clone().into(),
            "",
            &KernelSpec::python(""),
        );
        let mut writer = Writer::new(request.unwrap().answer, Include::default(), None);
        writer.set_container("cntr_1".into());
        writer.create(&Status::InProgress);
        writer.begin();
        let (program, message) = (ItemId::new(), ItemId::new());
        writer.start_program(&program);
        writer.code(&program, "1+");
        writer.code(&program, "1");
        writer.code_done(&program, "1+1");
        writer.run_program(&program);
        writer.run_program(&program);
        let files = file("out.csv");
        let images = vec!["data:image/png;base64,AA==".into()];
        writer.end_program(
            &program,
            ProgramEnd {
                status: "completed",
                images,
                logs: "2".into(),
                files: vec![files.clone()],
                pictures: Vec::new(),
            },
        );
        writer.text(&message, "It is ");
        writer.text(&message, "2.");
        writer.finish(&Status::Completed, &[files], Some(&message));
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
        let response = writer.object(&Status::Completed);
        let object = serde_json::to_value(&response).unwrap();
        assert_eq!(object["output"][1]["content"][0]["annotations"][0]["start_index"], 0);
        assert_eq!(object["output"][0]["outputs"][1]["logs"], "2");
        let shown = serde_json::to_value(for_client(response, Include::default())).unwrap();
        assert_eq!(shown["output"][0]["outputs"], Value::Null);
    }
}
