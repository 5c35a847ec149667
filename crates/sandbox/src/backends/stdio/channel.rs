//! Commands and connections of a sandbox, as streams of bytes.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;
use tokio_util::sync::PollSemaphore;

use super::CHUNK;
use super::incoming::Incoming;
use super::mux::{CHANNEL_WINDOW, ChannelStreams, ChannelTarget, Mux};
use crate::Error;
use crate::backend::Connection;
use crate::process::{Command, Process, PtySize};

/// The longest that a program may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest wait for a server to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read of a stream before the sender is granted as many more; batching keeps small reads cheap.
const GRANTED: usize = CHANNEL_WINDOW / 4;
/// Bytes of a command as it is sent. Linux takes 2 MiB, which escapes may enlarge.
const MAX_COMMAND: usize = 16 << 20;

/// A command or a connection. Dropping it ends it.
#[derive(Debug)]
struct MuxChannel {
    mux: Arc<Mux>,
    number: u32,
    /// The host of the sandbox, kept alive as long as any part is used.
    _host: Arc<dyn Debug + Send + Sync>,
}

impl Drop for MuxChannel {
    fn drop(&mut self) {
        self.mux.forget(self.number);
    }
}

/// The means to open channels of one sandbox.
pub(super) struct ChannelOpener {
    /// The streams of the sandbox.
    pub(super) mux: Arc<Mux>,
    /// The number of the channel, never reused.
    pub(super) number: u32,
    /// The host of the sandbox.
    pub(super) host: Arc<dyn Debug + Send + Sync>,
}

impl ChannelOpener {
    fn open(self, wish: &ChannelTarget<'_>) -> Result<(Arc<MuxChannel>, ChannelStreams), Error> {
        let Self { mux, number, host } = self;
        let streams = mux.open(number, wish)?;
        Ok((Arc::new(MuxChannel { mux, number, _host: host }), streams))
    }

    /// Starts a command.
    pub(super) async fn spawn(self, command: &Command) -> Result<Process, Error> {
        crate::kernel::check_environment(&command.environment)?;
        let pty = command.pty.map(|PtySize { columns, rows }| [columns, rows]);
        let wish = serde_json::to_vec(&NewProcess { command, pty }).map_err(|error| Error::Start(error.to_string()))?;
        if wish.len() > MAX_COMMAND {
            return Err(Error::Start("its arguments are too long".into()));
        }
        let (channel, streams) = self.open(&ChannelTarget::Command(&wish))?;
        let ChannelStreams { started, output, errors, ended, credit } = streams;
        let id = match timeout(START_TIMEOUT, started).await {
            Ok(Ok(Ok(id))) => id,
            Ok(Ok(Err(refusal))) => return Err(Error::not_started(refusal.reason)),
            Ok(Err(_)) => return Err(gone()),
            Err(_) => return Err(Error::Timeout { what: "start of a program", limit: START_TIMEOUT }),
        };
        let (for_signals, for_window) = (Arc::clone(&channel), Arc::clone(&channel));
        let resize = move |size| {
            for_window.mux.resize(for_window.number, size);
            Ok(())
        };
        Ok(Process {
            stdin: Some(Box::new(ChannelWriter::new(Arc::clone(&channel), PollSemaphore::new(credit)))),
            stdout: Box::new(ChannelReader::new(Arc::clone(&channel), 1, output)),
            stderr: Box::new(ChannelReader::new(channel, 2, errors)),
            id,
            signal: Box::new(move |signal| {
                if let Ok(signal) = u8::try_from(signal) {
                    for_signals.mux.signal(for_signals.number, signal, false);
                }
            }),
            resize: pty.map(|_| Box::new(resize) as _),
            ended,
        })
    }

    /// Connects to a port of the loopback device.
    pub(super) async fn connect(self, port: u16) -> Result<Box<dyn Connection>, Error> {
        let (channel, streams) = self.open(&ChannelTarget::Port(port))?;
        match timeout(CONNECT_TIMEOUT, streams.started).await {
            Ok(Ok(Ok(_))) => {}
            Ok(Ok(Err(refusal))) if refusal.is_closed => return Err(Error::PortClosed(port)),
            Ok(Ok(Err(refusal))) => return Err(Error::Setup(format!("connect to port {port}: {}", refusal.reason))),
            Ok(Err(_)) => return Err(gone()),
            Err(_) => return Err(Error::Timeout { what: "connection", limit: CONNECT_TIMEOUT }),
        }
        let writer = ChannelWriter::new(Arc::clone(&channel), PollSemaphore::new(streams.credit));
        Ok(Box::new(tokio::io::join(ChannelReader::new(channel, 1, streams.output), writer)))
    }
}

fn gone() -> Error {
    Error::KernelGone("the sandbox has ended".into())
}

/// A command, as the first process reads it.
#[derive(Serialize)]
struct NewProcess<'a> {
    #[serde(flatten)]
    command: &'a Command,
    /// Columns and rows of its terminal.
    pty: Option<[u16; 2]>,
}

/// A stream's incoming bytes. Dropping it lets the program see a closed pipe.
struct ChannelReader {
    channel: Arc<MuxChannel>,
    stream: u8,
    incoming: Arc<Incoming>,
    /// Bytes that were read and not granted again.
    taken: usize,
}

impl ChannelReader {
    fn new(channel: Arc<MuxChannel>, stream: u8, incoming: Arc<Incoming>) -> Self {
        Self { channel, stream, incoming, taken: 0 }
    }
}

impl AsyncRead for ChannelReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.taken += ready!(self.incoming.poll_take(context, buffer));
        if self.taken >= GRANTED {
            self.channel.mux.grant(self.channel.number, usize::from(self.stream), self.taken);
            self.taken = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ChannelReader {
    fn drop(&mut self) {
        self.channel.mux.close_stream(self.channel.number, self.stream);
    }
}

/// Bytes that go. Dropping it is their end.
struct ChannelWriter {
    channel: Arc<MuxChannel>,
    credit: PollSemaphore,
    is_over: bool,
}

impl ChannelWriter {
    fn new(channel: Arc<MuxChannel>, credit: PollSemaphore) -> Self {
        Self { channel, credit, is_over: false }
    }

    fn end(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.channel.mux.close_stream(self.channel.number, 0);
        }
    }
}

impl AsyncWrite for ChannelWriter {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let most = bytes.len().min(CHUNK);
        if most == 0 {
            return Poll::Ready(Ok(0));
        }
        let permit = if self.is_over { None } else { ready!(self.credit.poll_acquire(context)) };
        let Some(permit) = permit else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        // No other task takes permits.
        let more = (most - 1).min(self.credit.available_permits());
        let more = self.credit.clone_inner().try_acquire_many_owned(more as u32).map_or(0, |permits| {
            permits.forget();
            more
        });
        permit.forget();
        let count = 1 + more;
        self.channel.mux.data(self.channel.number, bytes.get(..count).unwrap_or_default());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ChannelWriter {
    fn drop(&mut self) {
        self.end();
    }
}
