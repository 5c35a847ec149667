//! Answers of a server whose sandboxes do not start yet.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::RETRY_AFTER;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::dialects;
use crate::error::ApiError;
use crate::paths::{HEALTH, HEALTH_OF_SANDBOXES};
use crate::serve::{FIRST_HEAD_TIMEOUT, MAX_HEAD, NO_DESCRIPTORS_PAUSE};

/// Concurrent connections.
const MAX_EARLY_CONNECTIONS: usize = 64;
/// Seconds after which clients may retry.
const LATER: HeaderValue = HeaderValue::from_static("10");
/// The reason for which the server is not ready.
const STARTING: &str = "The server is starting: its template is being built or its first sandboxes are made.";

/// Answers requests until it is dropped: `/healthz` as always, and all others with 503. Each connection serves one request.
pub async fn answer_early(listener: &TcpListener) -> Infallible {
    let mut open = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(NO_DESCRIPTORS_PAUSE).await;
            continue;
        };
        while open.try_join_next().is_some() {}
        if open.len() == MAX_EARLY_CONNECTIONS {
            continue;
        }
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).max_buf_size(MAX_HEAD).keep_alive(false);
        let answer = service_fn(async |request: Request<Incoming>| Ok::<_, Infallible>(answer(request.uri().path())));
        let served = http.serve_connection(TokioIo::new(stream), answer);
        // A client that breaks the protocol, disconnects or is slow harms only itself.
        open.spawn(async { drop(timeout(FIRST_HEAD_TIMEOUT, served).await) });
    }
}

fn answer(path: &str) -> Response {
    if matches!(path, HEALTH | HEALTH_OF_SANDBOXES) {
        return Response::new(Body::from("ok\n"));
    }
    let mut response = (dialects::ALL[0].refuse)(&ApiError::unavailable(STARTING), "");
    response.headers_mut().insert(RETRY_AFTER, LATER);
    response
}
