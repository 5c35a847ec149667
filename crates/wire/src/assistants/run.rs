//! Runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::outcome::{LastError, Usage};
use super::{ToolCall, ToolDocument, ToolResources};

super::literal! {
    /// The type of a run.
    RunObject = "thread.run";
    /// The one action that a run can require.
    SubmitToolOutputsType = "submit_tool_outputs";
}

/// A run of an assistant on a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Its id, `run_…`.
    pub id: String,
    /// Its type.
    #[serde(default)]
    pub object: RunObject,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// The assistant.
    pub assistant_id: String,
    /// The thread.
    pub thread_id: String,
    /// Its state.
    pub status: RunStatus,
    /// When it began.
    pub started_at: Option<i64>,
    /// When it is over, done or not; `null` once it has ended.
    pub expires_at: Option<i64>,
    /// When it was cancelled.
    pub cancelled_at: Option<i64>,
    /// When it failed.
    pub failed_at: Option<i64>,
    /// When it was complete.
    pub completed_at: Option<i64>,
    /// The action that it waits for.
    pub required_action: Option<RequiredAction>,
    /// The failure.
    pub last_error: Option<LastError>,
    /// The model.
    pub model: String,
    /// The system prompt.
    pub instructions: String,
    /// Its tools, as they were sent.
    pub tools: Vec<ToolDocument>,
    /// The client's own notes.
    pub metadata: Map<String, Value>,
    /// Randomness.
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    pub top_p: Option<f64>,
    /// The most tokens that the model may write.
    pub max_completion_tokens: Option<u32>,
    /// The most tokens that the model may read.
    pub max_prompt_tokens: Option<u32>,
    /// The part of the thread that the model gets.
    pub truncation_strategy: Truncation,
    /// The reason for which it is incomplete.
    pub incomplete_details: Option<IncompleteRun>,
    /// Tokens of all rounds; `null` until it has ended.
    pub usage: Option<Usage>,
    /// The form of the answer, as it was sent.
    pub response_format: Value,
    /// The tool that the model must call, as it was sent.
    pub tool_choice: Value,
    /// True if the model may call several tools at once.
    pub parallel_tool_calls: bool,
    /// The files of its tools.
    pub tool_resources: ToolResources,
    /// The effort of a reasoning model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
}

/// The state of a run. The set is closed: clients that poll spin on any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// It waits for its turn.
    Queued,
    /// It goes on.
    InProgress,
    /// It waits for the outputs of the client's functions.
    RequiresAction,
    /// It is being cancelled.
    Cancelling,
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed,
    /// It is complete.
    Completed,
    /// It was cut off.
    Incomplete,
    /// It took too long.
    Expired,
}

impl RunStatus {
    /// Returns true if nothing more happens.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Queued | Self::InProgress | Self::RequiresAction | Self::Cancelling => false,
            Self::Cancelled | Self::Failed | Self::Completed | Self::Incomplete | Self::Expired => true,
        }
    }

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::RequiresAction => "requires_action",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Expired => "expired",
        }
    }
}

/// The action that a run waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequiredAction {
    /// Its type.
    #[serde(default)]
    pub r#type: SubmitToolOutputsType,
    /// The calls to answer.
    pub submit_tool_outputs: SubmitAction,
}

/// Calls of the client's functions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SubmitAction {
    /// The calls, without their outputs.
    pub tool_calls: Vec<ToolCall>,
}

/// The reason for which a run is incomplete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IncompleteRun {
    /// `max_completion_tokens` or `max_prompt_tokens`.
    pub reason: String,
}

/// The part of a thread that the model gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Truncation {
    /// `auto` or `last_messages`.
    pub r#type: String,
    /// The number of messages.
    #[serde(default)]
    pub last_messages: Option<u32>,
}
