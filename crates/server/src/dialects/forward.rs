//! Requests without programs: they are forwarded to the model's server, and its answer to the client.
//!
//! Two things change: the key, and the model's name if the server has another one for it, which is replaced in place. Only the headers of
//! the protocol's two lists are forwarded.

use std::borrow::Cow;
use std::sync::Arc;

use aludel_agent::upstream::http::{ForwardTarget, ForwardedResponse, HttpUpstream};
use aludel_agent::upstream::{Upstream as _, UpstreamError};
use aludel_engine::MeteredWork;
use aludel_store::Tenant;
use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER,
};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::error;

use crate::app::App;
use crate::error::ApiError;
use crate::telemetry::passed_on;

/// Request headers that are forwarded, besides those of the protocol.
const TO_THE_SERVER: [HeaderName; 6] = [
    ACCEPT,
    ACCEPT_ENCODING,
    CONTENT_TYPE,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-client-request-id"),
];
/// Response headers that are forwarded, besides those of the protocol.
const TO_THE_CLIENT: [HeaderName; 7] = [
    CACHE_CONTROL,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    RETRY_AFTER,
    HeaderName::from_static("retry-after-ms"),
    HeaderName::from_static("x-should-retry"),
];

/// A protocol whose requests are forwarded.
#[derive(Debug)]
pub(crate) struct ForwardProtocol {
    /// The method of the model's server.
    pub(crate) target: ForwardTarget,
    /// Request headers of this protocol that are forwarded.
    pub(crate) to_the_server: &'static [&'static str],
    /// Prefixes of response headers of this protocol that are forwarded.
    pub(crate) to_the_client: &'static [&'static str],
}

/// A request to forward.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForwardRequest<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a Bytes,
    /// The model's name in the body.
    pub(crate) model: Option<ModelName<'a>>,
}

/// The type of a tool in a body.
#[derive(Deserialize)]
struct ToolHead<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
}

/// Returns true if one of these tools has a type for which `is_ours` is true. Anything but a list of tools is left to the model's server to
/// refuse.
pub(crate) fn has_tool(tools: Option<&RawValue>, is_ours: impl Fn(&str) -> bool) -> bool {
    let tools: Vec<ToolHead> = tools.and_then(|tools| serde_json::from_str(tools.get()).ok()).unwrap_or_default();
    tools.iter().any(|tool| tool.kind.as_deref().is_some_and(&is_ours))
}

/// The model's name in a body.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ModelName<'a> {
    /// As a JSON string.
    Json(&'a RawValue),
    /// As plain text.
    Plain(&'a str),
}

/// Forwards a request to the server of the named model or of its fallbacks. `None` if no server takes requests of this protocol.
pub(crate) async fn on(
    app: &App,
    tenant: &Tenant,
    protocol: &ForwardProtocol,
    name: &str,
    request: ForwardRequest<'_>,
) -> Result<Option<Response>, ApiError> {
    let models = app.engine.models();
    let model = models.find(name)?;
    let server = |name: &str| models.get(name)?.endpoint.clone().filter(|server| server.forwards(protocol.target));
    let Some(first) = server(&model.name) else { return Ok(None) };
    app.engine.meter.count(tenant, &model.name, MeteredWork { requests: 1, ..MeteredWork::default() });
    let mut servers = vec![(model.name.as_str(), first)];
    servers.extend(model.fallback.iter().filter_map(|name| Some((name.as_str(), server(name)?))));
    let headers: HeaderMap = request
        .headers
        .iter()
        .filter(|(name, _)| TO_THE_SERVER.contains(name) || protocol.to_the_server.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let last = servers.len() - 1;
    for (index, (name, server)) in servers.iter().enumerate() {
        let is_last = index == last;
        let forward = |headers| server.forward(protocol.target, headers, with_model(request, server));
        match passed_on((name, server.provider()), headers.clone(), forward).await {
            Ok(answer) if is_last || !is_unavailable(answer.status) => {
                if is_for_the_operator(answer.status) {
                    error!("{name}: the model's server answered {}; the client was told its words", answer.status);
                }
                let ForwardedResponse { status, headers, body } = answer;
                let (engine, tenant) = (Arc::clone(&app.engine), tenant.clone());
                let key_ends = async move { engine.key_ends(&tenant).await };
                let body = Body::from_stream(while_served(key_ends, body));
                return Ok(Some(respond(status, &headers, body, protocol)));
            }
            Ok(answer) => error!("{}: {}; the next model is asked", server.name(), answer.status),
            Err(error) if is_last || !error.is_unavailable() => return Err((&error).into()),
            Err(error) => error!("{error}; the next model is asked"),
        }
    }
    Ok(None)
}

fn is_unavailable(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// Returns true for an error that only the operator can fix: about the key or the model's name, or a failure of the server.
fn is_for_the_operator(status: StatusCode) -> bool {
    use StatusCode as Of;
    matches!(status, Of::UNAUTHORIZED | Of::PAYMENT_REQUIRED | Of::FORBIDDEN | Of::NOT_FOUND) || is_unavailable(status)
}

/// The body with the server's name for the model.
fn with_model(ForwardRequest { body, model, .. }: ForwardRequest<'_>, server: &HttpUpstream) -> Bytes {
    let (given, name) = match model {
        None => return body.clone(),
        Some(ModelName::Json(given)) => (given.get(), serde_json::Value::from(server.name()).to_string()),
        Some(ModelName::Plain(given)) => (given, server.name().to_owned()),
    };
    if given == name {
        return body.clone();
    }
    // Offset of the name: the parsed value borrows from the body.
    let start = given.as_ptr() as usize - body.as_ptr() as usize;
    let (before, after) = (body.slice(..start), body.slice(start + given.len()..));
    [&before[..], name.as_bytes(), &after[..]].concat().into()
}

/// The body of an answer, which breaks off once the key of its tenant ends.
fn while_served(
    key_ends: impl Future<Output = ()> + Send + 'static,
    body: BoxStream<'static, Result<Bytes, UpstreamError>>,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    stream::unfold(Some((body, Box::pin(key_ends))), |state| async move {
        let (mut body, mut key_ends) = state?;
        tokio::select! {
            biased;
            () = &mut key_ends => Some((Err("the key was revoked or has expired".into()), None)),
            piece = body.next() => Some((piece?.map_err(BoxError::from), Some((body, key_ends)))),
        }
    })
}

fn respond(status: StatusCode, headers: &HeaderMap, body: Body, protocol: &ForwardProtocol) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in headers {
        let is_own = protocol.to_the_client.iter().any(|beginning| name.as_str().starts_with(beginning));
        if is_own || TO_THE_CLIENT.contains(name) {
            response.headers_mut().append(name.clone(), value.clone());
        }
    }
    // Foreign errors are not rendered again.
    response.extensions_mut().insert(crate::error::RenderedMark);
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_breaks_off_when_its_key_ends() {
        let pieces = |count| {
            let pieces = stream::iter(0..count).then(async |_| {
                tokio::time::sleep(Duration::from_secs(3)).await;
                Ok(Bytes::from_static(b"x"))
            });
            pieces.boxed()
        };
        let key_ends = || tokio::time::sleep(Duration::from_secs(10));
        let whole: Vec<_> = while_served(key_ends(), pieces(3)).collect().await;
        assert!(whole.len() == 3 && whole.iter().all(Result::is_ok));
        let cut: Vec<_> = while_served(key_ends(), pieces(100)).collect().await;
        assert!(cut.len() == 4 && cut[..3].iter().all(Result::is_ok) && cut[3].is_err());
    }
}
