//! Events of a turn: the only thing that a dialect renders.

use std::sync::Arc;

use aludel_agent::upstream::Usage;
use aludel_sandbox::{Finished, LimitHit, Outcome};
use serde::{Deserialize, Serialize};

use super::Failure;
use crate::sessions::SessionFile;

/// Something that happened in a turn, told after its effects are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its number among the events of its request, from 0, without gaps but for those that a crash leaves.
    pub sequence: u64,
    /// Time, milliseconds since 1970.
    pub at_ms: i64,
    /// The turn, by its index among those of the request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub turn: usize,
    /// Its kind and contents.
    #[serde(flatten)]
    pub kind: EventKind,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// An identifier for something that a turn produces, made before it is stored: digits that a dialect puts its own prefix to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ItemId(String);

impl ItemId {
    /// A new one.
    #[expect(clippy::new_without_default, reason = "a default would be the same each time")]
    pub fn new() -> Self {
        Self(aludel_store::fresh_id(""))
    }

    /// The id with a dialect's prefix.
    pub fn with_prefix(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.0)
    }
}

/// A tool of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// A program for the Python kernel.
    Python,
    /// A command for a shell.
    Bash,
    /// A change of a file.
    Editor,
}

/// A call of a tool that the client carries out, or approves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The item.
    pub item: ItemId,
    /// Pairs the call with its output: made by the model's server.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// Its arguments, always JSON.
    pub arguments: String,
}

/// The kinds of events. [`EventKind::Ended`] comes exactly once for each turn, [`EventKind::Closed`] once and last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventKind {
    /// The request is known under its id from now on.
    Created {
        /// Whether it runs in the background, where clients ask for it by its id.
        background: bool,
    },
    /// The turns begin.
    Started,
    /// The request goes on after a crash or a restart. Frames of a dialect are numbered from here on.
    Resumed {
        /// The first number of a frame that no client was ever sent.
        next_frame: u64,
    },
    /// The model is asked.
    RoundStarted {
        /// The number of the round, from 1.
        number: u32,
    },
    /// The upstream is busy and is asked again after a wait.
    Retrying {
        /// Length of the wait, milliseconds.
        wait_ms: u64,
        /// The reason in words.
        reason: String,
    },
    /// The model writes. The first piece begins a message.
    Text {
        /// The message.
        item: ItemId,
        /// The next characters.
        delta: String,
    },
    /// The message is complete, and the turn goes on.
    TextEnded {
        /// The message.
        item: ItemId,
        /// Files of the session that its text names.
        linked: Vec<SessionFile>,
    },
    /// The model thinks aloud. The first piece begins a thought.
    Reasoning {
        /// The thought.
        item: ItemId,
        /// The next characters.
        delta: String,
    },
    /// The model begins to write a call of one of our tools.
    ToolStarted {
        /// The call.
        item: ItemId,
        /// The call's id as the model's server has it.
        call_id: String,
        /// The tool.
        tool: ToolKind,
    },
    /// The model goes on writing it.
    ToolInput {
        /// The call.
        item: ItemId,
        /// The next characters of the program.
        delta: String,
    },
    /// The call is complete.
    ToolReady {
        /// The call.
        item: ItemId,
        /// The call's id as the model's server has it. A call of an earlier request begins here.
        call_id: String,
        /// The tool.
        tool: ToolKind,
        /// The program: exactly this is run.
        input: String,
    },
    /// A decision about the call is asked for.
    ApprovalRequested {
        /// The call.
        item: ItemId,
    },
    /// The decision.
    ApprovalDecided {
        /// The call.
        item: ItemId,
        /// The reason of a refusal.
        refused: Option<String>,
    },
    /// The program runs.
    ToolRunning {
        /// The call.
        item: ItemId,
    },
    /// The program puts something out.
    Output {
        /// The call.
        item: ItemId,
        /// A piece of it.
        output: Output,
    },
    /// The program ended.
    ToolEnded {
        /// The call.
        item: ItemId,
        /// Its outcome.
        outcome: ToolOutcome,
    },
    /// The call could not be carried out as it was written; the model is told so.
    ToolRejected {
        /// The call, if it had begun.
        item: Option<ItemId>,
        /// The reason.
        reason: String,
    },
    /// Tokens of one round.
    Usage {
        /// The number of the round, from 1.
        round: u32,
        /// Its tokens.
        usage: Usage,
    },
    /// The end of one turn.
    Ended {
        /// For a message that a dialect needs where the model wrote none.
        item: ItemId,
        /// Its reason.
        ending: Ending,
        /// Files of the session that the last message names.
        linked: Vec<SessionFile>,
    },
    /// The end of the request.
    Closed,
}

/// A piece of a program's output, made by untrusted code: data, never an instruction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Text on standard output.
    Stdout(String),
    /// Text on standard error.
    Stderr(String),
    /// Something displayed.
    Display(Rich),
    /// The value of the last expression.
    Result(Rich),
    /// The exception that ended the program.
    Error {
        /// Its class.
        name: String,
        /// Its message.
        value: String,
        /// The traceback in text.
        traceback: String,
    },
}

/// A value as text, or as an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rich {
    /// Its plain text.
    Text(String),
    /// An image, kept as a file of the session.
    Image(Image),
}

/// An image that a program showed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// The file that holds it.
    pub file: SessionFile,
    /// Its bytes, for renderings that hold them: the file may be gone when the log is read.
    #[serde(with = "base64_bytes")]
    pub bytes: Arc<[u8]>,
}

/// The end of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolOutcome {
    /// The kind of its end.
    pub end: ToolEnd,
    /// The outcome in words, as the model is told it.
    pub words: String,
    /// Wall clock from start to end, milliseconds.
    pub elapsed_ms: u64,
    /// Files that it made or changed and images that it showed, all stored.
    pub files: Vec<SessionFile>,
}

/// The kinds of ends of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolEnd {
    /// It ran to its end.
    Completed,
    /// It raised an exception.
    Raised,
    /// It was interrupted.
    Interrupted,
    /// It reached its memory limit.
    MemoryLimit,
    /// It ran longer than it may.
    Timeout,
    /// It used more processor time than it may.
    CpuLimit,
    /// It filled the workspace.
    DiskLimit,
    /// It ended its own interpreter.
    Died,
}

impl ToolEnd {
    pub(super) fn of(finished: &Finished) -> Self {
        match &finished.outcome {
            Outcome::Completed => Self::Completed,
            Outcome::Failed(_) => Self::Raised,
            Outcome::Interrupted => Self::Interrupted,
            Outcome::Limit(LimitHit::Memory { .. }) => Self::MemoryLimit,
            Outcome::Limit(LimitHit::WallClock { .. }) => Self::Timeout,
            Outcome::Limit(LimitHit::CpuTime { .. }) => Self::CpuLimit,
            Outcome::Limit(LimitHit::Disk { .. } | LimitHit::Files { .. }) => Self::DiskLimit,
            Outcome::KernelDied(_) => Self::Died,
        }
    }
}

/// The reason for which a turn ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Ending {
    /// The model answered.
    Answered,
    /// The model declined.
    Refused,
    /// The model's server cut the answer off at its limit of tokens.
    TooLong,
    /// The model's server withheld the rest.
    Filtered,
    /// A budget of tokens is used up.
    TokenBudget {
        /// The budget in words.
        words: String,
    },
    /// Another budget is used up.
    Budget {
        /// The budget in words.
        words: String,
    },
    /// The client has tools to carry out, programs to approve, or both.
    WaitsForClient {
        /// Programs that wait for the client's approval.
        programs: Vec<ToolCall>,
        /// Calls of the client's own tools.
        calls: Vec<ToolCall>,
    },
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed {
        /// The failure, as clients may know it.
        failure: Failure,
    },
}

/// Bytes as base64.
mod base64_bytes {
    use std::sync::Arc;

    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(BASE64_STANDARD.decode(text).map_err(D::Error::custom)?.into())
    }
}
