//! OpenAI's API: Responses, Chat Completions, and the files, containers and conversations that they name.
//!
//! `tools` understands the tools of a request, `attachment` finds files that messages bring along, `program` puts programs and their output
//! into words.

mod attachment;
pub(crate) mod chat;
pub(crate) mod containers;
pub(crate) mod conversations;
pub(crate) mod files;
pub(crate) mod models;
mod program;
pub(crate) mod responses;
mod tools;
pub(crate) mod uploads;
