//! The answer.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{GenerationConfig, Step, StepDocument, Tool};
use crate::Document;

/// An interaction. Events of a stream have its steps for themselves, and of the rest what changes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interaction {
    /// Id.
    #[serde(default)]
    pub id: String,
    /// Its kind.
    #[serde(default)]
    pub object: InteractionKind,
    /// The model.
    #[serde(default)]
    pub model: String,
    /// Its state.
    pub status: Status,
    /// Time of creation.
    #[serde(default)]
    pub created: String,
    /// Time of the last change.
    #[serde(default)]
    pub updated: String,
    /// The steps that the model and its programs made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
    /// Tokens, once there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The reasons for which it failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<InteractionError>,
    /// The interaction that it goes on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_interaction_id: Option<String>,
    /// Environment of its programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
    /// The steps that it answers, for a client that asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Vec<StepDocument>>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_instruction: Option<String>,
    /// The tools that the model may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Document<Tool>>>,
    /// The model's way to choose its words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation_config: Option<Document<GenerationConfig>>,
    /// The form of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    /// The client's own notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// The kind of the object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InteractionKind {
    /// An interaction.
    #[default]
    Interaction,
}

/// The state of an interaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It waits to be begun.
    Queued,
    /// It is under way.
    #[default]
    InProgress,
    /// Its client has to answer calls.
    RequiresAction,
    /// The model said all of it.
    Completed,
    /// It failed.
    Failed,
    /// Its client cancelled it.
    Cancelled,
    /// It was cut off.
    Incomplete,
    /// As many tokens or programs as it may have are used up.
    BudgetExceeded,
}

/// An error of an interaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InteractionError {
    /// Its name.
    pub code: String,
    /// Words for people.
    pub message: String,
}

/// Tokens of an interaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens of the request.
    pub total_input_tokens: u64,
    /// Tokens that the model wrote, without its thoughts.
    pub total_output_tokens: u64,
    /// All of them.
    pub total_tokens: u64,
    /// Tokens of thoughts.
    #[serde(default)]
    pub total_thought_tokens: u64,
    /// Tokens of the request that the model's server had.
    #[serde(default)]
    pub total_cached_tokens: u64,
    /// Tokens that the model read again, with the output of its programs.
    #[serde(default)]
    pub total_tool_use_tokens: u64,
}
