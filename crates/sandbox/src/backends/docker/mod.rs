//! The docker backend: each sandbox is a container of an engine, Docker's or Podman's. Its files are a volume in memory, served by a second
//! container.

mod container;
mod definitions;
mod engine;
mod hardening;
mod host;
mod instances;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use self::container::{Container, Volume};
use self::engine::DockerEngine;
use self::hardening::Hardening;
use self::host::ContainerHost;
use self::instances::Instance;
use super::stdio::{HostProvider, InstanceLife, Stdio, StdioBackend, StdioWorkspace, over};
use crate::backend::Capabilities;
use crate::trial::run_program;
use crate::{Backend, Error, KernelSpec, Limits, Profile};

/// The image of the default template.
pub const DEFAULT_IMAGE: &str = "aludel/default:latest";
/// The first user and group id of workspaces. With its own user, a sandbox has its own share of per-user limits of Linux, such as pipes and
/// pending signals.
const FIRST_USER: u32 = 20_000;
/// Number of user ids used in turn. Rootless engines have 65,536 ids.
const USERS: u64 = 40_000;

/// A volume in memory, named like the container that serves it.
type VolumeFiles = StdioWorkspace<Container>;

/// Settings of the docker backend.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    /// The data directory; instances are noted under `docker` in it.
    pub data: PathBuf,
    /// The engine's socket, as `unix:///PATH`; `None` for that of the environment or the usual places.
    pub host: Option<String>,
    /// The image of sandboxes, which has Python and IPython.
    pub image: String,
    /// The container runtime by the engine's name for it, for example `runsc`; `None` for the engine's default.
    pub runtime: Option<String>,
    /// Sandboxes that are ready before anyone asks.
    pub pool: usize,
    /// The limits of those.
    pub limits: Limits,
}

/// The docker backend.
pub type Docker = StdioBackend<Containers>;

/// Containers of one engine.
#[derive(Debug)]
pub struct Containers {
    engine: Arc<DockerEngine>,
    instance: Instance,
    image: String,
    runtime: Option<String>,
    hardening: Hardening,
    next: AtomicU64,
}

impl Docker {
    /// Runs a sandbox if the image exists, and pulls none. Returns the engine with warnings about parts that it does not enforce, or the
    /// reason for which sandboxes cannot run.
    pub async fn probe(config: DockerConfig) -> Result<(String, Vec<String>), Error> {
        let DockerConfig { host, image, .. } = &config;
        let engine = DockerEngine::connect(host.as_deref(), String::new()).await?;
        if !engine.has_image(image).await? {
            let missing = format!("the image {image} is not there yet: the first start pulls it");
            return Ok((engine.version.clone(), [warnings(&engine), vec![missing]].concat()));
        }
        let limits = config.limits.clone();
        let backend = Self::start(DockerConfig { pool: 0, ..config }, &mut |_| {}).await?;
        let ran = run_program(&backend, limits).await;
        backend.shutdown().await;
        ran.map(|()| (engine.version, backend.warnings()))
    }

    /// Connects to the engine, removes what dead instances left and makes sure that the image exists. `progress` is called with each step.
    pub async fn start(config: DockerConfig, progress: &mut (dyn FnMut(&str) + Send)) -> Result<Self, Error> {
        let DockerConfig { data, host, image, runtime, pool, limits } = config;
        let directory = data.join("docker");
        let instance = Instance::new(&directory)?;
        let engine = DockerEngine::connect(host.as_deref(), instance.id.clone()).await?;
        instances::remove(&directory, &engine, &instance.id).await;
        engine.prepare_image(&image, progress).await?;
        let kernel = Arc::new(KernelSpec::python("python3"));
        let capabilities = Capabilities {
            backend: "docker",
            checkpoints: kernel.checkpoints,
            languages: vec![kernel],
            enforces_resources: engine.enforces_resources,
            enforces_disk: true,
            reports_refused_calls: false,
            kernels: true,
            processes: true,
            terminals: true,
            attach: false,
            pause: engine.pauses,
            fork: false,
            connect: true,
            templates: Vec::new(),
        };
        let id = instance.id.clone();
        let (engine, next) = (Arc::new(engine), AtomicU64::new(first_number()));
        let hardening = Hardening::none(engine.sockets, data.join("docker-lists"));
        let mut containers = Containers { engine, instance, image, runtime, hardening, next };
        containers.hardening = containers.find_hardening().await?;
        Ok(Self::with_pool(containers, id, capabilities, pool, limits))
    }

    /// The engine and its version.
    pub fn engine(&self) -> &str {
        &self.provider().engine.version
    }

    /// Returns the names of this instance's containers and volumes in the engine.
    pub async fn left(&self) -> Result<Vec<String>, Error> {
        self.provider().engine.names_of(&self.provider().instance.id).await
    }

    /// Returns the parts of the isolation that the engine cannot enforce, as texts for the operator.
    pub fn warnings(&self) -> Vec<String> {
        let provider = self.provider();
        [warnings(&provider.engine).as_slice(), provider.hardening.warnings()].concat()
    }
}

/// The first number for names and users of containers, which differs between servers on one host.
fn first_number() -> u64 {
    u64::from_str_radix(&crate::random::hex::<3>(), 16).unwrap_or(1)
}

fn warnings(engine: &DockerEngine) -> Vec<String> {
    let missing =
        "the container engine does not enforce memory or processes (rootless without delegated control groups)";
    let unpaused = "the container engine has no control groups, and pauses nothing";
    let told = [(engine.enforces_resources, missing), (engine.pauses, unpaused)];
    told.into_iter().filter(|(is_fine, _)| !is_fine).map(|(_, words)| words.to_owned()).collect()
}

impl Containers {
    fn container(&self, life: &InstanceLife, kind: &str) -> Container {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Less than 2^16.
        let user = FIRST_USER + (number % USERS) as u32;
        Container::new(format!("aludel-{}-{number}{kind}", self.instance.id), user, life.end())
    }
}

impl HostProvider for Containers {
    type Host = ContainerHost;
    type Home = Container;
    const ORIGIN: &'static str = "image";

    async fn make_workspace(&self, life: &InstanceLife, limits: &Limits) -> Result<VolumeFiles, Error> {
        let container = self.container(life, "-files");
        let (volume, user) = (container.name().to_owned(), container.user());
        // In pages: Podman takes `size` for a quota, which an in-memory file system does not have.
        let pages = limits.disk.div_ceil(rustix::param::page_size() as u64);
        let options = HashMap::from([
            ("type".to_owned(), "tmpfs".to_owned()),
            ("device".to_owned(), "tmpfs".to_owned()),
            (
                "o".to_owned(),
                format!("nr_blocks={pages},nr_inodes={},mode=0755,uid={user},gid={user},nosuid,nodev", limits.files),
            ),
        ]);
        let (made, is_made) = oneshot::channel();
        let body = self.files_container(&volume, user, limits);
        let needed = Volume { name: volume.clone(), options, made };
        let started = container.start(&self.engine, body, Some(needed), life.hold());
        is_made.await.map_err(|_| over())??;
        let stdio = started.await.map_err(|_| over())??;
        let end = container.end().clone();
        VolumeFiles::start(container, end, stdio, life.instance().to_owned(), limits).await
    }

    fn new_host(&self, life: &InstanceLife) -> Arc<ContainerHost> {
        Arc::new(ContainerHost::new(self.container(life, ""), Arc::clone(&self.engine)))
    }

    async fn start<N: Send + 'static>(
        &self,
        host: &ContainerHost,
        home: &Container,
        kernel: &KernelSpec,
        limits: &Limits,
        profile: Profile,
        needs: N,
    ) -> Result<Stdio, Error> {
        let body = self.sandbox_container(kernel, limits, profile, home);
        host.container.start(&self.engine, body, None, needs).await.map_err(|_| over())?
    }
}
