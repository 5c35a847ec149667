//! Streamable HTTP in both versions: with connections that begin with `initialize`, and without.

use std::sync::Arc;
use std::time::Duration;

use aludel_agent::excerpt;
use aludel_engine::permits::NoRoom;
use aludel_store::Tenant;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use rmcp::model::{ErrorCode, ErrorData, RequestId};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tracing::Span;

#[cfg(test)]
use super::fixtures::WithFixtures as Server;
#[cfg(not(test))]
use super::server::Server;
use super::tools::Profile;
use super::{Head, Mcp, error};
use crate::app::App;
use crate::error::{ApiError, RenderedMark};
use crate::http::{Caller, GuardedBody, JSON, RawJson};

/// The header by which a client names its connection.
const CONNECTION: &str = "mcp-session-id";
/// The header by which a client asks for missed events.
const LAST_EVENT: &str = "last-event-id";
/// Bytes of the words of a refusal.
const MAX_REFUSAL: usize = 4096;
/// Time for which a connection may be silent. Clients do not begin another by themselves, so it is that of an idle sandbox.
const IDLE: Duration = Duration::from_secs(20 * 60);
/// Bytes of an answer about resources: the largest file, of which JSON may escape each byte with another.
const MAX_RESOURCES: usize = 64 << 20;
/// Time between two comments on a silent stream.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The transports of one tenant.
pub(super) struct Streamable {
    /// For clients with a connection.
    connected: StreamableHttpService<Server, LocalSessionManager>,
    /// For requests without a connection.
    stateless: StreamableHttpService<Server, NeverSessionManager>,
}

/// `POST /mcp`.
pub(super) async fn post(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let raw = RawJson::from_request(Request::from_parts(parts.clone(), body), &app).await?;
    let (bytes, memory) = raw.counted()?;
    let head = serde_json::from_slice::<Head>(&bytes).ok().filter(|_| bytes.trim_ascii_start().starts_with(b"{"));
    let Some(head) = head else {
        return Ok(as_json_rpc(error::answer(StatusCode::BAD_REQUEST, None, &unreadable(&bytes)), None).await);
    };
    let has_json = parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    parts.extensions.insert(Span::current());
    parts.extensions.insert(memory.clone());
    let streamable = app.mcp.streamable(&tenant);
    let is_handshake = head.method.as_deref() == Some("initialize");
    let mut request = Request::from_parts(parts, Body::from(bytes));
    let response = if is_handshake || request.headers().contains_key(CONNECTION) {
        if is_handshake {
            let permit = app.mcp.connections.acquire(&tenant).map_err(too_many)?;
            request.extensions_mut().insert(Arc::new(permit));
        }
        streamable.connected.handle(request).await.map(Body::new)
    } else {
        streamable.stateless.handle(request).await.map(Body::new)
    };
    // The body is JSON of the right type, but its parameters do not fit its method.
    let is_misunderstood = match response.status() {
        StatusCode::UNSUPPORTED_MEDIA_TYPE => head.method.is_some() && has_json,
        StatusCode::BAD_REQUEST => is_handshake && !response.headers().contains_key(CONTENT_TYPE),
        _ => false,
    };
    let response = match head.method.as_deref().unwrap_or_default() {
        _ if is_misunderstood => misunderstood(&head),
        method if method.starts_with("resources/") => without_events(response, head.id.as_ref()).await,
        _ => response,
    };
    Ok(as_json_rpc(response.map(|body| Body::new(GuardedBody::new(body, memory))), head.id.as_ref()).await)
}

/// `GET /mcp`: for a client that lost a stream and asks for the rest. Nothing else is sent there.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    request: Request,
) -> Result<Response, ApiError> {
    if !request.headers().contains_key(LAST_EVENT) {
        return Err(ApiError::method_not_allowed("This server has nothing to tell but answers: POST requests."));
    }
    Ok(as_json_rpc(app.mcp.streamable(&tenant).connected.handle(request).await.map(Body::new), None).await)
}

/// `DELETE /mcp`: ends a connection. The sessions of its programs stay.
pub(super) async fn delete(State(app): State<Arc<App>>, Caller(tenant): Caller, request: Request) -> Response {
    let mut response = app.mcp.streamable(&tenant).connected.handle(request).await.map(Body::new);
    if response.status() == StatusCode::ACCEPTED {
        // Some clients accept no other success.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    as_json_rpc(response, None).await
}

impl Mcp {
    /// The transports of a tenant.
    fn streamable(self: &Arc<Self>, tenant: &Tenant) -> Arc<Streamable> {
        let mut all = self.streamable.lock();
        if let Some(known) = all.get(tenant) {
            return Arc::clone(known);
        }
        let made = Arc::new(Streamable::new(self, tenant));
        all.insert(tenant.clone(), Arc::clone(&made));
        made
    }
}

impl Streamable {
    fn new(mcp: &Arc<Mcp>, tenant: &Tenant) -> Self {
        let make = |mcp: &Arc<Mcp>| {
            // Weak, because the transports belong to the state that they point to.
            let (mcp, tenant) = (Arc::downgrade(mcp), tenant.clone());
            move || {
                let mcp = mcp.upgrade().ok_or_else(|| std::io::Error::other("the server has ended"))?;
                Ok(Server::new(&mcp, &tenant, Profile::Full))
            }
        };
        let config = || {
            // The layer around all routes has checked `Host`, `Origin` and the size of the body.
            StreamableHttpServerConfig::default()
                .disable_allowed_hosts()
                .disable_allowed_origins()
                .with_max_request_body_bytes(usize::MAX)
                .with_sse_keep_alive(Some(KEEP_ALIVE))
                .with_cancellation_token(mcp.engine.shutdown.child_token())
        };
        let mut connections = LocalSessionManager::default();
        let mut session = SessionConfig::default();
        (session.keep_alive, session.completed_cache_ttl) = (Some(IDLE), Duration::ZERO);
        connections.session_config = session;
        Self {
            connected: StreamableHttpService::new(make(mcp), Arc::new(connections), config()),
            stateless: StreamableHttpService::new(make(mcp), Arc::default(), config().with_legacy_session_mode(false)),
        }
    }
}

/// Marks an answer as rendered. Plain-text refusals are converted first.
async fn as_json_rpc(response: Response, id: Option<&RequestId>) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let mut response = if is_error && !response.headers().contains_key(CONTENT_TYPE) {
        let text = to_bytes(response.into_body(), MAX_REFUSAL).await.unwrap_or_default();
        let message = excerpt::line(&String::from_utf8_lossy(&text), MAX_REFUSAL);
        error::answer(status, id, &ErrorData::new(error::code(status), message, None))
    } else {
        response
    };
    response.extensions_mut().insert(RenderedMark);
    response
}

fn unreadable(bytes: &Bytes) -> ErrorData {
    match bytes.trim_ascii().first() {
        Some(b'[') => ErrorData::new(ErrorCode::INVALID_REQUEST, "Batches are not taken: send one message.", None),
        _ => ErrorData::new(ErrorCode::PARSE_ERROR, "The body is no message of JSON-RPC.", None),
    }
}

/// The answer to a message with invalid parameters.
fn misunderstood(head: &Head) -> Response {
    let method = excerpt::line(head.method.as_deref().unwrap_or_default(), 80);
    let error = ErrorData::invalid_params(format!("The parameters of {method} do not fit it."), None);
    error::answer(StatusCode::BAD_REQUEST, head.id.as_ref(), &error)
}

/// The message of a stream that has one alone, as JSON: the official Python client takes 1 MiB as an event, and any size as JSON.
async fn without_events(response: Response, id: Option<&RequestId>) -> Response {
    let is_stream = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
    if !is_stream {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(bytes) = to_bytes(body, MAX_RESOURCES).await else {
        let error = ErrorData::internal_error("The answer is too large.", None);
        return error::answer(StatusCode::INTERNAL_SERVER_ERROR, id, &error);
    };
    let message = |line: &[u8]| {
        let data = line.strip_prefix(b"data:")?.trim_ascii();
        (!data.is_empty()).then(|| bytes.slice_ref(data))
    };
    let Some(message) = bytes.split(|byte| *byte == b'\n').rev().find_map(message) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    Response::from_parts(parts, Body::from(message))
}

pub(super) fn too_many(no_room: NoRoom) -> ApiError {
    let message = match no_room {
        NoRoom::AtAll => "The server has as many MCP connections as it may; try again in a moment.",
        NoRoom::ForThisTenant => "The server has as many MCP connections of yours as it may; end some.",
    };
    ApiError::too_many(message, Duration::from_secs(5))
}
