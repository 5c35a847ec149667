//! The HTTP server: one list of routes, behind keys and limits, with a dialect for each supported protocol.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test's tasks end with its runtime"))]

mod app;
mod approvals;
mod auth;
mod client_sandboxes;
mod connections;
mod dialects;
mod early;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod http;
mod links;
mod local_user;
mod middleware;
mod openapi;
mod own_routes;
mod paths;
mod raw_json;
mod router;
mod serve;
mod telemetry;
mod timed_connection;
mod turn;
mod workspace_path;

pub use app::{App, MCP_RETURN_AFTER, RUN_LIFETIME, ServerSettings};
pub use auth::Origins;
pub use dialects::mcp::serve_stdio as serve_mcp;
pub use early::answer_early;
pub use local_user::LocalUserService;
pub use serve::{Listener, NO_DESCRIPTORS_PAUSE, ServeError, serve};
pub use telemetry::{LogFormat, LogLevel, Traces, flush_log, log_as, notice, write_line, write_log_aside};
