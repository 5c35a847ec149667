//! Files of a sandbox by absolute path, served by a program inside: the host follows no path that a guest controls.
//!
//! [`Files`] starts the program and sends it requests; `frame` has the protocol. The program belongs to the sandbox: its answers are
//! bounded, typed, and as untrusted as any other output.

mod frame;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aludel_ignore::Ignore;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::bytes::Bytes;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::frame::{FilesAnswer, FilesOperation, FilesRequest, read_answer, write_request};
use crate::kernel_spec::FILES_PROGRAM;
use crate::process::{Command, Process};
use crate::{Error, Sandbox};

/// Bytes that the allocator takes besides a text's own.
const ENTRY_BYTES: usize = 32;
/// Bytes that are read or written at once.
pub const CHUNK: usize = 256 << 10;
/// Requests that wait for the program.
const QUEUE: usize = 16;
/// Unanswered requests, including those that wait for changes.
const MAX_PENDING: usize = 512;
/// The longest wait for an answer; a program that takes longer is ended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A failure of an operation on files.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The operation was refused.
    #[error("{message}")]
    Refused {
        /// The kind of problem.
        problem: Problem,
        /// The reason, in the sandbox's words.
        message: String,
    },
    /// The program that serves files could not be started or has ended.
    #[error(transparent)]
    Sandbox(#[from] Error),
}

/// Kinds of problems with files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// There is no such file.
    NotFound,
    /// There is one already.
    Exists,
    /// It is a directory.
    IsADirectory,
    /// It is no directory.
    NotADirectory,
    /// The sandbox's user may not do that.
    Denied,
    /// There is no room.
    Full,
    /// Too much for one answer.
    TooMany,
    /// Too much is open already.
    Busy,
    /// The sandbox cannot do that.
    NotSupported,
    /// Anything else.
    #[serde(other)]
    Invalid,
}

/// A file or directory as the sandbox describes it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PathInfo {
    /// Last part of its path.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// Bytes; of a link itself.
    pub size: u64,
    /// Type and permissions (`st_mode`); of a link itself.
    pub mode: u32,
    /// Name of its user.
    pub owner: String,
    /// Name of its group.
    pub group: String,
    /// Time of its last change, nanoseconds since 1970.
    pub modified: i64,
    /// For a link, the path that it leads to in the end.
    #[serde(default)]
    pub target: Option<String>,
    /// The target's type and permissions, for a link whose target exists.
    #[serde(default)]
    pub target_mode: Option<u32>,
    /// The client's own attributes.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// A change below a directory that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Change {
    /// The kind of change.
    pub kind: ChangeKind,
    /// Path, relative to the directory.
    pub name: String,
    /// The file after the change, if requested and if it still exists.
    #[serde(default)]
    pub entry: Option<PathInfo>,
}

impl Change {
    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> usize {
        let of_entry = |entry: &PathInfo| {
            let metadata = entry.metadata.iter().map(|(key, value)| key.len() + value.len() + ENTRY_BYTES);
            let texts = [&entry.name, &entry.path, &entry.owner, &entry.group].map(String::len);
            let target = entry.target.as_ref().map_or(0, String::len);
            texts.iter().sum::<usize>() + target + metadata.sum::<usize>() + 4 * ENTRY_BYTES
        };
        size_of::<Self>() + ENTRY_BYTES + self.name.len() + self.entry.as_ref().map_or(0, of_entry)
    }
}

/// Kinds of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is new here.
    Create,
    /// Its contents changed.
    Write,
    /// It was removed.
    Remove,
    /// It was moved away.
    Rename,
    /// Its permissions or other properties changed.
    Chmod,
}

/// The files of one sandbox. Cheap to clone; the program ends with the last clone.
#[derive(Debug, Clone)]
pub struct Files(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    calls: mpsc::Sender<FilesRequest>,
    pending: Arc<PendingAnswers>,
    last: AtomicU64,
    over: CancellationToken,
    _end: DropGuard,
}

/// Requests that wait for an answer, by number.
#[derive(Debug, Default)]
struct PendingAnswers(Mutex<HashMap<u64, oneshot::Sender<ReceivedAnswer>>>);

/// An answer, its data, and the file or watch that it opened.
type ReceivedAnswer = (FilesAnswer, Bytes, Option<OpenHandle>);

impl Files {
    /// Starts the program in a sandbox. Relative paths begin at `home`.
    pub async fn start(sandbox: &dyn Sandbox, home: &str) -> Result<Self, Error> {
        let interpreter = sandbox.kernel().argv.first().cloned().ok_or(Error::NotSupported("files by path"))?;
        // Without the user's packages and variables: only the template's code runs.
        let program = format!("{}/{FILES_PROGRAM}", sandbox.scripts_directory());
        let command = Command {
            arguments: vec![interpreter, "-I".into(), "-S".into(), program],
            environment: vec![("HOME".into(), home.into())],
            directory: "/".into(),
            pty: None,
        };
        Ok(Self::over(sandbox.spawn(command).await?))
    }

    /// Speaks with a program that was started.
    fn over(process: Process) -> Self {
        let (calls, receiver) = mpsc::channel(QUEUE);
        let (closes, closed) = mpsc::unbounded_channel();
        let (pending, over) = (Arc::<PendingAnswers>::default(), CancellationToken::new());
        let end = over.clone().drop_guard();
        tokio::spawn(drive(process, receiver, (closes, closed), Arc::clone(&pending), over.clone()));
        Self(Arc::new(Inner { calls, pending, last: AtomicU64::new(0), over, _end: end }))
    }

    /// Returns true until the program has ended.
    pub fn is_alive(&self) -> bool {
        !self.0.over.is_cancelled()
    }

    /// A file or directory; of a link, the link itself.
    pub async fn stat(&self, path: &str) -> Result<PathInfo, FilesError> {
        entry(self.send(FilesOperation::Stat { path: path.to_owned() }).await?)
    }

    /// The files below a directory, so many levels deep, by path.
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<PathInfo>, FilesError> {
        Ok(self.send(FilesOperation::List { path: path.to_owned(), depth }).await?.entries)
    }

    /// Makes a directory and those above it.
    pub async fn make_directory(&self, path: &str) -> Result<PathInfo, FilesError> {
        entry(self.send(FilesOperation::Make { path: path.to_owned() }).await?)
    }

    /// Moves a file or directory.
    pub async fn rename(&self, source: &str, destination: &str) -> Result<PathInfo, FilesError> {
        let operation = FilesOperation::Move { source: source.to_owned(), destination: destination.to_owned() };
        entry(self.send(operation).await?)
    }

    /// Removes a file, or a directory with everything below it. Success if it does not exist.
    pub async fn remove(&self, path: &str) -> Result<(), FilesError> {
        self.send(FilesOperation::Remove { path: path.to_owned() }).await?;
        Ok(())
    }

    /// Sets the permissions of a file or directory.
    pub async fn set_mode(&self, path: &str, mode: u32) -> Result<PathInfo, FilesError> {
        entry(self.send(FilesOperation::Chmod { path: path.to_owned(), mode }).await?)
    }

    /// Searches the files below a directory, at any depth, whose names match a shell pattern.
    pub async fn search(&self, path: &str, pattern: &str) -> Result<Vec<PathInfo>, FilesError> {
        let operation = FilesOperation::Search { path: path.to_owned(), pattern: pattern.to_owned() };
        Ok(self.send(operation).await?.entries)
    }

    /// Replaces every occurrence of a text in a file, and returns their number.
    pub async fn replace(&self, path: &str, old: &str, new: &str) -> Result<u64, FilesError> {
        let operation = FilesOperation::Replace { path: path.to_owned(), old: old.to_owned(), new: new.to_owned() };
        Ok(self.send(operation).await?.count)
    }

    /// Keeps a TCP port of the loopback device open as long as files are served, for clients that take it as a sign of life. Connections
    /// are closed at once. Success if a program listens on the port already.
    pub async fn listen(&self, port: u16) -> Result<(), FilesError> {
        self.send(FilesOperation::Listen { port }).await?;
        Ok(())
    }

    /// Opens a regular file for reading, from `offset` on.
    pub async fn open(&self, path: &str, offset: u64) -> Result<OpenFile, FilesError> {
        let (handle, answer) = self.open_handle(FilesOperation::Open { path: path.to_owned(), offset }).await?;
        Ok(OpenFile { handle, size: answer.size, modified: answer.modified })
    }

    /// Makes a file or empties an existing one, and sets exactly these attributes. Makes directories above it.
    pub async fn create(&self, path: &str, metadata: BTreeMap<String, String>) -> Result<FileWriter, FilesError> {
        let operation = FilesOperation::Create { path: path.to_owned(), metadata };
        Ok(FileWriter { handle: self.open_handle(operation).await?.0 })
    }

    /// Watches a directory, and everything below it if `recursive`. With `entries`, each change comes with a [`PathInfo`].
    pub async fn watch(&self, path: &str, recursive: bool, entries: bool) -> Result<DirectoryWatch, FilesError> {
        let operation = FilesOperation::Watch { path: path.to_owned(), recursive, entries };
        Ok(DirectoryWatch { handle: self.open_handle(operation).await?.0 })
    }

    async fn open_handle(&self, operation: FilesOperation) -> Result<(Handle, FilesAnswer), FilesError> {
        let (answer, _, open) = self.call(operation, Bytes::new(), Some(ANSWER_TIMEOUT)).await?;
        Ok((Handle { files: self.clone(), open: open.ok_or_else(misunderstood)? }, answer))
    }

    async fn send(&self, operation: FilesOperation) -> Result<FilesAnswer, FilesError> {
        Ok(self.call(operation, Bytes::new(), Some(ANSWER_TIMEOUT)).await?.0)
    }

    /// Sends a request and waits for the answer, at most for `limit` if there is one.
    async fn call(
        &self,
        operation: FilesOperation,
        data: Bytes,
        limit: Option<Duration>,
    ) -> Result<ReceivedAnswer, FilesError> {
        let id = self.0.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        let opens = operation.opens();
        let mut waiting = PendingAnswer { pending: &self.0.pending, id, outlives_caller: false };
        {
            let mut pending = self.0.pending.0.lock();
            if pending.len() >= MAX_PENDING {
                let message = "too many operations on files at once; try again".to_owned();
                return Err(FilesError::Refused { problem: Problem::Busy, message });
            }
            pending.insert(id, sender);
        }
        let asked = async {
            self.0.calls.send(FilesRequest { id, operation, data }).await.ok()?;
            waiting.outlives_caller = opens;
            tokio::select! {
                answer = receiver => answer.ok(),
                () = self.0.over.cancelled() => None,
            }
        };
        let answer = match limit {
            None => asked.await,
            Some(limit) => match timeout(limit, asked).await {
                Ok(answer) => answer,
                Err(_) => {
                    self.0.over.cancel();
                    return Err(Error::Timeout { what: "answer about files", limit }.into());
                }
            },
        };
        let (answer, data, open) = answer.ok_or_else(gone)?;
        match answer.problem {
            Some(problem) => Err(FilesError::Refused { problem, message: answer.message }),
            None => Ok((answer, data, open)),
        }
    }
}

fn entry(answer: FilesAnswer) -> Result<PathInfo, FilesError> {
    answer.entry.ok_or_else(misunderstood)
}

fn gone() -> FilesError {
    Error::KernelGone("the program that serves files has ended".into()).into()
}

fn misunderstood() -> FilesError {
    Error::KernelGone("the program that serves files is not understood".into()).into()
}

/// The wait for an answer. Dropping it ends it, except for one that opens something: that is to be closed.
struct PendingAnswer<'a> {
    pending: &'a PendingAnswers,
    id: u64,
    outlives_caller: bool,
}

impl Drop for PendingAnswer<'_> {
    fn drop(&mut self) {
        if !self.outlives_caller {
            self.pending.0.lock().remove(&self.id);
        }
    }
}

/// Something that is open in the program. Dropping it closes it.
#[derive(Debug)]
struct Handle {
    open: OpenHandle,
    files: Files,
}

/// The number of something that is open in the program. Dropping it closes it.
#[derive(Debug)]
struct OpenHandle {
    number: u64,
    is_open: bool,
    closes: mpsc::UnboundedSender<u64>,
}

impl Drop for OpenHandle {
    fn drop(&mut self) {
        if self.is_open {
            self.closes.send(self.number).ignore("without the program, nothing is open");
        }
    }
}

/// A file that is being read.
#[derive(Debug)]
pub struct OpenFile {
    handle: Handle,
    /// Its size when it was opened. Some files have size 0 and content all the same.
    pub size: u64,
    /// Time of its last change, nanoseconds since 1970.
    pub modified: i64,
}

impl OpenFile {
    /// Reads the next bytes, at most [`CHUNK`]; none at the end.
    pub async fn read(&mut self) -> Result<Bytes, FilesError> {
        let operation = FilesOperation::Read { handle: self.handle.open.number, count: CHUNK };
        let (_, data, _) = self.handle.files.call(operation, Bytes::new(), Some(ANSWER_TIMEOUT)).await?;
        Ok(data)
    }
}

/// A file that is being written.
#[derive(Debug)]
pub struct FileWriter {
    handle: Handle,
}

impl FileWriter {
    /// Appends bytes.
    pub async fn write(&mut self, mut data: Bytes) -> Result<(), FilesError> {
        while !data.is_empty() {
            let chunk = data.split_to(data.len().min(CHUNK));
            let operation = FilesOperation::Write { handle: self.handle.open.number };
            self.handle.files.call(operation, chunk, Some(ANSWER_TIMEOUT)).await?;
        }
        Ok(())
    }

    /// Closes it.
    pub async fn finish(mut self) -> Result<PathInfo, FilesError> {
        let answer = self.handle.files.send(FilesOperation::Close { handle: self.handle.open.number }).await?;
        self.handle.open.is_open = false;
        entry(answer)
    }
}

/// A directory that is watched.
#[derive(Debug)]
pub struct DirectoryWatch {
    handle: Handle,
}

impl DirectoryWatch {
    /// Returns the changes since the last call, and the number of dropped ones, without waiting.
    pub async fn changes(&self) -> Result<(Vec<Change>, u64), FilesError> {
        let answer = self.handle.files.send(FilesOperation::Events { handle: self.handle.open.number }).await?;
        Ok((answer.events, answer.dropped))
    }

    /// Waits until there are changes. Dropping the future may lose changes that are in its answer.
    pub async fn next(&mut self) -> Result<(Vec<Change>, u64), FilesError> {
        let operation = FilesOperation::Wait { handle: self.handle.open.number };
        let (answer, ..) = self.handle.files.call(operation, Bytes::new(), None).await?;
        Ok((answer.events, answer.dropped))
    }
}

/// Carries requests to the program and answers back, until either side is gone.
async fn drive(
    mut process: Process,
    mut calls: mpsc::Receiver<FilesRequest>,
    (closes, mut closed): (mpsc::UnboundedSender<u64>, mpsc::UnboundedReceiver<u64>),
    pending: Arc<PendingAnswers>,
    over: CancellationToken,
) {
    // Also if the task panics. Dropping the process ends it.
    let _over = over.clone().drop_guard();
    let Some(mut stdin) = process.stdin.take() else { return };
    let writing = async {
        loop {
            let request = tokio::select! {
                request = calls.recv() => request,
                handle = closed.recv() => {
                    handle.map(|handle| FilesRequest { id: 0, operation: FilesOperation::Close { handle }, data: Bytes::new() })
                }
            };
            let Some(request) = request else { return };
            if write_request(&mut stdin, &request).await.is_err() {
                return;
            }
        }
    };
    let reading = async {
        while let Ok((answer, data)) = read_answer(&mut process.stdout).await {
            let waiter = pending.0.lock().remove(&answer.id);
            if let Some(waiter) = waiter {
                let open = answer.handle.map(|number| OpenHandle { number, is_open: true, closes: closes.clone() });
                drop(waiter.send((answer, data, open)));
            }
        }
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
        () = over.cancelled() => {}
    }
}
