//! The shape of every error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of an answer that says what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorEnvelope {
    /// The error.
    pub error: Error,
}

/// The error. Clients show the message alone, so it says everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    /// In words.
    pub message: String,
    /// The kind of error, for example `invalid_request_error`.
    pub r#type: String,
    /// The parameter that is wrong, for example `tools[0].container`.
    pub param: Option<String>,
    /// For programs, for example `unknown_parameter`.
    pub code: Option<String>,
}
