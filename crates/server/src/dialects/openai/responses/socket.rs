//! Responses over a WebSocket: each message of a client is answered as a `POST` of its own, whose events come as messages, one response
//! after another.
//!
//! Source of the messages: `ResponsesClientEvent` of OpenAI's Python client, and the errors as the Agents SDK reads them.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_store::{ResponseId, Tenant};
use aludel_wire::openai::{Error, ErrorEnvelope};
use axum::Router;
use axum::body::{Body, BodyDataStream, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_EXTENSIONS, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::response::Response;
use futures_util::stream::{BoxStream, StreamExt as _, once, unfold};
use memchr::memmem;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::sleep;
use tower::ServiceExt as _;
use tracing::Instrument as _;

use super::request::no_previous;
use crate::app::App;
use crate::dialects::openai::error;
use crate::error::ApiError;
use crate::http::{Caller, LocalUserMark, MemoryCharge, ServedRoutes, SocketMessage, WebSocket, WebSocketUpgrade};

/// Messages that may wait for the response before them.
const MAX_WAITING: usize = 4;
/// Messages that may wait, with those that are refused in their turn.
const MAX_REFUSED: usize = 64;
/// Time for a client to take an event once the server cancels what runs.
const LAST_EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a refusal.
const MAX_REFUSAL: usize = 1 << 20;
/// Headers of the socket that are not those of its requests: of the connection, and of a repetition, which no second request may be.
const OF_SOCKET: [HeaderName; 11] = [
    ACCEPT,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    SEC_WEBSOCKET_EXTENSIONS,
    SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION,
    UPGRADE,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("x-stainless-retry-count"),
];

/// `GET /v1/responses`, which opens a WebSocket.
pub(crate) async fn connect(
    State(app): State<Arc<App>>,
    Caller(tenant): Caller,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = WebSocketUpgrade::of(&mut request, &app, &tenant)?;
    let Some(ServedRoutes(routes)) = request.extensions_mut().remove() else {
        return Err(ApiError::internal("a WebSocket without routes"));
    };
    let (answer, opened) = upgrade.accept(&app, &tenant)?;
    let mut headers = std::mem::take(request.headers_mut());
    OF_SOCKET.iter().for_each(|name| drop(headers.remove(name)));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let (uri, local_user) = (request.uri().clone(), request.extensions_mut().remove());
    let mut conversation = Conversation { routes, uri, headers, local_user, last: None, started: None };
    let span = app.telemetry.span();
    let (tasks, connections) = (app.tasks.clone(), app.engine.socket_connections.clone());
    let share = app.engine.processor_time.share_of(&tenant);
    let served = async move {
        if let Some(socket) = opened.await {
            conversation.serve(&app, &tenant, socket).await;
        }
    };
    tasks.spawn(connections.track_future(share.pace(served)).instrument(span));
    Ok(answer)
}

/// The requests over one socket.
struct Conversation {
    routes: Router,
    uri: Uri,
    headers: HeaderMap,
    local_user: Option<LocalUserMark>,
    /// The last response that is not stored: the socket alone knows it.
    last: Option<UnstoredResponse>,
    /// The beginning of the one under way.
    started: Option<UnstoredResponse>,
}

/// A response that is not stored, with the items before it and its own, in JSON and with commas between them.
struct UnstoredResponse {
    id: String,
    /// The stored response before these items.
    after: Option<String>,
    items: String,
    memory: MemoryCharge,
}

/// A message of a client.
#[derive(Deserialize)]
struct ClientMessage<'m> {
    #[serde(borrow)]
    r#type: Cow<'m, str>,
    background: Option<bool>,
    #[serde(borrow)]
    conversation: Option<&'m RawValue>,
    generate: Option<bool>,
    #[serde(borrow)]
    input: Option<&'m RawValue>,
    #[serde(borrow)]
    model: Option<&'m RawValue>,
    #[serde(borrow)]
    previous_response_id: Option<Cow<'m, str>>,
    store: Option<bool>,
    #[serde(borrow)]
    stream_id: Option<&'m RawValue>,
}

/// A response that a client asks for.
struct RequestedResponse {
    /// The message without the brace at its end.
    fields: String,
    /// The id of the response before it.
    previous: Option<String>,
    /// Its input, unless it is stored and follows none.
    items: String,
    model: Option<Box<RawValue>>,
    has_conversation: bool,
    kind: ResponseKind,
}

/// The kinds of responses of a socket.
enum ResponseKind {
    /// An ordinary one.
    Stored,
    /// One that its socket alone knows.
    Unstored,
    /// The same, and without an output: the input of a later one.
    Prepared,
}

/// An event at the end of a response.
#[derive(Deserialize)]
struct LastEvent<'e> {
    #[serde(borrow)]
    response: EndedResponse<'e>,
}

#[derive(Deserialize)]
struct EndedResponse<'e> {
    #[serde(borrow)]
    id: Cow<'e, str>,
    #[serde(borrow)]
    output: &'e RawValue,
}

/// The events that are to be sent, in JSON, with the name of each.
type Events = BoxStream<'static, (String, String)>;

impl Conversation {
    async fn serve(&mut self, app: &App, tenant: &Tenant, mut socket: WebSocket) {
        let mut waiting: VecDeque<Result<SocketMessage, ApiError>> = VecDeque::new();
        let mut events: Option<Events> = None;
        loop {
            if events.is_none()
                && let Some(message) = waiting.pop_front()
            {
                // A state that cannot be read is told below.
                if !app.callers.may_ask(&app.store, tenant).await.unwrap_or(true) {
                    let refusal = ApiError::unauthorized("This API key was revoked or has expired.");
                    socket.send(error_event(&refusal)).await.ignore("the client may be gone");
                    return socket.refuse("the key was revoked or has expired").await;
                }
                let answer = async { self.answer(app, tenant, message?).await };
                events = Some(answer.await.unwrap_or_else(|refusal| refused(&refusal)));
            }
            tokio::select! {
                event = next_of(&mut events) => match event {
                    Some((name, event)) => {
                        self.keep(&name, &event);
                        let gave_up = async {
                            app.shutdown.cancelled().await;
                            sleep(LAST_EVENT_TIMEOUT).await;
                        };
                        tokio::select! {
                            sent = socket.send(event) => if sent.is_err() { return },
                            () = gave_up => return,
                        }
                    }
                    None => events = None,
                },
                message = socket.next() => match message {
                    None => return,
                    Some(message) if waiting.len() < MAX_WAITING => waiting.push_back(Ok(message)),
                    Some(_) if waiting.len() < MAX_REFUSED => {
                        let message = format!("More than {MAX_WAITING} messages waited for the response before them.");
                        waiting.push_back(Err(ApiError::too_many(message, Duration::from_secs(1))));
                    }
                    Some(_) => return socket.refuse("too many messages at once").await,
                },
                () = app.draining.cancelled(), if events.is_none() && waiting.is_empty() => return socket.go_away().await,
            }
        }
    }

    /// The events that answer a message.
    async fn answer(&mut self, app: &App, tenant: &Tenant, message: SocketMessage) -> Result<Events, ApiError> {
        self.started = None;
        let (asked, memory) = message.read(app, RequestedResponse::read).await?;
        let known = self.last.as_ref().filter(|last| Some(&last.id) == asked.previous.as_ref());
        if known.is_some() && asked.has_conversation {
            let message = "'previous_response_id' and 'conversation' exclude each other.";
            return Err(ApiError::bad_request(message)
                .param("previous_response_id")
                .code("mutually_exclusive_parameters"));
        }
        let after = known.map_or(&asked.previous, |known| &known.after).clone();
        let items = joined(known.map_or("", |known| &known.items), &asked.items);
        // Of a field that comes twice, the last one counts.
        let body = match known {
            None => format!(r#"{},"stream":true}}"#, asked.fields),
            Some(_) => {
                let after = json!(after);
                format!(r#"{},"stream":true,"previous_response_id":{after},"input":[{items}]}}"#, asked.fields)
            }
        };
        match asked.kind {
            ResponseKind::Prepared => {
                if let Some(id) = asked.previous.as_ref().filter(|_| known.is_none())
                    && !is_stored(app, tenant, id).await?
                {
                    return Err(no_previous(id));
                }
                let id = ResponseId::new().to_string();
                let events = prepared(&id, asked.model.as_deref());
                self.last = Some(UnstoredResponse::new(app, tenant, id, after, items)?);
                return Ok(events);
            }
            // A conversation has its items itself.
            ResponseKind::Unstored if asked.has_conversation => {}
            ResponseKind::Unstored => {
                self.started = UnstoredResponse::new(app, tenant, String::new(), after, items).ok();
            }
            ResponseKind::Stored => {}
        }
        let mut request = Request::new(Body::from(body));
        (*request.method_mut(), *request.uri_mut()) = (Method::POST, self.uri.clone());
        *request.headers_mut() = self.headers.clone();
        if let Some(mark) = self.local_user {
            request.extensions_mut().insert(mark);
        }
        let answering = self.routes.clone().oneshot(request);
        let events = once(answering).flat_map(move |answer: Result<Response, Infallible>| {
            let (Ok(answer), _until_answered) = (answer, &memory);
            events_of(answer)
        });
        Ok(events.boxed())
    }

    /// Keeps the response that an event ends, if nobody else does.
    fn keep(&mut self, name: &str, event: &str) {
        if !matches!(name, "response.completed" | "response.incomplete") {
            return;
        }
        let Some(mut ended) = self.started.take() else { return };
        let Ok(LastEvent { response }) = serde_json::from_str::<LastEvent<'_>>(event) else { return };
        let output = items_of(Some(response.output));
        if ended.memory.count(output.len()).is_ok() {
            (ended.id, ended.items) = (response.id.into_owned(), joined(&ended.items, &output));
            self.last = Some(ended);
        }
    }
}

impl RequestedResponse {
    fn read(text: &str) -> Result<Self, ApiError> {
        let text = text.trim_end();
        let unreadable =
            |reason: &str| ApiError::bad_request(format!("The message cannot be read: {reason}.")).code("invalid_json");
        let sent: ClientMessage<'_> = serde_json::from_str(text).map_err(|error| unreadable(&error.to_string()))?;
        let fields = text.strip_suffix('}').ok_or_else(|| unreadable("it is no object"))?.to_owned();
        if sent.r#type != "response.create" {
            let kind = aludel_agent::excerpt::line(&sent.r#type, 80);
            return Err(ApiError::invalid("type", format!("Messages of the type '{kind}' are not supported.")));
        }
        if sent.background == Some(true) {
            let message = "Nothing runs in the background over a WebSocket: send a POST.";
            return Err(ApiError::invalid("background", message));
        }
        if sent.stream_id.is_some_and(|id| id.get() != "null") {
            let message =
                "Responses of one socket come one after another: leave 'stream_id' out, or open more sockets.";
            return Err(ApiError::invalid("stream_id", message));
        }
        let kind = match (sent.generate, sent.store) {
            (Some(false), _) => ResponseKind::Prepared,
            (_, Some(false)) => ResponseKind::Unstored,
            _ => ResponseKind::Stored,
        };
        let is_readable = |input: &RawValue| input.get().starts_with(['"', '[']) || input.get() == "null";
        if matches!(kind, ResponseKind::Prepared) && !sent.input.is_none_or(is_readable) {
            return Err(ApiError::invalid("input", "Invalid value for 'input': expected a text or a list of items."));
        }
        if matches!(kind, ResponseKind::Prepared) && !sent.model.is_some_and(|model| model.get().starts_with('"')) {
            return Err(ApiError::missing("model"));
        }
        let has_conversation = sent.conversation.is_some_and(|conversation| conversation.get() != "null");
        if has_conversation && matches!(kind, ResponseKind::Prepared) {
            return Err(ApiError::invalid("conversation", "A response without an output is in no conversation."));
        }
        let needs_items = sent.previous_response_id.is_some() || !matches!(kind, ResponseKind::Stored);
        let items = if needs_items { items_of(sent.input).into_owned() } else { String::new() };
        let (previous, model) = (sent.previous_response_id.map(Cow::into_owned), sent.model.map(ToOwned::to_owned));
        Ok(Self { fields, previous, items, model, has_conversation, kind })
    }
}

impl UnstoredResponse {
    fn new(app: &App, tenant: &Tenant, id: String, after: Option<String>, items: String) -> Result<Self, ApiError> {
        let memory = MemoryCharge::of(app, tenant)?;
        memory.count(items.len())?;
        Ok(Self { id, after, items, memory })
    }
}

/// The events of a response without an output.
fn prepared(id: &str, model: Option<&RawValue>) -> Events {
    let events = [("response.created", "in_progress"), ("response.completed", "completed")];
    let event = |(sequence, (name, status)): (usize, (&str, &str))| {
        let response = json!({
            "id": id, "object": "response", "created_at": aludel_store::now(), "model": model, "status": status,
            "output": [], "error": null, "incomplete_details": null, "instructions": null, "metadata": {},
            "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "usage": null,
        });
        (name.to_owned(), json!({"type": name, "sequence_number": sequence, "response": response}).to_string())
    };
    futures_util::stream::iter(events.into_iter().enumerate().map(event).collect::<Vec<_>>()).boxed()
}

async fn is_stored(app: &App, tenant: &Tenant, id: &str) -> Result<bool, ApiError> {
    let Some(id) = ResponseId::parse(id) else { return Ok(false) };
    Ok(app.store.response_bytes(tenant, &id).await?.is_some())
}

async fn next_of(events: &mut Option<Events>) -> Option<(String, String)> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

/// The items of an input, without the brackets around them.
fn items_of(input: Option<&RawValue>) -> Cow<'_, str> {
    let text = input.map_or("", RawValue::get).trim();
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(items) => items.trim().into(),
        None if text.starts_with('"') => format!(r#"{{"role":"user","content":{text}}}"#).into(),
        None => "".into(),
    }
}

fn joined(first: &str, second: &str) -> String {
    let comma = if first.is_empty() || second.is_empty() { "" } else { "," };
    format!("{first}{comma}{second}")
}

fn refused(refusal: &ApiError) -> Events {
    let event = ("error".to_owned(), error_event(refusal));
    once(std::future::ready(event)).boxed()
}

fn error_event(refusal: &ApiError) -> String {
    event_of(refusal.status.as_u16(), &error::body(refusal).error)
}

/// An error as an event, with its parts where clients of either kind read them.
fn event_of(status: u16, error: &Error) -> String {
    let Error { message, param, code, .. } = error;
    let event = json!({
        "type": "error", "status": status, "error": error,
        "code": code, "message": message, "param": param, "sequence_number": 0,
    });
    event.to_string()
}

/// The events of an answer.
fn events_of(answer: Response) -> Events {
    let status = answer.status();
    let is_stream =
        answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    if status.is_success() && is_stream {
        let frames = Frames { body: answer.into_body().into_data_stream(), read: Vec::new(), has_ended: false };
        return unfold(frames, async |mut frames| Some((frames.next().await?, frames))).boxed();
    }
    let refusal = async move {
        let body = to_bytes(answer.into_body(), MAX_REFUSAL).await.unwrap_or_default();
        let event = match serde_json::from_slice::<ErrorEnvelope>(&body) {
            Ok(refusal) => event_of(status.as_u16(), &refusal.error),
            Err(error) => error_event(&ApiError::internal(format!("an answer that is no event: {error}"))),
        };
        ("error".to_owned(), event)
    };
    once(refusal).boxed()
}

/// The frames of a stream of events.
struct Frames {
    body: BodyDataStream,
    read: Vec<u8>,
    has_ended: bool,
}

impl Frames {
    async fn next(&mut self) -> Option<(String, String)> {
        if self.has_ended {
            // The client has the whole answer once the stream is read to its end.
            while self.body.next().await.is_some_and(|chunk| chunk.is_ok()) {}
            return None;
        }
        loop {
            while let Some(end) = memmem::find(&self.read, b"\n\n") {
                let frame: Vec<u8> = self.read.drain(..end + 2).collect();
                let frame = String::from_utf8(frame).unwrap_or_default();
                let line = |name| frame.lines().find_map(|line: &str| line.strip_prefix(name));
                if let (Some(name), Some(data)) = (line("event: "), line("data: ")) {
                    self.has_ended =
                        matches!(name, "response.completed" | "response.incomplete" | "response.failed" | "error");
                    return Some((name.to_owned(), data.to_owned()));
                }
            }
            match self.body.next().await {
                Some(Ok(chunk)) => self.read.extend_from_slice(&chunk),
                Some(Err(_)) | None => {
                    self.has_ended = true;
                    let error = ApiError::internal("a response over a WebSocket broke off");
                    return Some(("error".to_owned(), error_event(&error)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_put_together_as_they_were_sent() {
        let items = |text: &str| items_of(Some(&RawValue::from_string(text.to_owned()).unwrap())).into_owned();
        assert_eq!(items(r#""a \"b\"""#), r#"{"role":"user","content":"a \"b\""}"#);
        assert_eq!(
            (items("[ ]"), items("null"), items(r#"[{"a":[1]} ]"#)),
            (String::new(), String::new(), r#"{"a":[1]}"#.to_owned())
        );
        assert_eq!(
            (joined("", "1"), joined("1", ""), joined("1", "2")),
            ("1".to_owned(), "1".to_owned(), "1,2".to_owned())
        );
    }
}
