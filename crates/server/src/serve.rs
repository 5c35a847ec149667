//! Listening, and ending well.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::turns;
use aludel_ignore::Ignore;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Receiver;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, error, warn};

use crate::app::App;
use crate::connections::Connections;
use crate::http::GuardedBody;
use crate::middleware::StrangerMark;
use crate::timed_connection::TimedConnection;
use crate::{dialects, router};

/// Concurrent connections. For one more, an idle one is closed.
const MAX_CONNECTIONS: usize = 2048;
/// Bytes of a request's head, and of a body that are read ahead.
pub(crate) const MAX_HEAD: usize = 64 << 10;
/// The longest that a connection may take to send the head of a request, or be idle between two.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// The longest that a new connection may take to send the head of its first request.
pub(crate) const FIRST_HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which requests may continue during shutdown. With what follows, less than the minute that our packages give a server.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that cancelled requests have for their ends.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that tasks have after them.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause of a listener when the system is out of descriptors.
pub const NO_DESCRIPTORS_PAUSE: Duration = Duration::from_millis(200);

/// A source of connections.
pub trait Listener: Send {
    /// A connection.
    type Connection: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Returns the address at which other machines can reach it; `None` if only this machine can.
    fn public_address(&self) -> io::Result<Option<SocketAddr>>;

    /// Returns the address of a connection's other end, if it has one.
    fn peer(_connection: &Self::Connection) -> Option<IpAddr> {
        None
    }

    /// Waits for the next connection. Cancel-safe.
    fn accept(&mut self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl Listener for TcpListener {
    type Connection = TcpStream;

    fn public_address(&self) -> io::Result<Option<SocketAddr>> {
        let address = self.local_addr()?;
        Ok((!address.ip().is_loopback()).then_some(address))
    }

    fn peer(connection: &TcpStream) -> Option<IpAddr> {
        connection.peer_addr().ok().map(|address| address.ip())
    }

    async fn accept(&mut self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        stream.set_nodelay(true).ignore("it works with a delay, too");
        Ok(stream)
    }
}

/// Connections from within this process.
impl Listener for Receiver<DuplexStream> {
    type Connection = DuplexStream;

    fn public_address(&self) -> io::Result<Option<SocketAddr>> {
        Ok(None)
    }

    async fn accept(&mut self) -> io::Result<DuplexStream> {
        self.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// A reason for which the server cannot serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Everybody could reach the server.
    #[error(
        "{0} can be reached from other machines, and there are no API keys; make one with `aludel keys create`, or \
         listen on 127.0.0.1"
    )]
    NoKeys(SocketAddr),
    /// The listener's address is not known.
    #[error("the listener has no address: {0}")]
    Listener(#[source] io::Error),
    /// The state could not be read.
    #[error(transparent)]
    Store(#[from] aludel_store::Error),
}

/// Serves until `shutdown` completes, then lets requests finish and ends everything that runs.
pub async fn serve(
    app: impl Into<Arc<App>>,
    listener: impl Listener,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let app = app.into();
    if let Some(address) = listener.public_address().map_err(ServeError::Listener)?
        && !app.store.has_keys().await?
    {
        return Err(ServeError::NoKeys(address));
    }
    let cut_off = "The server ended while it ran; its outcome is not known.";
    if let Err(error) = app.store.end_what_was_cut_off(cut_off).await {
        error!("cannot complete the audit log: {error}");
    }
    recover(&app).instrument(app.telemetry.span()).await;
    app.tasks.spawn(turns::renew(Arc::clone(&app.engine)));
    app.tasks.spawn(aludel_engine::end_revoked(Arc::clone(&app.engine)));
    app.tasks.spawn(aludel_engine::sessions::reap(Arc::clone(&app.engine)));
    accept(&app, listener, shutdown).await;
    app.shutdown.cancel();
    app.tasks.close();
    timeout(END_TIMEOUT, app.tasks.wait()).await.ignore("tasks that have not ended end with the process");
    app.engine.sessions.close_all().await;
    app.engine.meter.flush().await;
    app.telemetry.finish().await;
    Ok(())
}

/// Takes over the requests of an earlier process, and logs the result. Until then the server is not ready.
async fn recover(app: &Arc<App>) {
    let dropped = app.store.dropped_by_upgrade();
    if dropped.streams > 0 || dropped.approvals > 0 {
        warn!(
            "the state is of an earlier version: {} stored streams were dropped and {} requests for approval expired",
            dropped.streams, dropped.approvals
        );
    }
    let stored: Vec<_> = dialects::ALL.iter().flat_map(|dialect| (dialect.stored)(&app.store)).collect();
    if let Err(error) = turns::recover(&app.engine, &stored).await {
        let cause = error.to_string();
        error!("cannot take up unfinished turns, so the server is not ready: {cause}");
        app.unrecovered.set(cause).ignore("set once, here");
    }
}

/// Accepts connections until `shutdown` completes, and waits for them.
async fn accept<L: Listener>(app: &Arc<App>, mut listener: L, shutdown: impl Future<Output = ()> + Send) {
    let service = TowerToHyperService::new(router::routes(app));
    let connections = Connections::new(MAX_CONNECTIONS);
    let open = TaskTracker::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD);
    let mut shutdown = pin!(shutdown);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => stream,
                // The client disconnected.
                Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => continue,
                // No descriptors are left, which is no reason to stop listening.
                Err(_) => {
                    sleep(NO_DESCRIPTORS_PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        // If all connections are busy, a further one is closed at once.
        let Some(connection) = connections.enter(L::peer(&stream)) else { continue };
        let (asked, service) = (Arc::clone(&connection), service.clone());
        let processor_time = app.engine.processor_time.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let (mut asking, answer) = (Some(asked.ask()), service.call(request.map(Body::new)));
            let processor_time = processor_time.clone();
            async move {
                let answer = answer.await?;
                if let Some(StrangerMark(kind)) = answer.extensions().get() {
                    // A connection that waits here makes room for others.
                    asking = None;
                    processor_time.pace_stranger(*kind).await;
                }
                Ok::<_, Infallible>(answer.map(|body| GuardedBody::new(body, asking)))
            }
        });
        let served = http.serve_connection(TokioIo::new(TimedConnection::new(stream)), answer).with_upgrades();
        let draining = app.draining.clone();
        open.spawn(async move {
            let mut served = pin!(served);
            let silent = async {
                sleep(FIRST_HEAD_TIMEOUT).await;
                if connection.has_asked() {
                    pending().await
                }
            };
            tokio::select! {
                // A client that breaks the protocol or disconnects harms only itself.
                _broken = &mut served => {}
                () = connection.closed() => {}
                () = silent => {}
                () = draining.cancelled() => {
                    served.as_mut().graceful_shutdown();
                    served.await.ignore("a broken connection is its client's matter");
                }
            }
        });
    }
    // Nobody connects to a server that no longer answers.
    drop(listener);
    app.draining.cancel();
    open.close();
    app.engine.socket_connections.close();
    let mut drained = pin!(async {
        tokio::join!(open.wait(), app.engine.socket_connections.wait());
    });
    if timeout(DRAIN_TIMEOUT, &mut drained).await.is_err() {
        // Cancels the turns that still run; their clients get the end.
        app.shutdown.cancel();
        timeout(CANCEL_TIMEOUT, drained).await.ignore("connections that have not ended are cut off");
    }
}
