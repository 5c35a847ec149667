//! OpenSandbox's API, for its unchanged SDKs: sandboxes that clients own, and in each of them its code interpreter, its commands and its
//! files.
//!
//! `lifecycle` makes and lists sandboxes, `describe` describes them; `target` finds the sandbox of a request below `/proxy/`, and checks
//! its token. `code` runs programs, `commands` and `sessions` commands, with the variables of `env_file`, and `events` are the streams of
//! both; `files` and `transfers` are files. Parts that are common to several protocols are in `client_sandboxes`.

mod code;
mod commands;
mod describe;
mod env_file;
mod error;
mod events;
mod files;
mod lifecycle;
mod metrics;
mod resources;
mod sessions;
mod target;
mod transfers;

use std::borrow::Cow;

use aludel_wire::opensandbox::code::{Event, NewContext, RunCode};
use aludel_wire::opensandbox::commands::{Metrics, NewSession, RunCommand, RunInSession};
use aludel_wire::opensandbox::files::{FileInfo, Move, Permission, Replaced, Replacement};
use aludel_wire::opensandbox::lifecycle::{Expiration, NewSandbox, Sandbox};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::middleware::from_fn;
use std::collections::BTreeMap;

use super::{Dialect, Manual};
use crate::http::{BYTES, FORM, JSON, MediaType, Routes, bearer};

/// The dialect.
pub(crate) const OPENSANDBOX: Dialect = Dialect {
    routes,
    manual: Manual {
        name: "opensandbox",
        title: "OpenSandbox",
        reference: "https://github.com/alibaba/OpenSandbox",
        key: "open-sandbox-api-key",
        error: Some(MediaType::json::<aludel_wire::opensandbox::Error>(JSON)),
    },
    claims: Some(claims),
    key,
    authenticate: target::authenticate,
    answers_pages: false,
    request_id: "x-request-id",
    keeps_request_ids: true,
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
    let sent = headers.get(target::API_KEY).and_then(|key| key.to_str().ok());
    sent.or_else(|| bearer(headers)).map(str::trim).filter(|key| !key.is_empty()).map(Cow::Borrowed)
}

fn routes() -> Routes {
    Routes::new()
        .post("/v1/sandboxes", lifecycle::create, "Create a sandbox")
        .takes::<NewSandbox>()
        .gives::<Sandbox>()
        .get("/v1/sandboxes", lifecycle::list, "List sandboxes")
        .asks(&["state", "metadata", "page", "pageSize"])
        .get("/v1/sandboxes/{id}", lifecycle::retrieve, "Retrieve a sandbox")
        .delete("/v1/sandboxes/{id}", lifecycle::kill, "End a sandbox")
        .patch("/v1/sandboxes/{id}/metadata", lifecycle::change_metadata, "Change the metadata of a sandbox")
        .takes::<BTreeMap<String, Option<String>>>()
        .post("/v1/sandboxes/{id}/pause", lifecycle::pause, "Pause a sandbox")
        .post("/v1/sandboxes/{id}/resume", lifecycle::resume, "Resume a sandbox")
        .post("/v1/sandboxes/{id}/renew-expiration", lifecycle::renew, "Put off the end of a sandbox")
        .takes::<Expiration>()
        .get("/v1/sandboxes/{id}/endpoints/{port}", lifecycle::endpoint, "Tell the address of a port")
        .asks(&["expires"])
        .post("/v1/metrics/events", lifecycle::note_event, "Take a client's figures")
        .takes_any(JSON)
        .nest("/v1/sandboxes/{id}/proxy/44772", served())
        .get("/v1/sandboxes/{id}/proxy/18080/policy", lifecycle::policy, "Tell the rules of the network")
        // Any path may belong to a sandbox's programs; the layer forwards those.
        .refuse("/v1/sandboxes/{id}/proxy/{*rest}", error::no_route)
        .refuse("/v1/sandboxes/{id}/{*rest}", error::not_supported)
        .refuse("/v1/{collection}", error::not_supported)
        .refuse("/v1/{collection}/{*rest}", error::not_supported)
        .layer(from_fn(target::sandbox_middleware))
}

/// The routes at the port of each sandbox that is ours.
fn served() -> Routes {
    Routes::new()
        .get("/ping", target::ping, "Tell that the sandbox lives")
        .post("/code", code::run, "Run a program, as a stream")
        .takes::<RunCode>()
        .streams::<Event>("text/event-stream")
        .delete("/code", code::interrupt, "Interrupt a program")
        .asks(&["id"])
        .post("/code/context", code::create_context, "Create a context")
        .takes::<NewContext>()
        .get("/code/contexts", code::list_contexts, "List contexts")
        .asks(&["language"])
        .delete("/code/contexts", code::remove_contexts, "Remove the contexts of a language")
        .asks(&["language"])
        .get("/code/contexts/{context}", code::retrieve_context, "Retrieve a context")
        .delete("/code/contexts/{context}", code::remove_context, "Remove a context")
        .post("/command", commands::run, "Run a command, as a stream")
        .takes::<RunCommand>()
        .streams::<Event>("text/event-stream")
        .delete("/command", commands::interrupt, "Interrupt a command")
        .asks(&["id"])
        .get("/command/status/{command}", commands::status, "Tell the state of a command")
        .get("/command/{command}/logs", commands::logs, "Read the log of a command")
        .asks(&["cursor"])
        .gives_any("text/plain")
        .post("/session", sessions::create, "Open a shell")
        .takes::<NewSession>()
        .delete("/session/{session}", sessions::remove, "Close a shell")
        .post("/session/{session}/run", sessions::run, "Run a command in a shell, as a stream")
        .takes::<RunInSession>()
        .streams::<Event>("text/event-stream")
        .delete("/files", files::remove, "Remove files")
        .asks(&["path"])
        .get("/files/info", files::info, "Tell about files")
        .asks(&["path"])
        .post("/files/mv", files::rename, "Move files")
        .takes::<Vec<Move>>()
        .post("/files/permissions", files::set_permissions, "Set permissions and owners")
        .takes::<BTreeMap<String, Permission>>()
        .post("/files/replace", files::replace, "Replace text in files")
        .asks(&["verbose"])
        .takes::<BTreeMap<String, Replacement>>()
        .gives::<BTreeMap<String, Replaced>>()
        .get("/files/search", files::search, "Find files")
        .asks(&["path", "pattern"])
        .gives::<Vec<FileInfo>>()
        .post("/files/upload", transfers::upload, "Upload files")
        .takes_any(FORM)
        .get("/files/download", transfers::download, "Download a file")
        .asks(&["path"])
        .gives_any(BYTES)
        .post("/directories", files::make_directories, "Make directories")
        .takes::<BTreeMap<String, Permission>>()
        .delete("/directories", files::remove_directories, "Remove directories")
        .asks(&["path"])
        .get("/directories/list", files::list, "List a directory")
        .asks(&["path", "depth"])
        .gives::<Vec<FileInfo>>()
        .get("/metrics", metrics::retrieve, "Tell the sandbox's usage")
        .get("/metrics/watch", metrics::watch, "Follow the sandbox's usage")
        .streams::<Metrics>("text/event-stream")
}
