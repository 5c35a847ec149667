//! Starting commands beside the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use aludel_ignore::Ignore;
use tokio::time::timeout;

use super::terminal::{PtyMaster, Window};
use super::warden_client::SandboxHandle;
use crate::Error;
use crate::backends::streams::{guest_pipe, output_pipe};
use crate::frame::{Channel, FromKernel, ToKernel};
use crate::guest_pipe::{GuestWriter, Touched};
use crate::process::{Command, Process, PtySize};

/// The longest that a process may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

type Input = Box<dyn tokio::io::AsyncWrite + Send + Sync + Unpin>;
type Output = Box<dyn tokio::io::AsyncRead + Send + Sync + Unpin>;

/// The standard streams of a process: our ends and the process's.
struct ProcessStreams {
    stdin: Input,
    stdout: Output,
    stderr: Output,
    window: Option<Window>,
    theirs: [OwnedFd; 3],
}

impl ProcessStreams {
    fn pipes() -> Result<Self, Error> {
        let (stdin_theirs, stdin) = guest_pipe().map_err(failed("make a pipe"))?;
        let stdin = GuestWriter::new(stdin.into(), Touched::set()).map_err(failed("open a pipe"))?;
        let (stdout, stdout_theirs) = output_pipe(Touched::set()).map_err(failed("make a pipe"))?;
        let (stderr, stderr_theirs) = output_pipe(Touched::set()).map_err(failed("make a pipe"))?;
        let theirs = [stdin_theirs.into(), stdout_theirs, stderr_theirs];
        Ok(Self { stdin: Box::new(stdin), stdout: Box::new(stdout), stderr: Box::new(stderr), window: None, theirs })
    }

    async fn terminal(handle: &SandboxHandle, size: PtySize) -> Result<Self, Error> {
        let [ours, theirs] = handle.open_terminal(size).await?;
        let copy = || theirs.try_clone().map_err(failed("copy a terminal"));
        let theirs = [copy()?, copy()?, copy()?];
        let PtyMaster { screen, keyboard, window } = PtyMaster::new(ours).map_err(failed("open a terminal"))?;
        Ok(Self {
            stdin: Box::new(keyboard),
            stdout: Box::new(screen),
            stderr: Box::new(tokio::io::empty()),
            window: Some(window),
            theirs,
        })
    }
}

/// Starts a process under a new number of the sandbox.
pub(super) async fn spawn(handle: &Arc<SandboxHandle>, number: u64, command: Command) -> Result<Process, Error> {
    crate::kernel::check_environment(&command.environment)?;
    let ends = match command.pty {
        None => ProcessStreams::pipes()?,
        Some(size) => ProcessStreams::terminal(handle, size).await?,
    };
    let ProcessStreams { stdin, stdout, stderr, window, theirs: [stdin_theirs, stdout_theirs, stderr_theirs] } = ends;
    let (mut channel, [from_host, to_host]) = Channel::pair(Touched::set()).map_err(failed("make a pipe"))?;
    let descriptors = [from_host, to_host, stdin_theirs, stdout_theirs, stderr_theirs];
    let ended = handle.spawn(number, window.is_some(), descriptors)?;
    let handle = Arc::clone(handle);
    let mut process = Process {
        stdin: Some(stdin),
        stdout,
        stderr,
        id: 0,
        signal: Box::new(move |signal| handle.signal_process(number, signal)),
        resize: window.map(|window| Box::new(move |size| window.resize(size)) as _),
        ended,
    };
    timeout(START_TIMEOUT, channel.send(&ToKernel::Run { command: &command }))
        .await
        .ignore("the loop below reports a failure: the other side has sent its reason");
    loop {
        // The exec closes the pipe; until then, or without an exec, errors come over it.
        match timeout(START_TIMEOUT, channel.receive_short()).await {
            Ok(Ok(Some(FromKernel::Started(id)))) => process.id = u32::try_from(id).unwrap_or_default(),
            Ok(Ok(None)) => return Ok(process),
            Ok(Ok(Some(FromKernel::Failed(reason)))) => return Err(Error::not_started(reason)),
            Ok(Ok(Some(_)) | Err(_)) => return Err(Error::Setup("the program answered out of turn".into())),
            Err(_) => return Err(Error::Timeout { what: "start of a program", limit: START_TIMEOUT }),
        }
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Setup(format!("{step}: {error}"))
}
