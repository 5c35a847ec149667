//! The link to one kernel of a sandbox.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::CHUNK;
use super::SandboxHost;
use super::items::KernelItem;
use super::mux::{KernelStreams, Mux, WINDOW};
use crate::frame::{FrameBuffer, FromKernel, ToKernel, encode};
use crate::link::{KernelExit, Link, LinkControl, LinkInput, OutputStream, Signal};
use crate::{Error, Usage};

/// The longest wait for a checkpoint.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(12);
/// Bytes that are taken of a stream before the sender is granted as many more; batching keeps small reads cheap.
const GRANTED: usize = WINDOW / 4;
/// The longest wait for a kernel's first word.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The shared end of the link to a kernel. Dropping it ends the kernel.
pub(super) struct KernelControl<P> {
    mux: Arc<Mux>,
    host: Arc<P>,
    number: u32,
    checkpoint: bool,
    is_ended: AtomicBool,
    exit: watch::Sender<Option<KernelExit>>,
}

/// The exclusive end.
pub(super) struct StdioLink<P> {
    control: Arc<KernelControl<P>>,
    streams: KernelStreams,
    frames: FrameBuffer,
    /// Printed bytes that are not yet taken, by stream.
    printed: [Vec<u8>; 2],
    /// Bytes that were taken and not granted again, by stream.
    taken: [usize; 3],
}

impl<P: SandboxHost> StdioLink<P> {
    /// Waits until the kernel with these streams is ready.
    pub(super) async fn start(
        host: Arc<P>,
        mux: Arc<Mux>,
        number: u32,
        streams: KernelStreams,
        checkpoint: bool,
        start: &ToKernel<'_>,
    ) -> Result<Self, Error> {
        let exit = streams.exit.clone();
        let control = Arc::new(KernelControl { mux, host, number, checkpoint, is_ended: AtomicBool::new(false), exit });
        let mut link =
            Self { control, streams, frames: FrameBuffer::default(), printed: Default::default(), taken: [0; 3] };
        let gone = |error: io::Error| Error::KernelGone(error.to_string());
        link.send(start).await.map_err(gone)?;
        let mut exit = Link::exit(&link);
        let first = timeout(READY_TIMEOUT, async {
            tokio::select! {
                input = link.receive() => input,
                _ = exit.wait_for(Option::is_some) => Ok(LinkInput::Closed),
            }
        });
        match first.await {
            Ok(Ok(LinkInput::Frame(FromKernel::Ready, _))) => Ok(link),
            Ok(Ok(_)) => Err(Error::Setup("the kernel ended before it was ready".into())),
            Ok(Err(error)) => Err(gone(error)),
            Err(_) => Err(Error::Timeout { what: "kernel", limit: READY_TIMEOUT }),
        }
    }

    /// Buffers an item of a stream, and returns any other.
    fn take(&mut self, item: KernelItem) -> Option<KernelItem> {
        let (stream, bytes) = match item {
            KernelItem::Frames(bytes) => {
                self.frames.extend(&bytes);
                (0, bytes)
            }
            KernelItem::Printed(stream, bytes) => {
                let [stdout, stderr] = &mut self.printed;
                let (place, printed) = match stream {
                    OutputStream::Stdout => (1, stdout),
                    OutputStream::Stderr => (2, stderr),
                };
                printed.extend_from_slice(&bytes);
                (place, bytes)
            }
            other => return Some(other),
        };
        if let Some(taken) = self.taken.get_mut(stream) {
            *taken += bytes.len();
            if *taken >= GRANTED {
                self.control.mux.grant(self.control.number, stream, std::mem::take(taken));
            }
        }
        None
    }

    fn next_printed(&mut self) -> Option<LinkInput> {
        let [stdout, stderr] = &mut self.printed;
        for (stream, printed) in [(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)] {
            if !printed.is_empty() {
                return Some(LinkInput::Printed(stream, std::mem::take(printed)));
            }
        }
        None
    }
}

impl<P: SandboxHost> Link for StdioLink<P> {
    type Control = KernelControl<P>;

    fn control(&self) -> &Arc<KernelControl<P>> {
        &self.control
    }

    fn exit(&self) -> watch::Receiver<Option<KernelExit>> {
        self.control.exit.subscribe()
    }

    async fn send(&mut self, frame: &ToKernel<'_>) -> io::Result<()> {
        for piece in encode(frame)?.chunks(CHUNK) {
            let permits = self.streams.credit.acquire_many(piece.len() as u32).await.map_err(io::Error::other)?;
            permits.forget();
            self.control.mux.data(self.control.number, piece);
        }
        Ok(())
    }

    async fn receive(&mut self) -> io::Result<LinkInput> {
        loop {
            // Earlier output comes before the frames.
            if let Some(printed) = self.next_printed() {
                return Ok(printed);
            }
            if let Some(incoming) = self.frames.next()? {
                return Ok(incoming.into());
            }
            let item = self.streams.items.next().await;
            if let Some(KernelItem::Failed(reason)) = self.take(item) {
                return Err(io::Error::other(reason));
            }
        }
    }

    fn accept(&mut self) {
        self.frames.accept();
    }

    async fn printed(&mut self, stream: OutputStream) -> Vec<u8> {
        while let Some(item) = self.streams.items.try_next() {
            let _none_of_a_stream = self.take(item);
        }
        let [stdout, stderr] = &mut self.printed;
        std::mem::take(match stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        })
    }

    async fn restore(&mut self) -> bool {
        let number = self.control.number;
        if self.control.mux.has_others(number) {
            self.control.end();
            return false;
        }
        self.control.mux.restore(number);
        let restored = timeout(RESTORE_TIMEOUT, async {
            loop {
                let item = self.streams.items.next().await;
                if let Some(KernelItem::Restored(restored)) = self.take(item) {
                    return restored;
                }
            }
        });
        if !matches!(restored.await, Ok(true)) {
            return false;
        }
        // Drop a frame that the dead kernel left half-written.
        self.frames.clear();
        self.control.exit.send_replace(None);
        let first = timeout(RESTORE_TIMEOUT, async {
            loop {
                match self.receive().await {
                    // Late output of the dead kernel, dropped.
                    Ok(LinkInput::Printed(..)) => {}
                    other => return other,
                }
            }
        });
        matches!(first.await, Ok(Ok(LinkInput::Frame(FromKernel::Restored, _))))
    }
}

impl<P: SandboxHost> LinkControl for KernelControl<P> {
    fn signal(&self, signal: Signal) {
        self.mux.signal(self.number, signal.number(), false);
    }

    fn keeps_checkpoint(&self) -> bool {
        self.checkpoint && !self.is_ended.load(Ordering::Relaxed) && !self.host.end().is_cancelled()
    }

    fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
        self.mux.signal(self.number, Signal::Kill.number(), true);
    }

    fn paused(&self) -> watch::Receiver<bool> {
        self.host.paused()
    }

    async fn usage(&self) -> Usage {
        self.host.usage().await
    }
}

impl<P> Drop for KernelControl<P> {
    fn drop(&mut self) {
        self.mux.forget(self.number);
    }
}
