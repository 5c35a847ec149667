//! E2B's API, for its unchanged SDKs: sandboxes that clients own, and of each its code interpreter, its commands and its files.
//!
//! `control` makes and lists sandboxes, `describe` tells of them; `reach` finds the sandbox that a request of the data plane is for, and checks its
//! token. `code` runs programs, `process` and `filesystem` are services of Connect, whose codec is `connect`; `files` are plain uploads and
//! downloads, `sign` their signed addresses. The parts that no protocol has to itself are in `dialects/sandboxes`.

mod code;
mod connect;
mod control;
mod describe;
mod error;
mod files;
mod filesystem;
mod process;
mod reach;
mod sign;

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::middleware::from_fn;
use axum::routing::{any, delete, get, post};

use super::Dialect;
use crate::app::App;
use crate::http::bearer;

/// The dialect.
pub(crate) const E2B: Dialect = Dialect {
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
const PATHS: [&str; 12] = [
    "/sandboxes",
    "/v2/sandboxes",
    "/templates",
    "/v2/templates",
    "/v3/templates",
    "/snapshots",
    "/volumes",
    "/execute",
    "/contexts",
    "/files",
    "/process.Process",
    "/filesystem.Filesystem",
];

fn claims(request: &Request) -> bool {
    let path = request.uri().path();
    let is_below =
        |start: &&str| path.strip_prefix(*start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    path == "/health" || PATHS.iter().any(is_below) || reach::names_a_sandbox(request)
}

/// The key of a request to the control plane. Some versions of the SDKs want keys to be `e2b_` and hexadecimal digits: the digits of ours.
fn key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let sent = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    let key = sent.or_else(|| bearer(headers)).map(str::trim).filter(|key| !key.is_empty())?;
    Some(match key.strip_prefix("e2b_") {
        Some(digits) => Cow::Owned(format!("{}{digits}", aludel_store::KEY_PREFIX)),
        None => Cow::Borrowed(key),
    })
}

fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/health", get(reach::health))
        .route("/sandboxes", post(control::create_v1).get(control::list))
        .route("/v2/sandboxes", post(control::create).get(control::list))
        .route("/sandboxes/metrics", get(control::all_metrics))
        .route("/sandboxes/{id}", get(control::retrieve).delete(control::kill))
        .route("/sandboxes/{id}/timeout", post(control::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(control::refresh))
        .route("/sandboxes/{id}/connect", post(control::connect))
        .route("/v2/sandboxes/{id}/connect", post(control::connect))
        .route("/sandboxes/{id}/resume", post(control::resume))
        .route("/sandboxes/{id}/pause", post(control::pause))
        .route("/sandboxes/{id}/metrics", get(control::metrics))
        .route("/sandboxes/{id}/logs", get(control::logs))
        .route("/v2/sandboxes/{id}/logs", get(control::logs))
        .route("/execute", post(code::execute))
        .route("/contexts", get(code::list_contexts).post(code::create_context))
        .route("/contexts/{id}", delete(code::remove_context))
        .route("/contexts/{id}/restart", post(code::restart_context))
        .route("/envs", get(process::environment))
        .route("/metrics", get(process::metrics))
        .route("/files", get(files::download).post(files::upload))
        .route("/process.Process/List", post(process::list))
        .route("/process.Process/Start", post(process::start))
        .route("/process.Process/Connect", post(process::connect))
        .route("/process.Process/Update", post(process::update))
        .route("/process.Process/SendInput", post(process::send_input))
        .route("/process.Process/CloseStdin", post(process::close_stdin))
        .route("/process.Process/SendSignal", post(process::send_signal))
        .route("/filesystem.Filesystem/Stat", post(filesystem::stat))
        .route("/filesystem.Filesystem/ListDir", post(filesystem::list_dir))
        .route("/filesystem.Filesystem/MakeDir", post(filesystem::make_dir))
        .route("/filesystem.Filesystem/Move", post(filesystem::rename))
        .route("/filesystem.Filesystem/Remove", post(filesystem::remove))
        .route("/filesystem.Filesystem/WatchDir", post(filesystem::watch_dir))
        .route("/filesystem.Filesystem/CreateWatcher", post(filesystem::create_watcher))
        .route("/filesystem.Filesystem/GetWatcherEvents", post(filesystem::watcher_events))
        .route("/filesystem.Filesystem/RemoveWatcher", post(filesystem::remove_watcher))
        .route("/process.Process/{method}", any(connect::unknown_method))
        .route("/filesystem.Filesystem/{method}", any(connect::unknown_method))
        // Any path may be one of a sandbox's programs; the layer hands those on.
        .route("/", any(error::no_route))
        .route("/{*path}", any(error::no_route))
        .layer(from_fn(reach::as_long_as_it_lives))
}
