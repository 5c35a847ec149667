//! Command lines of programs that run as cells.

use serde::{Deserialize, Serialize};

/// The command line of a program that runs as a cell.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CommandLine {
    /// Its arguments, its own name first: `sys.argv` of later cells.
    pub arguments: Vec<String>,
    /// The file in the working directory with the next cell's code: its `__file__`, and its name in tracebacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// A file in the working directory that becomes its stdin. The file is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The number of its cells, after the last of which it ends as an interpreter does: threads are waited for, functions that are
    /// registered for the exit run, and files are written. With 0 the kernel goes on.
    #[serde(default)]
    pub cells: usize,
}
