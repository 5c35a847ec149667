//! The writer of steps and their events.
//!
//! Texts are streamed; programs and their output are sent whole, because the protocol has no deltas for them. It has no place for files
//! other than pictures: the text ends with links to them.

use aludel_agent::upstream;
use aludel_engine::SessionFile;
use aludel_engine::turns::{Frame, ItemId, ToolCall};
use aludel_wire::gemini::interactions::{
    CodeArguments, Content, Delta, Event, Interaction, InteractionError, Media, Status, Step, StreamEvent, Usage,
};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};

use crate::dialects::gemini::conversation::program_id;
use crate::dialects::gemini::program_output::ProgramImage;
use crate::dialects::reasoning::wrapped;
use crate::dialects::rfc3339::rfc3339;
use crate::dialects::stop_words::StopWords;
use crate::links::Links;

/// An interaction that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    /// The interaction, but for its steps.
    answer: Interaction,
    /// Links to the files of the session, if there is one.
    links: Option<Links>,
    /// True if the text ends with links to the files that were made: not where clients parse it.
    links_files: bool,
    stop: StopWords,
    tells_thoughts: bool,
    steps: Vec<Step>,
    open: Open,
    /// Programs without a result.
    running: Vec<ItemId>,
    files: Vec<SessionFile>,
    /// Files that were shown as pictures.
    pictures: Vec<SessionFile>,
    has_finished: bool,
    sequence: u64,
    frames: Vec<Frame>,
}

/// The open step, which is the last one.
#[derive(Debug)]
enum Open {
    None,
    Text,
    Thought(String),
}

impl Writer {
    pub(super) fn new(answer: Interaction, links: Option<Links>, stop: Vec<String>, tells_thoughts: bool) -> Self {
        let (stop, open) = (StopWords::new(stop), Open::None);
        let (steps, running, files, pictures) = Default::default();
        let (has_finished, sequence, frames) = Default::default();
        Self {
            answer,
            links,
            links_files: true,
            stop,
            tells_thoughts,
            steps,
            open,
            running,
            files,
            pictures,
            has_finished,
            sequence,
            frames,
        }
    }

    /// Leaves the list of files out, since the client parses the text.
    pub(super) fn without_file_links(mut self) -> Self {
        self.links_files = false;
        self
    }

    pub(super) fn take_frames(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }

    /// Sets the time, seconds since 1970.
    pub(super) fn set_time(&mut self, now: i64) {
        self.answer.updated = rfc3339(now);
    }

    /// Continues the numbers of events from `sequence`, unless they are beyond it.
    pub(super) fn skip_to(&mut self, sequence: u64) {
        self.sequence = self.sequence.max(sequence);
    }

    /// Returns true if no step was begun.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns true if no step follows.
    pub(super) fn has_finished(&self) -> bool {
        self.has_finished
    }

    /// The interaction so far.
    pub(super) fn interaction(&self) -> Interaction {
        Interaction { steps: Some(self.steps.clone()), ..self.answer.clone() }
    }

    /// The interaction in the form of events.
    fn snapshot(&self) -> Box<Interaction> {
        let answer = &self.answer;
        Box::new(Interaction {
            id: answer.id.clone(),
            model: answer.model.clone(),
            status: answer.status,
            created: answer.created.clone(),
            updated: answer.updated.clone(),
            usage: answer.usage,
            previous_interaction_id: answer.previous_interaction_id.clone(),
            environment_id: answer.environment_id.clone(),
            ..Interaction::default()
        })
    }

    /// Sends the event that the interaction exists.
    pub(super) fn create(&mut self, status: Status) {
        self.answer.status = status;
        let interaction = self.snapshot();
        self.emit(Event::Created { interaction });
    }

    /// Sends the event that it is under way.
    pub(super) fn begin(&mut self) {
        self.answer.status = Status::InProgress;
        let interaction_id = self.answer.id.clone();
        self.emit(Event::StatusUpdate { interaction_id, status: Status::InProgress });
    }

    /// Counts the tokens of one round. Input tokens after the first round count as used for programs.
    pub(super) fn use_tokens(&mut self, round: u32, tokens: upstream::TokenUsage) {
        let usage = self.answer.usage.get_or_insert_with(Usage::default);
        match round {
            0 | 1 => usage.total_input_tokens += tokens.input,
            _ => usage.total_tool_use_tokens += tokens.input,
        }
        usage.total_cached_tokens += tokens.cached;
        usage.total_thought_tokens += tokens.reasoning;
        usage.total_output_tokens += tokens.output.saturating_sub(tokens.reasoning);
        usage.total_tokens += tokens.total();
    }

    /// Adds text of the model. Returns false after a stop word, which ends the answer.
    pub(super) fn text(&mut self, piece: &str) -> bool {
        let (text, goes_on) = self.stop.scan(piece).into_text();
        self.say(text);
        if !goes_on {
            self.finish();
        }
        goes_on
    }

    /// Adds words of ours, apart from the model's. No stop word is looked for in them.
    pub(super) fn note(&mut self, words: &str) {
        self.end_text();
        self.say(words.to_owned());
    }

    /// Ends a text.
    pub(super) fn end_text(&mut self) {
        let held = self.stop.end();
        self.say(held);
        self.close();
    }

    fn say(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        if !matches!(self.open, Open::Text) {
            self.close();
            self.start(Step::ModelOutput { content: Vec::new() });
            self.open = Open::Text;
        }
        if let Some(Step::ModelOutput { content }) = self.steps.last_mut() {
            match content.last_mut() {
                Some(Content::Text { text: before }) => before.push_str(&text),
                _ => content.push(Content::text(text.clone())),
            }
        }
        self.go_on(Delta::Text { text });
    }

    /// Adds reasoning of the model.
    pub(super) fn think(&mut self, piece: &str) {
        if !matches!(self.open, Open::Thought(_)) {
            self.end_text();
            self.start(Step::Thought { signature: None, summary: Vec::new() });
            self.open = Open::Thought(String::new());
        }
        if let Open::Thought(thought) = &mut self.open {
            thought.push_str(piece);
        }
        if !self.tells_thoughts {
            return;
        }
        if let Some(Step::Thought { summary, .. }) = self.steps.last_mut() {
            match summary.last_mut() {
                Some(Content::Text { text }) => text.push_str(piece),
                _ => summary.push(Content::text(piece)),
            }
        }
        self.go_on(Delta::ThoughtSummary { content: Content::text(piece) });
    }

    /// Ends the step that is being written.
    fn close(&mut self) {
        match std::mem::replace(&mut self.open, Open::None) {
            Open::None => return,
            Open::Text => {}
            Open::Thought(thought) => {
                let wrapped = wrapped(&thought);
                if let Some(Step::Thought { signature, .. }) = self.steps.last_mut() {
                    *signature = Some(wrapped.clone());
                }
                self.go_on(Delta::ThoughtSignature { signature: wrapped });
            }
        }
        self.stop_step();
    }

    /// Adds a complete program. One that waited when the server ended is sent only once.
    pub(super) fn program(&mut self, item: &ItemId, code: &str) {
        if self.running.contains(item) {
            return;
        }
        self.end_text();
        self.running.push(item.clone());
        let arguments = CodeArguments { code: Some(code.to_owned()), language: Some("python".to_owned()) };
        let id = self.id_of(item);
        let call = |arguments| Step::CodeExecutionCall { id: id.clone(), arguments };
        let delta = Delta::CodeExecutionCall { arguments: arguments.clone() };
        self.whole(call(CodeArguments::default()), delta, call(arguments));
    }

    /// Adds a program's end. If it never began for the client, it begins first.
    pub(super) fn end_program(&mut self, item: &ItemId, is_error: bool, output: String) {
        self.program(item, "");
        self.running.retain(|running| running != item);
        self.end_text();
        let result = |result: String, is_error| Step::CodeExecutionResult {
            call_id: self.id_of(item),
            result: result.into(),
            is_error,
        };
        let delta = Delta::CodeExecutionResult { result: output.clone(), is_error };
        self.whole(result(String::new(), None), delta, result(output, Some(is_error)));
    }

    /// The id of a program, by which a client that keeps the conversation itself leads back to the session.
    fn id_of(&self, item: &ItemId) -> String {
        match &self.links {
            Some(links) => program_id(links.container(), &item.with_prefix("code_")),
            None => item.with_prefix("code_"),
        }
    }

    /// Shows pictures.
    pub(super) fn show(&mut self, pictures: Vec<ProgramImage>) {
        for ProgramImage { file, bytes } in pictures {
            let (data, mime_type) = (Some(BASE64_STANDARD.encode(bytes)), Some(file.mime.clone()));
            let media = Media { data, mime_type, uri: None };
            let output = |content| Step::ModelOutput { content };
            self.whole(output(Vec::new()), Delta::Image(media.clone()), output(vec![Content::Image(media)]));
            self.pictures.push(file);
        }
    }

    pub(super) fn add_files(&mut self, files: &[SessionFile]) {
        for file in files {
            self.files.retain(|known| known.path != file.path);
            self.files.push(file.clone());
        }
    }

    /// Adds a call of a client's function.
    pub(super) fn function_call(&mut self, call: &ToolCall) {
        let arguments: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap_or_default();
        let step = |arguments| Step::FunctionCall { id: call.call_id.clone(), name: call.name.clone(), arguments };
        let delta = Delta::ArgumentsDelta { arguments: Value::Object(arguments.clone()).to_string() };
        self.whole(step(Map::new()), delta, step(arguments));
    }

    /// Ends the open step, and links the files that were made.
    pub(super) fn finish(&mut self) {
        if std::mem::replace(&mut self.has_finished, true) {
            return;
        }
        let held = self.stop.end();
        self.say(held);
        for item in self.running.clone() {
            self.end_program(&item, true, "It was not run to its end.".to_owned());
        }
        self.files.retain(|file| !self.pictures.iter().any(|picture| picture.id == file.id));
        if let Some(links) = self.links.as_ref().filter(|_| self.links_files && !self.files.is_empty()) {
            let list = links.list(&self.files);
            self.say(if matches!(self.open, Open::Text) { format!("\n\n{list}") } else { list });
        }
        self.close();
    }

    /// Sends its end, the last event.
    pub(super) fn end(&mut self, status: Status) {
        self.answer.status = status;
        let interaction = self.snapshot();
        self.emit(Event::Completed { interaction });
    }

    /// Sends its failure, the last event.
    pub(super) fn fail(&mut self, error: InteractionError) {
        self.answer.status = Status::Failed;
        self.answer.errors = vec![error.clone()];
        self.emit(Event::Error { error });
    }

    /// Sends a step that has a single delta.
    fn whole(&mut self, beginning: Step, delta: Delta, step: Step) {
        self.close();
        self.start(beginning);
        self.go_on(delta);
        if let Some(last) = self.steps.last_mut() {
            *last = step;
        }
        self.stop_step();
    }

    fn start(&mut self, step: Step) {
        let index = self.steps.len();
        self.emit(Event::StepStart { index, step: step.clone() });
        self.steps.push(step);
    }

    fn go_on(&mut self, delta: Delta) {
        let index = self.steps.len().saturating_sub(1);
        self.emit(Event::StepDelta { index, delta });
    }

    fn stop_step(&mut self) {
        let index = self.steps.len().saturating_sub(1);
        self.emit(Event::StepStop { index });
    }

    fn emit(&mut self, event: Event) {
        let (sequence, kind) = (self.sequence, event.kind().to_owned());
        let text = StreamEvent { event, event_id: sequence.to_string() }.json();
        self.frames.push(Frame { sequence, kind, text });
        self.sequence += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(writer: &mut Writer) -> Vec<String> {
        let frames = writer.take_frames();
        for (number, frame) in frames.iter().enumerate() {
            let event: Value = serde_json::from_str(&frame.text).unwrap();
            assert_eq!(
                (event["event_type"].as_str(), &event["event_id"]),
                (Some(&*frame.kind), &number.to_string().into())
            );
        }
        let sent = |frame: Frame| {
            let event: Value = serde_json::from_str(&frame.text).unwrap();
            let of = event["delta"]["type"].as_str().or(event["step"]["type"].as_str()).unwrap_or_default().to_owned();
            format!("{} {of}", frame.kind).trim().to_owned()
        };
        frames.into_iter().map(sent).collect()
    }

    #[test]
    fn a_thought_a_program_and_an_answer_come_in_order() {
        let mut writer = Writer::new(Interaction::default(), None, Vec::new(), true);
        let program = ItemId::new();
        writer.create(Status::InProgress);
        writer.begin();
        writer.think("h");
        writer.think("m");
        writer.program(&program, "6 * 7");
        writer.end_program(&program, false, "42\n".into());
        writer.text("It is ");
        writer.text("42.");
        writer.finish();
        writer.end(Status::Completed);
        let expected = [
            "interaction.created",
            "interaction.status_update",
            "step.start thought",
            "step.delta thought_summary",
            "step.delta thought_summary",
            "step.delta thought_signature",
            "step.stop",
            "step.start code_execution_call",
            "step.delta code_execution_call",
            "step.stop",
            "step.start code_execution_result",
            "step.delta code_execution_result",
            "step.stop",
            "step.start model_output",
            "step.delta text",
            "step.delta text",
            "step.stop",
            "interaction.completed",
        ];
        assert_eq!(kinds(&mut writer), expected);
        let steps = writer.interaction().steps.unwrap();
        let thought = Step::Thought { signature: Some(wrapped("hm")), summary: vec![Content::text("hm")] };
        assert_eq!(steps[0], thought);
        assert_eq!(steps[3], Step::ModelOutput { content: vec![Content::text("It is 42.")] });
    }

    #[test]
    fn what_is_cut_off_has_an_end_all_the_same() {
        let mut writer = Writer::new(Interaction::default(), None, vec!["END".into()], false);
        let (known, unknown) = (ItemId::new(), ItemId::new());
        writer.think("hm");
        writer.program(&known, "1");
        writer.end_program(&unknown, true, "not JSON".into());
        assert!(writer.text("so EN"));
        writer.finish();
        let steps = writer.interaction().steps.unwrap();
        let called = steps.iter().filter(|step| matches!(step, Step::CodeExecutionCall { .. })).count();
        let ended = steps.iter().filter(|step| matches!(step, Step::CodeExecutionResult { .. })).count();
        assert_eq!((called, ended), (2, 2), "{steps:?}");
        assert!(steps.contains(&Step::ModelOutput { content: vec![Content::text("so EN")] }), "{steps:?}");
        let sent = kinds(&mut writer);
        let count = |kind: &str| sent.iter().filter(|sent| sent.starts_with(kind)).count();
        assert_eq!(count("step.start"), count("step.stop"), "{sent:?}");
    }
}
