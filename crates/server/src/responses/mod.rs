//! The Responses API: a model, a code interpreter, and a log of everything that a client was told.
//!
//! `ask` understands a request, `context` collects what it builds on, `run` carries it out, `writer` puts what happens into the words
//! of the protocol, `live` holds what is going on, `stream` sends it.

mod api;
mod ask;
mod context;
mod live;
mod run;
mod stream;
mod writer;

pub(crate) use api::{cancel, create, delete, end_unfinished, input_items, input_tokens, retrieve};
pub(crate) use live::Responses;
