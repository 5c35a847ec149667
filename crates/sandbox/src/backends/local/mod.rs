//! The local backend: a warden, its zygote, and a pool of ready sandboxes.

mod lazy_kernel;
mod link;
mod pool;
mod port;
mod process;
mod queue;
mod sandbox;
mod slots;
mod supervisor;
mod terminal;
mod warden_client;
mod workspace;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aludel_ignore::Ignore;
pub use aludel_jail::message::KernelStart;
use aludel_jail::message::{self, JailSpec, Setup, WardenRequest};
use futures_util::future::BoxFuture;

use self::lazy_kernel::LazyKernel;
use self::link::LocalLink;
use self::pool::LocalPool;
use self::queue::CreationQueues;
use self::sandbox::LocalSandbox;
use self::slots::Slots;
use self::supervisor::Supervisor;
use self::warden_client::{KernelHandle, MAX_SILENCE, PendingRequest, SandboxHandle, WardenClient};
use self::workspace::{LocalWorkspace, Mount};
use super::registry::{Registration, Registry};
use super::streams::Streams;
use crate::backend::{Backend, BackendStatus, Capabilities, Health, Profile, Sandbox, SandboxSpec};
use crate::driver::Driver;
use crate::frame::ToKernel;
use crate::{Error, KernelSpec, Limits, SandboxId, Template, Workspace};

/// The longest that making a sandbox may take.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest that making a workspace may take.
const WORKSPACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Inodes of a sandbox's `/tmp` and `/dev/shm` together; without a limit, empty files use memory that is not counted.
const TMP_INODES: u64 = 32 << 10;
/// The error for a workspace that is none of ours.
const FOREIGN: Error = Error::NotSupported("the workspace of another backend");

/// Settings of the local backend: [`LocalConfig::new`] with changes.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The data directory; instances live under `run` in it.
    pub data: PathBuf,
    /// The template that sandboxes start from.
    pub template: Template,
    /// The limits of pooled sandboxes, and the default for others.
    pub limits: Limits,
    /// The number of sandboxes kept ready; 0 makes each on request.
    pub pool: usize,
    /// The isolation that must be enforceable.
    pub require: Require,
    /// The way to start kernels.
    pub start: KernelStart,
}

impl LocalConfig {
    /// The usual limits, no pool, and missing protections reported instead of refused.
    pub fn new(data: impl Into<PathBuf>, template: Template) -> Self {
        let (limits, require, start) = (Limits::default(), Require::Default, KernelStart::Fork);
        Self { data: data.into(), template, limits, pool: 0, require, start }
    }
}

/// The isolation that the host must be able to enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Require {
    /// Missing parts are in [`Local::warnings`].
    Default,
    /// A missing part is an error.
    Strict,
}

/// The local backend. Cheap to clone; dropping the last clone ends everything.
#[derive(Debug, Clone)]
pub struct Local(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    pool: Arc<LocalPool>,
    queues: CreationQueues,
    registry: Arc<Registry<SandboxHandle>>,
    capabilities: Capabilities,
    warnings: Vec<String>,
    /// Its lock is on the root, which sandboxes see: one that took the lock would keep the template from all other users.
    _template: Template,
}

/// The part of the backend that sandboxes use. They do not keep the backend alive.
#[derive(Debug)]
struct Shared {
    supervisor: Arc<Supervisor>,
    slots: Slots,
    start: KernelStart,
}

impl Local {
    /// Removes what dead instances left, then starts the warden and the zygote; takes about as long as importing pandas.
    pub async fn start(config: LocalConfig) -> Result<Self, Error> {
        Self::start_with(config, false, MAX_SILENCE).await
    }

    /// Like [`Local::start`], but lists every system call of every program, allowed or not, in [`crate::Finished::refused_calls`]: for
    /// finding out which programs need an allowed call. Programs run slowly.
    pub async fn start_observing(config: LocalConfig) -> Result<Self, Error> {
        Self::start_with(config, true, MAX_SILENCE).await
    }

    /// Like [`Local::start`], but replaces a warden that is silent for this time. For tests.
    #[doc(hidden)]
    pub async fn start_impatient(config: LocalConfig, max_silence: Duration) -> Result<Self, Error> {
        Self::start_with(config, false, max_silence).await
    }

    /// Ends everything, and blocks until nothing of it is left: [`Backend::shutdown`] for callers outside of a runtime.
    pub fn shutdown_blocking(&self) {
        self.0.pool.end();
        self.0.shared.supervisor.end();
        self.0.shared.supervisor.wait();
    }

    async fn start_with(config: LocalConfig, observe: bool, max_silence: Duration) -> Result<Self, Error> {
        let LocalConfig { data, template, limits, pool, require, start } = config;
        let root = template.root().to_path_buf();
        let kernel = Arc::clone(template.kernel());
        let KernelSpec { argv, env, scripts, checkpoints, .. } = (*kernel).clone();
        let setup = Setup { root, argv, environment: env, scripts, instance: PathBuf::new(), observe };
        let settings = supervisor::WardenSettings { run: data.join("run"), setup, require, max_silence };
        let started = tokio::task::spawn_blocking(move || Supervisor::start(settings)).await;
        let (supervisor, warnings) = started.map_err(|error| Error::Setup(error.to_string()))??;
        let shared = Arc::new(Shared { supervisor, slots: Slots::default(), start });
        let pool = LocalPool::start(pool, limits, &shared);
        let capabilities = Capabilities {
            backend: "local",
            languages: vec![kernel],
            enforces_resources: true,
            enforces_disk: true,
            checkpoints,
            reports_refused_calls: true,
            kernels: true,
            processes: true,
            terminals: true,
            attach: false,
            pause: true,
            fork: false,
            connect: true,
            templates: Vec::new(),
        };
        let registry = Arc::default();
        let queues = CreationQueues::default();
        let inner = Inner { shared, pool, queues, registry, capabilities, warnings, _template: template };
        Ok(Self(Arc::new(inner)))
    }

    /// Returns the protections that the host cannot enforce, as texts to show at the start.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    async fn make_sandbox(&self, id: SandboxId, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, Error> {
        let SandboxSpec { limits, workspace, language, owner, profile, template } = spec;
        if template.is_some() {
            return Err(Error::NotSupported("several templates"));
        }
        let Inner { shared, pool, queues, registry, capabilities, .. } = &*self.0;
        let kernel = Arc::clone(capabilities.kernel_of(language.as_deref())?);
        let registration = Registry::register(registry, id, owner.clone())?;
        let _next = match profile {
            Profile::Services => queues.next(owner.as_deref()).await,
            Profile::Data => None,
        };
        let is_usual = workspace.is_none() && profile == Profile::Data;
        let pooled = if is_usual { pool.take(&limits) } else { None };
        let made = match pooled {
            Some(made) => {
                registration.bind(made.handle())?;
                made
            }
            None => {
                let made = match workspace {
                    Some(workspace) => shared.make_on(workspace, &registration, limits, profile).await,
                    None => shared.make_anywhere(&registration, limits, profile).await,
                };
                pool.note(made.as_ref().err());
                made?
            }
        };
        Ok(Arc::new(LocalSandbox::new(registration, made, kernel, profile)))
    }
}

impl Backend for Local {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn create(&self, id: SandboxId, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Sandbox>, Error>> {
        Box::pin(self.make_sandbox(id, spec))
    }

    fn destroy<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            match self.0.registry.end(id) {
                Some(handle) => handle.destroy().await,
                None => Ok(()),
            }
        })
    }

    fn list<'a>(&'a self, owner: Option<&'a str>) -> BoxFuture<'a, Result<Vec<SandboxId>, Error>> {
        Box::pin(async move { Ok(self.0.registry.list(owner)) })
    }

    fn health(&self) -> Health {
        let Inner { shared, pool, .. } = &*self.0;
        let failure = shared.supervisor.failure().or_else(|| pool.failure());
        let status = failure.map_or(BackendStatus::Ready, |reason| BackendStatus::Degraded { reason });
        Health { status, pooled: pool.ready() }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let shared = Arc::clone(&self.0.shared);
            self.0.pool.end();
            shared.supervisor.end();
            tokio::task::spawn_blocking(move || shared.supervisor.wait())
                .await
                .ignore("the thread may outlive a runtime that ends, and the warden finishes in any case");
            self.0.pool.ended().await;
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.pool.end();
        // The supervisor's thread holds the rest until the warden has ended.
        self.shared.supervisor.end();
    }
}

impl Shared {
    /// Makes a sandbox with this id on an empty workspace, and tries once more if the warden ends meanwhile.
    async fn make_anywhere(
        &self,
        registration: &Registration<SandboxHandle>,
        limits: Limits,
        profile: Profile,
    ) -> Result<Arc<LazyKernel>, Error> {
        let client = self.supervisor.client().await?;
        match self.make_at(&client, registration, limits.clone(), profile, None).await {
            Err(Error::Over(_)) => {
                let next = self.supervisor.client_after(&client).await?;
                self.make_at(&next, registration, limits, profile, None).await
            }
            made => made,
        }
    }

    /// Makes a sandbox with this id on a workspace, which only its own warden can use.
    async fn make_on(
        &self,
        workspace: Arc<dyn Workspace>,
        registration: &Registration<SandboxHandle>,
        limits: Limits,
        profile: Profile,
    ) -> Result<Arc<LazyKernel>, Error> {
        let client = Arc::clone(LocalWorkspace::of(&workspace).ok_or(FOREIGN)?.mount().client());
        match self.make_at(&client, registration, limits, profile, Some(workspace)).await {
            Err(Error::Over(_)) => Err(Error::WorkspaceLost),
            made => made,
        }
    }

    async fn make_at(
        &self,
        client: &Arc<WardenClient>,
        registration: &Registration<SandboxHandle>,
        limits: Limits,
        profile: Profile,
        workspace: Option<Arc<dyn Workspace>>,
    ) -> Result<Arc<LazyKernel>, Error> {
        // Made before any request: from here on, giving up drops the handle, which destroys the sandbox.
        let handle = Arc::new(SandboxHandle::new(client)?);
        registration.bind(&handle)?;
        match self.prepare_kernel(handle, limits, profile, workspace).await {
            // A kernel that ended may have ended with its warden.
            Err(Error::Setup(_) | Error::KernelGone(_)) if client.is_over().await => Err(client.over()),
            made => made,
        }
    }

    async fn prepare_kernel(
        &self,
        handle: Arc<SandboxHandle>,
        limits: Limits,
        profile: Profile,
        workspace: Option<Arc<dyn Workspace>>,
    ) -> Result<Arc<LazyKernel>, Error> {
        let client = handle.client();
        // Requested together with the sandbox on it.
        let opening = match &workspace {
            Some(_) => None,
            None => Some(self.open_workspace(client, &limits)?),
        };
        let (slot, id) = match (&opening, &workspace) {
            (Some(PendingWorkspace { mount, .. }), _) => (mount.slot(), mount.id()),
            (None, Some(workspace)) => {
                let mount = LocalWorkspace::of(workspace).ok_or(FOREIGN)?.mount();
                (mount.slot(), mount.id())
            }
            (None, None) => return Err(FOREIGN),
        };
        let start = match profile {
            Profile::Data => Some(self.start),
            Profile::Services => None,
        };
        let spec = JailSpec { start, slot, workspace: id, limits: jail_limits(&limits), profile };
        let request = WardenRequest::Create { id: handle.id(), spec };
        let starting = match start {
            Some(_) => {
                let kernel = PendingKernel::begin(&handle, handle.first_kernel()?, request)?;
                PendingSandbox::WithKernel(Box::new(kernel))
            }
            None => PendingSandbox::Bare(client.begin(request, Vec::new())?),
        };
        let workspace: Arc<dyn Workspace> = match (opening, workspace) {
            (Some(opening), _) => Arc::new(opening.opened(client).await?),
            (None, workspace) => workspace.ok_or(FOREIGN)?,
        };
        let driver = match starting {
            PendingSandbox::WithKernel(kernel) => Some(kernel.driver(&workspace, &limits).await?),
            PendingSandbox::Bare(asked) => {
                asked.answer("sandbox", CREATE_TIMEOUT).await?;
                // A request to end it that came before this one was answered that there is no such sandbox.
                handle.check()?;
                None
            }
        };
        client.note_made_sandbox();
        Ok(Arc::new(LazyKernel::new(Arc::clone(&handle), self.start, workspace, limits, driver)))
    }

    fn open_workspace<'a>(
        &self,
        client: &'a Arc<WardenClient>,
        limits: &Limits,
    ) -> Result<PendingWorkspace<'a>, Error> {
        let mount = Mount::new(client, self.slots.take().ok_or(Error::Full)?);
        let request = WardenRequest::OpenWorkspace {
            workspace: mount.id(),
            slot: mount.slot(),
            bytes: limits.disk,
            inodes: limits.files,
        };
        Ok(PendingWorkspace { asked: client.begin(request, Vec::new())?, mount })
    }
}

/// A workspace that was asked for.
struct PendingWorkspace<'a> {
    mount: Mount,
    asked: PendingRequest<'a>,
}

impl PendingWorkspace<'_> {
    async fn opened(self, client: &WardenClient) -> Result<LocalWorkspace, Error> {
        let (_, descriptors) = self.asked.answer("workspace", WORKSPACE_TIMEOUT).await?;
        let root = descriptors.into_iter().next();
        let root = root.ok_or_else(|| Error::Setup("the workspace came without its root".into()))?;
        Ok(LocalWorkspace::new(root, client.owner_of(self.mount.slot()), self.mount))
    }
}

/// A sandbox that was asked for.
enum PendingSandbox<'a> {
    WithKernel(Box<PendingKernel<'a>>),
    Bare(PendingRequest<'a>),
}

/// A kernel that was asked for.
struct PendingKernel<'a> {
    handle: KernelHandle,
    streams: Streams,
    asked: PendingRequest<'a>,
}

impl<'a> PendingKernel<'a> {
    /// Asks for a kernel by this request.
    fn begin(sandbox: &'a SandboxHandle, handle: KernelHandle, request: WardenRequest) -> Result<Self, Error> {
        let (streams, theirs) = Streams::pair(sandbox.touched().clone())?;
        sandbox.check()?;
        let asked = sandbox.client().begin(request, theirs.into())?;
        Ok(Self { handle, streams, asked })
    }

    /// Waits until the kernel is ready.
    async fn driver(self, workspace: &Arc<dyn Workspace>, limits: &Limits) -> Result<Driver<LocalLink>, Error> {
        let Self { handle, mut streams, asked } = self;
        let threads = limits.threads();
        let hard = !handle.sandbox().client().memory_is_bounded();
        let start = ToKernel::Start { memory: limits.memory, threads, hard, checkpoints: handle.keeps_checkpoint() };
        // Waits in the pipe until the kernel reads it. If there is no kernel, its answer gives the reason.
        let sent = streams.send(&start).await;
        asked.answer("sandbox", CREATE_TIMEOUT).await?;
        // A request to end it that came before this one was answered that there is no such sandbox.
        handle.sandbox().check()?;
        sent.map_err(|error| Error::KernelGone(error.to_string()))?;
        streams.ready(CREATE_TIMEOUT).await?;
        let link = LocalLink { handle: Arc::new(handle), streams };
        Ok(Driver::new(link, Arc::clone(workspace), limits.clone()))
    }
}

fn jail_limits(limits: &Limits) -> message::JailLimits {
    message::JailLimits {
        memory: limits.memory,
        processes: limits.processes,
        millicpus: (limits.cpus * 1000.0) as u32,
        tmp: limits.tmp,
        tmp_inodes: TMP_INODES,
        file_size: limits.file_size,
        open_files: limits.open_files,
    }
}
