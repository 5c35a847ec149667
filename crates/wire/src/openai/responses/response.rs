//! The response.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Item, ReasoningOptions, TextOptions, Tool, ToolChoice};
use crate::{Document, JsonText, lenient};

/// A response: queued, being written, or ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Response {
    /// Its id, `resp_…`.
    pub id: String,
    /// Its type.
    pub object: ResponseObject,
    /// When it began, seconds since 1970.
    pub created_at: i64,
    /// Its state.
    pub status: Status,
    /// When it was complete.
    #[serde(default)]
    pub completed_at: Option<i64>,
    /// True if the client comes back for the answer.
    #[serde(default)]
    pub background: bool,
    /// The failure.
    #[serde(default)]
    pub error: Option<ResponseError>,
    /// The reason for which it is incomplete.
    #[serde(default)]
    pub incomplete_details: Option<IncompleteDetails>,
    /// Instructions to the model.
    #[serde(default)]
    pub instructions: Option<String>,
    /// Most tokens that the model may write.
    #[serde(default)]
    pub max_output_tokens: Option<u32>,
    /// Most programs that the model may run.
    #[serde(default)]
    pub max_tool_calls: Option<u32>,
    /// The model.
    pub model: String,
    /// The output.
    #[serde(default)]
    pub output: Vec<Item>,
    /// True if the model may call several functions at once.
    #[serde(default = "yes")]
    pub parallel_tool_calls: bool,
    /// The response that this one goes on from.
    #[serde(default)]
    pub previous_response_id: Option<String>,
    /// As it was sent.
    #[serde(default)]
    pub prompt_cache_key: Value,
    /// As it was sent.
    #[serde(default)]
    pub reasoning: ReasoningOptions,
    /// As it was sent.
    #[serde(default)]
    pub safety_identifier: Value,
    /// As it was sent, `default` for `auto`.
    #[serde(default)]
    pub service_tier: Value,
    /// True if it is kept.
    #[serde(default = "yes")]
    pub store: bool,
    /// Randomness.
    #[serde(default = "one")]
    pub temperature: f64,
    /// The form of the answer, as it was sent.
    #[serde(default)]
    pub text: TextOptions,
    /// The tool that the model must call, as it was sent.
    pub tool_choice: Document<ToolChoice>,
    /// The tools that the model may call, as they were sent but for secrets.
    #[serde(default)]
    pub tools: Vec<JsonText<Tool>>,
    /// As it was sent.
    #[serde(default)]
    pub top_logprobs: Value,
    /// Nucleus sampling.
    #[serde(default = "one")]
    pub top_p: f64,
    /// As it was sent.
    #[serde(default)]
    pub truncation: Value,
    /// Tokens, as soon as any were used.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// As it was sent.
    #[serde(default)]
    pub user: Value,
    /// The client's notes.
    #[serde(default)]
    pub metadata: Map<String, Value>,
    /// The conversation that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationReference>,
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

/// The type of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum ResponseObject {
    /// The only value.
    #[default]
    #[serde(rename = "response")]
    It,
}

/// The state of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It has not begun.
    Queued,
    /// It is being written.
    InProgress,
    /// It is complete.
    Completed,
    /// It was cut off.
    Incomplete,
    /// It failed.
    Failed,
    /// The client wanted no more of it.
    Cancelled,
}

impl Status {
    /// The status as it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A response's failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResponseError {
    /// `server_error` or `rate_limit_exceeded`.
    pub code: String,
    /// In words.
    pub message: String,
}

/// The reason for which a response is incomplete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IncompleteDetails {
    /// `max_output_tokens`, `max_messages` or `content_filter`.
    pub reason: String,
}

/// The conversation that a response belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConversationReference {
    /// Its id.
    pub id: String,
}

/// Tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens read.
    #[serde(default, deserialize_with = "lenient::field")]
    pub input_tokens: u64,
    /// Breakdown of them.
    #[serde(default, deserialize_with = "lenient::object")]
    pub input_tokens_details: InputTokensDetails,
    /// Tokens written.
    #[serde(default, deserialize_with = "lenient::field")]
    pub output_tokens: u64,
    /// Breakdown of them.
    #[serde(default, deserialize_with = "lenient::object")]
    pub output_tokens_details: OutputTokensDetails,
    /// Both.
    #[serde(default, deserialize_with = "lenient::field")]
    pub total_tokens: u64,
}

/// More about the tokens read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct InputTokensDetails {
    /// Of these, from the upstream's cache.
    #[serde(default, deserialize_with = "lenient::field")]
    pub cached_tokens: u64,
    /// Of these, written to the upstream's cache.
    #[serde(default, deserialize_with = "lenient::field")]
    pub cache_write_tokens: u64,
}

/// More about the tokens written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OutputTokensDetails {
    /// Of these, thoughts.
    #[serde(default, deserialize_with = "lenient::field")]
    pub reasoning_tokens: u64,
}
