//! Requests as bytes: what a careful client would not send, and answers as they came.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use futures_util::StreamExt;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything takes that works.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Sends bytes over a connection of their own and reads until its end, at most `most`.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8], most: usize) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Whoever refuses may stop reading.
    let _refused = stream.write_all(request).await;
    let (mut answer, mut bytes) = (Vec::new(), vec![0; 64 << 10]);
    while answer.len() < most {
        match timeout(LONG, stream.read(&mut bytes)).await.expect("the connection ends in time") {
            Ok(0) | Err(_) => break,
            Ok(count) => answer.extend_from_slice(&bytes[..count]),
        }
    }
    answer
}

/// The status of an answer; 0 for none.
pub(crate) fn status(answer: &[u8]) -> u16 {
    let text = String::from_utf8_lossy(&answer[..answer.len().min(20)]).into_owned();
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// A client that keeps its connection, as browsers and proxies do, and reads strictly.
pub(crate) struct KeepAlive(SendRequest<Body>);

/// An answer that such a client read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) status: u16,
    pub(crate) headers: hyper::HeaderMap,
    /// The body up to a megabyte, and false if it broke off.
    pub(crate) body: (Vec<u8>, bool),
}

impl KeepAlive {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    /// Asks; `None` when the connection is over.
    pub(crate) async fn ask(&mut self, request: hyper::http::request::Builder) -> Option<Read> {
        self.0.ready().await.ok()?;
        let asked = self.0.send_request(request.body(Body::empty()).unwrap());
        let answer = timeout(LONG, asked).await.expect("an answer").ok()?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let (mut chunks, mut body) = (Body::new(answer.into_body()).into_data_stream(), Vec::new());
        let is_whole = loop {
            match timeout(LONG, chunks.next()).await.expect("an end") {
                Some(Ok(bytes)) => body.extend_from_slice(&bytes),
                Some(Err(_)) => break false,
                None => break true,
            }
            if body.len() > 1 << 20 {
                break false;
            }
        };
        Some(Read { status, headers, body: (body, is_whole) })
    }
}
