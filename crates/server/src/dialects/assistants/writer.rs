//! The writer of a run's objects and events.
//!
//! Clients expect one step at a time: the next begins when the one before has ended. A message begins with its first text. The content of
//! steps and messages is sent in deltas.

use aludel_engine::turns::{Frame, ItemId, ToolCall as AskedCall};
use aludel_wire::assistants::{
    Attachment, CalledFunction, CodeCall, CodeDelta, CodeOutput, CodeOutputDelta, Content, ContentDelta, EventName,
    FilePath, FunctionDelta, ImageFile, IncompleteMessage, LastError, Message, MessageDelta, MessageStatus,
    RequiredAction, Role, Run, RunStatus, RunStep, StepDelta, StepDetails, StepStatus, SubmitAction, Text, TextDelta,
    Thread, Tool, ToolCall, ToolCallDelta, ToolDocument, Usage, WrittenMessage,
};
use serde::{Deserialize, Serialize};

use super::annotations::{LinkedFile, annotations, numbered};
use super::outcome::{StepEnd, end_of_run, end_of_step, for_client};
use super::written;

/// The prefixes of ids.
const STEP: &str = "step_";
const MESSAGE: &str = "msg_";
const CALL: &str = "call_";

/// A run that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) run: Run,
    /// Tokens of all rounds.
    used: Usage,
    /// Tokens of the rounds since the last step.
    used_by_step: Option<Usage>,
    open: Option<Open>,
    /// Ended steps, and the one that the client has to answer.
    pub(super) steps: Vec<RunStep>,
    /// Ended messages.
    pub(super) messages: Vec<Message>,
    pub(super) owed: Owed,
    frames: Vec<Frame>,
    sequence: u64,
    now: i64,
}

/// Images and files of programs that a later message has to show, also after the client's answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Owed {
    /// Images that no message has shown yet.
    images: Vec<String>,
    /// Files that programs made and no text has named, by path.
    files: Vec<(String, String)>,
}

impl Owed {
    /// Returns true if no image or file needs a message.
    pub(super) fn is_empty(&self) -> bool {
        self.images.is_empty() && self.files.is_empty()
    }
}

/// The step that is being written.
#[derive(Debug)]
enum Open {
    Message { item: ItemId, step: RunStep, message: Box<Message>, text: String },
    Program { item: ItemId, step: RunStep, call: CodeCall },
}

impl Writer {
    pub(super) fn new(run: Run, owed: Owed) -> Self {
        Self {
            used: run.usage.unwrap_or_default(),
            run,
            used_by_step: None,
            open: None,
            steps: Vec::new(),
            messages: Vec::new(),
            owed,
            frames: Vec::new(),
            sequence: 0,
            now: 0,
        }
    }

    /// Sets the time of what is sent next, seconds since 1970.
    pub(super) fn set_time(&mut self, now: i64) {
        self.now = now;
    }

    /// Numbers the next frames from here on.
    pub(super) fn skip_to(&mut self, sequence: u64) {
        self.sequence = self.sequence.max(sequence);
    }

    pub(super) fn take_frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }

    fn emit(&mut self, name: EventName, object: &impl Serialize) {
        let text = written(object).to_string();
        self.tell_text(name, text);
    }

    fn tell_text(&mut self, name: EventName, text: String) {
        self.frames.push(Frame { sequence: self.sequence, kind: name.as_str().to_owned(), text });
        self.sequence += 1;
    }

    fn tell_run(&mut self, name: EventName) {
        let run = for_client(self.run.clone());
        self.emit(name, &run);
    }

    /// Announces the run: at its beginning all of it, with the thread that was made for it, or that the client has answered.
    pub(super) fn create(&mut self, thread: Option<&Thread>, answered: Option<&RunStep>) {
        if let Some(thread) = thread {
            self.emit(EventName::ThreadCreated, thread);
        }
        match answered {
            Some(step) => self.emit(EventName::StepCompleted, step),
            None => self.tell_run(EventName::RunCreated),
        }
        self.tell_run(EventName::RunQueued);
    }

    pub(super) fn begin(&mut self) {
        self.run.status = RunStatus::InProgress;
        self.run.started_at.get_or_insert(self.now);
        self.tell_run(EventName::RunInProgress);
    }

    pub(super) fn use_tokens(&mut self, input: u64, output: u64) {
        for usage in [&mut self.used, self.used_by_step.get_or_insert_default()] {
            usage.prompt_tokens = usage.prompt_tokens.saturating_add(input);
            usage.completion_tokens = usage.completion_tokens.saturating_add(output);
            usage.total_tokens = usage.prompt_tokens.saturating_add(usage.completion_tokens);
        }
    }

    /// Returns true if a step other than `with` is being written.
    pub(super) fn is_busy(&self, with: &ItemId) -> bool {
        match &self.open {
            Some(Open::Message { item, .. } | Open::Program { item, .. }) => item != with,
            None => false,
        }
    }

    /// Returns true if a step is being written.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    fn step(&self, item: &ItemId, step_details: StepDetails) -> RunStep {
        let kind = match step_details {
            StepDetails::MessageCreation { .. } => "message_creation",
            StepDetails::ToolCalls { .. } => "tool_calls",
        };
        RunStep {
            id: item.with_prefix(STEP),
            object: Default::default(),
            created_at: self.now,
            run_id: self.run.id.clone(),
            assistant_id: self.run.assistant_id.clone(),
            thread_id: self.run.thread_id.clone(),
            r#type: kind.to_owned(),
            status: StepStatus::InProgress,
            cancelled_at: None,
            completed_at: None,
            expires_at: self.run.expires_at,
            failed_at: None,
            last_error: None,
            step_details,
            usage: None,
        }
    }

    fn start_step(&mut self, step: &RunStep) {
        self.emit(EventName::StepCreated, step);
        self.emit(EventName::StepInProgress, step);
    }

    /// Adds text to a message. The first text begins it, after the images that were displayed before.
    pub(super) fn text(&mut self, item: &ItemId, delta: &str) {
        if delta.is_empty() {
            return;
        }
        if !matches!(self.open, Some(Open::Message { .. })) {
            self.start_message(item);
        }
        let Some(Open::Message { message, text, .. }) = &mut self.open else { return };
        // The first delta has a list of annotations.
        let annotations = text.is_empty().then(Vec::new);
        text.push_str(delta);
        let (id, index) = (message.id.clone(), message.content.len());
        let text = TextDelta { value: Some(delta.to_owned()), annotations };
        self.emit(EventName::MessageDelta, &MessageDelta::new(&id, ContentDelta::Text { index, text }));
    }

    fn start_message(&mut self, item: &ItemId) {
        let id = item.with_prefix(MESSAGE);
        let message_creation = WrittenMessage { message_id: id.clone() };
        let step = self.step(item, StepDetails::MessageCreation { message_creation });
        self.start_step(&step);
        let mut message = Message {
            id: id.clone(),
            object: Default::default(),
            created_at: self.now,
            thread_id: self.run.thread_id.clone(),
            status: MessageStatus::InProgress,
            incomplete_details: None,
            completed_at: None,
            incomplete_at: None,
            role: Role::Assistant,
            content: Vec::new(),
            assistant_id: Some(self.run.assistant_id.clone()),
            run_id: Some(self.run.id.clone()),
            attachments: Vec::new(),
            metadata: Default::default(),
        };
        self.emit(EventName::MessageCreated, &message);
        self.emit(EventName::MessageInProgress, &message);
        for (index, file_id) in std::mem::take(&mut self.owed.images).into_iter().enumerate() {
            let image_file = ImageFile { file_id, detail: None };
            let delta = ContentDelta::ImageFile { index, image_file: image_file.clone() };
            self.emit(EventName::MessageDelta, &MessageDelta::new(&id, delta));
            message.content.push(Content::ImageFile { image_file });
        }
        self.open = Some(Open::Message { item: item.clone(), step, message: Box::new(message), text: String::new() });
    }

    /// Returns the text that is being written.
    pub(super) fn open_text(&self) -> Option<&str> {
        match &self.open {
            Some(Open::Message { text, .. }) => Some(text),
            _ => None,
        }
    }

    /// Ends the open message, which names these files. The last message of a run also has the files that no message named.
    pub(super) fn end_message(&mut self, linked: &[LinkedFile], is_last: bool, end: &StepEnd) {
        let open = self.open.take();
        let Some(Open::Message { step, mut message, text, .. }) = open else { return self.open = open };
        self.owed.files.retain(|(path, _)| !linked.iter().any(|file| file.path == *path));
        let annotations = annotations(&text, linked);
        if !annotations.is_empty() {
            let text = TextDelta { value: None, annotations: Some(numbered(&annotations)) };
            let delta = ContentDelta::Text { index: message.content.len(), text };
            self.emit(EventName::MessageDelta, &MessageDelta::new(&message.id, delta));
        }
        message.content.push(Content::Text { text: Text { value: text, annotations } });
        if is_last {
            let tools = vec![ToolDocument::from(written(&Tool::CodeInterpreter {}))];
            let files = std::mem::take(&mut self.owed.files).into_iter();
            message.attachments = files.map(|(_, file_id)| Attachment { file_id, tools: tools.clone() }).collect();
        }
        let reason = match end {
            StepEnd::Completed => None,
            StepEnd::CutOff(reason) => Some(*reason),
            StepEnd::Cancelled => Some("run_cancelled"),
            StepEnd::Expired => Some("run_expired"),
            StepEnd::Failed(_) => Some("run_failed"),
        };
        match reason {
            None => (message.status, message.completed_at) = (MessageStatus::Completed, Some(self.now)),
            Some(reason) => {
                (message.status, message.incomplete_at) = (MessageStatus::Incomplete, Some(self.now));
                message.incomplete_details = Some(IncompleteMessage { reason: reason.to_owned() });
            }
        }
        let name = if reason.is_none() { EventName::MessageCompleted } else { EventName::MessageIncomplete };
        self.emit(name, &message);
        self.messages.push(*message);
        self.end_step(step, end);
    }

    fn end_step(&mut self, mut step: RunStep, end: &StepEnd) {
        // Clients add them up: only a step that goes on has none.
        step.usage = Some(self.used_by_step.take().unwrap_or_default());
        end_of_step(&mut step, end, self.now);
        let name = match end {
            StepEnd::Completed | StepEnd::CutOff(_) => EventName::StepCompleted,
            StepEnd::Cancelled => EventName::StepCancelled,
            StepEnd::Expired => EventName::StepExpired,
            StepEnd::Failed(_) => EventName::StepFailed,
        };
        self.emit(name, &step);
        self.steps.push(step);
    }

    /// Begins a program.
    pub(super) fn start_program(&mut self, item: &ItemId) {
        if self.open.is_some() {
            return;
        }
        let step = self.step(item, StepDetails::ToolCalls { tool_calls: Vec::new() });
        self.start_step(&step);
        let first = CodeDelta { input: Some(String::new()), outputs: Some(Vec::new()) };
        self.tell_code(&step.id, Some(item.with_prefix(CALL)), first);
        self.open = Some(Open::Program { item: item.clone(), step, call: CodeCall::default() });
    }

    fn tell_code(&mut self, step: &str, id: Option<String>, code_interpreter: CodeDelta) {
        let call = ToolCallDelta::Code { index: 0, id, r#type: Default::default(), code_interpreter };
        self.emit(EventName::StepDelta, &StepDelta::new(step, vec![call]));
    }

    /// Writes the next characters of the program.
    pub(super) fn code(&mut self, delta: &str) {
        let Some(Open::Program { step, call, .. }) = &mut self.open else { return };
        call.input.push_str(delta);
        let id = step.id.clone();
        self.tell_code(&id, None, CodeDelta { input: Some(delta.to_owned()), outputs: None });
    }

    /// Completes the program: exactly this is run.
    pub(super) fn code_done(&mut self, input: &str) {
        let Some(Open::Program { call, .. }) = &mut self.open else { return };
        match input.strip_prefix(&call.input) {
            Some("") => {}
            Some(rest) => {
                let rest = rest.to_owned();
                self.code(&rest);
            }
            None => input.clone_into(&mut call.input),
        }
    }

    /// Writes text that the program printed.
    pub(super) fn logs(&mut self, text: &str) {
        let Some(Open::Program { step, call, .. }) = &mut self.open else { return };
        if text.is_empty() {
            return;
        }
        match call.outputs.last_mut() {
            Some(CodeOutput::Logs { logs }) => logs.push_str(text),
            _ => call.outputs.push(CodeOutput::Logs { logs: text.to_owned() }),
        }
        let (id, index) = (step.id.clone(), call.outputs.len() - 1);
        let output = CodeOutput::Logs { logs: text.to_owned() };
        let outputs = Some(vec![CodeOutputDelta { index, output }]);
        self.tell_code(&id, None, CodeDelta { input: None, outputs });
    }

    /// Adds a line of its own to the program's logs.
    pub(super) fn note(&mut self, line: &str) {
        let outputs = match &self.open {
            Some(Open::Program { call, .. }) => call.outputs.as_slice(),
            _ => &[],
        };
        let is_within_line = matches!(outputs.last(), Some(CodeOutput::Logs { logs }) if !logs.ends_with('\n'));
        let start = if is_within_line { "\n" } else { "" };
        self.logs(&format!("{start}{line}\n"));
    }

    /// Adds an image that the program displayed: to its step, and to the next message.
    pub(super) fn image(&mut self, file_id: String) {
        let Some(Open::Program { step, call, .. }) = &mut self.open else { return };
        let output = CodeOutput::Image { image: FilePath { file_id: file_id.clone() } };
        let (id, index) = (step.id.clone(), call.outputs.len());
        call.outputs.push(output.clone());
        let outputs = Some(vec![CodeOutputDelta { index, output }]);
        self.tell_code(&id, None, CodeDelta { input: None, outputs });
        self.owed.images.push(file_id);
    }

    /// Records a file that the program made, and adds a line about it to its output.
    pub(super) fn file(&mut self, path: &str, file_id: String) {
        if self.owed.images.contains(&file_id) {
            return;
        }
        // A result ends without a line's end.
        let begun = match &self.open {
            Some(Open::Program { call, .. }) => match call.outputs.last() {
                Some(CodeOutput::Logs { logs }) if !logs.ends_with('\n') => "\n",
                _ => "",
            },
            _ => "",
        };
        self.logs(&format!("{begun}[file {path}: {file_id}]\n"));
        self.owed.files.retain(|(other, _)| other != path);
        self.owed.files.push((path.to_owned(), file_id));
    }

    /// Ends the program.
    pub(super) fn end_program(&mut self, end: &StepEnd) {
        if let Some(step) = self.open_program() {
            self.open = None;
            self.end_step(step, end);
        }
    }

    /// The step of the open program, as far as it has come.
    pub(super) fn open_program(&self) -> Option<RunStep> {
        let Some(Open::Program { item, step, call }) = &self.open else { return None };
        let call = ToolCall::CodeInterpreter { id: item.with_prefix(CALL), code_interpreter: call.clone() };
        Some(RunStep { step_details: StepDetails::ToolCalls { tool_calls: vec![call] }, ..step.clone() })
    }

    /// Asks the client for the outputs of its functions.
    pub(super) fn ask(&mut self, calls: &[AskedCall]) {
        let Some(first) = calls.first() else { return };
        let step = self.step(&first.item, StepDetails::ToolCalls { tool_calls: Vec::new() });
        self.start_step(&step);
        let deltas = calls.iter().enumerate().map(|(index, call)| {
            let (name, arguments) = (call.name.clone(), call.arguments.clone());
            let function = FunctionDelta { name, arguments, output: None };
            ToolCallDelta::Function { index, id: call.item.with_prefix(CALL), r#type: Default::default(), function }
        });
        let deltas = StepDelta::new(&step.id, deltas.collect());
        self.emit(EventName::StepDelta, &deltas);
        let all = |output: Option<Option<String>>| {
            let call = move |call: &AskedCall| {
                let (name, arguments) = (call.name.clone(), call.arguments.clone());
                let function = CalledFunction { name, arguments, output: output.clone() };
                ToolCall::Function { id: call.item.with_prefix(CALL), function }
            };
            calls.iter().map(call).collect()
        };
        self.steps.push(RunStep { step_details: StepDetails::ToolCalls { tool_calls: all(Some(None)) }, ..step });
        let submit_tool_outputs = SubmitAction { tool_calls: all(None) };
        self.run.required_action = Some(RequiredAction { r#type: Default::default(), submit_tool_outputs });
        self.end(RunStatus::RequiresAction, None);
    }

    /// Returns true if the model has read as many tokens as the run may.
    pub(super) fn has_read_enough(&self) -> bool {
        self.run.max_prompt_tokens.is_some_and(|most| self.used.prompt_tokens >= u64::from(most))
    }

    /// Ends the run, or this part of it.
    pub(super) fn end(&mut self, status: RunStatus, last_error: Option<LastError>) {
        self.run.usage = Some(self.used);
        end_of_run(&mut self.run, status, last_error, self.now);
        self.tell_run(match status {
            RunStatus::RequiresAction => EventName::RunRequiresAction,
            RunStatus::Completed => EventName::RunCompleted,
            RunStatus::Incomplete => EventName::RunIncomplete,
            RunStatus::Cancelled => EventName::RunCancelled,
            RunStatus::Expired => EventName::RunExpired,
            RunStatus::Failed | RunStatus::Queued | RunStatus::InProgress | RunStatus::Cancelling => {
                EventName::RunFailed
            }
        });
        self.tell_text(EventName::Done, "[DONE]".to_owned());
    }
}
