//! The output of a program in this protocol's words.

use aludel_engine::turns::{OutputPiece, RichValue, ToolEnd, ToolKind, ToolOutcome};
use aludel_wire::anthropic::{Block, CodeExecutionResult, EditorResult, ErrorCode, OutputFile, ProgramResult};

/// Exit status of a program that a signal ended, as in shells: 128 and the signal's number.
const SIGNALLED: i64 = 128;
const INTERRUPTED: i64 = 130;
const KILLED: i64 = 137;
const FAILED: i64 = 1;

/// The output of a program that runs.
#[derive(Debug)]
pub(super) struct CollectedOutput {
    tool: ToolKind,
    stdout: String,
    stderr: String,
    /// The last expression's value of a program that stands for a shell or editor call: a command's exit status, or the editor's figures.
    value: String,
    /// The exception that ended it.
    error: Option<(String, String)>,
}

/// The result of a call, in the form of its tool's block.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Python(CodeExecutionResult),
    Bash(CodeExecutionResult),
    Editor(EditorResult),
}

/// The end of a program.
#[derive(Debug, PartialEq)]
pub(super) struct ProgramEnd {
    pub(super) outcome: Outcome,
    /// Output that has no place in the result.
    pub(super) rest: String,
}

impl Outcome {
    /// The block with it.
    pub(super) fn block(self, tool_use_id: String) -> Block {
        match self {
            Self::Python(content) => Block::CodeExecutionToolResult { tool_use_id, content },
            Self::Bash(content) => Block::BashCodeExecutionToolResult { tool_use_id, content },
            Self::Editor(content) => Block::TextEditorCodeExecutionToolResult { tool_use_id, content },
        }
    }

    /// The result of a program or a command that was begun.
    fn of_program(tool: ToolKind, result: ProgramResult) -> Self {
        match tool {
            ToolKind::Python => Self::Python(CodeExecutionResult::CodeExecutionResult(result)),
            ToolKind::Bash => Self::Bash(CodeExecutionResult::BashCodeExecutionResult(result)),
            ToolKind::Editor => {
                let words = Some(result.stderr.trim().to_owned()).filter(|words| !words.is_empty());
                Self::Editor(EditorResult::Error { error_code: ErrorCode::Unavailable, error_message: words })
            }
        }
    }
}

impl CollectedOutput {
    /// Empty output of a call of this tool.
    pub(super) fn of(tool: ToolKind) -> Self {
        Self { tool, stdout: String::new(), stderr: String::new(), value: String::new(), error: None }
    }

    /// The tool.
    pub(super) fn tool(&self) -> ToolKind {
        self.tool
    }

    pub(super) fn record(&mut self, output: &OutputPiece) {
        match output {
            OutputPiece::Stdout(text) => self.stdout.push_str(text),
            OutputPiece::Stderr(text) => self.stderr.push_str(text),
            OutputPiece::Result(RichValue { text, .. }) if self.tool != ToolKind::Python => {
                self.value = text.clone().unwrap_or_default();
            }
            // Images are files.
            OutputPiece::Display(RichValue { image: Some(_), .. })
            | OutputPiece::Result(RichValue { image: Some(_), .. }) => {}
            OutputPiece::Display(RichValue { text, .. }) | OutputPiece::Result(RichValue { text, .. }) => {
                line(&mut self.stdout, text.as_deref().unwrap_or_default());
            }
            OutputPiece::Error { name, value, traceback } => {
                line(&mut self.stderr, traceback);
                self.error = Some((name.clone(), value.clone()));
            }
        }
    }

    /// The result of the call, with the program's end.
    pub(super) fn end(self, outcome: &ToolOutcome) -> ProgramEnd {
        let Self { tool, stdout, mut stderr, value, error } = self;
        let return_code = match outcome.end {
            ToolEnd::Completed => 0,
            ToolEnd::Raised | ToolEnd::DiskLimit => FAILED,
            ToolEnd::Interrupted => INTERRUPTED,
            ToolEnd::MemoryLimit | ToolEnd::Died => KILLED,
            ToolEnd::Timeout | ToolEnd::CpuLimit => return timed_out(tool, stdout, &stderr),
        };
        let is_plain = matches!(outcome.end, ToolEnd::Completed | ToolEnd::Raised) && outcome.without_room.is_empty();
        if !is_plain {
            line(&mut stderr, &outcome.words);
        }
        if tool == ToolKind::Editor && is_plain {
            let outcome = Outcome::Editor(edited(&stdout, &value, error));
            return ProgramEnd { outcome, rest: String::new() };
        }
        let return_code = match tool {
            ToolKind::Bash if return_code == 0 => value.parse().map_or(FAILED, status),
            _ => return_code,
        };
        let files = outcome.files.iter().map(|file| file.id.to_string());
        let content = match tool {
            ToolKind::Bash => files.map(|file_id| OutputFile::BashCodeExecutionOutput { file_id }).collect(),
            _ => files.map(|file_id| OutputFile::CodeExecutionOutput { file_id }).collect(),
        };
        let result = ProgramResult { stdout, stderr, return_code, content };
        ProgramEnd { outcome: Outcome::of_program(tool, result), rest: String::new() }
    }
}

/// The exit status of a command as in shells: Python gives that of a signal as a negative number.
fn status(value: i32) -> i64 {
    let value = i64::from(value);
    if value < 0 { SIGNALLED - value } else { value }
}

/// The outcome of a call of the editor; `value` is a list of figures.
fn edited(stdout: &str, value: &str, error: Option<(String, String)>) -> EditorResult {
    if let Some((name, value)) = error {
        let error_code = match name.as_str() {
            "FileNotFoundError" => ErrorCode::FileNotFound,
            _ => ErrorCode::InvalidToolInput,
        };
        return EditorResult::Error { error_code, error_message: Some(format!("{name}: {value}")) };
    }
    let text = stdout.strip_suffix('\n').unwrap_or(stdout);
    match serde_json::from_str::<Vec<u64>>(value).unwrap_or_default().as_slice() {
        [is_file_update] => EditorResult::Create { is_file_update: *is_file_update == 1 },
        [num_lines, start_line, total_lines] => EditorResult::View {
            file_type: "text".to_owned(),
            content: text.to_owned(),
            num_lines: Some(*num_lines),
            start_line: Some(*start_line),
            total_lines: Some(*total_lines),
        },
        [old_start, old_lines, new_start, new_lines] => EditorResult::Replace {
            lines: Some(text.split('\n').map(str::to_owned).collect()),
            old_start: Some(*old_start),
            old_lines: Some(*old_lines),
            new_start: Some(*new_start),
            new_lines: Some(*new_lines),
        },
        _ => EditorResult::Error { error_code: ErrorCode::Unavailable, error_message: None },
    }
}

impl ProgramEnd {
    /// The end of a program that was not run, or not to its end.
    pub(super) fn error(tool: ToolKind, error_code: ErrorCode) -> Self {
        let outcome = match tool {
            ToolKind::Python => Outcome::Python(CodeExecutionResult::CodeExecutionToolResultError { error_code }),
            ToolKind::Bash => Outcome::Bash(CodeExecutionResult::BashCodeExecutionToolResultError { error_code }),
            ToolKind::Editor => Outcome::Editor(EditorResult::Error { error_code, error_message: None }),
        };
        Self { outcome, rest: String::new() }
    }

    /// The end of a call whose arguments make no sense.
    pub(super) fn rejected(tool: ToolKind, reason: &str) -> Self {
        let error_code = ErrorCode::InvalidToolInput;
        match tool {
            ToolKind::Python | ToolKind::Bash => Self::error(tool, error_code),
            ToolKind::Editor => {
                let error_message = Some(reason.to_owned());
                Self {
                    outcome: Outcome::Editor(EditorResult::Error { error_code, error_message }),
                    rest: String::new(),
                }
            }
        }
    }

    /// The end of a program that was not allowed.
    pub(super) fn refused(tool: ToolKind, reason: &str) -> Self {
        let stderr = format!("It was not allowed to run: {reason}");
        let result = ProgramResult { stderr, return_code: FAILED, ..ProgramResult::default() };
        Self { outcome: Outcome::of_program(tool, result), rest: String::new() }
    }
}

/// An error has no field for the output so far, so its text contains it.
fn timed_out(tool: ToolKind, mut printed: String, stderr: &str) -> ProgramEnd {
    line(&mut printed, stderr);
    let printed = printed.trim();
    let rest = if printed.is_empty() { String::new() } else { format!("Output until the time was up:\n\n{printed}") };
    ProgramEnd { rest, ..ProgramEnd::error(tool, ErrorCode::ExecutionTimeExceeded) }
}

/// Adds lines of their own to a text.
fn line(to: &mut String, text: &str) {
    if text.is_empty() {
        return;
    }
    if !to.is_empty() && !to.ends_with('\n') {
        to.push('\n');
    }
    to.push_str(text);
    if !text.ends_with('\n') {
        to.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(end: ToolEnd) -> ProgramEnd {
        let mut printed = CollectedOutput::of(ToolKind::Python);
        printed.record(&OutputPiece::Stdout("half".into()));
        printed.record(&OutputPiece::Result(RichValue { text: Some("42".into()), image: None, others: Vec::new() }));
        printed.record(&OutputPiece::Stderr("oh".into()));
        let words = "how it ended".to_owned();
        printed.end(&ToolOutcome {
            end,
            words,
            elapsed_ms: 1,
            files: Vec::new(),
            without_room: Vec::new(),
            finished: None,
        })
    }

    #[test]
    fn every_end_has_a_status_or_a_reason() {
        for (end, return_code, stderr) in [
            (ToolEnd::Completed, 0, "oh"),
            (ToolEnd::Raised, 1, "oh"),
            (ToolEnd::Interrupted, 130, "oh\nhow it ended\n"),
            (ToolEnd::MemoryLimit, 137, "oh\nhow it ended\n"),
            (ToolEnd::DiskLimit, 1, "oh\nhow it ended\n"),
            (ToolEnd::Died, 137, "oh\nhow it ended\n"),
        ] {
            let result =
                ProgramResult { stdout: "half\n42\n".into(), stderr: stderr.into(), return_code, content: Vec::new() };
            assert_eq!(
                ended(end),
                ProgramEnd { outcome: Outcome::of_program(ToolKind::Python, result), rest: String::new() }
            );
        }
        for end in [ToolEnd::Timeout, ToolEnd::CpuLimit] {
            let ProgramEnd { outcome, rest } = ended(end);
            assert_eq!(outcome, ProgramEnd::error(ToolKind::Python, ErrorCode::ExecutionTimeExceeded).outcome);
            assert_eq!(rest, "Output until the time was up:\n\nhalf\n42\noh");
        }
    }

    /// The end of a call of this tool whose program printed a line and had this value.
    fn called(tool: ToolKind, value: &str) -> serde_json::Value {
        let mut printed = CollectedOutput::of(tool);
        printed.record(&OutputPiece::Stdout("one\n".into()));
        printed.record(&OutputPiece::Result(RichValue { text: Some(value.into()), image: None, others: Vec::new() }));
        let outcome = ToolOutcome {
            end: ToolEnd::Completed,
            words: String::new(),
            elapsed_ms: 1,
            files: Vec::new(),
            without_room: Vec::new(),
            finished: None,
        };
        serde_json::to_value(printed.end(&outcome).outcome.block("srvtoolu_1".into())).unwrap()["content"].take()
    }

    #[test]
    fn the_value_of_a_call_is_its_status_or_its_figures() {
        let bash = called(ToolKind::Bash, "3");
        assert_eq!((&bash["stdout"], &bash["return_code"]), (&"one\n".into(), &3.into()));
        let view = called(ToolKind::Editor, "[1, 2, 5]");
        assert_eq!(
            (&view["content"], &view["start_line"], &view["total_lines"]),
            (&"one".into(), &2.into(), &5.into())
        );
        assert_eq!(called(ToolKind::Editor, "[1]")["is_file_update"], true);
        let change = called(ToolKind::Editor, "[4, 1, 4, 2]");
        assert_eq!(
            (&change["lines"][0], &change["old_start"], &change["new_lines"]),
            (&"one".into(), &4.into(), &2.into())
        );
        assert_eq!(called(ToolKind::Editor, "None")["error_code"], "unavailable");
        assert_eq!(called(ToolKind::Bash, "")["return_code"], FAILED);
        assert_eq!(called(ToolKind::Bash, "-9")["return_code"], KILLED);
    }
}
