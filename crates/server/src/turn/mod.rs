//! What the dialects share: one turn with a model and a container, and how clients hear of it.
//!
//! `tools` understands what may be called and opens the container, `attachment` finds files that messages bring along, `program` puts what
//! ran into words, `live` holds what is going on, `follow` sends it, `failure` says what went wrong.

mod attachment;
mod follow;
mod program;
mod start;
mod tools;

pub(crate) use attachment::{inline_file, stored_file};
pub(crate) use follow::{PATIENCE, SILENCE, fingerprint, follow, leash, replay, wait};
pub(crate) use program::{Ended, Printed, replayed, replayed_output};
pub(crate) use start::start;
pub(crate) use tools::{Interpreter, check_function_name};
