//! The answer, whole or as a piece of a stream, and errors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Content;

/// An answer, or the next parts of one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GenerateContentResponse {
    /// One answer.
    pub candidates: Vec<Candidate>,
    /// Tokens so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_metadata: Option<UsageMetadata>,
    /// The model, as clients call it.
    #[serde(default)]
    pub model_version: String,
    /// The id of the answer.
    #[serde(default)]
    pub response_id: String,
}

/// An answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// The message.
    pub content: Content,
    /// The reason of its end, with the last parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<FinishReason>,
    /// Its number.
    #[serde(default)]
    pub index: u32,
}

/// The reason of an answer's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FinishReason {
    /// The model said all of it, or the client has to answer a call.
    Stop,
    /// It has as many tokens as it may have.
    MaxTokens,
    /// The model's server held it back.
    Safety,
    /// The model ran as many programs as it may run.
    TooManyToolCalls,
}

/// Tokens of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageMetadata {
    /// Tokens of the request.
    pub prompt_token_count: u64,
    /// Tokens that the model wrote, without its thoughts.
    pub candidates_token_count: u64,
    /// All of them.
    pub total_token_count: u64,
    /// Tokens that the model read again, with the output of its programs.
    #[serde(default)]
    pub tool_use_prompt_token_count: u64,
    /// Tokens of thoughts.
    #[serde(default)]
    pub thoughts_token_count: u64,
    /// Tokens of the request that the model's server had.
    #[serde(default)]
    pub cached_content_token_count: u64,
}

/// `POST /v1/models/{model}:countTokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenCount {
    /// The number of tokens.
    pub total_tokens: u64,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// `models/` and its name.
    pub name: String,
    /// Its name for people.
    pub display_name: String,
    /// Its version.
    pub version: String,
    /// The methods that it has.
    pub supported_generation_methods: Vec<String>,
}

/// `GET /v1/models`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelList {
    /// The models of this page.
    pub models: Vec<Model>,
    /// The beginning of the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}

/// The body of an error, and the last frame of a stream that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorEnvelope {
    /// The error.
    pub error: Error,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    /// The HTTP status.
    pub code: u16,
    /// Words for people.
    pub message: String,
    /// The name of the status in gRPC.
    pub status: String,
    /// More about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Value>,
}
