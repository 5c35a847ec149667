//! The output of a program in this protocol's words.

use aludel_engine::turns::{Output, Rich, ToolEnd, ToolOutcome};
use aludel_wire::anthropic::{CodeExecutionResult, ErrorCode, OutputFile, ProgramResult};

/// Exit status of a program that a signal ended, as shells have it: 128 and the signal's number.
const INTERRUPTED: i64 = 130;
const KILLED: i64 = 137;
const FAILED: i64 = 1;

/// The output of a program that runs.
#[derive(Debug, Default)]
pub(super) struct Printed {
    stdout: String,
    stderr: String,
}

/// The end of a program.
#[derive(Debug, PartialEq)]
pub(super) struct Ended {
    pub(super) result: CodeExecutionResult,
    /// Output that has no place in the result.
    pub(super) rest: String,
}

impl Printed {
    pub(super) fn see(&mut self, output: &Output) {
        match output {
            Output::Stdout(text) => self.stdout.push_str(text),
            Output::Stderr(text) => self.stderr.push_str(text),
            // Images are files.
            Output::Display(Rich { image: Some(_), .. }) | Output::Result(Rich { image: Some(_), .. }) => {}
            Output::Display(Rich { text, .. }) | Output::Result(Rich { text, .. }) => {
                line(&mut self.stdout, text.as_deref().unwrap_or_default());
            }
            Output::Error { traceback, .. } => line(&mut self.stderr, traceback),
        }
    }

    /// All of it, with the program's end.
    pub(super) fn end(self, outcome: &ToolOutcome) -> Ended {
        let Self { stdout, mut stderr } = self;
        let return_code = match outcome.end {
            ToolEnd::Completed => 0,
            ToolEnd::Raised | ToolEnd::DiskLimit => FAILED,
            ToolEnd::Interrupted => INTERRUPTED,
            ToolEnd::MemoryLimit | ToolEnd::Died => KILLED,
            ToolEnd::Timeout | ToolEnd::CpuLimit => return timed_out(stdout, &stderr),
        };
        if !matches!(outcome.end, ToolEnd::Completed | ToolEnd::Raised) || !outcome.without_room.is_empty() {
            line(&mut stderr, &outcome.words);
        }
        let files = outcome.files.iter().map(|file| OutputFile::CodeExecutionOutput { file_id: file.id.to_string() });
        let result = ProgramResult { stdout, stderr, return_code, content: files.collect() };
        Ended { result: CodeExecutionResult::CodeExecutionResult(result), rest: String::new() }
    }
}

impl Ended {
    /// The end of one that was not run, or not to its end.
    pub(super) fn error(error_code: ErrorCode) -> Self {
        let result = CodeExecutionResult::CodeExecutionToolResultError { error_code };
        Self { result, rest: String::new() }
    }

    /// The end of one that somebody did not allow.
    pub(super) fn refused(reason: &str) -> Self {
        let stderr = format!("It was not allowed to run: {reason}");
        let result = ProgramResult { stderr, return_code: FAILED, ..ProgramResult::default() };
        Self { result: CodeExecutionResult::CodeExecutionResult(result), rest: String::new() }
    }
}

/// The output until then has no place in an error, so it is told in words.
fn timed_out(mut printed: String, stderr: &str) -> Ended {
    line(&mut printed, stderr);
    let printed = printed.trim();
    let rest = if printed.is_empty() { String::new() } else { format!("Output until the time was up:\n\n{printed}") };
    Ended { rest, ..Ended::error(ErrorCode::ExecutionTimeExceeded) }
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

    fn ended(end: ToolEnd) -> Ended {
        let mut printed = Printed::default();
        printed.see(&Output::Stdout("half".into()));
        printed.see(&Output::Result(Rich { text: Some("42".into()), image: None, others: Vec::new() }));
        printed.see(&Output::Stderr("oh".into()));
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
                Ended { result: CodeExecutionResult::CodeExecutionResult(result), rest: String::new() }
            );
        }
        for end in [ToolEnd::Timeout, ToolEnd::CpuLimit] {
            let Ended { result, rest } = ended(end);
            assert_eq!(result, Ended::error(ErrorCode::ExecutionTimeExceeded).result);
            assert_eq!(rest, "Output until the time was up:\n\nhalf\n42\noh");
        }
    }
}
