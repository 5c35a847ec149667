//! The writer of a completion, whole and in chunks.
//!
//! To a client that knows only the protocol it looks like any answer: text, then an end. Programs are in extension fields of the message
//! (`code_interpreter_calls`, `files`, `container_id`) and of the deltas of a stream: every entry of a list has an `index`, and texts
//! continue, so that a client that adds up deltas gets the same message.

use std::collections::VecDeque;

use aludel_agent::upstream::TokenUsage;
use aludel_engine::SessionFile;
use aludel_engine::turns::{Frame, ItemId, ToolCall};
use aludel_store::now;
use serde_json::{Map, Value, json};

use super::markdown::Markdown;
use super::rounds;
use crate::dialects::openai::program::ProgramEnd;
use crate::dialects::stop_words::StopWords;

/// The kind of a frame with a failure.
pub(super) const ERROR: &str = "error";
/// The last frame of a stream.
const DONE: &str = "[DONE]";

/// A completion that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    id: String,
    created: i64,
    model: String,
    include_usage: IncludeUsage,
    choices: Vec<Choice>,
    usage: TokenUsage,
    sequence: u64,
    chunks: Vec<Frame>,
}

/// True if a stream has the usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IncludeUsage(pub(super) bool);

/// One of the answers.
#[derive(Debug)]
struct Choice {
    container: Option<String>,
    /// Writes programs into the text, for a client that does not know our fields.
    markdown: Option<Markdown>,
    /// With Markdown: the first program that has not ended, and all that comes after it.
    queue: VecDeque<Queued>,
    stop: StopWords,
    /// True if the text that was sent last continues.
    in_text: bool,
    content: String,
    refusal: String,
    reasoning: String,
    programs: Vec<Program>,
    files: Vec<SessionFile>,
    /// Files among them that the text has as pictures.
    pictures: Vec<SessionFile>,
    calls: Vec<Value>,
    has_begun: bool,
    finish: Option<&'static str>,
}

#[derive(Debug)]
struct Program {
    id: ItemId,
    item: Value,
    has_ended: bool,
    /// True if the text has its beginning: more of its code follows at once.
    is_open: bool,
    /// True if a person decides about it, and the text says so after its code.
    needs_approval: bool,
    /// Its end, until the text has it.
    end: Option<String>,
}

/// A part of a text with programs that waits for the end of those before it. A model may write several before the first one runs.
#[derive(Debug)]
enum Queued {
    Text(String),
    /// A program, by its place.
    Program(usize),
}

impl Writer {
    /// One choice for each container, with its programs in the text or in extension fields.
    pub(super) fn new(
        id: String,
        model: String,
        include_usage: IncludeUsage,
        containers: Vec<(Option<String>, Option<Markdown>)>,
        stop: &[String],
    ) -> Self {
        let choices = containers.into_iter().map(|(container, markdown)| Choice {
            container,
            markdown,
            queue: VecDeque::new(),
            stop: StopWords::new(stop.to_vec()),
            in_text: false,
            content: String::new(),
            refusal: String::new(),
            reasoning: String::new(),
            programs: Vec::new(),
            files: Vec::new(),
            pictures: Vec::new(),
            calls: Vec::new(),
            has_begun: false,
            finish: None,
        });
        Self {
            id,
            created: now(),
            model,
            include_usage,
            choices: choices.collect(),
            usage: TokenUsage::default(),
            sequence: 0,
            chunks: Vec::new(),
        }
    }

    /// The completion's id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Takes the chunks since the last call.
    pub(super) fn take_chunks(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.chunks)
    }

    pub(super) fn use_tokens(&mut self, usage: TokenUsage) {
        self.usage += usage;
    }

    /// Returns true if this answer is complete.
    pub(super) fn has_finished(&self, index: usize) -> bool {
        self.choices.get(index).is_none_or(|choice| choice.finish.is_some())
    }

    /// Adds a chunk, also to a completion that its client wants whole: a repetition of the request may ask for chunks.
    fn emit(&mut self, index: usize, mut delta: Value, finish: Option<&'static str>) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        if !std::mem::replace(&mut choice.has_begun, true)
            && let Some(fields) = delta.as_object_mut()
        {
            fields.insert("role".into(), "assistant".into());
            fields.entry("content").or_insert_with(|| "".into());
        }
        self.chunk(json!([{ "index": index, "delta": delta, "logprobs": null, "finish_reason": finish }]), None);
    }

    fn chunk(&mut self, choices: Value, usage: Option<Value>) {
        let mut chunk = Map::new();
        chunk.insert("id".into(), self.id.clone().into());
        chunk.insert("object".into(), "chat.completion.chunk".into());
        chunk.insert("created".into(), self.created.into());
        chunk.insert("model".into(), self.model.clone().into());
        chunk.insert("choices".into(), choices);
        if self.include_usage == IncludeUsage(true) {
            chunk.insert("usage".into(), usage.unwrap_or_default());
        }
        self.push("", Value::Object(chunk).to_string());
    }

    fn push(&mut self, kind: &str, text: String) {
        self.chunks.push(Frame { sequence: self.sequence, kind: kind.to_owned(), text });
        self.sequence += 1;
    }

    /// Adds text of the model. Returns false after a stop word, which ends the answer.
    pub(super) fn text(&mut self, index: usize, piece: &str) -> bool {
        let Some(choice) = self.choices.get_mut(index) else { return false };
        let (text, goes_on) = choice.stop.scan(piece).into_text();
        self.show(index, text);
        if !goes_on {
            self.finish(index, "stop");
        }
        goes_on
    }

    /// Adds words of ours, apart from the model's. No stop word is looked for in them.
    pub(super) fn note(&mut self, index: usize, words: &str) {
        self.end_text(index);
        self.show(index, words.to_owned());
    }

    /// Adds words with which the model refuses to answer; with Markdown they are text, since chat products show nothing else. Returns
    /// false after a stop word.
    pub(super) fn refuse(&mut self, index: usize, piece: &str) -> bool {
        let Some(choice) = self.choices.get_mut(index) else { return false };
        if choice.markdown.is_some() {
            return self.text(index, piece);
        }
        choice.refusal.push_str(piece);
        self.emit(index, json!({ "refusal": piece }), None);
        true
    }

    /// Emits text of the model, after the programs before it.
    fn show(&mut self, index: usize, text: String) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        let text = match (&mut choice.markdown, choice.queue.back_mut()) {
            (None, _) => text,
            (Some(markdown), None) => markdown.text(&text, &choice.files),
            (Some(_), Some(Queued::Text(queued))) => return queued.push_str(&text),
            (Some(_), Some(Queued::Program(_))) => return choice.queue.push_back(Queued::Text(text)),
        };
        self.say(index, &text);
    }

    /// Emits a text unchanged.
    fn say(&mut self, index: usize, text: &str) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        if text.is_empty() {
            return;
        }
        // Text before and after a program are two paragraphs.
        let needs_break = !choice.in_text && !choice.content.is_empty();
        let text = if needs_break { format!("\n\n{text}") } else { text.to_owned() };
        choice.in_text = true;
        choice.content.push_str(&text);
        self.emit(index, json!({ "content": text }), None);
    }

    /// Ends the text so far.
    fn end_text(&mut self, index: usize) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        let held = choice.stop.end();
        if !held.is_empty() {
            self.show(index, held);
        }
        // A program that is open goes on.
        let Some(choice) = self.choices.get_mut(index).filter(|choice| choice.queue.is_empty()) else { return };
        let rest = choice.markdown.as_mut().map(|markdown| markdown.end_text(&choice.files));
        self.say(index, &rest.unwrap_or_default());
        if let Some(choice) = self.choices.get_mut(index) {
            choice.in_text = false;
        }
    }

    /// Emits the queue up to the end of the code of the first program that has not ended.
    fn write_queue(&mut self, index: usize) {
        while let Some((text, is_whole)) = self.choices.get_mut(index).and_then(Choice::next_queued) {
            self.say(index, &text);
            if let Some(choice) = self.choices.get_mut(index).filter(|_| is_whole) {
                choice.in_text = false;
            }
        }
    }

    /// Adds reasoning of the model.
    pub(super) fn think(&mut self, index: usize, piece: &str) {
        if let Some(choice) = self.choices.get_mut(index) {
            choice.reasoning.push_str(piece);
        }
        self.emit(index, json!({ "reasoning_content": piece }), None);
    }

    /// Begins a program.
    pub(super) fn start_program(&mut self, index: usize, id: &ItemId) {
        self.end_text(index);
        let Some(choice) = self.choices.get_mut(index) else { return };
        let item = json!({
            "id": id.with_prefix("ci_"), "type": "code_interpreter_call", "container_id": choice.container, "code": "",
        });
        let place = choice.programs.len();
        let mut delta = item.clone();
        delta["index"] = place.into();
        choice.programs.push(Program {
            id: id.clone(),
            item,
            has_ended: false,
            is_open: false,
            needs_approval: false,
            end: None,
        });
        if choice.markdown.is_none() {
            return self.emit(index, json!({ "code_interpreter_calls": [delta] }), None);
        }
        choice.queue.push_back(Queued::Program(place));
        self.write_queue(index);
    }

    /// Adds a piece of a program.
    pub(super) fn code(&mut self, index: usize, id: &ItemId, piece: &str) {
        if let Some((place, program)) = self.program(index, id) {
            if let Some(Value::String(code)) = program.item.get_mut("code") {
                code.push_str(piece);
            }
            self.tell_code(index, place, piece);
        }
    }

    /// Completes a program.
    pub(super) fn code_done(&mut self, index: usize, id: &ItemId, code: &str) {
        let Some((place, program)) = self.program(index, id) else { return };
        let was_told = program.item["code"] != "";
        program.item["code"] = code.into();
        if !was_told && self.has_markdown(index) {
            self.tell_code(index, place, code);
        }
    }

    /// Tells that a person decides about a complete program.
    pub(super) fn ask_approval(&mut self, index: usize, id: &ItemId) {
        let Some((place, program)) = self.program(index, id) else { return };
        if std::mem::replace(&mut program.needs_approval, true) {
            return;
        }
        let Some(choice) = self.choices.get(index) else { return };
        let open = choice.programs.get(place).filter(|program| program.is_open);
        if let (Some(markdown), Some(program)) = (&choice.markdown, open) {
            let note = markdown.needs_approval(program.code());
            self.say(index, &note);
        }
    }

    fn has_markdown(&self, index: usize) -> bool {
        self.choices.get(index).is_some_and(|choice| choice.markdown.is_some())
    }

    fn tell_code(&mut self, index: usize, place: usize, piece: &str) {
        let Some(choice) = self.choices.get(index) else { return };
        let Some(markdown) = &choice.markdown else {
            return self.emit(index, json!({ "code_interpreter_calls": [{ "index": place, "code": piece }] }), None);
        };
        let is_open = choice.programs.get(place).is_some_and(|program| program.is_open);
        if is_open && markdown.shows_code() {
            self.say(index, piece);
        }
    }

    /// Adds the end of a program.
    pub(super) fn end_program(&mut self, index: usize, id: &ItemId, ended: ProgramEnd) {
        let Some((place, program)) = self.program(index, id) else { return };
        let outputs: Vec<Value> = ended.outputs().iter().map(|output| json!(output)).collect();
        program.has_ended = true;
        program.item["status"] = ended.status.into();
        program.item["outputs"] = outputs.clone().into();
        let indexed = outputs.into_iter().enumerate().map(|(index, mut output)| {
            output["index"] = index.into();
            output
        });
        let indexed: Vec<Value> = indexed.collect();
        let delta = json!({ "index": place, "status": ended.status, "outputs": indexed });
        let code = program.code().to_owned();
        let needed_approval = program.needs_approval;
        let Some(choice) = self.choices.get_mut(index) else { return };
        let end = choice.markdown.as_ref().map(|markdown| markdown.end(&code, needed_approval, &ended));
        for file in ended.files {
            choice.files.retain(|known| known.path != file.path);
            choice.files.push(file);
        }
        choice.pictures.extend(ended.pictures);
        if end.is_none() {
            return self.emit(index, json!({ "code_interpreter_calls": [delta] }), None);
        }
        if let Some(program) = choice.programs.get_mut(place) {
            program.end = end;
        }
        self.write_queue(index);
        self.end_text(index);
    }

    /// Ends the programs of an answer that have not ended.
    fn end_programs(&mut self, index: usize) {
        let Some(choice) = self.choices.get(index) else { return };
        let open: Vec<ItemId> =
            choice.programs.iter().filter(|program| !program.has_ended).map(|program| program.id.clone()).collect();
        for id in open {
            self.end_program(index, &id, ProgramEnd::incomplete());
        }
    }

    fn program(&mut self, index: usize, id: &ItemId) -> Option<(usize, &mut Program)> {
        let programs = &mut self.choices.get_mut(index)?.programs;
        programs.iter_mut().enumerate().rev().find(|(_, program)| program.id == *id && !program.has_ended)
    }

    /// Adds a call of a client's function.
    pub(super) fn function_call(&mut self, index: usize, call: &ToolCall) {
        self.end_text(index);
        let Some(choice) = self.choices.get_mut(index) else { return };
        let function = json!({ "name": call.name, "arguments": call.arguments });
        let call = json!({ "id": rounds::call_id(&call.item), "type": "function", "function": function });
        let mut delta = call.clone();
        delta["index"] = choice.calls.len().into();
        choice.calls.push(call);
        self.emit(index, json!({ "tool_calls": [delta] }), None);
    }

    /// Completes an answer.
    pub(super) fn finish(&mut self, index: usize, reason: &'static str) {
        if self.has_finished(index) {
            return;
        }
        self.end_text(index);
        self.end_programs(index);
        let Some(choice) = self.choices.get_mut(index) else { return };
        choice.finish = Some(reason);
        if let Some(markdown) = &choice.markdown {
            let is_seen = |file: &SessionFile| choice.pictures.iter().any(|seen| seen.id == file.id);
            let files: Vec<SessionFile> = choice.files.iter().filter(|file| !is_seen(file)).cloned().collect();
            let list = markdown.files(&files);
            self.say(index, &list);
            return self.emit(index, json!({}), Some(reason));
        }
        let files = choice.files();
        if !files.is_empty() {
            let indexed: Vec<Value> = files
                .into_iter()
                .enumerate()
                .map(|(index, mut file)| {
                    file["index"] = index.into();
                    file
                })
                .collect();
            self.emit(index, json!({ "files": indexed }), None);
        }
        // Once, since clients add up the pieces of a field, or keep the last one.
        let used = self.choices.get(index).filter(|choice| !choice.programs.is_empty());
        let last = used.map_or(json!({}), |choice| json!({ "container_id": choice.container }));
        self.emit(index, last, Some(reason));
    }

    /// Ends a stream.
    pub(super) fn end(&mut self) {
        if self.include_usage == IncludeUsage(true) {
            self.chunk(json!([]), Some(usage_of(&self.usage)));
        }
        self.push("", DONE.to_owned());
    }

    /// Ends a stream with an error. Text that was sent has no open program: its client may send it back.
    pub(super) fn fail(&mut self, error: &aludel_wire::openai::ErrorEnvelope) {
        for index in 0..self.choices.len() {
            let has_begun = self.choices.get(index).is_some_and(|choice| choice.has_begun);
            if has_begun && self.has_markdown(index) {
                self.end_programs(index);
            }
        }
        self.push(ERROR, serde_json::to_string(error).unwrap_or_default());
        self.push("", DONE.to_owned());
    }

    /// The completion.
    pub(super) fn object(&self) -> Value {
        let choices: Vec<Value> = self.choices.iter().enumerate().map(|(index, choice)| choice.object(index)).collect();
        json!({
            "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model, "choices": choices,
            "usage": usage_of(&self.usage), "service_tier": null, "system_fingerprint": null,
        })
    }
}

impl Program {
    fn code(&self) -> &str {
        self.item["code"].as_str().unwrap_or_default()
    }
}

impl Choice {
    /// The next text of the queue, if it may be written, and true if it ends a paragraph.
    fn next_queued(&mut self) -> Option<(String, bool)> {
        let markdown = self.markdown.as_mut()?;
        match self.queue.pop_front()? {
            Queued::Text(text) => {
                let text = markdown.text(&text, &self.files);
                let is_whole = !self.queue.is_empty();
                let rest = if is_whole { markdown.end_text(&self.files) } else { String::new() };
                Some((text + &rest, is_whole))
            }
            Queued::Program(place) => {
                let program = self.programs.get_mut(place)?;
                let mut text = String::new();
                let began = !std::mem::replace(&mut program.is_open, true);
                if began && markdown.shows_code() {
                    text = markdown.begin() + program.code();
                }
                if began && program.needs_approval {
                    text.push_str(&markdown.needs_approval(program.code()));
                }
                if let Some(end) = program.end.take() {
                    return Some((text + &end, true));
                }
                self.queue.push_front(Queued::Program(place));
                (!text.is_empty()).then_some((text, false))
            }
        }
    }

    fn files(&self) -> Vec<Value> {
        let files = self.files.iter().map(|file| {
            json!({
                "container_id": self.container, "file_id": file.id.as_str(), "path": file.path, "bytes": file.bytes,
                "filename": file.path.rsplit('/').next().unwrap_or(&file.path), "mime_type": file.mime,
            })
        });
        files.collect()
    }

    fn object(&self, index: usize) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let has_content = !self.content.is_empty() || (self.calls.is_empty() && self.refusal.is_empty());
        message.insert("content".into(), if has_content { self.content.clone().into() } else { Value::Null });
        let refusal = Some(&self.refusal).filter(|refusal| !refusal.is_empty());
        message.insert("refusal".into(), json!(refusal));
        message.insert("annotations".into(), json!([]));
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), self.reasoning.clone().into());
        }
        if !self.calls.is_empty() {
            message.insert("tool_calls".into(), self.calls.clone().into());
        }
        if self.container.is_some() && self.markdown.is_none() {
            let programs: Vec<Value> = self.programs.iter().map(|program| program.item.clone()).collect();
            // A container in which nothing ran is gone.
            let container = self.container.clone().filter(|_| !programs.is_empty());
            message.insert("code_interpreter_calls".into(), programs.into());
            message.insert("files".into(), self.files().into());
            message.insert("container_id".into(), container.into());
        }
        json!({ "index": index, "message": message, "logprobs": null, "finish_reason": self.finish })
    }
}

fn usage_of(usage: &TokenUsage) -> Value {
    json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.total(),
        "prompt_tokens_details": { "cached_tokens": usage.cached, "audio_tokens": 0 },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning },
    })
}

#[cfg(test)]
mod tests {
    use aludel_engine::ProgramParts;
    use aludel_engine::turns::{Failure, FailureKind};
    use aludel_store::{SessionId, Tenant};
    use aludel_wire::openai::ErrorEnvelope;

    use super::super::markdown::{AnswerPart, read};
    use super::*;
    use crate::dialects::openai::error;
    use crate::links::Links;

    fn failure() -> ErrorEnvelope {
        error::body(&Failure::new(FailureKind::Internal, "broken").into())
    }

    fn writer(shown: ProgramParts, stop: &[String]) -> Writer {
        let links = Links::for_tests("http://a.example", &Tenant::local(), &SessionId::new());
        let choices = vec![(None, Some(Markdown::new(shown, "python", links)))];
        Writer::new("chatcmpl-1".into(), "m".into(), IncludeUsage(false), choices, stop)
    }

    /// The programs of a text that was sent, by their code and output, and the texts around them.
    fn sent(writer: &mut Writer) -> Vec<AnswerPart> {
        let chunks = writer.take_chunks();
        let chunks = chunks.iter().filter_map(|frame| serde_json::from_str::<Value>(&frame.text).ok());
        let deltas = chunks.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned));
        let text: String = deltas.collect();
        let fences = text.lines().filter(|line| line.starts_with("````")).count();
        let parts = read(&text, "python").0;
        let programs = parts.iter().filter(|part| matches!(part, AnswerPart::Program { .. })).count();
        assert_eq!(fences, 2 * programs, "{text}");
        parts
    }

    fn program(code: &str, logs: &str) -> AnswerPart {
        AnswerPart::Program { code: code.into(), logs: logs.into() }
    }

    fn text(text: &str) -> AnswerPart {
        AnswerPart::Text(text.into())
    }

    fn ended(logs: &str) -> ProgramEnd {
        ProgramEnd { logs: logs.into(), ..ProgramEnd::incomplete() }
    }

    /// Writes programs as a model that makes several calls in one round does.
    fn write(writer: &mut Writer, codes: [&str; 3]) -> [ItemId; 3] {
        codes.map(|code| {
            let id = ItemId::new();
            writer.start_program(0, &id);
            let (start, rest) = code.split_at(1);
            writer.code(0, &id, start);
            writer.code(0, &id, rest);
            writer.code_done(0, &id, code);
            id
        })
    }

    #[test]
    fn programs_of_one_round_follow_each_other() {
        let mut writer = writer(ProgramParts::All, &[]);
        writer.text(0, "Let me see.");
        let [a, b, c] = write(&mut writer, ["aa", "bb", "cc"]);
        writer.text(0, "And ");
        writer.text(0, "then?");
        // One that is refused ends before the first has run.
        writer.end_program(0, &b, ended("B"));
        writer.end_program(0, &a, ended("A"));
        writer.end_program(0, &c, ended("C"));
        writer.text(0, "Done.");
        writer.finish(0, "stop");
        let object = writer.object()["choices"][0]["message"]["content"].clone();
        let parts = [program("aa", "A"), program("bb", "B"), program("cc", "C"), text("And then?\n\nDone.")];
        let parts: Vec<AnswerPart> = [text("Let me see.")].into_iter().chain(parts).collect();
        assert_eq!(read(object.as_str().unwrap(), "python").0, parts);
        assert_eq!(sent(&mut writer), parts);
    }

    #[test]
    fn code_of_the_open_program_is_sent_at_once() {
        let mut writer = writer(ProgramParts::All, &[]);
        let id = ItemId::new();
        writer.start_program(0, &id);
        writer.code(0, &id, "aa");
        assert!(writer.take_chunks().last().unwrap().text.contains(r#""content":"aa""#));
    }

    #[test]
    fn an_answer_that_is_cut_has_no_open_program() {
        let cuts: [fn(&mut Writer); 3] = [
            |writer| writer.finish(0, "length"),
            |writer| assert!(!writer.text(0, "STOP")),
            |writer| writer.fail(&failure()),
        ];
        for cut in cuts {
            let mut writer = writer(ProgramParts::All, &["STOP".into()]);
            let [a, _, c] = write(&mut writer, ["aa", "bb", "cc"]);
            writer.end_program(0, &c, ended("C"));
            writer.end_program(0, &a, ended("A"));
            cut(&mut writer);
            assert_eq!(sent(&mut writer), [program("aa", "A"), program("bb", ""), program("cc", "C")]);
        }
    }

    #[test]
    fn a_person_sees_which_program_needs_an_approval() {
        let note = "*This program needs an approval.*";
        let notes = |writer: &mut Writer| {
            let chunks = writer.take_chunks();
            chunks.iter().map(|chunk| chunk.text.matches(note).count()).sum::<usize>()
        };
        for shown in [ProgramParts::All, ProgramParts::Output] {
            let mut writer = writer(shown, &[]);
            let [a, b, c] = write(&mut writer, ["aa", "bb", "cc"]);
            for id in [&a, &a, &c] {
                writer.ask_approval(0, id);
            }
            assert_eq!(notes(&mut writer), 1, "of the first program, at once");
            writer.end_program(0, &a, ended("A"));
            assert_eq!(notes(&mut writer), 0);
            writer.end_program(0, &b, ended("B"));
            assert_eq!(notes(&mut writer), 1, "of the last one, in its place");
            writer.end_program(0, &c, ended("C"));
            writer.finish(0, "stop");
            let content = writer.object()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
            assert_eq!(content.matches(note).count(), 2, "{content}");
            if shown == ProgramParts::All {
                let parts = [program("aa", "A"), program("bb", "B"), program("cc", "C")];
                assert_eq!(read(&content, "python").0, parts, "{content}");
            }
        }
    }

    #[test]
    fn a_failure_before_the_first_word_stands_alone() {
        let mut writer = writer(ProgramParts::Output, &[]);
        write(&mut writer, ["aa", "bb", "cc"]);
        writer.fail(&failure());
        assert_eq!(writer.take_chunks()[0].kind, ERROR);
    }

    #[test]
    fn outputs_alone_are_paragraphs_in_order() {
        let mut writer = writer(ProgramParts::Output, &[]);
        // Letters that no id has.
        let [a, b, c] = write(&mut writer, ["xx", "yy", "zz"]);
        for (id, logs) in [(&b, "B"), (&a, "A"), (&c, "C")] {
            writer.end_program(0, id, ended(logs));
        }
        writer.finish(0, "stop");
        let content = writer.object()["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        let places = ["\nA\n", "</details>\n\n<details", "\nB\n", "\nC\n"].map(|words| content.find(words).unwrap());
        assert!(places.is_sorted() && !content.contains("xx"), "{content}");
    }
}
