//! One request: its start, and its delivery to clients.

mod delivery;
mod start;

pub(crate) use delivery::{
    StreamFormat, cancel_on_disconnect, fingerprint, first_failure, follow, framed, replay, stop, wait,
};
pub(crate) use start::{begin, launch, not_stored, spawn_run};
