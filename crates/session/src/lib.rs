//! Sessions: a user's long-lived things. A session has a workspace, limits and at most one live sandbox; it is the only gate to a sandbox.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

pub use aludel_sandbox::{Event, Execution, FileEntry, Finished, Interrupter, Limits};
use aludel_sandbox::Local;

/// Why a session could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The sandbox layer failed: aludel's or the host's fault, not the program's.
    #[error(transparent)]
    Sandbox(#[from] aludel_sandbox::Error),
}

/// A workspace with a kernel that starts when it is first needed. Cheap to clone; clones are the same session.
#[derive(Clone)]
pub struct Session(Arc<Inner>);
struct Inner;

impl Session {
    /// Opens a session with an empty workspace.
    pub async fn create(backend: Local, limits: Limits) -> Result<Self, Error> {
        unimplemented!()
    }
    /// The session's id, for example `ses_…`.
    pub fn id(&self) -> &str {
        unimplemented!()
    }
    /// The limits that apply to every execution.
    pub fn limits(&self) -> &Limits {
        unimplemented!()
    }
    /// Runs one cell. Executions of one session run one after another; this waits for its turn. A kernel that died is replaced first.
    /// Dropping the returned [`Execution`] interrupts the program.
    pub async fn execute(&self, code: &str) -> Result<Execution, Error> {
        unimplemented!()
    }
    /// Copies a host file into the workspace under `name` (a plain file name or a relative path).
    pub async fn add_file(&self, name: &str, source: &Path) -> Result<FileEntry, Error> {
        unimplemented!()
    }
    /// All files of the workspace, by path.
    pub async fn files(&self) -> Result<Vec<FileEntry>, Error> {
        unimplemented!()
    }
    /// Reads a file of at most `limit` bytes.
    pub async fn read_file(&self, path: &str, limit: u64) -> Result<Vec<u8>, Error> {
        unimplemented!()
    }
    /// Copies a file of the workspace to a host path. Returns its size.
    pub async fn copy_out(&self, path: &str, to: &Path) -> Result<u64, Error> {
        unimplemented!()
    }
    /// Ends the sandbox and removes the workspace.
    pub async fn close(self) -> Result<(), Error> {
        unimplemented!()
    }
}
