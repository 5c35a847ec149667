//! The kernels, commands and connections of one sandbox over its single pair of streams. The other end is `kernel/first_process.py`.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aludel_ignore::Ignore;
use futures_util::StreamExt;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

use super::CHUNK;
use super::incoming::Incoming;
use super::items::{Items, KernelItem};
use super::{OutputChunk, Stdio, feed};
use crate::Error;
use crate::link::{KernelExit, OutputStream};
use crate::process::{ExitStatus, PtySize};

/// Bytes of a kernel's stream that may be under way.
pub(super) const WINDOW: usize = 1 << 20;
/// Window of each stream of a command or a connection, bytes.
pub(super) const CHANNEL_WINDOW: usize = 128 << 10;
/// Bytes that a command may send beyond the window at its end: the content of a pipe.
const LAST_BYTES: usize = 64 << 10;
/// Commands and connections of one sandbox at once.
const MAX_CHANNELS: usize = 256;
/// Bytes of a message's header.
const HEADER_BYTES: usize = 10;
/// Bytes of stderr that are kept, as the reason for a sandbox's end.
const LAST_WORDS_BYTES: usize = 2 << 10;

/// Kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Kernel = 1,
    Data,
    Signal,
    End,
    Restore,
    Grant,
    Started,
    Failed,
    Exited,
    Restored,
    Ready,
    Spawn,
    Connect,
    Close,
    Resize,
}

impl Kind {
    const ALL: [Self; 15] = [
        Self::Kernel,
        Self::Data,
        Self::Signal,
        Self::End,
        Self::Restore,
        Self::Grant,
        Self::Started,
        Self::Failed,
        Self::Exited,
        Self::Restored,
        Self::Ready,
        Self::Spawn,
        Self::Connect,
        Self::Close,
        Self::Resize,
    ];
}

/// The end of a process, as the first process reports it.
#[derive(Deserialize)]
struct ProcessExit {
    code: i32,
    /// See [`KernelExit::out_of_memory`].
    out_of_memory: Option<u64>,
}

/// One kernel, command or connection.
struct Route {
    /// Bytes that each stream may still send; `None` for a stream that has ended or does not exist.
    left: [Option<usize>; 3],
    /// Bytes that the other end accepts.
    credit: Arc<Semaphore>,
    /// The most of it.
    window: usize,
    receiver: Receiver,
}

/// The reader of a route.
enum Receiver {
    Kernel {
        items: Arc<Items>,
        /// Answers that may still come: one about its start, and one for each request for its checkpoint.
        answers: usize,
        exit: watch::Sender<Option<KernelExit>>,
    },
    Channel {
        /// Reports its start.
        started: Option<oneshot::Sender<Result<u32, ChannelRefusal>>>,
        /// Its output and error output.
        streams: [Arc<Incoming>; 2],
        /// Receives the end of a command; `None` once it has ended, and for connections.
        ended: Option<oneshot::Sender<Option<ExitStatus>>>,
    },
}

/// The reason why a command or a connection could not be had.
#[derive(Debug)]
pub(super) struct ChannelRefusal {
    /// True if nothing listens on the port.
    pub(super) is_closed: bool,
    /// The reason in words.
    pub(super) reason: String,
}

/// A command or a connection to open.
pub(super) enum ChannelTarget<'a> {
    /// A command, as JSON.
    Command(&'a [u8]),
    /// A connection to a port of the loopback device.
    Port(u16),
}

/// Our ends of a command or a connection.
pub(super) struct ChannelStreams {
    /// The process id of a command, and 0 for a connection.
    pub(super) started: oneshot::Receiver<Result<u32, ChannelRefusal>>,
    /// Its output.
    pub(super) output: Arc<Incoming>,
    /// The error output of a command.
    pub(super) errors: Arc<Incoming>,
    /// The end of a command.
    pub(super) ended: oneshot::Receiver<Option<ExitStatus>>,
    /// Room for its input.
    pub(super) credit: Arc<Semaphore>,
}

/// The streams of a sandbox's first process.
pub(super) struct Mux {
    out: mpsc::UnboundedSender<Bytes>,
    routes: Mutex<HashMap<u32, Route>>,
    /// The end of the first process's stderr, as the reason for its end.
    last_words: Mutex<String>,
    is_ready: watch::Sender<Option<bool>>,
    /// The directory of the kernel's scripts, as the first process reports it.
    scripts_directory: OnceLock<String>,
    end: CancellationToken,
}

impl std::fmt::Debug for Mux {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Mux").finish_non_exhaustive()
    }
}

/// One kernel's ends.
pub(super) struct KernelStreams {
    pub(super) items: Arc<Items>,
    pub(super) exit: watch::Sender<Option<KernelExit>>,
    pub(super) credit: Arc<Semaphore>,
}

impl Mux {
    fn new(out: mpsc::UnboundedSender<Bytes>, end: CancellationToken) -> Self {
        let (routes, last_words, is_ready) = (Mutex::default(), Mutex::default(), watch::Sender::new(None));
        Self { out, routes, last_words, is_ready, scripts_directory: OnceLock::new(), end }
    }

    /// Wraps the streams of a first process. `first` is its first input. A message that breaks the protocol ends it.
    pub(super) fn start(stdio: Stdio, first: Vec<Bytes>, end: &CancellationToken) -> Arc<Self> {
        let (out, messages) = mpsc::unbounded_channel();
        let mux = Arc::new(Self::new(out, end.clone()));
        let Stdio { mut output, input } = stdio;
        tokio::spawn(feed(input, first, messages));
        let listener = Arc::clone(&mux);
        tokio::spawn(async move {
            let mut buffer = BytesMut::new();
            loop {
                let output = tokio::select! {
                    output = output.next() => output,
                    () = listener.end.cancelled() => None,
                };
                match output {
                    Some(Ok(OutputChunk::Out(message))) => {
                        buffer.extend_from_slice(&message);
                        if listener.take(&mut buffer).is_none() {
                            listener.end.cancel();
                            break;
                        }
                    }
                    Some(Ok(OutputChunk::Err(message))) => listener.keep_words(&message),
                    Some(Err(reason)) => {
                        listener.keep_words(reason.as_bytes());
                        break;
                    }
                    None => break,
                }
            }
            listener.close();
        });
        mux
    }

    /// Waits until kernels can be started.
    pub(super) async fn ready(&self, limit: Duration, origin: &str) -> Result<(), Error> {
        let mut ready = self.is_ready.subscribe();
        match timeout(limit, ready.wait_for(Option::is_some)).await {
            Ok(Ok(ready)) if *ready == Some(true) => Ok(()),
            Ok(_) => {
                let words = self.last_words.lock().clone();
                let mend = if words.contains("IPython") {
                    format!("; the {origin} needs IPython, as templates/default has it")
                } else if words.is_empty() {
                    format!("; the {origin} needs `python3` in its path")
                } else {
                    String::new()
                };
                Err(Error::Setup(format!("the sandbox ended before it was ready: {}{mend}", words.trim())))
            }
            Err(_) => Err(Error::Timeout { what: "first word of the sandbox", limit }),
        }
    }

    /// Returns true as long as something can be started.
    pub(super) fn is_ready(&self) -> bool {
        *self.is_ready.borrow() == Some(true)
    }

    /// Asks for a kernel, unless so many live.
    pub(super) fn start_kernel(&self, number: u32, most: usize) -> Result<KernelStreams, Error> {
        let items = Arc::new(Items::default());
        let (exit, credit) = (watch::Sender::new(None), Arc::new(Semaphore::new(WINDOW)));
        let receiver_of = Receiver::Kernel { items: Arc::clone(&items), answers: 1, exit: exit.clone() };
        let credit_of = Arc::clone(&credit);
        let route = Route { left: [Some(WINDOW); 3], credit: credit_of, window: WINDOW, receiver: receiver_of };
        let mut routes = self.routes.lock();
        let is_kernel = |route: &&Route| matches!(route.receiver, Receiver::Kernel { .. }) && route.is_alive();
        if routes.values().filter(is_kernel).count() >= most {
            return Err(Error::Full);
        }
        routes.insert(number, route);
        drop(routes);
        if self.out.is_closed() || !self.is_ready() {
            exit.send_replace(Some(KernelExit::default()));
        }
        self.send(Kind::Kernel, number, 0, &[]);
        Ok(KernelStreams { items, exit, credit })
    }

    /// Asks for a command or a connection.
    pub(super) fn open(&self, number: u32, wish: &ChannelTarget<'_>) -> Result<ChannelStreams, Error> {
        let (started, answer) = oneshot::channel();
        let [output, errors] = [(); 2].map(|()| Arc::<Incoming>::default());
        let (ended, end) = oneshot::channel();
        let credit = Arc::new(Semaphore::new(CHANNEL_WINDOW));
        let is_command = matches!(wish, ChannelTarget::Command(_));
        let receiver = Receiver::Channel {
            started: Some(started),
            streams: [Arc::clone(&output), Arc::clone(&errors)],
            ended: Some(ended).filter(|_| is_command),
        };
        // Input streams send only their end.
        let left = if is_command {
            [Some(0), Some(CHANNEL_WINDOW + LAST_BYTES), Some(CHANNEL_WINDOW + LAST_BYTES)]
        } else {
            [Some(0), Some(CHANNEL_WINDOW), None]
        };
        let mut routes = self.routes.lock();
        let is_channel = |route: &&Route| matches!(route.receiver, Receiver::Channel { .. });
        if routes.values().filter(is_channel).count() >= MAX_CHANNELS {
            return Err(Error::Full);
        }
        // At the end, this flag is set before the routes are closed.
        if !self.is_ready() {
            return Err(Error::KernelGone("the sandbox has ended".into()));
        }
        routes.insert(number, Route { left, credit: Arc::clone(&credit), window: CHANNEL_WINDOW, receiver });
        drop(routes);
        match wish {
            ChannelTarget::Command(command) => self.send(Kind::Spawn, number, 0, command),
            ChannelTarget::Port(port) => self.send(Kind::Connect, number, 0, &port.to_be_bytes()),
        }
        Ok(ChannelStreams { started: answer, output, errors, ended: end, credit })
    }

    /// Ends a stream: no more input goes in, or no more output comes.
    pub(super) fn close_stream(&self, number: u32, stream: u8) {
        self.send(Kind::Close, number, stream, &[]);
    }

    /// Changes the size of a command's terminal.
    pub(super) fn resize(&self, number: u32, size: PtySize) {
        let PtySize { columns, rows } = size;
        let [[c0, c1], [r0, r1]] = [columns, rows].map(u16::to_be_bytes);
        self.send(Kind::Resize, number, 0, &[c0, c1, r0, r1]);
    }

    /// Returns the directory of the kernel's scripts, once kernels can be started.
    pub(super) fn scripts_directory(&self) -> Option<&str> {
        self.scripts_directory.get().map(String::as_str)
    }

    /// Ends a kernel, a command or a connection, and forgets it.
    pub(super) fn forget(&self, number: u32) {
        self.send(Kind::End, number, 0, &[]);
        self.routes.lock().remove(&number);
    }

    /// Returns true if a command, or a kernel other than this one, lives.
    pub(super) fn has_others(&self, number: u32) -> bool {
        self.routes.lock().iter().any(|(other, route)| *other != number && route.is_alive())
    }

    /// Sends a kernel a piece of at most [`CHUNK`] bytes, which must be within its window.
    pub(super) fn data(&self, number: u32, bytes: &[u8]) {
        self.send(Kind::Data, number, 0, bytes);
    }

    /// Sends a signal; with `for_good`, to the checkpoint as well.
    pub(super) fn signal(&self, number: u32, signal: u8, for_good: bool) {
        self.send(Kind::Signal, number, u8::from(for_good), &[signal]);
    }

    /// Wakes a kernel's checkpoint.
    pub(super) fn restore(&self, number: u32) {
        if let Some(Route { receiver: Receiver::Kernel { answers, .. }, .. }) = self.routes.lock().get_mut(&number) {
            *answers += 1;
        }
        self.send(Kind::Restore, number, 0, &[]);
    }

    /// Lets a stream send as much again as was taken from it.
    pub(super) fn grant(&self, number: u32, stream: usize, count: usize) {
        if let Some(Some(left)) = self.routes.lock().get_mut(&number).and_then(|route| route.left.get_mut(stream)) {
            *left += count;
        }
        self.send(Kind::Grant, number, stream as u8, &(count as u32).to_be_bytes());
    }

    fn send(&self, kind: Kind, number: u32, stream: u8, payload: &[u8]) {
        let mut message = BytesMut::with_capacity(HEADER_BYTES + payload.len());
        message.put_u8(kind as u8);
        message.put_u32(number);
        message.put_u8(stream);
        message.put_u32(payload.len() as u32);
        message.put_slice(payload);
        self.out.send(message.freeze()).ignore("the end of the program is reported elsewhere");
    }

    /// Handles the complete messages; `None` for one that breaks the protocol.
    fn take(&self, buffer: &mut BytesMut) -> Option<()> {
        while let Some(mut header) = buffer.get(..HEADER_BYTES) {
            let (kind, number, stream, length) =
                (header.get_u8(), header.get_u32(), header.get_u8(), header.get_u32() as usize);
            if length > CHUNK {
                return None;
            }
            if buffer.len() < HEADER_BYTES + length {
                break;
            }
            buffer.advance(HEADER_BYTES);
            let payload = buffer.split_to(length).freeze();
            let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind)?;
            self.handle(kind, number, usize::from(stream), &payload)?;
        }
        Some(())
    }

    fn handle(&self, kind: Kind, number: u32, stream: usize, payload: &Bytes) -> Option<()> {
        if kind == Kind::Ready {
            self.scripts_directory.set(String::from_utf8_lossy(payload).into_owned()).ignore("the first report counts");
            self.is_ready.send_if_modified(|ready| ready.replace(true).is_none());
            return Some(());
        }
        if kind == Kind::Failed && number == 0 {
            self.keep_words(payload);
            return Some(());
        }
        let mut routes = self.routes.lock();
        // The route was removed meanwhile.
        let Some(route) = routes.get_mut(&number) else { return Some(()) };
        match kind {
            // An empty message would not use up the window.
            Kind::Data if payload.is_empty() => None,
            Kind::Data => {
                let left = route.left.get_mut(stream)?.as_mut()?;
                *left = left.checked_sub(payload.len())?;
                route.receiver.pass_on(stream, payload)
            }
            Kind::Grant => {
                let count = u32::from_be_bytes(payload.get(..4)?.try_into().ok()?) as usize;
                // At most the used part of the window can be granted.
                let most = route.window.checked_sub(route.credit.available_permits())?;
                route.credit.add_permits(count.min(most));
                Some(())
            }
            Kind::Close => {
                route.left.get_mut(stream)?.take()?;
                match &mut route.receiver {
                    Receiver::Kernel { .. } => return None,
                    // The reader of the input is gone.
                    Receiver::Channel { .. } if stream == 0 => route.credit.close(),
                    Receiver::Channel { streams, .. } => streams.get(stream - 1)?.end(),
                }
                Some(())
            }
            Kind::Exited => {
                let ProcessExit { code, out_of_memory } = serde_json::from_slice(payload).ok()?;
                let status = if code < 0 { ExitStatus::Signal(code.saturating_neg()) } else { ExitStatus::Code(code) };
                route.receiver.exited(status, out_of_memory)
            }
            Kind::Started | Kind::Restored | Kind::Failed => route.receiver.answered(kind, stream, payload),
            Kind::Kernel
            | Kind::Signal
            | Kind::End
            | Kind::Restore
            | Kind::Ready
            | Kind::Spawn
            | Kind::Connect
            | Kind::Resize => None,
        }
    }

    fn keep_words(&self, bytes: &[u8]) {
        let mut words = self.last_words.lock();
        words.push_str(&String::from_utf8_lossy(bytes));
        let cut = words.floor_char_boundary(words.len().saturating_sub(LAST_WORDS_BYTES));
        words.drain(..cut);
    }

    /// The first process has ended.
    fn close(&self) {
        self.is_ready.send_replace(Some(false));
        for route in self.routes.lock().values_mut() {
            match &mut route.receiver {
                Receiver::Kernel { exit, .. } => {
                    exit.send_if_modified(|exit| {
                        let is_first = exit.is_none();
                        exit.get_or_insert_default();
                        is_first
                    });
                }
                Receiver::Channel { started, streams, ended } => {
                    (*started, *ended) = (None, None);
                    streams.iter().for_each(|stream| stream.end());
                    route.credit.close();
                }
            }
        }
    }
}

impl Route {
    /// Returns true for a kernel or a command that has not ended.
    fn is_alive(&self) -> bool {
        match &self.receiver {
            Receiver::Kernel { exit, .. } => exit.borrow().is_none(),
            Receiver::Channel { ended, .. } => ended.is_some(),
        }
    }
}

impl Receiver {
    /// Passes on bytes of a stream; `None` if too much waits.
    fn pass_on(&self, stream: usize, bytes: &Bytes) -> Option<()> {
        match self {
            Self::Kernel { items, .. } => items.push(match stream {
                0 => KernelItem::of(None, bytes),
                1 => KernelItem::of(Some(OutputStream::Stdout), bytes),
                _ => KernelItem::of(Some(OutputStream::Stderr), bytes),
            }),
            Self::Channel { streams, .. } => {
                streams.get(stream.checked_sub(1)?)?.push(bytes);
                Some(())
            }
        }
    }

    /// Reports the end of a process; `None` if it was reported before.
    fn exited(&mut self, status: ExitStatus, out_of_memory: Option<u64>) -> Option<()> {
        match self {
            Self::Kernel { exit, .. } => {
                exit.send_replace(Some(KernelExit { status: Some(status), out_of_memory }));
            }
            Self::Channel { ended, .. } => {
                ended.take()?.send(Some(status)).ignore("the receiver may be gone");
            }
        }
        Some(())
    }

    /// Passes on an answer; `None` for one without a request.
    fn answered(&mut self, kind: Kind, stream: usize, payload: &[u8]) -> Option<()> {
        let words = || String::from_utf8_lossy(payload).into_owned();
        match (self, kind) {
            (Self::Kernel { items, answers, .. }, Kind::Restored | Kind::Failed) => {
                *answers = answers.checked_sub(1)?;
                let is_restored = payload.first() == Some(&1);
                let item = if kind == Kind::Restored {
                    KernelItem::Restored(is_restored)
                } else {
                    KernelItem::Failed(words())
                };
                items.push(item)?;
            }
            (Self::Channel { started, .. }, Kind::Started | Kind::Failed) => {
                let id = payload.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
                let refusal = ChannelRefusal { is_closed: stream == 1, reason: words() };
                started
                    .take()?
                    .send(if kind == Kind::Started { Ok(id?) } else { Err(refusal) })
                    .ignore("the caller may be gone");
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mux() -> Mux {
        let (out, _nobody) = mpsc::unbounded_channel();
        let mux = Mux::new(out, CancellationToken::new());
        mux.is_ready.send_replace(Some(true));
        mux
    }

    /// Handles messages of a sandbox, and returns true if they follow the protocol.
    fn keeps(mux: &Mux, kind: Kind, stream: u8, payload: &[u8], count: usize) -> bool {
        let mut message = BytesMut::new();
        message.put_u8(kind as u8);
        message.put_u32(1);
        message.put_u8(stream);
        message.put_u32(payload.len() as u32);
        message.put_slice(payload);
        (0..count).all(|_| mux.take(&mut message.clone()).is_some())
    }

    #[test]
    fn what_a_sandbox_says_unasked_is_bounded() {
        for (kind, stream, payload, most) in [
            (Kind::Data, 1, &[b'x'; CHUNK][..], WINDOW / CHUNK),
            (Kind::Data, 0, &[][..], 0),
            (Kind::Data, 3, &[b'x'][..], 0),
            (Kind::Restored, 0, &[1][..], 1),
            (Kind::Failed, 0, &[b'x'][..], 1),
            (Kind::Started, 0, &[][..], 0),
        ] {
            let mux = mux();
            let _streams = mux.start_kernel(1, 1).unwrap();
            assert!(keeps(&mux, kind, stream, payload, most), "{kind:?}");
            assert!(!keeps(&mux, kind, stream, payload, 1), "{kind:?}");
        }
        for (kind, stream, payload, most) in [
            (Kind::Data, 0, &[b'x'][..], 0),
            (Kind::Data, 2, &[b'x'; CHUNK][..], (CHANNEL_WINDOW + LAST_BYTES) / CHUNK),
            (Kind::Close, 2, &[][..], 1),
            (Kind::Started, 0, &[0; 4][..], 1),
            (Kind::Started, 0, &[0; 3][..], 0),
            (Kind::Failed, 0, &[b'x'][..], 1),
            (Kind::Restored, 0, &[1][..], 0),
            (Kind::Exited, 0, &br#"{"code":0,"out_of_memory":null}"#[..], 1),
        ] {
            let mux = mux();
            let _streams = mux.open(1, &ChannelTarget::Command(b"{}")).unwrap();
            assert!(keeps(&mux, kind, stream, payload, most), "{kind:?}");
            assert!(!keeps(&mux, kind, stream, payload, 1), "{kind:?}");
        }
        for (kind, stream) in [(Kind::Data, 2), (Kind::Close, 2), (Kind::Exited, 0)] {
            let mux = mux();
            let _streams = mux.open(1, &ChannelTarget::Port(80)).unwrap();
            assert!(!keeps(&mux, kind, stream, br#"{"code":0,"out_of_memory":null}"#, 1), "{kind:?}");
        }
        // Small pieces take no more memory than large ones, and alternating streams are bounded in number.
        let mux = mux();
        let streams = mux.start_kernel(1, 1).unwrap();
        assert!(keeps(&mux, Kind::Data, 1, b"x", WINDOW));
        assert_eq!(streams.items.waiting(), WINDOW / CHUNK);
        assert!((0..WINDOW).any(|place| !keeps(&mux, Kind::Data, (place % 2 * 2) as u8, b"x", 1)));
        assert!(streams.items.waiting() < WINDOW / 32);
        let mux = self::mux();
        let _streams = mux.start_kernel(1, 1).unwrap();
        mux.restore(1);
        assert!(keeps(&mux, Kind::Restored, 0, &[1], 2) && !keeps(&mux, Kind::Restored, 0, &[1], 1));
    }

    #[test]
    fn channels_are_bounded() {
        let mux = mux();
        let open = |number| mux.open(number, &ChannelTarget::Port(80));
        let held: Vec<_> = (0..MAX_CHANNELS as u32).map(|number| open(number).unwrap()).collect();
        assert!(matches!(open(1000), Err(Error::Full)));
        mux.forget(7);
        assert!(open(1000).is_ok());
        drop(held);
    }

    #[test]
    fn the_end_of_a_sandbox_is_the_end_of_its_channels() {
        let mux = mux();
        let streams = mux.open(1, &ChannelTarget::Command(b"{}")).unwrap();
        let ended = |stream: &Incoming| {
            let (mut buffer, context) = ([0; 1], std::task::Context::from_waker(std::task::Waker::noop()));
            stream.poll_take(&context, &mut tokio::io::ReadBuf::new(&mut buffer)) == std::task::Poll::Ready(0)
        };
        assert!(!ended(&streams.output) && !ended(&streams.errors));
        mux.close();
        assert!(ended(&streams.output) && ended(&streams.errors));
        assert!(streams.credit.is_closed() && streams.started.blocking_recv().is_err());
        assert!(streams.ended.blocking_recv().is_err());
        assert!(matches!(mux.open(2, &ChannelTarget::Port(80)), Err(Error::KernelGone(_))));
    }
}
