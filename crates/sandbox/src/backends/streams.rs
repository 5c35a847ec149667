//! The streams between the host and a kernel process on this machine: pipes for frames and for output.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use aludel_ignore::Ignore;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::Error;
use crate::frame::{Channel, FromKernel, ToKernel};
use crate::link::{LinkInput, OutputStream};

/// Bytes that are read from a pipe at once.
const PIPE_BUFFER: usize = 64 << 10;

/// The host's ends.
pub(crate) struct Streams {
    channel: Channel,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    /// True once no process has the pipe open for writing.
    stdout_ended: bool,
    stderr_ended: bool,
}

impl Streams {
    /// Makes the streams of one kernel. The kernel's ends: the pipes from and to the host, stdout, stderr.
    pub(crate) fn pair() -> Result<(Self, [OwnedFd; 4]), Error> {
        let failed = |step: &'static str| move |error: io::Error| Error::Setup(format!("{step}: {error}"));
        let (channel, [from_host, to_host]) = Channel::pair().map_err(failed("make the kernel's pipes"))?;
        let (stdout, stdout_theirs) = output_pipe().map_err(failed("make a pipe"))?;
        let (stderr, stderr_theirs) = output_pipe().map_err(failed("make a pipe"))?;
        let ours = Self { channel, stdout, stderr, stdout_ended: false, stderr_ended: false };
        Ok((ours, [from_host, to_host, stdout_theirs, stderr_theirs]))
    }

    /// Waits until the kernel says that it is ready.
    pub(crate) async fn ready(&mut self, limit: Duration) -> Result<(), Error> {
        match timeout(limit, self.channel.receive_short()).await {
            Ok(Ok(Some(FromKernel::Ready))) => Ok(()),
            Ok(Ok(Some(FromKernel::Failed(step)))) => Err(Error::Setup(step)),
            Ok(Ok(_)) => Err(Error::Setup("the kernel ended before it was ready".into())),
            Ok(Err(error)) => Err(Error::Setup(format!("hear the kernel: {error}"))),
            Err(_) => Err(Error::Timeout { what: "kernel", limit }),
        }
    }

    /// Sends a frame. Dropping the future may leave half of it sent.
    pub(crate) async fn send(&mut self, frame: &ToKernel<'_>) -> io::Result<()> {
        (self.stdout_ended, self.stderr_ended) = (false, false);
        self.channel.send(frame).await
    }

    /// Waits for the next input. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> io::Result<LinkInput> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            let (printed, ended, bytes, stream) = tokio::select! {
                incoming = self.channel.receive() => return Ok(incoming?.map_or(LinkInput::Closed, LinkInput::from)),
                count = read_some(&mut self.stdout, &mut stdout), if !self.stdout_ended => {
                    (count, &mut self.stdout_ended, &mut stdout, OutputStream::Stdout)
                }
                count = read_some(&mut self.stderr, &mut stderr), if !self.stderr_ended => {
                    (count, &mut self.stderr_ended, &mut stderr, OutputStream::Stderr)
                }
            };
            if printed.is_ok_and(|count| count > 0) {
                return Ok(LinkInput::Printed(stream, std::mem::take(bytes)));
            }
            *ended = true;
        }
    }

    /// Accepts the long frame that was announced last.
    pub(crate) fn accept(&mut self) {
        self.channel.accept();
    }

    /// Takes the available output. Bypasses tokio, whose `try_read` only knows the state of its last poll.
    pub(crate) fn printed(&mut self, stream: OutputStream) -> Vec<u8> {
        let pipe = match stream {
            OutputStream::Stdout => self.stdout.as_fd(),
            OutputStream::Stderr => self.stderr.as_fd(),
        };
        let mut bytes = Vec::with_capacity(PIPE_BUFFER);
        rustix::io::read(pipe, rustix::buffer::spare_capacity(&mut bytes))
            .ignore("no data and no writer are the same here");
        bytes
    }

    /// Continues with another channel. A frame that a dead kernel left half-written stays in the old one.
    pub(crate) fn replace_channel(&mut self, channel: Channel) {
        self.channel = channel;
    }
}

/// Reads what is available once there is something. Cancel-safe: nothing is read before it is returned.
async fn read_some(pipe: &mut pipe::Receiver, bytes: &mut Vec<u8>) -> io::Result<usize> {
    bytes.reserve(PIPE_BUFFER);
    pipe.read_buf(bytes).await
}

/// A pipe whose reading end is the host's.
pub(crate) fn output_pipe() -> io::Result<(pipe::Receiver, OwnedFd)> {
    let (receiver, sender) = guest_pipe()?;
    Ok((pipe::Receiver::from_owned_fd(receiver.into())?, sender.into()))
}

/// A pipe that programs of another user may open by path, as `/dev/stdout` and its like. Nobody else finds a path to it.
pub(crate) fn guest_pipe() -> io::Result<(io::PipeReader, io::PipeWriter)> {
    let (receiver, sender) = io::pipe()?;
    rustix::fs::fchmod(&sender, rustix::fs::Mode::from_raw_mode(0o666))?;
    Ok((receiver, sender))
}
