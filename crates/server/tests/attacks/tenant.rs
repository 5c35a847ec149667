//! The server that all attacks share, and tenants of it with a sandbox.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use aludel_engine::Engine;
use aludel_engine::execution::Limits;
use aludel_store::{KeyId, Store};
use hyper::http::request::Builder;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::common::{KEYS_FRESH, client, serve_on, settings};

/// Requests that the server answers at once: few, so that whoever holds them is felt.
pub(crate) const REQUESTS: usize = 12;

/// Servers for programs to be, in the interpreter of a sandbox.
const PRELUDE: &str = r"
import base64, os, socket, struct, subprocess, sys, threading, time
broken = []
threading.stack_size(256 << 10)
def head_of(peer):
    head = b''
    while b'\r\n\r\n' not in head:
        piece = peer.recv(65536)
        if not piece: break
        head += piece
    return head
def serve(port, talk):
    door = socket.create_server(('127.0.0.1', port), backlog=100)
    def one(peer):
        try: talk(peer, head_of(peer))
        except OSError as error: broken.append(type(error).__name__)
        peer.close()
    def all():
        while True: threading.Thread(target=one, args=(door.accept()[0],), daemon=True).start()
    threading.Thread(target=all, daemon=True).start()
def flood(peer, first, piece):
    peer.sendall(first)
    while True: peer.sendall(piece)
OK = b'HTTP/1.1 200 OK\r\n'
serve(8000, lambda peer, head: peer.sendall(OK + b'content-length: 4\r\n\r\nwell'))
";

/// The server.
pub(crate) struct Attacked {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Arc<Engine>,
    store: Store,
}

/// The server, started by whoever asks first. It lives in a runtime of its own, which outlives those of the tests.
async fn attacked() -> &'static Attacked {
    static ATTACKED: OnceLock<Attacked> = OnceLock::new();
    let start = || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime: &'static Runtime = Box::leak(Box::new(runtime.unwrap()));
        runtime.block_on(async {
            let data = aludel_testkit::data().join("attacks");
            // The state of the last run; what its sandboxes left is the backend's to find.
            let _first = std::fs::remove_dir_all(data.join("state"));
            std::fs::create_dir_all(&data).unwrap();
            let limits = Limits { memory: 300 << 20, processes: 256, disk: 64 << 20, ..Limits::default() };
            let backend = aludel_testkit::local(&data, limits.clone()).await;
            let settings = settings().server(|server| server.requests = REQUESTS).engine(|engine| {
                (engine.max_memory, engine.limits) = (limits.memory, limits);
            });
            let (address, store, engine) = serve_on(&data, settings, backend).await;
            // With one key, nothing is answered to whoever has none.
            store.create_key("operator", None).await.unwrap();
            Attacked { address, engine, store }
        })
    };
    tokio::task::spawn_blocking(move || ATTACKED.get_or_init(start)).await.unwrap()
}

/// A tenant with a key and a sandbox, which ends with it.
pub(crate) struct Tenant {
    pub(crate) server: &'static Attacked,
    pub(crate) client: Client,
    pub(crate) key: String,
    number: KeyId,
    /// The id of its sandbox.
    pub(crate) id: String,
    /// The token of its sandbox.
    pub(crate) token: String,
    /// The token of the sandbox's programs, if they are private.
    pub(crate) traffic: Option<String>,
}

impl Tenant {
    /// One whose sandbox's ports are open to everybody.
    pub(crate) async fn new(name: &str) -> Self {
        Self::with(name, json!({})).await
    }

    /// One whose sandbox's ports ask for a token.
    pub(crate) async fn private(name: &str) -> Self {
        Self::with(name, json!({ "network": { "allowPublicTraffic": false } })).await
    }

    /// One whose sandbox is asked for with these fields, too.
    pub(crate) async fn with(name: &str, more: Value) -> Self {
        let tenant = Self::made_with(name, more).await;
        tenant.run(PRELUDE).await;
        tenant
    }

    /// One in whose sandbox no program has run.
    pub(crate) async fn without_kernel(name: &str) -> Self {
        Self::made_with(name, json!({})).await
    }

    async fn made_with(name: &str, more: Value) -> Self {
        let server = attacked().await;
        let key = server.store.create_key(name, None).await.unwrap();
        tokio::time::sleep(KEYS_FRESH).await;
        let client = client();
        let mut body = json!({ "templateID": "base", "timeout": 600 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = client.post(format!("http://{}/v2/sandboxes", server.address)).bearer_auth(&key.secret).json(&body);
        let made = made.send().await.unwrap();
        assert_eq!(made.status(), StatusCode::CREATED);
        let made: Value = made.json().await.unwrap();
        let text = |name: &str| made[name].as_str().map(str::to_owned);
        let (id, token, traffic) =
            (text("sandboxID").unwrap(), text("envdAccessToken").unwrap(), text("trafficAccessToken"));
        Self { server, client, key: key.secret, number: key.id, id, token, traffic }
    }

    /// A request to the server with the tenant's key.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.server.address)).bearer_auth(&self.key)
    }

    /// A request to a port of the sandbox.
    pub(crate) fn at(&self, method: Method, port: u16, path: &str) -> RequestBuilder {
        let request = self.client.request(method, format!("http://{}{path}", self.server.address));
        let request = request.header("E2b-Sandbox-Id", &self.id).header("E2b-Sandbox-Port", port);
        let request = request.header("X-Access-Token", &self.token);
        self.traffic.iter().fold(request, |request, token| request.header("E2B-Traffic-Access-Token", token))
    }

    /// The same for a connection that is kept.
    pub(crate) fn on(&self, method: &str, port: u16) -> Builder {
        let request = hyper::Request::builder().method(method).uri("/").header("host", self.server.address.to_string());
        request.header("e2b-sandbox-id", &self.id).header("e2b-sandbox-port", port)
    }

    /// Runs Python in the sandbox's interpreter and returns its output.
    pub(crate) async fn run(&self, code: &str) -> String {
        let answer = self.at(Method::POST, 49999, "/execute").json(&json!({ "code": code })).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let mut output = String::new();
        for line in answer.text().await.unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            match line["type"].as_str() {
                Some("stdout" | "stderr") => output.push_str(line["text"].as_str().unwrap()),
                Some("error") => panic!("{code}: {line}"),
                _ => {}
            }
        }
        output
    }

    /// A call of a service of the sandbox.
    pub(crate) async fn call(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let answer = self.at(Method::POST, 49983, path).json(&body).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    /// A stream of a service of the sandbox, of which nothing was read yet.
    pub(crate) async fn stream(&self, path: &str, body: Value) -> reqwest::Response {
        let body = body.to_string();
        let frame = [&[0][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), body.as_bytes()].concat();
        let request = self.at(Method::POST, 49983, path).header("content-type", "application/connect+json");
        request.body(frame).send().await.unwrap()
    }

    /// The control of each attack: its sandbox answers, and so do those of others.
    pub(crate) async fn is_well(&self) {
        assert_eq!(self.run("print(6 * 7)").await, "42\n");
        let answer = self.at(Method::GET, 8000, "/").send().await.unwrap();
        assert_eq!((answer.status(), &*answer.bytes().await.unwrap()), (StatusCode::OK, &b"well"[..]));
        let other = self.request(Method::GET, "/sandboxes").send().await.unwrap();
        assert_eq!(other.json::<Value>().await.unwrap().as_array().unwrap().len(), 1);
    }

    /// Ends the sandbox and the key.
    pub(crate) async fn leave(self) {
        let path = format!("/sandboxes/{}", self.id);
        assert_eq!(self.request(Method::DELETE, &path).send().await.unwrap().status(), StatusCode::NO_CONTENT);
        self.server.store.revoke_key(self.number).await.unwrap();
    }
}

/// Bytes of memory that this process, and so the server, has now.
pub(crate) fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}
