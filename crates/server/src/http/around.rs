//! What happens around every request: an id, who is asking, whether there is room, and an answer even when a handler panics.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use aludel_store::{Tenant, fresh_id};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;

use crate::app::App;
use crate::error::{ApiError, Failure};

/// The path that says whether the server lives, to anybody.
pub(crate) const HEALTH: &str = "/healthz";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Who is asking.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) Tenant);

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &Arc<App>) -> Result<Self, ApiError> {
        // Only a route outside of the layer below would lack it.
        parts.extensions.get::<Self>().cloned().ok_or_else(|| ApiError::internal("a route that asks nobody for a key"))
    }
}

/// The layer around all routes.
pub(crate) async fn around(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let id = fresh_id("req_");
    let line = format!("{} {}", request.method(), request.uri().path());
    let answered = AssertUnwindSafe(admit(&app, request, next)).catch_unwind().await;
    let mut response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(refused)) => refused.into_response(),
        Err(panic) => ApiError::internal(format!("a panic: {}", words(&*panic))).into_response(),
    };
    if let Some(Failure(Some(cause))) = response.extensions().get() {
        log(&format!("{id}: {line}: {cause}"));
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

async fn admit(app: &Arc<App>, mut request: Request, next: Next) -> Result<Response, ApiError> {
    if request.uri().path() == HEALTH {
        return Ok(next.run(request).await);
    }
    let caller = identify(app, request.headers()).await?;
    let Ok(place) = Arc::clone(&app.requests).try_acquire_owned() else {
        let message =
            format!("The server is answering {} requests already; try again in a moment.", app.settings.requests);
        return Err(ApiError::too_many(message, Duration::from_secs(1)));
    };
    request.extensions_mut().insert(caller);
    let response = next.run(request).await;
    // A stream holds its place until its end.
    Ok(response.map(|body| Body::new(Placed { body, _place: place })))
}

async fn identify(app: &App, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let key = bearer(headers);
    if let Some(key) = key
        && let Some(tenant) = app.store.tenant_of_key(key).await?
    {
        return Ok(Caller(tenant));
    }
    if app.store.has_keys().await? {
        return Err(ApiError::unauthorized(match key {
            Some(_) => "Incorrect API key provided.",
            None => "You didn't provide an API key. Send it as: Authorization: Bearer YOUR_KEY.",
        }));
    }
    // Without keys the server is this machine's alone, but a browser on it also runs what strangers wrote.
    if headers.get(ORIGIN).is_some_and(|origin| !is_local_origin(origin)) {
        return Err(ApiError::forbidden("Web pages of other origins may not ask a server that has no keys."));
    }
    if headers.get(HOST).is_some_and(|host| !is_local_host(host.to_str().unwrap_or_default())) {
        let message = "A server that has no keys answers only to localhost; make a key with `aludel keys create`.";
        return Err(ApiError::forbidden(message));
    }
    Ok(Caller(Tenant::local()))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, key) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let key = key.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

fn is_local_origin(origin: &HeaderValue) -> bool {
    let text = origin.to_str().unwrap_or_default();
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(is_local_host)
}

/// Whether a name means this machine by itself: one that is looked up may mean anything.
fn is_local_host(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// A body that holds a place among the requests.
struct Placed {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl HttpBody for Placed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without words")
}

/// Tells the operator. Paths and names in it come from outside, so nothing in it may move a terminal's cursor.
pub(crate) fn log(line: &str) {
    let plain: String = line.chars().map(|character| if character.is_control() { ' ' } else { character }).collect();
    eprintln!("{plain}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in ["localhost", "localhost:8080", "127.0.0.1:80", "127.1.2.3", "[::1]:8080"] {
            assert!(is_local_host(host), "{host}");
        }
        for host in ["example.com", "localhost.example.com", "127.0.0.1.example.com:80", "10.0.0.1", "", "0.0.0.0"] {
            assert!(!is_local_host(host), "{host}");
        }
        assert!(is_local_origin(&HeaderValue::from_static("http://localhost:3000")));
        assert!(!is_local_origin(&HeaderValue::from_static("null")));
        assert!(!is_local_origin(&HeaderValue::from_static("https://evil.example")));
    }
}
