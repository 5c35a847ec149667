//! The places where sandboxes run, and what several of them share.

pub(crate) mod directory;
#[cfg(feature = "docker")]
pub(crate) mod docker;
pub(crate) mod local;
pub mod memory;
mod registry;
#[cfg(feature = "docker")]
mod stdio;
mod streams;
pub(crate) mod templates;
