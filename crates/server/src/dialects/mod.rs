//! The protocols of existing clients, one folder each.

pub(crate) mod anthropic;
pub(crate) mod assistants;
pub(crate) mod e2b;
mod forward;
pub(crate) mod gemini;
pub(crate) mod mcp;
pub(crate) mod openai;
pub(crate) mod opensandbox;
mod reasoning;
mod rfc3339;
mod stop_words;
mod stored;

use std::borrow::Cow;
use std::sync::Arc;

use aludel_engine::turns;
use aludel_store::{Store, Tenant};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;

use crate::app::App;
use crate::error::ApiError;
use crate::http::{MediaType, Routes};

/// A protocol that clients speak.
pub(crate) struct Dialect {
    /// Its routes.
    pub(crate) routes: fn() -> Routes,
    /// Its documentation.
    pub(crate) manual: Manual,
    /// Test for requests of its clients, for a dialect that shares paths with others. Other dialects are recognized by their paths.
    pub(crate) claims: Option<fn(&Request) -> bool>,
    /// Reads the key of a request.
    pub(crate) key: fn(&HeaderMap) -> Option<Cow<'_, str>>,
    /// Finds the tenant of a request with a token of an object, such as a sandbox; `None` for one that needs a key.
    pub(crate) authenticate: fn(&App, &mut Request) -> Option<Result<Tenant, ApiError>>,
    /// True if web pages may make requests where the operator allows it. False where programs in sandboxes answer, which set their own
    /// headers.
    pub(crate) answers_pages: bool,
    /// The response header in which clients look for the request's id, besides `x-request-id`.
    pub(crate) request_id: &'static str,
    /// True if a request's own `x-request-id` is returned in place of a new id.
    pub(crate) keeps_request_ids: bool,
    /// The response to a request with this id that is refused: status and body.
    pub(crate) refuse: fn(&ApiError, &str) -> Response,
    /// Its kinds of stored requests.
    pub(crate) stored: fn(&Store) -> Vec<Arc<dyn turns::StoredRequests>>,
}

/// The documentation of a dialect.
pub(crate) struct Manual {
    /// A name for addresses and tags.
    pub(crate) name: &'static str,
    /// The protocol's name.
    pub(crate) title: &'static str,
    /// The address of the protocol's own reference.
    pub(crate) reference: &'static str,
    /// The header with the key; `authorization` has it as a Bearer token.
    pub(crate) key: &'static str,
    /// The form of its errors, where it is JSON of its own.
    pub(crate) error: Option<MediaType>,
}

/// All dialects. The first one answers requests that belong to none, such as unknown routes.
pub(crate) const ALL: &[Dialect] = &[
    openai::OPENAI,
    e2b::E2B,
    opensandbox::OPENSANDBOX,
    anthropic::ANTHROPIC,
    gemini::GEMINI,
    mcp::MCP,
    assistants::ASSISTANTS,
];
