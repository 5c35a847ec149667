//! The Conversations API. Its items are those of responses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::responses::ItemDocument;

super::literal! {
    /// The kind of object that a conversation is.
    ConversationObject = "conversation";
}

/// A conversation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Conversation {
    /// Its id, `conv_…`.
    pub id: String,
    /// The kind of object.
    pub object: ConversationObject,
    /// When it began, seconds since 1970.
    pub created_at: i64,
    /// The client's notes about it.
    pub metadata: Value,
}

/// `POST /conversations`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CreateConversation {
    /// The client's notes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// The first items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<ItemDocument>>,
}

/// `POST /conversations/{id}`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct UpdateConversation {
    /// The client's notes, in place of those before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
}

/// `POST /conversations/{id}/items`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AddItems {
    /// The items.
    pub items: Vec<ItemDocument>,
}
