//! The interface between users of sandboxes and the places where they run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use aludel_jail::message::Profile;
use futures_util::future::BoxFuture;

use crate::execution::Execution;
use crate::kernel::{Kernel, KernelOptions};
use crate::process::{Command, Process, ProcessOutput};
use crate::template::TemplateName;
use crate::{Error, KernelSpec, Limits, SandboxId, Workspace};

/// A place where sandboxes run.
///
/// The contract is [`crate::conformance()`], which every backend passes. A future of these methods may be dropped at any time; what it had
/// begun is undone.
pub trait Backend: fmt::Debug + Send + Sync {
    /// The parts of the contract that this backend has.
    fn capabilities(&self) -> &Capabilities;

    /// Makes a sandbox with a kernel that is ready. Errors: [`Error::NotSupported`] for a part of the spec that the backend cannot honour,
    /// [`Error::Exists`] for the id of a living sandbox of this backend, [`Error::WorkspaceLost`] for a workspace that was lost with its
    /// sandbox.
    fn create(&self, id: SandboxId, spec: SandboxSpec) -> BoxFuture<'_, Result<Arc<dyn Sandbox>, Error>>;

    /// Destroys the sandbox, whatever runs in it, and waits until only the workspace is left. Success if it does not exist. A sandbox that
    /// is being made is abandoned or ended at once, and its `create` fails.
    fn destroy<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns the ids of the living sandboxes, of this owner or of all.
    fn list<'a>(&'a self, owner: Option<&'a str>) -> BoxFuture<'a, Result<Vec<SandboxId>, Error>>;

    /// Returns a sandbox that another process made.
    fn attach<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Arc<dyn Sandbox>, Error>> {
        let _nobody = id;
        not_supported("attaching to a sandbox")
    }

    /// Returns the state of the backend, as far as it is known without making a sandbox.
    fn health(&self) -> Health;

    /// Ends every sandbox, removes what they left, and waits until that is done.
    fn shutdown(&self) -> BoxFuture<'_, ()>;
}

/// A live sandbox. It has one kernel at first; more may be started. It is destroyed when the last reference to it is dropped; a reference
/// to its kernels or processes counts too. The workspace stays as long as it is referenced.
pub trait Sandbox: fmt::Debug + Send + Sync {
    /// The id that it was made with.
    fn id(&self) -> &SandboxId;

    /// The limits that it was made with.
    fn limits(&self) -> &Limits;

    /// The language of its kernels.
    fn kernel(&self) -> &Arc<KernelSpec>;

    /// The directory of the kernel's scripts, as seen from inside.
    fn scripts_directory(&self) -> &str {
        KernelSpec::SCRIPTS_DIRECTORY
    }

    /// The files.
    fn workspace(&self) -> &Arc<dyn Workspace>;

    /// Returns true if the first kernel lives or its checkpoint can take over. A sandbox without either and without other kernels is of no
    /// more use, but its workspace is.
    fn is_alive(&self) -> bool;

    /// Runs one cell in the first kernel. Cells run one at a time; the next waits here.
    fn execute<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Execution, Error>>;

    /// Returns the kernel that the sandbox was made with.
    fn first_kernel(&self) -> Arc<dyn Kernel>;

    /// Starts a further kernel. It has its own variables; files and limits are those of the whole sandbox. It keeps no checkpoint. More
    /// than [`Limits::kernels`] at once are [`Error::Full`].
    fn start_kernel(&self, options: KernelOptions) -> BoxFuture<'_, Result<Arc<dyn Kernel>, Error>> {
        drop(options);
        not_supported("further kernels")
    }

    /// Returns the sandbox's usage, as far as the backend counts it; zeros when it is gone.
    fn usage(&self) -> BoxFuture<'_, Usage>;

    /// Starts a command beside the kernel. Fails if the command cannot be started, for example because it does not exist.
    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Process, Error>> {
        drop(command);
        not_supported("commands")
    }

    /// Stops everything in the sandbox until [`Sandbox::resume`]. Time limits stop too, and new work fails with [`Error::Paused`]. Success
    /// if it is already paused.
    fn pause(&self) -> BoxFuture<'_, Result<(), Error>> {
        not_supported("pausing a sandbox")
    }

    /// Resumes a paused sandbox. Success if it is not paused.
    fn resume(&self) -> BoxFuture<'_, Result<(), Error>> {
        not_supported("pausing a sandbox")
    }

    /// Makes a copy of the sandbox, its variables and files included.
    fn fork(&self, id: SandboxId) -> BoxFuture<'_, Result<Arc<dyn Sandbox>, Error>> {
        drop(id);
        not_supported("forking a sandbox")
    }

    /// Connects to a TCP port on which a program in the sandbox listens, on its loopback device or on all devices. Without a listener the
    /// error is [`Error::PortClosed`].
    fn connect(&self, port: u16) -> BoxFuture<'_, Result<Box<dyn Connection>, Error>> {
        let _closed = port;
        not_supported("connections to a sandbox")
    }

    /// Waits until the sandbox has ended by itself; for ever on a backend that notices it only at the next use.
    fn lost(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Destroys the sandbox, whatever runs in it, and waits until only the workspace is left.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}

impl dyn Sandbox {
    /// Runs a command to its end, with `input` on its stdin, for at most `limit` of wall clock, and keeps `most` bytes of each output.
    pub async fn run(
        &self,
        command: Command,
        input: &[u8],
        limit: Duration,
        most: usize,
    ) -> Result<ProcessOutput, Error> {
        self.spawn(command).await?.output(input, limit, most).await
    }
}

/// A connection to a port of a sandbox.
pub trait Connection: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Connection for T {}

fn not_supported<T: Send + 'static>(what: &'static str) -> BoxFuture<'static, Result<T, Error>> {
    Box::pin(async move { Err(Error::NotSupported(what)) })
}

/// A request for a sandbox. Every backend destructures it without `..`, so that none forgets a field.
#[derive(Debug, Clone)]
pub struct SandboxSpec {
    /// The limits.
    pub limits: Limits,
    /// The files of an earlier sandbox of the same backend; `None` for an empty workspace.
    pub workspace: Option<Arc<dyn Workspace>>,
    /// The kernel's language; `None` for the backend's first.
    pub language: Option<String>,
    /// Its owner, for [`Backend::list`].
    pub owner: Option<String>,
    /// The freedom of its programs, beyond computing on their files.
    pub profile: Profile,
    /// One of [`Capabilities::templates`]; `None` for the usual one.
    pub template: Option<TemplateName>,
}

impl SandboxSpec {
    /// A sandbox for data, with these limits, an empty workspace and the backend's first language.
    pub fn new(limits: Limits) -> Self {
        Self { limits, workspace: None, language: None, owner: None, profile: Profile::Data, template: None }
    }

    /// The same with the files of an earlier sandbox.
    pub fn with_workspace(self, workspace: Arc<dyn Workspace>) -> Self {
        Self { workspace: Some(workspace), ..self }
    }
}

/// The parts of the contract that a backend has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The name of the backend, as in the configuration.
    pub backend: &'static str,
    /// The languages of its kernels, the default first.
    pub languages: Vec<Arc<KernelSpec>>,
    /// True if limits of memory, processes, processor time and file sizes are enforced. Time and output are enforced by every backend.
    pub enforces_resources: bool,
    /// True if the limits of a workspace's bytes and files are enforced.
    pub enforces_disk: bool,
    /// True if the first kernel has a checkpoint: if the kernel dies in a cell while nothing else runs in the sandbox, the checkpoint takes
    /// over.
    pub checkpoints: bool,
    /// True if refused system calls are reported.
    pub reports_refused_calls: bool,
    /// True if a sandbox may have more than one kernel.
    pub kernels: bool,
    /// True if commands run beside the kernel.
    pub processes: bool,
    /// True if commands in a sandbox of [`Profile::Services`] may have a terminal.
    pub terminals: bool,
    /// True if a sandbox can be attached to.
    pub attach: bool,
    /// True if a sandbox can be paused and resumed.
    pub pause: bool,
    /// True if a sandbox can be forked.
    pub fork: bool,
    /// True if ports of a sandbox of [`Profile::Services`] can be connected to.
    pub connect: bool,
    /// Templates that a sandbox may start from, besides the usual one.
    pub templates: Vec<OfferedTemplate>,
}

/// A template that a sandbox may start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedTemplate {
    /// The name by which it is asked for.
    pub name: TemplateName,
    /// Its packages.
    pub packages: Vec<String>,
}

impl Capabilities {
    /// The default kernel.
    pub fn kernel(&self) -> &Arc<KernelSpec> {
        self.languages.first().unwrap_or_else(|| KernelSpec::default_kernel())
    }

    /// The kernel of this language, or the default one.
    pub(crate) fn kernel_of(&self, language: Option<&str>) -> Result<&Arc<KernelSpec>, Error> {
        let Some(language) = language else { return Ok(self.kernel()) };
        let kernel = self.languages.iter().find(|kernel| kernel.language == language);
        kernel.ok_or(Error::NotSupported("a kernel of this language"))
    }
}

/// The state of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// True if sandboxes can be made.
    pub status: BackendStatus,
    /// Sandboxes that are ready before anyone asks.
    pub pooled: usize,
}

/// True if sandboxes can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendStatus {
    /// As far as is known, they can.
    Ready,
    /// The last sandbox that the backend tried to make failed, or the backend has to recover first.
    Degraded {
        /// The reason.
        reason: String,
    },
}

/// The resources that a sandbox uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory now, bytes.
    pub memory: u64,
    /// The most memory so far, bytes.
    pub memory_peak: u64,
    /// Processor time so far.
    pub cpu: Duration,
}
