//! One request that is carried out: its start, and the ways in which its client hears of it.

mod follow;
mod start;

pub(crate) use follow::{PATIENCE, SILENCE, StreamFormat, fingerprint, follow, framed, leash, replay, wait};
pub(crate) use start::start;
