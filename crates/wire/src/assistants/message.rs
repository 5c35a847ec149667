//! Messages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ToolDocument;

super::literal! {
    /// The type of a message.
    MessageObject = "thread.message";
}

/// A message of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// Its id, `msg_…`.
    pub id: String,
    /// Its type.
    #[serde(default)]
    pub object: MessageObject,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// The thread.
    pub thread_id: String,
    /// Its state.
    pub status: MessageStatus,
    /// The reason for which it is incomplete.
    pub incomplete_details: Option<IncompleteMessage>,
    /// When it was complete.
    pub completed_at: Option<i64>,
    /// When it was cut off.
    pub incomplete_at: Option<i64>,
    /// Its author.
    pub role: Role,
    /// Its parts.
    pub content: Vec<Content>,
    /// The assistant that wrote it.
    pub assistant_id: Option<String>,
    /// The run that it was written in.
    pub run_id: Option<String>,
    /// Files that come with it.
    pub attachments: Vec<Attachment>,
    /// The client's own notes.
    pub metadata: Map<String, Value>,
}

/// The state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MessageStatus {
    /// It is being written.
    InProgress,
    /// It was cut off.
    Incomplete,
    /// It is complete.
    Completed,
}

/// The reason for which a message is incomplete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IncompleteMessage {
    /// One of `content_filter`, `max_tokens`, `run_cancelled`, `run_expired` and `run_failed`.
    pub reason: String,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user.
    User,
    /// The assistant.
    Assistant,
}

/// A file that comes with a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attachment {
    /// Its id in the Files API.
    pub file_id: String,
    /// The tools that may use it, as they were sent.
    #[serde(default)]
    pub tools: Vec<ToolDocument>,
}

/// The contents of a message as clients send them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum MessageContent {
    /// Plain text.
    Text(String),
    /// Parts.
    Parts(Vec<ContentPart>),
}

/// A part of a message as clients send it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    /// Text.
    Text {
        /// The text.
        text: TextField,
    },
    /// An image of the Files API.
    ImageFile {
        /// The image.
        image_file: ImageFile,
    },
    /// An image of the web, or in the URL itself.
    ImageUrl {
        /// The image.
        image_url: ImageUrl,
    },
}

/// The text of a part: plain, or as it stands in messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TextField {
    /// Plain.
    Plain(String),
    /// As it stands in messages.
    Object {
        /// The text.
        value: String,
    },
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    /// Text.
    Text {
        /// The text.
        text: Text,
    },
    /// An image of the Files API.
    ImageFile {
        /// The image.
        image_file: ImageFile,
    },
    /// An image of the web, or in the URL itself.
    ImageUrl {
        /// The image.
        image_url: ImageUrl,
    },
}

/// A text with the files that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Text {
    /// The text.
    pub value: String,
    /// Files that it names.
    pub annotations: Vec<Annotation>,
}

/// A file that a text names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Annotation {
    /// A file that a program made.
    FilePath {
        /// Index among the annotations. Only in a stream.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<usize>,
        /// The words that name it, exactly as they stand in the text.
        text: String,
        /// The first character of these words.
        start_index: usize,
        /// The character after them.
        end_index: usize,
        /// The file.
        file_path: FilePath,
    },
}

/// A file of the Files API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilePath {
    /// Its id.
    pub file_id: String,
}

/// An image of the Files API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageFile {
    /// Its id.
    pub file_id: String,
    /// The resolution for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// An image of the web, or in the URL itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageUrl {
    /// Its URL.
    pub url: String,
    /// The resolution for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl TextField {
    /// The text.
    pub fn into_text(self) -> String {
        match self {
            Self::Plain(text) | Self::Object { value: text } => text,
        }
    }
}
