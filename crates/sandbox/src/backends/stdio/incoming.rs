//! Received bytes of a stream that have not been read.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::ReadBuf;
use tokio_util::bytes::{Buf, BytesMut};

/// Bytes that wait for one reader. The sender's window bounds them; one piece or many, they take the same memory.
#[derive(Debug, Default)]
pub(super) struct Incoming(Mutex<IncomingBuffer>);

#[derive(Debug, Default)]
struct IncomingBuffer {
    bytes: BytesMut,
    is_over: bool,
    reader: Option<Waker>,
}

impl Incoming {
    /// Adds bytes.
    pub(super) fn push(&self, bytes: &[u8]) {
        let mut waiting = self.0.lock();
        waiting.bytes.extend_from_slice(bytes);
        waiting.wake();
    }

    /// Ends the stream after what is there.
    pub(super) fn end(&self) {
        let mut waiting = self.0.lock();
        waiting.is_over = true;
        waiting.wake();
    }

    /// Takes bytes and returns their number; 0 at the end of the stream.
    pub(super) fn poll_take(&self, context: &Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<usize> {
        let mut waiting = self.0.lock();
        let count = waiting.bytes.len().min(buffer.remaining());
        if count == 0 && !waiting.is_over && buffer.remaining() > 0 {
            waiting.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        buffer.put_slice(waiting.bytes.get(..count).unwrap_or_default());
        waiting.bytes.advance(count);
        if waiting.bytes.is_empty() {
            // Most streams are empty most of the time.
            waiting.bytes = BytesMut::new();
        }
        Poll::Ready(count)
    }
}

impl IncomingBuffer {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}
