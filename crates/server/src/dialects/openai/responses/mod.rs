//! The Responses API: a model, a code interpreter, and a log of everything that was sent to a client.
//!
//! `request` parses a request, `context` collects the conversation before it, `start` combines both, `writer` writes the protocol's
//! objects, `include` hides what a client did not ask for, `render` drives it by the engine's events. `socket` answers over a WebSocket.

mod api;
mod context;
pub(super) mod include;
mod render;
mod request;
mod socket;
mod start;
mod writer;

pub(crate) use api::{cancel, create, delete, input_items, input_tokens, no_compaction, retrieve};
pub(crate) use render::stored_requests;
pub(crate) use socket::connect;
