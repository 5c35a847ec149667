//! The streams between the host and a kernel process on this machine: pipes for frames and for output.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::time::timeout;

use crate::Error;
use crate::frame::{ArrivingFrame, Channel, FromKernel, ToKernel};
use crate::guest_pipe::{GuestReader, Touched};
use crate::link::{LinkInput, OutputStream};

/// Pieces of each stream's output that come before a frame: more than a pipe holds. Another process may print for ever.
const PIECES_BEFORE_FRAME: usize = 4;

/// The host's ends.
pub(crate) struct Streams {
    channel: Channel,
    /// A frame that came, and the pieces of output that may still come before it, by stream.
    frame: Option<(LinkInput, [usize; 2])>,
    stdout: Printed,
    stderr: Printed,
    touched: Touched,
}

/// One stream of output.
struct Printed {
    pipe: GuestReader,
    /// True once no process has the pipe open for writing.
    has_ended: bool,
}

impl Printed {
    fn pair(touched: Touched) -> io::Result<(Self, OwnedFd)> {
        let (pipe, theirs) = output_pipe(touched)?;
        Ok((Self { pipe, has_ended: false }, theirs))
    }

    /// Waits for output; for ever after its end. Cancel-safe.
    async fn read(&mut self) -> Vec<u8> {
        if !self.has_ended {
            let bytes = self.pipe.read().await.unwrap_or_default();
            if !bytes.is_empty() {
                return bytes;
            }
            self.has_ended = true;
        }
        std::future::pending().await
    }

    /// Takes output that is there; nothing if there is none. Cancel-safe.
    async fn take(&mut self) -> Vec<u8> {
        if self.has_ended || !self.pipe.has_some() {
            return Vec::new();
        }
        let bytes = self.pipe.read().await.unwrap_or_default();
        self.has_ended = bytes.is_empty();
        bytes
    }
}

impl Streams {
    /// Makes the streams of one kernel of a sandbox. The kernel's ends: the pipes from and to the host, stdout, stderr.
    pub(crate) fn pair(touched: Touched) -> Result<(Self, [OwnedFd; 4]), Error> {
        let failed = |step: &'static str| move |error: io::Error| Error::Setup(format!("{step}: {error}"));
        let (channel, [from_host, to_host]) =
            Channel::pair(touched.clone()).map_err(failed("make the kernel's pipes"))?;
        let (stdout, stdout_theirs) = Printed::pair(touched.clone()).map_err(failed("make a pipe"))?;
        let (stderr, stderr_theirs) = Printed::pair(touched.clone()).map_err(failed("make a pipe"))?;
        let ours = Self { channel, frame: None, stdout, stderr, touched };
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
        (self.stdout.has_ended, self.stderr.has_ended) = (false, false);
        let sent = self.channel.send(frame).await;
        if !matches!(frame, ToKernel::Start { .. } | ToKernel::WarmUp) {
            self.touched.touch();
        }
        sent
    }

    /// Waits for the next input. Output comes before a frame that was sent after it. Cancel-safe.
    pub(crate) async fn receive(&mut self) -> io::Result<LinkInput> {
        loop {
            if let Some((_, pieces)) = &mut self.frame {
                let [of_stdout, of_stderr] = pieces;
                for (stream, printed, left) in [
                    (OutputStream::Stdout, &mut self.stdout, of_stdout),
                    (OutputStream::Stderr, &mut self.stderr, of_stderr),
                ] {
                    if *left > 0 {
                        let bytes = printed.take().await;
                        *left -= 1;
                        if !bytes.is_empty() {
                            return Ok(LinkInput::Printed(stream, bytes));
                        }
                        *left = 0;
                    }
                }
                if let Some((frame, _)) = self.frame.take() {
                    return Ok(frame);
                }
            }
            tokio::select! {
                incoming = self.channel.receive() => match incoming? {
                    Some(ArrivingFrame::Long(length)) => return Ok(LinkInput::LongFrame(length)),
                    incoming => {
                        let input = incoming.map_or(LinkInput::Closed, LinkInput::from);
                        self.frame = Some((input, [PIECES_BEFORE_FRAME; 2]));
                    }
                },
                bytes = self.stdout.read() => return Ok(LinkInput::Printed(OutputStream::Stdout, bytes)),
                bytes = self.stderr.read() => return Ok(LinkInput::Printed(OutputStream::Stderr, bytes)),
            }
        }
    }

    /// Accepts the long frame that was announced last.
    pub(crate) fn accept(&mut self) {
        self.channel.accept();
    }

    /// Takes output that is there; nothing if there is none. Cancel-safe.
    pub(crate) async fn printed(&mut self, stream: OutputStream) -> Vec<u8> {
        match stream {
            OutputStream::Stdout => self.stdout.take().await,
            OutputStream::Stderr => self.stderr.take().await,
        }
    }

    /// Continues with another channel. A frame that a dead kernel left half-written stays in the old one.
    pub(crate) fn replace_channel(&mut self, channel: Channel) {
        (self.channel, self.frame) = (channel, None);
    }
}

/// A pipe whose reading end is the host's.
pub(crate) fn output_pipe(touched: Touched) -> io::Result<(GuestReader, OwnedFd)> {
    let (receiver, sender) = guest_pipe()?;
    Ok((GuestReader::new(receiver.into(), touched)?, sender.into()))
}

/// A pipe that programs of another user may open by path, as `/dev/stdout` and its like. Nobody else finds a path to it.
pub(crate) fn guest_pipe() -> io::Result<(io::PipeReader, io::PipeWriter)> {
    let (receiver, sender) = io::pipe()?;
    rustix::fs::fchmod(&sender, rustix::fs::Mode::from_raw_mode(0o666))?;
    Ok((receiver, sender))
}
