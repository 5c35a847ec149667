//! Parts of the dialects whose clients own sandboxes, in no protocol's words.
//!
//! `programs` run in contexts, `commands` beside them; `download` sends files, `ports` hands requests on to servers that programs start,
//! and `tunnel` goes on where they change the protocol. `alive` ends all of it with the sandbox. `refusal` puts errors into words,
//! `ascii_json` events into JSON; `constant_time` compares secrets, and `metadata_query` reads the query within a query that asks for
//! metadata.

pub(crate) mod alive;
pub(crate) mod ascii_json;
pub(crate) mod commands;
pub(crate) mod constant_time;
pub(crate) mod download;
pub(crate) mod metadata_query;
pub(crate) mod ports;
pub(crate) mod programs;
pub(crate) mod refusal;
mod tunnel;
