//! Parts of the dialects whose clients own sandboxes, in no protocol's words.
//!
//! `programs` run in contexts, `commands` beside them; `download` sends files, `ports` hands requests on to servers that programs start, and
//! `tunnel` goes on where they change the protocol. `alive` ends all of it with the sandbox. `refusal` puts errors into words, `lines` events into JSON, and `secret` compares.

pub(crate) mod alive;
pub(crate) mod commands;
pub(crate) mod download;
pub(crate) mod lines;
pub(crate) mod ports;
pub(crate) mod programs;
pub(crate) mod query;
pub(crate) mod refusal;
pub(crate) mod secret;
mod tunnel;
