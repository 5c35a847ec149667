//! Handing a request on as it is, and the answer back.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, try_unfold};
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode, Url};

use super::{HttpUpstream, Protocol, UpstreamError, chain};

/// Pause before a request that reached no server is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A method of an endpoint to which requests are handed on.
#[derive(Debug, Clone, Copy)]
pub enum ForwardTarget {
    /// The method with which a model answers in this protocol.
    Answers(Protocol),
    /// Another method of OpenAI's API, by its path below the base, such as `embeddings`.
    Beside(&'static str),
}

/// An answer as the endpoint gives it.
pub struct ForwardedResponse {
    /// Its status.
    pub status: StatusCode,
    /// All of its headers.
    pub headers: HeaderMap,
    /// Its body as it comes. The stream ends after an error: a silence longer than the limit, or a broken connection.
    pub body: BoxStream<'static, Result<Bytes, UpstreamError>>,
}

impl HttpUpstream {
    /// Returns true if requests to this method can be handed on.
    pub fn forwards(&self, target: ForwardTarget) -> bool {
        match target {
            ForwardTarget::Answers(protocol) => self.options.protocol == protocol,
            ForwardTarget::Beside(_) => self.adapter.api().has_openai_methods,
        }
    }

    /// Forwards a request: with these headers and this body, and our own key. Any status is an answer; an error means that there is none.
    /// Redirects are not followed. A request that reached no server is sent once more.
    pub async fn forward(
        &self,
        target: ForwardTarget,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<ForwardedResponse, UpstreamError> {
        let permit = self.permit()?;
        let url = match target {
            ForwardTarget::Answers(_) => self.endpoint.url(),
            ForwardTarget::Beside(method) => self.endpoint.beside(method),
        };
        let response = match self.send(url.clone(), headers.clone(), body.clone()).await {
            Err(UpstreamError::Unreachable { .. }) => {
                tokio::time::sleep(RETRY_PAUSE).await;
                self.send(url, headers, body).await?
            }
            sent => sent?,
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let patience = self.options.idle_timeout;
        let body = (response.bytes_stream().boxed(), self.clone(), permit);
        let body = try_unfold(body, move |(mut body, upstream, permit)| async move {
            match tokio::time::timeout(patience, body.next()).await {
                Err(_) => Err(upstream.idle()),
                Ok(None) => Ok(None),
                Ok(Some(Err(error))) => Err(upstream.dropped(&chain(&error))),
                Ok(Some(Ok(piece))) => Ok(Some((piece, (body, upstream, permit)))),
            }
        });
        Ok(ForwardedResponse { status, headers, body: body.boxed() })
    }

    /// Sends a request with these headers, and those of every request. The caller's header with the protocol's version takes precedence.
    pub(super) async fn send(
        &self,
        url: Url,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<reqwest::Response, UpstreamError> {
        let version = self.adapter.api().version.as_ref();
        let version = version.and_then(|(name, _)| Some((name.clone(), headers.get(name)?.clone())));
        headers.extend(self.headers.clone());
        headers.extend(version);
        let mut request = reqwest::Request::new(Method::POST, url);
        *request.headers_mut() = headers;
        *request.body_mut() = Some(body.into());
        let sent = tokio::time::timeout(self.options.idle_timeout, self.transport.send(request)).await;
        sent.map_err(|_| self.idle())?.map_err(|error| self.unreachable(&error))
    }
}
