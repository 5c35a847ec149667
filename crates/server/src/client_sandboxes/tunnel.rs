//! Connections to programs of a sandbox that switch from HTTP to another protocol, such as WebSocket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::sandboxes::ClientSandbox;
use aludel_ignore::Ignore;
use axum::extract::Request;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// Time for which one end may stay open after the other has closed, so that a program that ignores its client's end does not keep the
/// tunnel.
const LINGER: Duration = Duration::from_secs(10);

/// A tunnel that a client asked for. Their number is limited for each sandbox; beyond it the program sees an ordinary request.
pub(super) struct Tunnel {
    sandbox: Arc<ClientSandbox>,
    protocol: HeaderValue,
    client: OnUpgrade,
    permit: OwnedSemaphorePermit,
}

impl Tunnel {
    /// The tunnel that a request asks for.
    pub(super) fn asked_for(sandbox: &Arc<ClientSandbox>, request: &mut Request) -> Option<Self> {
        let names_it =
            |value: &HeaderValue| value.to_str().is_ok_and(|text| text.to_ascii_lowercase().contains("upgrade"));
        if !request.headers().get_all(CONNECTION).iter().any(names_it) {
            return None;
        }
        let protocol = request.headers().get(UPGRADE)?.clone();
        let permit = sandbox.tunnel()?;
        Some(Self { sandbox: Arc::clone(sandbox), protocol, client: hyper::upgrade::on(request), permit })
    }

    /// Adds its headers to a request or an answer.
    pub(super) fn name(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }

    /// Carries bytes in both directions until one end closes, and the other for [`LINGER`] more, or the sandbox is paused or
    /// ends.
    pub(super) async fn carry<T>(self, program: OnUpgrade, _driver: AbortOnDropHandle<T>) {
        let Self { sandbox, client, permit, .. } = self;
        let carried = async {
            let (Ok(client), Ok(program)) = tokio::join!(client, program) else { return };
            let (client, program) = (split(TokioIo::new(client)), split(TokioIo::new(program)));
            let (up, down) = (pass(client.0, program.1), pass(program.0, client.1));
            tokio::pin!(up, down);
            let (first, other) = tokio::select! {
                ended = &mut up => (ended, down),
                ended = &mut down => (ended, up),
            };
            if first.is_ok() {
                timeout(LINGER, other).await.ignore("the tunnel closes in any case");
            }
        };
        tokio::select! {
            () = carried => {}
            () = sandbox.suspended_or_ended() => {}
        }
        drop(permit);
    }
}

/// Copies bytes until their end, and then closes the other side. An error ends both directions.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    copy(&mut from, &mut to).await?;
    to.shutdown().await
}
