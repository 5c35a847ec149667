//! Chat Completions: a request with the tool `code_interpreter` is a turn of ours; any other goes to the model's server as it is.
//!
//! `request` understands a request, `messages` the conversation in it, `run` carries it out, `writer` puts what happens into the words of the
//! protocol, `markdown` into its text for clients that know of no tool, `rounds` keeps what clients do not repeat.

mod api;
pub(crate) mod markdown;
mod messages;
mod render;
mod request;
mod rounds;
mod writer;

pub(crate) use api::create;
