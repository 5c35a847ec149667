//! Items: the parts of a conversation, as input, as output, and stored.

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::ContentPart;
use crate::{Document, lenient};

/// An item as it was sent or told, kept word for word.
pub type ItemDocument = Document<Item>;

/// One item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Item {
    /// A message.
    Message(Message),
    /// Thoughts of the model.
    Reasoning(Reasoning),
    /// A program, and its outputs.
    CodeInterpreterCall(CodeInterpreterCall),
    /// A call of a function of the client's.
    FunctionCall(FunctionCall),
    /// The client's answer to such a call.
    FunctionCallOutput(FunctionCallOutput),
    /// A call of a tool of an MCP server.
    McpCall(McpCall),
    /// A call of a tool of an MCP server that waits for approval.
    McpApprovalRequest(McpApprovalRequest),
    /// The client's decision about such a call.
    McpApprovalResponse(McpApprovalResponse),
    /// The id of an item that is stored, in its place.
    ItemReference(ItemReference),
    /// An item of a kind that is not known.
    #[serde(untagged)]
    Other(Value),
}

impl Item {
    /// A message of the user, in a client's form.
    pub fn user(text: impl Into<String>) -> Self {
        let content = Some(MessageContent::Text(text.into()));
        Self::Message(Message { role: Some(Role::User), content, ..Message::default() })
    }

    /// The item's id; empty where it has none.
    pub fn id(&self) -> &str {
        match self {
            Self::Message(item) => item.id.as_deref().unwrap_or_default(),
            Self::Reasoning(item) => item.id.as_deref().unwrap_or_default(),
            Self::CodeInterpreterCall(item) => &item.id,
            Self::FunctionCall(item) => item.id.as_deref().unwrap_or_default(),
            Self::FunctionCallOutput(item) => item.id.as_deref().unwrap_or_default(),
            Self::McpCall(item) => &item.id,
            Self::McpApprovalRequest(item) => &item.id,
            Self::McpApprovalResponse(item) => item.id.as_deref().unwrap_or_default(),
            Self::ItemReference(item) => &item.id,
            Self::Other(item) => item.get("id").and_then(Value::as_str).unwrap_or_default(),
        }
    }

    /// The item as JSON.
    pub fn document(&self) -> ItemDocument {
        // Plain data with texts for keys can always be written.
        serde_json::to_value(self).unwrap_or_default().into()
    }
}

impl Document<Item> {
    /// Reads the item.
    pub fn item(&self) -> Item {
        let other = || Item::Other(self.json().clone());
        if self.is_object() { self.read().unwrap_or_else(|_| other()) } else { other() }
    }

    /// The item's kind, as it was sent.
    pub fn kind(&self) -> Option<&str> {
        self.text("type")
    }

    /// The item's id.
    pub fn id(&self) -> Option<&str> {
        self.text("id")
    }

    /// The container that the item names, for any kind of item.
    pub fn container_id(&self) -> Option<&str> {
        self.text("container_id")
    }

    /// Gives the item a kind and an id.
    pub fn identify(&mut self, kind: &str, id: &str) {
        self.set("type", kind);
        self.set("id", id);
    }

    /// Replaces a message's content.
    pub fn set_content(&mut self, content: &[ContentPart]) {
        self.set("content", serde_json::to_value(content).unwrap_or_default());
    }

    /// Names the file in a part of a message.
    pub fn name_file(&mut self, part: usize, name: &str) {
        let part = self.json_mut().pointer_mut(&format!("/content/{part}"));
        if let Some(fields) = part.and_then(Value::as_object_mut) {
            fields.insert("filename".to_owned(), name.into());
        }
    }

    /// Gives a message a status where it has none.
    pub fn default_status(&mut self, status: ItemStatus) {
        if !self.has("status") {
            self.set("status", status.word());
        }
    }

    /// Leaves out the outputs of a program.
    pub fn hide_outputs(&mut self) {
        self.set("outputs", Value::Null);
    }

    /// Leaves out the form of thoughts that can be sent back.
    pub fn hide_encrypted_content(&mut self) {
        if let Some(fields) = self.json_mut().as_object_mut() {
            fields.remove("encrypted_content");
        }
    }
}

/// The state of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// It is being written.
    InProgress,
    /// The program runs.
    Interpreting,
    /// It is complete.
    Completed,
    /// It was cut off.
    Incomplete,
    /// It failed.
    Failed,
}

impl ItemStatus {
    /// The status as it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Interpreting => "interpreting",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// Its id, `msg_…`.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its author.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// Its content. Absent where it is neither a text nor a list.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub content: Option<MessageContent>,
    /// Its state.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// `commentary` or `final_answer`, where models tell them apart.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

/// The author of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The user.
    User,
    /// The model.
    Assistant,
    /// Whoever wrote the instructions.
    System,
    /// The same, under the name that newer models use.
    Developer,
    /// Somebody who is not known.
    #[serde(untagged)]
    Other(String),
}

/// A message's content.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum MessageContent {
    /// Plain text.
    Text(String),
    /// Text and other things.
    Parts(Vec<ContentPart>),
}

impl<'de> Deserialize<'de> for MessageContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Array(parts) => Ok(Self::Parts(parts.into_iter().map(ContentPart::from).collect())),
            _ => Err(D::Error::custom("expected a text or a list of parts")),
        }
    }
}

/// Thoughts of the model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Reasoning {
    /// Its id, `rs_…`.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A summary of them.
    #[serde(default, deserialize_with = "lenient::list")]
    pub summary: Vec<ReasoningText>,
    /// The thoughts themselves.
    #[serde(default, deserialize_with = "lenient::optional_list", skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<ReasoningText>>,
    /// The thoughts in a form that is opaque to a client and can be sent back.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub encrypted_content: Option<String>,
    /// Its state.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
}

/// A part of thoughts or of their summary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReasoningText {
    /// `reasoning_text` or `summary_text`.
    #[serde(rename = "type", default, deserialize_with = "lenient::field")]
    pub kind: String,
    /// The text.
    #[serde(default, deserialize_with = "lenient::field")]
    pub text: String,
}

impl ReasoningText {
    /// A part of thoughts.
    pub fn new(text: impl Into<String>) -> Self {
        Self { kind: "reasoning_text".to_owned(), text: text.into() }
    }
}

/// A program, and its outputs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CodeInterpreterCall {
    /// Its id, `ci_…`.
    #[serde(default, deserialize_with = "lenient::field")]
    pub id: String,
    /// Its state.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// The program.
    #[serde(default, deserialize_with = "lenient::field")]
    pub code: Option<String>,
    /// The container in which it ran.
    #[serde(default, deserialize_with = "lenient::field")]
    pub container_id: Option<String>,
    /// Its output. `None`, unless the client asks for it.
    #[serde(default, deserialize_with = "lenient::optional_list")]
    pub outputs: Option<Vec<ProgramOutput>>,
}

/// One output of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ProgramOutput {
    /// Text.
    Logs {
        /// The text.
        logs: String,
    },
    /// An image.
    Image {
        /// A `data:` URL.
        url: String,
    },
    /// An output of a kind that is not known.
    #[serde(untagged)]
    Other(Value),
}

impl ProgramOutput {
    /// The text in it, for any kind of output.
    pub fn logs(&self) -> Option<&str> {
        match self {
            Self::Logs { logs } => Some(logs),
            Self::Image { .. } => None,
            Self::Other(output) => output.get("logs")?.as_str(),
        }
    }

    /// Returns true if it is an image of any kind.
    pub fn is_image(&self) -> bool {
        match self {
            Self::Logs { .. } => false,
            Self::Image { .. } => true,
            Self::Other(output) => output.get("url").is_some(),
        }
    }
}

/// A call of a function of the client's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct FunctionCall {
    /// Its id, `fc_…`.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its state.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// The id by which the answer names the call.
    #[serde(default, deserialize_with = "lenient::field")]
    pub call_id: String,
    /// The function's name.
    #[serde(default, deserialize_with = "lenient::field")]
    pub name: String,
    /// The arguments, as JSON text.
    #[serde(default, deserialize_with = "lenient::field")]
    pub arguments: String,
}

/// The client's answer to a call of its function.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct FunctionCallOutput {
    /// Its id, `fco_…`.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The call.
    #[serde(default, deserialize_with = "lenient::field")]
    pub call_id: String,
    /// The answer.
    #[serde(default)]
    pub output: FunctionOutput,
    /// Its state.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
}

/// A function's answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum FunctionOutput {
    /// Plain text.
    Text(String),
    /// Text and other things.
    Parts(Vec<ContentPart>),
    /// Anything else, which some clients send.
    Other(Value),
}

impl<'de> Deserialize<'de> for FunctionOutput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Value::deserialize(deserializer)? {
            Value::String(text) => Self::Text(text),
            Value::Array(parts) => Self::Parts(parts.into_iter().map(ContentPart::from).collect()),
            other => Self::Other(other),
        })
    }
}

impl Default for FunctionOutput {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// A call of a tool of an MCP server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct McpCall {
    /// Its id, `mcp_…`.
    #[serde(default, deserialize_with = "lenient::field")]
    pub id: String,
    /// Its state.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// The client's name for the server.
    #[serde(default, deserialize_with = "lenient::field")]
    pub server_label: String,
    /// The tool's name.
    #[serde(default, deserialize_with = "lenient::field")]
    pub name: String,
    /// The arguments, as JSON text.
    #[serde(default, deserialize_with = "lenient::field")]
    pub arguments: String,
    /// The tool's answer.
    #[serde(default, deserialize_with = "lenient::field")]
    pub output: Option<String>,
    /// The failure.
    #[serde(default, deserialize_with = "lenient::field")]
    pub error: Option<String>,
    /// The request that was approved, if one was made.
    #[serde(default, deserialize_with = "lenient::field")]
    pub approval_request_id: Option<String>,
    /// The container in which it ran. Not of the protocol, and sent back by clients: what comes later goes on in the same place.
    #[serde(default, deserialize_with = "lenient::field")]
    pub container_id: Option<String>,
}

/// A call of a tool of an MCP server that waits for approval.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct McpApprovalRequest {
    /// Its id, `mcpr_…`.
    #[serde(default, deserialize_with = "lenient::field")]
    pub id: String,
    /// The client's name for the server.
    #[serde(default, deserialize_with = "lenient::field")]
    pub server_label: Option<String>,
    /// The tool's name.
    #[serde(default, deserialize_with = "lenient::field")]
    pub name: String,
    /// The arguments, as JSON text.
    #[serde(default, deserialize_with = "lenient::field")]
    pub arguments: String,
    /// The container in which it would run, as in [`McpCall`].
    #[serde(default, deserialize_with = "lenient::field")]
    pub container_id: Option<String>,
}

/// The client's decision about a call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct McpApprovalResponse {
    /// Its id.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The request.
    #[serde(default, deserialize_with = "lenient::field")]
    pub approval_request_id: String,
    /// True if the call may run. Anything but `true` is a refusal.
    #[serde(default, deserialize_with = "lenient::field")]
    pub approve: bool,
    /// The reason.
    #[serde(default, deserialize_with = "lenient::field", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The id of an item that is stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ItemReference {
    /// The id.
    #[serde(default, deserialize_with = "lenient::field")]
    pub id: String,
}
