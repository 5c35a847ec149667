//! The server with scripted programs, and ways to talk to it.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub, reason = "a test may panic, and each uses a part of this")]

pub mod connector;

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::upstream::ModelCapabilities;
use aludel_agent::upstream::http::{HttpOptions, HttpUpstream};
use aludel_engine::execution::Limits;
use aludel_engine::{ApprovalPolicy, Engine, Model};
use aludel_sandbox::memory::{Memory, ScriptedCell};
use aludel_sandbox::{Backend, MimeBundle, MimeData};
use aludel_server::{App, Listener, serve};
use aludel_store::Store;
use aludel_testkit::chat_options;
use connector::{Connector, HOST_NAME};
use reqwest::multipart::{Form, Part};
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Time for which a server takes a key's word from before.
pub const KEYS_FRESH: Duration = Duration::from_millis(20);

/// A running server.
pub struct Server {
    way: Way,
    data: PathBuf,
    pub store: Store,
    client: Client,
    key: Option<String>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

/// The way to a server.
enum Way {
    Memory(Connector),
    Port(SocketAddr),
}

/// Small enough that every limit is hit in a moment.
pub fn settings() -> Settings {
    let limits = Limits { memory: 512 << 20, disk: 64 << 20, file_size: 64 << 20, ..Limits::default() };
    let engine = aludel_engine::SessionSettings { max_memory: limits.memory, limits, ..Default::default() };
    let server = aludel_server::ServerSettings { keys_fresh: KEYS_FRESH, ..Default::default() };
    Settings { engine, server }
}

/// Settings of a server and of the engine below.
#[derive(Debug, Clone)]
pub struct Settings {
    pub engine: aludel_engine::SessionSettings,
    pub server: aludel_server::ServerSettings,
}

impl Settings {
    /// The same with another engine's settings.
    pub fn engine(mut self, change: impl FnOnce(&mut aludel_engine::SessionSettings)) -> Self {
        change(&mut self.engine);
        self
    }

    /// The same with another server's settings.
    pub fn server(mut self, change: impl FnOnce(&mut aludel_server::ServerSettings)) -> Self {
        change(&mut self.server);
        self
    }
}

/// A server on this directory, without keys, in this process.
pub async fn start(data: &Path) -> Server {
    start_with(data, settings()).await
}

pub async fn start_with(data: &Path, settings: Settings) -> Server {
    let (connector, listener) = Connector::new();
    run(data, settings, Vec::new(), ApprovalPolicy::default(), Way::Memory(connector), listener).await
}

/// The same on a port of its own.
pub async fn listen(data: &Path, settings: Settings, models: Vec<Model>) -> Server {
    listen_with(data, settings, models, ApprovalPolicy::default()).await
}

pub async fn listen_with(data: &Path, settings: Settings, models: Vec<Model>, approvals: ApprovalPolicy) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = Way::Port(listener.local_addr().unwrap());
    run(data, settings, models, approvals, way, listener).await
}

async fn run(
    data: &Path,
    settings: Settings,
    models: Vec<Model>,
    approvals: ApprovalPolicy,
    way: Way,
    listener: impl Listener + 'static,
) -> Server {
    let store = Store::open(data).await.unwrap();
    let Settings { engine, server } = settings;
    let backend = Arc::new(Memory::new(script));
    let engine = Engine::new(store.clone(), backend, models, approvals, Vec::new(), engine);
    let app = App::new(Arc::new(engine), server);
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(async move {
        let stopped = async {
            let _dropped = stopped.await;
        };
        serve(app, listener, stopped).await.unwrap();
    });
    Server { way, data: data.to_path_buf(), store, client: client(), key: None, stop, running }
}

/// A server with keys on a port of its own and on a backend, as long as the runtime lives.
pub async fn serve_on(data: &Path, settings: Settings, backend: Arc<dyn Backend>) -> (SocketAddr, Store, Arc<Engine>) {
    let (store, Settings { engine, server }) = (Store::open(data).await.unwrap(), settings);
    let engine = Engine::new(store.clone(), backend, Vec::new(), ApprovalPolicy::default(), Vec::new(), engine);
    let engine = Arc::new(engine);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = App::new(Arc::clone(&engine), server);
    tokio::spawn(async move { serve(app, listener, std::future::pending()).await.unwrap() });
    (address, store, engine)
}

/// The behaviour of programs.
fn script(code: &str, cell: &mut ScriptedCell) {
    match code {
        "print('marker-7f3a', 6 * 7)" => cell.print("marker-7f3a 42\n"),
        "print('marker-7f3a')\n1 / 0" => cell.print("marker-7f3a\n").fail("ZeroDivisionError", "division by zero"),
        "show()" => {
            let image = MimeData::Binary(b"\x89PNG\r\n\x1a\n".to_vec());
            let document = MimeData::Binary(b"%PDF".to_vec());
            cell.display(MimeBundle(vec![("image/png".into(), image), ("application/pdf".into(), document)]))
        }
        "show(100_000)" => {
            let image = MimeData::Binary(vec![0x89; 100_000]);
            cell.display(MimeBundle(vec![("image/png".into(), image)]))
        }
        "print('begun', end=''); os._exit(3)" => cell.print("begun").exit(3),
        "wait()" => cell.print("begun\n").never_end(),
        "x = 1" => {
            cell.variables.insert("x".to_owned(), "1".to_owned());
            cell.write("made.txt", "made")
        }
        "x" => match cell.variables.get("x").cloned() {
            Some(x) => cell.result(x),
            None => cell.fail("NameError", "name 'x' is not defined"),
        },
        _ => match code.strip_prefix("print(os.environ['").and_then(|rest| rest.strip_suffix("'])")) {
            Some(name) => {
                let value = cell.environment.get(name).cloned().unwrap_or_default();
                cell.print(format!("{value}\n"))
            }
            None => cell.fail("NotImplementedError", code),
        },
    };
}

/// A model of this name at this address.
pub fn model(name: &str, url: String) -> Model {
    let capabilities = ModelCapabilities { function_calling: true, vision: false };
    let chat = HttpUpstream::new(HttpOptions { capabilities, ..chat_options(url, format!("{name}-upstream")) });
    let chat = Arc::new(chat.unwrap());
    Model { endpoint: Some(Arc::clone(&chat)), ..Model::new(name, "a test", chat) }
}

pub fn client() -> Client {
    // A second installation fails, and the first one serves.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    Client::builder().no_proxy().timeout(Duration::from_secs(300)).build().unwrap()
}

impl Server {
    /// Ends it well and waits until another can serve the same data: work on the disk is finished although its caller gave up.
    pub async fn stop(self) {
        let Self { data, store, stop, running, .. } = self;
        drop(stop);
        tokio::time::timeout(Duration::from_secs(60), running).await.expect("the server ends in time").unwrap();
        drop(store);
        let lock = File::open(data.join("server.lock")).unwrap();
        let free = async {
            while lock.try_lock().is_err() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), free).await.expect("the server's work on its data ends");
    }

    /// Asks with this key from now on.
    pub fn with_key(mut self, key: &str) -> Self {
        self.key = Some(key.to_owned());
        self
    }

    pub fn use_key(&mut self, key: &str) {
        self.key = Some(key.to_owned());
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let host = match &self.way {
            Way::Memory(_) => HOST_NAME.to_owned(),
            Way::Port(address) => address.to_string(),
        };
        let request = self.client.request(method, format!("http://{host}{path}"));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// The address of a server that listens on a port.
    pub fn address(&self) -> SocketAddr {
        match &self.way {
            Way::Memory(_) => panic!("it has no port"),
            Way::Port(address) => *address,
        }
    }

    pub async fn ask(&self, request: reqwest::RequestBuilder) -> Answer {
        Answer::of(match &self.way {
            Way::Memory(connector) => connector.send(request.build().unwrap()).await,
            Way::Port(_) => request.send().await.unwrap(),
        })
        .await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(self.request(Method::GET, path)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.ask(self.request(Method::DELETE, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask(self.request(Method::POST, path).json(&body)).await
    }

    /// Sends a file in a form, with other parts before it.
    pub async fn send(&self, path: &str, texts: &[(&str, &str)], name: &str, content: &[u8]) -> Answer {
        let part = Part::bytes(content.to_vec()).file_name(name.to_owned());
        let form = Form::new().part("file", part);
        let form = texts.iter().fold(form, |form, (key, value)| form.text((*key).to_owned(), (*value).to_owned()));
        self.ask(self.request(Method::POST, path).multipart(form)).await
    }

    /// Uploads a file and returns its id.
    pub async fn upload(&self, name: &str, content: &[u8]) -> String {
        self.send("/v1/files", &[("purpose", "user_data")], name, content).await.ok()["id"].as_str().unwrap().to_owned()
    }
}

/// A server's answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub async fn of(response: Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        Self { status, headers, bytes: response.bytes().await.unwrap().to_vec() }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|_| panic!("{}: {}", self.status, String::from_utf8_lossy(&self.bytes)))
    }

    /// The body of an answer that must be good.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", String::from_utf8_lossy(&self.bytes));
        self.json()
    }

    /// The error of an answer that must be one: the envelope is checked, the message must hold `words`.
    #[track_caller]
    pub fn refused(&self, status: u16, words: &str) -> Value {
        let said = String::from_utf8_lossy(&self.bytes).into_owned();
        assert_eq!(self.status.as_u16(), status, "{said}");
        assert!(self.headers["x-request-id"].to_str().unwrap().starts_with("req_"));
        let error = self.json()["error"].clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "no {key} in {said}");
        }
        assert!(error["message"].as_str().unwrap().contains(words), "{said}");
        error
    }
}

/// Counts the files below a directory.
pub fn files_in(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files_in(&path) } else { 1 }).sum()
}
