//! OpenSandbox's protocol: `lifecycle` makes and ends sandboxes, and in each of them `code`, `commands` and `files` are served at one port.

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
