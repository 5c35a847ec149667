//! Events as a client reads them: one frame each, and a comment when there is nothing to tell for a while.
//!
//! No `id:` and no `retry:` lines: the Python client takes the blank line after a comment for an event then.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::time::timeout;
use tokio_util::sync::DropGuard;

use super::live::Live;
use super::writer::Told;

/// How long nothing may be said: proxies and clients give up on a silent connection.
pub(super) const SILENCE: Duration = Duration::from_secs(10);
const COMMENT: &str = ": keep-alive\n\n";

/// The events of a response that lives, from a place on. `guard` is dropped with the client's connection.
pub(super) fn follow(live: Arc<Live>, from: usize, guard: Option<DropGuard>) -> Response {
    let frames = unfold((live, from, guard), async |(live, place, guard)| {
        let frame = match timeout(SILENCE, live.event(place)).await {
            Err(_) => return Some((Bytes::from_static(COMMENT.as_bytes()), (live, place, guard))),
            Ok(event) => event?,
        };
        Some((Bytes::from(framed(&frame)), (live, place + 1, guard)))
    });
    respond(Body::from_stream(futures_util::StreamExt::map(frames, Ok::<_, std::convert::Infallible>)))
}

/// Events that are in the store.
pub(super) fn replay(events: &[Told]) -> Response {
    respond(Body::from(events.iter().map(framed).collect::<String>()))
}

fn framed(told: &Told) -> String {
    format!("event: {}\ndata: {}\n\n", told.kind, told.text)
}

fn respond(body: Body) -> Response {
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")], body).into_response()
}
