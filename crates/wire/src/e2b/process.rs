//! The service `process.Process`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Bytes;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ProcessConfig {
    /// The program.
    #[serde(default)]
    pub cmd: String,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub envs: BTreeMap<String, String>,
    /// The directory in which it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Pty {
    /// Its size.
    #[serde(default)]
    pub size: PtySize,
}

/// The size of a terminal, characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PtySize {
    /// Columns.
    #[serde(default)]
    pub cols: u32,
    /// Rows.
    #[serde(default)]
    pub rows: u32,
}

/// A request to start a command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StartRequest {
    /// The command.
    #[serde(default)]
    pub process: ProcessConfig,
    /// Its terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// The client's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// False if it reads nothing; clients of old say nothing and mean true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// A command by its number or the client's name for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// By number.
    Pid(u32),
    /// By name.
    Tag(String),
}

/// A request that names a command and nothing else: to connect to it, or to close its input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SelectRequest {
    /// The command.
    pub process: Selector,
}

/// A request to send input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SendInputRequest {
    /// The command.
    pub process: Selector,
    /// The input.
    pub input: Input,
}

/// Input of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// For its standard input.
    Stdin(Bytes),
    /// For its terminal.
    Pty(Bytes),
}

/// A request to send a signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SendSignalRequest {
    /// The command.
    pub process: Selector,
    /// The signal.
    pub signal: Signal,
}

/// Signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Signal {
    /// SIGTERM.
    #[serde(rename = "SIGNAL_SIGTERM")]
    Term,
    /// SIGKILL.
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
}

/// A request to change the size of a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UpdateRequest {
    /// The command.
    pub process: Selector,
    /// The terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// An answer that says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Empty {}

/// The commands that run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ListResponse {
    /// One by one.
    pub processes: Vec<ProcessInfo>,
}

/// A command that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessInfo {
    /// The command.
    pub config: ProcessConfig,
    /// Its number.
    pub pid: u32,
    /// The client's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// A message of the stream of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventMessage {
    /// The event.
    pub event: ProcessEvent,
}

/// Something that a command did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessEvent {
    /// It runs; the first event.
    Start(Started),
    /// It printed something.
    Data(Output),
    /// It ended; the last event.
    End(Ended),
    /// Nothing.
    Keepalive(Empty),
}

/// A command that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Started {
    /// Its number.
    pub pid: u32,
}

/// Output of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Of its standard output.
    Stdout(Bytes),
    /// Of its standard error.
    Stderr(Bytes),
    /// Of its terminal.
    Pty(Bytes),
}

/// The end of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Its exit status; -1 if a signal ended it.
    #[serde(default, alias = "exit_code")]
    pub exit_code: i32,
    /// True if it ended by itself.
    #[serde(default)]
    pub exited: bool,
    /// In words.
    #[serde(default)]
    pub status: String,
    /// The reason, if it did not end well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
