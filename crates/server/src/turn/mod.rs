//! One request that is carried out: its start, and the ways in which its client hears of it.

mod delivery;
mod start;

pub(crate) use delivery::{
    StreamFormat, cancel_on_disconnect, fingerprint, first_failure, follow, framed, replay, stop, wait,
};
pub(crate) use start::{begin, launch, not_stored, spawn_run};
