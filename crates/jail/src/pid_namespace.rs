//! The pid namespace of a process, which identifies its sandbox.

use std::path::PathBuf;

use rustix::process::Pid;

/// The process namespace of a process.
pub(crate) fn namespace_of(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/ns/pid", pid.as_raw_nonzero())).ok()
}
