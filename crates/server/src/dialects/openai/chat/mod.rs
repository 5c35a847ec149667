//! Chat Completions: a request with the tool `code_interpreter` starts a turn; any other is forwarded to the model's server.
//!
//! `api` has the route, `request` parses a request, and `messages` its conversation. `render` drives the `writer` by the engine's events;
//! `markdown` writes programs as text for clients without the tool. `rounds` keeps what clients do not repeat.

mod api;
pub(crate) mod markdown;
mod messages;
mod render;
mod request;
mod rounds;
mod writer;

pub(crate) use api::create;
