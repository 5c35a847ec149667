//! The Conversations API. Its items are those of responses, kept as JSON.

use serde::Serialize;
use serde_json::Value;

super::literal! {
    /// What a conversation says it is.
    ConversationObject = "conversation";
}

/// A conversation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conversation {
    /// Its id, `conv_…`.
    pub id: String,
    /// What it is.
    pub object: ConversationObject,
    /// When it began, seconds since 1970.
    pub created_at: i64,
    /// What the client noted about it.
    pub metadata: Value,
}
