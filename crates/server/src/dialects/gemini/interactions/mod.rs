//! The Interactions API: an answer with an id, stored, that the next one goes on with.
//!
//! `request` understands a request, `context` collects what it builds on, `start` puts both together, `writer` puts what happens into the
//! words of the protocol, `render` drives it by the engine's events.

mod api;
mod context;
mod render;
mod request;
mod start;
mod writer;

pub(super) use api::{cancel, create, delete, retrieve};
pub(super) use render::stored_requests;
