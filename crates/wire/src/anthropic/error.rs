//! The shape of every error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The body of an answer that says what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename = "error")]
pub struct ErrorEnvelope {
    /// The error.
    pub error: Error,
    /// The request's id, as in the header `request-id`.
    pub request_id: Option<String>,
}

/// The error. Clients show the message alone, so it says everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Error {
    /// The kind of error, for example `invalid_request_error`.
    pub r#type: String,
    /// In words.
    pub message: String,
    /// For programs.
    pub details: Option<Details>,
}

/// Details of an error that clients act on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Details {
    /// The code, for example `thread_unsupported_request`.
    pub error_code: String,
    /// The fields that cannot be honoured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<Vec<String>>,
}
