//! Events of a stream. The set is closed: some clients fail on an unknown one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AppliedEdits, Block, Container, Error, Message, StopReason, Usage};
use crate::Null;

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The message begins.
    MessageStart {
        /// The message without content.
        message: Box<Message>,
    },
    /// A block begins.
    ContentBlockStart {
        /// Index in the message, from 0.
        index: usize,
        /// The block as it begins; results of tools are whole.
        content_block: Block,
    },
    /// A block goes on.
    ContentBlockDelta {
        /// Index in the message.
        index: usize,
        /// The next piece.
        delta: Delta,
    },
    /// A block is complete.
    ContentBlockStop {
        /// Index in the message.
        index: usize,
    },
    /// The message's end is known.
    MessageDelta {
        /// Its end.
        delta: MessageChange,
        /// Tokens of the whole message.
        usage: Usage,
        /// The edits of the conversation, if the client asked for any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context_management: Option<AppliedEdits>,
    },
    /// The message is complete. Nothing comes after it.
    MessageStop,
    /// Nothing happens.
    Ping,
    /// The message failed. Nothing comes after it.
    Error {
        /// The failure.
        error: Error,
        /// The request's id.
        request_id: Option<String>,
    },
}

/// A piece of a block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Delta {
    /// Text.
    TextDelta {
        /// The next characters.
        text: String,
    },
    /// Arguments of a call.
    InputJsonDelta {
        /// The next characters of their JSON.
        partial_json: String,
    },
    /// Thoughts.
    ThinkingDelta {
        /// The next characters.
        thinking: String,
    },
    /// The end of thoughts.
    SignatureDelta {
        /// The proof that they are the model's own.
        signature: String,
    },
}

/// The end of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MessageChange {
    /// The reason for which the model stopped.
    pub stop_reason: Option<StopReason>,
    /// The client's word at which it stopped.
    pub stop_sequence: Option<String>,
    /// The category of a refusal, which is not known here.
    #[serde(default)]
    pub stop_details: Null,
    /// The container of its programs.
    #[serde(default)]
    pub container: Option<Container>,
}

impl Event {
    /// The event's name.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
            Self::Ping => "ping",
            Self::Error { .. } => "error",
        }
    }

    /// The event as JSON on one line.
    pub fn json(&self) -> String {
        // Plain data with texts for keys can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }
}
