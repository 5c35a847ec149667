//! Threads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ToolResources;

super::literal! {
    /// The type of a thread.
    ThreadObject = "thread";
}

/// A conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Thread {
    /// Its id, `thread_…`.
    pub id: String,
    /// Its type.
    #[serde(default)]
    pub object: ThreadObject,
    /// When it was made, seconds since 1970.
    pub created_at: i64,
    /// The client's own notes.
    pub metadata: Map<String, Value>,
    /// The files of its tools.
    pub tool_resources: ToolResources,
}
