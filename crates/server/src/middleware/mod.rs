//! The layer around every request: an id, the caller, a permit, and an answer even when a handler panics.

mod throttled_body;
mod unread_body;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::permits::{NoRoom, Permit, Permits};
use aludel_engine::processor_time::StrangerRequest;
use aludel_store::Tenant;
use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, error};

use self::throttled_body::ThrottledBody;
use crate::app::App;
use crate::auth::KeyRefusal;
use crate::dialects::Dialect;
use crate::dialects::gemini::Ticket;
use crate::error::{ApiError, RenderedMark};
use crate::http::{
    ACCEL_BUFFERING, Caller, GuardedBody, LocalUserMark, ProgramTraffic, RequestMemory, is_local_host, memory,
};
use crate::links::FileLink;
use crate::paths::{DOCS, HEALTH, HEALTH_OF_SANDBOXES, OF_DIALECTS, OPENAPI, READY};
use crate::telemetry::{METRICS, Scope};

/// The header with the id of a request; dialects may add others.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Bytes of a request's id that a client chose.
const MAX_GIVEN_ID: usize = 128;
/// Address of the client of a proxy.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Types of answers that are sent piece by piece.
const STREAMS: [&[u8]; 3] = [b"text/event-stream", b"application/connect+", b"application/x-ndjson"];
/// The header with the name of the backend of the programs' sandboxes.
const BACKEND: HeaderName = HeaderName::from_static("x-aludel-backend");
/// The refusal of a sandbox's token, a link or an upload's ticket whose key is gone.
const NO_KEY_BEHIND: &str = "The API key for which this was made was revoked or has expired.";
/// Tells OpenAI's and Anthropic's clients whether to try again, whatever the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Marks the answer to a request whose caller is not known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StrangerMark(pub(crate) StrangerRequest);

/// The layer around all routes.
pub(crate) async fn middleware(
    State((app, dialect)): State<(Arc<App>, &'static Dialect)>,
    request: Request,
    next: Next,
) -> Response {
    let (scope, span, open) = Scope::begin(&app.telemetry, &request);
    let given = dialect.keeps_request_ids.then(|| given_id(request.headers())).flatten();
    let (request, rest) = unread_body::share(request);
    // The route instead of the path, which may contain the token of a link.
    let line = format!("{} {}", request.method(), scope.route());
    let mut stranger = Some(StrangerRequest::Other);
    let admitted = admit(&app, dialect, request, next, &mut stranger).instrument(span.clone());
    let answered = AssertUnwindSafe(admitted).catch_unwind().await;
    let mut response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(refused)) => refused.into_response(),
        Err(panic) => ApiError::internal(format!("a panic: {}", words(&*panic))).into_response(),
    };
    if let Some(refusal) = refusal(&response) {
        if let Some(cause) = &refusal.cause {
            span.in_scope(|| error!("{line}: {cause}"));
        }
        scope.note_refusal(refusal.code, refusal.param.as_deref());
        response = refused(&refusal, dialect, scope.id());
    }
    if let Some(kind) = stranger {
        response.extensions_mut().insert(StrangerMark(kind));
    }
    rest.clear(&mut response).await;
    if let Ok(id) = HeaderValue::from_str(scope.id()) {
        response.headers_mut().insert(HeaderName::from_static(dialect.request_id), id.clone());
        response.headers_mut().insert(REQUEST_ID, given.unwrap_or(id));
    }
    let backend = HeaderValue::from_static(app.engine.sandboxes.capabilities().backend);
    response.headers_mut().insert(BACKEND, backend);
    if is_stream(&response) {
        // Nginx and similar proxies would buffer a stream until it ends.
        response.headers_mut().insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    }
    scope.note_status(response.status());
    response.map(|body| Body::new(GuardedBody::new(body, open)))
}

/// The id that a request brings, if it is a text that may be sent back.
fn given_id(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_plain = |id: &&HeaderValue| id.to_str().is_ok_and(|id| (1..=MAX_GIVEN_ID).contains(&id.len()));
    headers.get(REQUEST_ID).filter(is_plain).cloned()
}

/// Returns true if the answer is sent piece by piece.
fn is_stream(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| STREAMS.iter().any(|stream| kind.starts_with(stream)))
}

/// Returns the refusal in an answer that has not been rendered yet.
fn refusal(response: &Response) -> Option<ApiError> {
    let extensions = response.extensions();
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    match extensions.get::<ApiError>() {
        Some(refusal) => Some(refusal.clone()),
        // Axum itself refuses some requests, such as paths that are not UTF-8.
        None => {
            (is_error && extensions.get::<RenderedMark>().is_none()).then(|| ApiError::of_status(response.status()))
        }
    }
}

fn refused(refusal: &ApiError, dialect: &Dialect, request_id: &str) -> Response {
    let mut response = (dialect.refuse)(refusal, request_id);
    if let Some(after) = refusal.retry_after {
        let seconds = after.as_secs_f64().ceil().max(1.0) as u64;
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(retry) = refusal.should_retry {
        let word = if retry { "true" } else { "false" };
        response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static(word));
    }
    response
}

/// Answers a request. `stranger` is `None` once its caller is known.
async fn admit(
    app: &Arc<App>,
    dialect: &Dialect,
    mut request: Request,
    next: Next,
    stranger: &mut Option<StrangerRequest>,
) -> Result<Response, ApiError> {
    if request.headers().get_all(HOST).iter().count() > 1 {
        // A proxy may have used the other one.
        return Err(ApiError::bad_request("The request has more than one Host header."));
    }
    let path = request.uri().path();
    // A dialect that claims requests has none of the server's own paths: they belong to programs in sandboxes.
    let may_be_own = dialect.claims.is_none();
    let is_probe = may_be_own && matches!(path, HEALTH | HEALTH_OF_SANDBOXES | READY);
    // The documentation is the same for all clients, and contains nothing about tenants.
    let is_documentation = may_be_own && (matches!(path, DOCS | OPENAPI) || path.starts_with(OF_DIALECTS));
    if is_probe {
        *stranger = Some(StrangerRequest::Probe);
    }
    if is_probe || is_documentation {
        return Ok(next.run(request).await);
    }
    let caller = match authenticate_by_token(app, dialect, &mut request).await? {
        Some(caller) if app.callers.may_ask(&app.store, &caller.0).await? => caller,
        Some(_) => return Err(ApiError::unauthorized(NO_KEY_BEHIND)),
        None => {
            let is_local_user = request.extensions().get::<LocalUserMark>().is_some();
            authenticate_by_key(app, (dialect.key)(request.headers()).as_deref(), request.headers(), is_local_user)
                .await?
        }
    };
    *stranger = None;
    if may_be_own && request.uri().path() == METRICS {
        // It is needed most when there are no permits.
        return Ok(next.run(request).await);
    }
    Scope::note_tenant(&caller.0);
    app.budgets.check_request(&app.store, &caller.0, request.method(), request.uri().path()).await?;
    let permit = match request.extensions().get::<ProgramTraffic>() {
        Some(traffic) => acquire_program_permits(app, &caller.0, traffic)?,
        None => (acquire_permit(&app.requests, &caller.0)?, None),
    };
    let share = app.engine.processor_time.share_of(&caller.0);
    let tenant = caller.0.clone();
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(share.clone());
    let body = RequestMemory::default();
    request.extensions_mut().insert(body.clone());
    let is_read = request.method() == Method::GET;
    let response = share.pace(next.run(request)).await;
    let memory = match response.body().size_hint().exact() {
        // All of it is in memory until it is sent. Only a request that changed nothing can be refused now.
        Some(bytes) if is_read => Some(memory(app, &tenant, usize::try_from(bytes).unwrap_or(usize::MAX))?),
        _ => None,
    };
    // A stream keeps its permit until its end.
    let guard = (permit, memory, body);
    Ok(response.map(|body| Body::new(GuardedBody::new(Body::new(ThrottledBody::new(body, &share)), guard))))
}

/// Acquires a permit for a request.
fn acquire_permit(requests: &Arc<Permits>, tenant: &Tenant) -> Result<Permit, ApiError> {
    requests.acquire(tenant).map_err(|no_room| {
        let message = match no_room {
            NoRoom::AtAll => format!("The server is answering {} requests already (server.requests)", requests.all()),
            NoRoom::ForThisTenant => {
                "The server is answering as many requests of yours as it may (server.requests_per_key)".to_owned()
            }
        };
        ApiError::too_many(format!("{message}; try again in a moment."), Duration::from_secs(1))
    })
}

/// Acquires the permits for a request to a program of a sandbox: one of the sandbox and one of its tenant.
fn acquire_program_permits(
    app: &App,
    tenant: &Tenant,
    ProgramTraffic(sandbox): &ProgramTraffic,
) -> Result<(Permit, Option<OwnedSemaphorePermit>), ApiError> {
    let of_sandbox = sandbox.program_request().ok_or_else(|| {
        let message = "The programs of this sandbox are answering as many requests as they may; try again in a moment.";
        ApiError::too_many(message, Duration::from_secs(1))
    })?;
    Ok((acquire_permit(&app.program_requests, tenant)?, Some(of_sandbox)))
}

/// The caller of a request with the token of an object in place of a key: a sandbox's token, a link, an upload's ticket.
async fn authenticate_by_token(
    app: &Arc<App>,
    dialect: &Dialect,
    request: &mut Request,
) -> Result<Option<Caller>, ApiError> {
    if let Some(tenant) = (dialect.authenticate)(app, request) {
        return Ok(Some(Caller(tenant?)));
    }
    if let Some(link) = FileLink::read(app, request.uri().path()).await? {
        let caller = link.caller();
        request.extensions_mut().insert(link);
        return Ok(Some(caller));
    }
    let Some(ticket) = Ticket::read(app, request.uri()).await? else { return Ok(None) };
    let caller = ticket.caller();
    request.extensions_mut().insert(ticket);
    Ok(Some(caller))
}

async fn authenticate_by_key(
    app: &App,
    key: Option<&str>,
    headers: &HeaderMap,
    is_local_user: bool,
) -> Result<Caller, ApiError> {
    if is_local_user && key.is_none() {
        return Ok(Caller(Tenant::local()));
    }
    let refused = match key {
        Some(key) => match app.callers.tenant_of(&app.store, key).await? {
            Ok(tenant) => return Ok(Caller(tenant)),
            Err(refused) => Some(refused),
        },
        None => None,
    };
    if app.callers.has_keys(&app.store).await? {
        return Err(ApiError::unauthorized(match refused {
            Some(KeyRefusal::Unknown) => "Incorrect API key provided.",
            Some(KeyRefusal::Expired) => {
                "This API key has expired. Ask the operator of this server for more time or a new one."
            }
            None => "You didn't provide an API key. Send it as: Authorization: Bearer YOUR_KEY.",
        }));
    }
    // Without keys the server is only for this machine, but a browser on it also runs foreign pages.
    if headers.get(ORIGIN).is_some_and(|origin| !is_local_origin(origin) && !app.origins.lists(origin)) {
        let message =
            "Web pages of other origins may not ask a server that has no keys; `server.origins` can name this one.";
        return Err(ApiError::forbidden(message));
    }
    if headers.get(HOST).is_some_and(|host| !is_local_host(host.to_str().unwrap_or_default())) {
        let message = "A server that has no keys answers only to localhost; make a key with `aludel keys create`.";
        return Err(ApiError::forbidden(message));
    }
    // A proxy may add a header of its own below the client's.
    if !headers.get_all(FORWARDED_FOR).iter().all(is_local_chain) {
        let message = "A server that has no keys answers this machine alone, and a proxy passed this request on from another; make a \
                       key with `aludel keys create`.";
        return Err(ApiError::forbidden(message));
    }
    Ok(Caller(Tenant::local()))
}

/// Returns true if all addresses that a request passed through are of this machine.
fn is_local_chain(addresses: &HeaderValue) -> bool {
    let mut addresses = addresses.to_str().unwrap_or_default().split(',');
    addresses.all(|address| address.trim().parse::<IpAddr>().is_ok_and(|address| address.is_loopback()))
}

fn is_local_origin(origin: &HeaderValue) -> bool {
    let text = origin.to_str().unwrap_or_default();
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    host.is_some_and(is_local_host)
}

fn words(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without words")
}

#[cfg(test)]
mod tests {
    use aludel_store::Store;
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;
    use crate::app::ServerSettings;

    #[tokio::test]
    async fn a_panic_is_an_answer_and_frees_its_permit() {
        let data = tempfile::tempdir().unwrap();
        let settings = ServerSettings { requests: 1, ..ServerSettings::default() };
        let sessions = aludel_engine::SessionSettings::default();
        let backend = Arc::new(aludel_sandbox::memory::Memory::default());
        let store = Store::open(data.path()).await.unwrap();
        let engine = aludel_engine::Engine::new(store, backend, [], Default::default(), Vec::new(), sessions);
        let app = Arc::new(App::new(Arc::new(engine), settings));
        let routes = Router::new()
            .route("/panic", get(async || -> &'static str { panic!("a secret of the server") }))
            .route("/plain", get(async || (axum::http::StatusCode::IM_A_TEAPOT, "words of its own")))
            .layer(from_fn_with_state((Arc::clone(&app), &crate::dialects::ALL[0]), middleware))
            .with_state(app);
        for (path, status, kind) in [("/panic", 500, "server_error"), ("/plain", 418, "invalid_request_error")] {
            for _ in 0..2 {
                let request = Request::get(path).body(Body::empty()).unwrap();
                let response = routes.clone().oneshot(request).await.unwrap();
                assert_eq!(response.status(), status);
                assert!(response.headers().contains_key(REQUEST_ID));
                let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
                let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(body["error"]["type"], kind);
                assert!(!body.to_string().contains("secret"));
            }
        }
        let (other, probe) = (Some(StrangerRequest::Other), Some(StrangerRequest::Probe));
        for (path, kind) in
            [("/v1/links/none/a.csv", other), (DOCS, other), (HEALTH, probe), (READY, probe), ("/plain", None)]
        {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = routes.clone().oneshot(request).await.unwrap();
            assert_eq!(response.extensions().get::<StrangerMark>().map(|mark| mark.0), kind, "{path}");
        }
    }

    #[test]
    fn only_pages_of_this_machine_are_local() {
        assert!(is_local_origin(&HeaderValue::from_static("http://localhost:3000")));
        assert!(!is_local_origin(&HeaderValue::from_static("null")));
        assert!(!is_local_origin(&HeaderValue::from_static("https://evil.example")));
    }
}
