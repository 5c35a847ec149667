//! The output of programs in the words of OpenAI's protocols.

use aludel_agent::{Call, Item};
use aludel_engine::SessionFile;
use aludel_engine::turns::{Image, OutputPiece, RichValue, ToolEnd, ToolOutcome};
use aludel_wire::openai::responses::ProgramOutput;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// The output of a running program, in the form of OpenAI's protocols.
#[derive(Debug, Default)]
pub(crate) struct CollectedOutput {
    /// Printed text, values of last expressions and tracebacks, in order.
    logs: String,
    images: Vec<Image>,
}

/// A program that ended, as clients see it.
#[derive(Debug)]
pub(crate) struct ProgramEnd {
    /// `completed`, `incomplete` or `failed`.
    pub(crate) status: &'static str,
    /// Images that it showed, as data URLs.
    pub(crate) images: Vec<String>,
    /// Printed text, and a line about its end unless it completed.
    pub(crate) logs: String,
    /// The files of these images.
    pub(crate) pictures: Vec<SessionFile>,
    /// The files that it wrote or displayed, as clients can download them.
    pub(crate) files: Vec<SessionFile>,
}

impl ProgramEnd {
    /// The end of a program that could not be run.
    pub(crate) fn rejected(reason: String) -> Self {
        Self { status: "failed", logs: reason, ..Self::incomplete() }
    }

    /// A program whose end is unknown.
    pub(crate) fn incomplete() -> Self {
        let (images, pictures, files) = Default::default();
        Self { status: "incomplete", images, pictures, logs: String::new(), files }
    }

    /// The entries of `outputs`: images first, as at OpenAI.
    pub(crate) fn outputs(&self) -> Vec<ProgramOutput> {
        let mut outputs: Vec<_> = self.images.iter().map(|url| ProgramOutput::Image { url: url.clone() }).collect();
        if !self.logs.is_empty() {
            outputs.push(ProgramOutput::Logs { logs: self.logs.clone() });
        }
        outputs
    }
}

impl CollectedOutput {
    pub(crate) fn record(&mut self, output: &OutputPiece) {
        match output {
            OutputPiece::Stdout(text) | OutputPiece::Stderr(text) => self.logs.push_str(text),
            OutputPiece::Display(RichValue { image: Some(image), .. })
            | OutputPiece::Result(RichValue { image: Some(image), .. }) => {
                self.images.push(image.clone());
            }
            OutputPiece::Display(RichValue { text, .. }) => {
                self.logs.push_str(text.as_deref().unwrap_or_default());
                self.logs.push('\n');
            }
            // Without a line's end, as in a notebook.
            OutputPiece::Result(RichValue { text, .. }) => self.logs.push_str(text.as_deref().unwrap_or_default()),
            OutputPiece::Error { traceback, .. } => {
                self.logs.push_str(traceback);
                self.logs.push('\n');
            }
        }
    }

    /// The program with its output and end.
    pub(crate) fn end(self, outcome: &ToolOutcome) -> ProgramEnd {
        let Self { mut logs, images } = self;
        let status = match outcome.end {
            ToolEnd::Completed | ToolEnd::Raised => "completed",
            ToolEnd::Interrupted => "incomplete",
            ToolEnd::MemoryLimit | ToolEnd::Timeout | ToolEnd::CpuLimit | ToolEnd::DiskLimit | ToolEnd::Died => {
                "failed"
            }
        };
        if status != "completed" || !outcome.without_room.is_empty() {
            // The value of a last expression has no line's end.
            if !logs.is_empty() && !logs.ends_with('\n') {
                logs.push('\n');
            }
            logs.push_str(&outcome.words);
        }
        let url = |image: &Image| format!("data:{};base64,{}", image.file.mime, BASE64_STANDARD.encode(&*image.bytes));
        let pictures = images.iter().map(|image| image.file.clone()).collect();
        ProgramEnd { status, images: images.iter().map(url).collect(), pictures, logs, files: outcome.files.clone() }
    }
}

/// A program of an earlier turn in the form for the model: a call of our tool, by this name, and its output.
pub(crate) fn replayed(item: &Value, tool: &str) -> [Item; 2] {
    let id = item.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let code = item.get("code").and_then(Value::as_str).unwrap_or_default();
    let outputs = item.get("outputs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut text: String = outputs.iter().filter_map(|output| output.get("logs")?.as_str()).collect();
    let images = outputs.iter().filter(|output| output.get("url").is_some()).count();
    if images > 0 {
        text.push_str(&format!("\n[{images} images were shown to the user]"));
    }
    replayed_program(id, code, &text, tool)
}

/// A program of an earlier turn, from its parts, in the form for the model.
pub(crate) fn replayed_program(id: String, code: &str, output: &str, tool: &str) -> [Item; 2] {
    let arguments = json!({ "code": code }).to_string();
    let call = Call { id: id.clone(), name: tool.to_owned(), arguments };
    [Item::Call(call), Item::output(id, replayed_output(output))]
}

/// Frames the output of an earlier program as data, as new output is.
pub(crate) fn replayed_output(output: &str) -> String {
    if output.is_empty() { "(no output)".to_owned() } else { aludel_agent::framed(output) }
}
