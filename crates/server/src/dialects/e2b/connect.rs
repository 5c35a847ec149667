//! Connect's protocol with JSON: calls with one answer, and streams of frames.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use aludel_engine::sandboxes::files::{FilesError, Problem};
use aludel_engine::{Error, ErrorKind, SandboxError};
use aludel_wire::e2b::{ConnectCode, ConnectError, EndStream};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::client_sandboxes::alive::LastChunk;
use crate::error::{ApiError, RenderedMark};
use crate::http::{DescribeArgument, Description, MediaType, RawBody};

/// The media type of frames that carry JSON.
pub(super) const FRAMES: &str = "application/connect+json";
/// Flag of a stream's last frame.
const END: u8 = 2;
/// Default pause after which a silent stream sends a keep-alive, and the range that clients may ask for.
const KEEPALIVE: Duration = Duration::from_secs(90);
const KEEPALIVE_SECONDS: std::ops::RangeInclusive<u64> = 1..=600;

/// A failure of a call, in Connect's words.
#[derive(Debug)]
pub(super) struct Failure(pub(super) ConnectError);

impl Failure {
    pub(super) fn new(code: ConnectCode, message: impl Into<String>) -> Self {
        Self(ConnectError { code, message: message.into() })
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ConnectCode::InvalidArgument, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ConnectCode::NotFound, message)
    }

    /// The end of a stream whose sandbox ended first, with the SDKs' text for it.
    pub(super) fn sandbox_ended() -> Self {
        Self::new(ConnectCode::Unavailable, "the sandbox was killed or reached its end of life")
    }

    /// The end of a stream whose sandbox was paused.
    fn sandbox_paused() -> Self {
        let advice = "the sandbox was paused; its commands go on once it is resumed: connect to them then";
        Self::new(ConnectCode::Unavailable, advice)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.0)).into_response();
        response.extensions_mut().insert(RenderedMark);
        response
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let code = match error.status {
            StatusCode::UNAUTHORIZED => ConnectCode::Unauthenticated,
            StatusCode::FORBIDDEN => ConnectCode::PermissionDenied,
            StatusCode::NOT_FOUND => ConnectCode::NotFound,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE => ConnectCode::ResourceExhausted,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => ConnectCode::Unavailable,
            status if status.is_server_error() => ConnectCode::Internal,
            _ => ConnectCode::InvalidArgument,
        };
        if let Some(cause) = &error.cause {
            tracing::error!("{cause}");
        }
        Self::new(code, error.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match (&error, error.kind()) {
            (Error::Sandbox(SandboxError::Start(_)), _) => ConnectCode::InvalidArgument,
            (Error::Sandbox(SandboxError::NotSupported(_)), _) => ConnectCode::Unimplemented,
            (Error::Sandbox(SandboxError::Paused), _) => ConnectCode::Unavailable,
            (Error::Sandbox(SandboxError::NoProcess), _) => ConnectCode::ResourceExhausted,
            (_, ErrorKind::NotFound | ErrorKind::Expired) => ConnectCode::NotFound,
            (_, ErrorKind::Full) => ConnectCode::ResourceExhausted,
            (_, ErrorKind::Invalid) => ConnectCode::InvalidArgument,
            (_, ErrorKind::Storage | ErrorKind::Sandbox | ErrorKind::Internal) => {
                return ApiError::internal(error).into();
            }
        };
        Self::new(code, error.to_string())
    }
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Self {
        match error {
            FilesError::Refused { problem, message } => {
                let code = match problem {
                    Problem::NotFound => ConnectCode::NotFound,
                    Problem::Exists => ConnectCode::AlreadyExists,
                    Problem::Denied => ConnectCode::PermissionDenied,
                    Problem::Full | Problem::TooMany | Problem::Busy => ConnectCode::ResourceExhausted,
                    Problem::NotSupported => ConnectCode::Unimplemented,
                    Problem::IsADirectory | Problem::NotADirectory | Problem::Invalid => ConnectCode::InvalidArgument,
                };
                Self::new(code, message)
            }
            FilesError::Sandbox(error) => Error::from(error).into(),
        }
    }
}

/// A failure before the first message of a stream, which clients look for only in the last frame.
#[derive(Debug)]
pub(super) struct StreamFailure(Failure);

impl<E> From<E> for StreamFailure
where
    Failure: From<E>,
{
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for StreamFailure {
    fn into_response(self) -> Response {
        frames(Body::from(frame(END, &EndStream { error: Some(self.0.0) })))
    }
}

/// The message of a call.
pub(super) struct Message<T>(pub(super) T);

impl<T: JsonSchema> DescribeArgument for Message<T> {
    fn describe(description: &mut Description) {
        description.body.push(MediaType::json::<T>("application/json"));
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<App>> for Message<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failure> {
        is_json(request.headers(), "application/json")?;
        let body = RawBody::from_request(request, app).await?;
        let message = match body.bytes.trim_ascii() {
            [] => Bytes::from_static(b"{}"),
            _ => body.bytes.clone(),
        };
        Ok(Self(body.json(app, message).await?))
    }
}

/// The single message of a client that gets a stream.
pub(super) struct FirstFrame<T>(pub(super) T);

impl<T: JsonSchema> DescribeArgument for FirstFrame<T> {
    fn describe(description: &mut Description) {
        description.body.push(MediaType::json::<T>(FRAMES));
    }
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<App>> for FirstFrame<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Response> {
        // A client of another encoding might misread frames.
        is_json(request.headers(), FRAMES).map_err(IntoResponse::into_response)?;
        first_message(request, app).await.map(Self).map_err(|failure| StreamFailure(failure).into_response())
    }
}

async fn first_message<T: DeserializeOwned + Send + 'static>(request: Request, app: &Arc<App>) -> Result<T, Failure> {
    let body = RawBody::from_request(request, app).await?;
    let message = first_frame(&body.bytes).ok_or_else(|| Failure::invalid("the body is no frame of Connect"))?;
    let message = body.bytes.slice_ref(message);
    Ok(body.json(app, message).await?)
}

fn is_json(headers: &HeaderMap, wanted: &str) -> Result<(), Failure> {
    let said = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if said.split(';').next().is_some_and(|said| said.trim().eq_ignore_ascii_case(wanted)) {
        return Ok(());
    }
    Err(Failure::new(ConnectCode::Unimplemented, format!("only messages of the type {wanted} are understood")))
}

/// The message of the first frame, which must not be compressed.
fn first_frame(bytes: &[u8]) -> Option<&[u8]> {
    let ([0, length @ ..], rest) = bytes.split_first_chunk::<5>()? else { return None };
    rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)
}

fn frame(flags: u8, message: &impl Serialize) -> Bytes {
    // Plain data can always be written.
    let message = serde_json::to_vec(message).unwrap_or_default();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(5 + message.len());
    frame.push(flags);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&message);
    frame.into()
}

/// The sending side of a stream: the next frame for the client.
#[derive(Clone)]
pub(super) struct Client(Arc<Mutex<Option<Bytes>>>);

impl Client {
    /// Sends a message; waits until the connection has taken it.
    pub(super) async fn send(&self, message: &impl Serialize) {
        *self.0.lock() = Some(frame(0, message));
        // The body that takes it polls this again the next time.
        poll_fn(|_| if self.0.lock().is_none() { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// An answer that streams what `tell` sends. The body itself polls `tell`, so it runs only as fast as the connection takes data, buffers at
/// most one frame, and is dropped with the connection.
pub(super) fn stream<F>(tell: impl FnOnce(Client) -> F) -> Response
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    let client = Client(Arc::default());
    let mut sending = Some(Box::pin(tell(client.clone())));
    let sent_frames = futures_util::stream::poll_fn(move |context| {
        let Some(sender) = &mut sending else { return Poll::Ready(None) };
        let polled = sender.as_mut().poll(context);
        if let Some(frame) = client.0.lock().take() {
            return Poll::Ready(Some(frame));
        }
        let result = ready!(polled);
        sending = None;
        Poll::Ready(Some(frame(END, &EndStream { error: result.err().map(|Failure(error)| error) })))
    });
    let mut response = frames(Body::from_stream(sent_frames.map(Ok::<_, Infallible>)));
    let last = |Failure(error)| frame(END, &EndStream { error: Some(error) });
    let (ended, paused) = (last(Failure::sandbox_ended()), last(Failure::sandbox_paused()));
    response.extensions_mut().insert(LastChunk { ended, paused });
    response
}

/// An answer of frames.
fn frames(body: Body) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(FRAMES));
    response
}

/// Refuses an unknown method.
pub(super) async fn unknown_method() -> Failure {
    Failure::new(ConnectCode::Unimplemented, "there is no such method here")
}

/// The pause after which a silent stream sends a keep-alive.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse().ok());
    asked.filter(|seconds| KEEPALIVE_SECONDS.contains(seconds)).map_or(KEEPALIVE, Duration::from_secs)
}

/// The client's time limit for a call.
pub(super) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let millis: u64 = headers.get("connect-timeout-ms")?.to_str().ok()?.parse().ok()?;
    (millis > 0).then(|| Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_sandboxes::alive::{Cut, end_with};

    #[tokio::test]
    async fn a_stream_goes_no_further_than_its_client_takes_it() {
        let begun = Arc::new(Mutex::new(0));
        let count = Arc::clone(&begun);
        let response = stream(|client| async move {
            for number in 1..=2 {
                *count.lock() = number;
                client.send(&number).await;
            }
            Err(Failure::not_found("no more"))
        });
        let mut body = response.into_body().into_data_stream();
        for number in 1..=2 {
            assert_eq!(body.next().await.unwrap().unwrap(), frame(0, &number));
            assert_eq!(*begun.lock(), number);
        }
        assert!(body.next().await.unwrap().unwrap().starts_with(&[END]));
        assert!(body.next().await.is_none());
    }

    #[tokio::test]
    async fn a_stream_says_that_its_sandbox_has_ended_or_is_paused() {
        for (reason, words) in [(Cut::Ended, "was killed"), (Cut::Paused, "was paused")] {
            let response = stream(|client| async move {
                client.send(&1).await;
                std::future::pending().await
            });
            let (cut, is_cut) = tokio::sync::oneshot::channel();
            let response = end_with(response, async move { is_cut.await.unwrap() });
            let mut body = response.into_body().into_data_stream();
            assert_eq!(body.next().await.unwrap().unwrap(), frame(0, &1));
            cut.send(reason).unwrap();
            let last = body.next().await.unwrap().expect("a frame, and no body that breaks off");
            let text = String::from_utf8_lossy(&last);
            assert!(last.starts_with(&[END]) && text.contains("unavailable") && text.contains(words), "{text}");
            assert!(body.next().await.is_none());
        }
    }

    #[test]
    fn only_a_whole_plain_frame_is_one() {
        assert_eq!(first_frame(b"\0\0\0\0\x02{}"), Some(b"{}".as_slice()));
        assert_eq!(first_frame(b"\0\0\0\0\x02{}more"), Some(b"{}".as_slice()));
        for bytes in [b"".as_slice(), b"\0\0\0", b"\0\0\0\0\x03{}", b"\x01\0\0\0\x02{}", b"\0\xff\xff\xff\xff{}"] {
            assert_eq!(first_frame(bytes), None, "{bytes:?}");
        }
        assert_eq!(&*frame(END, &EndStream::default()), b"\x02\0\0\0\x02{}");
    }
}
