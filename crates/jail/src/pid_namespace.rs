//! Process namespaces, by which the processes of a sandbox are known.

use std::path::PathBuf;

use rustix::process::Pid;

/// The process namespace of a process.
pub(crate) fn namespace_of(pid: Pid) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/ns/pid", pid.as_raw_nonzero())).ok()
}
