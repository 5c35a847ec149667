//! What the dialects share: one turn with a model and a container, and how clients hear of it.
//!
//! `tools` understands what may be called and opens the container, `attachment` finds files that messages bring along, `program` puts what
//! ran into words, `live` holds what is going on, `follow` sends it, `failure` says what went wrong.

mod attachment;
mod failure;
mod follow;
mod live;
mod program;
mod tools;

pub(crate) use attachment::{inline_file, stored_file};
pub(crate) use failure::{error_of, error_of_upstream, words_for_clients};
pub(crate) use follow::{PATIENCE, SILENCE, follow, leash, replay, wait};
pub(crate) use live::{End, Fingerprint, Live, LiveTurns, Told};
pub(crate) use program::{Ended, Output, replayed, replayed_output};
pub(crate) use tools::{Interpreter, check_function_name};
