//! The bounded output of one program, kept as long as its client may ask for it.

use aludel_agent::excerpt;
use aludel_engine::executions::DirectEnd;
use aludel_engine::turns::{OutputPiece, RichValue, ToolEnd, ToolOutcome};
use aludel_engine::{SessionFile, sessions};

use super::error::ToolError;
use super::tools::{Exception, Status};

/// Bytes of each stream that are kept: head and tail.
const MAX_STREAM: usize = 16 << 10;
/// Bytes of each displayed value, and of all together.
const MAX_VALUE: usize = 8 << 10;
const MAX_VALUES: usize = 16 << 10;
/// Images in a result. Further ones are only files.
const MAX_IMAGES: usize = 4;
/// Files that are named.
const MAX_FILES: usize = 50;
/// Bytes of a result's text: clients cut off longer ones.
const MAX_TEXT: usize = 30_000;

/// The output of a program under way.
#[derive(Debug, Default)]
pub(super) struct Collector {
    stdout: HeadAndTail,
    stderr: HeadAndTail,
    shown: Vec<String>,
    shown_bytes: usize,
    result: Option<String>,
    error: Option<Exception>,
    images: Vec<SessionFile>,
    is_cut: bool,
}

/// The output and the outcome of a program that ended.
#[derive(Debug)]
pub(super) struct ProgramEnd {
    pub(super) status: Status,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Values that it showed, as text.
    shown: Vec<String>,
    pub(super) result: Option<String>,
    pub(super) error: Option<Exception>,
    /// A sentence about its end; empty if there is nothing to say.
    pub(super) note: String,
    /// Images that it showed, which are files of the session.
    pub(super) images: Vec<SessionFile>,
    /// Files that it made or changed.
    pub(super) files: Vec<SessionFile>,
    files_left_out: usize,
    pub(super) is_cut: bool,
    pub(super) elapsed_ms: Option<u64>,
}

impl Collector {
    /// Adds a piece of a program's output.
    pub(super) fn record(&mut self, output: OutputPiece) {
        match output {
            OutputPiece::Stdout(text) => self.stdout.push(&text),
            OutputPiece::Stderr(text) => self.stderr.push(&text),
            OutputPiece::Display(rich) => {
                if let Some(text) = self.text_of(rich) {
                    self.is_cut |= self.shown_bytes + text.len() > MAX_VALUES;
                    if self.shown_bytes + text.len() <= MAX_VALUES {
                        self.shown_bytes += text.len();
                        self.shown.push(text);
                    }
                }
            }
            OutputPiece::Result(rich) => self.result = self.text_of(rich),
            OutputPiece::Error { name, value, traceback } => {
                let cut = |text: &str| excerpt::head_and_tail(&excerpt::plain(text), MAX_VALUE);
                self.error = Some(Exception { name: cut(&name), value: cut(&value), traceback: cut(&traceback) });
            }
        }
    }

    /// The last line that it printed, for people who wait.
    pub(super) fn last_line(&self) -> String {
        let line = self.stdout.last_line();
        if excerpt::plain(line).trim().is_empty() { String::new() } else { excerpt::line(line, 200) }
    }

    /// The text of a value. A value that is shown as an image needs none.
    fn text_of(&mut self, rich: RichValue) -> Option<String> {
        if let Some(image) = rich.image {
            if self.images.len() < MAX_IMAGES {
                self.images.push(image.file);
            }
            return None;
        }
        let text = excerpt::plain(&rich.text?);
        self.is_cut |= text.len() > MAX_VALUE;
        Some(excerpt::head_and_tail(&text, MAX_VALUE))
    }

    /// The output with the program's end.
    pub(super) fn finish(self, end: DirectEnd) -> ProgramEnd {
        let mut ended = ProgramEnd {
            status: Status::Error,
            is_cut: self.is_cut || self.stdout.is_cut() || self.stderr.is_cut(),
            stdout: self.stdout.into_text(),
            stderr: self.stderr.into_text(),
            shown: self.shown,
            result: self.result,
            error: self.error,
            note: String::new(),
            images: self.images,
            files: Vec::new(),
            files_left_out: 0,
            elapsed_ms: None,
        };
        match end {
            DirectEnd::Ran(outcome) => ended.take(*outcome),
            DirectEnd::Denied { reason } => {
                ended.note = format!("Not approved, so the program did not run: {reason}.");
            }
            DirectEnd::Cancelled => {
                (ended.status, ended.note) = (Status::Killed, "Cancelled before the program ran.".to_owned());
            }
            DirectEnd::Failed(error) => ended.note = ToolError::from(error).0,
        }
        ended
    }
}

impl ProgramEnd {
    /// The end of a program whose outcome was lost.
    pub(super) fn lost() -> Self {
        Collector::default()
            .finish(DirectEnd::Failed(aludel_engine::Error::internal("an execution ended without an end")))
    }

    fn take(&mut self, outcome: ToolOutcome) {
        let ToolOutcome { end, words, elapsed_ms, mut files, finished, .. } = outcome;
        self.status = match end {
            ToolEnd::Completed => Status::Ok,
            ToolEnd::Raised => Status::Error,
            ToolEnd::Timeout => Status::Timeout,
            ToolEnd::Interrupted | ToolEnd::MemoryLimit | ToolEnd::CpuLimit | ToolEnd::DiskLimit | ToolEnd::Died => {
                Status::Killed
            }
        };
        // The traceback contains it, or there is nothing to report.
        let is_told = words == "The program ran to its end."
            || self.error.as_ref().is_some_and(|error| words == format!("The program failed: {}.", error.name));
        self.note = if is_told { String::new() } else { words };
        self.elapsed_ms = Some(elapsed_ms);
        self.is_cut |= finished.is_some_and(|finished| finished.output_dropped > 0);
        self.files_left_out = files.len().saturating_sub(MAX_FILES);
        files.truncate(MAX_FILES);
        self.files = files;
    }

    /// Returns true if it did not run to its end.
    pub(super) fn is_error(&self) -> bool {
        self.status != Status::Ok
    }

    /// The output and the outcome as text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut add = |piece: &str| {
            if !piece.trim().is_empty() {
                text.push_str(piece.trim_end_matches('\n'));
                text.push('\n');
            }
        };
        add(&self.stdout);
        if !self.stderr.trim().is_empty() {
            add("[stderr]");
            add(&self.stderr);
        }
        self.shown.iter().for_each(|shown| add(shown));
        add(self.result.as_deref().unwrap_or_default());
        add(self.error.as_ref().map_or("", |error| &error.traceback));
        add(&self.note);
        // Images are part of the result; the workspace has no such file.
        let is_shown = |file: &&SessionFile| self.images.iter().any(|image| image.id == file.id);
        let named = self.files.iter().filter(|file| !is_shown(file));
        let names: Vec<String> =
            named.map(|file| format!("{} ({})", excerpt::path(&file.path), aludel_agent::size(file.bytes))).collect();
        if !names.is_empty() {
            add(&format!("Files: {}", names.join(", ")));
        }
        if self.files_left_out > 0 {
            add(&format!("and {} more files in {}", self.files_left_out, sessions::WORKSPACE));
        }
        if text.is_empty() {
            text.push_str("The program ran to its end and printed nothing.\n");
        }
        excerpt::head_and_tail(text.trim_end(), MAX_TEXT)
    }
}

/// The beginning and the end of a text that comes in pieces.
#[derive(Debug, Default)]
struct HeadAndTail {
    head: String,
    tail: String,
    dropped: usize,
}

impl HeadAndTail {
    fn push(&mut self, text: &str) {
        let room = (MAX_STREAM / 2).saturating_sub(self.head.len());
        let (head, rest) = text.split_at(if self.tail.is_empty() { text.floor_char_boundary(room) } else { 0 });
        self.head.push_str(head);
        self.tail.push_str(rest);
        if self.tail.len() > MAX_STREAM {
            let cut = self.tail.ceil_char_boundary(self.tail.len() - MAX_STREAM / 2);
            self.tail.drain(..cut);
            self.dropped += cut;
        }
    }

    fn is_cut(&self) -> bool {
        self.dropped > 0 || self.tail.len() > MAX_STREAM / 2
    }

    fn last_line(&self) -> &str {
        let text = if self.tail.trim_end().is_empty() { &self.head } else { &self.tail };
        text.trim_end().rsplit('\n').next().unwrap_or_default()
    }

    /// The text without control characters.
    fn into_text(mut self) -> String {
        let cut = self.tail.ceil_char_boundary(self.tail.len().saturating_sub(MAX_STREAM / 2));
        self.tail.drain(..cut);
        let dropped = self.dropped + cut;
        let text = match dropped {
            0 => self.head + &self.tail,
            _ => format!("{}\n[... {dropped} bytes left out ...]\n{}", self.head, self.tail),
        };
        excerpt::plain(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(pieces: impl IntoIterator<Item = String>) -> (String, bool) {
        let mut text = HeadAndTail::default();
        pieces.into_iter().for_each(|piece| text.push(&piece));
        let is_cut = text.is_cut();
        assert!(text.head.capacity() + text.tail.capacity() < 1 << 20);
        (text.into_text(), is_cut)
    }

    #[test]
    fn head_and_tail_are_the_same_however_the_text_is_cut() {
        let line = |number: usize| format!("{number} é\n");
        let long: Vec<String> = (0..100_000).map(line).collect();
        let (text, is_cut) = kept(long.clone());
        assert!(
            is_cut && text.len() < MAX_STREAM + 100 && text.starts_with("0 é\n1 é\n") && text.ends_with("99999 é\n")
        );
        let dropped: usize = text.split("[... ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        let marks = format!("\n[... {dropped} bytes left out ...]\n").len();
        assert_eq!(text.len() - marks + dropped, long.concat().len());
        assert_eq!(kept([long.concat()]).0, text);
        assert_eq!(kept([String::from("a\u{1b}[31m"), "b".to_owned()]), ("ab".to_owned(), false));
        let full = "x".repeat(MAX_STREAM);
        assert_eq!(kept([full.clone()]), (full, false));
    }
}
