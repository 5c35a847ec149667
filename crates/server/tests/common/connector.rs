//! Requests to a server in the same process, over connections that are pipes in memory.

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use reqwest::header::{HOST, HeaderValue};
use tokio::io::DuplexStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The host that servers in this process are asked for.
pub(crate) const HOST_NAME: &str = "127.0.0.1:8080";
/// Bytes that one side can send before the other has read them.
const PIPE: usize = 64 << 10;

/// The way to one server.
#[derive(Debug, Clone)]
pub(crate) struct Connector(Sender<DuplexStream>);

impl Connector {
    /// A way, and the listener at its end.
    pub(crate) fn new() -> (Self, Receiver<DuplexStream>) {
        let (connections, listener) = channel(64);
        (Self(connections), listener)
    }

    /// Sends a request over a connection of its own. Panics when there is no answer.
    pub(crate) async fn send(&self, request: reqwest::Request) -> reqwest::Response {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        self.0.send(theirs).await.expect("the server listens");
        let (mut sender, connection) = http1::handshake(TokioIo::new(ours)).await.expect("a connection");
        tokio::spawn(connection);
        let mut request = hyper::Request::<reqwest::Body>::try_from(request).expect("a request");
        request.headers_mut().entry(HOST).or_insert(HeaderValue::from_static(HOST_NAME));
        let target = request.uri().path_and_query().expect("a path").as_str().parse().expect("a path is a target");
        *request.uri_mut() = target;
        sender.send_request(request).await.expect("an answer").map(reqwest::Body::wrap).into()
    }
}
