//! The server with scripted programs, through HTTP: a module for each of its dialects and objects, in one program.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and cases need a part of this"
)]

mod anthropic;
mod assistants;
mod background;
#[path = "../common/mod.rs"]
mod common;
mod containers;
mod documents;
mod e2b;
mod files;
mod formats;
mod functions;
mod gemini;
mod hostile;
mod http;
mod interactions;
mod mcp;
mod model_failures;
mod opensandbox;
mod plain_chat;
mod services;
mod snapshots;
mod storage;
mod web_socket;
