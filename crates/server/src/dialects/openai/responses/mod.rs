//! The Responses API: a model, a code interpreter, and a log of everything that a client was sent.
//!
//! `request` understands a request, `context` collects what it builds on, `start` puts both together, `writer` puts what
//! happens into the words of the protocol, `render` drives it by the engine's events.

mod api;
mod context;
mod render;
mod request;
mod start;
mod writer;

pub(crate) use api::{cancel, create, delete, input_items, input_tokens, retrieve};
pub(crate) use render::stored_requests;
