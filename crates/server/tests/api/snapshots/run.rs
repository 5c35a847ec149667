//! Runs cases against the real server and compares what they record with the files in `expected`.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aludel_agent::upstream::http::{HttpOptions, HttpUpstream};
use aludel_engine::{Engine, Model};
use aludel_sandbox::Backend;
use aludel_sandbox::memory::Memory;
use aludel_server::{App, serve};
use aludel_store::Store;
use aludel_testkit::{ScriptedTransport, chat_options};
use futures_util::{StreamExt, stream};
use reqwest::header::HeaderMap;
use reqwest::multipart::{Form, Part};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::case::{Body, Case, Place, Request, Shown, Step};
use super::names::Names;
use crate::common::connector::{Connector, HOST_NAME};

/// Cases at once.
const AT_ONCE: usize = 32;
/// Limit of one step.
const STEP: Duration = Duration::from_secs(120);
/// Characters of JSON up to which it stands on one line.
const LINE: usize = 400;
/// Headers that say nothing about the server, or differ each time.
const UNSHOWN: [&str; 5] = ["content-length", "date", "transfer-encoding", "x-aludel-backend", "x-request-id"];

/// Cases by group.
type Cases = Vec<(&'static str, Vec<Case>)>;

/// Runs the cases of these places. Fails with all that differ.
pub(super) async fn check(cases: Cases, backend: Arc<dyn Backend>, places: &[Place]) {
    let only = std::env::var("CASE").ok();
    let runs = files(cases).filter(|(_, case)| places.contains(&case.place));
    let runs = runs.filter(|(file, _)| only.as_ref().is_none_or(|only| file.contains(only.as_str())));
    let runs = runs.map(|(file, case)| {
        let backend = Arc::clone(&backend);
        async move { (file, tokio::spawn(run(case, backend)).await) }
    });
    let mut wrong: Vec<String> = stream::iter(runs)
        .buffer_unordered(AT_ONCE)
        .filter_map(async |(file, recorded)| match recorded {
            Ok(recorded) => differs(&file, &recorded),
            Err(panic) => Some(format!("{file}: {panic}")),
        })
        .collect()
        .await;
    backend.shutdown().await;
    wrong.sort();
    assert!(wrong.is_empty(), "{} snapshots differ:\n\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Cases with the names of their files.
fn files(cases: Cases) -> impl Iterator<Item = (String, Case)> {
    let cases = cases.into_iter().flat_map(|(group, cases)| cases.into_iter().map(move |case| (group, case)));
    cases.map(|(group, case)| (format!("{group}/{}.txt", case.name), case))
}

fn expected() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/snapshots/expected")
}

fn writes() -> bool {
    std::env::var("SNAPSHOTS").is_ok_and(|word| word == "write")
}

/// In which way a record is not the one that is expected.
fn differs(file: &str, recorded: &str) -> Option<String> {
    let path = expected().join(file);
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    if before == recorded {
        return None;
    }
    if writes() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, recorded).unwrap();
        return None;
    }
    let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file.replace('/', "-"));
    std::fs::write(&written, recorded).unwrap();
    let (mut old, mut new) = (before.lines(), recorded.lines());
    let mut number = 0;
    let (old, new) = loop {
        number += 1;
        match (old.next(), new.next()) {
            (Some(old), Some(new)) if old == new => {}
            (old, new) => break (old.unwrap_or("(the end)").to_owned(), new.unwrap_or("(the end)").to_owned()),
        }
    };
    let same = old.chars().zip(new.chars()).take_while(|(old, new)| old == new).count();
    let [old, new] = [old, new].map(|line| line.chars().skip(same.saturating_sub(60)).take(200).collect::<String>());
    Some(format!("{file}, line {number}: diff {} {}\n- {old}\n+ {new}", path.display(), written.display()))
}

/// Fails with files of which there is no case any more, and names that two cases have.
pub(super) fn check_leftovers(cases: Cases) {
    let mut names = HashSet::new();
    for (file, _) in files(cases) {
        assert!(names.insert(file.clone()), "two cases have the name {file}");
    }
    let expected = expected();
    let groups = std::fs::read_dir(&expected).unwrap().map(|group| group.unwrap().path());
    let found = groups.flat_map(|group| std::fs::read_dir(group).unwrap()).map(|file| file.unwrap().path());
    let found = found.filter(|file| !names.contains(&*file.strip_prefix(&expected).unwrap().to_string_lossy()));
    let found: Vec<PathBuf> = found.collect();
    if writes() {
        return found.into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
    assert!(found.is_empty(), "there is no case of {found:?}");
}

/// A server of a case's own.
struct Server {
    connector: Connector,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Server {
    async fn start(
        case: &Case,
        data: &Path,
        backend: Arc<dyn Backend>,
        upstream: &Arc<ScriptedTransport>,
    ) -> (Self, Store) {
        let store = timeout(STEP, open(data)).await.expect("the server before lets go of its state");
        let models = [model(case, upstream)];
        let (approvals, settings) = (case.approvals.clone(), case.settings.clone());
        let engine = Engine::new(store.clone(), backend, models, approvals, Vec::new(), settings);
        let app = App::new(Arc::new(engine), case.server.clone());
        let (connector, listener) = Connector::new();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            let stopped = async {
                let _dropped = stopped.await;
            };
            serve(app, listener, stopped).await.unwrap();
        });
        (Self { connector, stop, running }, store)
    }

    async fn stop(self) {
        drop(self.stop);
        timeout(STEP, self.running).await.expect("the server ends in time").unwrap();
    }
}

/// Opens the state. A thread of the server that has ended may hold it for some milliseconds more, as no process does.
async fn open(data: &Path) -> Store {
    loop {
        match Store::open(data).await {
            Err(aludel_store::Error::InUse(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            opened => return opened.unwrap(),
        }
    }
}

fn model(case: &Case, upstream: &Arc<ScriptedTransport>) -> Model {
    // No server listens there.
    let options = chat_options("http://127.0.0.1:1/v1", "m-upstream");
    let options = HttpOptions { idle_timeout: case.patience, ..options };
    let upstream = Arc::clone(upstream);
    let chat = if case.reachable { HttpUpstream::over(options, upstream) } else { HttpUpstream::new(options) };
    let chat = Arc::new(chat.unwrap());
    Model { endpoint: case.passes.then(|| Arc::clone(&chat)), ..Model::new("m", "a test", chat) }
}

/// Runs a case and returns its record.
async fn run(case: Case, backend: Arc<dyn Backend>) -> String {
    let data = tempfile::tempdir().unwrap();
    let backend = match case.no_sandbox {
        Some(reason) => {
            let without = Memory::default();
            without.fail(Some(reason));
            Arc::new(without)
        }
        None => backend,
    };
    let upstream = ScriptedTransport::new(case.script.clone());
    let (mut server, mut store) = Server::start(&case, data.path(), backend.clone(), &upstream).await;
    let mut recorder = Recorder::new(server.connector.clone());
    if case.has_keys {
        for name in ["key", "other key"] {
            recorder.names.fix(&store.create_key(name, None).await.unwrap().secret, name);
        }
        // The server looks at most once a second whether there are any, and it has not looked yet.
    }
    for step in &case.steps {
        match step {
            Step::Send(request) => {
                let answer = timeout(STEP, recorder.send(request)).await.expect("an answer in time");
                recorder.record(request, &answer);
            }
            Step::Begin(request) => {
                let answer = tokio::spawn(recorder.send(request));
                recorder.begun.push_back((request.clone(), answer));
            }
            Step::Join => {
                let (request, answer) = recorder.begun.pop_front().expect("a request that was begun");
                let answer = timeout(STEP, answer).await.expect("an answer in time").unwrap();
                recorder.record(&request, &answer);
            }
            Step::Until(path, pointer, value) => {
                timeout(STEP, recorder.until(path, pointer, value)).await.expect("it comes to that in time");
            }
            Step::UntilTold(path, words) => {
                timeout(STEP, recorder.until_told(path, words)).await.expect("it is told in time");
            }
            Step::SameStream(path) => {
                let answer = recorder.send(&Request::get(path)).await;
                let same = without_comments(&answer.text()) == without_comments(&recorder.last_stream);
                assert!(same, "GET {path} tells something else than the stream:\n{}", answer.text());
                writeln!(recorder.text, "> GET {path}\n< the same stream\n").unwrap();
            }
            Step::Restart => {
                server.stop().await;
                drop(store);
                (server, store) = Server::start(&case, data.path(), backend.clone(), &upstream).await;
                recorder.connector = server.connector.clone();
                recorder.text.push_str("The server ends and starts again.\n\n");
            }
        }
    }
    server.stop().await;
    drop(store);
    if case.shows_model {
        recorder.record_model(&upstream.requests());
    }
    recorder.text
}

/// Puts requests together; they go another way. One for all: it takes a moment to make.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    // A second installation fails, and the first one serves.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    Client::new()
});

/// Sends requests and writes down what comes of them.
struct Recorder {
    connector: Connector,
    names: Names,
    begun: VecDeque<(Request, JoinHandle<Answer>)>,
    last_stream: String,
    text: String,
}

/// A server's answer.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl Recorder {
    fn new(connector: Connector) -> Self {
        let mut names = Names::default();
        names.fix(HOST_NAME, "host");
        Self { connector, names, begun: VecDeque::new(), last_stream: String::new(), text: String::new() }
    }

    /// Sends a request and reads the answer.
    fn send(&self, request: &Request) -> impl Future<Output = Answer> + Send + 'static + use<> {
        let (request, connector) = (self.request(request), self.connector.clone());
        async move {
            let response = connector.send(request.build().unwrap()).await;
            let (status, headers) = (response.status(), response.headers().clone());
            Answer { status, headers, bytes: response.bytes().await.unwrap().to_vec() }
        }
    }

    fn request(&self, request: &Request) -> RequestBuilder {
        let url = self.names.reveal(&format!("http://<host>{}", request.path));
        let method = request.method.parse().unwrap();
        let mut sent = CLIENT.request(method, url);
        let reveal = |value: &str| self.names.reveal(value);
        let has_key = reveal("<key>") != "<key>" && !request.headers.iter().any(|(name, _)| *name == "authorization");
        if has_key {
            sent = sent.bearer_auth(reveal("<key>"));
        }
        for (name, value) in &request.headers {
            if !value.is_empty() {
                sent = sent.header(*name, reveal(value));
            }
        }
        match &request.body {
            Body::Empty => sent,
            Body::Json(value) => {
                sent.header("content-type", "application/json").body(self.names.reveal_value(value).to_string())
            }
            Body::Bytes(bytes) => sent.body(bytes.clone()),
            Body::Form(texts, file) => {
                let mut form = Form::new();
                for (name, text) in texts {
                    form = form.text(*name, reveal(text));
                }
                if let Some((part, name, bytes)) = file {
                    form = form.part(*part, Part::bytes(bytes.clone()).file_name(*name));
                }
                sent.multipart(form)
            }
        }
    }

    async fn until_told(&self, path: &str, words: &str) {
        let mut response = self.connector.send(self.request(&Request::get(path)).build().unwrap()).await;
        let mut received = String::new();
        while !received.contains(words) {
            let chunk = response.chunk().await.unwrap().expect("the stream goes on");
            received.push_str(&String::from_utf8_lossy(&chunk));
        }
    }

    async fn until(&self, path: &str, pointer: &str, value: &Value) {
        loop {
            let answer = self.send(&Request::get(path)).await;
            let object: Value = serde_json::from_slice(&answer.bytes).unwrap_or_default();
            if object.pointer(pointer) == Some(value) {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn record(&mut self, request: &Request, answer: &Answer) {
        write!(self.text, "> {} {}", request.method, request.path).unwrap();
        match &request.body {
            Body::Empty => {}
            Body::Json(value) => write!(self.text, " {}", shortened(&value.to_string())).unwrap(),
            Body::Bytes(bytes) => write!(self.text, " {}", shortened(&String::from_utf8_lossy(bytes))).unwrap(),
            Body::Form(texts, file) => {
                let texts = texts.iter().map(|(name, text)| format!(" {name}={}", shortened(text)));
                let file = file.iter().map(|(part, name, bytes)| format!(" {part}={name}, {} bytes", bytes.len()));
                texts.chain(file).for_each(|part| self.text.push_str(&part));
            }
        }
        self.text.push('\n');
        for (name, value) in &request.headers {
            writeln!(self.text, ">   {name}: {value}").unwrap();
        }
        writeln!(self.text, "< {}", answer.status.as_u16()).unwrap();
        let id = answer.headers.get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        assert!(id.starts_with("req_"), "{} {} is answered without an id", request.method, request.path);
        let mut headers: Vec<(&str, String)> = answer
            .headers
            .iter()
            .filter(|(name, _)| !UNSHOWN.contains(&name.as_str()))
            .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        headers.sort();
        for (name, value) in headers {
            let value = self.names.hide(&value);
            writeln!(self.text, "<   {name}: {value}").unwrap();
        }
        let body = answer.text();
        let is_stream =
            answer.headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let body = if request.shown == Shown::AsItIs {
            format!("{body:?}")
        } else if is_stream {
            self.last_stream.clone_from(&body);
            self.frames(&body, request.shown == Shown::ByChoice)
        } else {
            self.whole(&body)
        };
        writeln!(self.text, "{}\n", body.trim_end()).unwrap();
    }

    fn whole(&mut self, body: &str) -> String {
        match serde_json::from_str::<Value>(body) {
            Ok(value) => {
                let value = self.names.hide_value(&value);
                let line = value.to_string();
                if line.len() <= LINE { line } else { serde_json::to_string_pretty(&value).unwrap() }
            }
            Err(_) => self.names.hide(body),
        }
    }

    fn frames(&mut self, body: &str, by_choice: bool) -> String {
        let body = without_comments(body);
        let mut frames: Vec<&str> = body.split("\n\n").collect();
        if by_choice {
            frames.sort_by_key(|frame| {
                let chunk = frame.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
                // Chunks without a choice come last.
                chunk.and_then(|chunk| chunk.pointer("/choices/0/index")?.as_u64()).unwrap_or(u64::MAX)
            });
        }
        let mut shown = String::new();
        for line in frames.iter().flat_map(|frame| frame.lines()) {
            match line.strip_prefix("data: ").map(serde_json::from_str::<Value>) {
                Some(Ok(value)) => writeln!(shown, "data: {}", self.names.hide_value(&value)).unwrap(),
                _ => writeln!(shown, "{line}").unwrap(),
            }
        }
        shown
    }

    /// Writes down what the model was asked: everything but the descriptions of its tools, and messages that it had before.
    fn record_model(&mut self, requests: &[Value]) {
        let mut before: Vec<Value> = Vec::new();
        for request in requests {
            let mut request = request.clone();
            if let Some(messages) = request.get_mut("messages").and_then(Value::as_array_mut) {
                let all = messages.clone();
                if !before.is_empty() && messages.starts_with(&before) {
                    messages.splice(..before.len(), [format!("{} as before", before.len()).into()]);
                }
                before = all;
            }
            for tool in request.get_mut("tools").and_then(Value::as_array_mut).into_iter().flatten() {
                *tool = tool.pointer("/function/name").cloned().unwrap_or_default();
            }
            let request = self.names.hide_value(&request);
            writeln!(self.text, "The model is asked: {request}").unwrap();
        }
    }
}

/// A stream without what is sent when there is nothing else to send.
fn without_comments(stream: &str) -> String {
    stream
        .split("\n\n")
        .filter(|frame| !frame.starts_with(':') && !frame.starts_with("event: ping\n"))
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn shortened(text: &str) -> String {
    const SHOWN: usize = 300;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

/// Merges these fields into those that every request has.
pub(super) fn with(fields: &Value, common: Value) -> Value {
    let mut body = common;
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    json!(body)
}
