//! Commands, shells that remember, and figures.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A request to run a command: a line for a shell, or a program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunCommand {
    /// The line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The program and its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// The directory in which it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// True if nobody waits for its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub background: Option<bool>,
    /// Milliseconds after which it is killed; none if it is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
    /// The user that it runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group that it runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envs: Option<BTreeMap<String, String>>,
}

/// The state of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommandStatus {
    /// Its id.
    pub id: String,
    /// The command.
    pub content: String,
    /// True if it runs.
    pub running: bool,
    /// Its exit status, once it has ended.
    pub exit_code: Option<i32>,
    /// The reason why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The time when it started, RFC 3339.
    pub started_at: String,
    /// The time when it ended, RFC 3339.
    pub finished_at: Option<String>,
}

/// A request for a shell that remembers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NewSession {
    /// The directory in which it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A shell that remembers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Session {
    /// Its id.
    pub session_id: String,
}

/// A line for a shell that remembers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct RunInSession {
    /// The line.
    pub command: String,
    /// The directory in which it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Milliseconds after which it is killed; none if it is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u64>,
}

/// The resources that a sandbox uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metrics {
    /// Processors.
    pub cpu_count: f64,
    /// Their use, percent.
    pub cpu_used_pct: f64,
    /// Memory, mebibytes.
    pub mem_total_mib: f64,
    /// Memory in use, mebibytes.
    pub mem_used_mib: f64,
    /// Milliseconds since 1970.
    pub timestamp: i64,
}
