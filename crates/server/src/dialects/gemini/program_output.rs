//! The output of a program.

use aludel_engine::SessionFile;
use aludel_engine::turns::{OutputPiece, RichValue, ToolEnd, ToolOutcome};

/// The output of a program, put together from its pieces.
#[derive(Debug, Default)]
pub(super) struct CollectedOutput {
    pub(super) text: String,
    pub(super) pictures: Vec<ProgramImage>,
}

/// A picture that a program showed.
#[derive(Debug)]
pub(super) struct ProgramImage {
    pub(super) file: SessionFile,
    pub(super) bytes: Vec<u8>,
}

impl CollectedOutput {
    /// Adds a piece.
    pub(super) fn record(&mut self, output: &OutputPiece) {
        match output {
            OutputPiece::Stdout(text) | OutputPiece::Stderr(text) => self.text.push_str(text),
            OutputPiece::Display(RichValue { image: Some(image), .. })
            | OutputPiece::Result(RichValue { image: Some(image), .. }) => {
                self.pictures.push(ProgramImage { file: image.file.clone(), bytes: image.bytes.to_vec() });
            }
            OutputPiece::Display(RichValue { text, .. }) | OutputPiece::Result(RichValue { text, .. }) => {
                self.line(text.as_deref().unwrap_or_default());
            }
            OutputPiece::Error { traceback, .. } => self.line(traceback),
        }
    }

    /// The whole output, with a note about the end if the output does not show it.
    pub(super) fn end(mut self, outcome: &ToolOutcome) -> Self {
        let is_plain = matches!(outcome.end, ToolEnd::Completed | ToolEnd::Raised);
        if !is_plain || !outcome.without_room.is_empty() {
            if !self.text.is_empty() && !self.text.ends_with('\n') {
                self.text.push('\n');
            }
            self.line(&outcome.words);
        }
        self
    }

    fn line(&mut self, text: &str) {
        if !text.is_empty() {
            self.text.push_str(text);
            self.text.push('\n');
        }
    }
}
