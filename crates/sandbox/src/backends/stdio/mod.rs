//! Sandboxes that are reached by the standard streams of a process in them, which forks their kernels.

mod backend;
mod channel;
mod incoming;
mod items;
mod link;
mod mux;
mod sandbox;
mod workspace;

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio_util::bytes::Bytes;
use tokio_util::sync::CancellationToken;

pub(super) use self::backend::over;
pub(super) use self::backend::{HostProvider, InstanceLife, StdioBackend};
use self::mux::Mux;
use self::sandbox::StdioSandbox;
pub(super) use self::workspace::StdioWorkspace;
use super::registry::Registration;
use crate::backend::Profile;
use crate::driver::Driver;
use crate::{Error, KernelSpec, Limits, Usage, Workspace};

/// The program that stores the scripts that follow it, and then becomes the first process.
const START_PROGRAM: &str = include_str!("../../../kernel/start.py");
/// The first process's scripts, beside the kernel's: it forks kernels and passes on their streams.
const FIRST_PROCESS_SCRIPTS: [(&str, &str); 11] = [
    ("first_process.py", include_str!("../../../kernel/first_process.py")),
    ("first_bounds.py", include_str!("../../../kernel/first_bounds.py")),
    ("first_channel.py", include_str!("../../../kernel/first_channel.py")),
    ("first_command.py", include_str!("../../../kernel/first_command.py")),
    ("first_connection.py", include_str!("../../../kernel/first_connection.py")),
    ("first_descendants.py", include_str!("../../../kernel/first_descendants.py")),
    ("first_kernel.py", include_str!("../../../kernel/first_kernel.py")),
    ("first_memory.py", include_str!("../../../kernel/first_memory.py")),
    ("first_messages.py", include_str!("../../../kernel/first_messages.py")),
    ("first_privileges.py", include_str!("../../../kernel/first_privileges.py")),
    ("first_streams.py", include_str!("../../../kernel/first_streams.py")),
];
/// The program that serves files.
const WORKSPACE_PROGRAM: &str = include_str!("../../../kernel/workspace.py");
/// Runs the program that stdin begins with.
const BOOTSTRAP: &str = "import os,struct\ndef r(n):\n b=b''\n while len(b)<n:\n  p=os.read(0,n-len(b))\n  if not p: os._exit(0)\n  b+=p\n return b\nexec(compile(r(struct.unpack('>I',r(4))[0]),'aludel','exec'))";
/// Bytes of one message's payload.
const CHUNK: usize = 64 << 10;
/// The longest that the process may take to import the modules that kernels need.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The command of the process at the other end of the streams.
pub(super) const COMMAND: [&str; 4] = ["python3", "-I", "-c", BOOTSTRAP];

/// The standard streams of a process.
pub struct Stdio {
    /// Its stdout and stderr. The end of the stream, or an error, is the end of the process.
    pub(super) output: BoxStream<'static, Result<OutputChunk, String>>,
    /// Its input.
    pub(super) input: Pin<Box<dyn AsyncWrite + Send>>,
}

/// A piece of what a process prints.
pub enum OutputChunk {
    /// To its output.
    Out(Bytes),
    /// To its error output.
    Err(Bytes),
}

/// The host of one sandbox, in which that process runs.
pub trait SandboxHost: fmt::Debug + Send + Sync + 'static {
    /// The token that ends it.
    fn end(&self) -> &CancellationToken;

    /// Ends it, and waits until nothing of it is left.
    fn remove(&self) -> impl Future<Output = ()> + Send;

    /// Returns true if limits of memory, processes and processor time are enforced.
    fn enforces_resources(&self) -> bool;

    /// Returns whether it is paused, now and from now on.
    fn paused(&self) -> watch::Receiver<bool>;

    /// Stops everything in it, or lets it go on.
    fn pause(&self, pauses: bool) -> impl Future<Output = Result<(), Error>> + Send;

    /// Returns the resources that it uses, as far as they are known.
    fn usage(&self) -> impl Future<Output = Usage> + Send;
}

/// A host whose first process is ready for kernels. The process ends with it.
#[derive(Debug)]
struct ReadyHost<P> {
    host: Arc<P>,
    mux: Arc<Mux>,
    kernel: Arc<KernelSpec>,
}

impl<P: SandboxHost> ReadyHost<P> {
    /// Wraps the streams of a process that runs [`COMMAND`], and waits until it has imported the modules that kernels need. `origin` is the
    /// noun for the host's origin, for errors.
    async fn new(host: Arc<P>, stdio: Stdio, kernel: Arc<KernelSpec>, origin: &'static str) -> Result<Self, Error> {
        let kernels = kernel.scripts.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let scripts: BTreeMap<_, _> = FIRST_PROCESS_SCRIPTS.into_iter().chain(kernels).collect();
        let scripts = serde_json::to_vec(&scripts).map_err(|error| Error::Setup(error.to_string()))?;
        let first = vec![framed(START_PROGRAM.as_bytes()), framed(&scripts)];
        let mux = Mux::start(stdio, first, host.end());
        mux.ready(READY_TIMEOUT, origin).await?;
        Ok(Self { host, mux, kernel })
    }

    /// The host.
    fn host(&self) -> &Arc<P> {
        &self.host
    }

    /// Returns true unless its host or its first process has ended.
    fn is_alive(&self) -> bool {
        !self.host.end().is_cancelled() && self.mux.is_ready()
    }

    /// Starts the first kernel, and returns the sandbox.
    async fn start(
        self,
        limits: Limits,
        workspace: Arc<dyn Workspace>,
        registration: Registration<P>,
        profile: Profile,
    ) -> Result<StdioSandbox<P>, Error> {
        let Self { host, mux, kernel } = self;
        // A checkpoint that takes over would end the services.
        let checkpoints = kernel.checkpoints && profile == Profile::Data;
        let link = sandbox::start_kernel(&host, &mux, 1, checkpoints, &limits).await?;
        Ok(StdioSandbox::new(Driver::new(link, workspace, limits), kernel, host, mux, registration, profile))
    }
}

/// Bytes with their length before them.
fn framed(bytes: &[u8]) -> Bytes {
    let length = (bytes.len() as u32).to_be_bytes();
    [&length[..], bytes].concat().into()
}

/// Writes `first` and then further messages to a process, until either end is gone.
async fn feed(
    mut input: Pin<Box<dyn AsyncWrite + Send>>,
    first: Vec<Bytes>,
    mut messages: mpsc::UnboundedReceiver<Bytes>,
) {
    for bytes in first {
        if input.write_all(&bytes).await.is_err() {
            return;
        }
    }
    while let Some(message) = messages.recv().await {
        if input.write_all(&message).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_first_process_is_carried_into_the_sandbox() {
        let directory = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernel"));
        for entry in directory.read_dir().unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.starts_with("first_") {
                assert!(FIRST_PROCESS_SCRIPTS.iter().any(|(script, _)| *script == name), "{name}");
            }
        }
    }
}
