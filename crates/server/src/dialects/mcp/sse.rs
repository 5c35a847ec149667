//! HTTP with SSE, of the first version of the protocol: for vLLM, whose models know a server and a tool named `python`.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_store::{Tenant, fresh_id};
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{once, unfold};
use futures_util::{StreamExt, future};
use parking_lot::Mutex;
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage, ServerResult, Tool};
use rmcp::service::serve_server_with_ct;
use rmcp::transport::sink_stream::SinkStreamTransport;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard, PollSender};
use tracing::{Instrument as _, warn};

use super::server::Server;
use super::tools::Profile;
use super::{Mcp, http};
use crate::app::App;
use crate::error::ApiError;
use crate::http::{Caller, RawJson};

/// Messages that may wait in each direction.
const MAX_WAITING: usize = 16;
/// Time between two comments on a silent stream.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Streams that are open, by their ids.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<HashMap<String, Stream>>);

#[derive(Debug)]
struct Stream {
    tenant: Tenant,
    messages: mpsc::Sender<ClientJsonRpcMessage>,
}

/// The stream that a client posts to.
#[derive(Debug, Deserialize)]
pub(super) struct Address {
    session_id: String,
}

/// `GET /sse`: opens a stream, and sends the address for messages. Its session ends with the connection: each request of a model has its
/// own, and cannot be resumed.
pub(super) async fn open(State(app): State<Arc<App>>, Caller(tenant): Caller) -> Result<Response, ApiError> {
    let mcp = Arc::clone(&app.mcp);
    let permit = mcp.connections.acquire(&tenant).map_err(http::too_many)?;
    let (messages, received) = mpsc::channel(MAX_WAITING);
    let (sender, answers) = mpsc::channel(MAX_WAITING);
    let id = fresh_id("sse_");
    mcp.sse.0.lock().insert(id.clone(), Stream { tenant: tenant.clone(), messages });
    let ended = mcp.engine.shutdown.child_token();
    let open = Open { mcp: Arc::clone(&mcp), id: id.clone(), _ends: ended.clone().drop_guard() };
    let serving = serve(mcp, tenant, received, sender, ended);
    app.tasks.spawn(
        async move {
            serving.await;
            drop(permit);
        }
        .in_current_span(),
    );
    let endpoint = Bytes::from(format!("event: endpoint\ndata: /messages?session_id={id}\n\n"));
    let frames = unfold((answers, open), async |(mut answers, open)| {
        let frame = match timeout(KEEPALIVE_INTERVAL, answers.recv()).await {
            Ok(Some(answer)) => frame(&answer)?,
            Ok(None) => return None,
            Err(_) => Bytes::from_static(b": keep-alive\n\n"),
        };
        Some((frame, (answers, open)))
    });
    let body = Body::from_stream(once(future::ready(endpoint)).chain(frames).map(Ok::<_, Infallible>));
    let headers = [(CONTENT_TYPE.as_str(), "text/event-stream"), (CACHE_CONTROL.as_str(), "no-cache")];
    Ok((headers, body).into_response())
}

/// `POST /messages`: takes a message of the client. The answer comes in the stream.
pub(super) async fn post(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    Query(Address { session_id }): Query<Address>,
    raw: RawJson,
) -> Result<StatusCode, ApiError> {
    let (bytes, memory) = raw.counted()?;
    let mut message = serde_json::from_slice::<ClientJsonRpcMessage>(&bytes)
        .map_err(|_| ApiError::bad_request("The body is no message that this server takes."))?;
    let messages = app
        .mcp
        .sse
        .0
        .lock()
        .get(&session_id)
        .filter(|stream| stream.tenant == tenant)
        .map(|stream| stream.messages.clone());
    let messages = messages.ok_or_else(|| ApiError::not_found("There is no such stream: open one with GET /sse."))?;
    // Held as long as the call.
    message.insert_extension(memory);
    messages.try_send(message).map_err(|_| {
        ApiError::too_many("The stream has as many messages waiting as it may.", Duration::from_secs(1))
    })?;
    Ok(StatusCode::ACCEPTED)
}

/// A stream that a client reads. Dropping it ends its server.
struct Open {
    mcp: Arc<Mcp>,
    id: String,
    _ends: DropGuard,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.mcp.sse.0.lock().remove(&self.id);
    }
}

/// Serves one stream to its end, and removes its session.
async fn serve(
    mcp: Arc<Mcp>,
    tenant: Tenant,
    received: mpsc::Receiver<ClientJsonRpcMessage>,
    sender: mpsc::Sender<ServerJsonRpcMessage>,
    ended: CancellationToken,
) {
    let server = Server::new(&mcp, &tenant, Profile::PythonAlone);
    let default = Arc::clone(&server.default);
    let messages = unfold(received, async |mut received| Some((received.recv().await?, received)));
    let transport = SinkStreamTransport::new(PollSender::new(sender), Box::pin(messages));
    if let Ok(serving) = serve_server_with_ct(server, transport, ended).await {
        serving.waiting().await.ignore("it ends with the client, for whatever reason");
    }
    if let Some(session) = default.lock().await.take()
        && let Err(error) = mcp.engine.sessions.delete(&tenant, &session).await
    {
        warn!("cannot remove {session}, which nobody can come back to: {error}");
    }
}

/// A tool with the hint that keeps its schema out of the prompt: these models were trained on the tool.
#[derive(Serialize)]
struct KnownTool<'a> {
    #[serde(flatten)]
    tool: &'a Tool,
    annotations: Known<'a>,
}

/// Hints about such a tool.
#[derive(Serialize)]
struct Known<'a> {
    #[serde(flatten)]
    hints: Option<&'a rmcp::model::ToolAnnotations>,
    include_in_prompt: bool,
}

/// The answer to `tools/list`.
#[derive(Serialize)]
struct KnownTools<'a> {
    jsonrpc: &'static str,
    id: &'a rmcp::model::RequestId,
    result: Tools<'a>,
}

#[derive(Serialize)]
struct Tools<'a> {
    tools: Vec<KnownTool<'a>>,
}

/// A message as an event of the stream; `None` if it cannot be written, which ends the stream.
fn frame(message: &ServerJsonRpcMessage) -> Option<Bytes> {
    let text = match message {
        JsonRpcMessage::Response(response) => match &response.result {
            ServerResult::ListToolsResult(list) => {
                let tools = list.tools.iter().map(|tool| {
                    let annotations = Known { hints: tool.annotations.as_ref(), include_in_prompt: false };
                    KnownTool { tool, annotations }
                });
                let result = Tools { tools: tools.collect() };
                serde_json::to_string(&KnownTools { jsonrpc: "2.0", id: &response.id, result })
            }
            _ => serde_json::to_string(message),
        },
        _ => serde_json::to_string(message),
    };
    Some(Bytes::from(format!("event: message\ndata: {}\n\n", text.ok()?)))
}
