//! The events of an execution, and its outcome.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::FileEntry;

use crate::output::text_cost;

/// Events of an execution. [`ExecutionEvent::Finished`] comes exactly once and last.
///
/// Everything here is from untrusted code: it is bounded in size, and it is data, never an instruction.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecutionEvent {
    /// Text written to file descriptor 1, by Python, by C code or by a child process. Invalid UTF-8 is replaced.
    Stdout(String),
    /// Text written to file descriptor 2.
    Stderr(String),
    /// Something the program displayed: `display(x)`, `plt.show()`, an open figure at the end of the cell.
    Display(MimeBundle),
    /// The value of the cell's last expression.
    Result(MimeBundle),
    /// The exception that ended the cell.
    Error(ProgramError),
    /// The program calls tools of the client's, all at once, and waits for [`crate::Execution::answer`]. Its wall clock stops meanwhile.
    Calls(Vec<ClientCall>),
    /// The end, with the outcome.
    Finished(Finished),
}

impl ExecutionEvent {
    /// Bytes of what the program said in it.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Stdout(text) | Self::Stderr(text) => text_cost(text),
            Self::Display(bundle) | Self::Result(bundle) => bundle.bytes(),
            Self::Error(error) => error.name.len() + error.value.len() + error.traceback.len(),
            Self::Calls(calls) => calls.iter().map(|call| call.name.len() + call.arguments.len()).sum(),
            Self::Finished(_) => 0,
        }
    }
}

/// A call of a tool of the client's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCall {
    /// The tool, one of the cell's tools.
    pub name: String,
    /// Its arguments: a JSON object.
    pub arguments: String,
}

/// The client's answer to such a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientAnswer {
    /// The result, or what went wrong.
    pub text: String,
    /// True if the tool failed: the program gets an exception.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl ClientAnswer {
    /// The answer of a tool that failed.
    pub fn error(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_error: true }
    }
}

/// One value in several representations, in no particular order; look them up by MIME type.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MimeBundle(pub Vec<(String, MimeData)>);

impl MimeBundle {
    /// The representation of the given MIME type.
    pub fn get(&self, mime: &str) -> Option<&MimeData> {
        self.0.iter().find(|(name, _)| name == mime).map(|(_, data)| data)
    }

    /// Bytes of all representations and their names.
    pub(crate) fn bytes(&self) -> usize {
        let length = |data: &MimeData| match data {
            MimeData::Text(text) => text_cost(text),
            MimeData::Binary(bytes) => bytes.len(),
        };
        self.0.iter().map(|(mime, data)| mime.len() + length(data)).sum()
    }

    /// The `text/plain` representation.
    pub fn text(&self) -> Option<&str> {
        match self.get("text/plain")? {
            MimeData::Text(text) => Some(text),
            MimeData::Binary(_) => None,
        }
    }

    pub(crate) fn text_mut(&mut self) -> Option<&mut String> {
        self.0.iter_mut().find_map(|(mime, data)| match data {
            MimeData::Text(text) if mime == "text/plain" => Some(text),
            MimeData::Text(_) | MimeData::Binary(_) => None,
        })
    }

    /// The image, if there is one in a format that every client can show: PNG first, then JPEG.
    pub fn image(&self) -> Option<(&str, &[u8])> {
        ["image/png", "image/jpeg"].into_iter().find_map(|mime| match self.get(mime)? {
            MimeData::Binary(bytes) => Some((mime, bytes.as_slice())),
            MimeData::Text(_) => None,
        })
    }

    /// Its form for a browser, if it has no image: SVG, or HTML whose plain text is no more than an object's name, as in
    /// `<IPython.core.display.HTML object>` and `alt.Chart(...)`. A table has HTML too, but its plain text is used.
    pub fn page(&self) -> Option<(&str, &str)> {
        let page = ["image/svg+xml", "text/html"].into_iter().find_map(|mime| match self.get(mime)? {
            MimeData::Text(text) => Some((mime, text.as_str())),
            MimeData::Binary(_) => None,
        });
        page.filter(|_| self.image().is_none() && self.is_object())
    }

    /// Returns true if its plain text is no more than an object's name.
    pub fn is_object(&self) -> bool {
        let is_call = |text: &str| {
            let named = |name: &str| name.chars().all(|letter| letter.is_alphanumeric() || "._".contains(letter));
            text.strip_suffix("(...)").is_some_and(|name| !name.is_empty() && named(name))
        };
        let is_name =
            |text: &str| is_call(text) || text.starts_with('<') && text.ends_with('>') && !text.contains('\n');
        self.text().is_none_or(is_name)
    }
}

/// The data of one representation.
#[derive(Debug, Clone, PartialEq)]
pub enum MimeData {
    /// Text types, JSON and SVG.
    Text(String),
    /// Everything that Jupyter sends as base64, decoded: PNG, JPEG, PDF.
    Binary(Vec<u8>),
}

/// An exception of the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramError {
    /// The exception's class, for example `ValueError`.
    pub name: String,
    /// Its message.
    pub value: String,
    /// The traceback as Python prints it, trimmed to the user's own lines and the innermost library frame.
    pub traceback: String,
}

/// The end of an execution, and its effects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Reason for its end.
    pub outcome: Outcome,
    /// Files of the workspace that were created or changed, by path.
    pub files: Vec<FileEntry>,
    /// More files and directories, left out of `files`: their names are not UTF-8, their paths are longer than 1024 bytes or 32 directories
    /// deep, or there are more than 1000.
    pub files_left_out: u64,
    /// Wall clock from start to end.
    pub elapsed: Duration,
    /// Bytes dropped from the middle of the output because of the limit: the head was streamed, the tail follows the cut.
    pub output_dropped: u64,
    /// State of the interpreter's variables.
    pub state: VariablesState,
    /// Names of the system calls that the sandbox refused during the execution, each once, sorted. The program gets EPERM.
    #[serde(rename = "blocked")]
    pub refused_calls: Vec<String>,
    /// True if a refusal may have affected the program: its error or output says that an operation is not permitted, or its interpreter
    /// ended by itself. Libraries also try calls that they can do without.
    #[serde(rename = "felt_refusal", default)]
    pub refusal_may_have_mattered: bool,
}

impl Finished {
    /// Adds files that earlier executions created or changed, latest last.
    pub fn add_files(&mut self, earlier: Vec<FileEntry>) {
        let mut files: BTreeMap<_, _> = earlier.into_iter().map(|file| (file.path.clone(), file)).collect();
        files.extend(self.files.drain(..).map(|file| (file.path.clone(), file)));
        self.files = files.into_values().collect();
    }

    /// Returns the names of refused system calls that may have caused the outcome.
    pub fn relevant_refused_calls(&self) -> &[String] {
        if self.refusal_may_have_mattered { &self.refused_calls } else { &[] }
    }
}

/// State of the interpreter's variables after an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VariablesState {
    /// The kernel lives; the next execution sees them.
    Kept,
    /// The kernel ended, and its checkpoint took over: variables are as before this execution. Files that it wrote stay; threads, child
    /// processes and connections are gone.
    RolledBack,
    /// The kernel is gone; the next execution starts a new one. The files are kept.
    Lost,
    /// The kernel lives but is a new one: the sandbox of earlier executions was lost with their variables. Files are as they were stored.
    Restarted,
}

/// Reason for the end of an execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The program ran to its end.
    Completed,
    /// The program raised an exception; an [`ExecutionEvent::Error`] came before.
    Failed(ProgramError),
    /// The program hit a limit.
    Limit(LimitHit),
    /// The caller interrupted it.
    Interrupted,
    /// The program ended its own interpreter.
    KernelDied(KernelDeath),
}

impl Outcome {
    /// Returns its name in logs and figures.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed(_) => "exception",
            Self::Limit(LimitHit::Memory { .. }) => "memory_limit",
            Self::Limit(LimitHit::WallClock { .. }) => "timeout",
            Self::Limit(LimitHit::CpuTime { .. }) => "cpu_time_limit",
            Self::Limit(LimitHit::Disk { .. }) => "disk_limit",
            Self::Limit(LimitHit::Files { .. }) => "files_limit",
            Self::Interrupted => "interrupted",
            Self::KernelDied(_) => "kernel_died",
        }
    }
}

/// The limit that was hit, with the figures for a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitHit {
    /// Memory.
    Memory {
        /// The peak use, bytes; 0 if it is not counted.
        used: u64,
        /// The limit, bytes.
        limit: u64,
        /// Bytes of the workspace. The files that programs wrote are in memory and count too.
        #[serde(default)]
        files: u64,
        /// True if the memory of the host, or of all sandboxes together, ran out before this sandbox's own limit was reached.
        #[serde(default)]
        of_host: bool,
    },
    /// The execution ran longer than it may.
    WallClock {
        /// The limit.
        limit: Duration,
    },
    /// The execution used more processor time than it may.
    CpuTime {
        /// The limit.
        limit: Duration,
    },
    /// The workspace is full, and a write failed for it. Bytes.
    Disk {
        /// Bytes that the workspace held.
        used: u64,
        /// The limit, bytes.
        limit: u64,
    },
    /// The workspace holds as many files as it may, and making another one failed.
    Files {
        /// The limit, in files.
        limit: u64,
    },
}

/// An unrequested end of a kernel process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelDeath {
    /// `os._exit(code)` or the like.
    Exited(i32),
    /// A signal, for example 11 for a segmentation fault.
    Signalled(i32),
    /// The sandbox ended underneath it and took the status along.
    Unknown,
}
