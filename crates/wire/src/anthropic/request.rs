//! The request.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Content;
use crate::{Document, lenient};

/// A message as it was sent.
pub type MessageDocument = Document<InputMessage>;

/// A tool as it was sent.
pub type ToolDocument = Document<Tool>;

/// `POST /v1/messages`. Errors name the first of its fields, in this order, that is wrong.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Request {
    /// The model.
    pub model: String,
    /// Most tokens that the model may write; 0 asks for no answer.
    pub max_tokens: u32,
    /// The conversation.
    pub messages: Vec<MessageDocument>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Content>,
    /// The tools that the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<ToolDocument>>,
    /// The tool that the model must or must not call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// The container of its programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerField>,
    /// True if the answer is streamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Words at which the model stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_sequences: Option<Vec<String>>,
    /// The settings of thoughts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// The form of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_config: Option<OutputConfig>,
    /// Randomness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// A conversation that the server keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<Value>,
    /// Servers of tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<Vec<Value>>,
    /// The way to shorten a conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<Value>,
    /// Parts of a conversation to leave out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_management: Option<ContextManagement>,
    /// Models that step in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallbacks: Option<Value>,
}

/// Edits of a conversation before the model reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextManagement {
    /// The edits, in order.
    #[serde(default)]
    pub edits: Vec<ContextEdit>,
}

/// An edit of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextEdit {
    /// Its kind, with a date.
    #[serde(rename = "type")]
    pub kind: String,
}

/// `POST /v1/messages/count_tokens`: as much of a request as is read by the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CountTokens {
    /// The model.
    pub model: String,
    /// The conversation.
    pub messages: Vec<MessageDocument>,
    /// The system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<Content>,
    /// The tools that the model may call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<ToolDocument>>,
}

/// The answer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenCount {
    /// The number of tokens.
    pub input_tokens: u64,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InputMessage {
    /// The speaker.
    pub role: Role,
    /// The message.
    pub content: Content,
}

/// A speaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The operator of the client.
    System,
}

/// A tool that is offered to the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// Its kind; a tool of the client's has none or `custom`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<ToolKind>,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its purpose, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// A JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
    /// True if the arguments must match the schema exactly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// The callers that it may have; without any the model alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_callers: Option<Vec<String>>,
}

/// The kind of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ToolKind {
    /// A tool of the client's.
    #[serde(rename = "custom")]
    Custom,
    /// Code execution: Python.
    #[serde(rename = "code_execution_20250522")]
    CodeExecution20250522,
    /// Code execution: shell and files.
    #[serde(rename = "code_execution_20250825")]
    CodeExecution20250825,
    /// Code execution: the same, with variables that stay.
    #[serde(rename = "code_execution_20260120")]
    CodeExecution20260120,
    /// Code execution: the newest.
    #[serde(rename = "code_execution_20260521")]
    CodeExecution20260521,
    /// A tool of a kind that is not known.
    #[serde(untagged)]
    Other(String),
}

/// The tool that the model must or must not call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    Auto {
        /// True if it may call one at a time only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disable_parallel_tool_use: Option<bool>,
    },
    /// Some tool.
    Any {
        /// True if it may call one at a time only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disable_parallel_tool_use: Option<bool>,
    },
    /// The tool of this name.
    Tool {
        /// The name.
        name: String,
        /// True if it may call one at a time only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        disable_parallel_tool_use: Option<bool>,
    },
    /// No tool.
    None {},
}

/// The container of programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ContainerField {
    /// Its id.
    Id(String),
    /// Its id, or a new one, with skills.
    Object {
        /// Its id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Folders to load into it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skills: Option<Vec<Value>>,
    },
}

/// The settings of thoughts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Thinking {
    /// The model thinks.
    Enabled {
        /// Most tokens of thoughts.
        budget_tokens: u32,
        /// The form in which the client gets them.
        #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
        display: Option<ThoughtDisplay>,
    },
    /// The model decides.
    Adaptive {
        /// The form in which the client gets its thoughts.
        #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
        display: Option<ThoughtDisplay>,
    },
    /// It does not think.
    Disabled {},
}

/// The form in which a client gets a model's thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThoughtDisplay {
    /// As text.
    Summarized,
    /// As blocks without text.
    Omitted,
}

/// The form of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutputConfig {
    /// The effort of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// The form that the answer must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
}

/// The effort of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// More.
    Xhigh,
    /// All.
    Max,
}

/// The form that an answer must have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputFormat {
    /// JSON that a schema describes.
    JsonSchema {
        /// The schema.
        schema: Value,
    },
}

impl Effort {
    /// The effort as it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }
}

impl ToolChoice {
    /// Returns true if the model may call only one tool at a time.
    pub fn disables_parallel_use(&self) -> bool {
        match self {
            Self::Auto { disable_parallel_tool_use }
            | Self::Any { disable_parallel_tool_use }
            | Self::Tool { disable_parallel_tool_use, .. } => *disable_parallel_tool_use == Some(true),
            Self::None {} => false,
        }
    }
}
