//! The answer.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Block, Role};
use crate::Null;

/// A message of the model's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename = "message")]
pub struct Message {
    /// Its id, `msg_…`.
    pub id: String,
    /// Always the assistant.
    pub role: Role,
    /// The model, as the client asked for it.
    pub model: String,
    /// Its content.
    pub content: Vec<Block>,
    /// The container of its programs.
    pub container: Option<Container>,
    /// The reason for which the model stopped.
    pub stop_reason: Option<StopReason>,
    /// The client's word at which it stopped.
    pub stop_sequence: Option<String>,
    /// The category of a refusal, which is not known here.
    #[serde(default)]
    pub stop_details: Null,
    /// Tokens.
    pub usage: Usage,
    /// The edits of the conversation, if the client asked for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_management: Option<AppliedEdits>,
}

/// The edits of a conversation that the model read: none, since this server makes none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedEdits {
    /// The edits.
    pub applied_edits: Vec<Value>,
}

/// The reason for which a model stopped. Clients know these and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It was done.
    EndTurn,
    /// Its limit of tokens.
    MaxTokens,
    /// A word of the client's.
    StopSequence,
    /// The client has tools to carry out.
    ToolUse,
    /// The client may send the message back, unchanged, and the model goes on.
    PauseTurn,
    /// The model declined.
    Refusal,
    /// The conversation is as long as the model can read.
    ModelContextWindowExceeded,
}

/// A container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Time at which its variables are gone, as RFC 3339 has it. Its files are kept for longer.
    pub expires_at: String,
    /// Folders that were loaded into it: none.
    #[serde(default)]
    pub skills: Null,
}

/// Tokens that were used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Usage {
    /// Tokens that the model read and that its server had not cached.
    pub input_tokens: u64,
    /// Tokens that its server cached anew.
    pub cache_creation_input_tokens: u64,
    /// The same by the time for which they are cached.
    pub cache_creation: CacheCreation,
    /// Tokens that the model read and that its server had cached.
    pub cache_read_input_tokens: u64,
    /// Tokens that the model wrote.
    pub output_tokens: u64,
    /// The kinds of tokens that it wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens_details: Option<TokenDetails>,
    /// Searches and fetches of the web: there are none.
    pub server_tool_use: Null,
    /// The region in which the model ran.
    pub inference_geo: Null,
    /// The urgency with which the request was answered.
    pub service_tier: ServiceTier,
}

/// Tokens that a model's server cached anew, by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CacheCreation {
    /// For five minutes.
    pub ephemeral_5m_input_tokens: u64,
    /// For an hour.
    pub ephemeral_1h_input_tokens: u64,
}

/// The urgency with which a request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServiceTier {
    /// At once.
    #[default]
    #[serde(other)]
    Standard,
}

/// The kinds of tokens that a model wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct TokenDetails {
    /// Tokens of thoughts.
    pub thinking_tokens: u64,
}
