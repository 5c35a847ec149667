//! Streams of events: each is a JSON object and an empty line.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use aludel_wire::opensandbox::code::{Event, EventKind};
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use futures_util::stream::unfold;
use tokio::time::timeout;

use super::describe::millis;
use crate::client_sandboxes::ascii_json::line;

/// Pause after which a silent stream sends a keep-alive, which also detects a client that is gone.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// A source of events.
pub(super) trait Source: Send + 'static {
    /// The next events; `None` after the last ones. Cancel-safe.
    fn next(&mut self) -> BoxFuture<'_, Option<Vec<EventKind>>>;
}

/// Answers with these events, and then those of a source.
pub(super) fn stream(first: Vec<EventKind>, source: impl Source) -> Response {
    let state = (VecDeque::from([first]), source);
    let chunks = unfold(state, async |(mut waiting, mut source)| {
        let events = match waiting.pop_front() {
            Some(events) => events,
            None => match timeout(KEEPALIVE, source.next()).await {
                Ok(events) => events?,
                Err(_) => vec![EventKind::Ping { text: "pong".to_owned() }],
            },
        };
        Some((Ok::<_, Infallible>(rendered(events)), (waiting, source)))
    });
    let mut response = Body::from_stream(chunks).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn rendered(events: Vec<EventKind>) -> Bytes {
    let timestamp = millis(SystemTime::now());
    let mut bytes = Vec::new();
    for kind in events {
        bytes.extend(line(&Event { kind, timestamp }));
        bytes.push(b'\n');
    }
    bytes.into()
}
