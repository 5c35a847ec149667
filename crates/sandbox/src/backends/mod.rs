//! The places where sandboxes run.

pub(crate) mod local;
mod registry;
