//! Common parts of the dialects whose clients own sandboxes, independent of their protocols.
//!
//! `programs` run in contexts, `commands` beside them; `download` sends files and `listing` lists of them, `ports` forwards requests to
//! servers that programs start, and `tunnel` takes over when those switch protocols. `alive` ends answers with the sandbox. `repeated`
//! makes sandboxes once, however often their client asks; `refusal` renders errors, `ascii_json` events as JSON; `secrets` finds secrets in
//! requests, and `metadata_query` parses the nested query for metadata.

pub(crate) mod alive;
pub(crate) mod ascii_json;
pub(crate) mod commands;
pub(crate) mod download;
pub(crate) mod listing;
pub(crate) mod metadata_query;
pub(crate) mod ports;
pub(crate) mod programs;
pub(crate) mod refusal;
pub(crate) mod repeated;
pub(crate) mod secrets;
mod tunnel;
