//! The Models API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A model that can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename = "model")]
pub struct Model {
    /// Its name, as clients ask for it.
    pub id: String,
    /// Its name for people.
    pub display_name: String,
    /// Time since when it is there, as RFC 3339 has it.
    pub created_at: String,
    /// Most tokens that it reads, if that is known.
    pub max_input_tokens: Option<u64>,
    /// Most tokens that it writes, if that is known.
    pub max_tokens: Option<u64>,
    /// Its capabilities, if they are known.
    pub capabilities: Option<()>,
    /// The state of its life: `active` as long as it is there.
    pub lifecycle: String,
    /// Its family.
    pub line: Option<String>,
    /// Time at which it was deprecated.
    pub deprecated_at: Option<String>,
    /// Time at which it goes away.
    pub retires_at: Option<String>,
}
