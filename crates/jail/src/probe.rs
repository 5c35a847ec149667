//! The protections that this host can enforce, found by trying them.

use std::fs;

use aludel_ignore::Ignore;

use crate::cgroup::Hierarchy;
use crate::idmap::IdMap;
use crate::message::Profile;
use crate::{landlock, sys, syscalls};

/// Abilities of the host.
#[derive(Debug, Clone)]
pub struct Host {
    /// The result of making a sandbox's namespaces.
    pub namespaces: Result<(), String>,
    /// True if every sandbox gets a user id of its own.
    pub own_ids: bool,
    /// The control groups.
    pub cgroups: Hierarchy,
    /// The version of the Landlock interface; 0 without it.
    pub landlock: u32,
    /// True if system calls can be filtered.
    pub seccomp: bool,
    /// Number of system calls that the filter allows.
    pub allowed_syscalls: usize,
    /// The socket to which Linux reports crashes in any namespace (Linux 6.16), if it is set. A crash handler that is a program does not
    /// run for sandboxes, see [`crate::lockdown`].
    pub crash_socket: Option<String>,
    /// The release of Linux.
    pub kernel: String,
}

/// Tries everything, in some milliseconds; leaves nothing behind.
pub fn probe() -> Host {
    let map = IdMap::choose();
    Host {
        namespaces: try_namespaces(map),
        own_ids: map != IdMap::Single,
        cgroups: Hierarchy::detect(),
        landlock: landlock::version(),
        seccomp: fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nSeccomp:")),
        allowed_syscalls: syscalls::allowed(Profile::Data),
        crash_socket: crash_socket(&fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default()),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
    }
}

fn crash_socket(pattern: &str) -> Option<String> {
    pattern.strip_prefix('@')?.trim_start_matches('@').split_whitespace().next().map(str::to_owned)
}

/// Runs `unshare` as a warden does, in a child that exits at once.
fn try_namespaces(map: IdMap) -> Result<(), String> {
    let user = if map == IdMap::Single { libc::CLONE_NEWUSER } else { 0 };
    let flags = user
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    match sys::fork(flags) {
        // The caller may have threads, so the child may only exit.
        Ok(sys::Fork::Child) => sys::exit(0),
        Ok(sys::Fork::Parent(child)) => {
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty())
                .ignore("its status does not matter");
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_pattern_names_its_socket() {
        assert_eq!(crash_socket("@@/run/systemd/coredump\n").as_deref(), Some("/run/systemd/coredump"));
        assert_eq!(crash_socket("|/usr/lib/systemd/systemd-coredump %P %u\n"), None);
        assert_eq!(crash_socket("core\n"), None);
    }
}
