//! Targets of the fuzzers in `fuzz/`, and the replay of what they kept. Not there in any other build.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::Capabilities;
use aludel_agent::upstream::chat::{Chat, ChatOptions, Protocol, Transport};
use aludel_engine::sessions::check_name;
use aludel_engine::{Engine, Model};
use aludel_sandbox::memory::Memory;
use aludel_store::{ContainerId, FileId, ResponseId, Store, Tenant, fresh_id};
use axum::body::{self, Bytes};
use axum::extract::{FromRequestParts, Request};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::app::App;
use crate::http::{Form, Params, body_memory, is_local_host, mime_of};
use crate::{Settings, router};

/// Requests after which a server is made anew: what they leave slows it down.
const REQUESTS: u32 = 300;
/// Time for an answer, after which nobody waits for the rest of it: a stream may have no end yet.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer.
const MAX_ANSWER: usize = 64 << 20;
/// Bytes of memory for which a request needs no share, and for the frame around its body.
const FREE: usize = 512 << 10;
/// Bytes of a file in a form.
const MAX_FILE: u64 = 1 << 20;

/// Sends a request, written as in HTTP/1.1 but for the line's end, to a server that two tenants use: it fails for nobody's fault but the
/// client's and says so in the dialect's words, and tells nothing of the other tenant. `{file}` and the like stand for ids, `{key}` for
/// the key of a client that names none.
pub fn requests(bytes: &[u8]) {
    with_server(|server| {
        let filled = server.filled(&String::from_utf8_lossy(bytes));
        let Some(request) = server.parse(&filled) else { return };
        let (is_head, is_delete) = (request.method() == Method::HEAD, request.method() == Method::DELETE);
        let is_mcp = matches!(request.uri().path(), "/mcp" | "/sse" | "/messages");
        let (status, head, body) = server.send(request);
        let text = String::from_utf8_lossy(&body);
        assert!(!status.is_server_error(), "{status}: {text}");
        assert!(head.contains_key("x-request-id"));
        assert!(!text.contains(&server.secret), "the other tenant's secret");
        // Contents of a file are whatever it holds.
        let is_ours = !(status.is_success() && filled.contains("/content"));
        let is_json = head.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
        if is_json && is_ours && !is_head && !body.is_empty() {
            let body: Value = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {text}"));
            let is_error = body["error"].is_object();
            // Each dialect has its own words.
            let words = if head.contains_key("request-id") {
                ["message", "type", "details"].as_slice()
            } else if is_mcp {
                ["message", "code"].as_slice()
            } else {
                &["message", "type", "param", "code"]
            };
            assert!(!is_error || words.iter().all(|key| body["error"].get(key).is_some()), "{status}: {text}");
            assert_eq!(is_error, status.is_client_error(), "{status}: {text}");
        } else {
            assert!(is_head || body.is_empty() || !status.is_client_error(), "{status}: {text}");
        }
        if is_delete && status.is_success() {
            server.requests = REQUESTS + 1;
        }
    });
}

/// A JSON body for the route that its first byte chooses.
pub struct Body {
    path: &'static str,
    bytes: Bytes,
    counted: usize,
}

impl Body {
    /// Reads the input of a fuzzer; `None` if the server refuses to build anything of it.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (route, body) = bytes.split_first()?;
        let path = match route {
            b'm' => "/v1/messages",
            b'g' => "/v1beta/models/m:generateContent",
            route => ["/v1/responses", "/v1/responses/input_tokens", "/v1/chat/completions", "/v1/conversations"]
                [usize::from(route % 4)],
        };
        // The server is there before anybody measures.
        let filled = with_server(|server| server.filled(&String::from_utf8_lossy(body)));
        let counted = body_memory(filled.as_bytes()).ok()?;
        Some(Self { path, counted, bytes: filled.into() })
    }

    /// Sends it.
    pub fn send(&self) {
        with_server(|server| {
            let request = server.post(self.path, "application/json", self.bytes.clone());
            let (status, _, answer) = server.send(request);
            assert!(!status.is_server_error(), "{status}: {}", String::from_utf8_lossy(&answer));
        });
    }

    /// Bytes of memory that the server counts for it, with what it gives every request.
    pub fn counted(&self) -> usize {
        FREE + self.counted
    }
}

/// Sends a JSON body, without looking at the memory that it takes.
#[cfg(test)]
fn bodies(bytes: &[u8]) {
    if let Some(body) = Body::read(bytes) {
        body.send();
    }
}

/// Reads a form whose type is the first line: it means the same however it is cut, its file is no larger than it may be, and has a name
/// that leads nowhere.
pub fn forms(bytes: &[u8]) {
    let Some((kind, body)) = str::from_utf8(bytes).ok().and_then(|text| text.split_once('\n')) else { return };
    let Ok(kind) = HeaderValue::from_str(kind) else { return };
    with_server(|server| {
        let read = |size: usize| {
            let pieces: Vec<_> =
                body.as_bytes().chunks(size).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
            let mut request = Request::new(body::Body::from_stream(stream::iter(pieces)));
            request.headers_mut().insert(CONTENT_TYPE, kind.clone());
            let form = server.runtime.block_on(Form::read(&server.app, &server.tenant, request, "file", MAX_FILE));
            form.map(|mut form| {
                let file = form.take_file().ok().map(|file| {
                    assert_plain(&file.name);
                    assert!(HeaderValue::from_str(&file.mime).is_ok() && file.blob.bytes() <= MAX_FILE);
                    (file.name, file.mime, file.blob.sha256().to_owned())
                });
                (file, form.text("purpose").map(str::to_owned))
            })
        };
        match (read(body.len().max(1)), read(7), read(1)) {
            (Ok(whole), Ok(pieces), Ok(bytes)) => assert!(whole == pieces && whole == bytes, "{whole:?}, {pieces:?}"),
            (Err(whole), Err(pieces), Err(bytes)) => {
                assert!(!whole.status.is_server_error(), "{whole:?}");
                assert!(whole.status == pieces.status && whole.status == bytes.status, "{whole:?}, {pieces:?}");
            }
            different => panic!("{different:?}"),
        }
    });
}

/// Reads a short text of a client as each of the things that it may be.
pub fn texts(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if check_name(text).is_ok() {
        assert_plain(text);
    }
    let mime = mime_of(text.rsplit('/').next().unwrap_or_default(), Some(text));
    assert!(HeaderValue::from_str(&mime).is_ok() && mime.contains('/') && mime.len() < 128, "{mime:?}");
    if is_local_host(text) {
        let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
        let host = text.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(text, |(host, _)| host);
        let url = reqwest::Url::parse(&format!("http://{host}/")).expect("a host");
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let is_loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        assert!(host == "localhost" || is_loopback, "{text:?} is {host}");
    }
    for id in [
        FileId::parse(text).map(String::from),
        ContainerId::parse(text).map(String::from),
        ResponseId::parse(text).map(String::from),
    ]
    .into_iter()
    .flatten()
    {
        assert_eq!(id, text);
        assert_plain(&id);
    }
    if let Ok(uri) = format!("/?{text}").parse() {
        let mut request = Request::new(());
        *request.uri_mut() = uri;
        let mut parts = request.into_parts().0;
        let params = Params::from_request_parts(&mut parts, &()).now_or_never().expect("nothing is waited for");
        if let Ok(page) = params.and_then(|params| params.page(20, 100)) {
            assert!((1..=100).contains(&page.limit) && page.after.as_deref() != Some(""));
        }
    }
}

/// Asserts that a name is a path that stays below its directory and fools nobody.
fn assert_plain(name: &str) {
    let path = Path::new(name);
    assert!(
        path.components().all(|part| matches!(part, Component::Normal(_))) && path.components().count() > 0,
        "{name:?}"
    );
    assert_eq!(path.components().collect::<std::path::PathBuf>().to_str(), Some(name));
    assert!(name.len() <= 512 && !name.contains(|letter: char| letter.is_control() || letter == '\\'), "{name:?}");
}

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

fn with_server<T>(work: impl FnOnce(&mut Server) -> T) -> T {
    SERVER.with_borrow_mut(|server| {
        if server.as_ref().is_some_and(|server| server.requests > REQUESTS) {
            *server = None;
        }
        work(server.get_or_insert_with(Server::new))
    })
}

/// A server with scripted programs and one model.
struct Server {
    routes: router::Routes,
    app: Arc<App>,
    key: String,
    tenant: Tenant,
    /// Words that stand for what the tenant has and, with `other_` before them, for what the other one has.
    words: Vec<(String, String)>,
    /// A text in everything that the other tenant has.
    secret: String,
    requests: u32,
    runtime: Runtime,
    _data: tempfile::TempDir,
}

impl Server {
    fn new() -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let store = runtime.block_on(Store::open(data.path())).expect("a store");
        let key = |name| runtime.block_on(store.create_key(name)).expect("a key").secret;
        let (key, other_key) = (key("one"), key("other"));
        let tenant = runtime.block_on(store.tenant_of_key(&key)).expect("the store").expect("a tenant");
        let settings = aludel_engine::Settings { sessions: 10_000, ..Default::default() };
        let backend = Arc::new(Memory::default());
        let engine = Engine::new(store, backend, [model()], Default::default(), Vec::new(), settings);
        let app = Arc::new(App::new(Arc::new(engine), Settings { metrics: true, ..Settings::default() }));
        let routes = runtime.block_on(async { router::routes(&app) });
        let secret = fresh_id("secret_");
        let words = vec![("{key}".to_owned(), key.clone())];
        let mut server = Self { routes, app, key, tenant, words, secret, requests: 0, runtime, _data: data };
        server.furnish("", "mine");
        let key = std::mem::replace(&mut server.key, other_key);
        server.furnish("other_", &server.secret.clone());
        server.key = key;
        server
    }

    /// Makes one of everything that a tenant can have, with a text in it.
    fn furnish(&mut self, prefix: &str, text: &str) {
        let form = |part: &str| {
            format!(
                "--x\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n--x\r\ncontent-disposition: \
                 form-data; name=\"{part}\"; filename=\"{text}.txt\"\r\n\r\n{text}\r\n--x--\r\n"
            )
        };
        let multipart = "multipart/form-data; boundary=x";
        self.make(prefix, "file", "/v1/files", multipart, form("file"));
        let json = "application/json";
        self.make(prefix, "container", "/v1/containers", json, json!({ "name": text }).to_string());
        let path = self.filled(&format!("/v1/containers/{{{prefix}container}}/files"));
        self.make(prefix, "cfile", &path, multipart, form("file"));
        let items = json!({ "metadata": { "note": text }, "items": [{ "role": "user", "content": text }] });
        self.make(prefix, "conversation", "/v1/conversations", json, items.to_string());
        let path = self.filled(&format!("/v1/conversations/{{{prefix}conversation}}/items"));
        let item = json!({ "items": [{ "type": "message", "id": format!("msg_{prefix}1"), "role": "user", "content": text }] });
        let (status, _, _) = self.send(self.post(&path, json, item.to_string().into()));
        assert!(status.is_success(), "{status}");
        self.words.push((format!("{{{prefix}item}}"), format!("msg_{prefix}1")));
        let response = json!({ "model": "m", "input": text, "instructions": text });
        self.make(prefix, "response", "/v1/responses", json, response.to_string());
        let upload =
            json!({ "bytes": text.len(), "filename": text, "purpose": "user_data", "mime_type": "text/plain" });
        self.make(prefix, "upload", "/v1/uploads", json, upload.to_string());
        let path = self.filled(&format!("/v1/uploads/{{{prefix}upload}}/parts"));
        self.make(prefix, "part", &path, multipart, form("data"));
    }

    fn make(&mut self, prefix: &str, name: &str, path: &str, kind: &str, body: String) {
        let (status, _, answer) = self.send(self.post(path, kind, body.into()));
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let id = answer["id"].as_str().unwrap_or_else(|| panic!("{path}: {status}: {answer}"));
        self.words.push((format!("{{{prefix}{name}}}"), id.to_owned()));
    }

    /// A text with ids in place of the words for them.
    fn filled(&self, text: &str) -> String {
        self.words.iter().fold(text.to_owned(), |text, (word, id)| text.replace(word, id))
    }

    fn post(&self, path: &str, kind: &str, body: Bytes) -> Request {
        let request =
            Request::post(path).header(CONTENT_TYPE, kind).header(AUTHORIZATION, format!("Bearer {}", self.key));
        request.body(body.into()).expect("a request")
    }

    /// Reads a request; `None` if it is none.
    fn parse(&self, text: &str) -> Option<Request> {
        let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
        let mut lines = head.lines();
        let (method, path) = lines.next()?.split_once(' ')?;
        let mut request = Request::builder().method(method).uri(path);
        for line in lines {
            let (name, value) = line.split_once(':')?;
            request = request.header(name, value.trim());
        }
        // Every other body comes in pieces.
        let size = if body.len() % 2 == 0 { body.len().max(1) } else { 7 };
        let pieces = body.as_bytes().chunks(size).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece)));
        let pieces: Vec<_> = pieces.collect();
        let mut request = request.body(body::Body::from_stream(stream::iter(pieces))).ok()?;
        if !request.headers().contains_key(AUTHORIZATION) {
            request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {}", self.key)).ok()?);
        }
        Some(request)
    }

    fn send(&mut self, request: Request) -> (StatusCode, axum::http::HeaderMap, Bytes) {
        self.requests += 1;
        let routes = self.routes.clone();
        self.runtime.block_on(async move {
            let Ok(response) = routes.oneshot(request).await;
            let (parts, body) = Response::into_parts(response);
            let body = timeout(PATIENCE, body::to_bytes(body, MAX_ANSWER)).await;
            (parts.status, parts.headers, body.map(|body| body.expect("an answer with an end")).unwrap_or_default())
        })
    }
}

/// A model that calls a program where it is offered, and answers where it is not.
fn model() -> Model {
    let options = ChatOptions {
        protocol: Protocol::Chat,
        url: "http://localhost/v1".into(),
        model: "m".into(),
        key: None,
        capabilities: Capabilities { function_calling: true, vision: true },
        idle_timeout: Duration::from_secs(60),
        headers: Vec::new(),
        max_output_tokens: None,
        requests: None,
    };
    let chat = Arc::new(Chat::over(options, Arc::new(Scripted)).expect("the options are fine"));
    Model { endpoint: Some(Arc::clone(&chat)), ..Model::new("m", "a fuzzer", chat) }
}

struct Scripted;

impl fmt::Debug for Scripted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Scripted")
    }
}

impl Transport for Scripted {
    fn send(&self, request: reqwest::Request) -> BoxFuture<'static, reqwest::Result<reqwest::Response>> {
        let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        // Nothing is built of it, for the memory of a request is measured.
        let has = |text: &str| body.windows(text.len()).any(|part| part == text.as_bytes());
        let calls = has(r#""tools":["#) && !has(r#""role":"tool""#);
        let (delta, reason) = if calls {
            let function = json!({ "name": "python", "arguments": r#"{"code": "print(1)"}"# });
            (
                json!({ "tool_calls": [{ "index": 0, "id": "call_1", "type": "function", "function": function }] }),
                "tool_calls",
            )
        } else {
            (json!({ "content": "Done." }), "stop")
        };
        let chunk = json!({
            "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }],
        });
        let mut response = axum::http::Response::new(reqwest::Body::from(format!("data: {chunk}\n\ndata: [DONE]\n\n")));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        async { Ok(response.into()) }.boxed()
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn kept_inputs_of_bodies_pass() {
        replay("bodies", super::bodies);
    }

    #[test]
    fn kept_inputs_of_forms_pass() {
        replay("forms", super::forms);
    }

    #[test]
    fn kept_inputs_of_requests_pass() {
        replay("requests", super::requests);
    }

    #[test]
    fn kept_inputs_of_texts_pass() {
        replay("texts", super::texts);
    }
}
