//! Bodies of requests that were answered before the body was read.
//!
//! Most clients send a head and its body one after the other. If a request is refused by its head, its connection can only be used again
//! after the body has been read; otherwise the client has to be told that it closes, or it sends its next request into a closed connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::{CONNECTION, EXPECT};
use axum::response::Response;
use futures_util::StreamExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::timeout;

/// The most bytes of a body that are read and discarded.
const MAX_DISCARDED_BYTES: u64 = 64 << 10;
/// Time limit for reading them.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// A second handle on the body of a request, beside the handler's.
pub(super) struct UnreadBody {
    body: Arc<Mutex<Body>>,
    /// True if the client sends it only on request (`Expect: 100-continue`).
    waits: bool,
}

/// Shares the body of a request.
pub(super) fn share(request: Request) -> (Request, UnreadBody) {
    let waits = request.headers().contains_key(EXPECT);
    let (head, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body));
    let rest = UnreadBody { body: Arc::clone(&body), waits };
    (Request::from_parts(head, Body::new(SharedBody(body))), rest)
}

impl UnreadBody {
    /// Reads the rest of the body, or tells the client that the connection closes after this answer. A body that is still being read is
    /// left alone.
    pub(super) async fn clear(self, response: &mut Response) {
        let Some(body) = Arc::into_inner(self.body) else { return };
        let body = body.into_inner();
        if body.is_end_stream() {
            return;
        }
        let is_cleared = !self.waits
            && body.size_hint().lower() <= MAX_DISCARDED_BYTES
            && timeout(DISCARD_TIMEOUT, drain(body)).await == Ok(true);
        if !is_cleared {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Reads a body to its end and discards it. Returns false if it is too long.
async fn drain(body: Body) -> bool {
    let (mut pieces, mut read) = (body.into_data_stream(), 0);
    while let Some(piece) = pieces.next().await {
        read += piece.map_or(MAX_DISCARDED_BYTES + 1, |piece| piece.len() as u64);
        if read > MAX_DISCARDED_BYTES {
            return false;
        }
    }
    true
}

/// A body that is read while another handle keeps it.
struct SharedBody(Arc<Mutex<Body>>);

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.0.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().size_hint()
    }
}
