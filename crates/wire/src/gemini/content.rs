//! Messages and their parts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::FileData;
use crate::lenient;

/// A message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Content {
    /// The party that says it; the user where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Its parts, in order.
    #[serde(default, deserialize_with = "lenient::one_or_many")]
    pub parts: Vec<Part>,
}

/// The party that says something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The client's user.
    User,
    /// The model.
    Model,
    /// The client's functions, as older clients have it.
    Function,
    /// The operator of the client, in `systemInstruction`.
    System,
}

/// A part of a message: one of its fields is there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// A text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// True if the text is a thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thought: Option<bool>,
    /// A file or an image.
    #[serde(default, alias = "inline_data", skip_serializing_if = "Option::is_none")]
    pub inline_data: Option<Blob>,
    /// A file of the Files API.
    #[serde(default, alias = "file_data", skip_serializing_if = "Option::is_none")]
    pub file_data: Option<FileData>,
    /// A call of a function of the client's.
    #[serde(default, alias = "function_call", skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall>,
    /// Its answer.
    #[serde(default, alias = "function_response", skip_serializing_if = "Option::is_none")]
    pub function_response: Option<FunctionResponse>,
    /// A program that the model wrote.
    #[serde(default, alias = "executable_code", skip_serializing_if = "Option::is_none")]
    pub executable_code: Option<ExecutableCode>,
    /// Its output.
    #[serde(default, alias = "code_execution_result", skip_serializing_if = "Option::is_none")]
    pub code_execution_result: Option<CodeExecutionResult>,
    /// Base64 that its server can read, and its clients repeat with the part.
    #[serde(default, alias = "thought_signature", skip_serializing_if = "Option::is_none")]
    pub thought_signature: Option<String>,
}

impl Part {
    /// A part that is a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }
}

/// Bytes in a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blob {
    /// Their type.
    #[serde(default, alias = "mime_type")]
    pub mime_type: String,
    /// Base64.
    #[serde(default)]
    pub data: String,
    /// The name of the file, as some clients send it.
    #[serde(default, alias = "display_name", skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

/// A call of a function of the client's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionCall {
    /// Its id, which older clients do not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Map<String, Value>,
}

/// The answer of a function of the client's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionResponse {
    /// The id of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// The answer, an object.
    #[serde(default)]
    pub response: Value,
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutableCode {
    /// Its id, which its result repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its language.
    #[serde(default)]
    pub language: Language,
    /// Its text.
    #[serde(default)]
    pub code: String,
}

/// The language of a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Language {
    /// Python.
    #[default]
    Python,
    /// Not said, or another one.
    #[serde(other)]
    LanguageUnspecified,
}

/// The output of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeExecutionResult {
    /// The id of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its end.
    #[serde(default)]
    pub outcome: Outcome,
    /// The text that it put out.
    #[serde(default)]
    pub output: String,
}

/// The end of a program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Outcome {
    /// It ran to its end.
    OutcomeOk,
    /// It raised an error, or could not go on.
    OutcomeFailed,
    /// Its time was up.
    OutcomeDeadlineExceeded,
    /// Not said.
    #[default]
    #[serde(other)]
    OutcomeUnspecified,
}
