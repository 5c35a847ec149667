//! The answer: whole, in chunks, or an error.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::Call;

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Response {
    /// `chatcmpl-…`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub id: String,
    /// `chat.completion`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub object: String,
    /// Seconds since 1970.
    #[serde(default, deserialize_with = "seconds")]
    pub created: u64,
    /// The model that answered.
    #[serde(default, deserialize_with = "null_is_default")]
    pub model: String,
    /// The answers; one, unless more were asked for.
    pub choices: Vec<Choice>,
    /// Its tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    /// Index in the list.
    #[serde(default)]
    pub index: u32,
    /// The message.
    pub message: Answer,
    /// `stop`, `length`, `tool_calls`, `content_filter`, or what a server makes up.
    #[serde(default)]
    pub finish_reason: Option<String>,
}

/// The message of an answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// `assistant`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub role: String,
    /// The text. Written as `null` when there is none, because clients look for the field.
    #[serde(default, deserialize_with = "text")]
    pub content: Option<String>,
    /// The model's calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<Call>>,
    /// Its words of refusal.
    #[serde(default)]
    pub refusal: Option<String>,
    /// Its thoughts, with servers that show them.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same under its other name; some servers send both.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
}

/// One chunk of a streamed answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Chunk {
    /// `chatcmpl-…`, the same on every chunk.
    #[serde(default, deserialize_with = "null_is_default")]
    pub id: String,
    /// `chat.completion.chunk`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub object: String,
    /// Seconds since 1970.
    #[serde(default, deserialize_with = "seconds")]
    pub created: u64,
    /// The model that answers.
    #[serde(default, deserialize_with = "null_is_default")]
    pub model: String,
    /// The new part; empty in the chunk that tells the usage.
    #[serde(default, deserialize_with = "null_is_default")]
    pub choices: Vec<ChunkChoice>,
    /// Its tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The new part of one answer.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ChunkChoice {
    /// Index of the answer.
    #[serde(default)]
    pub index: u32,
    /// The new part.
    #[serde(default, deserialize_with = "null_is_default")]
    pub delta: Delta,
    /// As in [`Choice::finish_reason`], in the last chunk.
    #[serde(default)]
    pub finish_reason: Option<String>,
}

/// The new part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Delta {
    /// `assistant`, in the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Text.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Parts of calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<CallDelta>>,
    /// Text of a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Text of thoughts.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same under its other name; some servers send both.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
}

/// A part of a call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CallDelta {
    /// Index of the call within this answer. Some servers leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The call's id, in its first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, in its first part.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The function that is called.
    #[serde(default, deserialize_with = "null_is_default")]
    pub function: CalledFunctionDelta,
}

/// A part of what a call calls.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CalledFunctionDelta {
    /// The function's name, in the call's first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The next characters of the arguments.
    #[serde(default, deserialize_with = "super::message::arguments", skip_serializing_if = "String::is_empty")]
    pub arguments: String,
}

/// Tokens.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    /// Tokens read.
    #[serde(default, deserialize_with = "null_is_default")]
    pub prompt_tokens: u64,
    /// Tokens written.
    #[serde(default, deserialize_with = "null_is_default")]
    pub completion_tokens: u64,
    /// Both.
    #[serde(default, deserialize_with = "null_is_default")]
    pub total_tokens: u64,
    /// More about the tokens read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<InputDetails>,
    /// More about the tokens written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<OutputDetails>,
}

/// More about the tokens read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct InputDetails {
    /// Of these, from the upstream's cache.
    #[serde(default, deserialize_with = "null_is_default")]
    pub cached_tokens: u64,
}

/// More about the tokens written.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OutputDetails {
    /// Of these, thoughts.
    #[serde(default, deserialize_with = "null_is_default")]
    pub reasoning_tokens: u64,
}

/// An error, in place of an answer or in the middle of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorEnvelope {
    /// The error.
    pub error: ErrorBody,
}

/// An error.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct ErrorBody {
    /// In words.
    pub message: String,
    /// Its class, for example `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The parameter that is wrong.
    pub param: Option<String>,
    /// Its code: text with OpenAI, a number with others.
    pub code: Option<Value>,
}

impl<'de> Deserialize<'de> for ErrorBody {
    /// Deserializes OpenAI's object, or the bare text that some servers send.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Object {
                #[serde(default, deserialize_with = "text")]
                message: Option<String>,
                #[serde(rename = "type", default, deserialize_with = "text")]
                kind: Option<String>,
                #[serde(default, deserialize_with = "text")]
                param: Option<String>,
                #[serde(default)]
                code: Option<Value>,
            },
        }
        Ok(match Form::deserialize(deserializer)? {
            Form::Text(message) => Self { message, ..Self::default() },
            Form::Object { message, kind, param, code } => {
                Self { message: message.unwrap_or_default(), kind, param, code }
            }
        })
    }
}

/// Deserializes a text, or the text parts that some servers send; anything else is `None`.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(text),
        Value::Array(parts) => Some(parts.iter().filter_map(|part| part.get("text")?.as_str()).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    })
}

/// Some servers send fractions of seconds.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_f64().unwrap_or_default() as u64)
}

fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
