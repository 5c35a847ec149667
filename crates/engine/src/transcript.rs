//! A turn on paper: every program, its raw output, and the answer, as Markdown or as a notebook.
//!
//! The code and its raw output always stand beside the answer, so that a person can check.

use std::fmt::Write as _;
use std::sync::Arc;

use aludel_agent::{Ending, Event, describe_outcome, excerpt};
use aludel_sandbox::{Event as ExecutionEvent, Finished, MimeBundle, MimeData, Outcome};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// Output of one stream that the Markdown shows, bytes; the notebook has all of it.
const MAX_SHOWN: usize = 20 << 10;

/// Collects the events of a turn.
#[derive(Debug, Clone)]
pub struct Transcript {
    question: String,
    model: String,
    entries: Vec<Entry>,
    figures: Vec<Figure>,
}

/// An image that a program showed.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The file name that the Markdown refers to, for example `figure-1.png`.
    pub name: String,
    /// The encoded image.
    pub data: Arc<[u8]>,
}

#[derive(Debug, Clone)]
enum Entry {
    Text(String),
    Cell(Box<Cell>),
    Note(String),
}

#[derive(Debug, Clone, Default)]
struct Cell {
    call_id: String,
    code: String,
    outputs: Vec<Output>,
    finished: Option<Finished>,
}

#[derive(Debug, Clone)]
enum Output {
    Stream { name: &'static str, text: String },
    Value { is_result: bool, bundle: MimeBundle, figure: Option<usize> },
    Error { name: String, value: String, traceback: String },
}

impl Transcript {
    /// Begins with the question and the name of the model that is asked.
    pub fn new(question: impl Into<String>, model: impl Into<String>) -> Self {
        Self { question: question.into(), model: model.into(), entries: Vec::new(), figures: Vec::new() }
    }

    /// Takes the next event.
    pub fn see(&mut self, event: &Event) {
        match event {
            Event::Text(text) => match self.entries.last_mut() {
                Some(Entry::Text(before)) => before.push_str(text),
                _ => self.entries.push(Entry::Text(text.clone())),
            },
            Event::CodeFinished { call_id, code } => {
                let cell = Cell { call_id: call_id.clone(), code: code.clone(), ..Cell::default() };
                self.entries.push(Entry::Cell(Box::new(cell)));
            }
            Event::Execution { call_id, event } => self.execution(call_id, event),
            Event::ApprovalDecided { denied: Some(reason), .. } => {
                self.entries.push(Entry::Note(format!("This program was not allowed to run: {reason}")));
            }
            Event::CallRejected { reason, .. } => {
                self.entries.push(Entry::Note(format!("A call was rejected: {reason}")))
            }
            Event::Finished(ending) => {
                if let Some(note) = describe_ending(ending) {
                    self.entries.push(Entry::Note(note));
                }
            }
            Event::RoundStarted { .. }
            | Event::Retrying { .. }
            | Event::Reasoning(_)
            | Event::CodeStarted { .. }
            | Event::CodeDelta { .. }
            | Event::ApprovalRequested { .. }
            | Event::ApprovalDecided { denied: None, .. }
            | Event::Observation { .. }
            | Event::Item(_)
            | Event::Usage(_) => {}
        }
    }

    /// The images that programs showed, in order.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    fn execution(&mut self, call_id: &str, event: &ExecutionEvent) {
        let figures = &mut self.figures;
        let cell = self.entries.iter_mut().rev().find_map(|entry| match entry {
            Entry::Cell(cell) if cell.call_id == call_id => Some(cell),
            _ => None,
        });
        let Some(cell) = cell else { return };
        let mut stream = |name: &'static str, more: &str| match cell.outputs.last_mut() {
            Some(Output::Stream { name: last, text }) if *last == name => text.push_str(more),
            _ => cell.outputs.push(Output::Stream { name, text: more.to_owned() }),
        };
        match event {
            ExecutionEvent::Stdout(text) => stream("stdout", text),
            ExecutionEvent::Stderr(text) => stream("stderr", text),
            ExecutionEvent::Display(bundle) | ExecutionEvent::Result(bundle) => {
                let figure = bundle.image().map(|(mime, data)| {
                    let ending = if mime == "image/jpeg" { "jpg" } else { "png" };
                    figures.push(Figure { name: format!("figure-{}.{ending}", figures.len() + 1), data: data.into() });
                    figures.len() - 1
                });
                let is_result = matches!(event, ExecutionEvent::Result(_));
                cell.outputs.push(Output::Value { is_result, bundle: bundle.clone(), figure });
            }
            ExecutionEvent::Error(error) => cell.outputs.push(Output::Error {
                name: error.name.clone(),
                value: error.value.clone(),
                traceback: error.traceback.clone(),
            }),
            ExecutionEvent::Finished(finished) => cell.finished = Some(finished.clone()),
        }
    }

    /// The transcript as Markdown. `figures` is the directory, relative to it, in which [`Transcript::figures`] are saved.
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
                Entry::Cell(cell) => self.cell_markdown(cell, figures, &mut text),
            }
        }
        text
    }

    fn cell_markdown(&self, cell: &Cell, figures: &str, text: &mut String) {
        text.push_str(&fenced("python", &cell.code));
        for output in &cell.outputs {
            match output {
                Output::Stream { name, text: printed } => {
                    let label = if *name == "stderr" { "*stderr:*\n\n" } else { "" };
                    let printed = excerpt::plain(printed);
                    let _ = write!(text, "{label}{}", fenced("text", &excerpt::head_and_tail(&printed, MAX_SHOWN)));
                }
                Output::Value { figure: Some(figure), .. } => {
                    if let Some(figure) = self.figures.get(*figure) {
                        let _ = writeln!(text, "![{0}]({figures}/{0})\n", figure.name);
                    }
                }
                Output::Value { bundle, .. } => {
                    let shown = excerpt::plain(bundle.text().unwrap_or("(no text)"));
                    text.push_str(&fenced("text", &excerpt::head_and_tail(&shown, MAX_SHOWN)));
                }
                Output::Error { traceback, .. } => {
                    text.push_str(&fenced("text", &excerpt::head_and_tail(&excerpt::plain(traceback), MAX_SHOWN)));
                }
            }
        }
        if let Some(finished) = &cell.finished {
            let files: Vec<_> = finished
                .files
                .iter()
                .map(|file| format!("`{}`", excerpt::line(&file.path, 200).replace('`', "'")))
                .collect();
            let files = if files.is_empty() { String::new() } else { format!(" Files: {}.", files.join(", ")) };
            let outcome = literal(&describe_outcome(finished));
            let _ = writeln!(text, "*{outcome} ({:.1} s){files}*\n", finished.elapsed.as_secs_f64());
        }
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
        let notebook = json!({
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {
                "kernelspec": { "name": "python3", "display_name": "Python 3", "language": "python" },
                "language_info": { "name": "python" },
            },
            "cells": cells,
        });
        format!("{notebook:#}\n")
    }
}

impl Cell {
    /// What the outputs themselves do not tell of the program's end.
    fn remark(&self) -> Option<String> {
        let finished = self.finished.as_ref()?;
        let is_plain = matches!(finished.outcome, Outcome::Completed | Outcome::Failed(_));
        (!is_plain || finished.output_dropped > 0 || finished.files_left_out > 0).then(|| describe_outcome(finished))
    }
}

impl Output {
    fn notebook(&self, count: u32) -> Value {
        match self {
            Self::Stream { name, text } => json!({ "output_type": "stream", "name": name, "text": text }),
            Self::Value { is_result, bundle, .. } => {
                let data: serde_json::Map<String, Value> = bundle
                    .0
                    .iter()
                    .map(|(mime, data)| {
                        let value = match data {
                            MimeData::Text(text) => Value::String(text.clone()),
                            MimeData::Binary(bytes) => Value::String(BASE64_STANDARD.encode(bytes)),
                        };
                        (mime.clone(), value)
                    })
                    .collect();
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

/// Why a turn ended, when it did not end with an answer.
pub fn describe_ending(ending: &Ending) -> Option<String> {
    Some(match ending {
        Ending::Answered => return None,
        Ending::Refused => "The model declined to answer.".to_owned(),
        Ending::CutOff(by) => format!("The answer was cut off by {by}."),
        Ending::Budget(budget) => format!("Stopped: the budget of {budget} is used up. What was made so far is kept."),
        Ending::ClientTools(calls) => format!("The model waits for the answers of {} tools.", calls.len()),
        Ending::Upstream(error) => error.to_string(),
        Ending::Sandbox(error) => format!("The sandbox failed: {error}"),
        Ending::Cancelled => "Cancelled.".to_owned(),
        Ending::AwaitsApproval { programs, .. } => format!("{} programs wait for approval.", programs.len()),
    })
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

/// Text that means nothing in Markdown: it may quote an exception's name or an upstream's words.
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

    use aludel_sandbox::{LimitHit, ProgramError, State};

    use super::*;

    fn example() -> Transcript {
        let mut transcript = Transcript::new("How many?", "a model");
        let execution = |event| Event::Execution { call_id: "c".into(), event };
        let image = MimeBundle(vec![("image/png".into(), MimeData::Binary(vec![1, 2]))]);
        let error = ProgramError { name: "E".into(), value: "v".into(), traceback: "Traceback\nE: v".into() };
        for event in [
            Event::Text("Let me ".into()),
            Event::Text("count.".into()),
            Event::CodeFinished { call_id: "c".into(), code: "print('```')".into() },
            execution(ExecutionEvent::Stdout("```\n# not a heading\n".into())),
            execution(ExecutionEvent::Display(image)),
            execution(ExecutionEvent::Error(error.clone())),
            execution(ExecutionEvent::Finished(Finished {
                outcome: Outcome::Failed(error),
                files: Vec::new(),
                elapsed: Duration::from_millis(100),
                files_left_out: 0,
                output_dropped: 0,
                state: State::Kept,
                blocked: Vec::new(),
            })),
            Event::Text("Two.".into()),
            Event::Finished(Ending::Answered),
        ] {
            transcript.see(&event);
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
        let mut transcript = Transcript::new("q", "m");
        let finished = Finished {
            outcome: Outcome::Limit(LimitHit::WallClock { limit: Duration::from_secs(60) }),
            files: Vec::new(),
            elapsed: Duration::from_secs(60),
            files_left_out: 0,
            output_dropped: 0,
            state: State::Kept,
            blocked: Vec::new(),
        };
        transcript.see(&Event::CodeFinished { call_id: "c".into(), code: "while True: pass".into() });
        transcript.see(&Event::Execution { call_id: "c".into(), event: ExecutionEvent::Finished(finished) });
        for text in [transcript.markdown("figures"), transcript.notebook()] {
            assert!(text.contains("stopped after 60 s"), "{text}");
        }
    }

    #[test]
    fn what_programs_and_servers_say_of_themselves_is_no_markup() {
        let mut transcript = Transcript::new("q", "m");
        let reason = "no tool `<img src=http://evil/>` [x](http://evil)";
        transcript.see(&Event::CallRejected { call_id: "c".into(), reason: reason.into() });
        for text in [transcript.markdown("figures"), transcript.notebook()] {
            assert!(text.contains("\\<img") && !text.contains("[x]("), "{text}");
        }
    }
}
