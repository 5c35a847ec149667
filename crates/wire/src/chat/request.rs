//! The request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Message;
use crate::JsonText;

/// `POST /chat/completions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// The model.
    pub model: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// A tool or the tools that the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<Tool>>,
    /// The tool that the model must call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// True if it may call several at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// True if the answer is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Extra contents of a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Randomness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The most tokens of the answer, as most servers call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// The most tokens of the answer, as OpenAI's reasoning models want it called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_completion_tokens: Option<u32>,
    /// The effort of a reasoning model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// The form that the answer must have: `{"type": "json_schema", "json_schema": {…}}` or `{"type": "json_object"}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_format: Option<serde_json::Value>,
    /// Everything else.
    #[serde(flatten)]
    pub more: serde_json::Map<String, Value>,
}

/// Extra contents of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StreamOptions {
    /// True if a last chunk tells the usage.
    #[serde(default)]
    pub include_usage: bool,
}

/// A tool or the tools that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Tool {
    /// A function.
    Function(FunctionTool),
    /// A kind that Chat Completions does not define.
    Other(Value),
}

/// A function, under its tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FunctionTool {
    /// The only kind.
    Function {
        /// The function.
        function: Function,
    },
}

impl Tool {
    /// A function tool.
    pub fn function(function: Function) -> Self {
        Self::Function(FunctionTool::Function { function })
    }
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// A description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON Schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<JsonText>,
    /// True if the arguments must match the schema exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// The tool that the model must call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// By a word.
    Mode(ToolChoiceMode),
    /// A named function.
    Named(NamedToolChoice),
    /// Anything else.
    Other(Value),
}

impl ToolChoice {
    /// The choice of one function.
    pub fn named(name: impl Into<String>) -> Self {
        Self::Named(NamedToolChoice::Function { function: NamedFunction { name: name.into() } })
    }
}

/// The words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoiceMode {
    /// The model decides.
    Auto,
    /// It calls nothing.
    None,
    /// It calls something.
    Required,
}

/// One function, under its tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum NamedToolChoice {
    /// The only kind.
    Function {
        /// The function to call.
        function: NamedFunction,
    },
}

/// A function by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamedFunction {
    /// The name.
    pub name: String,
}
