//! The transcript of a turn: every program, its raw output, and the answer, as Markdown or as a notebook.
//!
//! The code and its raw output are always shown beside the answer, so that a person can check it.

use std::fmt::Write as _;

use aludel_agent::excerpt;
use aludel_sandbox::{Finished, KernelSpec, MimeData};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::turns::{EventKind, ItemId, OutputPiece, RichValue, ToolEnd, ToolOutcome};

/// Output of one stream in the Markdown, bytes; the notebook has all of it.
const MAX_SHOWN: usize = 20 << 10;

/// Collects the events of a turn.
#[derive(Debug)]
pub struct Transcript {
    question: String,
    model: String,
    kernel: KernelSpec,
    entries: Vec<Entry>,
    /// The number of images that programs showed.
    figures: usize,
}

#[derive(Debug)]
enum Entry {
    Text(String),
    Cell(Box<TranscriptCell>),
    Note(String),
}

#[derive(Debug)]
struct TranscriptCell {
    item: ItemId,
    code: String,
    outputs: Vec<CellOutput>,
    outcome: Option<ToolOutcome>,
}

#[derive(Debug)]
enum CellOutput {
    Stream { name: &'static str, text: String },
    Value { is_result: bool, value: RichValue, figure: Option<String> },
    Error { name: String, value: String, traceback: String },
}

impl Transcript {
    /// A transcript of this question, for this model and the kernel of its programs.
    pub fn new(question: impl Into<String>, model: impl Into<String>, kernel: &KernelSpec) -> Self {
        let kernel = kernel.clone();
        Self { question: question.into(), model: model.into(), kernel, entries: Vec::new(), figures: 0 }
    }

    /// Adds the next event.
    pub fn record(&mut self, event: &EventKind) {
        match event {
            EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => match self.entries.last_mut() {
                Some(Entry::Text(before)) => before.push_str(delta),
                _ => self.entries.push(Entry::Text(delta.clone())),
            },
            EventKind::ToolReady { item, input, .. } => {
                let cell =
                    TranscriptCell { item: item.clone(), code: input.clone(), outputs: Vec::new(), outcome: None };
                self.entries.push(Entry::Cell(Box::new(cell)));
            }
            EventKind::Output { item, output } => self.output(item, output),
            EventKind::ToolEnded { item, outcome } => {
                if let Some((cell, _)) = self.cell(item) {
                    cell.outcome = Some(outcome.clone());
                }
            }
            EventKind::ApprovalDecided { denied: Some(reason), .. } => {
                self.entries.push(Entry::Note(format!("This program was not allowed to run: {reason}")));
            }
            EventKind::ToolRejected { reason, .. } => {
                self.entries.push(Entry::Note(format!("A call was rejected: {reason}")))
            }
            EventKind::Ended { ending, .. } => self.entries.extend(ending.words().map(Entry::Note)),
            EventKind::Created { .. }
            | EventKind::Started
            | EventKind::Resumed { .. }
            | EventKind::RoundStarted { .. }
            | EventKind::Retrying { .. }
            | EventKind::TextEnded { .. }
            | EventKind::Reasoning { .. }
            | EventKind::ToolStarted { .. }
            | EventKind::ToolInput { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalPending { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolResumed { .. }
            | EventKind::ToolRunning { .. }
            | EventKind::Observed { .. }
            | EventKind::Usage { .. }
            | EventKind::Closed => {}
        }
    }

    /// A program, and the number of images so far.
    fn cell(&mut self, item: &ItemId) -> Option<(&mut TranscriptCell, &mut usize)> {
        let cell = self.entries.iter_mut().rev().find_map(|entry| match entry {
            Entry::Cell(cell) if cell.item == *item => Some(cell),
            _ => None,
        });
        Some((cell?, &mut self.figures))
    }

    fn output(&mut self, item: &ItemId, output: &OutputPiece) {
        let Some((cell, figures)) = self.cell(item) else { return };
        let mut stream = |name: &'static str, more: &str| match cell.outputs.last_mut() {
            Some(CellOutput::Stream { name: last, text }) if *last == name => text.push_str(more),
            _ => cell.outputs.push(CellOutput::Stream { name, text: more.to_owned() }),
        };
        match output {
            OutputPiece::Stdout(text) => stream("stdout", text),
            OutputPiece::Stderr(text) => stream("stderr", text),
            OutputPiece::Display(value) | OutputPiece::Result(value) => {
                let figure = value.image.as_ref().map(|image| {
                    *figures += 1;
                    let ending = if image.file.mime == "image/jpeg" { "jpg" } else { "png" };
                    format!("figure-{figures}.{ending}")
                });
                let is_result = matches!(output, OutputPiece::Result(_));
                cell.outputs.push(CellOutput::Value { is_result, value: value.clone(), figure });
            }
            OutputPiece::Error { name, value, traceback } => cell.outputs.push(CellOutput::Error {
                name: name.clone(),
                value: value.clone(),
                traceback: traceback.clone(),
            }),
        }
    }

    /// Numbers its figures, as they are saved, from the one after these.
    pub fn after_figures(self, figures: usize) -> Self {
        Self { figures, ..self }
    }

    /// The transcript as Markdown. `figures` is the directory for images, relative to the transcript; they are saved as `figure-1.png` and
    /// so on.
    pub fn markdown(&self, figures: &str) -> String {
        let mut text = format!(
            "# Transcript\n\n*Model: {}*\n\n## Question\n\n{}\n\n## Work\n\n",
            self.model,
            quote(&self.question)
        );
        for entry in &self.entries {
            match entry {
                Entry::Text(said) => {
                    let _ = writeln!(text, "{}\n", said.trim());
                }
                Entry::Note(said) => {
                    let _ = writeln!(text, "{}\n", note(said));
                }
                Entry::Cell(cell) => cell.markdown(self.kernel.fence(), figures, &mut text),
            }
        }
        text
    }

    /// The transcript as a notebook of format 4.5.
    pub fn notebook(&self) -> String {
        let mut cells = vec![markdown_cell(0, &format!("*Model: {}*\n\n{}", self.model, quote(&self.question)))];
        let mut count = 0;
        for entry in &self.entries {
            let id = cells.len();
            match entry {
                Entry::Text(text) => cells.push(markdown_cell(id, text.trim())),
                Entry::Note(text) => cells.push(markdown_cell(id, &note(text))),
                Entry::Cell(cell) => {
                    count += 1;
                    let outputs: Vec<Value> = cell.outputs.iter().map(|output| output.notebook(count)).collect();
                    cells.push(json!({
                        "cell_type": "code", "id": format!("cell-{id}"), "metadata": {}, "execution_count": count,
                        "source": cell.code, "outputs": outputs,
                    }));
                    cells.extend(cell.remark().map(|text| markdown_cell(id + 1, &note(&text))));
                }
            }
        }
        let language = &self.kernel.language;
        let notebook = json!({
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {
                // Jupyter finds its kernels by their language; their names differ.
                "language_info": { "name": language },
            },
            "cells": cells,
        });
        format!("{notebook:#}\n")
    }
}

impl TranscriptCell {
    fn markdown(&self, fence: &str, figures: &str, text: &mut String) {
        text.push_str(&fenced(fence, &self.code));
        for output in &self.outputs {
            match output {
                CellOutput::Stream { name, text: printed } => {
                    let label = if *name == "stderr" { "*stderr:*\n\n" } else { "" };
                    let printed = excerpt::plain(printed);
                    let _ = write!(text, "{label}{}", fenced("text", &excerpt::head_and_tail(&printed, MAX_SHOWN)));
                }
                CellOutput::Value { figure: Some(figure), .. } => {
                    let _ = writeln!(text, "![{figure}]({figures}/{figure})\n");
                }
                CellOutput::Value { value, .. } => {
                    let shown = excerpt::plain(value.text.as_deref().unwrap_or("(no text)"));
                    text.push_str(&fenced("text", &excerpt::head_and_tail(&shown, MAX_SHOWN)));
                }
                CellOutput::Error { traceback, .. } => {
                    text.push_str(&fenced("text", &excerpt::head_and_tail(&excerpt::plain(traceback), MAX_SHOWN)));
                }
            }
        }
        if let Some(outcome) = &self.outcome {
            let changed = outcome.finished.iter().flat_map(|finished| &finished.files);
            let files: Vec<_> =
                changed.map(|file| format!("`{}`", excerpt::path(&file.path).replace('`', "'"))).collect();
            let files = if files.is_empty() { String::new() } else { format!(" Files: {}.", files.join(", ")) };
            let (words, seconds) = (literal(&outcome.words), outcome.elapsed_ms as f64 / 1000.0);
            let _ = writeln!(text, "*{words} ({seconds:.1} s){files}*\n");
        }
    }

    /// Describes the program's end, unless the outputs show it.
    fn remark(&self) -> Option<String> {
        let outcome = self.outcome.as_ref()?;
        let is_plain = matches!(outcome.end, ToolEnd::Completed | ToolEnd::Raised);
        let is_cut = |finished: &Finished| finished.output_dropped > 0 || finished.files_left_out > 0;
        let is_stored = outcome.without_room.is_empty();
        (!is_plain || !is_stored || outcome.finished.as_ref().is_some_and(is_cut)).then(|| outcome.words.clone())
    }
}

impl CellOutput {
    fn notebook(&self, count: u32) -> Value {
        match self {
            Self::Stream { name, text } => json!({ "output_type": "stream", "name": name, "text": text }),
            Self::Value { is_result, value, .. } => {
                let data = value.bundle().0.into_iter().map(|(mime, data)| match data {
                    MimeData::Text(text) => (mime, Value::String(text)),
                    MimeData::Binary(bytes) => (mime, Value::String(BASE64_STANDARD.encode(bytes))),
                });
                let data: serde_json::Map<String, Value> = data.collect();
                if *is_result {
                    json!({ "output_type": "execute_result", "execution_count": count, "data": data, "metadata": {} })
                } else {
                    json!({ "output_type": "display_data", "data": data, "metadata": {} })
                }
            }
            Self::Error { name, value, traceback } => {
                let lines: Vec<&str> = traceback.lines().collect();
                json!({ "output_type": "error", "ename": name, "evalue": value, "traceback": lines })
            }
        }
    }
}

fn markdown_cell(id: usize, text: &str) -> Value {
    json!({ "cell_type": "markdown", "id": format!("cell-{id}"), "metadata": {}, "source": text })
}

/// A block of its own.
fn fenced(language: &str, text: &str) -> String {
    format!("{}\n\n", excerpt::fenced(language, text))
}

fn note(text: &str) -> String {
    format!("> **Note:** {}", literal(&excerpt::line(text, 2000)))
}

/// Escapes text for Markdown: it may contain an exception's name or an upstream's message.
fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '&' | '~') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

fn quote(text: &str) -> String {
    text.lines().map(|line| format!("> {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use aludel_sandbox::{LimitHit, MimeBundle, Outcome, ProgramError, VariablesState};
    use aludel_store::{FileOrigin, SessionFileId};

    use super::*;
    use crate::SessionFile;
    use crate::turns::{EndReason, Image, ToolKind};

    fn ready(item: &ItemId, code: &str) -> EventKind {
        EventKind::ToolReady { item: item.clone(), call_id: "c".into(), tool: ToolKind::Python, input: code.into() }
    }

    fn ended(item: &ItemId, outcome: Outcome, milliseconds: u64) -> EventKind {
        let finished = Finished {
            outcome,
            files: Vec::new(),
            elapsed: Duration::from_millis(milliseconds),
            files_left_out: 0,
            output_dropped: 0,
            state: VariablesState::Kept,
            refused_calls: Vec::new(),
            refusal_may_have_mattered: false,
        };
        EventKind::ToolEnded { item: item.clone(), outcome: ToolOutcome::new(finished, Default::default()) }
    }

    fn example() -> Transcript {
        let mut transcript = Transcript::new("How many?", "a model", &KernelSpec::python(""));
        let (item, text) = (ItemId::new(), |delta: &str| EventKind::Text { item: ItemId::new(), delta: delta.into() });
        let output = |output| EventKind::Output { item: item.clone(), output };
        let file = SessionFile {
            id: SessionFileId::new(),
            path: "/mnt/data/f.png".into(),
            bytes: 2,
            mime: "image/png".into(),
            source: FileOrigin::Assistant,
            created_at: 0,
            published_id: None,
        };
        let image = Image { file, bytes: [1, 2].as_slice().into() };
        let (name, value, traceback) = ("E".to_owned(), "v".to_owned(), "Traceback\nE: v".to_owned());
        let error = ProgramError { name: name.clone(), value: value.clone(), traceback: traceback.clone() };
        for event in [
            text("Let me "),
            text("count."),
            ready(&item, "print('```')"),
            output(OutputPiece::Stdout("```\n# not a heading\n".into())),
            output(OutputPiece::Display(RichValue::new(MimeBundle::default(), Some(image)))),
            output(OutputPiece::Error { name, value, traceback }),
            ended(&item, Outcome::Failed(error), 100),
            text("Two."),
            EventKind::Ended { item: ItemId::new(), ending: EndReason::Answered, linked: Vec::new() },
        ] {
            transcript.record(&event);
        }
        transcript
    }

    #[test]
    fn output_cannot_break_out_of_the_markdown() {
        let text = example().markdown("figures");
        assert!(text.contains("````text\n```\n# not a heading\n````"), "{text}");
        assert!(text.contains("Let me count.") && text.contains("![figure-1.png](figures/figure-1.png)"), "{text}");
        assert!(text.contains("*The program failed: E. (0.1 s)*"), "{text}");
    }

    #[test]
    fn programs_are_shown_as_what_their_kernel_takes() {
        let shell = KernelSpec { language: "bash".into(), fences: vec!["sh".into()], ..KernelSpec::python("") };
        let mut transcript = Transcript::new("q", "m", &shell);
        transcript.record(&ready(&ItemId::new(), "ls"));
        assert!(transcript.markdown("figures").contains("```sh\nls\n```"));
        let notebook: Value = serde_json::from_str(&transcript.notebook()).unwrap();
        assert_eq!(notebook["metadata"]["language_info"]["name"], "bash");
    }

    #[test]
    fn the_notebook_has_every_kind_of_output() {
        let notebook: Value = serde_json::from_str(&example().notebook()).unwrap();
        let cells = notebook["cells"].as_array().unwrap();
        let kinds: Vec<_> = cells.iter().map(|cell| cell["cell_type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["markdown", "markdown", "code", "markdown"]);
        let outputs: Vec<_> = cells[2]["outputs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|output| output["output_type"].as_str().unwrap())
            .collect();
        assert_eq!(outputs, ["stream", "display_data", "error"]);
        assert_eq!(cells[2]["outputs"][1]["data"]["image/png"], "AQI=");
    }

    #[test]
    fn a_program_that_was_stopped_is_said_to_be_in_both() {
        let mut transcript = Transcript::new("q", "m", &KernelSpec::python(""));
        let item = ItemId::new();
        transcript.record(&ready(&item, "while True: pass"));
        let limit = Duration::from_secs(60);
        transcript.record(&ended(&item, Outcome::Limit(LimitHit::WallClock { limit }), 60_000));
        for text in [transcript.markdown("figures"), transcript.notebook()] {
            assert!(text.contains("stopped after 60 s"), "{text}");
        }
    }

    #[test]
    fn what_programs_and_servers_say_of_themselves_is_no_markup() {
        let mut transcript = Transcript::new("q", "m", &KernelSpec::python(""));
        let reason = "no tool `<img src=http://evil/>` [x](http://evil)";
        transcript.record(&EventKind::ToolRejected { item: None, call_id: "c".into(), reason: reason.into() });
        for text in [transcript.markdown("figures"), transcript.notebook()] {
            assert!(text.contains("\\<img") && !text.contains("[x]("), "{text}");
        }
    }
}
