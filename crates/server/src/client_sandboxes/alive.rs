//! Answers that last no longer than their sandbox runs.

use std::sync::Arc;

use aludel_engine::sandboxes::ClientSandbox;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream, unfold};
use futures_util::{StreamExt, TryStreamExt};

/// The chunks that end an answer in its protocol's words if its sandbox ends first, or is paused. Without this extension the body breaks
/// off then.
#[derive(Clone)]
pub(crate) struct LastChunk {
    pub(crate) ended: Bytes,
    pub(crate) paused: Bytes,
}

/// Returns an answer whose body ends when the sandbox is paused or ends; `None` if that is before there is an answer, or has made it fail.
/// A client would wait for the rest of it without a sign for as long as the pause lasts.
pub(crate) async fn while_alive(
    sandbox: &Arc<ClientSandbox>,
    answer: impl Future<Output = Response>,
) -> Option<Response> {
    let answered = tokio::select! {
        biased;
        // Both make requests fail, or wait.
        () = sandbox.suspended_or_ended() => return None,
        response = answer => response,
    };
    if answered.status().is_server_error() && sandbox.is_paused() {
        return None;
    }
    let sandbox = Arc::clone(sandbox);
    let cut = async move {
        sandbox.suspended_or_ended().await;
        if sandbox.is_paused() { Cut::Paused } else { Cut::Ended }
    };
    Some(end_with(answered, cut))
}

/// The reason for which an answer is cut off.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    Paused,
    Ended,
}

/// Returns an answer whose body ends when `cut` does.
pub(crate) fn end_with(mut answered: Response, cut: impl Future<Output = Cut> + Send + 'static) -> Response {
    let last = answered.extensions_mut().remove::<LastChunk>();
    answered.map(|body| {
        // Without a length, clients would not see an empty body.
        if body.is_end_stream() {
            return body;
        }
        let cut = async move {
            match (cut.await, last) {
                (Cut::Paused, Some(last)) => Ok(last.paused),
                (Cut::Ended, Some(last)) => Ok(last.ended),
                (Cut::Paused, None) => Err(std::io::Error::other("the sandbox was paused")),
                (Cut::Ended, None) => Err(std::io::Error::other("the sandbox ended")),
            }
        };
        let chunks = body.into_data_stream().map_err(std::io::Error::other);
        Body::from_stream(until(chunks.boxed(), Box::pin(cut)))
    })
}

type Chunk = Result<Bytes, std::io::Error>;

/// Forwards a stream until its end, or until `cut`, whose chunk is then the last.
fn until(
    chunks: BoxStream<'static, Chunk>,
    cut: BoxFuture<'static, Chunk>,
) -> impl Stream<Item = Chunk> + Send + 'static {
    unfold(Some((chunks, cut)), async |state| {
        let (mut chunks, mut cut) = state?;
        tokio::select! {
            biased;
            chunk = chunks.next() => Some((chunk?, Some((chunks, cut)))),
            last = &mut cut => Some((last, None)),
        }
    })
}
