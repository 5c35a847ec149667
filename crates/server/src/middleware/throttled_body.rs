//! A body that takes from its tenant's share of the processors.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aludel_engine::processor_time::{ProcessorShare, Throttle};
use axum::body::{Body, Bytes, HttpBody};

/// Nanoseconds of processor time that are counted for each byte besides the body's own work: reading it from a file, and sending it. An
/// estimate, 500 MB a second, not measured separately.
const EACH_BYTE: u64 = 2;

pub(crate) struct ThrottledBody {
    body: Body,
    gate: Throttle,
}

impl ThrottledBody {
    pub(crate) fn new(body: Body, share: &ProcessorShare) -> Self {
        Self { body, gate: share.gate() }
    }
}

impl HttpBody for ThrottledBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        let Self { body, gate } = &mut *self;
        let polled = ready!(gate.poll_step(context, |context| Pin::new(body).poll_frame(context)));
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            gate.share().take(Duration::from_nanos(bytes * EACH_BYTE));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
