//! Answers that last no longer than their sandbox.

use std::sync::Arc;

use aludel_engine::sandboxes::ClientSandbox;
use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, Stream, unfold};
use futures_util::{StreamExt, TryStreamExt};

/// The chunk that ends an answer in its protocol's words if its sandbox ends first. Without this extension the body breaks off then.
#[derive(Clone)]
pub(crate) struct LastChunk(pub(crate) Bytes);

/// Returns an answer whose body ends with the sandbox; `None` if the sandbox ends before there is an answer, or a pause that keeps no
/// memory has made it fail.
pub(crate) async fn while_alive(
    sandbox: &Arc<ClientSandbox>,
    answer: impl Future<Output = Response>,
) -> Option<Response> {
    let answered = tokio::select! {
        biased;
        // Its end makes requests fail.
        () = sandbox.ended() => return None,
        response = answer => response,
    };
    if answered.status().is_server_error() && sandbox.is_paused() {
        return None;
    }
    let sandbox = Arc::clone(sandbox);
    Some(end_with(answered, async move { sandbox.ended().await }))
}

/// Returns an answer whose body ends when `ended` does.
pub(crate) fn end_with(mut answered: Response, ended: impl Future<Output = ()> + Send + 'static) -> Response {
    let last = answered.extensions_mut().remove::<LastChunk>();
    answered.map(|body| {
        // Without a length, clients would not see an empty body.
        if body.is_end_stream() {
            return body;
        }
        let cut = async move {
            ended.await;
            last.map(|LastChunk(bytes)| bytes).ok_or_else(|| std::io::Error::other("the sandbox ended"))
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
