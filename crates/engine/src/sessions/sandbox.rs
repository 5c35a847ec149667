//! The sandbox of a session, with its workspace.

use std::io::{Read, Take};
use std::sync::Arc;

use aludel_agent::{Runtime, RuntimeError};
use aludel_sandbox::template::TemplateName;
use aludel_sandbox::{
    Backend, Cell, Execution, FileEntry, KernelOptions, KernelSpec, Limits, Sandbox, SandboxId, SandboxSpec, Usage,
    Workspace, WorkspaceListing,
};
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;

use crate::meter::Account;
use crate::meter::Leftovers;
use crate::{Environment, Error};

/// A workspace with a sandbox. If the kernel dies, the next execution starts a new one on the same files. Cheap to clone; clones share
/// everything.
#[derive(Debug, Clone)]
pub struct SessionSandbox(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: Limits,
    template: Option<TemplateName>,
    backend: Arc<dyn Backend>,
    account: Option<Account>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Files, and a sandbox that lives or has died since its last use.
    Open {
        workspace: Arc<dyn Workspace>,
        sandbox: Option<Live>,
        /// Variables of every kernel.
        environment: Environment,
    },
    Closed,
}

/// A sandbox, and the processes that programs leave in it.
#[derive(Debug, Clone)]
struct Live {
    sandbox: Arc<dyn Sandbox>,
    /// `None` where no work is counted.
    leftovers: Option<Arc<Leftovers>>,
}

impl Live {
    fn new(sandbox: Arc<dyn Sandbox>, account: Option<&Account>) -> Self {
        let leftovers = account.map(|account| Arc::new(Leftovers::new(Arc::clone(&sandbox), account.clone())));
        Self { sandbox, leftovers }
    }

    /// Ends it. If that takes too long, it continues in the background.
    async fn end(self) {
        if let Some(leftovers) = &self.leftovers {
            leftovers.count().await;
        }
        if let Err(error) = self.sandbox.close().await {
            tracing::warn!(sandbox = %self.sandbox.id(), error = %error, "a sandbox did not end in time");
        }
    }
}

impl SessionSandbox {
    /// Opens an empty workspace with a ready kernel; without a template, from the usual one. With an account, processor time is counted
    /// that processes use after the program that left them.
    pub async fn create(
        account: Option<Account>,
        backend: Arc<dyn Backend>,
        limits: Limits,
        template: Option<TemplateName>,
        environment: Environment,
    ) -> Result<Self, Error> {
        let spec = SandboxSpec { template: template.clone(), ..SandboxSpec::new(limits.clone()) };
        let sandbox = backend.create(SandboxId::unique(), spec).await?;
        equip(&*sandbox, &environment).await?;
        let workspace = Arc::clone(sandbox.workspace());
        let sandbox = Some(Live::new(sandbox, account.as_ref()));
        let state = Mutex::new(State::Open { workspace, sandbox, environment });
        Ok(Self(Arc::new(Inner { limits, template, backend, account, state })))
    }

    /// Returns true if the other value is a clone of this.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The limits of every execution.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Runs one cell. Executions of a session run one at a time; the next waits here. A kernel that died is replaced first, unless the
    /// workspace was lost with it. Dropping the returned [`Execution`] interrupts the program.
    pub async fn execute<'a>(&self, cell: impl Into<Cell<'a>>) -> Result<Execution, Error> {
        let cell = cell.into();
        let mut tries = 0;
        loop {
            // The lock is released before the wait for the kernel: access to files needs it too.
            let Live { sandbox, leftovers } = self.live_sandbox().await?;
            match sandbox.first_kernel().execute(cell).await {
                // It died between two uses; nothing of this code ran.
                Err(aludel_sandbox::Error::KernelGone(_)) if tries < 2 => tries += 1,
                result => return Ok(result?.holding(leftovers.map(|leftovers| leftovers.attend()))),
            }
        }
    }

    /// Sets options for later cells of this kernel.
    pub async fn configure(&self, options: &KernelOptions) -> Result<(), Error> {
        Ok(self.live_sandbox().await?.sandbox.first_kernel().configure(options).await?)
    }

    /// Sets the environment variables of this kernel, once no cell runs in it, and of later ones.
    pub(super) async fn set_environment(&self, variables: Environment) -> Result<(), Error> {
        let live = match &mut *self.0.state.lock().await {
            State::Open { sandbox, environment, .. } => {
                *environment = variables.clone();
                sandbox.clone()
            }
            State::Closed => None,
        };
        // The lock is released before the wait for the kernel.
        match live {
            Some(live) => equip(&*live.sandbox, &variables).await.or_else(|error| match error {
                // The next kernel gets them.
                Error::Sandbox(aludel_sandbox::Error::KernelGone(_)) => Ok(()),
                error => Err(error),
            }),
            None => Ok(()),
        }
    }

    /// The session's sandbox, or a new one if it died.
    async fn live_sandbox(&self) -> Result<Live, Error> {
        let mut state = self.0.state.lock().await;
        let State::Open { workspace, sandbox, environment } = &mut *state else { return Err(closed()) };
        if let Some(live) = sandbox.as_ref().filter(|live| live.sandbox.is_alive()) {
            return Ok(live.clone());
        }
        if let Some(dead) = sandbox.take() {
            dead.end().await;
        }
        let spec = SandboxSpec::new(self.0.limits.clone()).with_workspace(Arc::clone(workspace));
        let spec = SandboxSpec { template: self.0.template.clone(), ..spec };
        let live = self.0.backend.create(SandboxId::unique(), spec).await?;
        equip(&*live, environment).await?;
        Ok(sandbox.insert(Live::new(live, self.0.account.as_ref())).clone())
    }

    /// Writes a file of this size under `name` (a plain file name or a relative path), replacing an existing one.
    pub async fn add_file(
        &self,
        name: &str,
        bytes: u64,
        mut source: impl Read + Send + 'static,
    ) -> Result<FileEntry, Error> {
        let (name, limit) = (name.to_owned(), self.0.limits.disk);
        self.blocking(move |workspace| Ok(workspace.add(&name, bytes, &mut source, limit)?)).await
    }

    /// Removes a file from the workspace. Success if it does not exist.
    pub async fn remove_file(&self, path: &str) -> Result<(), Error> {
        let path = path.to_owned();
        self.blocking(move |workspace| Ok(workspace.remove(&path)?)).await
    }

    /// All files of the workspace, by path.
    pub async fn files(&self) -> Result<Vec<FileEntry>, Error> {
        self.blocking(|workspace| Ok(workspace.files()?)).await
    }

    /// Lists all files of the workspace.
    pub(crate) async fn listing(&self) -> Result<WorkspaceListing, Error> {
        self.blocking(|workspace| Ok(workspace.listing()?)).await
    }

    /// Reads a file of at most `limit` bytes.
    pub async fn read_file(&self, path: &str, limit: u64) -> Result<Vec<u8>, Error> {
        let path = path.to_owned();
        self.blocking(move |workspace| Ok(workspace.read(&path, limit)?)).await
    }

    /// Opens a file of at most `limit` bytes for reading, and returns it with its size.
    ///
    /// Callers that copy several files must add up their sizes: with holes and hard links, many files of the full size can occupy little or
    /// nothing in the workspace.
    pub async fn open_file(&self, path: &str, limit: u64) -> Result<(impl Read + Send + use<>, u64), Error> {
        let path = path.to_owned();
        self.blocking(move |workspace| open_bounded(workspace, path, limit)).await
    }

    /// Ends the sandbox and removes the workspace. Does nothing if it is already closed.
    pub async fn close(&self) {
        let state = std::mem::replace(&mut *self.0.state.lock().await, State::Closed);
        if let State::Open { sandbox: Some(live), .. } = state {
            live.end().await;
        }
    }

    /// Memory in use now and at its peak, bytes, as counted by the host; zeros without a sandbox.
    pub async fn memory(&self) -> (u64, u64) {
        match &*self.0.state.lock().await {
            State::Open { sandbox: Some(live), .. } => {
                let Usage { memory, memory_peak, .. } = live.sandbox.usage().await;
                (memory, memory_peak)
            }
            State::Open { sandbox: None, .. } | State::Closed => (0, 0),
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Workspace) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.workspace().await?.blocking(work).await
    }

    /// The files, for work that outlives its caller.
    pub(super) async fn workspace(&self) -> Result<Arc<dyn Workspace>, Error> {
        match &*self.0.state.lock().await {
            State::Open { workspace, .. } => Ok(Arc::clone(workspace)),
            State::Closed => Err(closed()),
        }
    }
}

/// Opens a file of at most `limit` bytes. The file may grow, but only its announced size is read.
fn open_bounded(
    workspace: &dyn Workspace,
    path: String,
    limit: u64,
) -> Result<(Take<Box<dyn Read + Send>>, u64), Error> {
    let (file, size) = workspace.open(&path)?;
    if size > limit {
        let reason = format!(
            "its {size} bytes are more than the {limit} that are left: all files together may have sandbox.disk"
        );
        return Err(aludel_sandbox::Error::File { path, reason }.into());
    }
    Ok((file.take(size), size))
}

/// Gives a new kernel its environment variables.
async fn equip(sandbox: &dyn Sandbox, environment: &Environment) -> Result<(), Error> {
    if !environment.is_empty() {
        let options = KernelOptions { environment: environment.to_vec(), ..KernelOptions::default() };
        sandbox.first_kernel().configure(&options).await?;
    }
    Ok(())
}

fn closed() -> Error {
    Error::internal("the session was closed while it was in use")
}

impl Runtime for SessionSandbox {
    fn limits(&self) -> &Limits {
        SessionSandbox::limits(self)
    }

    fn kernel(&self) -> &KernelSpec {
        self.0.backend.capabilities().kernel()
    }

    fn files(&self) -> BoxFuture<'_, Vec<FileEntry>> {
        Box::pin(async move { SessionSandbox::files(self).await.unwrap_or_default() })
    }

    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, RuntimeError>> {
        Box::pin(async move { Ok(SessionSandbox::execute(self, cell).await?) })
    }
}
