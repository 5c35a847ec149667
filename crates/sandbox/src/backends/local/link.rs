//! The way to a kernel of this machine: a socket for frames, pipes for what is printed, the warden for signals.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;

use super::warden_client::Handle;
use crate::Usage;
use crate::frame::{Channel, FromKernel, ToKernel};
use crate::link::{Control, Exit, Input, Link, Signal, Stream};

/// The longest wait for the first word of a checkpoint.
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read from a pipe at once.
const PIPE_BUFFER: usize = 64 << 10;

/// The host's side of a kernel.
pub(super) struct LocalLink {
    pub(super) handle: Arc<Handle>,
    pub(super) channel: Channel,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
    /// Whether nobody writes to the pipe any more.
    stdout_ended: bool,
    stderr_ended: bool,
}

impl LocalLink {
    pub(super) fn new(handle: Arc<Handle>, channel: Channel, stdout: pipe::Receiver, stderr: pipe::Receiver) -> Self {
        Self { handle, channel, stdout, stderr, stdout_ended: false, stderr_ended: false }
    }
}

impl Link for LocalLink {
    type Control = Handle;

    fn control(&self) -> &Arc<Handle> {
        &self.handle
    }

    fn exit(&self) -> watch::Receiver<Option<Exit>> {
        self.handle.exit()
    }

    async fn send(&mut self, frame: &ToKernel<'_>) -> io::Result<()> {
        (self.stdout_ended, self.stderr_ended) = (false, false);
        self.channel.send(frame).await
    }

    async fn receive(&mut self) -> io::Result<Input> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            let (printed, ended, bytes, stream) = tokio::select! {
                frame = self.channel.receive() => {
                    return Ok(match frame? {
                        Some(frame) => Input::Frame(frame, self.channel.take_received()),
                        None => Input::Closed,
                    });
                }
                count = read_some(&mut self.stdout, &mut stdout), if !self.stdout_ended => {
                    (count, &mut self.stdout_ended, &mut stdout, Stream::Stdout)
                }
                count = read_some(&mut self.stderr, &mut stderr), if !self.stderr_ended => {
                    (count, &mut self.stderr_ended, &mut stderr, Stream::Stderr)
                }
            };
            if printed.is_ok_and(|count| count > 0) {
                return Ok(Input::Printed(stream, std::mem::take(bytes)));
            }
            *ended = true;
        }
    }

    /// Past tokio, whose `try_read` knows only of what its last poll saw.
    fn printed(&mut self, stream: Stream) -> Vec<u8> {
        let pipe = match stream {
            Stream::Stdout => self.stdout.as_fd(),
            Stream::Stderr => self.stderr.as_fd(),
        };
        let mut bytes = Vec::with_capacity(PIPE_BUFFER);
        // Nothing there, or nobody left: the same to whoever does not wait.
        let _nothing = rustix::io::read(pipe, rustix::buffer::spare_capacity(&mut bytes));
        bytes
    }

    /// What the dead kernel left half-written stays in the old socket.
    async fn resume(&mut self) -> bool {
        let Ok((ours, theirs)) = std::os::unix::net::UnixStream::pair() else { return false };
        let Ok(channel) = Channel::new(ours) else { return false };
        if !self.handle.resume(theirs.into()).await {
            return false;
        }
        self.channel = channel;
        matches!(timeout(RESUME_TIMEOUT, self.channel.receive()).await, Ok(Ok(Some(FromKernel::Resumed))))
    }
}

impl Control for Handle {
    fn signal(&self, signal: Signal) {
        self.signal_kernel(match signal {
            Signal::Interrupt => 2,
            Signal::Kill => 9,
        });
    }

    async fn usage(&self) -> Usage {
        Handle::usage(self).await
    }

    fn cell_started(&self) {
        self.foreground();
    }

    fn cell_ended(&self) {
        Handle::cell_ended(self);
    }

    fn take_blocked(&self) -> Vec<String> {
        Handle::take_blocked(self)
    }
}

/// Reads what there is once there is something. Cancel-safe: nothing is read before it is returned.
async fn read_some(pipe: &mut pipe::Receiver, bytes: &mut Vec<u8>) -> io::Result<usize> {
    bytes.reserve(PIPE_BUFFER);
    pipe.read_buf(bytes).await
}

/// A pipe of which the host reads one end.
pub(super) fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (receiver, sender) = io::pipe()?;
    Ok((pipe::Receiver::from_owned_fd(receiver.into())?, sender.into()))
}
