//! A body that limits how much its reader buffers.
//!
//! The multipart parser reads as long as the body has data, and parses afterwards: a fast client could so fill memory with a whole file, or
//! with a header without an end. So each chunk is followed by a pause, in which the parser parses, and it gets a limited amount until it
//! produces output.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, BodyDataStream, Bytes};
use futures_util::{Stream, StreamExt};

/// Bytes that a parser gets before it must produce output.
const AT_ONCE: u64 = 1 << 20;

/// Bytes that were read since the parser last produced output.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace(Arc<AtomicU64>);

impl Pace {
    /// The body that is read at this pace.
    pub(super) fn body(&self, body: Body) -> Body {
        Body::from_stream(PacedBody { stream: body.into_data_stream(), pace: self.clone(), paused: true })
    }

    /// Records that the parser has produced output.
    pub(super) fn progress(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

struct PacedBody {
    stream: BodyDataStream,
    pace: Pace,
    /// True if the pause after the last chunk is over.
    paused: bool,
}

impl Stream for PacedBody {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if !std::mem::replace(&mut self.paused, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = std::task::ready!(self.stream.poll_next_unpin(context));
        self.paused = false;
        Poll::Ready(next.map(|chunk| {
            let chunk = chunk.map_err(io::Error::other)?;
            let length = chunk.len() as u64;
            if self.pace.0.fetch_add(length, Ordering::Relaxed) + length > AT_ONCE {
                return Err(io::Error::other("a part of the form has no end"));
            }
            Ok(chunk)
        }))
    }
}
