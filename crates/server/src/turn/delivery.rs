//! Delivery of a turn to its client: events as they come, one frame each, with comments as keep-alives; or only the end.
//!
//! No `id:` and no `retry:` lines: with them the Python client takes the blank line after a comment for an event.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::turns::{Follower, Frame, InFlightRequest, RequestEnd, RequestFingerprint};
use aludel_ignore::Ignore;
use aludel_store::Tenant;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{iter, unfold};
use serde_json::value::RawValue;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::app::App;
use crate::error::ApiError;
use crate::http::{Fields, GuardedBody, memory};

/// The longest silence of a stream: proxies and clients give up on a silent connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which an answer's status is sent to keep the connection alive, see [`KEEPALIVE_INTERVAL`]. A later error can only be in the
/// body. Proxies wait for a minute.
const STATUS_TIMEOUT: Duration = Duration::from_secs(45);
/// Time in which a stream that fails before it has answered anything is an error with a status. Until then its client hears nothing.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a stream that begins with events before the answer, which clients show.
const OPENING_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for which a turn goes on after its client disconnected, so that a repeated request finds it.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest that the client of a cancelled request waits for its end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);
/// Fields that choose the form of an answer.
const FORM: [&str; 2] = ["stream", "stream_options"];
const JSON: &str = "application/json";
const COMMENT: &str = ": keep-alive\n\n";

/// The form of a protocol's stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamFormat {
    /// Writes a frame.
    pub(crate) framed: fn(&Frame) -> String,
    /// Sent when there is nothing else to send for a while.
    pub(crate) silence: &'static str,
}

impl StreamFormat {
    /// A stream of these frames, with comments between them.
    pub(crate) const fn of(framed: fn(&Frame) -> String) -> Self {
        Self { framed, silence: COMMENT }
    }
}

/// A frame of a stream with named events.
pub(crate) fn framed(frame: &Frame) -> String {
    format!("event: {}\ndata: {}\n\n", frame.kind, frame.text)
}

/// The fingerprint of a request to this route. A repetition may ask for another form of the same answer.
pub(crate) fn fingerprint(route: &str, headers: &HeaderMap, fields: &Fields) -> RequestFingerprint {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_retry = text("x-stainless-retry-count").is_some_and(|count| count.trim() != "0");
    RequestFingerprint::new(route, text("idempotency-key"), &fields.to_json_without(&FORM), is_retry)
}

/// The frames of a request under way: all, or those after a number. `connection` is that of a client whose departure may end the turn.
pub(crate) fn follow(
    in_flight: Arc<InFlightRequest>,
    after: Option<u64>,
    connection: Option<WaitingClient>,
    form: StreamFormat,
) -> Response {
    let first = in_flight.index_after(after);
    let frames = unfold((in_flight, first, connection), move |(in_flight, mut index, mut connection)| async move {
        loop {
            let Ok(frame) = timeout(KEEPALIVE_INTERVAL, in_flight.frame(index)).await else {
                return Some((Bytes::from_static(form.silence.as_bytes()), (in_flight, index, connection)));
            };
            let Some(frame) = frame else {
                connection.iter_mut().for_each(WaitingClient::note_answered);
                return None;
            };
            index += 1;
            if after.is_none_or(|after| frame.sequence > after) {
                return Some((Bytes::from((form.framed)(&frame)), (in_flight, index, connection)));
            }
        }
    });
    respond(Body::from_stream(futures_util::StreamExt::map(frames, Ok::<_, Infallible>)))
}

/// Frames of stored events. Their memory counts for the tenant until they are sent.
pub(crate) fn replay(app: &App, tenant: &Tenant, frames: Vec<Frame>, form: StreamFormat) -> Result<Response, ApiError> {
    let memory = memory(app, tenant, frames.iter().map(|frame| frame.text.len()).sum())?;
    let frames = frames.into_iter().map(move |frame| Ok::<_, Infallible>((form.framed)(&frame)));
    Ok(respond(Body::new(GuardedBody::new(Body::from_stream(iter(frames)), memory))))
}

/// The form in which a client gets a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Its frames.
    Stream,
    /// Its object, at the end.
    Whole,
    /// Its object at the beginning, or its frames. The turn continues without the client.
    Background {
        /// True if the client gets the frames.
        streams: bool,
    },
}

impl Delivery {
    /// The form that a request asks for.
    pub(crate) fn of(streams: bool, background: bool) -> Self {
        match (background, streams) {
            (true, streams) => Self::Background { streams },
            (false, true) => Self::Stream,
            (false, false) => Self::Whole,
        }
    }
}

/// A client that waits for a turn, as long as its connection lasts.
#[derive(Debug)]
pub(crate) struct WaitingClient {
    follower: Follower,
    /// Dropped after the follower.
    _closed: Option<DropGuard>,
}

impl WaitingClient {
    /// A client whose departure cancels the turn if it is the last one: at once if it reads a stream, otherwise after some time.
    pub(super) fn new(in_flight: &Arc<InFlightRequest>, follower: Follower, delivery: Delivery) -> Self {
        let pause = match delivery {
            Delivery::Stream => Duration::ZERO,
            Delivery::Whole => RECONNECT_TIMEOUT,
            Delivery::Background { .. } => return Self { follower, _closed: None },
        };
        let closed = CancellationToken::new();
        let (token, in_flight) = (closed.clone(), Arc::clone(in_flight));
        #[expect(clippy::disallowed_methods, reason = "it ends with the turn, which is waited for")]
        tokio::spawn(async move {
            tokio::select! {
                _ = in_flight.ended() => {}
                () = token.cancelled() => in_flight.give_up_after(pause).await,
            }
        });
        Self { follower, _closed: Some(closed.drop_guard()) }
    }

    /// Records that its client gets the whole answer.
    pub(crate) fn note_answered(&mut self) {
        self.follower.note_answered();
    }
}

/// The kinds of frames that tell nothing of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmptyFrames {
    /// Those with which a stream begins.
    pub(crate) openings: &'static [&'static str],
    /// The one of a failure.
    pub(crate) failure: &'static str,
}

/// Returns the failure of a turn that soon fails without an answer. It is answered like any error: clients go by its status, and try again.
pub(crate) async fn first_failure(
    in_flight: &InFlightRequest,
    connection: &mut WaitingClient,
    EmptyFrames { openings, failure }: EmptyFrames,
) -> Result<(), ApiError> {
    let limit = if openings.is_empty() { FAILURE_TIMEOUT } else { OPENING_TIMEOUT };
    let after_openings = async {
        let mut index = 0;
        loop {
            match in_flight.frame(index).await {
                Some(frame) if openings.contains(&frame.kind.as_str()) => index += 1,
                frame => return frame,
            }
        }
    };
    if let Ok(first) = timeout(limit, after_openings).await
        && first.is_none_or(|frame| frame.kind == failure)
        && let Some(failure) = in_flight.ended().await.and_then(|end| end.failure)
    {
        connection.note_answered();
        return Err(failure.into());
    }
    Ok(())
}

/// Cancels a request, and waits a while for its end.
pub(crate) async fn stop(in_flight: &InFlightRequest) {
    in_flight.cancel.cancel();
    timeout(CANCEL_TIMEOUT, in_flight.ended()).await.ignore("the wait is bounded");
}

/// Answers when the turn has ended, with its object in the form of `written`. Clients and proxies give up on a silent connection, so after
/// a while blanks are sent, which may precede JSON; the status is 200 then, whatever comes.
pub(crate) async fn wait(
    in_flight: Arc<InFlightRequest>,
    mut connection: WaitingClient,
    written: impl Fn(Box<RawValue>) -> String + Send + 'static,
) -> Result<Response, ApiError> {
    if let Ok(end) = timeout(STATUS_TIMEOUT, in_flight.ended()).await {
        connection.note_answered();
        return match end {
            Some(RequestEnd { failure: Some(failure), .. }) => Err(failure.into()),
            Some(RequestEnd { answer, .. }) => Ok(([(CONTENT_TYPE, JSON)], written(answer)).into_response()),
            None => Err(ApiError::internal("a turn ended without an end")),
        };
    }
    let chunks = unfold(Some((in_flight, connection, written)), async |state| {
        let (in_flight, mut connection, written) = state?;
        match timeout(KEEPALIVE_INTERVAL, in_flight.ended()).await {
            Err(_) => Some((Ok::<_, Infallible>(Bytes::from_static(b" ")), Some((in_flight, connection, written)))),
            Ok(end) => {
                connection.note_answered();
                let answer = end.map(|end| end.answer).unwrap_or_default();
                Some((Ok(Bytes::from(written(answer))), None))
            }
        }
    });
    Ok(([(CONTENT_TYPE, JSON)], Body::from_stream(chunks)).into_response())
}

fn respond(body: Body) -> Response {
    ([(CONTENT_TYPE, "text/event-stream; charset=utf-8"), (CACHE_CONTROL, "no-cache")], body).into_response()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use aludel_store::ResponseId;
    use axum::body::to_bytes;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use serde_json::json;
    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::app::ServerSettings;
    use crate::raw_json::{into_text, raw_json};
    use crate::timed_connection::TimedConnection;
    use aludel_engine::turns::{Failure, FailureKind, InFlightRequests};

    /// The answer to a turn that fails after `seconds`.
    async fn answer_after(seconds: u64) -> Result<String, ApiError> {
        let in_flight = InFlightRequests::default()
            .begin(&Tenant::local(), RequestFingerprint::none(), ResponseId::new().into())
            .unwrap();
        let turn = Arc::clone(&in_flight);
        tokio::spawn(async move {
            sleep(Duration::from_secs(seconds)).await;
            let failure = Some(Failure::new(FailureKind::Rejected, "wrong"));
            turn.end(RequestEnd { answer: raw_json(&json!({"error": "late"})), failure });
        });
        let connection = WaitingClient::new(&in_flight, Follower::of(&in_flight), Delivery::Whole);
        let body = wait(in_flight, connection, into_text).await?.into_body();
        Ok(String::from_utf8(to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_who_never_reads_is_let_go() {
        let in_flight = InFlightRequests::default()
            .begin(&Tenant::local(), RequestFingerprint::none(), ResponseId::new().into())
            .unwrap();
        in_flight.publish(vec![Frame { sequence: 0, kind: String::new(), text: "x".repeat(1 << 20) }]);
        let followed = Arc::clone(&in_flight);
        let answer = service_fn(move |_: hyper::Request<Incoming>| {
            let answer = follow(Arc::clone(&followed), None, None, StreamFormat::of(|frame| frame.text.clone()));
            async move { Ok::<_, Infallible>(answer) }
        });
        let (mut ours, theirs) = duplex(64 << 10);
        ours.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let served = http1::Builder::new().serve_connection(TokioIo::new(TimedConnection::new(theirs)), answer);
        assert!(timeout(Duration::from_secs(61), served).await.unwrap().is_err());
        assert_eq!(Arc::strong_count(&in_flight), 1);
    }

    #[tokio::test]
    async fn what_a_replay_takes_is_counted_until_it_is_sent() {
        let data = tempfile::tempdir().unwrap();
        let app = App::on_memory(data.path(), ServerSettings { bodies: 3 << 20, ..ServerSettings::default() }).await;
        let tenant = Tenant::terminal();
        let frame = || Frame { sequence: 0, kind: String::new(), text: "x".repeat(3 << 19) };
        let replay = || replay(&app, &tenant, vec![frame()], StreamFormat::of(|frame| frame.text.clone()));
        let first = replay().unwrap();
        assert_eq!(replay().unwrap_err().status, 429);
        assert_eq!(to_bytes(first.into_body(), usize::MAX).await.unwrap().len(), 3 << 19);
        assert!(replay().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_has_its_status_for_as_long_as_proxies_wait() {
        let began = Instant::now();
        assert_eq!(answer_after(40).await.unwrap_err().message, "wrong");
        assert_eq!(began.elapsed(), Duration::from_secs(40));
        assert_eq!(answer_after(70).await.unwrap(), "  {\"error\":\"late\"}");
    }
}
