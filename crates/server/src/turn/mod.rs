//! One request: its start, and its delivery to clients.

mod delivery;
mod kept;
mod start;
mod stored;

pub(crate) use delivery::{
    Delivery, EmptyFrames, StreamFormat, fingerprint, first_failure, follow, framed, stop, wait,
};
pub(crate) use kept::{answer, answer_past};
pub(crate) use start::{BeginRefusal, begin, launch, not_stored, spawn_run};
pub(crate) use stored::{cancel, replay_stored, stop_and_forget};
