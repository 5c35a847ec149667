//! Sockets of a sandbox. A connection that has not been accepted takes a kilobyte, counted by no control group, and no descriptor.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::Pid;

/// Sockets that one sandbox may have, accepted or not.
pub(crate) const MAX_SOCKETS: usize = 10_000;

/// Counts the sockets in a network namespace, which it holds: one system call each time, since a host has many sandboxes.
pub(crate) struct SocketCounter(File);

impl SocketCounter {
    /// A counter for the network namespace of a process. Fails if Linux does not show its sockets.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        File::open(format!("/proc/{}/net/sockstat", pid.as_raw_nonzero())).map(Self)
    }

    /// The number of sockets now, if Linux tells it.
    pub(crate) fn count(&self) -> Option<usize> {
        let mut first_line = [0; 32];
        let read = self.0.read_at(&mut first_line, 0).ok()?;
        used(std::str::from_utf8(&first_line[..read]).ok()?)
    }
}

/// The number in the line `sockets: used 42`.
fn used(text: &str) -> Option<usize> {
    text.lines().find_map(|line| line.strip_prefix("sockets: used "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_has_the_number() {
        assert_eq!(used("sockets: used 42\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 0\n"), Some(42));
        assert_eq!(used(""), None);
    }

    #[test]
    fn each_count_is_of_that_moment() {
        let counter = SocketCounter::open(rustix::process::getpid()).unwrap();
        let before = counter.count().unwrap();
        let many: Vec<_> = (0..2_000).map(|_| std::os::unix::net::UnixDatagram::unbound().unwrap()).collect();
        // Other tests and programs have sockets, too.
        assert!(counter.count().unwrap() > before + 1_000);
        drop(many);
        assert!(counter.count().unwrap() < before + 1_000);
    }
}
