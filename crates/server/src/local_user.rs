//! Requests of the server's own user, who owns its data directory and needs no key.

use std::pin::pin;
use std::sync::Arc;

use aludel_ignore::Ignore;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::Instrument as _;

use crate::app::App;
use crate::http::LocalUserMark;
use crate::router::{self, AllRoutes};
use crate::serve::HEAD_TIMEOUT;
use crate::telemetry::Telemetry;

/// Answers over connections that only the server's own user can make. Requests without a key belong to the tenant of a server without keys.
#[derive(Debug)]
pub struct LocalUserService {
    routes: AllRoutes,
    draining: CancellationToken,
    telemetry: Arc<Telemetry>,
}

impl LocalUserService {
    /// The service of this server.
    pub fn new(app: &Arc<App>) -> Self {
        Self { routes: router::routes(app), draining: app.draining.clone(), telemetry: Arc::clone(&app.telemetry) }
    }

    /// Awaits a program that came over such a connection without HTTP, and counts it in the metrics and traces like those of requests.
    pub async fn counted<T>(&self, program: impl Future<Output = T>) -> T {
        program.instrument(self.telemetry.local_program()).await
    }

    /// Answers over one connection until it ends.
    pub async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let answer = service_fn(|request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(LocalUserMark);
            self.routes.clone().oneshot(request)
        });
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        let mut served = pin!(http.serve_connection(TokioIo::new(stream), answer).with_upgrades());
        tokio::select! {
            // A client that breaks the protocol or disconnects harms only itself.
            _broken = &mut served => {}
            () = self.draining.cancelled() => {
                served.as_mut().graceful_shutdown();
                served.await.ignore("a broken connection is its client's matter");
            }
        }
    }
}
