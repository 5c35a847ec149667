//! Sandboxes that clients own by id: made when they are asked for, ended at a time, and gone at a restart.
//!
//! `registry` finds them, `sandbox` is one of them, `contexts` are its kernels, `programs` what runs in them, `processes` the commands that
//! run in it and outlive their clients, `watches` the directories of which clients poll the changes. They take permits of the same number
//! as live sessions, which nobody takes away from them.

mod contexts;
mod processes;
mod programs;
mod registry;
mod sandbox;
#[cfg(test)]
mod tests;
mod watches;

pub use contexts::{Context, Contexts};
pub use processes::{
    LogPart, MAX_TAG, ProcessEnd, ProcessEvent, ProcessSpec, ProcessStream, ProcessView, Processes, PtySize,
    SandboxProcess,
};
pub use programs::{RunningProgram, RunningPrograms};
pub use registry::Sandboxes;
pub use sandbox::{ClientSandbox, NewSandbox};
pub use watches::Watches;

/// The home directory inside: where commands begin, and what relative paths are relative to.
pub const HOME: &str = "/home/user";

/// Files of a sandbox by path.
pub mod files {
    pub use aludel_sandbox::files::{
        CHUNK, Change, ChangeKind, DirectoryWatch, FileWriter, Files, FilesError, OpenFile, PathInfo, Problem,
    };
}
