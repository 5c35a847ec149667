//! The kernels of one sandbox over its one pair of streams. The other end is `kernel/first_process.py`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_util::bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::sync::CancellationToken;

use super::items::{Item, Items};
use super::{Printed, Stdio, feed};
use crate::link::{Exit, Stream};
use crate::process::ExitStatus;
use crate::{Error, Usage};

/// Bytes of one message's payload.
pub(super) const CHUNK: usize = 64 << 10;
/// Bytes of a stream that may be under way.
pub(super) const WINDOW: usize = 1 << 20;
/// Bytes of a message's header.
const HEADER: usize = 10;
/// Bytes of the error output that are kept, for telling why a sandbox ended.
const LAST_WORDS: usize = 2 << 10;

/// Kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Kernel = 1,
    Data,
    Signal,
    End,
    Resume,
    Grant,
    Started,
    Failed,
    Exited,
    Resumed,
    Ready,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Kernel,
        Self::Data,
        Self::Signal,
        Self::End,
        Self::Resume,
        Self::Grant,
        Self::Started,
        Self::Failed,
        Self::Exited,
        Self::Resumed,
        Self::Ready,
    ];
}

/// The end of a kernel, as the first process tells it.
#[derive(Deserialize)]
struct Exited {
    code: i32,
    oom_kills: u64,
}

struct Route {
    items: Arc<Items>,
    /// Bytes that each stream may still send.
    left: [usize; 3],
    /// Answers that may still come: one about its start, and one for each wish for its checkpoint.
    answers: usize,
    exit: watch::Sender<Option<Exit>>,
    credit: Arc<Semaphore>,
}

/// The streams of a sandbox's first process.
pub(super) struct Mux {
    out: mpsc::UnboundedSender<Bytes>,
    routes: Mutex<HashMap<u32, Route>>,
    /// The last words of the first process, for the reason of its end.
    last_words: Mutex<String>,
    is_ready: watch::Sender<Option<bool>>,
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
    pub(super) exit: watch::Sender<Option<Exit>>,
    pub(super) credit: Arc<Semaphore>,
}

impl Mux {
    /// Takes over the streams of a first process. `first` is what it reads first; a message that breaks the rules ends it.
    pub(super) fn start(stdio: Stdio, first: Vec<Bytes>, end: &CancellationToken) -> Arc<Self> {
        let (out, messages) = mpsc::unbounded_channel();
        let (routes, last_words, is_ready) = (Mutex::default(), Mutex::default(), watch::Sender::new(None));
        let mux = Arc::new(Self { out, routes, last_words, is_ready, end: end.clone() });
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
                    Some(Ok(Printed::Out(message))) => {
                        buffer.extend_from_slice(&message);
                        if listener.take(&mut buffer).is_none() {
                            listener.end.cancel();
                            break;
                        }
                    }
                    Some(Ok(Printed::Err(message))) => listener.keep_words(&message),
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
                let words = lock(&self.last_words).clone();
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

    /// Asks for a kernel.
    pub(super) fn start_kernel(&self, number: u32) -> KernelStreams {
        let items = Arc::new(Items::default());
        let (exit, credit) = (watch::Sender::new(None), Arc::new(Semaphore::new(WINDOW)));
        let route = Route {
            items: Arc::clone(&items),
            left: [WINDOW; 3],
            answers: 1,
            exit: exit.clone(),
            credit: Arc::clone(&credit),
        };
        lock(&self.routes).insert(number, route);
        if self.out.is_closed() || *self.is_ready.borrow() != Some(true) {
            exit.send_replace(Some(Exit::default()));
        }
        self.send(Kind::Kernel, number, 0, &[]);
        KernelStreams { items, exit, credit }
    }

    /// Forgets a kernel.
    pub(super) fn forget(&self, number: u32) {
        self.send(Kind::End, number, 0, &[]);
        lock(&self.routes).remove(&number);
    }

    /// Returns true if a kernel other than this one lives.
    pub(super) fn has_others(&self, number: u32) -> bool {
        lock(&self.routes).iter().any(|(other, route)| *other != number && route.exit.borrow().is_none())
    }

    /// Returns how many kernels live.
    pub(super) fn living(&self) -> usize {
        lock(&self.routes).values().filter(|route| route.exit.borrow().is_none()).count()
    }

    /// Sends a kernel a piece of at most [`CHUNK`] bytes, for which it has room.
    pub(super) fn data(&self, number: u32, bytes: &[u8]) {
        self.send(Kind::Data, number, 0, bytes);
    }

    /// Sends a signal; one that is for good ends the checkpoint, too.
    pub(super) fn signal(&self, number: u32, signal: u8, for_good: bool) {
        self.send(Kind::Signal, number, u8::from(for_good), &[signal]);
    }

    /// Wakes a kernel's checkpoint.
    pub(super) fn resume(&self, number: u32) {
        if let Some(route) = lock(&self.routes).get_mut(&number) {
            route.answers += 1;
        }
        self.send(Kind::Resume, number, 0, &[]);
    }

    /// Lets a stream send as much again as was taken from it.
    pub(super) fn grant(&self, number: u32, stream: usize, count: usize) {
        if let Some(left) = lock(&self.routes).get_mut(&number).and_then(|route| route.left.get_mut(stream)) {
            *left += count;
        }
        self.send(Kind::Grant, number, stream as u8, &(count as u32).to_be_bytes());
    }

    fn send(&self, kind: Kind, number: u32, stream: u8, payload: &[u8]) {
        let mut message = BytesMut::with_capacity(HEADER + payload.len());
        message.put_u8(kind as u8);
        message.put_u32(number);
        message.put_u8(stream);
        message.put_u32(payload.len() as u32);
        message.put_slice(payload);
        // One that has ended tells its end another way.
        let _ended = self.out.send(message.freeze());
    }

    /// Takes the messages that are complete; `None` for one that breaks the rules.
    fn take(&self, buffer: &mut BytesMut) -> Option<()> {
        while let Some(mut header) = buffer.get(..HEADER) {
            let (kind, number, stream, length) =
                (header.get_u8(), header.get_u32(), header.get_u8(), header.get_u32() as usize);
            if length > CHUNK {
                return None;
            }
            if buffer.len() < HEADER + length {
                break;
            }
            buffer.advance(HEADER);
            let payload = buffer.split_to(length).freeze();
            let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind)?;
            self.handle(kind, number, usize::from(stream), payload)?;
        }
        Some(())
    }

    fn handle(&self, kind: Kind, number: u32, stream: usize, payload: Bytes) -> Option<()> {
        if kind == Kind::Ready {
            self.is_ready.send_if_modified(|ready| ready.replace(true).is_none());
            return Some(());
        }
        if kind == Kind::Failed && number == 0 {
            self.keep_words(&payload);
            return Some(());
        }
        let mut routes = lock(&self.routes);
        // One that was forgotten meanwhile.
        let Some(route) = routes.get_mut(&number) else { return Some(()) };
        let item = match kind {
            // An empty one would use up nothing.
            Kind::Data if payload.is_empty() => return None,
            Kind::Data => {
                let left = route.left.get_mut(stream)?;
                *left = left.checked_sub(payload.len())?;
                match stream {
                    0 => Item::of(None, &payload),
                    1 => Item::of(Some(Stream::Stdout), &payload),
                    _ => Item::of(Some(Stream::Stderr), &payload),
                }
            }
            Kind::Grant => {
                let count = u32::from_be_bytes(payload.get(..4)?.try_into().ok()?) as usize;
                // No more than was used.
                let most = WINDOW.checked_sub(route.credit.available_permits())?;
                route.credit.add_permits(count.min(most));
                return Some(());
            }
            Kind::Exited => {
                let Exited { code, oom_kills } = serde_json::from_slice(&payload).ok()?;
                let status = if code < 0 { ExitStatus::Signal(code.saturating_neg()) } else { ExitStatus::Code(code) };
                let usage = Usage { oom_kills, ..Usage::default() };
                route.exit.send_replace(Some(Exit { status: Some(status), usage }));
                return Some(());
            }
            Kind::Resumed | Kind::Failed => {
                route.answers = route.answers.checked_sub(1)?;
                match kind {
                    Kind::Resumed => Item::Resumed(payload.first() == Some(&1)),
                    _ => Item::Failed(String::from_utf8_lossy(&payload).into_owned()),
                }
            }
            Kind::Kernel | Kind::Signal | Kind::End | Kind::Resume | Kind::Started | Kind::Ready => return None,
        };
        route.items.push(item)
    }

    fn keep_words(&self, bytes: &[u8]) {
        let mut words = lock(&self.last_words);
        words.push_str(&String::from_utf8_lossy(bytes));
        let cut = words.floor_char_boundary(words.len().saturating_sub(LAST_WORDS));
        words.drain(..cut);
    }

    /// The first process has ended.
    fn close(&self) {
        self.is_ready.send_replace(Some(false));
        for route in lock(&self.routes).values() {
            route.exit.send_if_modified(|exit| {
                let is_first = exit.is_none();
                exit.get_or_insert_default();
                is_first
            });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while holding it leaves plain data that is still consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mux() -> Mux {
        let (out, _nobody) = mpsc::unbounded_channel();
        let (routes, last_words) = (Mutex::default(), Mutex::default());
        Mux { out, routes, last_words, is_ready: watch::Sender::new(Some(true)), end: CancellationToken::new() }
    }

    /// Tells messages of a sandbox, and returns true if they keep the rules.
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
            (Kind::Resumed, 0, &[1][..], 1),
            (Kind::Failed, 0, &[b'x'][..], 1),
            (Kind::Started, 0, &[][..], 0),
        ] {
            let mux = mux();
            let _streams = mux.start_kernel(1);
            assert!(keeps(&mux, kind, stream, payload, most), "{kind:?}");
            assert!(!keeps(&mux, kind, stream, payload, 1), "{kind:?}");
        }
        // Small pieces take no more memory than large ones, and those of streams in turn are bounded in number.
        let mux = mux();
        let streams = mux.start_kernel(1);
        assert!(keeps(&mux, Kind::Data, 1, b"x", WINDOW));
        assert_eq!(streams.items.waiting(), WINDOW / CHUNK);
        assert!((0..WINDOW).any(|place| !keeps(&mux, Kind::Data, (place % 2 * 2) as u8, b"x", 1)));
        assert!(streams.items.waiting() < WINDOW / 32);
        let mux = self::mux();
        let _streams = mux.start_kernel(1);
        mux.resume(1);
        assert!(keeps(&mux, Kind::Resumed, 0, &[1], 2) && !keeps(&mux, Kind::Resumed, 0, &[1], 1));
    }
}
