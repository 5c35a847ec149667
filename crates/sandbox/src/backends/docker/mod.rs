//! The docker backend: each sandbox is a container of an engine, Docker's or Podman's, and its files are a volume in memory that a second
//! container serves.

mod container;
mod engine;
mod leftovers;
mod link;
mod mux;
mod workspace;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, MountVolumeOptions, ResourcesUlimits,
};
use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};
use tokio_util::bytes::Bytes;
use tokio_util::sync::CancellationToken;

use self::container::{Container, Volume, over};
use self::engine::Engine;
use self::leftovers::Instance;
use self::link::DockerLink;
use self::mux::Mux;
use self::workspace::DockerWorkspace;
use super::registry::{Registration, Registry};
use crate::backend::{Backend, Capabilities, Health, Profile, Sandbox, SandboxId, SandboxSpec, Status, Usage};
use crate::driver::{Driver, Execution};
use crate::frame::ToKernel;
use crate::kernel::{Cell, Kernel, KernelOptions};
use crate::{Error, KernelSpec, Limits, Workspace};

/// The image of the default template.
pub const DEFAULT_IMAGE: &str = "aludel/default:latest";
/// The user and group of every process in a container.
const USER: u32 = 10_000;
/// The longest that a container may take to import what kernels need.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Memory of the container that serves files, beside the files, bytes.
const SERVER_MEMORY: u64 = 64 << 20;
/// Inodes of `/tmp`; without a bound, empty files use up memory that no limit counts.
const TMP_INODES: u64 = 32 << 10;
/// Bytes of the kernel's programs at most.
const PROGRAMS_BYTES: u64 = 1 << 20;
/// Runs the program that stdin begins with.
const BOOTSTRAP: &str = "import os,struct\ndef r(n):\n b=b''\n while len(b)<n:\n  p=os.read(0,n-len(b))\n  if not p: os._exit(0)\n  b+=p\n return b\nexec(compile(r(struct.unpack('>I',r(4))[0]),'aludel','exec'))";
const CONTAINER_PROGRAM: &str = include_str!("../../../kernel/container.py");
const WORKSPACE_PROGRAM: &str = include_str!("../../../kernel/workspace.py");

/// Settings of the docker backend.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// The data directory; instances are noted under `docker` in it.
    pub data: PathBuf,
    /// The engine's socket, as `unix:///PATH`; `None` for the one of the environment or the usual places.
    pub host: Option<String>,
    /// The image of sandboxes, which has Python and IPython.
    pub image: String,
    /// The runtime of containers, by the name that the engine knows, for example `runsc`; `None` for the engine's own.
    pub runtime: Option<String>,
}

/// The docker backend. Cheap to clone; the last clone that is dropped ends everything.
#[derive(Debug, Clone)]
pub struct Docker(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Arc<Engine>,
    instance: Instance,
    image: String,
    runtime: Option<String>,
    registry: Arc<Registry<Shell>>,
    capabilities: Capabilities,
    end: CancellationToken,
    /// Everything that is there holds a sender; none is left when all is gone.
    alive: watch::Sender<()>,
    next: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Docker {
    /// Returns the engine that answers at this host, or the reason why none does.
    pub async fn probe(host: Option<&str>) -> Result<String, Error> {
        Ok(Engine::connect(host, String::new()).await?.version)
    }

    /// Connects to the engine, removes what dead instances left and makes sure that the image is there. `told` hears of the progress.
    pub async fn start(config: DockerConfig, told: &mut (dyn FnMut(&str) + Send)) -> Result<Self, Error> {
        let DockerConfig { data, host, image, runtime } = config;
        let directory = data.join("docker");
        let instance = Instance::new(&directory)?;
        let engine = Engine::connect(host.as_deref(), instance.id.clone()).await?;
        leftovers::remove(&directory, &engine, &instance.id).await;
        engine.prepare_image(&image, told).await?;
        let kernel = Arc::new(KernelSpec::python("python3"));
        let capabilities = Capabilities {
            backend: "docker",
            checkpoints: kernel.checkpoints,
            languages: vec![kernel],
            enforces_resources: engine.enforces_resources,
            enforces_disk: true,
            reports_blocked: false,
            kernels: true,
            processes: false,
            terminals: false,
            attach: false,
            pause: true,
            fork: false,
            connect: false,
        };
        Ok(Self(Arc::new(Inner {
            engine: Arc::new(engine),
            instance,
            image,
            runtime,
            registry: Arc::default(),
            capabilities,
            end: CancellationToken::new(),
            alive: watch::Sender::new(()),
            next: AtomicU64::new(1),
            failure: Mutex::default(),
        })))
    }

    /// The engine and its version.
    pub fn engine(&self) -> &str {
        &self.0.engine.version
    }

    /// Returns the names of what this instance has in the engine: its containers and volumes.
    pub async fn left(&self) -> Result<Vec<String>, Error> {
        self.0.engine.names_of(&self.0.instance.id).await
    }

    /// Returns the parts of the isolation that the engine cannot enforce, in words.
    pub fn warnings(&self) -> Vec<String> {
        let enforces = self.0.engine.enforces_resources;
        let missing =
            "the container engine does not enforce memory or processes (rootless without delegated control groups)";
        if enforces { Vec::new() } else { vec![missing.to_owned()] }
    }
}

impl Inner {
    fn container(&self, kind: &str) -> Container {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Container::new(format!("aludel-{}-{number}{kind}", self.instance.id), &self.end)
    }

    async fn make(&self, id: SandboxId, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, Error> {
        let SandboxSpec { limits, workspace, language, owner, profile } = spec;
        let kernel = Arc::clone(self.capabilities.kernel_of(language.as_deref())?);
        if profile == Profile::Services {
            return Err(Error::NotSupported("services in a sandbox (sandbox.backend = \"docker\")"));
        }
        let registration = Registry::register(&self.registry, id, owner)?;
        let (container, alive) = (self.container(""), self.alive.subscribe());
        let shell = Arc::new(Shell::new(container, Arc::clone(&self.engine)));
        registration.bind(&shell)?;
        let ended = shell.container.end().clone();
        let made = tokio::select! {
            made = self.make_for(&shell, workspace, &kernel, &limits, alive) => made,
            () = ended.cancelled() => Err(over()),
        };
        let (mux, workspace, link) = match made {
            Ok(made) => made,
            Err(error) => {
                shell.container.remove().await;
                return Err(error);
            }
        };
        let first = Arc::new(Driver::new(link, workspace, limits));
        Ok(Arc::new(DockerSandbox { first, spec: kernel, shell, mux, kernels: AtomicU32::new(1), registration }))
    }

    async fn make_for(
        &self,
        shell: &Arc<Shell>,
        workspace: Option<Arc<dyn Workspace>>,
        kernel: &KernelSpec,
        limits: &Limits,
        alive: watch::Receiver<()>,
    ) -> Result<(Arc<Mux>, Arc<dyn Workspace>, DockerLink), Error> {
        let workspace = match workspace {
            Some(workspace) => workspace,
            None => Arc::new(self.new_workspace(limits).await?),
        };
        let foreign = Error::NotSupported("the workspace of another backend");
        let files = DockerWorkspace::of(&workspace, &self.instance.id).ok_or(foreign)?;
        if files.is_lost() {
            return Err(Error::WorkspaceLost);
        }
        let body = self.body(kernel, limits, files.volume());
        let started = shell.container.start(&self.engine, body, None, (Arc::clone(&workspace), alive));
        let attached = started.await.map_err(|_| over())??;
        let programs: HashMap<_, _> = kernel.programs.iter().map(|(name, text)| (name, text)).collect();
        let programs = serde_json::to_vec(&programs).map_err(|error| Error::Setup(error.to_string()))?;
        let first = vec![framed(CONTAINER_PROGRAM.as_bytes()), framed(&programs)];
        let mux = Mux::start(attached, first, shell.container.end());
        mux.ready(READY_TIMEOUT).await?;
        let link = start_kernel(shell, &mux, 1, kernel.checkpoints, limits, self.engine.enforces_resources).await?;
        Ok((mux, workspace, link))
    }

    /// Makes an empty workspace.
    async fn new_workspace(&self, limits: &Limits) -> Result<DockerWorkspace, Error> {
        let container = self.container("-files");
        let volume = container.name().to_owned();
        let options = HashMap::from([
            ("type".to_owned(), "tmpfs".to_owned()),
            ("device".to_owned(), "tmpfs".to_owned()),
            (
                "o".to_owned(),
                format!("size={},nr_inodes={},mode=0755,uid={USER},gid={USER},nosuid,nodev", limits.disk, limits.files),
            ),
        ]);
        let (made, is_made) = oneshot::channel();
        let body = self.files_body(&volume, limits);
        let needed = Volume { name: volume.clone(), options, made };
        let started = container.start(&self.engine, body, Some(needed), self.alive.subscribe());
        is_made.await.map_err(|_| over())??;
        let attached = started.await.map_err(|_| over())??;
        let first = vec![framed(WORKSPACE_PROGRAM.as_bytes())];
        let workspace = DockerWorkspace::new(container, attached, first, volume, self.instance.id.clone(), limits);
        let workspace = Arc::new(workspace);
        let waiting = Arc::clone(&workspace);
        let ready = tokio::task::spawn_blocking(move || waiting.ready()).await;
        ready.map_err(|error| Error::Setup(error.to_string()))??;
        Arc::into_inner(workspace).ok_or_else(over)
    }

    /// A container without network, capabilities, a writable root or a way to get more rights.
    fn bare(&self, volume: &str, memory: u64, processes: i64) -> ContainerCreateBody {
        let memory = i64::try_from(memory).unwrap_or(i64::MAX);
        let none = HostConfigLogConfig { typ: Some("none".to_owned()), config: None };
        let files = Mount {
            target: Some("/mnt/data".to_owned()),
            source: Some(volume.to_owned()),
            typ: Some(MountType::VOLUME),
            // The engine would give it the owner of the image's directory.
            volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
            ..Mount::default()
        };
        let host_config = HostConfig {
            auto_remove: Some(true),
            network_mode: Some("none".to_owned()),
            ipc_mode: Some("private".to_owned()),
            readonly_rootfs: Some(true),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            log_config: Some(none),
            memory: Some(memory),
            // No swap: the same figure for both together.
            memory_swap: Some(memory),
            pids_limit: Some(processes),
            runtime: self.runtime.clone(),
            mounts: Some(vec![files]),
            ..HostConfig::default()
        };
        ContainerCreateBody {
            image: Some(self.image.clone()),
            user: Some(format!("{USER}:{USER}")),
            hostname: Some("sandbox".to_owned()),
            working_dir: Some("/mnt/data".to_owned()),
            entrypoint: Some(["python3", "-I", "-c", BOOTSTRAP].map(str::to_owned).into()),
            cmd: Some(Vec::new()),
            // When we go away, stdin ends, and with it the container.
            open_stdin: Some(true),
            stdin_once: Some(true),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }

    fn files_body(&self, volume: &str, limits: &Limits) -> ContainerCreateBody {
        // Files that the host writes count as the server's memory.
        self.bare(volume, SERVER_MEMORY.saturating_add(limits.disk), 4)
    }

    fn body(&self, kernel: &KernelSpec, limits: &Limits, volume: &str) -> ContainerCreateBody {
        // Beside the program's own: the first process, and the kernel's checkpoint.
        let mut body = self.bare(volume, limits.memory, i64::from(limits.processes) + 2);
        body.env = Some(kernel.env.iter().map(|(name, value)| format!("{name}={value}")).collect());
        if let Some(host) = &mut body.host_config {
            let shared = limits.tmp / 4;
            let tmp = format!(
                "rw,exec,nosuid,nodev,size={},nr_inodes={TMP_INODES},mode=1777,uid={USER},gid={USER}",
                limits.tmp - shared
            );
            let programs =
                format!("rw,noexec,nosuid,nodev,size={PROGRAMS_BYTES},nr_inodes=64,mode=0755,uid={USER},gid={USER}");
            host.tmpfs = Some(HashMap::from([("/tmp".to_owned(), tmp), (KernelSpec::PROGRAMS.to_owned(), programs)]));
            host.shm_size = Some(i64::try_from(shared.max(1)).unwrap_or(i64::MAX));
            host.nano_cpus = Some((limits.cpus * 1e9) as i64);
            let limit = |name: &str, value: u64| {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                ResourcesUlimits { name: Some(name.to_owned()), soft: Some(value), hard: Some(value) }
            };
            host.ulimits = Some(vec![
                limit("nofile", u64::from(limits.open_files)),
                limit("fsize", limits.file_size),
                limit("core", 0),
            ]);
        }
        body
    }

    /// Notes whether a sandbox could be made.
    fn note(&self, error: Option<&Error>) {
        let failure = match error {
            Some(Error::Setup(reason)) => Some(reason.clone()),
            Some(Error::Timeout { .. }) => error.map(ToString::to_string),
            // The others say nothing of the engine.
            Some(_) => return,
            None => None,
        };
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }
}

/// Bytes with their length before them.
fn framed(bytes: &[u8]) -> Bytes {
    let length = (bytes.len() as u32).to_be_bytes();
    [&length[..], bytes].concat().into()
}

async fn start_kernel(
    shell: &Arc<Shell>,
    mux: &Arc<Mux>,
    number: u32,
    checkpoints: bool,
    limits: &Limits,
    is_bounded: bool,
) -> Result<DockerLink, Error> {
    let threads = (limits.cpus.ceil() as u32).max(1);
    let start = ToKernel::Start { memory: limits.memory, threads, hard: !is_bounded, checkpoints };
    DockerLink::start(Arc::clone(shell), Arc::clone(mux), number, checkpoints, &start).await
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

impl Backend for Docker {
    fn capabilities(&self) -> &Capabilities {
        &self.0.capabilities
    }

    fn create(&self, id: SandboxId, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Sandbox>, Error>> {
        Box::pin(async move {
            let made = self.0.make(id, spec).await;
            self.0.note(made.as_ref().err());
            made
        })
    }

    fn destroy<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if let Some(shell) = self.0.registry.end(id) {
                shell.container.remove().await;
            }
            Ok(())
        })
    }

    fn list<'a>(&'a self, owner: Option<&'a str>) -> BoxFuture<'a, Result<Vec<SandboxId>, Error>> {
        Box::pin(async move { Ok(self.0.registry.list(owner)) })
    }

    fn health(&self) -> Health {
        let failure = self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Health { status: failure.map_or(Status::Ready, |reason| Status::Degraded { reason }), pooled: 0 }
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.0.end.cancel();
            self.0.alive.closed().await;
        })
    }
}

/// A container in which kernels run.
#[derive(Debug)]
struct Shell {
    container: Container,
    engine: Arc<Engine>,
    is_paused: watch::Sender<bool>,
    /// Held by whoever pauses or resumes.
    pausing: tokio::sync::Mutex<()>,
}

impl Shell {
    fn new(container: Container, engine: Arc<Engine>) -> Self {
        Self { container, engine, is_paused: watch::Sender::new(false), pausing: tokio::sync::Mutex::default() }
    }

    fn is_ended(&self) -> bool {
        self.container.is_ended()
    }

    fn paused(&self) -> watch::Receiver<bool> {
        self.is_paused.subscribe()
    }

    async fn usage(&self) -> Usage {
        self.engine.usage(self.container.name()).await
    }

    async fn pause(&self, pauses: bool) -> Result<(), Error> {
        let _alone = self.pausing.lock().await;
        if *self.is_paused.borrow() != pauses {
            self.engine.pause(self.container.name(), pauses).await?;
            self.is_paused.send_replace(pauses);
        }
        Ok(())
    }
}

/// A live sandbox. Dropping it destroys it, once its kernels are dropped, too.
#[derive(Debug)]
struct DockerSandbox {
    first: Arc<Driver<DockerLink>>,
    spec: Arc<KernelSpec>,
    shell: Arc<Shell>,
    mux: Arc<Mux>,
    /// The number of the last kernel.
    kernels: AtomicU32,
    registration: Registration<Shell>,
}

impl DockerSandbox {
    async fn pause_or_resume(&self, pauses: bool) -> Result<(), Error> {
        // In a task: a caller that goes away halfway would leave it stopped with its clocks running.
        let shell = Arc::clone(&self.shell);
        let done = tokio::spawn(async move { shell.pause(pauses).await }).await;
        done.unwrap_or_else(|error| Err(Error::Setup(error.to_string())))
    }
}

impl Sandbox for DockerSandbox {
    fn id(&self) -> &SandboxId {
        self.registration.id()
    }

    fn limits(&self) -> &Limits {
        self.first.limits()
    }

    fn kernel(&self) -> &Arc<KernelSpec> {
        &self.spec
    }

    fn workspace(&self) -> &Arc<dyn Workspace> {
        self.first.workspace()
    }

    fn is_alive(&self) -> bool {
        self.first.is_alive() && !self.shell.is_ended()
    }

    fn execute<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Execution, Error>> {
        Box::pin(self.first.execute(Cell::new(code)))
    }

    fn first_kernel(&self) -> Arc<dyn Kernel> {
        Arc::clone(&self.first) as _
    }

    fn start_kernel(&self, options: KernelOptions) -> BoxFuture<'_, Result<Arc<dyn Kernel>, Error>> {
        Box::pin(async move {
            if *self.shell.paused().borrow() {
                return Err(Error::Paused);
            }
            if self.mux.living() >= self.limits().kernels.max(1) as usize {
                return Err(Error::Full);
            }
            let number = self.kernels.fetch_add(1, Ordering::Relaxed) + 1;
            let is_bounded = self.shell.engine.enforces_resources;
            let link = start_kernel(&self.shell, &self.mux, number, false, self.limits(), is_bounded).await?;
            let kernel = Driver::new(link, Arc::clone(self.workspace()), self.limits().clone());
            kernel.configure(&options).await?;
            Ok(Arc::new(kernel) as _)
        })
    }

    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(self.shell.usage())
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.pause_or_resume(true))
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.pause_or_resume(false))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.shell.container.remove().await;
            Ok(())
        })
    }
}
