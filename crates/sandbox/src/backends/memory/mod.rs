//! The memory backend: scripted kernels in this process, for the tests of everything above.
//!
//! It needs no namespace, template, port or clock. A [`Script`] decides what a program does; time, output and interrupts are enforced by
//! the same driver as on other backends.

mod commands;
mod kernel;
mod script;
mod workspace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aludel_ignore::Ignore;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::kernel::{Kernels, MemoryLink};
pub use self::script::{ScriptedCell, simple};
use self::workspace::MemoryWorkspace;
use super::registry::{Registration, Registry};
use crate::backend::{Backend, BackendStatus, Capabilities, Health, Sandbox, SandboxSpec, Usage};
use crate::driver::Driver;
use crate::execution::Execution;
use crate::kernel::{Cell, Kernel, KernelOptions};
use crate::process::{Command, Process};
use crate::{Error, KernelSpec, Limits, SandboxId, Workspace};

/// The behaviour of programs: a function of a cell's code that calls methods of the [`ScriptedCell`].
pub type Script = dyn Fn(&str, &mut ScriptedCell) + Send + Sync;

/// The memory backend. Cheap to clone; clones share everything.
#[derive(Debug, Clone)]
pub struct Memory(Arc<Inner>);

struct Inner {
    script: Arc<Script>,
    capabilities: Capabilities,
    registry: Arc<Registry<Kernels>>,
    /// Reason for which no sandbox can be made now.
    failure: Mutex<Option<String>>,
    /// Times that everything was lost.
    losses: AtomicU64,
    /// Reason for which no sandbox can be paused now.
    pause_failure: Mutex<Option<String>>,
    /// True while pauses and resumptions are not told to be over.
    is_held: watch::Sender<bool>,
    /// True if the ends of sandboxes are told too late.
    has_late_ends: AtomicBool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Inner").field("registry", &self.registry).finish_non_exhaustive()
    }
}

impl Default for Memory {
    /// A backend with the script [`simple`].
    fn default() -> Self {
        Self::new(simple)
    }
}

impl Memory {
    /// A backend with Python programs that behave as the script says.
    pub fn new(script: impl Fn(&str, &mut ScriptedCell) + Send + Sync + 'static) -> Self {
        Self::with_kernel(script, KernelSpec::python(""))
    }

    /// A backend with programs of this kernel's language that behave as the script says.
    pub fn with_kernel(script: impl Fn(&str, &mut ScriptedCell) + Send + Sync + 'static, kernel: KernelSpec) -> Self {
        Self::build(script, kernel, false)
    }

    /// A backend with commands, too: each reads and prints nothing, and runs until a signal or the end of its sandbox.
    pub fn with_commands(script: impl Fn(&str, &mut ScriptedCell) + Send + Sync + 'static) -> Self {
        Self::build(script, KernelSpec::python(""), true)
    }

    fn build(
        script: impl Fn(&str, &mut ScriptedCell) + Send + Sync + 'static,
        kernel: KernelSpec,
        processes: bool,
    ) -> Self {
        let kernel = KernelSpec { argv: Vec::new(), env: Vec::new(), scripts: Vec::new(), ..kernel };
        let capabilities = Capabilities {
            backend: "memory",
            languages: vec![Arc::new(kernel)],
            enforces_resources: false,
            enforces_disk: true,
            checkpoints: true,
            reports_refused_calls: false,
            kernels: true,
            processes,
            terminals: false,
            attach: false,
            pause: true,
            fork: false,
            connect: false,
            templates: Vec::new(),
        };
        Self(Arc::new(Inner {
            script: Arc::new(script),
            capabilities,
            registry: Arc::default(),
            failure: Mutex::default(),
            losses: AtomicU64::new(0),
            pause_failure: Mutex::default(),
            is_held: watch::Sender::new(false),
            has_late_ends: AtomicBool::new(false),
        }))
    }

    /// Makes every request for a sandbox fail from now on, for this reason; `None` ends that.
    pub fn fail(&self, reason: Option<&str>) {
        *self.0.failure.lock() = reason.map(str::to_owned);
    }

    /// Makes every pause fail from now on, for this reason; `None` ends that.
    pub fn fail_pauses(&self, reason: Option<&str>) {
        *self.0.pause_failure.lock() = reason.map(str::to_owned);
    }

    /// Holds back the ends of pauses and resumptions, whose effects are there at once; false ends that.
    pub fn hold_pauses(&self, is_held: bool) {
        self.0.is_held.send_replace(is_held);
    }

    /// Makes the end of every sandbox be told too late from now on.
    pub fn end_late(&self) {
        self.0.has_late_ends.store(true, Ordering::SeqCst);
    }

    /// Loses every sandbox and its workspace, as when a warden ends. New ones can be made at once.
    pub fn lose(&self) {
        self.0.losses.fetch_add(1, Ordering::SeqCst);
        for id in self.0.registry.list(None) {
            if let Some(kernels) = self.0.registry.end(&id) {
                kernels.kill_for_good();
            }
        }
    }

    fn make_sandbox(&self, id: SandboxId, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, Error> {
        // A script has no use for a profile.
        let SandboxSpec { limits, workspace, language, owner, profile: _, template } = spec;
        if template.is_some() {
            return Err(Error::NotSupported("several templates"));
        }
        let spec = Arc::clone(self.0.capabilities.kernel_of(language.as_deref())?);
        if limits.cpu_time.is_some() {
            return Err(Error::NotSupported("a limit of processor time"));
        }
        let losses = self.0.losses.load(Ordering::SeqCst);
        let workspace = match workspace {
            None => Arc::new(MemoryWorkspace::new(limits.disk, limits.files, losses)),
            Some(given) => MemoryWorkspace::of(given).ok_or(Error::NotSupported("the workspace of another backend"))?,
        };
        if workspace.losses() < losses {
            return Err(Error::WorkspaceLost);
        }
        if let Some(reason) = self.0.failure.lock().clone() {
            return Err(Error::Setup(reason));
        }
        let registration = Registry::register(&self.0.registry, id, owner)?;
        let kernels = Arc::new(Kernels::default());
        registration.bind(&kernels)?;
        let link = kernels.start(&self.0.script, &workspace, limits.kernels.max(1))?;
        let kernel = Arc::new(Driver::new(link, Arc::clone(&workspace) as _, limits));
        let backend = Arc::clone(&self.0);
        Ok(Arc::new(MemorySandbox { kernel, spec, backend, files: workspace, kernels, registration }))
    }
}

impl Inner {
    /// Waits until nothing is held back.
    async fn released(&self) -> Result<(), Error> {
        self.is_held.subscribe().wait_for(|is_held| !is_held).await.ignore("the sender is a field of this backend");
        Ok(())
    }
}

impl Backend for Memory {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn create(&self, id: SandboxId, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Sandbox>, Error>> {
        Box::pin(async move { self.make_sandbox(id, spec) })
    }

    fn destroy<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if let Some(kernels) = self.0.registry.end(id) {
                kernels.destroy().await;
            }
            Ok(())
        })
    }

    fn list<'a>(&'a self, owner: Option<&'a str>) -> BoxFuture<'a, Result<Vec<SandboxId>, Error>> {
        Box::pin(async move { Ok(self.0.registry.list(owner)) })
    }

    fn health(&self) -> Health {
        let status =
            self.0.failure.lock().clone().map_or(BackendStatus::Ready, |reason| BackendStatus::Degraded { reason });
        Health { status, pooled: 0 }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.fail(Some("the backend was shut down"));
            self.lose();
        })
    }
}

/// A sandbox with scripted kernels.
struct MemorySandbox {
    kernel: Arc<Driver<MemoryLink>>,
    spec: Arc<KernelSpec>,
    backend: Arc<Inner>,
    files: Arc<MemoryWorkspace>,
    kernels: Arc<Kernels>,
    registration: Registration<Kernels>,
}

impl std::fmt::Debug for MemorySandbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("MemorySandbox").field("registration", &self.registration).finish_non_exhaustive()
    }
}

impl Sandbox for MemorySandbox {
    fn id(&self) -> &SandboxId {
        self.registration.id()
    }

    fn limits(&self) -> &Limits {
        self.kernel.limits()
    }

    fn kernel(&self) -> &Arc<KernelSpec> {
        &self.spec
    }

    fn workspace(&self) -> &Arc<dyn Workspace> {
        self.kernel.workspace()
    }

    fn is_alive(&self) -> bool {
        self.kernel.is_alive() && !self.kernels.is_destroyed()
    }

    fn execute<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Execution, Error>> {
        Box::pin(self.kernel.execute(Cell::new(code)))
    }

    fn first_kernel(&self) -> Arc<dyn Kernel> {
        Arc::clone(&self.kernel) as _
    }

    fn start_kernel(&self, options: KernelOptions) -> BoxFuture<'_, Result<Arc<dyn Kernel>, Error>> {
        Box::pin(async move {
            let link = self.kernels.start(&self.backend.script, &self.files, self.limits().kernels)?;
            let kernel = Driver::new(link, Arc::clone(self.workspace()), self.limits().clone());
            kernel.configure(&options).await?;
            Ok(Arc::new(kernel) as _)
        })
    }

    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Process, Error>> {
        drop(command);
        let started = match self.backend.capabilities.processes {
            true => self.kernels.start_command(),
            false => Err(Error::NotSupported("commands")),
        };
        Box::pin(std::future::ready(started))
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), Error>> {
        if let Some(reason) = self.backend.pause_failure.lock().clone() {
            return Box::pin(std::future::ready(Err(Error::Setup(reason))));
        }
        self.kernels.pause(true);
        Box::pin(self.backend.released())
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.kernels.pause(false);
        Box::pin(self.backend.released())
    }

    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(std::future::ready(Usage::default()))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.kernels.destroy().await;
            if self.backend.has_late_ends.load(Ordering::SeqCst) {
                return Err(Error::Timeout { what: "end of the sandbox", limit: Duration::ZERO });
            }
            Ok(())
        })
    }
}

impl Drop for MemorySandbox {
    fn drop(&mut self) {
        self.kernels.kill_for_good();
    }
}
