//! The request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ItemDocument, ToolChoice, ToolDocument};
use crate::Document;

/// `POST /responses`. Errors name the first of its fields, in this order, that is wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// The model.
    pub model: String,
    /// The input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Input>,
    /// Instructions to the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The response that this one goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_response_id: Option<String>,
    /// The conversation that this one goes on in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationField>,
    /// True if the response is kept; it is unless this says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<bool>,
    /// True if the client comes back for the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<bool>,
    /// True if the answer is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// A tool or the tools that the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<ToolDocument>>,
    /// The tool that the model must call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Document<ToolChoice>>,
    /// Most programs that the model may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tool_calls: Option<u32>,
    /// Most tokens that the model may write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u32>,
    /// Randomness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The settings of a reasoning model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningOptions>,
    /// Extra contents of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include: Option<Vec<String>>,
    /// The client's notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// True if the model may call several functions at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// The form of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextOptions>,
    /// Repeated in the answer, like the five after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_cache_key: Option<Value>,
    /// Repeated in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safety_identifier: Option<Value>,
    /// Repeated in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<Value>,
    /// Repeated in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<Value>,
    /// `auto` lets the oldest part of a conversation be left out that is too long for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncation: Option<Value>,
    /// Repeated in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Value>,
    /// A check of the input and the answer by OpenAI; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moderation: Option<Value>,
}

/// The input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Input {
    /// A message of the user's.
    Text(String),
    /// Items.
    Items(Vec<ItemDocument>),
}

/// A conversation, by its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ConversationField {
    /// The id.
    Id(String),
    /// The id in an object.
    Object {
        /// The id.
        id: String,
    },
}

impl ConversationField {
    /// The conversation's id.
    pub fn id(&self) -> &str {
        match self {
            Self::Id(id) | Self::Object { id } => id,
        }
    }
}

/// The settings of a reasoning model, as they were sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct ReasoningOptions(Map<String, Value>);

impl ReasoningOptions {
    /// The effort.
    pub fn effort(&self) -> Option<&str> {
        self.0.get("effort")?.as_str()
    }
}

impl Default for ReasoningOptions {
    /// The default options, as an answer repeats them.
    fn default() -> Self {
        Self(["effort", "summary"].map(|name| (name.to_owned(), Value::Null)).into_iter().collect())
    }
}

/// The form of the answer, as it was sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct TextOptions(Map<String, Value>);

impl TextOptions {
    /// The form, if one was requested.
    pub fn format(&self) -> Option<TextFormat> {
        let format = self.0.get("format").filter(|format| !format.is_null())?;
        let other = || TextFormat::Other(format.clone());
        Some(if format.is_object() { TextFormat::deserialize(format).unwrap_or_else(|_| other()) } else { other() })
    }
}

impl Default for TextOptions {
    /// The default options, as an answer repeats them.
    fn default() -> Self {
        let format = Map::from_iter([("type".to_owned(), "text".into())]);
        Self(Map::from_iter([("format".to_owned(), Value::Object(format)), ("verbosity".to_owned(), "medium".into())]))
    }
}

/// The form of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TextFormat {
    /// Plain text.
    Text {},
    /// Any JSON.
    JsonObject {},
    /// JSON of a schema: `name` and `schema`, and more. In this API they stand beside the type, in Chat Completions one level below.
    JsonSchema(Map<String, Value>),
    /// Anything else.
    #[serde(untagged)]
    Other(Value),
}

super::super::literal! {
    /// The type of a count of tokens.
    InputTokensObject = "response.input_tokens";
}

/// The number of tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct InputTokens {
    /// Its type.
    pub object: InputTokensObject,
    /// The count.
    pub input_tokens: usize,
}
