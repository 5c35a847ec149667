//! Chat Completions: a request with the tool `code_interpreter` is a turn of ours; any other goes to the model's server as it is.
//!
//! `api` has the route, `request` understands a request, and `messages` the conversation in it. `render` drives the `writer` by the
//! engine's events; the writer renders them in the words of the protocol, and `markdown` as its text for clients that know of no tool.
//! `rounds` keeps what clients do not repeat.

mod api;
pub(crate) mod markdown;
mod messages;
mod render;
mod request;
mod rounds;
mod writer;

pub(crate) use api::create;
