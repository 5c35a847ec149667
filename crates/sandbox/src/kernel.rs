//! Kernels: stateful interpreters inside a sandbox.

use std::fmt;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::execution::Execution;
use crate::{CommandLine, Error, EventMemory, Language};

/// Tools of one cell.
const MAX_TOOLS: usize = 256;
/// Bytes of the name of one.
const MAX_TOOL_NAME: usize = 128;

/// A kernel of a live sandbox. It ends when the last reference to it is dropped; the first kernel ends with its sandbox.
pub trait Kernel: fmt::Debug + Send + Sync {
    /// Returns true if it lives, or its checkpoint will.
    fn is_alive(&self) -> bool;

    /// Runs one cell. Cells run one at a time; the next waits here.
    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, Error>>;

    /// Sets the working directory and environment variables for later cells. Waits until no cell runs.
    fn configure<'a>(&'a self, options: &'a KernelOptions) -> BoxFuture<'a, Result<(), Error>>;

    /// Ends this kernel alone, whatever runs in it, and waits until it has ended.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A program for a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Cell<'a> {
    /// The code.
    pub code: &'a str,
    /// Environment variables that are set during the cell; afterwards they have their former values.
    pub environment: &'a [(String, String)],
    /// Tools of the client that the cell can call: functions in the kernel's language that exist during the cell.
    pub tools: &'a [String],
    /// Memory for long code on its way to the kernel, and for its long events, from their arrival until their reader asks for the next;
    /// `None` for as much as they need.
    pub event_memory: Option<&'a EventMemory>,
}

/// The name among a cell's tools that makes Python's `input()` ask the client: called with `{"prompt": TEXT}`, it answers with a line
/// without its end.
pub const INPUT: &str = "__input__";

impl<'a> Cell<'a> {
    /// A cell without variables of its own and without tools.
    pub fn new(code: &'a str) -> Self {
        Self { code, environment: &[], tools: &[], event_memory: None }
    }
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(code: &'a str) -> Self {
        Self::new(code)
    }
}

impl<'a> From<&'a String> for Cell<'a> {
    fn from(code: &'a String) -> Self {
        Self::new(code)
    }
}

/// Settings of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KernelOptions {
    /// The working directory, inside; `None` keeps the current one, which is the workspace at first.
    pub directory: Option<String>,
    /// Environment variables beside those that every process of a sandbox has.
    pub environment: Vec<(String, String)>,
    /// True if tables and charts are displayed as data too: [`TABLE`] and [`CHART`].
    pub forms: bool,
    /// The command line of a program; `None` for none.
    pub command_line: Option<CommandLine>,
    /// The language of all its cells, for a new kernel; `None` for the sandbox's own. It needs a Jupyter kernel for it.
    pub language: Option<Language>,
}

/// Checks that these can be names of functions.
pub(crate) fn check_tools(tools: &[String]) -> Result<(), Error> {
    let is_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        (1..=MAX_TOOL_NAME).contains(&name.len())
            && name.bytes().all(plain)
            && !name.starts_with(|first: char| first.is_ascii_digit())
    };
    match tools.iter().find(|name| !is_name(name)) {
        _ if tools.len() > MAX_TOOLS => Err(Error::Start(format!("a cell can have {MAX_TOOLS} tools"))),
        None => Ok(()),
        Some(name) => Err(Error::Start(format!("{name:?} cannot be the name of a function"))),
    }
}

/// The MIME type of a table as data: an object of lists, by column.
pub const TABLE: &str = "application/vnd.aludel.table+json";
/// The MIME type of a chart as data: its kind, labels and series.
pub const CHART: &str = "application/vnd.aludel.chart+json";

/// Checks the variables for what Linux would refuse in the middle of a start.
pub(crate) fn check_environment(environment: &[(String, String)]) -> Result<(), Error> {
    let is_name = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    match environment.iter().find(|(name, value)| !is_name(name) || value.contains('\0')) {
        None => Ok(()),
        Some((name, _)) => Err(Error::Start(format!("{name:?} cannot be an environment variable with this value"))),
    }
}
