//! The request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Content;
use crate::lenient;

/// `POST /v1/models/{model}:generateContent`. Errors name the first of its fields, in this order, that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GenerateContentRequest {
    /// The conversation.
    #[serde(default, deserialize_with = "lenient::one_or_many")]
    pub contents: Vec<Content>,
    /// The system prompt.
    #[serde(default, alias = "system_instruction", skip_serializing_if = "Option::is_none")]
    pub system_instruction: Option<Content>,
    /// The tools that the model may use.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// The functions that the model must or must not call.
    #[serde(default, alias = "tool_config", skip_serializing_if = "Option::is_none")]
    pub tool_config: Option<ToolConfig>,
    /// The model's way to choose its words.
    #[serde(default, alias = "generation_config", skip_serializing_if = "Option::is_none")]
    pub generation_config: Option<GenerationConfig>,
    /// A conversation that the vendor keeps.
    #[serde(default, alias = "cached_content", skip_serializing_if = "Option::is_none")]
    pub cached_content: Option<String>,
}

/// Tools: an entry may hold several kinds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tool {
    /// Programs of the model are run.
    #[serde(default, alias = "code_execution", skip_serializing_if = "Option::is_none")]
    pub code_execution: Option<Value>,
    /// Functions of the client's.
    #[serde(default, alias = "function_declarations", skip_serializing_if = "Option::is_none")]
    pub function_declarations: Option<Vec<FunctionDeclaration>>,
    /// The kinds that only the vendor has.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// A function of the client's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionDeclaration {
    /// Its name.
    pub name: String,
    /// Its purpose, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its arguments, in the vendor's dialect of schemas: types in upper case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// Its arguments as a JSON Schema.
    #[serde(default, alias = "parameters_json_schema", skip_serializing_if = "Option::is_none")]
    pub parameters_json_schema: Option<Value>,
}

/// The use of tools.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolConfig {
    /// The use of functions.
    #[serde(default, alias = "function_calling_config", skip_serializing_if = "Option::is_none")]
    pub function_calling_config: Option<FunctionCallingConfig>,
}

/// The use of functions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionCallingConfig {
    /// Freedom of the model.
    #[serde(default)]
    pub mode: CallingMode,
    /// The functions that may be called; all where none is named.
    #[serde(default, alias = "allowed_function_names")]
    pub allowed_function_names: Vec<String>,
}

/// The freedom of the model to call functions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CallingMode {
    /// It calls one.
    Any,
    /// It calls none.
    None,
    /// It decides.
    #[default]
    #[serde(other)]
    Auto,
}

/// The model's way to choose its words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GenerationConfig {
    /// Randomness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default, alias = "top_p", skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The number of answers.
    #[serde(default, alias = "candidate_count", skip_serializing_if = "Option::is_none")]
    pub candidate_count: Option<u32>,
    /// Most tokens of the answer.
    #[serde(default, alias = "max_output_tokens", skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u32>,
    /// Words at which the answer ends.
    #[serde(default, alias = "stop_sequences", skip_serializing_if = "Option::is_none")]
    pub stop_sequences: Option<Vec<String>>,
    /// A number from which the same answer may come again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Penalty of words that are there already.
    #[serde(default, alias = "presence_penalty", skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// Penalty of words that are there often.
    #[serde(default, alias = "frequency_penalty", skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// `text/plain` or `application/json`.
    #[serde(default, alias = "response_mime_type", skip_serializing_if = "Option::is_none")]
    pub response_mime_type: Option<String>,
    /// The form of the answer, in the vendor's dialect of schemas.
    #[serde(default, alias = "response_schema", skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Value>,
    /// The form of the answer as a JSON Schema.
    #[serde(default, alias = "response_json_schema", skip_serializing_if = "Option::is_none")]
    pub response_json_schema: Option<Value>,
    /// Thoughts.
    #[serde(default, alias = "thinking_config", skip_serializing_if = "Option::is_none")]
    pub thinking_config: Option<ThinkingConfig>,
}

/// The settings of thoughts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThinkingConfig {
    /// True if they are told.
    #[serde(default, alias = "include_thoughts", skip_serializing_if = "Option::is_none")]
    pub include_thoughts: Option<bool>,
    /// `low`, `medium` or `high`, in any case.
    #[serde(default, alias = "thinking_level", skip_serializing_if = "Option::is_none")]
    pub thinking_level: Option<String>,
    /// The most tokens, of models before Gemini 3: 0 for none, -1 for as many as the model likes.
    #[serde(default, alias = "thinking_budget", skip_serializing_if = "Option::is_none")]
    pub thinking_budget: Option<i64>,
}
