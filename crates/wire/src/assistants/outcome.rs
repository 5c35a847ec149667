//! Outcomes of runs and steps: a failure, and the used tokens.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The failure of a run or of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastError {
    /// Its kind.
    pub code: ErrorCode,
    /// The reason in words.
    pub message: String,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Anything else.
    ServerError,
    /// The model is over its limit.
    RateLimitExceeded,
    /// The model's server rejected what it was asked.
    InvalidPrompt,
}

/// Tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens that the model read.
    pub prompt_tokens: u64,
    /// Tokens that the model wrote.
    pub completion_tokens: u64,
    /// All of them.
    pub total_tokens: u64,
}
