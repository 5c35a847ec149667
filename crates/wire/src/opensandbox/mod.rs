//! OpenSandbox's protocol: `lifecycle` makes and ends sandboxes; `code`, `commands` and `files` are served on one port of each.

pub mod code;
pub mod commands;
pub mod files;
pub mod lifecycle;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    /// The kind of refusal.
    pub code: String,
    /// Its words.
    pub message: String,
}
