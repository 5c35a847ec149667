//! The local backend: a warden, its zygote, and a pool of sandboxes that are ready before anyone asks.

pub(crate) mod slots;
pub(crate) mod workspace;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use aludel_jail::message::Start;
use aludel_jail::message::{ExitStatus, Reply, Request, Setup, Usage};
use aludel_jail::{WORKSPACES, Warden, message, sweep};
use tokio::net::unix::pipe;
use tokio::sync::{Notify, oneshot, watch};

use crate::frame::{Channel, FromKernel, ToKernel};
use crate::sandbox::{Kernel, Sandbox};
use crate::{Error, Limits, Template, Workspace};

use self::slots::Slots;

/// How long making a sandbox may take before something is wrong.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the warden may take to answer a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a checkpoint may take to wake.
const RESUME_TIMEOUT: Duration = Duration::from_secs(5);
/// Inodes of a sandbox's `/tmp` and `/dev/shm` together; without a bound, empty files use up memory that no limit counts.
const TMP_INODES: u64 = 32 << 10;
/// What a refused system call is called whose number no system call has.
const UNKNOWN_CALL: &str = "(an unknown number)";

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
pub(crate) struct Shared {
    warden: Warden,
    waiting: Mutex<Waiting>,
    /// Whether nothing will be answered any more.
    is_over: watch::Sender<bool>,
    next_id: AtomicU64,
    slots: Slots,
    owner_base: Option<u32>,
    memory_is_bounded: bool,
    instance: PathBuf,
    start: Start,
}

/// Who waits for which reply.
#[derive(Debug, Default)]
struct Waiting {
    workspaces: HashMap<u64, oneshot::Sender<Result<OwnedFd, String>>>,
    created: HashMap<u64, oneshot::Sender<Result<(), String>>>,
    /// Every sandbox that lives.
    live: HashMap<u64, Live>,
    resumed: HashMap<u64, oneshot::Sender<bool>>,
    usages: HashMap<u64, Vec<oneshot::Sender<Usage>>>,
    destroyed: HashMap<u64, oneshot::Sender<()>>,
    /// Why nothing will be answered any more.
    over: Option<String>,
}

/// What is heard of a sandbox without asking.
#[derive(Debug)]
struct Live {
    exit: watch::Sender<Option<Exit>>,
    /// Names of refused system calls. A program may call any number: those without a name count as one, so that there are never more of
    /// them than the system has calls.
    blocked: BTreeSet<&'static str>,
    processes: HashMap<u64, oneshot::Sender<Option<ExitStatus>>>,
}

/// How a kernel process ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    /// `None` when the warden vanished and took the status along.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) usage: Usage,
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
            let (warden, ready) = Warden::spawn(&setup, &lock).map_err(|error| Error::Jail(error.to_string()))?;
            Ok::<_, Error>((instance, lock, warden, ready))
        });
        let (instance, lock, warden, ready) = started.await.map_err(|error| Error::Jail(error.to_string()))??;
        let Reply::Ready { owner_base, warnings, memory_is_bounded } = ready else {
            return Err(Error::Jail("the warden answered out of turn".into()));
        };
        if require == Require::Strict && !warnings.is_empty() {
            return Err(Error::Jail(format!("sandbox.require is strict, and: {}", warnings.join("; "))));
        }
        let shared = Arc::new(Shared {
            warden,
            waiting: Mutex::default(),
            is_over: watch::Sender::new(false),
            next_id: AtomicU64::new(1),
            slots: Slots::default(),
            owner_base,
            memory_is_bounded,
            instance,
            start,
        });
        let listener = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("aludel-warden".into())
            .spawn(move || listener.listen())
            .map_err(|error| Error::Jail(format!("start a thread: {error}")))?;
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
        // An error would mean that the sender is gone, which is held here.
        let mut is_over = self.0.shared.is_over.subscribe();
        let _over = is_over.wait_for(|is_over| *is_over).await.map(|is_over| *is_over);
        self.0.shared.over()
    }

    /// Ends every sandbox and the zygote, removes what they left, and waits until that is done.
    pub async fn shutdown(self) {
        let shared = Arc::clone(&self.0.shared);
        lock(&self.0.pool.ready).clear();
        shared.warden.hang_up();
        // The thread may outlive a runtime that is ending; the warden finishes in any case.
        let _finished = tokio::task::spawn_blocking(move || shared.warden.wait()).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The listener holds the rest until it hears the end.
        self.shared.warden.hang_up();
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
    /// Hands every reply to whoever waits for it, until the warden hangs up.
    fn listen(&self) {
        let over = loop {
            match self.warden.receive() {
                Ok(Some((Reply::Unusable { reason }, _))) => break reason,
                Ok(Some((reply, descriptors))) => self.dispatch(reply, descriptors),
                Ok(None) => break "the warden ended".to_owned(),
                Err(error) => break format!("the warden is not understood: {error}"),
            }
        };
        let mut waiting = lock(&self.waiting);
        for (_, Live { exit, .. }) in waiting.live.drain() {
            exit.send_replace(Some(Exit { status: None, usage: Usage::default() }));
        }
        // Dropping the senders tells the receivers.
        *waiting = Waiting { over: Some(over), ..Waiting::default() };
        drop(waiting);
        self.is_over.send_replace(true);
    }

    fn dispatch(&self, reply: Reply, descriptors: Vec<OwnedFd>) {
        let mut waiting = lock(&self.waiting);
        match reply {
            Reply::Workspace { id } => {
                if let Some(sender) = waiting.workspaces.remove(&id) {
                    let root =
                        descriptors.into_iter().next().ok_or_else(|| "the workspace came without its root".to_owned());
                    let _nobody = sender.send(root);
                }
            }
            Reply::Created { id } => {
                if let Some(sender) = waiting.created.remove(&id) {
                    let _nobody = sender.send(Ok(()));
                }
            }
            Reply::Failed { id, reason } => {
                waiting.live.remove(&id);
                if let Some(sender) = waiting.workspaces.remove(&id) {
                    let _nobody = sender.send(Err(reason));
                } else if let Some(sender) = waiting.created.remove(&id) {
                    let _nobody = sender.send(Err(reason));
                }
            }
            Reply::Exited { id, status, usage } => {
                if let Some(live) = waiting.live.get(&id) {
                    live.exit.send_replace(Some(Exit { status, usage }));
                }
            }
            Reply::Resumed { id } => {
                if let Some(live) = waiting.live.get(&id) {
                    live.exit.send_replace(None);
                }
                if let Some(sender) = waiting.resumed.remove(&id) {
                    let _nobody = sender.send(true);
                }
            }
            Reply::NotResumed { id } => {
                if let Some(sender) = waiting.resumed.remove(&id) {
                    let _nobody = sender.send(false);
                }
            }
            Reply::ProcessExited { id, process, status } => {
                let sender = waiting.live.get_mut(&id).and_then(|live| live.processes.remove(&process));
                if let Some(sender) = sender {
                    let _nobody = sender.send(status);
                }
            }
            Reply::Called { id, number } => {
                if let Some(live) = waiting.live.get_mut(&id) {
                    let call = usize::try_from(number).ok().and_then(syscalls::Sysno::new);
                    live.blocked.insert(call.map_or(UNKNOWN_CALL, |call| call.name()));
                }
            }
            Reply::Usage { id, usage } => {
                for sender in waiting.usages.remove(&id).unwrap_or_default() {
                    let _nobody = sender.send(usage);
                }
            }
            Reply::Destroyed { id } => {
                waiting.live.remove(&id);
                if let Some(sender) = waiting.destroyed.remove(&id) {
                    let _nobody = sender.send(());
                }
            }
            Reply::Ready { .. } | Reply::Unusable { .. } => {}
        }
    }

    async fn create(self: &Arc<Self>, spec: SandboxSpec) -> Result<Sandbox, Error> {
        let SandboxSpec { limits, workspace } = spec;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let workspace = match workspace {
            Some(workspace) => workspace,
            None => Arc::new(self.new_workspace(&limits).await?),
        };
        let failed = |step: &'static str| move |error: io::Error| Error::Jail(format!("{step}: {error}"));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed("make the kernel's socket"))?;
        let (stdout, stdout_theirs) = output_pipe().map_err(failed("make a pipe"))?;
        let (stderr, stderr_theirs) = output_pipe().map_err(failed("make a pipe"))?;
        let (created_sender, created) = oneshot::channel();
        let (exit_sender, exit) = watch::channel(None);
        {
            let mut waiting = self.waiting()?;
            waiting.created.insert(id, created_sender);
            let live = Live { exit: exit_sender, blocked: BTreeSet::new(), processes: HashMap::new() };
            waiting.live.insert(id, live);
        }
        let request = Request::Create {
            id,
            start: self.start,
            slot: workspace.slot(),
            workspace: workspace.path().to_path_buf(),
            limits: jail_limits(&limits),
        };
        self.send(&request, &[theirs.as_fd(), stdout_theirs.as_fd(), stderr_theirs.as_fd()])?;
        drop((theirs, stdout_theirs, stderr_theirs));
        match tokio::time::timeout(CREATE_TIMEOUT, created).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(reason))) => return Err(Error::Jail(reason)),
            Ok(Err(_)) => return Err(self.over()),
            Err(_) => return Err(Error::Jail(format!("no sandbox within {} s", CREATE_TIMEOUT.as_secs()))),
        }
        let channel = Channel::new(ours).map_err(failed("open the kernel's socket"))?;
        let mut kernel = Kernel::new(channel, stdout, stderr, exit);
        let handle = Handle { id, shared: Arc::clone(self), ended: AtomicBool::new(false) };
        // From here on, giving up drops the handle, which destroys the sandbox.
        let ready = tokio::time::timeout(CREATE_TIMEOUT, kernel.channel.receive()).await;
        match ready {
            Ok(Ok(Some(FromKernel::Ready))) => {}
            Ok(Ok(Some(FromKernel::Failed(step)))) => return Err(Error::Jail(step)),
            Ok(Ok(_)) => return Err(Error::Jail("the kernel ended before it was ready".into())),
            Ok(Err(error)) => return Err(Error::Jail(format!("hear the kernel: {error}"))),
            Err(_) => return Err(Error::Jail("the kernel did not get ready in time".into())),
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
        let slot = self.slots.take().ok_or_else(|| Error::Jail("too many sandboxes".into()))?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let path = self.instance.join(WORKSPACES).join(id.to_string());
        std::fs::create_dir(&path).map_err(|source| Error::Io { path: path.clone(), source })?;
        let (sender, opened) = oneshot::channel();
        self.waiting()?.workspaces.insert(id, sender);
        let (bytes, inodes) = (limits.disk, limits.files);
        self.send(&Request::OpenWorkspace { id, path: path.clone(), slot: slot.number(), bytes, inodes }, &[])?;
        match tokio::time::timeout(ANSWER_TIMEOUT, opened).await {
            Ok(Ok(Ok(root))) => {
                let owner = self.owner_base.map(|base| base + slot.number());
                Ok(Workspace::new(path, root, owner, slot))
            }
            Ok(Ok(Err(reason))) => Err(Error::Jail(reason)),
            Ok(Err(_)) => Err(self.over()),
            Err(_) => Err(Error::Jail(format!("no workspace within {} s", ANSWER_TIMEOUT.as_secs()))),
        }
    }

    fn waiting(&self) -> Result<std::sync::MutexGuard<'_, Waiting>, Error> {
        let waiting = lock(&self.waiting);
        match &waiting.over {
            Some(reason) => Err(Error::Jail(reason.clone())),
            None => Ok(waiting),
        }
    }

    fn over(&self) -> Error {
        Error::Jail(lock(&self.waiting).over.clone().unwrap_or_else(|| "the warden gave no answer".into()))
    }

    fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.warden.send(request, descriptors).map_err(|error| Error::Jail(format!("ask the warden: {error}")))
    }
}

/// One sandbox at the warden. Dropping it destroys the sandbox.
#[derive(Debug)]
pub(crate) struct Handle {
    id: u64,
    shared: Arc<Shared>,
    /// Whether its end was asked for.
    ended: AtomicBool,
}

impl Handle {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Sends a signal to the kernel process.
    pub(crate) fn signal(&self, signal: i32) {
        // Without a warden there is no kernel.
        let _gone = self.shared.send(&Request::Signal { id: self.id, signal }, &[]);
    }

    /// Lets the checkpoint take the place of a kernel that ended. `control` is the kernel's end of its new channel.
    pub(crate) async fn resume(&self, control: BorrowedFd<'_>) -> bool {
        let (sender, answer) = oneshot::channel();
        match self.shared.waiting() {
            Ok(mut waiting) => waiting.resumed.insert(self.id, sender),
            Err(_) => return false,
        };
        self.shared.send(&Request::Resume { id: self.id }, &[control]).is_ok()
            && tokio::time::timeout(RESUME_TIMEOUT, answer).await.is_ok_and(|answer| answer.unwrap_or(false))
    }

    /// Starts a program; the receiver tells its end, with `None` when it could not be made or the sandbox is gone.
    pub(crate) fn spawn(
        &self,
        process: u64,
        descriptors: [BorrowedFd<'_>; 4],
    ) -> Result<oneshot::Receiver<Option<ExitStatus>>, Error> {
        let (sender, ended) = oneshot::channel();
        let mut waiting = self.shared.waiting()?;
        let live = waiting.live.get_mut(&self.id).ok_or_else(|| Error::KernelGone("the sandbox ended".into()))?;
        live.processes.insert(process, sender);
        drop(waiting);
        self.shared.send(&Request::Spawn { id: self.id, process }, &descriptors)?;
        Ok(ended)
    }

    /// Sends a signal to a program that [`Handle::spawn`] started.
    pub(crate) fn signal_process(&self, process: u64, signal: i32) {
        // Without a warden there is no process.
        let _gone = self.shared.send(&Request::SignalProcess { id: self.id, process, signal }, &[]);
    }

    /// Names of the system calls that were refused since this was last asked. To be asked after [`Handle::usage`], whose answer comes
    /// after what the warden told before.
    pub(crate) fn take_blocked(&self) -> Vec<String> {
        let Ok(mut waiting) = self.shared.waiting() else { return Vec::new() };
        let names = waiting.live.get_mut(&self.id).map(|live| std::mem::take(&mut live.blocked)).unwrap_or_default();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Says that a cell begins, which somebody waits for.
    pub(crate) fn foreground(&self) {
        // Without a warden there is no sandbox.
        let _gone = self.shared.send(&Request::Foreground { id: self.id }, &[]);
    }

    /// Says that the cell has ended.
    pub(crate) fn cell_ended(&self) {
        // Without a warden there is no sandbox.
        let _gone = self.shared.send(&Request::CellEnded { id: self.id }, &[]);
    }

    /// What the sandbox uses; zeros when it is gone.
    pub(crate) async fn usage(&self) -> Usage {
        let (sender, answer) = oneshot::channel();
        match self.shared.waiting() {
            Ok(mut waiting) => waiting.usages.entry(self.id).or_default().push(sender),
            Err(_) => return Usage::default(),
        }
        if self.shared.send(&Request::Usage { id: self.id }, &[]).is_err() {
            return Usage::default();
        }
        tokio::time::timeout(ANSWER_TIMEOUT, answer).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    /// Destroys the sandbox and waits until nothing of it is left.
    pub(crate) async fn destroy(&self) {
        let (sender, answer) = oneshot::channel();
        match self.shared.waiting() {
            Ok(mut waiting) => waiting.destroyed.insert(self.id, sender),
            Err(_) => return,
        };
        self.ask_for_the_end();
        let _answered = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    }
}

impl Handle {
    fn ask_for_the_end(&self) {
        if !self.ended.swap(true, Ordering::Relaxed) {
            // Without a warden there is no sandbox either.
            let _gone = self.shared.send(&Request::Destroy { id: self.id }, &[]);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.ask_for_the_end();
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

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic while holding one of these leaves plain data that is still consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
