//! The routes of the server itself: approvals, its health, its metrics and signed links.

use std::io;
use std::sync::Arc;

use aludel_engine::BackendStatus;
use aludel_store::FULL_DISK;
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use axum::response::Response;
use serde_json::json;

use crate::app::App;
use crate::error::ApiError;
use crate::http::{BYTES, JSON, PAGE, Routes};
use crate::paths::{HEALTH, HEALTH_OF_SANDBOXES, READY};
use crate::telemetry::METRICS;
use crate::{approvals, links};

/// The routes.
pub(crate) fn routes() -> Routes {
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
