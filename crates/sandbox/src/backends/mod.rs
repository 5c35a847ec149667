//! The places where sandboxes run.

pub(crate) mod local;
pub mod memory;
mod registry;
