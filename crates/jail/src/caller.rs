//! Callers of system calls that wait for an answer.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::sys;

/// The pidfd of a thread, or of its process where Linux has none of threads. It is the caller's only if the call still waits afterwards.
pub(crate) fn open(thread: i32) -> Result<OwnedFd, Errno> {
    /// `PIDFD_THREAD`, since Linux 6.9.
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL.cast_unsigned());
    let thread = Pid::from_raw(thread).ok_or(Errno::SRCH)?;
    match pidfd_open(thread, THREAD) {
        Err(Errno::INVAL) => pidfd_open(process_of(thread).ok_or(Errno::SRCH)?, PidfdFlags::empty()),
        opened => opened,
    }
}

/// The process of a thread.
fn process_of(thread: Pid) -> Option<Pid> {
    // Its name need not be UTF-8.
    let status = std::fs::read(format!("/proc/{}/status", thread.as_raw_nonzero())).ok()?;
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    Pid::from_raw(std::str::from_utf8(line).ok()?.trim().parse().ok()?)
}

/// Returns true if Linux, and a filter around this process, know the copying of other processes' descriptors.
pub(crate) fn can_copy_descriptors() -> bool {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let copied = own.and_then(|own| pidfd_getfd(own, 0, PidfdGetfdFlags::empty()));
    matches!(copied, Ok(_) | Err(Errno::BADF))
}

/// Returns true if they know the reading of other processes' memory, too.
pub(crate) fn can_read_memory() -> bool {
    let (word, mut read) = (*b"word", [0; 4]);
    let count = sys::read_memory(rustix::process::getpid(), word.as_ptr().addr(), &mut read);
    count.is_ok_and(|count| count == word.len()) && read == word
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic and explains itself")]

    use super::*;

    #[test]
    fn a_caller_is_found_by_its_thread() {
        let process = || process_of(rustix::thread::gettid());
        assert_eq!(std::thread::spawn(process).join().unwrap(), Some(rustix::process::getpid()));
        assert!(std::thread::spawn(|| open(rustix::thread::gettid().as_raw_nonzero().get())).join().unwrap().is_ok());
        assert!(open(0).is_err());
        assert!(can_copy_descriptors() && can_read_memory());
    }
}
