//! Sockets of a sandbox. A connection that has not been accepted takes a kilobyte, counted by no control group, and no descriptor.

use rustix::process::Pid;

/// Sockets that one sandbox may have, accepted or not.
pub(crate) const MAX_SOCKETS: usize = 10_000;

/// Counts the sockets in a process's network namespace, if Linux shows them.
pub(crate) fn count(pid: Pid) -> Option<usize> {
    let text = std::fs::read_to_string(format!("/proc/{}/net/sockstat", pid.as_raw_nonzero())).ok()?;
    used(&text)
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
        assert!(count(rustix::process::getpid()).is_some());
    }
}
