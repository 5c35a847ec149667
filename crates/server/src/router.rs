//! The routes.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use aludel_engine::BackendStatus;
use aludel_store::FULL_DISK;
use axum::extract::{Request, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use axum::{Json, Router};
use serde_json::json;
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};

use crate::app::App;
use crate::dialects::openai::azure;
use crate::dialects::{self, Dialect};
use crate::error::ApiError;
use crate::http::{BYTES, JSON, PAGE, Routes, no_method};
use crate::middleware::{HEALTH, HEALTH_OF_SANDBOXES, READY, middleware};
use crate::telemetry::METRICS;
use crate::{approvals, links, openapi};

/// All routes as one service.
pub(crate) type AllRoutes = BoxCloneSyncService<Request, Response, Infallible>;

/// The routes of a dialect that shares paths with others, and the test for its requests.
type ClaimedRoutes = (fn(&Request) -> bool, Router);

/// All routes. Each dialect that claims requests has its own router, and the others share one.
pub(crate) fn routes(app: &Arc<App>) -> AllRoutes {
    let claimed = dialects::ALL.iter().filter_map(|dialect| {
        let routes = (dialect.routes)().into_router().fallback(no_route);
        Some((dialect.claims?, with_middleware(routes, app, dialect)))
    });
    let (claimed, shared): (Arc<[ClaimedRoutes]>, Router) = (claimed.collect(), shared(app));
    BoxCloneSyncService::new(service_fn(move |mut request: Request| {
        let own = claimed.iter().find(|(claims, _)| claims(&request)).map(|(_, routes)| routes);
        // Not what is for a program in a sandbox.
        if own.is_none() {
            azure::rename(&mut request);
        }
        let is_person = own.is_none() && is_browser_at_root(&request);
        let routes = own.unwrap_or(&shared).clone();
        async move {
            match is_person {
                // Relative, since a proxy may have put a path before it.
                true => Ok(Redirect::temporary(openapi::DOCS.trim_start_matches('/')).into_response()),
                false => routes.oneshot(request).await,
            }
        }
    }))
}

/// Returns true for a person who looks at the server's address: there is no API, and nothing else to read.
fn is_browser_at_root(request: &Request) -> bool {
    let takes_pages = || {
        let accepted = request.headers().get(ACCEPT).and_then(|accepted| accepted.to_str().ok());
        accepted.is_some_and(|accepted| accepted.contains("text/html"))
    };
    request.method() == Method::GET && request.uri().path() == "/" && takes_pages()
}

/// The routes of the server itself, and of the dialects with unique paths.
fn shared(app: &Arc<App>) -> Router {
    let own = with_middleware(own().into_router().fallback(no_route), app, &dialects::ALL[0]);
    let dialects = dialects::ALL.iter().filter(|dialect| dialect.claims.is_none());
    dialects.fold(own, |routes, dialect| routes.merge(with_middleware((dialect.routes)().into_router(), app, dialect)))
}

/// The routes of the server itself.
pub(crate) fn own() -> Routes {
    Routes::new()
        .get("/v1/approvals", approvals::list, "List the programs that wait for a decision")
        .asks(PAGE)
        .asks(&["status"])
        .get("/v1/approvals/{approval}", approvals::retrieve, "Retrieve a program that waits")
        .post("/v1/approvals/{approval}", approvals::decide, "Decide about a program that waits")
        .takes_any(JSON)
        .get(HEALTH, async || "ok\n", "Tell that the server answers")
        .get(HEALTH_OF_SANDBOXES, async || Json(json!({ "status": "healthy" })), "Tell that the server answers")
        .get(READY, ready, "Tell whether programs can run")
        .get(METRICS, scrape, "Read the figures for Prometheus")
        .gives_any("text/plain")
        .get(links::ROUTE, links::follow, "Follow a signed link to a file")
        .gives_any(BYTES)
        .get(openapi::DOCS, openapi::page, "List everything that is served")
        .gives_any("text/html")
        .get(openapi::OPENAPI, openapi::own, "Describe these routes")
        .gives_any(JSON)
        .get(openapi::OF_DIALECT, openapi::of_dialect, "Describe the routes of a protocol, as /openapi/openai.json")
        .gives_any(JSON)
}

/// Adds the layer around routes, whose refusals are rendered by `dialect`.
fn with_middleware(routes: Router<Arc<App>>, app: &Arc<App>, dialect: &'static Dialect) -> Router {
    let app = Arc::clone(app);
    let layer = from_fn_with_state((Arc::clone(&app), dialect), middleware);
    let routes = routes.method_not_allowed_fallback(no_method).layer(layer);
    let pages = app.origins.layer().filter(|_| dialect.answers_pages);
    match pages {
        Some(pages) => routes.layer(pages).with_state(app),
        None => routes.with_state(app),
    }
}

/// Bytes of the smallest write of a request, with what the database adds to it. A disk that has less than these beyond the bound is full.
const SMALLEST_WRITE: u64 = 256 << 10;

/// `GET /readyz`.
async fn ready(State(app): State<Arc<App>>) -> Result<&'static str, ApiError> {
    if let Some(cause) = app.unrecovered.get() {
        let reason = "The server could not take up what an earlier one left; its log says why. Start it again.";
        return Err(ApiError { cause: Some(cause.clone()), ..ApiError::unavailable(reason) });
    }
    if let BackendStatus::Degraded { reason } = app.engine.backend_health().status {
        return Err(ApiError::unavailable(reason));
    }
    let free = app.store.free_bytes().await;
    if let Err(aludel_store::Error::Io { source, path }) = &free
        && source.kind() == io::ErrorKind::ReadOnlyFilesystem
    {
        let reason = format!("The disk of {} can only be read: the log of the system says why.", path.display());
        return Err(ApiError::unavailable(reason));
    }
    let free = free.map_err(|error| {
        let reason = "The disk of the server's state cannot be read; its log says why.";
        ApiError { cause: Some(error.to_string()), ..ApiError::unavailable(reason) }
    });
    if free? < FULL_DISK + SMALLEST_WRITE {
        let reason = format!("The disk of the server's state is full: no more than {} MB are free.", FULL_DISK >> 20);
        return Err(ApiError::unavailable(reason));
    }
    Ok("ready\n")
}

/// `GET /metrics`.
async fn scrape(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let accepted = headers.get(ACCEPT).and_then(|accepted| accepted.to_str().ok()).unwrap_or_default();
    let metrics = app.telemetry.metrics.as_ref();
    let metrics = metrics.ok_or_else(|| ApiError::not_found("Metrics are off; set `metrics = true` in [server]."))?;
    metrics.scrape(&app.engine, accepted).map_err(ApiError::internal)
}

async fn no_route(method: Method, uri: Uri) -> ApiError {
    let path = uri.path();
    let advice = if path.starts_with("/v1/v1/") {
        "The path has /v1 twice: the client adds it itself, so its base URL ends before it."
    } else if path == "/mcp/" {
        "MCP is at /mcp, without a slash at its end."
    } else if path.starts_with("/v1/") {
        "There is no such API here."
    } else {
        "The API is under /v1, and /docs lists it."
    };
    ApiError::not_found(format!("Unknown request URL: {method} {path}. {advice}")).code("unknown_url")
}
