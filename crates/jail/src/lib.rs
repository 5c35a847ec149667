//! Linux isolation: the processes, namespaces, mounts, limits and filters that make a sandbox.
//!
//! A **warden** is a small process that [`WardenProcess::spawn`] starts from the running executable. It is pid 1 of a pid namespace, so its
//! death, however it comes, ends every process below it. It starts one **zygote** (an interpreter with its libraries imported, in a
//! user namespace and a read-only root), one **spawner** (a small process in the same namespaces) and, for every sandbox, a
//! tiny init in fresh namespaces with its mounts and its cgroup. The zygote forks kernels into the namespaces and the spawner forks
//! commands, and both run the [`lockdown`] before anything else.
//!
//! ```text
//! aludel (async) ──socket── warden (pid 1 of namespace Z)
//!                             ├── zygote           user, mount, net, ipc, uts namespaces; read-only root
//!                             ├── spawner          the same namespaces
//!                             ├── lock counter     the warden's namespaces
//!                             ├── watch of crowds  the warden's namespaces
//!                             ├── init of sandbox 1 own mount, pid, net, ipc, uts, cgroup namespaces
//!                             ├── watcher of sandbox 1, made when a program first watches a file, member of its namespaces
//!                             ├── kernel of sandbox 1, forked by the zygote, child of the warden, member of its namespaces
//!                             └── command in sandbox 1, forked by the spawner, child of the warden, member of its namespaces
//! ```
//!
//! Invariants: no async, no network, no knowledge of what the zygote is beyond "a program that speaks [`message`]"; the only crate with
//! `unsafe`, and in it only the files `sys` and `warden_process`.

mod caller;
pub mod cgroup;
mod crowds;
mod flock;
mod foreground;
mod fork_server;
mod freezer;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod held_call;
mod idmap;
mod inotify;
mod landlock;
pub mod lockdown;
mod locks;
pub mod message;
mod mounts;
mod namespaces;
mod pid_namespace;
mod ports;
pub mod probe;
mod sandbox;
mod seccomp_listener;
mod sockets;
mod spawner;
mod stopped;
pub mod sweep;
mod sys;
pub mod syscalls;
mod terminals;
mod warden;
mod warden_process;
mod zygote;

pub use mounts::COMPILED_SCRIPTS;
pub use sys::{give_back_freed_memory, give_back_large_memory};
pub use warden::WORKSPACES;
pub use warden_process::{WardenError, WardenProcess};

/// A failed step of a set-up, with the system's error. Operators read the step's name first.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct StepError {
    /// The step, for example `mount /proc`.
    pub step: String,
    /// The system's error.
    pub source: std::io::Error,
}

/// Names the step in the error of a system call.
trait Step<T> {
    fn step(self, step: impl Into<String>) -> Result<T, StepError>;
}

impl<T, E: Into<std::io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: impl Into<String>) -> Result<T, StepError> {
        self.map_err(|error| StepError { step: step.into(), source: error.into() })
    }
}
