//! Fuzz targets of `fuzz/`, and the replay of their corpora. Not part of any other build.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::ModelCapabilities;
use aludel_agent::upstream::http::{HttpOptions, HttpUpstream, Protocol, Transport};
use aludel_engine::sessions::check_name;
use aludel_engine::{Engine, Model, ProgramParts, SessionFile};
use aludel_sandbox::memory::Memory;
use aludel_store::{FileId, FileOrigin, InteractionId, ResponseId, SessionFileId, SessionId, Store, Tenant, fresh_id};
use axum::body::{self, Bytes};
use axum::extract::{FromRequestParts, Request};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, stream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::app::App;
use crate::dialects::Dialect;
use crate::dialects::anthropic::ANTHROPIC;
use crate::dialects::e2b::E2B;
use crate::dialects::gemini::GEMINI;
use crate::dialects::openai::chat::markdown::{AnswerPart, Markdown, read};
use crate::dialects::opensandbox::OPENSANDBOX;
use crate::http::{MultipartForm, Params, body_memory, is_local_host, mime_of};
use crate::links::{FileLink, Links};
use crate::{ServerSettings, router};

/// Requests after which a server is replaced, because leftovers slow it down.
const REQUESTS: u32 = 300;
/// The longest wait for an answer's body: a stream may not have ended.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of an answer.
const MAX_ANSWER: usize = 64 << 20;
/// Bytes of memory that a request need not reserve, and for the frame around its body: the first one to a new server takes up to 570 KB.
const FREE: usize = 640 << 10;
/// The types that a client of MCP takes.
const BOTH: &str = "application/json, text/event-stream";
/// Bytes of a file in a form.
const MAX_FILE: u64 = 1 << 20;

/// Sends a request, written as in HTTP/1.1 except for line ends, to a server with two tenants. Every failure must be the client's and in
/// the dialect's form, and reveal nothing of the other tenant. `{file}` and the like stand for ids, `{token}` for the secret of
/// `{sandbox}`, `{key}` for the key of a client that names none; `{frame}` at a body's beginning makes it a frame of Connect.
pub fn requests(bytes: &[u8]) {
    with_server(|server| {
        let filled = server.filled(&String::from_utf8_lossy(bytes));
        let Some(request) = server.parse(&filled) else { return };
        let (is_head, is_delete) = (request.method() == Method::HEAD, request.method() == Method::DELETE);
        let words = Words::of(&request);
        let (status, head, body) = server.send(request);
        let text = String::from_utf8_lossy(&body);
        // Scripted sandboxes have no processes and files, and a missing sandbox is a bad gateway.
        let is_unreached = matches!(status, StatusCode::NOT_IMPLEMENTED | StatusCode::BAD_GATEWAY);
        let may_be_unreached = matches!(words, Words::E2b | Words::Opensandbox);
        assert!(!status.is_server_error() || is_unreached && may_be_unreached, "{status}: {text}");
        assert!(head.contains_key("x-request-id"));
        assert!(!text.contains(&server.secret), "the other tenant's secret");
        // A file may contain anything.
        let is_ours = !(status.is_success() && filled.contains("/content"));
        let is_json = head.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
        // E2B's code interpreter sends events as lines of JSON under this type.
        let is_json = is_json && !(words == Words::E2b && status.is_success());
        if is_json && is_ours && !is_head && !body.is_empty() {
            let body: Value = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{error}: {text}"));
            let is_failure = status.is_client_error() || status.is_server_error();
            let (error, names) = match words {
                // A successful answer may have such fields, too.
                Words::E2b | Words::Opensandbox => (is_failure.then_some(&body), ["message", "code"].as_slice()),
                Words::Mcp => (body.get("error"), ["message", "code"].as_slice()),
                Words::Gemini => (body.get("error"), ["message", "code", "status"].as_slice()),
                Words::Anthropic => (body.get("error"), ["message", "type", "details"].as_slice()),
                Words::Openai => (body.get("error"), ["message", "type", "param", "code"].as_slice()),
            };
            let error = error.filter(|error| error.is_object());
            assert!(error.is_none_or(|error| names.iter().all(|name| error.get(name).is_some())), "{status}: {text}");
            // A failed call of MCP is an answer.
            assert!(error.is_some() == is_failure || words == Words::Mcp && !is_failure, "{status}: {text}");
        } else {
            // E2B's code interpreter refuses in plain text.
            assert!(is_head || body.is_empty() || !status.is_client_error() || words == Words::E2b, "{status}: {text}");
        }
        if is_delete && status.is_success() {
            server.requests = REQUESTS + 1;
        }
    });
}

/// The dialect of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Words {
    Openai,
    Anthropic,
    E2b,
    Opensandbox,
    Gemini,
    Mcp,
}

impl Words {
    /// The dialect of a request.
    fn of(request: &Request) -> Self {
        let claims = |dialect: Dialect| dialect.claims.is_some_and(|claims| claims(request));
        match request.uri().path() {
            _ if claims(E2B) => Self::E2b,
            _ if claims(OPENSANDBOX) => Self::Opensandbox,
            _ if claims(ANTHROPIC) => Self::Anthropic,
            "/mcp" | "/sse" | "/messages" => Self::Mcp,
            _ if claims(GEMINI) => Self::Gemini,
            _ => Self::Openai,
        }
    }
}

/// A JSON body for the route that its first byte chooses.
pub struct JsonBody {
    path: &'static str,
    bytes: Bytes,
    counted: usize,
}

impl JsonBody {
    /// Reads the input of a fuzzer; `None` if the server refuses it before it parses it.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (route, body) = bytes.split_first()?;
        let path = match route {
            b'm' => "/v1/messages",
            b'g' => "/v1beta/models/m:generateContent",
            b'i' => "/v1/interactions",
            b't' => "/v1/threads",
            b'r' => "/v1/threads/runs",
            route => ["/v1/responses", "/v1/responses/input_tokens", "/v1/chat/completions", "/v1/conversations"]
                [usize::from(route % 4)],
        };
        // The server is made before memory is measured.
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

    /// Bytes of memory that the server counts for it, including the free allowance of every request.
    pub fn counted(&self) -> usize {
        FREE + self.counted
    }
}

/// Sends a JSON body, without measuring its memory.
#[cfg(test)]
fn bodies(bytes: &[u8]) {
    if let Some(body) = JsonBody::read(bytes) {
        body.send();
    }
}

/// Parses a form whose type is the first line: the result does not depend on the cuts, its file is within the limit, and the file's name is
/// plain.
pub fn forms(bytes: &[u8]) {
    let Some((kind, body)) = str::from_utf8(bytes).ok().and_then(|text| text.split_once('\n')) else { return };
    let Ok(kind) = HeaderValue::from_str(kind) else { return };
    with_server(|server| {
        let read = |size: usize| {
            let pieces: Vec<_> =
                body.as_bytes().chunks(size).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
            let mut request = Request::new(body::Body::from_stream(stream::iter(pieces)));
            request.headers_mut().insert(CONTENT_TYPE, kind.clone());
            let form =
                server.runtime.block_on(MultipartForm::read(&server.app, &server.tenant, request, "file", MAX_FILE));
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

/// Parses a short text of a client in each of its possible roles.
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
        SessionId::parse(text).map(String::from),
        ResponseId::parse(text).map(String::from),
        InteractionId::parse(text).map(String::from),
    ]
    .into_iter()
    .flatten()
    {
        assert_eq!(id, text);
        assert_plain(&id);
    }
    markdown(text);
    assert!(FileLink::of_token(text, "secret").is_none_or(|link| link.token("secret") == text), "{text:?}");
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

/// Parses a text as one that a client sends back, which must not get longer, and writes it as a model's, cut in every way.
fn markdown(text: &str) {
    let (said, _container) = read(text, "python");
    let length = |said: &AnswerPart| match said {
        AnswerPart::Text(text) => text.len(),
        AnswerPart::Program { code, logs } => code.len() + logs.len(),
    };
    assert!(said.iter().map(length).sum::<usize>() <= text.len(), "{said:?}");
    let links = Links::to("secret".into(), "http://host", &Tenant::local(), &SessionId::new());
    let files = [file_named("a b")];
    let written = |size: usize| {
        let mut markdown = Markdown::new(ProgramParts::All, "python", links.clone());
        let letters: Vec<char> = text.chars().collect();
        let pieces = letters.chunks(size).map(|piece| piece.iter().collect::<String>());
        let mut shown: String = pieces.map(|piece| markdown.text(&piece, &files)).collect();
        shown.push_str(&markdown.end_text(&files));
        shown
    };
    let whole = written(text.len().max(1));
    assert_eq!((&whole, &whole), (&written(7), &written(1)));
}

fn file_named(name: &str) -> SessionFile {
    let (id, path) = (SessionFileId::new(), format!("/mnt/data/{name}"));
    SessionFile {
        id,
        path,
        bytes: 1,
        mime: "text/plain".into(),
        source: FileOrigin::Assistant,
        created_at: 0,
        published_id: None,
    }
}

/// Asserts that a name is a path that stays below its directory and does not mislead a reader.
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
    static IS_STARTED: Cell<bool> = const { Cell::new(false) };
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

fn with_server<T>(work: impl FnOnce(&mut Server) -> T) -> T {
    // The end of a thread drops what was first used last. The server logs when it ends, so its own first use comes after that of the log.
    let first = (!IS_STARTED.replace(true)).then(Server::new);
    SERVER.with_borrow_mut(|server| {
        if first.is_some() {
            *server = first;
        }
        if server.as_ref().is_some_and(|server| server.requests > REQUESTS) {
            *server = None;
        }
        work(server.get_or_insert_with(Server::new))
    })
}

/// A server with scripted programs and one model.
struct Server {
    routes: router::AllRoutes,
    app: Arc<App>,
    key: String,
    tenant: Tenant,
    /// Words that stand for the tenant's objects and, with the prefix `other_`, for those of the other tenant.
    words: Vec<(String, String)>,
    /// A text that all objects of the other tenant contain.
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
        let key = |name| runtime.block_on(store.create_key(name, None)).expect("a key").secret;
        let (key, other_key) = (key("one"), key("other"));
        let tenant = runtime.block_on(store.tenant_of_key(&key)).expect("the store").expect("a tenant");
        let settings = aludel_engine::SessionSettings { sessions: 10_000, ..Default::default() };
        let backend = Arc::new(Memory::default());
        let engine = Engine::new(store, backend, models(), Default::default(), Vec::new(), settings);
        let app = Arc::new(App::new(Arc::new(engine), ServerSettings { metrics: true, ..ServerSettings::default() }));
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

    /// Makes one of each object that a tenant can have, each with a text in it.
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
        let interaction = json!({ "model": "m", "input": text, "system_instruction": text });
        self.make(prefix, "interaction", "/v1/interactions", json, interaction.to_string());
        let assistant = json!({ "model": "m", "name": text, "tools": [{ "type": "code_interpreter" }] });
        self.make(prefix, "assistant", "/v1/assistants", json, assistant.to_string());
        self.make(prefix, "thread", "/v1/threads", json, json!({ "metadata": { "note": text } }).to_string());
        let path = self.filled(&format!("/v1/threads/{{{prefix}thread}}/messages"));
        self.make(prefix, "message", &path, json, json!({ "role": "user", "content": text }).to_string());
        let path = self.filled(&format!("/v1/threads/{{{prefix}thread}}/runs"));
        let run = self.filled(&format!("{{\"assistant_id\":\"{{{prefix}assistant}}\"}}"));
        self.make(prefix, "run", &path, json, run);
        let upload =
            json!({ "bytes": text.len(), "filename": text, "purpose": "user_data", "mime_type": "text/plain" });
        self.make(prefix, "upload", "/v1/uploads", json, upload.to_string());
        let path = self.filled(&format!("/v1/uploads/{{{prefix}upload}}/parts"));
        self.make(prefix, "part", &path, multipart, form("data"));
        let sandbox = json!({ "templateID": "base", "timeout": 3600, "metadata": { "note": text } });
        let (_, _, made) = self.send(self.post("/v2/sandboxes", json, sandbox.to_string().into()));
        let made: Value = serde_json::from_slice(&made).unwrap_or_default();
        let word = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        self.words.push((format!("{{{prefix}sandbox}}"), word("sandboxID")));
        let connection = self.connect();
        self.words.push((format!("{{{prefix}mcp}}"), connection));
        if prefix.is_empty() {
            // Each of these gives access to its object without a key.
            self.words.push(("{token}".to_owned(), word("envdAccessToken")));
            let container = SessionId::parse(&self.filled("{container}")).expect("an id");
            let secret = self.runtime.block_on(self.app.link_secret()).expect("a secret");
            let file = SessionFileId::parse(&self.filled("{cfile}")).expect("an id");
            let links = Links::to(secret, "", &self.tenant, &container);
            self.words.push(("{link}".to_owned(), links.link(&SessionFile { id: file, ..file_named("a b") })));
        }
    }

    /// Initializes a connection of MCP's first version and returns its id.
    fn connect(&mut self) -> String {
        let client = json!({ "name": "c", "version": "1" });
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
        let mut request = self.post("/mcp", "application/json", message.to_string().into());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(BOTH));
        let (status, head, body) = self.send(request);
        let id = head.get("mcp-session-id");
        let id = id.unwrap_or_else(|| panic!("{status}: {}", String::from_utf8_lossy(&body))).clone();
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let mut request = self.post("/mcp", "application/json", message.to_string().into());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(BOTH));
        request.headers_mut().insert("mcp-session-id", id.clone());
        let (status, _, _) = self.send(request);
        assert!(status.is_success(), "{status}");
        id.to_str().expect("plain text").to_owned()
    }

    fn make(&mut self, prefix: &str, name: &str, path: &str, kind: &str, body: String) {
        let (status, _, answer) = self.send(self.post(path, kind, body.into()));
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let id = answer["id"].as_str().unwrap_or_else(|| panic!("{path}: {status}: {answer}"));
        self.words.push((format!("{{{prefix}{name}}}"), id.to_owned()));
    }

    /// A text with ids in place of their placeholders.
    fn filled(&self, text: &str) -> String {
        self.words.iter().fold(text.to_owned(), |text, (word, id)| text.replace(word, id))
    }

    fn post(&self, path: &str, kind: &str, body: Bytes) -> Request {
        let request = Request::post(path)
            .header(CONTENT_TYPE, kind)
            .header(AUTHORIZATION, format!("Bearer {}", self.key))
            .header(HOST, "localhost");
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
        let framed = body.strip_prefix("{frame}").map(|message| {
            let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
            [&[0], length.as_slice(), message.as_bytes()].concat()
        });
        let body = framed.as_deref().unwrap_or(body.as_bytes());
        // Every other body comes in pieces.
        let size = if body.len() % 2 == 0 { body.len().max(1) } else { 7 };
        let pieces = body.chunks(size).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece)));
        let pieces: Vec<_> = pieces.collect();
        let mut request = request.body(body::Body::from_stream(stream::iter(pieces))).ok()?;
        request.headers_mut().entry(HOST).or_insert(HeaderValue::from_static("localhost"));
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
            let body = timeout(BODY_TIMEOUT, body::to_bytes(body, MAX_ANSWER)).await;
            (parts.status, parts.headers, body.map(|body| body.expect("an answer with an end")).unwrap_or_default())
        })
    }
}

/// Two models that call a program if they can, and otherwise answer. The second one always has the tool.
fn models() -> [Model; 2] {
    let options = HttpOptions {
        protocol: Protocol::CHAT_COMPLETIONS,
        url: "http://localhost/v1".into(),
        model: "m".into(),
        key: None,
        capabilities: ModelCapabilities { function_calling: true, vision: true },
        idle_timeout: Duration::from_secs(60),
        headers: Vec::new(),
        max_output_tokens: None,
        requests: None,
    };
    let chat = Arc::new(HttpUpstream::over(options, Arc::new(ScriptedPrograms)).expect("the options are fine"));
    let named = |name| Model { endpoint: Some(Arc::clone(&chat)), ..Model::new(name, "a fuzzer", chat.clone()) };
    [named("m"), Model { code_interpreter: Some(ProgramParts::All), ..named("plain") }]
}

struct ScriptedPrograms;

impl fmt::Debug for ScriptedPrograms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Scripted")
    }
}

impl Transport for ScriptedPrograms {
    fn send(&self, request: reqwest::Request) -> BoxFuture<'static, reqwest::Result<reqwest::Response>> {
        let body = request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default();
        // Nothing is parsed, because the memory of a request is measured.
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
