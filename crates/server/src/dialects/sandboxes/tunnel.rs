//! Connections to programs of a sandbox that stop speaking HTTP, as WebSockets do.

use std::sync::Arc;

use aludel_engine::sandboxes::LiveSandbox;
use axum::extract::Request;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::AbortOnDropHandle;

/// A tunnel that a client asked for. There are so many for each sandbox, and none beyond them: the program then sees a request like others.
pub(super) struct Tunnel {
    live: Arc<LiveSandbox>,
    protocol: HeaderValue,
    client: OnUpgrade,
    permit: OwnedSemaphorePermit,
}

impl Tunnel {
    /// The tunnel that a request asks for.
    pub(super) fn asked_for(live: &Arc<LiveSandbox>, request: &mut Request) -> Option<Self> {
        let names_it =
            |value: &HeaderValue| value.to_str().is_ok_and(|text| text.to_ascii_lowercase().contains("upgrade"));
        if !request.headers().get_all(CONNECTION).iter().any(names_it) {
            return None;
        }
        let protocol = request.headers().get(UPGRADE)?.clone();
        let permit = live.tunnel()?;
        Some(Self { live: Arc::clone(live), protocol, client: hyper::upgrade::on(request), permit })
    }

    /// Names it in the head of a request or an answer.
    pub(super) fn name(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }

    /// Carries bytes in both directions until one end is gone or the sandbox ends.
    pub(super) async fn carry<T>(self, program: OnUpgrade, _driver: AbortOnDropHandle<T>) {
        let Self { live, client, permit, .. } = self;
        let carried = async {
            let (Ok(client), Ok(program)) = tokio::join!(client, program) else { return };
            // An end that breaks off is an end.
            let _ended = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(program)).await;
        };
        tokio::select! {
            () = carried => {}
            () = live.ended() => {}
        }
        drop(permit);
    }
}
