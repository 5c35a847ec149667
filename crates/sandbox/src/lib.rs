//! Sandboxes: isolated places that run programs and hold files.
//!
//! This crate is usable alone: no database, no HTTP. The isolation itself is in `aludel-jail`; here are templates, the pool,
//! the kernel channel, executions and the workspace as the host sees it.
#![forbid(unsafe_code)]

pub mod attack;
mod backends;
mod error;
mod execution;
mod frame;
#[cfg(fuzzing)]
pub mod fuzzing;
mod limits;
mod output;
pub mod probe;
pub mod process;
mod sandbox;
pub mod template;

pub use backends::local::workspace::{FileEntry, Workspace, mime_of};
pub use backends::local::{Local, LocalConfig, Require, SandboxSpec, Start};
pub use error::Error;
pub use execution::{Death, Event, Finished, LimitHit, MimeBundle, MimeData, Outcome, ProgramError, State};
pub use limits::Limits;
pub use sandbox::{Execution, Interrupter, Sandbox};
pub use template::Template;
