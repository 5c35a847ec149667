//! Events of a turn, a closed set.

use std::time::Duration;

use aludel_sandbox::ExecutionEvent;

use crate::item::{Call, Item};
use crate::shell::ProgramTool;
use crate::upstream::{TokenUsage, UpstreamError};

/// An event of a turn. [`Event::Finished`] comes exactly once and last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The `number`th request to the model in this turn, counted from 1, begins.
    RoundStarted {
        /// Number of the round, from 1.
        number: u32,
    },
    /// The upstream is busy and is asked again after a wait.
    Retrying {
        /// Time until the next attempt.
        wait: Duration,
        /// The failure, in words.
        reason: String,
    },
    /// The model writes.
    Text(String),
    /// The model writes that it will not answer.
    Refusal(String),
    /// The model thinks aloud.
    Reasoning(String),
    /// The model starts to write a program.
    WritingStarted {
        /// Id of the tool's call.
        call_id: String,
        /// The tool.
        tool: ProgramTool,
    },
    /// The model goes on writing it.
    CodeDelta {
        /// Id of the tool's call.
        call_id: String,
        /// The next characters of the program.
        text: String,
    },
    /// The program is complete; this is exactly what will be run.
    CodeWritten {
        /// Id of the tool's call.
        call_id: String,
        /// The tool.
        tool: ProgramTool,
        /// The text that the model wrote: the program itself, a command, or the arguments of the editor in JSON.
        input: String,
        /// The program.
        code: String,
    },
    /// A person or a rule is asked whether the program may run.
    ApprovalRequested {
        /// Id of the tool's call.
        call_id: String,
    },
    /// The answer: `None` when it may, the reason when not.
    ApprovalDecided {
        /// Id of the tool's call.
        call_id: String,
        /// The reason for a refusal.
        denied: Option<String>,
    },
    /// The program was approved before this turn. It starts once this has been read.
    ApprovalGiven {
        /// Id of the tool's call.
        call_id: String,
    },
    /// The program runs from now on.
    ExecutionStarted {
        /// Id of the tool's call.
        call_id: String,
    },
    /// An event of the running program; its last event is the execution's own `Finished`.
    Execution {
        /// Id of the tool's call.
        call_id: String,
        /// The execution's event.
        event: ExecutionEvent,
    },
    /// A call was invalid; the model is told the reason.
    CallRejected {
        /// Id of the tool's call.
        call_id: String,
        /// The mistake, in words.
        reason: String,
    },
    /// The model's view of an execution, or of a call that was denied or rejected.
    Observation {
        /// Id of the tool's call.
        call_id: String,
        /// The text; images are not repeated here.
        text: String,
    },
    /// The conversation has another item. A later turn continues from all items so far.
    Item(Item),
    /// Tokens of one round.
    Usage(TokenUsage),
    /// The end.
    Finished(Ending),
}

/// Reason for the end of a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The model answered.
    Answered,
    /// The model declines.
    Refused,
    /// The answer was cut off by the upstream's token limit or filter.
    CutOff(CutOff),
    /// A budget is used up. What was made so far is kept.
    Budget(Budget),
    /// The model called tools of the caller, who has to answer them in the next turn.
    ClientTools(Vec<Call>),
    /// Programs wait for approval; the turn goes on when its items are resumed.
    AwaitsApproval {
        /// The calls of our tool, none of which has run.
        programs: Vec<Call>,
        /// Calls of the caller's tools from the same round.
        client_tools: Vec<Call>,
    },
    /// The upstream failed. What was made so far is kept.
    Upstream(UpstreamError),
    /// The sandbox failed: our fault or the host's.
    Sandbox(String),
    /// The caller cancelled.
    Cancelled,
}

impl Ending {
    /// Returns its name in logs and figures.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::CutOff(CutOff::Length) => "length",
            Self::CutOff(CutOff::Filter) => "content_filter",
            Self::Budget(_) => "budget",
            Self::ClientTools(_) => "client_tools",
            Self::AwaitsApproval { .. } => "awaits_approval",
            Self::Upstream(_) => "upstream_failed",
            Self::Sandbox(_) => "sandbox_failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The upstream's limit that cut an answer off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutOff {
    /// Its own token limit, or the caller's.
    Length,
    /// Its content filter.
    Filter,
}

impl std::fmt::Display for CutOff {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Length => "the limit of tokens for one answer",
            Self::Filter => "the upstream's content filter",
        })
    }
}

/// A limit of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// Calls of the model.
    Rounds(u32),
    /// Calls of tools: programs and functions.
    ToolCalls(u32),
    /// Tokens read and written.
    Tokens(u64),
    /// Tokens read.
    InputTokens(u64),
    /// Tokens written.
    OutputTokens(u64),
    /// Wall clock.
    Time(Duration),
}

impl std::fmt::Display for Budget {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rounds(count) => write!(formatter, "{count} rounds with the model"),
            Self::ToolCalls(count) => write!(formatter, "{count} calls"),
            Self::Tokens(count) => write!(formatter, "{count} tokens"),
            Self::InputTokens(count) => write!(formatter, "{count} tokens to read"),
            Self::OutputTokens(count) => write!(formatter, "{count} tokens to write"),
            Self::Time(time) => write!(formatter, "{} s", time.as_secs_f64()),
        }
    }
}
