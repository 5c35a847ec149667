//! WebSockets (RFC 6455) of clients. Messages are bounded in bytes and time, and their memory is counted while they arrive.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aludel_engine::permits::Permit;
use aludel_ignore::Ignore;
use aludel_store::Tenant;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Bytes, Error as SocketError, Message, Utf8Bytes};

use super::background::in_background;
use super::memory::MemoryCharge;
use crate::app::App;
use crate::error::ApiError;

/// Bytes of a message, as of a body.
const MAX_MESSAGE: usize = 64 << 20;
/// Bytes that are read at once.
const READ_AT_ONCE: usize = 16 << 10;
/// Time between two pings: proxies and clients give up on a silent connection.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// The longest silence of a client, which answers pings, and the time for a message, besides that for its bytes.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Bytes of a message that must arrive each second, on average and after [`MAX_SILENCE`].
const MIN_BYTES_PER_SECOND: usize = 64 << 10;
/// Bytes of a ping or a pong at most, with its head.
const CONTROL_FRAME: usize = 256;
/// The longest that a client is waited for when its socket closes.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A request to switch to a WebSocket.
pub(crate) struct WebSocketUpgrade {
    answer: Response,
    client: OnUpgrade,
    permit: Permit,
}

/// A WebSocket that is open until this is dropped.
pub(crate) struct WebSocket {
    stream: WebSocketStream<CountedStream>,
    arriving: Arc<Mutex<ArrivingMessage>>,
    app: Arc<App>,
    tenant: Tenant,
    /// The first ping since the client was heard.
    unanswered: Option<Instant>,
    next_ping: Instant,
    _permit: Permit,
}

/// A text that a client sent. Its memory is counted until this is dropped.
pub(crate) struct SocketMessage {
    text: Utf8Bytes,
    memory: MemoryCharge,
}

/// The part of a message that has arrived.
struct ArrivingMessage {
    memory: MemoryCharge,
    bytes: usize,
    since: Option<Instant>,
}

/// A connection whose incoming bytes are counted.
struct CountedStream {
    stream: TokioIo<Upgraded>,
    arriving: Arc<Mutex<ArrivingMessage>>,
}

impl WebSocketUpgrade {
    /// Reads a request for one. Fails if it is for something else, or the tenant has as many sockets as it may.
    pub(crate) fn of(request: &mut Request, app: &App, tenant: &Tenant) -> Result<Self, ApiError> {
        let headers = request.headers();
        if !has_token(headers, &CONNECTION, "upgrade") || !has_token(headers, &UPGRADE, "websocket") {
            let message = format!("{} is asked with POST; GET opens a WebSocket.", request.uri().path());
            return Err(ApiError::method_not_allowed(message).code("method_not_allowed"));
        }
        let key = headers.get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
        let key = key.and_then(|key| HeaderValue::try_from(key).ok());
        let (Some(key), true) = (key, has_token(headers, &SEC_WEBSOCKET_VERSION, "13")) else {
            return Err(ApiError::bad_request("This WebSocket is not of version 13 (RFC 6455)."));
        };
        let permit = app.sockets.acquire(tenant).map_err(|_| {
            let message = "There are as many WebSockets as there may be (server.requests, server.requests_per_key).";
            ApiError::too_many(message, Duration::from_secs(1))
        })?;
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, key);
        Ok(Self { answer, client: hyper::upgrade::on(request), permit })
    }

    /// The answer to the request, and the socket, which opens once that is sent. It fails if the client goes before.
    pub(crate) fn accept(
        self,
        app: &Arc<App>,
        tenant: &Tenant,
    ) -> Result<(Response, impl Future<Output = Option<WebSocket>> + use<>), ApiError> {
        let Self { answer, client, permit } = self;
        let (app, tenant) = (Arc::clone(app), tenant.clone());
        let memory = MemoryCharge::of(&app, &tenant)?;
        let opened = async move {
            let stream = TokioIo::new(client.await.ok()?);
            let arriving = Arc::new(Mutex::new(ArrivingMessage::new(memory)));
            let stream = CountedStream { stream, arriving: Arc::clone(&arriving) };
            let config = WebSocketConfig::default()
                .read_buffer_size(READ_AT_ONCE)
                .max_message_size(Some(MAX_MESSAGE))
                .max_frame_size(Some(MAX_MESSAGE));
            let stream = WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
            let next_ping = Instant::now() + PING_INTERVAL;
            Some(WebSocket { stream, arriving, app, tenant, unanswered: None, next_ping, _permit: permit })
        };
        Ok((answer, opened))
    }
}

impl SocketMessage {
    /// Reads it.
    pub(crate) async fn read<T: Send + 'static>(
        self,
        app: &App,
        read: impl FnOnce(&str) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, MemoryCharge), ApiError> {
        let Self { text, memory } = self;
        let read = in_background(app, &memory.share(), text.len(), move || read(&text)).await?;
        Ok((read, memory))
    }
}

impl ArrivingMessage {
    fn new(memory: MemoryCharge) -> Self {
        Self { memory, bytes: 0, since: None }
    }

    /// Returns true if its client, which answers no ping since then, takes too long.
    fn is_late(&self, silent_since: Instant) -> bool {
        let limit = MAX_SILENCE + Duration::from_secs((self.bytes / MIN_BYTES_PER_SECOND) as u64);
        self.since.unwrap_or(silent_since).elapsed() >= limit
    }

    /// Forgets a ping or a pong. It may have come between two frames of a message, which goes on to count.
    fn forget_control_frame(&mut self) {
        if self.bytes <= CONTROL_FRAME {
            (self.bytes, self.since) = (0, None);
        }
    }
}

/// Returns true if a header lists a token.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let lists = headers.get_all(name).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|listed| listed.trim().eq_ignore_ascii_case(token))
}

impl WebSocket {
    /// The client's next message; `None` at the end of the socket. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<SocketMessage> {
        loop {
            let received = tokio::select! {
                received = self.stream.next() => received?,
                () = sleep_until(self.next_ping) => {
                    let now = Instant::now();
                    self.next_ping = now + PING_INTERVAL;
                    let silent_since = *self.unanswered.get_or_insert(now);
                    if self.arriving.lock().is_late(silent_since) {
                        return None;
                    }
                    self.stream.send(Message::Ping(Bytes::new())).await.ok()?;
                    continue;
                }
            };
            self.unanswered = None;
            let received = match received {
                Ok(received) => received,
                Err(error) => {
                    let (code, reason) = match error {
                        SocketError::Capacity(_) => (CloseCode::Size, "the message is larger than 64 MB"),
                        SocketError::Io(_) => (CloseCode::Again, "there is no memory for this message; try again"),
                        SocketError::Utf8(_) => (CloseCode::Invalid, "messages are UTF-8"),
                        _ => (CloseCode::Protocol, "this is no WebSocket's message"),
                    };
                    self.close(code, reason).await;
                    return None;
                }
            };
            match received {
                Message::Text(text) => {
                    let fresh = ArrivingMessage::new(MemoryCharge::of(&self.app, &self.tenant).ok()?);
                    let arrived = std::mem::replace(&mut *self.arriving.lock(), fresh);
                    return Some(SocketMessage { text, memory: arrived.memory });
                }
                Message::Binary(_) => {
                    self.close(CloseCode::Unsupported, "messages are texts").await;
                    return None;
                }
                Message::Close(_) => {
                    // The answer to it waits to be sent.
                    timeout(CLOSE_TIMEOUT, self.stream.flush()).await.ignore("the connection ends in any case");
                    return None;
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => self.arriving.lock().forget_control_frame(),
            }
        }
    }

    /// Sends a text. Fails if the client is gone, or reads nothing for a minute.
    pub(crate) async fn send(&mut self, text: String) -> Result<(), SocketError> {
        self.next_ping = Instant::now() + PING_INTERVAL;
        self.stream.send(Message::Text(text.into())).await
    }

    /// Tells the client that the server ends.
    pub(crate) async fn go_away(&mut self) {
        self.close(CloseCode::Away, "the server ends").await;
    }

    /// Closes it for a client that may not go on.
    pub(crate) async fn refuse(&mut self, reason: &'static str) {
        self.close(CloseCode::Policy, reason).await;
    }

    async fn close(&mut self, code: CloseCode, reason: &'static str) {
        let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
        timeout(CLOSE_TIMEOUT, self.stream.close(Some(frame))).await.ignore("the connection ends in any case");
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let read = buffer.filled().len() - before;
        if read > 0 {
            let mut arriving = self.arriving.lock();
            arriving.since.get_or_insert_with(Instant::now);
            arriving.bytes += read;
            arriving.memory.count(read).map_err(|refused| io::Error::other(refused.message))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_has_time_for_its_bytes_and_control_frames_do_not_count() {
        let data = tempfile::tempdir().unwrap();
        let app = App::on_memory(data.path(), Default::default()).await;
        tokio::time::pause();
        let mut arriving = ArrivingMessage::new(MemoryCharge::of(&app, &Tenant::local()).unwrap());
        let began = Instant::now();
        // A ping that nobody answers.
        assert!(!arriving.is_late(began));
        tokio::time::advance(MAX_SILENCE).await;
        assert!(arriving.is_late(began) && !arriving.is_late(Instant::now()));
        (arriving.since, arriving.bytes) = (Some(began), 10);
        assert!(arriving.is_late(Instant::now()));
        arriving.forget_control_frame();
        assert!(!arriving.is_late(Instant::now()));
        (arriving.since, arriving.bytes) = (Some(began), 60 * MIN_BYTES_PER_SECOND);
        arriving.forget_control_frame();
        assert!(!arriving.is_late(began));
        tokio::time::advance(MAX_SILENCE).await;
        assert!(arriving.is_late(Instant::now()));
    }
}
