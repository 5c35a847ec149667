//! E2B's API, for its unchanged SDKs: sandboxes that clients own, and of each its code interpreter, its commands and its files.
//!
//! `control` makes and lists sandboxes, `describe` describes them; `target` finds the sandbox of a request to the data plane, and checks
//! its token. `code` runs programs, `process` and `filesystem` are services of Connect, whose codec is `connect`; `files` are plain uploads
//! and downloads, `sign` their signed addresses; `user` checks the user that a request asks for. Parts that are common to several protocols
//! are in `client_sandboxes`.

mod code;
mod connect;
mod control;
mod describe;
mod error;
mod files;
mod filesystem;
mod process;
mod sign;
mod target;
mod user;

use std::borrow::Cow;

use self::connect::FRAMES;
use aludel_wire::e2b::code::{CreateContext, ExecuteRequest, Line};
use aludel_wire::e2b::filesystem::{ListDirResponse, WatchMessage, WatcherEvents};
use aludel_wire::e2b::process::{EventMessage, ListResponse};
use aludel_wire::e2b::{
    Connect, ListedSandbox, Network, NewSandbox, Pause, Refresh, Resume, Sandbox, TemplateAlias, Timeout,
};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::middleware::from_fn;

use super::{Dialect, Manual};
use crate::http::{BYTES, FORM, JSON, MediaType, Routes, bearer};

/// The dialect.
pub(crate) const E2B: Dialect = Dialect {
    routes,
    manual: Manual {
        name: "e2b",
        title: "E2B",
        reference: "https://e2b.dev/docs/api-reference",
        key: "x-api-key",
        error: Some(MediaType::json::<aludel_wire::e2b::Error>(JSON)),
    },
    claims: Some(claims),
    key,
    authenticate: target::authenticate,
    answers_pages: false,
    request_id: "x-request-id",
    keeps_request_ids: false,
    refuse: error::refuse,
    stored: |_| Vec::new(),
};

/// Beginnings of the paths that are this dialect's alone.
const PATHS: [&str; 13] = [
    "/sandboxes",
    "/v2/sandboxes",
    "/templates",
    "/v2/templates",
    "/v3/templates",
    "/snapshots",
    "/volumes",
    "/secrets",
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
    PATHS.iter().any(is_below) || target::names_a_sandbox(request)
}

/// The key of a request to the control plane. Some versions of the SDKs require the form `e2b_` with hexadecimal digits: the digits of this
/// server's key.
fn key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let sent = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    let key = sent.or_else(|| bearer(headers)).map(str::trim).filter(|key| !key.is_empty())?;
    Some(match key.strip_prefix("e2b_") {
        Some(digits) => Cow::Owned(format!("{}{digits}", aludel_store::KEY_PREFIX)),
        None => Cow::Borrowed(key),
    })
}

fn routes() -> Routes {
    Routes::new()
        .get("/health", target::health, "Tell that the sandbox lives")
        .gives_any(JSON)
        .post("/sandboxes", control::create_v1, "Create a sandbox")
        .takes::<NewSandbox>()
        .gives::<Sandbox>()
        .get("/sandboxes", control::list, "List sandboxes")
        .asks(&["state", "metadata", "template", "startedAfter", "order", "limit", "nextToken"])
        .gives::<Vec<ListedSandbox>>()
        .post("/v2/sandboxes", control::create, "Create a sandbox")
        .takes::<NewSandbox>()
        .gives::<Sandbox>()
        .get("/v2/sandboxes", control::list, "List sandboxes")
        .asks(&["state", "metadata", "template", "startedAfter", "order", "limit", "nextToken"])
        .gives::<Vec<ListedSandbox>>()
        .get("/sandboxes/metrics", control::all_metrics, "Tell what several sandboxes use")
        .asks(&["sandbox_ids"])
        .get("/sandboxes/{id}", control::retrieve, "Retrieve a sandbox")
        .delete("/sandboxes/{id}", control::kill, "End a sandbox")
        .post("/sandboxes/{id}/timeout", control::set_timeout, "Set the end of a sandbox")
        .takes::<Timeout>()
        .put(
            "/sandboxes/{id}/network",
            control::set_network,
            "Set the rules of a sandbox's network, of which none may let anything out",
        )
        .takes::<Network>()
        .post("/sandboxes/{id}/refreshes", control::refresh, "Put off the end of a sandbox")
        .takes::<Refresh>()
        .post("/sandboxes/{id}/connect", control::connect, "Connect to a sandbox, resuming it")
        .takes::<Connect>()
        .gives::<Sandbox>()
        .post("/v2/sandboxes/{id}/connect", control::connect, "Connect to a sandbox, resuming it")
        .takes::<Connect>()
        .gives::<Sandbox>()
        .post("/sandboxes/{id}/resume", control::resume, "Resume a sandbox")
        .takes::<Resume>()
        .gives::<Sandbox>()
        .post("/sandboxes/{id}/pause", control::pause, "Pause a sandbox")
        .takes::<Pause>()
        .post("/sandboxes/{id}/fork", control::fork, "Refuse to fork a sandbox")
        .post("/sandboxes/{id}/snapshots", control::snapshot, "Refuse to keep a snapshot")
        .get("/snapshots", control::snapshots, "List snapshots, of which there are none")
        .get("/templates/aliases/{alias}", control::template, "Tell whether there is a template")
        .gives::<TemplateAlias>()
        .get("/sandboxes/{id}/metrics", control::metrics, "Tell what a sandbox uses")
        .asks(&["start", "end"])
        .get("/sandboxes/{id}/logs", control::logs, "Read the log of a sandbox")
        .get("/v2/sandboxes/{id}/logs", control::logs, "Read the log of a sandbox")
        .post("/execute", code::execute, "Run a program in a context, as a stream")
        .takes::<ExecuteRequest>()
        .streams::<Line>(JSON)
        .get("/contexts", code::list_contexts, "List contexts")
        .post("/contexts", code::create_context, "Create a context")
        .takes::<CreateContext>()
        .delete("/contexts/{id}", code::remove_context, "Remove a context")
        .post("/contexts/{id}/restart", code::restart_context, "Restart a context")
        .get("/envs", process::environment, "List the variables of a sandbox")
        .get("/metrics", process::metrics, "Tell the sandbox's usage")
        .get("/files", files::download, "Download a file")
        .asks(&["path", "username", "signature", "signature_expiration"])
        .gives_any(BYTES)
        .post("/files", files::upload, "Upload files")
        .asks(&["path", "username", "signature", "signature_expiration"])
        .takes_any(FORM)
        .takes_any(BYTES)
        .post("/process.Process/List", process::list, "List commands")
        .gives::<ListResponse>()
        .post("/process.Process/Start", process::start, "Start a command, as a stream")
        .streams::<EventMessage>(FRAMES)
        .post("/process.Process/Connect", process::connect, "Follow a command, as a stream")
        .streams::<EventMessage>(FRAMES)
        .post("/process.Process/Update", process::update, "Change the size of a terminal")
        .post("/process.Process/SendInput", process::send_input, "Write to a command")
        .post("/process.Process/CloseStdin", process::close_stdin, "Close the input of a command")
        .post("/process.Process/SendSignal", process::send_signal, "Send a signal to a command")
        .post("/filesystem.Filesystem/Stat", filesystem::stat, "Tell about a file")
        .post("/filesystem.Filesystem/ListDir", filesystem::list_dir, "List a directory")
        .gives::<ListDirResponse>()
        .post("/filesystem.Filesystem/MakeDir", filesystem::make_dir, "Make a directory")
        .post("/filesystem.Filesystem/Move", filesystem::rename, "Move a file")
        .post("/filesystem.Filesystem/Remove", filesystem::remove, "Remove a file")
        .post("/filesystem.Filesystem/WatchDir", filesystem::watch_dir, "Watch a directory, as a stream")
        .streams::<WatchMessage>(FRAMES)
        .post("/filesystem.Filesystem/CreateWatcher", filesystem::create_watcher, "Begin to watch a directory")
        .post("/filesystem.Filesystem/GetWatcherEvents", filesystem::watcher_events, "Read what a watcher saw")
        .gives::<WatcherEvents>()
        .post("/filesystem.Filesystem/RemoveWatcher", filesystem::remove_watcher, "End a watcher")
        .refuse("/templates", error::no_builds)
        .refuse("/v2/templates", error::no_builds)
        .refuse("/v2/templates/{*path}", error::no_builds)
        .refuse("/v3/templates", error::no_builds)
        .refuse("/v3/templates/{*path}", error::no_builds)
        .refuse("/secrets", error::no_secrets)
        .refuse("/secrets/{*path}", error::no_secrets)
        .refuse("/volumes", error::no_volumes)
        .refuse("/volumes/{*path}", error::no_volumes)
        .refuse("/process.Process/{method}", connect::unknown_method)
        .refuse("/filesystem.Filesystem/{method}", connect::unknown_method)
        // Any path may belong to a sandbox's programs; the layer forwards those.
        .refuse("/", error::no_route)
        .refuse("/{*path}", error::no_route)
        .layer(from_fn(target::sandbox_middleware))
}
