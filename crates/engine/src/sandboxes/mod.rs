//! Sandboxes that clients own by id: made on request, ended at a set time, and gone after a restart.
//!
//! `registry` finds them, `sandbox` is one of them, `contexts` has its kernels, `programs` the programs that run in those, `processes` its
//! commands, which outlive their clients, `watches` the directories whose changes clients poll. They share their permits with live
//! sessions, but are never ended for others.

mod contexts;
mod processes;
mod programs;
mod registry;
mod sandbox;
#[cfg(test)]
mod tests;
mod watches;

use aludel_store::Store;

use crate::Tasks;
use crate::meter::Meter;
use crate::processor_time::ProcessorTime;

pub use contexts::{Context, Contexts};
pub use processes::{
    LogPart, MAX_TAG, ProcessEnd, ProcessEvent, ProcessSpec, ProcessStream, ProcessView, Processes, PtySize,
    SandboxProcess,
};
pub use programs::{RunningProgram, RunningPrograms};
pub use registry::Sandboxes;
pub use sandbox::{ClientSandbox, KeptPart, NewSandbox};
pub use watches::Watches;

/// State that all sandboxes share.
#[derive(Debug, Clone)]
struct Shared {
    store: Store,
    meter: Meter,
    tasks: Tasks,
    processor_time: ProcessorTime,
}

/// The home directory inside: the directory in which commands start, and the base of relative paths.
pub const HOME: &str = "/home/user";
/// The user of every client sandbox.
pub const USER: &str = "user";
/// Variables of the user's, the same for programs and commands.
pub const USER_VARIABLES: [(&str, &str); 3] = [("HOME", HOME), ("USER", USER), ("LOGNAME", USER)];

/// Files of a sandbox by path.
pub mod files {
    pub use aludel_sandbox::files::{
        CHUNK, Change, ChangeKind, DirectoryWatch, FileWriter, Files, FilesError, OpenFile, PathInfo, Problem,
    };
}
