//! Locks of whole files (`flock`), which a sandbox's init takes in the place of its programs.
//!
//! Linux names the process that took such a lock, and keeps the lock as long as anybody has the open file. A program could have locks taken
//! by children that end, and they would be in nobody's count. Init lives as long as its sandbox, so the lock counter finds them all.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use crate::held_call::{self, CallArguments, HeldCall};

/// A call of `flock` that waits for its answer.
pub(crate) type FlockCall = HeldCall<FlockArguments>;

/// The arguments of `flock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlockArguments {
    /// The file, by the caller's number.
    pub(crate) descriptor: i32,
    pub(crate) operation: i32,
}

impl FlockArguments {
    /// The lock, taken without waiting; an error if the call asks for none, or its descriptor cannot exist.
    pub(crate) fn lock(self) -> Result<FlockOperation, Errno> {
        if self.descriptor < 0 {
            return Err(Errno::BADF);
        }
        match self.operation & !libc::LOCK_NB {
            libc::LOCK_SH => Ok(FlockOperation::NonBlockingLockShared),
            libc::LOCK_EX => Ok(FlockOperation::NonBlockingLockExclusive),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns true if its caller waits while somebody else has the lock.
    pub(crate) fn waits(self) -> bool {
        self.operation & libc::LOCK_NB == 0
    }
}

impl CallArguments for FlockArguments {
    type Bytes = [u8; 8];

    fn to_bytes(&self) -> Self::Bytes {
        let ([a, b, c, d], [e, f, g, h]) = (self.descriptor.to_ne_bytes(), self.operation.to_ne_bytes());
        [a, b, c, d, e, f, g, h]
    }

    fn from_bytes([a, b, c, d, e, f, g, h]: Self::Bytes) -> Self {
        Self { descriptor: i32::from_ne_bytes([a, b, c, d]), operation: i32::from_ne_bytes([e, f, g, h]) }
    }
}

/// Runs in init: takes locks until the warden hangs up.
pub(crate) fn serve(socket: BorrowedFd<'_>) -> ! {
    held_call::serve(socket, |arguments, caller| take(arguments, &caller).map(|()| 0))
}

/// Takes the lock, without waiting for it.
fn take(arguments: FlockArguments, caller: &OwnedFd) -> Result<(), Errno> {
    let lock = arguments.lock()?;
    let file = pidfd_getfd(caller, arguments.descriptor, PidfdGetfdFlags::empty())?;
    rustix::fs::flock(&file, lock)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic and explains itself")]

    use std::os::fd::{AsFd, AsRawFd};

    use super::*;
    use crate::caller;

    #[test]
    fn a_call_arrives_with_its_caller_and_is_made() {
        let (ours, theirs) = crate::message::socket_pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let arguments = FlockArguments { descriptor: file.as_raw_fd(), operation: libc::LOCK_SH | libc::LOCK_NB };
        let caller = caller::open(thread).unwrap();
        held_call::send(&ours, &arguments, caller.as_fd()).unwrap();
        let (received, copy) = held_call::receive(theirs.as_fd()).unwrap();
        assert_eq!(received, arguments);
        assert_eq!(take(received, &copy.unwrap()), Ok(()));
        assert_eq!(take(FlockArguments { descriptor: -1, ..received }, &caller), Err(Errno::BADF));
    }

    #[test]
    fn only_locks_are_taken() {
        let of = |operation| FlockArguments { descriptor: 0, operation };
        assert!(of(libc::LOCK_SH).waits() && !of(libc::LOCK_EX | libc::LOCK_NB).waits());
        assert_eq!(of(libc::LOCK_SH).lock(), Ok(FlockOperation::NonBlockingLockShared));
        assert_eq!(of(libc::LOCK_EX | libc::LOCK_NB).lock(), Ok(FlockOperation::NonBlockingLockExclusive));
        for operation in [0, 3, 32, libc::LOCK_EX | 32, -1] {
            assert_eq!(of(operation).lock(), Err(Errno::INVAL), "{operation}");
        }
    }
}
