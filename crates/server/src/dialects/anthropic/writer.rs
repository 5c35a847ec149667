//! The writer of a message, whole and in events.
//!
//! Blocks are numbered without gaps, and one is written at a time. A program's result is a block of its own, sent whole.

use std::collections::HashMap;
use std::time::Duration;

use aludel_agent::upstream::TokenUsage;
use aludel_engine::Engine;
use aludel_engine::turns::{Frame, ItemId, ToolCall, ToolKind};
use aludel_store::SessionId;
use aludel_wire::Null;
use aludel_wire::anthropic::{
    self, AppliedEdits, Block, Caller, Container, Delta, ErrorCode, Event, Message, MessageChange, ProgramCaller, Role,
    ServerTool, StopReason, TokenDetails,
};
use serde_json::{Map, Value};

use super::program::{Outcome, ProgramEnd};
use crate::dialects::rfc3339::rfc3339;
use crate::dialects::stop_words::{StopScan, StopWords};

/// A placeholder for the signature of thinking blocks. Some clients drop blocks without one.
const SIGNATURE: &str = "aludel";
/// The prefix of the ids of calls of our tools.
pub(super) const SERVER_TOOL_USE: &str = "srvtoolu_";
/// The prefix of the ids of calls that programs make.
pub(super) const TOOL_USE: &str = "toolu_";
/// The end of the arguments of a call whose text is streamed.
const END: &str = "\"}";

/// A message that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    id: String,
    model: String,
    container: Option<MessageContainer>,
    stop: StopWords,
    thoughts: ThoughtsShown,
    content: Vec<Block>,
    /// The last block, if it is being written.
    open: Option<Open>,
    /// Programs without a result, with the positions of their calls.
    programs: HashMap<ItemId, Program>,
    /// True if a program waits for answers of the client's.
    waits: bool,
    usage: TokenUsage,
    /// The edits of the conversation to tell of.
    edits: Option<AppliedEdits>,
    /// The estimated tokens of the request, for clients that read its usage at the beginning alone.
    estimated_input: u64,
    stop_reason: Option<StopReason>,
    stop_sequence: Option<String>,
    /// Time of the event that is being rendered, seconds since 1970.
    now: i64,
    frames: Vec<Frame>,
    sequence: u64,
}

/// The container of a message's programs.
#[derive(Debug, Clone)]
pub(super) struct MessageContainer {
    pub(super) id: String,
    /// Idle time after which it expires, seconds.
    pub(super) idle: i64,
    /// Time that a program waits for answers of the client's, seconds.
    pub(super) answers: i64,
    /// True if the client knows it, because it named it or a program began there.
    pub(super) is_known: bool,
    /// The word for its programs as callers of tools.
    pub(super) caller: &'static str,
}

impl MessageContainer {
    /// A container that the client knows.
    pub(super) fn of(engine: &Engine, id: &SessionId, caller: &'static str) -> Self {
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let (idle, answers) = (seconds(engine.settings.idle), seconds(engine.settings.answers));
        Self { id: id.to_string(), idle, answers, is_known: true, caller }
    }
}

/// The form in which a client gets thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThoughtsShown {
    /// As text.
    Whole,
    /// As blocks without text.
    Omitted,
    /// Not at all: it did not ask for them.
    None,
}

#[derive(Debug)]
enum Open {
    Text,
    Thinking,
    /// The call of a program.
    Program(ItemId),
}

#[derive(Debug)]
struct Program {
    /// Index of its call; `None` if that is in an earlier message.
    index: Option<usize>,
    tool: ToolKind,
    /// The text that the model wrote; for the editor, its arguments in JSON.
    code: String,
}

/// The name of a tool, and the key of its argument that is streamed.
fn words_of(tool: ToolKind) -> (ServerTool, Option<&'static str>) {
    match tool {
        ToolKind::Python => (ServerTool::CodeExecution, Some("code")),
        ToolKind::Bash => (ServerTool::BashCodeExecution, Some("command")),
        ToolKind::Editor => (ServerTool::TextEditorCodeExecution, None),
    }
}

impl Writer {
    pub(super) fn new(id: String, model: String, container: Option<MessageContainer>, stop: Vec<String>) -> Self {
        Self {
            id,
            model,
            container,
            stop: StopWords::new(stop),
            thoughts: ThoughtsShown::None,
            content: Vec::new(),
            open: None,
            programs: HashMap::new(),
            waits: false,
            usage: TokenUsage::default(),
            edits: None,
            estimated_input: 0,
            stop_reason: None,
            stop_sequence: None,
            now: 0,
            frames: Vec::new(),
            sequence: 0,
        }
    }

    /// Shows thoughts in this form.
    pub(super) fn with_thoughts(self, thoughts: ThoughtsShown) -> Self {
        Self { thoughts, ..self }
    }

    /// Tells this many tokens of the request until the model's server tells its own count.
    pub(super) fn estimating(self, estimated_input: u64) -> Self {
        Self { estimated_input, ..self }
    }

    /// Tells that none of the edits was made that the client asked for, if it did.
    pub(super) fn telling_edits(self, are_asked: bool) -> Self {
        Self { edits: are_asked.then(AppliedEdits::default), ..self }
    }

    /// Sets the time, seconds since 1970.
    pub(super) fn set_time(&mut self, now: i64) {
        self.now = now;
    }

    /// Takes the frames since the last call.
    pub(super) fn take_frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }

    pub(super) fn use_tokens(&mut self, usage: TokenUsage) {
        self.usage += usage;
    }

    /// Returns true if the message is complete.
    pub(super) fn has_finished(&self) -> bool {
        self.stop_reason.is_some()
    }

    /// Returns true if its last block is the result of a program, from which a model can continue.
    pub(super) fn ends_with_result(&self) -> bool {
        matches!(
            self.content.last(),
            Some(
                Block::CodeExecutionToolResult { .. }
                    | Block::BashCodeExecutionToolResult { .. }
                    | Block::TextEditorCodeExecutionToolResult { .. }
            )
        )
    }

    /// The message so far.
    pub(super) fn message(&self) -> Message {
        Message {
            id: self.id.clone(),
            role: Role::Assistant,
            model: self.model.clone(),
            content: self.content.clone(),
            container: self.container(),
            stop_reason: self.stop_reason,
            stop_sequence: self.stop_sequence.clone(),
            stop_details: Null,
            usage: usage_of(&self.usage),
            context_management: self.edits.clone(),
        }
    }

    fn container(&self) -> Option<Container> {
        let MessageContainer { id, idle, answers, .. } =
            self.container.as_ref().filter(|container| container.is_known)?;
        let left = if self.waits { (*idle).min(*answers) } else { *idle };
        Some(Container { id: id.clone(), expires_at: rfc3339(self.now.saturating_add(left)), skills: Null })
    }

    /// Adds an event, also to a message that its client wants whole: a repetition of the request may ask for events.
    fn emit(&mut self, event: &Event) {
        if self.sequence == 0 && !matches!(event, Event::Error { .. }) {
            let usage = TokenUsage { input: self.usage.input.max(self.estimated_input), ..self.usage };
            let usage = usage_of(&usage);
            let message = Message {
                container: None,
                content: Vec::new(),
                stop_reason: None,
                usage,
                context_management: None,
                ..self.message()
            };
            self.push(&Event::MessageStart { message: Box::new(message) });
        }
        self.push(event);
    }

    fn push(&mut self, event: &Event) {
        self.frames.push(Frame { sequence: self.sequence, kind: event.kind().to_owned(), text: event.json() });
        self.sequence += 1;
    }

    /// Begins a block: sends `block`, and keeps it until it is complete.
    fn begin(&mut self, block: Block) -> usize {
        self.end_block();
        let index = self.content.len();
        self.emit(&Event::ContentBlockStart { index, content_block: block.clone() });
        self.content.push(block);
        index
    }

    fn delta(&mut self, delta: Delta) {
        let index = self.content.len().saturating_sub(1);
        self.emit(&Event::ContentBlockDelta { index, delta });
    }

    fn stop_block(&mut self) {
        let index = self.content.len().saturating_sub(1);
        self.emit(&Event::ContentBlockStop { index });
    }

    /// Ends the open block, if there is one.
    fn end_block(&mut self) {
        match &self.open {
            None => return,
            Some(Open::Text) => {
                let held = self.stop.end();
                self.say(&held);
            }
            Some(Open::Thinking) => self.delta(Delta::SignatureDelta { signature: SIGNATURE.to_owned() }),
            Some(Open::Program(item)) => {
                let program = self.programs.get(item).filter(|program| !program.code.is_empty());
                let end = match program {
                    None => "{}",
                    Some(program) if words_of(program.tool).1.is_none() => "",
                    Some(_) => END,
                };
                if !end.is_empty() {
                    self.delta(json_delta(end));
                }
            }
        }
        self.open = None;
        self.stop_block();
    }

    /// Adds text of the model. Returns false after a stop sequence, which ends the message.
    pub(super) fn text(&mut self, piece: &str) -> bool {
        match self.stop.scan(piece) {
            StopScan::Text(text) => {
                self.say(&text);
                true
            }
            StopScan::Stopped { text, word } => {
                self.say(&text);
                self.stop_sequence = Some(word);
                self.finish(StopReason::StopSequence);
                false
            }
        }
    }

    /// Emits a text unchanged.
    fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !matches!(self.open, Some(Open::Text)) {
            self.begin(Block::Text { text: String::new(), citations: Null });
            self.open = Some(Open::Text);
        }
        if let Some(Block::Text { text: whole, .. }) = self.content.last_mut() {
            whole.push_str(text);
        }
        self.delta(Delta::TextDelta { text: text.to_owned() });
    }

    /// Ends the text so far.
    pub(super) fn end_text(&mut self) {
        // Text that may begin a stop sequence is held back, possibly all of it.
        let held = self.stop.end();
        self.say(&held);
        if matches!(self.open, Some(Open::Text)) {
            self.end_block();
        }
    }

    /// Adds reasoning of the model.
    pub(super) fn think(&mut self, piece: &str) {
        if piece.is_empty() || self.thoughts == ThoughtsShown::None {
            return;
        }
        if !matches!(self.open, Some(Open::Thinking)) {
            self.end_text();
            self.begin(Block::Thinking { thinking: String::new(), signature: String::new() });
            self.open = Some(Open::Thinking);
        }
        let is_whole = self.thoughts == ThoughtsShown::Whole;
        if let Some(Block::Thinking { thinking, signature }) = self.content.last_mut() {
            SIGNATURE.clone_into(signature);
            if is_whole {
                thinking.push_str(piece);
            }
        }
        if is_whole {
            self.delta(Delta::ThinkingDelta { thinking: piece.to_owned() });
        }
    }

    /// Begins a program.
    pub(super) fn start_program(&mut self, item: &ItemId, tool: ToolKind) {
        self.end_text();
        if let Some(container) = &mut self.container {
            container.is_known = true;
        }
        let (id, name, input) = (id_of(item), words_of(tool).0, Map::new());
        let index = self.begin(Block::ServerToolUse { id, name, input, caller: Some(Caller::Direct) });
        self.open = Some(Open::Program(item.clone()));
        self.programs.insert(item.clone(), Program { index: Some(index), tool, code: String::new() });
        self.delta(json_delta(""));
    }

    /// Adds a piece of a program.
    pub(super) fn code(&mut self, item: &ItemId, piece: &str) {
        let Some(program) = self.programs.get_mut(item).filter(|_| !piece.is_empty()) else { return };
        let is_first = program.code.is_empty();
        program.code.push_str(piece);
        if matches!(&self.open, Some(Open::Program(open)) if open == item) {
            let sent = match words_of(program.tool).1 {
                Some(key) if is_first => format!("{{\"{key}\": \"{}", escaped(piece)),
                Some(_) => escaped(piece),
                None => piece.to_owned(),
            };
            self.delta(json_delta(&sent));
        }
    }

    /// Completes a program.
    pub(super) fn code_done(&mut self, item: &ItemId, tool: ToolKind, code: &str) {
        if !self.programs.contains_key(item) {
            self.start_program(item, tool);
        }
        let sent = self.programs.get(item).map_or(0, |program| program.code.len());
        if let Some(rest) = code.get(sent..).map(str::to_owned) {
            self.code(item, &rest);
        }
        if matches!(&self.open, Some(Open::Program(open)) if open == item) {
            self.end_block();
        }
        if let Some(program) = self.programs.get_mut(item) {
            code.clone_into(&mut program.code);
        }
    }

    /// Removes a program that has a result, once its call is complete.
    fn take_program(&mut self, item: &ItemId) -> Option<ToolKind> {
        let Program { index, tool, code } = self.programs.remove(item)?;
        if let Some(Block::ServerToolUse { input, .. }) = index.and_then(|index| self.content.get_mut(index))
            && !code.is_empty()
        {
            match words_of(tool).1 {
                Some(key) => {
                    input.insert(key.to_owned(), code.into());
                }
                None => *input = serde_json::from_str(&code).unwrap_or_default(),
            }
        }
        Some(tool)
    }

    /// Continues a program of an earlier message.
    pub(super) fn resume_program(&mut self, item: &ItemId, tool: ToolKind) {
        self.programs.insert(item.clone(), Program { index: None, tool, code: String::new() });
    }

    /// Adds the result of a lost program of an earlier message.
    pub(super) fn lose_program(&mut self, item: &ItemId, tool: ToolKind) {
        self.result(item, ProgramEnd::error(tool, ErrorCode::Unavailable).outcome);
    }

    /// Ends the message because a program waits for answers to its calls. The results of it and of later programs come in a later message.
    pub(super) fn wait_for_client(&mut self) {
        self.end_text();
        self.end_block();
        self.waits = true;
        let all: Vec<ItemId> = self.programs.keys().cloned().collect();
        for item in all {
            self.take_program(&item);
        }
    }

    /// Adds the result of a program.
    pub(super) fn end_program(&mut self, item: &ItemId, ended: ProgramEnd) {
        let ProgramEnd { outcome, rest } = ended;
        // The call may still be open, and ends with what it has.
        self.end_block();
        if self.take_program(item).is_none() {
            return;
        }
        self.result(item, outcome);
        if !rest.is_empty() {
            self.say(&rest);
            self.end_block();
        }
    }

    fn result(&mut self, item: &ItemId, outcome: Outcome) {
        self.begin(outcome.block(id_of(item)));
        self.stop_block();
    }

    /// Adds a call of a client's tool.
    pub(super) fn tool_call(&mut self, call: &ToolCall) {
        self.end_text();
        let (id, caller) = match (&call.caller, &self.container) {
            (Some(program), Some(MessageContainer { caller, .. })) => {
                let caller = ProgramCaller { r#type: (*caller).to_owned(), tool_id: id_of(program) };
                (call.item.with_prefix(TOOL_USE), Caller::Program(caller))
            }
            _ => (call.call_id.clone(), Caller::Direct),
        };
        self.begin(Block::ToolUse { id, name: call.name.clone(), input: Map::new(), caller: Some(caller) });
        let arguments = match serde_json::from_str(&call.arguments) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(other) => Map::from_iter([("arguments".to_owned(), other)]),
            Err(_) => Map::new(),
        };
        self.delta(json_delta(""));
        self.delta(json_delta(&Value::Object(arguments.clone()).to_string()));
        if let Some(Block::ToolUse { input, .. }) = self.content.last_mut() {
            *input = arguments;
        }
        self.stop_block();
    }

    /// Completes the message, but for its token counts.
    pub(super) fn finish(&mut self, reason: StopReason) {
        if self.has_finished() {
            return;
        }
        self.end_text();
        self.end_block();
        let mut left: Vec<(Option<usize>, ItemId)> =
            self.programs.iter().map(|(item, program)| (program.index, item.clone())).collect();
        left.sort_by_key(|(index, _)| *index);
        for (_, item) in left {
            if let Some(tool) = self.take_program(&item) {
                self.result(&item, ProgramEnd::error(tool, ErrorCode::Unavailable).outcome);
            }
        }
        self.stop_reason = Some(reason);
    }

    /// Ends a stream.
    pub(super) fn end(&mut self) {
        let delta = MessageChange {
            stop_reason: self.stop_reason,
            stop_details: Null,
            stop_sequence: self.stop_sequence.clone(),
            container: self.container(),
        };
        let (usage, context_management) = (usage_of(&self.usage), self.edits.clone());
        self.emit(&Event::MessageDelta { delta, usage, context_management });
        self.emit(&Event::MessageStop);
    }

    /// Ends a stream with an error.
    pub(super) fn fail(&mut self, envelope: anthropic::ErrorEnvelope) {
        let anthropic::ErrorEnvelope { error, request_id } = envelope;
        self.emit(&Event::Error { error, request_id });
    }
}

fn id_of(item: &ItemId) -> String {
    item.with_prefix(SERVER_TOOL_USE)
}

fn json_delta(partial_json: &str) -> Delta {
    Delta::InputJsonDelta { partial_json: partial_json.to_owned() }
}

/// A piece of text as it stands within a text in JSON.
fn escaped(piece: &str) -> String {
    let quoted = Value::from(piece).to_string();
    quoted.trim_start_matches('"').strip_suffix('"').unwrap_or_default().to_owned()
}

fn usage_of(usage: &TokenUsage) -> anthropic::Usage {
    anthropic::Usage {
        input_tokens: usage.input.saturating_sub(usage.cached),
        cache_read_input_tokens: usage.cached,
        output_tokens: usage.output,
        output_tokens_details: Some(TokenDetails { thinking_tokens: usage.reasoning }),
        ..anthropic::Usage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(stop: &[&str]) -> Writer {
        let container =
            MessageContainer { id: "cntr_1".into(), idle: 60, answers: 5, is_known: false, caller: "programs" };
        let stop = stop.iter().map(|word| (*word).to_owned()).collect();
        Writer::new("msg_1".into(), "m".into(), Some(container), stop).with_thoughts(ThoughtsShown::Whole)
    }

    /// Puts events together as clients do.
    fn accumulated(frames: &[Frame]) -> Message {
        let (mut message, mut json, mut open) = (None, String::new(), false);
        for frame in frames {
            let event: Event = serde_json::from_str(&frame.text).unwrap();
            let content = message.as_mut().map(|message: &mut Message| &mut message.content);
            match event {
                Event::MessageStart { message: begun } => message = Some(*begun),
                Event::ContentBlockStart { index, content_block } => {
                    assert!(!std::mem::replace(&mut open, true), "two blocks at once");
                    json.clear();
                    let content = content.unwrap();
                    assert_eq!(index, content.len());
                    content.push(content_block);
                }
                Event::ContentBlockDelta { index, delta } => match (&mut content.unwrap()[index], delta) {
                    (Block::Text { text, .. }, Delta::TextDelta { text: more }) => text.push_str(&more),
                    (Block::Thinking { thinking, .. }, Delta::ThinkingDelta { thinking: more }) => {
                        thinking.push_str(&more)
                    }
                    (Block::Thinking { signature, .. }, Delta::SignatureDelta { signature: all }) => *signature = all,
                    (_, Delta::InputJsonDelta { partial_json }) => json.push_str(&partial_json),
                    (block, delta) => panic!("{delta:?} of {block:?}"),
                },
                Event::ContentBlockStop { index } => {
                    assert!(std::mem::replace(&mut open, false));
                    if let Block::ServerToolUse { input, .. } | Block::ToolUse { input, .. } =
                        &mut content.unwrap()[index]
                    {
                        *input = serde_json::from_str(&json).unwrap();
                    }
                }
                Event::MessageDelta { delta, usage, .. } => {
                    let message = message.as_mut().unwrap();
                    (message.stop_reason, message.stop_sequence) = (delta.stop_reason, delta.stop_sequence);
                    (message.container, message.usage) = (delta.container, usage);
                }
                Event::MessageStop => assert!(!open),
                other => panic!("{other:?}"),
            }
        }
        message.unwrap()
    }

    #[test]
    fn events_add_up_to_the_message() {
        let mut writer = writer(&["END"]);
        let (one, two) = (ItemId::new(), ItemId::new());
        writer.set_time(1_000_000_000);
        writer.think("hm");
        assert!(writer.text("Let \"me\"\nE"));
        writer.start_program(&one, ToolKind::Python);
        writer.code(&one, "print(\"ü\\n\")\n# \u{1}");
        writer.start_program(&two, ToolKind::Python);
        writer.code(&two, "x = \"\"");
        writer.code(&two, "\ny");
        writer.code_done(&one, ToolKind::Python, "print(\"ü\\n\")\n# \u{1}");
        writer.end_program(&one, ProgramEnd::refused(ToolKind::Python, "no"));
        writer.code_done(&two, ToolKind::Python, "x = \"\"\ny");
        writer.end_program(
            &two,
            ProgramEnd { rest: "rest".into(), ..ProgramEnd::error(ToolKind::Python, ErrorCode::ExecutionTimeExceeded) },
        );
        let call = ToolCall {
            item: ItemId::new(),
            call_id: "toolu_1".into(),
            name: "f".into(),
            arguments: "{\"a\":1}".into(),
            caller: None,
        };
        writer.tool_call(&call);
        writer.use_tokens(TokenUsage { input: 10, cached: 4, output: 5, reasoning: 1 });
        writer.finish(StopReason::ToolUse);
        writer.end();
        let message = accumulated(&writer.take_frames());
        assert_eq!(message, writer.message());
        assert_eq!(message.container.unwrap().expires_at, "2001-09-09T01:47:40Z");
        assert_eq!((message.usage.input_tokens, message.usage.cache_read_input_tokens), (6, 4));
        let kinds: Vec<String> = message
            .content
            .iter()
            .map(|block| serde_json::to_value(block).unwrap()["type"].as_str().unwrap().into())
            .collect();
        let result = "code_execution_tool_result";
        let call = "server_tool_use";
        assert_eq!(kinds, ["thinking", "text", call, call, result, result, "text", "tool_use"]);
    }

    #[test]
    fn commands_and_changes_have_blocks_of_their_own() {
        let mut writer = writer(&[]);
        let (bash, editor) = (ItemId::new(), ItemId::new());
        writer.start_program(&bash, ToolKind::Bash);
        writer.code(&bash, "ls \"");
        writer.code_done(&bash, ToolKind::Bash, "ls \"a\"");
        writer.end_program(&bash, ProgramEnd::error(ToolKind::Bash, ErrorCode::ExecutionTimeExceeded));
        writer.start_program(&editor, ToolKind::Editor);
        writer.code_done(&editor, ToolKind::Editor, r#"{"command":"view","path":"a"}"#);
        writer.end_program(&editor, ProgramEnd::error(ToolKind::Editor, ErrorCode::FileNotFound));
        writer.finish(StopReason::EndTurn);
        writer.end();
        let message = accumulated(&writer.take_frames());
        assert_eq!(message, writer.message());
        let sent = serde_json::to_value(&message.content).unwrap();
        assert_eq!(
            (&sent[0]["name"], &sent[0]["input"]["command"]),
            (&"bash_code_execution".into(), &"ls \"a\"".into())
        );
        assert_eq!(sent[1]["content"]["type"], "bash_code_execution_tool_result_error");
        assert_eq!((&sent[2]["name"], &sent[2]["input"]["path"]), (&"text_editor_code_execution".into(), &"a".into()));
        assert_eq!(sent[3]["content"]["error_code"], "file_not_found");
    }

    #[test]
    fn a_program_that_was_cut_off_has_a_result_all_the_same() {
        let mut writer = writer(&[]);
        let item = ItemId::new();
        writer.start_program(&item, ToolKind::Python);
        writer.finish(StopReason::MaxTokens);
        writer.end();
        let message = accumulated(&writer.take_frames());
        assert_eq!(message, writer.message());
        assert!(writer.ends_with_result());
        let unavailable = ProgramEnd::error(ToolKind::Python, ErrorCode::Unavailable).outcome;
        assert_eq!(message.content[1], unavailable.block(id_of(&item)));
    }

    #[test]
    fn a_program_that_waits_has_its_result_in_a_later_message() {
        let (program, next, item) = (ItemId::new(), ItemId::new(), ItemId::new());
        let mut first = writer(&[]);
        for (program, code) in [(&program, "await f({})"), (&next, "1")] {
            first.start_program(program, ToolKind::Python);
            first.code_done(program, ToolKind::Python, code);
        }
        first.wait_for_client();
        let (arguments, caller) = ("{}".to_owned(), Some(program.clone()));
        first.tool_call(&ToolCall { item: item.clone(), call_id: String::new(), name: "f".into(), arguments, caller });
        first.finish(StopReason::ToolUse);
        first.end();
        let message = accumulated(&first.take_frames());
        assert_eq!(message, first.message());
        assert_eq!(message.container.unwrap().expires_at, "1970-01-01T00:00:05Z");
        let sent = serde_json::to_value(&message.content).unwrap();
        assert_eq!((&sent[0]["input"]["code"], &sent[1]["input"]["code"]), (&"await f({})".into(), &"1".into()));
        let caller = serde_json::json!({ "type": "programs", "tool_id": id_of(&program) });
        assert_eq!((&sent[2]["id"], &sent[2]["caller"]), (&item.with_prefix("toolu_").into(), &caller));
        assert_eq!(sent.as_array().unwrap().len(), 3, "no results");
        let mut second = writer(&[]);
        for item in [&program, &next] {
            second.resume_program(item, ToolKind::Python);
        }
        second.end_program(&program, ProgramEnd::error(ToolKind::Python, ErrorCode::Unavailable));
        second.code_done(&next, ToolKind::Python, "1");
        second.end_program(&next, ProgramEnd::error(ToolKind::Python, ErrorCode::Unavailable));
        second.finish(StopReason::EndTurn);
        second.end();
        let message = accumulated(&second.take_frames());
        let unavailable = |item| ProgramEnd::error(ToolKind::Python, ErrorCode::Unavailable).outcome.block(id_of(item));
        assert_eq!(message.content, [unavailable(&program), unavailable(&next)], "the calls are not told again");
    }

    #[test]
    fn a_stop_sequence_ends_the_message_and_is_named() {
        let mut writer = writer(&["END"]);
        assert!(writer.text("one E"));
        assert!(!writer.text("ND two"));
        writer.end();
        let message = accumulated(&writer.take_frames());
        assert_eq!(message.content, [Block::Text { text: "one ".into(), citations: Null }]);
        assert_eq!(
            (message.stop_reason, message.stop_sequence.as_deref()),
            (Some(StopReason::StopSequence), Some("END"))
        );
        assert_eq!(message.container, None);
    }
}
