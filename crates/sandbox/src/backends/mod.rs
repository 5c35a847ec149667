//! The places where sandboxes run, and code that several of them share.

pub(crate) mod directory;
#[cfg(feature = "docker")]
pub(crate) mod docker;
#[cfg(feature = "e2b")]
pub(crate) mod e2b;
pub(crate) mod local;
pub mod memory;
#[cfg(feature = "opensandbox")]
pub(crate) mod opensandbox;
mod registry;
#[cfg(feature = "remote")]
mod remote;
#[cfg(any(feature = "docker", feature = "remote"))]
mod stdio;
mod streams;
pub(crate) mod templates;
