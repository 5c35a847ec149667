//! Sessions: a user's long-lived things. A session has a workspace, limits and at most one live sandbox; it is the only gate to a sandbox.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use aludel_sandbox::{
    Death, Error as SandboxError, Event, Execution, FileEntry, Finished, Interrupter, LimitHit, Limits, Local,
    MimeBundle, MimeData, Outcome, ProgramError, State, mime_of,
};
use aludel_sandbox::{Sandbox, SandboxSpec, Workspace};
use tokio::sync::Mutex;

/// Why a session could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The sandbox layer failed: aludel's or the host's fault, not the program's.
    #[error(transparent)]
    Sandbox(#[from] aludel_sandbox::Error),
    /// A host file could not be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The session was closed.
    #[error("the session {0} is closed")]
    Closed(String),
}

/// A workspace with a kernel. When the kernel dies, the next execution starts another on the same files. Cheap to clone; clones are the
/// same session.
#[derive(Debug, Clone)]
pub struct Session(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: String,
    limits: Limits,
    backend: Local,
    state: Mutex<Life>,
}

#[derive(Debug)]
enum Life {
    /// Files, and a sandbox that lives or died since it was last used.
    Open {
        workspace: Arc<Workspace>,
        sandbox: Option<Arc<Sandbox>>,
    },
    Closed,
}

impl Session {
    /// Opens a session with an empty workspace and a kernel that is ready.
    pub async fn create(backend: Local, limits: Limits) -> Result<Self, Error> {
        let sandbox = backend.create(SandboxSpec { limits: limits.clone(), workspace: None }).await?;
        let workspace = Arc::clone(sandbox.workspace());
        let state = Mutex::new(Life::Open { workspace, sandbox: Some(Arc::new(sandbox)) });
        Ok(Self(Arc::new(Inner { id: new_id(), limits, backend, state })))
    }

    /// The session's id, for example `ses_…`.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// The limits that apply to every execution.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Runs one cell. Executions of one session run one after another; this waits for its turn. A kernel that died is replaced first.
    /// Dropping the returned [`Execution`] interrupts the program.
    pub async fn execute(&self, code: &str) -> Result<Execution, Error> {
        let mut tries = 0;
        loop {
            // Not held while waiting for the kernel's turn: the files are reached through the same lock.
            let sandbox = self.live_sandbox().await?;
            match sandbox.execute(code).await {
                // It died while nobody was looking; nothing of this code ran.
                Err(aludel_sandbox::Error::KernelGone(_)) if tries < 2 => tries += 1,
                result => return Ok(result?),
            }
        }
    }

    /// The session's sandbox, a new one if the last one died.
    async fn live_sandbox(&self) -> Result<Arc<Sandbox>, Error> {
        let mut state = self.0.state.lock().await;
        let Life::Open { workspace, sandbox } = &mut *state else { return Err(self.closed()) };
        if let Some(live) = sandbox.as_ref().filter(|sandbox| sandbox.is_alive()) {
            return Ok(Arc::clone(live));
        }
        if let Some(dead) = sandbox.take() {
            dead.close().await;
        }
        let spec = SandboxSpec { limits: self.0.limits.clone(), workspace: Some(Arc::clone(workspace)) };
        let live = Arc::new(self.0.backend.create(spec).await?);
        *sandbox = Some(Arc::clone(&live));
        Ok(live)
    }

    /// Copies a host file into the workspace under `name` (a plain file name or a relative path).
    pub async fn add_file(&self, name: &str, source: &Path) -> Result<FileEntry, Error> {
        let (name, source, limit) = (name.to_owned(), source.to_owned(), self.0.limits.disk);
        self.blocking(move |workspace| Ok(workspace.add(&name, &source, limit)?)).await
    }

    /// Removes a file from the workspace; one that is not there is fine.
    pub async fn remove_file(&self, path: &str) -> Result<(), Error> {
        let path = path.to_owned();
        self.blocking(move |workspace| Ok(workspace.remove(&path)?)).await
    }

    /// All files of the workspace, by path.
    pub async fn files(&self) -> Result<Vec<FileEntry>, Error> {
        self.blocking(|workspace| Ok(workspace.files()?)).await
    }

    /// Reads a file of at most `limit` bytes.
    pub async fn read_file(&self, path: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let path = path.to_owned();
        self.blocking(move |workspace| Ok(workspace.read(&path, limit)?)).await
    }

    /// Copies a file of at most `limit` bytes to a host path, replacing what is there only once the copy is whole. Returns its size.
    ///
    /// Whoever copies several counts: holes and hard links make any number of files, each as large as a file may be, of which the
    /// workspace holds but one or none.
    pub async fn copy_out(&self, path: &str, to: &Path, limit: u64) -> Result<u64, Error> {
        let (path, to) = (path.to_owned(), to.to_owned());
        self.blocking(move |workspace| {
            let (mut file, size) = workspace.open_file(&path)?;
            if size > limit {
                let reason = format!(
                    "its {size} bytes are more than the {limit} that are left: all files together may have sandbox.disk"
                );
                return Err(SandboxError::File { path, reason }.into());
            }
            // The file may grow while it is copied; what was announced is what is taken.
            let mut source = io::Read::take(&mut file, size);
            copy_whole(&mut source, &to).map_err(|source| Error::Io { path: to.clone(), source })
        })
        .await
    }

    /// Ends the sandbox and removes the workspace.
    pub async fn close(self) -> Result<(), Error> {
        let state = std::mem::replace(&mut *self.0.state.lock().await, Life::Closed);
        if let Life::Open { sandbox: Some(sandbox), .. } = state {
            sandbox.close().await;
        }
        Ok(())
    }

    /// Bytes of memory in use and at most so far, as far as the host counts them; zeros without a sandbox.
    pub async fn memory(&self) -> (u64, u64) {
        match &*self.0.state.lock().await {
            Life::Open { sandbox: Some(sandbox), .. } => sandbox.memory().await,
            Life::Open { sandbox: None, .. } | Life::Closed => (0, 0),
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Workspace) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let workspace = match &*self.0.state.lock().await {
            Life::Open { workspace, .. } => Arc::clone(workspace),
            Life::Closed => return Err(self.closed()),
        };
        tokio::task::spawn_blocking(move || work(&workspace))
            .await
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }

    fn closed(&self) -> Error {
        Error::Closed(self.0.id.clone())
    }
}

/// Writes a file under a temporary name beside the target, then renames it.
fn copy_whole(source: &mut impl io::Read, to: &Path) -> io::Result<u64> {
    let name = to.file_name().ok_or_else(|| io::Error::other("not a file name"))?;
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(format!(".{}.part", std::process::id()));
    let temporary = to.with_file_name(temporary_name);
    let written = File::create(&temporary).and_then(|mut file| io::copy(source, &mut file));
    let moved = written.and_then(|size| std::fs::rename(&temporary, to).map(|()| size));
    if moved.is_err() {
        // The error that matters is the one above.
        let _cleaned = std::fs::remove_file(&temporary);
    }
    moved
}

/// Sortable by time, unique within and across processes of one host.
fn new_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!(
        "ses_{:012x}{:08x}{:04x}",
        now.as_millis(),
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed) & 0xffff
    )
}
