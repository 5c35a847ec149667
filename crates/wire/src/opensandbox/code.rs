//! Programs in contexts, and the events of programs and commands.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A request to run a program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunCode {
    /// The program.
    pub code: String,
    /// The context that it runs in; without an id, its language's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<ContextRef>,
}

/// A context as a request names it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ContextRef {
    /// Its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

/// A request for a context.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NewContext {
    /// Its language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// The directory in which its programs start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Context {
    /// Its id.
    pub id: String,
    /// Its language.
    pub language: String,
}

/// An event and its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// The event.
    #[serde(flatten)]
    pub kind: EventKind,
    /// Milliseconds since 1970.
    pub timestamp: i64,
}

/// Something that a program or a command did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventKind {
    /// It began; the first event.
    Init {
        /// Its id.
        text: String,
    },
    /// It printed something.
    Stdout {
        /// The text.
        text: String,
    },
    /// It printed something to its error output.
    Stderr {
        /// The text.
        text: String,
    },
    /// A value that it showed.
    Result {
        /// The value's forms by MIME type, where plain text is `text`.
        results: BTreeMap<String, Value>,
    },
    /// The number of the program in its context.
    ExecutionCount {
        /// The number.
        execution_count: u64,
    },
    /// It failed; the last event.
    Error {
        /// The failure.
        error: Failure,
    },
    /// It ended well; the last event.
    ExecutionComplete {
        /// Milliseconds that it took.
        execution_time: u64,
    },
    /// Nothing, so that the connection is seen to live.
    Ping {
        /// A word.
        text: String,
    },
}

/// The failure of a program or a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Its name, as of an exception.
    pub ename: String,
    /// Its message; of a command, the exit status.
    pub evalue: String,
    /// Lines of where it happened.
    pub traceback: Vec<String>,
}
