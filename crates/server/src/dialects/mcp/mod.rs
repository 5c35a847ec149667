//! The Model Context Protocol: a code interpreter as tools, over Streamable HTTP, HTTP with SSE, and standard input and output.
//!
//! `server` serves one client over any transport, and `handler` answers its requests; `http`, `sse` and `stdio` are the transports. `tools`
//! describes the tools, `calls` carries them out, `runs` keeps programs that outlive their call, `output` collects their output, `approve`
//! asks the client's user, `files` and `resources` serve files.

mod approve;
mod calls;
mod error;
mod files;
#[cfg(test)]
mod fixtures;
mod handler;
mod http;
mod output;
mod resources;
mod runs;
mod server;
mod sse;
mod stdio;
mod tools;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::Engine;
use aludel_engine::permits::Permits;
use aludel_store::Tenant;
use parking_lot::Mutex;
use rmcp::model::RequestId;
use serde::Deserialize;

use super::{Dialect, Manual};
use crate::auth::DailyBudgets;
use crate::http::{JSON, Routes, bearer};

pub use stdio::serve as serve_stdio;

/// Concurrent connections that began with `initialize`: each takes a task and some kilobytes.
const MAX_CONNECTIONS: usize = 1024;

/// The dialect.
pub(crate) const MCP: Dialect = Dialect {
    routes,
    manual: Manual {
        name: "mcp",
        title: "Model Context Protocol",
        reference: "https://modelcontextprotocol.io/specification",
        key: "authorization",
        error: None,
    },
    claims: None,
    key: |headers| bearer(headers).map(Cow::Borrowed),
    authenticate: |_, _| None,
    answers_pages: true,
    request_id: "x-request-id",
    keeps_request_ids: false,
    refuse: error::refuse,
    stored: |_| Vec::new(),
};

fn routes() -> Routes {
    Routes::new()
        .post("/mcp", http::post, "Send messages (Streamable HTTP)")
        .takes_any(JSON)
        .gives_any(JSON)
        .gives_any("text/event-stream")
        .get("/mcp", http::get, "Listen to messages of the server")
        .gives_any("text/event-stream")
        .delete("/mcp", http::delete, "End a session")
        .gives_nothing()
        .get("/sse", sse::open, "Open a connection (HTTP with SSE), with the tool named python")
        .gives_any("text/event-stream")
        .post("/messages", sse::post, "Send a message on such a connection")
        .asks(&["session_id"])
        .takes_any(JSON)
}

/// The fields of a message that decide where it goes.
#[derive(Debug, Default, Deserialize)]
struct Head {
    #[serde(default)]
    id: Option<RequestId>,
    #[serde(default)]
    method: Option<String>,
}

/// The state that all connections share.
pub(crate) struct Mcp {
    engine: Arc<Engine>,
    budgets: Arc<DailyBudgets>,
    runs: runs::Runs,
    /// Time after which a call returns although its program goes on.
    return_after: Duration,
    connections: Arc<Permits>,
    /// Transports by tenant, so that no tenant finds another's connections.
    streamable: Mutex<HashMap<Tenant, Arc<http::Streamable>>>,
    sse: sse::Streams,
}

impl Mcp {
    /// The state of a server on this engine.
    pub(crate) fn new(engine: &Arc<Engine>, budgets: Arc<DailyBudgets>, return_after: Duration) -> Arc<Self> {
        Arc::new(Self {
            engine: Arc::clone(engine),
            budgets,
            runs: runs::Runs::default(),
            return_after,
            connections: Permits::new(MAX_CONNECTIONS, MAX_CONNECTIONS),
            streamable: Mutex::default(),
            sse: sse::Streams::default(),
        })
    }
}
