//! The code interpreter of a sandbox.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A request to run a program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ExecuteRequest {
    /// The program.
    pub code: String,
    /// The context that it runs in; not together with a language.
    #[serde(default)]
    pub context_id: Option<String>,
    /// Its language, whose own context it runs in.
    #[serde(default)]
    pub language: Option<String>,
    /// Environment variables of this program.
    #[serde(default)]
    pub env_vars: Option<BTreeMap<String, String>>,
}

/// A request for a context.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CreateContext {
    /// Its language; Python if nothing is said.
    #[serde(default)]
    pub language: Option<String>,
    /// The directory in which its programs start.
    #[serde(default)]
    pub cwd: Option<String>,
}

/// A context: a kernel as its client knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Context {
    /// Its id.
    pub id: String,
    /// Its language.
    pub language: String,
    /// The directory in which its programs start.
    pub cwd: String,
}

/// A line of the stream of a program.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    /// Its number in its context; the first line.
    NumberOfExecutions {
        /// The number.
        execution_count: u64,
    },
    /// Text on standard output.
    Stdout(Text),
    /// Text on standard error.
    Stderr(Text),
    /// A value that it showed.
    Result(Box<ResultLine>),
    /// The exception that ended it.
    Error {
        /// Its class.
        name: String,
        /// Its message.
        value: String,
        /// The traceback in text.
        traceback: String,
    },
    /// Nothing, so that the connection is seen to live.
    Keepalive,
    /// Its end; the last line.
    EndOfExecution,
}

/// Text that a program printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Text {
    /// The text.
    pub text: String,
    /// The time, RFC 3339.
    pub timestamp: String,
}

/// A value in its forms.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct ResultLine {
    /// Plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// HTML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// Markdown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markdown: Option<String>,
    /// SVG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub svg: Option<String>,
    /// PNG in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub png: Option<String>,
    /// JPEG in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jpeg: Option<String>,
    /// PDF in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdf: Option<String>,
    /// LaTeX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latex: Option<String>,
    /// JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub json: Option<Box<RawValue>>,
    /// JavaScript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub javascript: Option<String>,
    /// A table, by column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub data: Option<Box<RawValue>>,
    /// The data of a chart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<serde_json::Value>")]
    pub chart: Option<Box<RawValue>>,
    /// Other forms, by MIME type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
    /// True for the value of the last expression.
    #[serde(default)]
    pub is_main_result: bool,
}
