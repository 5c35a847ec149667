//! Starting commands beside the kernel.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::warden_client::Handle;
use crate::Error;
use crate::backends::streams::output_pipe;
use crate::frame::{Channel, FromKernel, ToKernel};
use crate::process::{Command, Process};

/// The longest that a program may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a program under a number that no other program of the sandbox has had.
pub(super) async fn spawn(handle: &Arc<Handle>, number: u64, command: Command) -> Result<Process, Error> {
    let failed = |step: &'static str| move |error: io::Error| Error::Setup(format!("{step}: {error}"));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed("make a socket"))?;
    let (stdin_theirs, stdin) = io::pipe().map_err(failed("make a pipe"))?;
    let stdin_theirs = OwnedFd::from(stdin_theirs);
    let stdin = pipe::Sender::from_owned_fd(stdin.into()).map_err(failed("open a pipe"))?;
    let (stdout, stdout_theirs) = output_pipe().map_err(failed("make a pipe"))?;
    let (stderr, stderr_theirs) = output_pipe().map_err(failed("make a pipe"))?;
    let ended = handle.spawn(number, [theirs.into(), stdin_theirs, stdout_theirs, stderr_theirs])?;
    let mut channel = Channel::new(ours).map_err(failed("open a socket"))?;
    let handle = Arc::clone(handle);
    let process = Process {
        stdin: Some(Box::new(stdin)),
        stdout: Box::new(stdout),
        stderr: Box::new(stderr),
        signal: Box::new(move |signal| handle.signal_process(number, signal)),
        ended,
    };
    // What went wrong before it could be told is told by the other side.
    let _told = timeout(START_TIMEOUT, channel.send(&ToKernel::Run { command: &command })).await;
    // The socket is closed by the exec; until then, or without one, it tells what went wrong.
    match timeout(START_TIMEOUT, channel.receive()).await {
        Ok(Ok(None)) => Ok(process),
        Ok(Ok(Some(FromKernel::Failed(reason)))) => Err(Error::Start(reason)),
        Ok(Ok(Some(_)) | Err(_)) | Err(_) => Err(Error::Start("it did not start in time".into())),
    }
}
