//! The docker backend: each sandbox is a container of an engine, Docker's or Podman's, and its files are a volume in memory that a second
//! container serves.

mod bodies;
mod container;
mod engine;
mod leftovers;
mod shell;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::container::{Container, Volume, over};
use self::engine::Engine;
use self::leftovers::Instance;
use self::shell::Shell;
use super::registry::{Registration, Registry};
use super::stdio::{FirstProcess, Place, StdioSandbox, StdioWorkspace};
use crate::backend::{Backend, Capabilities, Health, Profile, Sandbox, SandboxId, SandboxSpec, Status};
use crate::{Error, KernelSpec, Limits, Workspace};

/// The image of the default template.
pub const DEFAULT_IMAGE: &str = "aludel/default:latest";
/// The user and group of every process in a container.
const USER: u32 = 10_000;

/// A volume in memory, which has the name of the container that serves it.
type Files = StdioWorkspace<Container>;

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
    /// Returns the engine that answers at this host, with warnings of what it does not enforce, or the reason why none does.
    pub async fn probe(host: Option<&str>) -> Result<(String, Vec<String>), Error> {
        let engine = Engine::connect(host, String::new()).await?;
        let warnings = warnings(&engine);
        Ok((engine.version, warnings))
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
            templates: Vec::new(),
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
        warnings(&self.0.engine)
    }
}

fn warnings(engine: &Engine) -> Vec<String> {
    let missing =
        "the container engine does not enforce memory or processes (rootless without delegated control groups)";
    if engine.enforces_resources { Vec::new() } else { vec![missing.to_owned()] }
}

impl Inner {
    fn container(&self, kind: &str) -> Container {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Container::new(format!("aludel-{}-{number}{kind}", self.instance.id), &self.end)
    }

    async fn make(&self, id: SandboxId, spec: SandboxSpec) -> Result<Arc<dyn Sandbox>, Error> {
        let SandboxSpec { limits, workspace, language, owner, profile, template } = spec;
        if template.is_some() {
            return Err(Error::NotSupported("several templates"));
        }
        let kernel = Arc::clone(self.capabilities.kernel_of(language.as_deref())?);
        if profile == Profile::Services {
            return Err(Error::NotSupported("services in a sandbox (sandbox.backend = \"docker\")"));
        }
        let registration = Registry::register(&self.registry, id, owner)?;
        let (container, alive) = (self.container(""), self.alive.subscribe());
        let shell = Arc::new(Shell::new(container, Arc::clone(&self.engine)));
        registration.bind(&shell)?;
        let ended = shell.end().clone();
        let made = tokio::select! {
            made = self.make_for(&shell, workspace, kernel, limits, alive, registration) => made,
            () = ended.cancelled() => Err(over()),
        };
        match made {
            Ok(sandbox) => Ok(Arc::new(sandbox)),
            Err(error) => {
                shell.remove().await;
                Err(error)
            }
        }
    }

    async fn make_for(
        &self,
        shell: &Arc<Shell>,
        workspace: Option<Arc<dyn Workspace>>,
        kernel: Arc<KernelSpec>,
        limits: Limits,
        alive: watch::Receiver<()>,
        registration: Registration<Shell>,
    ) -> Result<StdioSandbox<Shell>, Error> {
        let workspace = match workspace {
            Some(workspace) => workspace,
            None => Arc::new(self.new_workspace(&limits).await?),
        };
        let foreign = Error::NotSupported("the workspace of another backend");
        let files = Files::of(&workspace, &self.instance.id).ok_or(foreign)?;
        if files.is_lost() {
            return Err(Error::WorkspaceLost);
        }
        let body = self.body(&kernel, &limits, files.home().name());
        let started = shell.container.start(&self.engine, body, None, (Arc::clone(&workspace), alive));
        let stdio = started.await.map_err(|_| over())??;
        let first = FirstProcess { place: Arc::clone(shell), stdio, origin: "image" };
        first.start(kernel, limits, workspace, registration).await
    }

    /// Makes an empty workspace.
    async fn new_workspace(&self, limits: &Limits) -> Result<Files, Error> {
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
        let stdio = started.await.map_err(|_| over())??;
        let end = container.end().clone();
        Files::start(container, end, stdio, self.instance.id.clone(), limits).await
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
                shell.remove().await;
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
