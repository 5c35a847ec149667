//! Pipes and terminals that the host shares with programs.
//!
//! Linux holds a pipe's lock while a process copies from or to its own memory, and a program can make that last for as long as it likes.
//! Any call on the other end waits for the lock, nonblocking ones and the last close too, and no signal ends the wait. So threads that
//! nobody else needs make these calls. Readiness takes no lock.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::task::JoinHandle;

use crate::guest_threads;

/// Bytes that are read or written by one call: as many as a pipe holds.
const PIPE_BUFFER: usize = 64 << 10;

/// A mark on a sandbox in which programs may run. Before that, calls on its pipes are made at once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Touched(Arc<AtomicBool>);

impl Touched {
    /// A mark that is set.
    pub(crate) fn set() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// Sets it.
    pub(crate) fn touch(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns true if it is set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The host's end of a pipe or a terminal.
#[derive(Debug)]
struct GuestEnd {
    /// `None` once it is closed.
    descriptor: Option<AsyncFd<Arc<OwnedFd>>>,
    touched: Touched,
}

impl GuestEnd {
    fn new(descriptor: OwnedFd, touched: Touched, interest: Interest) -> io::Result<Self> {
        fcntl_setfl(&descriptor, fcntl_getfl(&descriptor)? | OFlags::NONBLOCK)?;
        #[allow(deprecated, reason = "its successor is unsafe; this descriptor is owned while it is registered")]
        let descriptor = AsyncFd::with_interest(Arc::new(descriptor), interest)?;
        Ok(Self { descriptor: Some(descriptor), touched })
    }

    /// Returns true if a call would find something, without taking a lock.
    fn is_ready(&self, events: PollFlags) -> bool {
        let Some(descriptor) = &self.descriptor else { return false };
        let mut asked = [PollFd::new(descriptor.get_ref(), events)];
        poll(&mut asked, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl Drop for GuestEnd {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            let descriptor = descriptor.into_inner();
            guest_threads::spawn(move || drop(descriptor));
        }
    }
}

/// The host's end of a pipe or a terminal that programs write to.
#[derive(Debug)]
pub(crate) struct GuestReader {
    end: GuestEnd,
    /// A call on its way.
    reading: Option<JoinHandle<io::Result<Vec<u8>>>>,
    /// Bytes that were read and not taken yet.
    left: Vec<u8>,
}

impl GuestReader {
    /// Reads from this descriptor.
    pub(crate) fn new(descriptor: OwnedFd, touched: Touched) -> io::Result<Self> {
        Ok(Self { end: GuestEnd::new(descriptor, touched, Interest::READABLE)?, reading: None, left: Vec::new() })
    }

    /// Returns true if there is something to be read, or the end.
    pub(crate) fn has_some(&self) -> bool {
        self.reading.is_some() || self.end.is_ready(PollFlags::IN)
    }

    /// Waits for bytes, and returns those that are there; none at the end. Cancel-safe.
    pub(crate) async fn read(&mut self) -> io::Result<Vec<u8>> {
        std::future::poll_fn(|context| self.poll_some(context)).await
    }

    fn poll_some(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        loop {
            let done = match &mut self.reading {
                Some(reading) => {
                    let done = ready!(Pin::new(reading).poll(context));
                    self.reading = None;
                    done.map_err(io::Error::other)?
                }
                None => {
                    let Some(descriptor) = &self.end.descriptor else { return Poll::Ready(Ok(Vec::new())) };
                    let mut is_ready = ready!(descriptor.poll_read_ready(context))?;
                    if !self.end.is_ready(PollFlags::IN) {
                        is_ready.clear_ready();
                        continue;
                    }
                    let descriptor = Arc::clone(descriptor.get_ref());
                    if self.end.touched.is_set() {
                        self.reading = Some(guest_threads::spawn(move || read_available(&descriptor)));
                        continue;
                    }
                    read_available(&descriptor)
                }
            };
            match done {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

/// Reads the bytes that are there; none at the end.
fn read_available(descriptor: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(PIPE_BUFFER);
    match rustix::io::read(descriptor, rustix::buffer::spare_capacity(&mut bytes)) {
        // The end of a terminal that no program has open.
        Ok(_) | Err(Errno::IO) => {
            bytes.shrink_to_fit();
            Ok(bytes)
        }
        Err(error) => Err(error.into()),
    }
}

impl AsyncRead for GuestReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left.is_empty() {
            self.left = ready!(self.poll_some(context))?;
        }
        let count = self.left.len().min(buffer.remaining());
        buffer.put_slice(self.left.drain(..count).as_slice());
        Poll::Ready(Ok(()))
    }
}

/// The host's end of a pipe or a terminal that programs read from.
#[derive(Debug)]
pub(crate) struct GuestWriter {
    end: GuestEnd,
    writing: Option<PendingWrite>,
}

/// A write on its way, which goes on if its caller gives up.
#[derive(Debug)]
struct PendingWrite {
    /// The address and the length of the bytes that its caller gave.
    given: (usize, usize),
    call: JoinHandle<(Vec<u8>, io::Result<usize>)>,
}

impl GuestWriter {
    /// Writes to this descriptor.
    pub(crate) fn new(descriptor: OwnedFd, touched: Touched) -> io::Result<Self> {
        Ok(Self { end: GuestEnd::new(descriptor, touched, Interest::WRITABLE)?, writing: None })
    }
}

impl AsyncWrite for GuestWriter {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let given = (bytes.as_ptr().addr(), bytes.len());
        loop {
            let done = match &mut self.writing {
                Some(PendingWrite { given: before, call }) => {
                    let (done, is_own) = (ready!(Pin::new(call).poll(context)), *before == given);
                    self.writing = None;
                    let (piece, written) = done.map_err(io::Error::other)?;
                    if !is_own || !bytes.starts_with(&piece) {
                        // Of a caller who gave up: these bytes come after.
                        continue;
                    }
                    written
                }
                None => {
                    let Some(descriptor) = &self.end.descriptor else {
                        return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                    };
                    let mut is_ready = ready!(descriptor.poll_write_ready(context))?;
                    if !self.end.is_ready(PollFlags::OUT) {
                        is_ready.clear_ready();
                        continue;
                    }
                    let descriptor = Arc::clone(descriptor.get_ref());
                    let piece = bytes.get(..PIPE_BUFFER).unwrap_or(bytes);
                    if self.end.touched.is_set() {
                        let piece = piece.to_vec();
                        let call = guest_threads::spawn(move || {
                            let written = rustix::io::write(&descriptor, &piece).map_err(io::Error::from);
                            (piece, written)
                        });
                        self.writing = Some(PendingWrite { given, call });
                        continue;
                    }
                    rustix::io::write(&descriptor, piece).map_err(io::Error::from)
                }
            };
            match done {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use rustix::pipe::{SpliceFlags, splice};
    use tokio::io::AsyncWriteExt;
    use tokio::time::timeout;

    use super::*;

    const HELD: Duration = Duration::from_secs(2);

    /// A pipe with a page in it, whose lock another thread holds, by a copy to a socket that takes nothing, for [`HELD`].
    fn held_pipe() -> (OwnedFd, OwnedFd) {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(&[b'x'; 4096]).unwrap();
        let (mut full, mut other) = UnixStream::pair().unwrap();
        full.set_nonblocking(true).unwrap();
        while full.write(&[0; 1 << 16]).is_ok() {}
        full.set_nonblocking(false).unwrap();
        let pipe = reader.try_clone().unwrap();
        std::thread::spawn(move || splice(&pipe, None, &full, None, 1, SpliceFlags::empty()));
        std::thread::spawn(move || {
            std::thread::sleep(HELD);
            other.read_to_end(&mut Vec::new())
        });
        // It has the lock by then.
        std::thread::sleep(Duration::from_millis(200));
        (reader.into(), writer.into())
    }

    #[tokio::test]
    async fn a_pipe_that_is_held_holds_up_no_other_task() {
        let ((pipe, _other), touched) = (held_pipe(), Touched::set());
        let mut reader = GuestReader::new(pipe, touched.clone()).unwrap();
        let begun = Instant::now();
        timeout(Duration::from_millis(100), reader.read()).await.unwrap_err();
        let ((other, pipe), begun_to_write) = (held_pipe(), Instant::now());
        let mut writer = GuestWriter::new(pipe, touched).unwrap();
        timeout(Duration::from_millis(100), writer.write_all(b"given up")).await.unwrap_err();
        assert!(begun_to_write.elapsed() < HELD / 2, "{:?}", begun_to_write.elapsed());
        writer.write_all(b", and more").await.unwrap();
        drop(writer);
        let mut written = Vec::new();
        File::from(other).read_to_end(&mut written).unwrap();
        assert!(written.ends_with(b"xgiven up, and more"), "{}", written.len());
        // Bytes on their way are not lost.
        assert_eq!(reader.read().await.unwrap(), [b'x'; 4095]);
        assert!(begun.elapsed() < 2 * HELD);
    }
}
