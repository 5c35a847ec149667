//! Steps of a run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FilePath, LastError, Usage};

super::literal! {
    /// The type of a step.
    RunStepObject = "thread.run.step";
}

/// A step of a run: a message, or calls of tools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunStep {
    /// Its id, `step_…`.
    pub id: String,
    /// Its type.
    #[serde(default)]
    pub object: RunStepObject,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// The run.
    pub run_id: String,
    /// The assistant.
    pub assistant_id: String,
    /// The thread.
    pub thread_id: String,
    /// The kind of its details.
    pub r#type: String,
    /// Its state.
    pub status: StepStatus,
    /// When it was cancelled.
    pub cancelled_at: Option<i64>,
    /// When it was complete.
    pub completed_at: Option<i64>,
    /// When it expires.
    pub expires_at: Option<i64>,
    /// When it failed.
    pub failed_at: Option<i64>,
    /// The failure.
    pub last_error: Option<LastError>,
    /// Its contents.
    pub step_details: StepDetails,
    /// Its tokens; `null` until it has ended.
    pub usage: Option<Usage>,
}

/// The state of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// It goes on.
    InProgress,
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed,
    /// It is complete.
    Completed,
    /// It took too long.
    Expired,
}

/// The contents of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum StepDetails {
    /// A message.
    MessageCreation {
        /// The message.
        message_creation: WrittenMessage,
    },
    /// Calls of tools.
    ToolCalls {
        /// The calls.
        tool_calls: Vec<ToolCall>,
    },
}

/// The message of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WrittenMessage {
    /// Its id.
    pub message_id: String,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolCall {
    /// A program.
    CodeInterpreter {
        /// Its id, `call_…`.
        id: String,
        /// The program.
        code_interpreter: CodeCall,
    },
    /// A call of a function of the client's.
    Function {
        /// Its id, `call_…`.
        id: String,
        /// The function.
        function: CalledFunction,
    },
}

/// A program and what it put out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CodeCall {
    /// The program.
    pub input: String,
    /// Its output.
    pub outputs: Vec<CodeOutput>,
}

/// Something that a program put out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeOutput {
    /// Text.
    Logs {
        /// The text.
        logs: String,
    },
    /// An image.
    Image {
        /// The image.
        image: FilePath,
    },
}

/// A function that the model called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CalledFunction {
    /// Its name.
    pub name: String,
    /// Its arguments, as JSON.
    pub arguments: String,
    /// Its output: absent where it is asked for, `null` in a step until it is there.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "double")]
    #[schemars(with = "Option<String>")]
    pub output: Option<Option<String>>,
}

/// Distinguishes a field that is `null` from one that is absent.
mod double {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(field: &Option<Option<String>>, serializer: S) -> Result<S::Ok, S::Error> {
        field.as_ref().and_then(Option::as_ref).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
        Option::deserialize(deserializer).map(Some)
    }
}
