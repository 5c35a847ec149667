//! The local backend: a warden, its zygote, and a pool of sandboxes that are ready before anyone asks.

mod slots;
pub(crate) mod warden_client;
pub(crate) mod workspace;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use aludel_jail::message::Start;
use aludel_jail::message::{Reply, Request, Setup};
use aludel_jail::{WORKSPACES, Warden, message, sweep};
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use self::slots::Slots;
use self::warden_client::{Handle, WardenClient, lock};
use self::workspace::Mount;
use crate::frame::{Channel, FromKernel, ToKernel};
use crate::sandbox::{Kernel, Sandbox};
use crate::{Error, Limits, Template, Workspace};

/// The longest that making a sandbox may take.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest that making a workspace may take.
const WORKSPACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Inodes of a sandbox's `/tmp` and `/dev/shm` together; without a bound, empty files use up memory that no limit counts.
const TMP_INODES: u64 = 32 << 10;
/// The kernel program, by the names under which it is found inside; the first is started.
const PROGRAMS: [(&str, &str); 2] = [
    ("zygote.py", include_str!("../../../kernel/zygote.py")),
    ("kernel.py", include_str!("../../../kernel/kernel.py")),
];

/// Settings of the local backend.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// The data directory; instances live under `run` in it.
    pub data: PathBuf,
    /// What sandboxes start from.
    pub template: Template,
    /// The limits of pooled sandboxes, and the default for others.
    pub limits: Limits,
    /// How many sandboxes are kept ready; 0 makes each when it is asked for.
    pub pool: usize,
    /// How much of the isolation must be enforceable.
    pub require: Require,
    /// How kernels come to life.
    pub start: Start,
}

/// How much of the isolation the host must be able to enforce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Require {
    /// What is missing is said in [`Local::warnings`].
    Default,
    /// What is missing is an error.
    Strict,
}

/// What a sandbox is made from.
#[derive(Debug)]
pub struct SandboxSpec {
    /// What it may use.
    pub limits: Limits,
    /// The files of an earlier sandbox; `None` for an empty workspace.
    pub workspace: Option<Arc<Workspace>>,
}

/// The local backend. Cheap to clone; the last clone that is dropped ends everything.
#[derive(Debug, Clone)]
pub struct Local(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    warnings: Vec<String>,
    _lock: File,
    /// Its lock is on the root, which sandboxes see, too: one that took it would keep the template from everybody else.
    _template: Template,
}

/// What sandboxes need of their backend. They do not keep the backend alive.
#[derive(Debug)]
struct Shared {
    client: Arc<WardenClient>,
    slots: Slots,
    owner_base: Option<u32>,
    memory_is_bounded: bool,
    start: Start,
}

#[derive(Debug)]
struct Pool {
    size: usize,
    limits: Limits,
    ready: Mutex<VecDeque<Sandbox>>,
    wanted: Notify,
}

impl Local {
    /// Removes what dead instances left, then starts the warden and the zygote; takes about as long as importing pandas.
    pub async fn start(config: LocalConfig) -> Result<Self, Error> {
        Self::start_with(config, false).await
    }

    /// The same, but every system call of every program is told in [`crate::Finished::blocked`], allowed or not. For finding out what the
    /// list of allowed calls is needed for; programs run slowly.
    pub async fn start_observing(config: LocalConfig) -> Result<Self, Error> {
        Self::start_with(config, true).await
    }

    async fn start_with(config: LocalConfig, observe: bool) -> Result<Self, Error> {
        let LocalConfig { data, template, limits, pool, require, start } = config;
        let run = data.join("run");
        let (root, python) = (template.root().to_path_buf(), template.python().to_owned());
        let started = tokio::task::spawn_blocking(move || {
            sweep::sweep(&run);
            let (instance, lock) =
                sweep::new_instance(&run).map_err(|source| Error::Io { path: run.clone(), source })?;
            let workspaces = instance.join(WORKSPACES);
            std::fs::create_dir(&workspaces).map_err(|source| Error::Io { path: workspaces, source })?;
            let setup = Setup {
                root,
                python,
                programs: PROGRAMS.map(|(name, text)| (name.to_owned(), text.to_owned())).into(),
                instance: instance.clone(),
                observe,
            };
            let (warden, ready) = Warden::spawn(&setup, &lock).map_err(|error| Error::Setup(error.to_string()))?;
            Ok::<_, Error>((lock, warden, ready))
        });
        let (lock, warden, ready) = started.await.map_err(|error| Error::Setup(error.to_string()))??;
        let Reply::Ready { owner_base, warnings, memory_is_bounded } = ready else {
            return Err(Error::Setup("the warden answered out of turn".into()));
        };
        if require == Require::Strict && !warnings.is_empty() {
            return Err(Error::Setup(format!("sandbox.require is strict, and: {}", warnings.join("; "))));
        }
        let client = WardenClient::start(warden).map_err(|error| Error::Setup(format!("start a thread: {error}")))?;
        let shared = Arc::new(Shared { client, slots: Slots::default(), owner_base, memory_is_bounded, start });
        let pool = Arc::new(Pool { size: pool, limits, ready: Mutex::default(), wanted: Notify::new() });
        if pool.size > 0 {
            tokio::spawn(Pool::refill(Arc::downgrade(&pool), Arc::downgrade(&shared)));
        }
        Ok(Self(Arc::new(Inner { shared, pool, warnings, _lock: lock, _template: template })))
    }

    /// What the host cannot enforce, in words; to be shown at start.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// A sandbox with a kernel that is ready: from the pool when one fits, made on the spot otherwise.
    pub async fn create(&self, spec: SandboxSpec) -> Result<Sandbox, Error> {
        let pool = &self.0.pool;
        if spec.workspace.is_none() && spec.limits == pool.limits {
            let pooled = lock(&pool.ready).pop_front();
            pool.wanted.notify_one();
            if let Some(sandbox) = pooled.filter(Sandbox::is_alive) {
                return Ok(sandbox);
            }
        }
        self.0.shared.create(spec).await
    }

    /// How many sandboxes are ready in the pool.
    pub fn pooled(&self) -> usize {
        lock(&self.0.pool.ready).len()
    }

    /// Waits until there are no sandboxes any more and none can be made, and says why: the warden or the zygote ended, which nothing but the
    /// host or its operator does to them. A new backend has to be started.
    pub async fn ended(&self) -> Error {
        self.0.shared.client.ended().await
    }

    /// Ends every sandbox and the zygote, removes what they left, and waits until that is done.
    pub async fn shutdown(self) {
        let shared = Arc::clone(&self.0.shared);
        lock(&self.0.pool.ready).clear();
        shared.client.hang_up();
        // The thread may outlive a runtime that is ending; the warden finishes in any case.
        let _finished = tokio::task::spawn_blocking(move || shared.client.wait()).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The listener holds the rest until it hears the end.
        self.shared.client.hang_up();
    }
}

impl Pool {
    /// Keeps the pool full until the backend is gone.
    async fn refill(pool: std::sync::Weak<Self>, shared: std::sync::Weak<Shared>) {
        loop {
            let (Some(pool), Some(backend)) = (pool.upgrade(), shared.upgrade()) else { return };
            if lock(&pool.ready).len() >= pool.size {
                drop(backend);
                // Wakes up now and then to see whether the backend is still there.
                let _timeout = tokio::time::timeout(Duration::from_secs(1), pool.wanted.notified()).await;
                continue;
            }
            let made = match backend.create(SandboxSpec { limits: pool.limits.clone(), workspace: None }).await {
                Ok(sandbox) => sandbox.touch().await.map(|()| sandbox),
                Err(error) => Err(error),
            };
            match made {
                Ok(sandbox) => lock(&pool.ready).push_back(sandbox),
                // Whoever asks for a sandbox gets the error; here it is only tried again.
                Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
            }
        }
    }
}

impl Shared {
    async fn create(&self, spec: SandboxSpec) -> Result<Sandbox, Error> {
        let SandboxSpec { limits, workspace } = spec;
        // Made before anything is asked for: from here on, giving up drops the handle, which destroys the sandbox.
        let handle = Handle::new(&self.client)?;
        let workspace = match workspace {
            Some(workspace) => workspace,
            None => Arc::new(self.new_workspace(&limits).await?),
        };
        let mount = workspace.mount().ok_or_else(|| Error::Setup("the workspace is of another backend".into()))?;
        let failed = |step: &'static str| move |error: io::Error| Error::Setup(format!("{step}: {error}"));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed("make the kernel's socket"))?;
        let (stdout, stdout_theirs) = output_pipe().map_err(failed("make a pipe"))?;
        let (stderr, stderr_theirs) = output_pipe().map_err(failed("make a pipe"))?;
        let request = Request::Create {
            id: handle.id(),
            start: self.start,
            slot: mount.slot(),
            workspace: mount.id(),
            limits: jail_limits(&limits),
        };
        let descriptors = vec![theirs.into(), stdout_theirs, stderr_theirs];
        self.client.ask("sandbox", request, descriptors, CREATE_TIMEOUT).await?;
        let channel = Channel::new(ours).map_err(failed("open the kernel's socket"))?;
        let mut kernel = Kernel::new(channel, stdout, stderr, handle.exit());
        let ready = tokio::time::timeout(CREATE_TIMEOUT, kernel.channel.receive()).await;
        match ready {
            Ok(Ok(Some(FromKernel::Ready))) => {}
            Ok(Ok(Some(FromKernel::Failed(step)))) => return Err(Error::Setup(step)),
            Ok(Ok(_)) => return Err(Error::Setup("the kernel ended before it was ready".into())),
            Ok(Err(error)) => return Err(Error::Setup(format!("hear the kernel: {error}"))),
            Err(_) => return Err(Error::Timeout { what: "kernel", limit: CREATE_TIMEOUT }),
        }
        let threads = (limits.cpus.ceil() as u32).max(1);
        kernel
            .channel
            .send(&ToKernel::Start { memory: limits.memory, threads, hard: !self.memory_is_bounded })
            .await
            .map_err(|error| Error::KernelGone(error.to_string()))?;
        Ok(Sandbox::new(handle, kernel, workspace, limits))
    }

    async fn new_workspace(&self, limits: &Limits) -> Result<Workspace, Error> {
        let mount = Mount::new(&self.client, self.slots.take().ok_or(Error::Full)?);
        let owner = self.owner_base.map(|base| base + mount.slot());
        let request = Request::OpenWorkspace {
            workspace: mount.id(),
            slot: mount.slot(),
            bytes: limits.disk,
            inodes: limits.files,
        };
        let (_, descriptors) = self.client.ask("workspace", request, Vec::new(), WORKSPACE_TIMEOUT).await?;
        let root = descriptors.into_iter().next();
        let root = root.ok_or_else(|| Error::Setup("the workspace came without its root".into()))?;
        Ok(Workspace::new(root, owner, mount))
    }
}

pub(crate) fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (receiver, sender) = io::pipe()?;
    Ok((pipe::Receiver::from_owned_fd(receiver.into())?, sender.into()))
}

fn jail_limits(limits: &Limits) -> message::Limits {
    message::Limits {
        memory: limits.memory,
        processes: limits.processes,
        millicpus: (limits.cpus * 1000.0) as u32,
        tmp: limits.tmp,
        tmp_inodes: TMP_INODES,
        file_size: limits.file_size,
        open_files: limits.open_files,
    }
}
