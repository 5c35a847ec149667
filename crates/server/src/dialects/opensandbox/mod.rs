//! OpenSandbox's API, for its unchanged SDKs: sandboxes that clients own, and in each of them its code interpreter, its commands and its files.
//!
//! `lifecycle` makes and lists sandboxes, `describe` tells of them; `reach` finds the sandbox that a request below `/proxy/` is for, and checks
//! its token. `code` runs programs, `commands` and `sessions` commands, and `events` are the streams of both; `files` and `transfers` are files.
//! The parts that no protocol has to itself are in `dialects/sandboxes`.

mod code;
mod commands;
mod describe;
mod error;
mod events;
mod files;
mod lifecycle;
mod reach;
mod sessions;
mod transfers;

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::middleware::from_fn;
use axum::routing::{any, delete, get, patch, post};

use super::Dialect;
use crate::app::App;
use crate::http::bearer;

/// The dialect.
pub(crate) const OPENSANDBOX: Dialect = Dialect {
    routes,
    claims: Some(claims),
    key,
    proof: reach::proof,
    answers_pages: false,
    request_id: "x-request-id",
    refuse: error::refuse,
    stored: |_| Vec::new(),
};

/// Beginnings of the paths that are this dialect's alone.
const PATHS: [&str; 5] = ["/v1/sandboxes", "/v1/snapshots", "/v1/pools", "/v1/templates", "/v1/metrics/events"];

fn claims(request: &Request) -> bool {
    let path = request.uri().path();
    let is_below =
        |start: &&str| path.strip_prefix(*start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    PATHS.iter().any(is_below)
}

fn key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let sent = headers.get("open-sandbox-api-key").and_then(|key| key.to_str().ok());
    sent.or_else(|| bearer(headers)).map(str::trim).filter(|key| !key.is_empty()).map(Cow::Borrowed)
}

fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/sandboxes", post(lifecycle::create).get(lifecycle::list))
        .route("/v1/sandboxes/{id}", get(lifecycle::retrieve).delete(lifecycle::kill))
        .route("/v1/sandboxes/{id}/metadata", patch(lifecycle::change_metadata))
        .route("/v1/sandboxes/{id}/pause", post(lifecycle::pause))
        .route("/v1/sandboxes/{id}/resume", post(lifecycle::resume))
        .route("/v1/sandboxes/{id}/renew-expiration", post(lifecycle::renew))
        .route("/v1/sandboxes/{id}/endpoints/{port}", get(lifecycle::endpoint))
        .route("/v1/metrics/events", post(lifecycle::note_event))
        .nest("/v1/sandboxes/{id}/proxy/44772", served())
        .route("/v1/sandboxes/{id}/proxy/18080/policy", get(lifecycle::policy))
        // Any path may be one of a sandbox's programs; the layer hands those on.
        .route("/v1/sandboxes/{id}/proxy/{*rest}", any(error::no_route))
        .route("/v1/sandboxes/{id}/{*rest}", any(error::not_supported))
        .route("/v1/{collection}", any(error::not_supported))
        .route("/v1/{collection}/{*rest}", any(error::not_supported))
        .layer(from_fn(reach::as_long_as_it_lives))
}

/// The routes at the port of each sandbox that is ours.
fn served() -> Router<Arc<App>> {
    Router::new()
        .route("/ping", get(reach::ping))
        .route("/code", post(code::run).delete(code::interrupt))
        .route("/code/context", post(code::create_context))
        .route("/code/contexts", get(code::list_contexts).delete(code::remove_contexts))
        .route("/code/contexts/{context}", get(code::retrieve_context).delete(code::remove_context))
        .route("/command", post(commands::run).delete(commands::interrupt))
        .route("/command/status/{command}", get(commands::status))
        .route("/command/{command}/logs", get(commands::logs))
        .route("/session", post(sessions::create))
        .route("/session/{session}", delete(sessions::remove))
        .route("/session/{session}/run", post(sessions::run))
        .route("/files", delete(files::remove))
        .route("/files/info", get(files::info))
        .route("/files/mv", post(files::rename))
        .route("/files/permissions", post(files::set_permissions))
        .route("/files/replace", post(files::replace))
        .route("/files/search", get(files::search))
        .route("/files/upload", post(transfers::upload))
        .route("/files/download", get(transfers::download))
        .route("/directories", post(files::make_directories).delete(files::remove_directories))
        .route("/directories/list", get(files::list))
        .route("/metrics", get(commands::metrics))
}
