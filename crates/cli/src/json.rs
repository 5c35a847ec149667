//! Output for programs: one JSON object a line on stdout. The last one is always `ended`.

use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;

use aludel_agent::upstream::TokenUsage;
use aludel_engine::turns::{EndReason, EventKind, FailureKind, ItemId};
use aludel_sandbox::{
    ClientCall, ExecutionEvent, Finished, KernelDeath, LimitHit, MimeBundle, MimeData, Outcome, VariablesState,
};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::exit::Exit;
use crate::output_directory::{OutputDirectory, SavedFile};

/// Section of `run --help` on JSON lines.
pub(crate) const PROGRAM_HELP: &str = "\
With --json, stdout has one JSON object a line, told apart by `type`:
  stdout, stderr    text
  display, result   data (by MIME type; binary as base64), image (where it was saved, or null)
  error             name, value, traceback
  finished          outcome (completed, failed, limit, interrupted, died), limit, signal, status,
                    elapsed_ms, output_dropped, blocked (names of refused system calls),
                    state (kept, rolled_back, lost, restarted), files (path, size, mime),
                    files_left_out (how many more cannot be handed on)
  ended             exit (as below), files (with `saved`, the path it was copied to), message";

/// Section of `ask --help` on JSON lines.
pub(crate) const TURN_HELP: &str = "\
With --json, stdout has the events of `aludel run --json`, each with the `call` it belongs to, and:
  round             number
  retrying          wait_ms, reason
  text, reasoning   text, as it is written
  code_delta        call, text
  code              call, code (exactly what is run)
  approval          call, denied (null, or the reason)
  rejected          call, reason
  observation       call, text (what the model got to see)
  usage             input, cached, output, reasoning
  ended             exit, ending (answered, refused, cut_off, budget, upstream, sandbox, cancelled), answer,
                    files, message";

/// One line. `call` identifies its program within a turn.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<&'a str>,
    #[serde(flatten)]
    content: Content<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Stdout { text: &'a str },
    Stderr { text: &'a str },
    Display { data: Map<String, Value>, image: Option<PathBuf> },
    Result { data: Map<String, Value>, image: Option<PathBuf> },
    Error { name: &'a str, value: &'a str, traceback: &'a str },
    Calls { calls: &'a [ClientCall] },
    Finished(FinishedLine<'a>),
    Round { number: u32 },
    Retrying { wait_ms: u64, reason: &'a str },
    Text { text: &'a str },
    Reasoning { text: &'a str },
    CodeDelta { text: &'a str },
    Code { code: &'a str },
    Approval { denied: Option<&'a str> },
    Rejected { reason: &'a str },
    Observation { text: &'a str },
    Usage { input: u64, cached: u64, output: u64, reasoning: u64 },
    Ended(EndLine<'a>),
}

#[derive(Serialize)]
struct FinishedLine<'a> {
    outcome: &'static str,
    limit: Option<&'static str>,
    signal: Option<i32>,
    status: Option<i32>,
    elapsed_ms: u128,
    output_dropped: u64,
    blocked: &'a [String],
    state: &'static str,
    files: Vec<File<'a>>,
    files_left_out: u64,
}

#[derive(Serialize)]
struct File<'a> {
    path: &'a str,
    size: u64,
    mime: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved: Option<PathBuf>,
}

/// The last line of a command.
#[derive(Serialize, Default)]
pub(crate) struct EndLine<'a> {
    exit: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    ending: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a str>,
    files: Vec<File<'a>>,
    message: Option<String>,
}

impl<'a> EndLine<'a> {
    /// After a program.
    pub(crate) fn program(exit: Exit, saved: &'a [SavedFile], message: Option<String>) -> Self {
        Self { exit: exit.status(), files: files(saved), message, ..Self::default() }
    }

    /// After a turn.
    pub(crate) fn turn(exit: Exit, ending: &EndReason, answer: &'a str, saved: &'a [SavedFile]) -> Self {
        Self {
            exit: exit.status(),
            ending: Some(name_of(ending)),
            answer: Some(answer),
            files: files(saved),
            message: ending.words(),
        }
    }

    /// After an error of ours.
    pub(crate) fn error(exit: Exit, message: String) -> Self {
        Self { exit: exit.status(), message: Some(message), ..Self::default() }
    }
}

/// Writes an event of an execution.
pub(crate) fn program(call: Option<&str>, event: &ExecutionEvent, out: &mut OutputDirectory) -> anyhow::Result<()> {
    let image = match event {
        ExecutionEvent::Display(bundle) | ExecutionEvent::Result(bundle) => out.figure(bundle).map(|(_, path)| path),
        _ => None,
    };
    print(&Line { call, content: content(event, image) })
}

/// An event of an execution, of which nothing is saved.
pub(crate) fn value(event: &ExecutionEvent) -> Value {
    serde_json::to_value(Line { call: None, content: content(event, None) }).unwrap_or_default()
}

fn content(event: &ExecutionEvent, image: Option<PathBuf>) -> Content<'_> {
    match event {
        ExecutionEvent::Stdout(text) => Content::Stdout { text },
        ExecutionEvent::Stderr(text) => Content::Stderr { text },
        ExecutionEvent::Display(bundle) => Content::Display { data: data(bundle), image },
        ExecutionEvent::Result(bundle) => Content::Result { data: data(bundle), image },
        ExecutionEvent::Error(error) => {
            Content::Error { name: &error.name, value: &error.value, traceback: &error.traceback }
        }
        ExecutionEvent::Calls(calls) => Content::Calls { calls },
        ExecutionEvent::Finished(finished) => Content::Finished(finished_line(finished)),
    }
}

/// Writes an event of a turn. Its end is written by [`end`], after the files were copied. `calls` has the ids of calls, and `of_program`
/// the fields for an event of a program's execution.
pub(crate) fn turn(
    event: &EventKind,
    calls: &HashMap<ItemId, String>,
    of_program: Option<&ExecutionEvent>,
    out: &mut OutputDirectory,
) -> anyhow::Result<()> {
    let of = |item: &ItemId| calls.get(item).map(String::as_str);
    let (call, content) = match event {
        EventKind::Output { item, .. } | EventKind::ToolEnded { item, .. } => {
            return of_program.map_or(Ok(()), |event| program(of(item), event, out));
        }
        EventKind::RoundStarted { number } => (None, Content::Round { number: *number }),
        EventKind::Retrying { wait_ms, reason } => (None, Content::Retrying { wait_ms: *wait_ms, reason }),
        EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => (None, Content::Text { text: delta }),
        EventKind::Reasoning { delta, .. } => (None, Content::Reasoning { text: delta }),
        EventKind::ToolInput { item, delta } => (of(item), Content::CodeDelta { text: delta }),
        EventKind::ToolReady { item, input, .. } => (of(item), Content::Code { code: input }),
        EventKind::ApprovalDecided { item, denied } => (of(item), Content::Approval { denied: denied.as_deref() }),
        EventKind::ToolRejected { call_id, reason, .. } => (Some(call_id.as_str()), Content::Rejected { reason }),
        EventKind::Observed { call_id, text } => (Some(call_id.as_str()), Content::Observation { text }),
        EventKind::Usage { usage, .. } => {
            let TokenUsage { input, cached, output, reasoning } = *usage;
            (None, Content::Usage { input, cached, output, reasoning })
        }
        EventKind::Created { .. }
        | EventKind::Started
        | EventKind::Resumed { .. }
        | EventKind::TextEnded { .. }
        | EventKind::ToolStarted { .. }
        | EventKind::ApprovalRequested { .. }
        | EventKind::ApprovalPending { .. }
        | EventKind::ToolResumed { .. }
        | EventKind::ToolRunning { .. }
        | EventKind::Ended { .. }
        | EventKind::Closed => return Ok(()),
    };
    print(&Line { call, content })
}

/// Writes the last line.
pub(crate) fn end(ended: EndLine<'_>) -> anyhow::Result<()> {
    print(&Line { call: None, content: Content::Ended(ended) })
}

/// Writes any value on a line of its own.
pub(crate) fn print(value: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}

fn data(bundle: &MimeBundle) -> Map<String, Value> {
    let value = |data: &MimeData| match data {
        MimeData::Text(text) => text.clone(),
        MimeData::Binary(bytes) => BASE64_STANDARD.encode(bytes),
    };
    bundle.0.iter().map(|(mime, data)| (mime.clone(), Value::String(value(data)))).collect()
}

fn finished_line(finished: &Finished) -> FinishedLine<'_> {
    let (mut limit, mut signal, mut status) = (None, None, None);
    let outcome = match &finished.outcome {
        Outcome::Completed => "completed",
        Outcome::Failed(error) => {
            status = error.value.parse().ok().filter(|_| error.name == "SystemExit");
            "failed"
        }
        Outcome::Interrupted => "interrupted",
        Outcome::Limit(hit) => {
            limit = Some(match hit {
                LimitHit::Memory { .. } => "memory",
                LimitHit::WallClock { .. } => "time",
                LimitHit::CpuTime { .. } => "cpu_time",
                LimitHit::Disk { .. } => "disk",
                LimitHit::Files { .. } => "files",
            });
            "limit"
        }
        Outcome::KernelDied(death) => {
            match death {
                KernelDeath::Exited(code) => status = Some(*code),
                KernelDeath::Signalled(number) => signal = Some(*number),
                KernelDeath::Unknown => {}
            }
            "died"
        }
    };
    FinishedLine {
        outcome,
        limit,
        signal,
        status,
        elapsed_ms: finished.elapsed.as_millis(),
        output_dropped: finished.output_dropped,
        files_left_out: finished.files_left_out,
        state: match finished.state {
            VariablesState::Kept => "kept",
            VariablesState::RolledBack => "rolled_back",
            VariablesState::Lost => "lost",
            VariablesState::Restarted => "restarted",
        },
        blocked: &finished.refused_calls,
        files: finished
            .files
            .iter()
            .map(|file| File { path: &file.path, size: file.size, mime: file.mime, saved: None })
            .collect(),
    }
}

fn files(saved: &[SavedFile]) -> Vec<File<'_>> {
    saved
        .iter()
        .map(|SavedFile { entry, path }| File {
            path: &entry.path,
            size: entry.size,
            mime: entry.mime,
            saved: path.clone(),
        })
        .collect()
}

fn name_of(ending: &EndReason) -> &'static str {
    match ending {
        EndReason::Answered => "answered",
        EndReason::Refused => "refused",
        EndReason::TooLong | EndReason::Filtered => "cut_off",
        EndReason::TokenBudget { .. } | EndReason::Budget { .. } => "budget",
        EndReason::WaitsForClient { .. } => "client_tools",
        EndReason::Failed { failure, .. } if failure.kind == FailureKind::Sandbox => "sandbox",
        EndReason::Failed { .. } => "upstream",
        EndReason::Cancelled => "cancelled",
    }
}
