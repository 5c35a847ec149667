//! The Interactions API: stored answers with an id, which the next request can continue.
//!
//! `request` parses a request, `context` collects the conversation before it, `start` combines both, `writer` writes the protocol's
//! objects, `render` drives it by the engine's events.

mod api;
mod context;
mod render;
mod request;
mod start;
mod writer;

pub(super) use api::{cancel, create, delete, retrieve};
pub(super) use render::stored_requests;
