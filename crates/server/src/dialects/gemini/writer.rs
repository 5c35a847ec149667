//! The writer of an answer, whole and in frames.
//!
//! Texts are streamed; programs and their results have one frame each, because the protocol has no deltas for them. It has no place for
//! files other than pictures: the text ends with links to them.

use aludel_agent::upstream::TokenUsage;
use aludel_engine::SessionFile;
use aludel_engine::turns::{Frame, ItemId, ToolCall};
use aludel_wire::gemini::{
    Blob, Candidate, CodeExecutionResult, Content, ErrorEnvelope, ExecutableCode, FinishReason, FunctionCall,
    GenerateContentResponse, Language, Outcome, Part, Role, UsageMetadata,
};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::conversation::{program_id, signature_of};
use super::program_output::ProgramImage;
use crate::dialects::stop_words::StopWords;
use crate::links::Links;

/// The kind of a frame with a failure.
pub(super) const ERROR: &str = "error";

/// An answer that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    id: String,
    model: String,
    /// Links to the files of the session, if there is one.
    links: Option<Links>,
    /// True if the text ends with links to the files that were made: not where clients parse it.
    links_files: bool,
    stop: StopWords,
    tells_thoughts: bool,
    parts: Vec<Part>,
    /// A call of a client's function that is sent before the next part, or with the end.
    held: Option<Part>,
    /// Programs without a result.
    running: Vec<ItemId>,
    files: Vec<SessionFile>,
    /// Files that were shown as pictures.
    pictures: Vec<SessionFile>,
    usage: UsageMetadata,
    finish: Option<FinishReason>,
    sequence: u64,
    frames: Vec<Frame>,
}

impl Writer {
    pub(super) fn new(
        id: String,
        model: String,
        links: Option<Links>,
        stop: Vec<String>,
        tells_thoughts: bool,
    ) -> Self {
        let stop = StopWords::new(stop);
        let (parts, held, running, files, pictures) = Default::default();
        let (usage, finish, sequence, frames) = Default::default();
        Self {
            id,
            model,
            links,
            links_files: true,
            stop,
            tells_thoughts,
            parts,
            held,
            running,
            files,
            pictures,
            usage,
            finish,
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

    /// Returns true if nothing more is sent.
    pub(super) fn has_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// Counts the tokens of one round. Input tokens after the first round count as used for programs.
    pub(super) fn use_tokens(&mut self, round: u32, usage: TokenUsage) {
        let metadata = &mut self.usage;
        match round {
            0 | 1 => metadata.prompt_token_count += usage.input,
            _ => metadata.tool_use_prompt_token_count += usage.input,
        }
        metadata.cached_content_token_count += usage.cached;
        metadata.thoughts_token_count += usage.reasoning;
        metadata.candidates_token_count += usage.output.saturating_sub(usage.reasoning);
        metadata.total_token_count += usage.total();
    }

    /// Adds text of the model. Returns false after a stop word, which ends the answer.
    pub(super) fn text(&mut self, piece: &str) -> bool {
        let (text, goes_on) = self.stop.scan(piece).into_text();
        self.say(text);
        if !goes_on {
            self.finish(FinishReason::Stop);
        }
        goes_on
    }

    /// Adds words of ours, apart from the model's. No stop word is looked for in them.
    pub(super) fn note(&mut self, words: &str) {
        self.end_text();
        let follows = self.parts.last().is_some_and(|part| part.text.is_some() && part.thought != Some(true));
        self.say(if follows { format!("\n\n{words}") } else { words.to_owned() });
    }

    pub(super) fn end_text(&mut self) {
        let held = self.stop.end();
        self.say(held);
    }

    pub(super) fn think(&mut self, piece: &str) {
        if self.tells_thoughts {
            self.emit(Part { thought: Some(true), ..Part::text(piece) });
        }
    }

    fn say(&mut self, text: String) {
        if !text.is_empty() {
            let begins = self.parts.last().is_none_or(|part| part.text.is_none() || part.thought == Some(true));
            let thought_signature = if begins { self.signature() } else { None };
            self.emit(Part { thought_signature, ..Part::text(text) });
        }
    }

    /// The signature by which clients that drop the programs, or their ids, lead back to the session.
    fn signature(&self) -> Option<String> {
        let has_programs = self.parts.iter().any(|part| part.executable_code.is_some());
        self.links.as_ref().filter(|_| has_programs).map(|links| signature_of(links.container()))
    }

    /// Adds a program that the model wrote.
    pub(super) fn program(&mut self, item: &ItemId, code: &str) {
        self.end_text();
        self.running.push(item.clone());
        let code = ExecutableCode { id: Some(self.id_of(item)), language: Language::Python, code: code.to_owned() };
        let thought_signature = self.links.as_ref().map(|links| signature_of(links.container()));
        self.emit(Part { executable_code: Some(code), thought_signature, ..Part::default() });
    }

    /// Adds a program's end. If it never began for the client, it begins first.
    pub(super) fn end_program(&mut self, item: &ItemId, outcome: Outcome, output: String) {
        match self.running.iter().position(|running| running == item) {
            Some(place) => {
                self.running.swap_remove(place);
            }
            None => {
                self.program(item, "");
                self.running.retain(|running| running != item);
            }
        }
        let result = CodeExecutionResult { id: Some(self.id_of(item)), outcome, output };
        self.emit(Part { code_execution_result: Some(result), ..Part::default() });
    }

    /// The id by which the next request finds the session.
    fn id_of(&self, item: &ItemId) -> String {
        match &self.links {
            Some(links) => program_id(links.container(), &item.with_prefix("")),
            None => item.with_prefix("code_"),
        }
    }

    pub(super) fn show(&mut self, pictures: Vec<ProgramImage>) {
        for ProgramImage { file, bytes } in pictures {
            let blob = Blob { mime_type: file.mime.clone(), data: BASE64_STANDARD.encode(bytes), display_name: None };
            self.emit(Part { inline_data: Some(blob), ..Part::default() });
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
        self.end_text();
        let args = serde_json::from_str(&call.arguments).unwrap_or_default();
        let call = FunctionCall { id: Some(call.call_id.clone()), name: call.name.clone(), args };
        let thought_signature = self.signature();
        self.emit(Part { function_call: Some(call), thought_signature, ..Part::default() });
    }

    /// Completes the answer.
    pub(super) fn finish(&mut self, reason: FinishReason) {
        if self.has_finished() {
            return;
        }
        self.end_text();
        for item in std::mem::take(&mut self.running) {
            self.running.push(item.clone());
            self.end_program(&item, Outcome::OutcomeFailed, "It was not run to its end.".to_owned());
        }
        self.files.retain(|file| !self.pictures.iter().any(|picture| picture.id == file.id));
        if let Some(links) = self.links.as_ref().filter(|_| self.links_files && !self.files.is_empty()) {
            let list = links.list(&self.files);
            let is_first = self.parts.iter().all(|part| part.text.is_none());
            self.emit(Part::text(if is_first { list } else { format!("\n\n{list}") }));
        }
        self.finish = Some(reason);
    }

    /// Ends a stream. Its last frame has a part, too: chats of Google's clients forget an answer with a frame that has none.
    pub(super) fn end(&mut self) {
        let part = self.held.take().unwrap_or_else(|| Part::text(""));
        let content = Content { role: Some(Role::Model), parts: vec![part] };
        let last = Candidate { content, ..self.candidate() };
        let last = GenerateContentResponse { usage_metadata: Some(self.usage), ..self.response(last) };
        self.push("", &serde_json::to_string(&last).unwrap_or_default());
    }

    /// Ends a stream with an error.
    pub(super) fn fail(&mut self, error: &ErrorEnvelope) {
        self.push(ERROR, &serde_json::to_string(error).unwrap_or_default());
    }

    /// The answer so far.
    pub(super) fn answer(&self) -> GenerateContentResponse {
        let content = Content { role: Some(Role::Model), parts: self.parts.clone() };
        GenerateContentResponse {
            usage_metadata: Some(self.usage),
            ..self.response(Candidate { content, ..self.candidate() })
        }
    }

    fn candidate(&self) -> Candidate {
        Candidate { finish_reason: self.finish, ..Candidate::default() }
    }

    fn response(&self, candidate: Candidate) -> GenerateContentResponse {
        GenerateContentResponse {
            candidates: vec![candidate],
            usage_metadata: None,
            model_version: self.model.clone(),
            response_id: self.id.clone(),
        }
    }

    /// Sends one part, and adds it to the whole answer, where pieces of one text are joined.
    fn emit(&mut self, part: Part) {
        let ready = match part.function_call {
            Some(_) => vec![self.held.replace(part.clone())],
            None => vec![self.held.take(), Some(part.clone())],
        };
        for ready in ready.into_iter().flatten() {
            let content = Content { role: Some(Role::Model), parts: vec![ready] };
            let frame = self.response(Candidate { content, ..Candidate::default() });
            self.push("", &serde_json::to_string(&frame).unwrap_or_default());
        }
        match (self.parts.last_mut(), &part) {
            (Some(Part { text: Some(before), thought, .. }), Part { text: Some(text), .. })
                if *thought == part.thought =>
            {
                before.push_str(text);
            }
            _ => self.parts.push(part),
        }
    }

    fn push(&mut self, kind: &str, text: &str) {
        self.frames.push(Frame { sequence: self.sequence, kind: kind.to_owned(), text: text.to_owned() });
        self.sequence += 1;
    }
}
