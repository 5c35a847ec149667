//! Locks of whole files (`flock`), which a sandbox's init takes in the place of its programs.
//!
//! Linux names the process that took such a lock, and keeps the lock as long as anybody has the open file. A program could have locks taken
//! by children that end, and they would be in nobody's count. Init lives as long as its sandbox, so the lock counter finds them all.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FlockOperation;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::sys;

/// A call of `flock` that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlockCall {
    /// The call's number at its listener.
    pub(crate) number: u64,
    /// The thread that made it.
    pub(crate) caller: i32,
    /// The file, by the caller's number.
    pub(crate) descriptor: i32,
    /// The second argument.
    pub(crate) operation: i32,
}

impl FlockCall {
    /// The lock, taken without waiting; an error if the call asks for none.
    pub(crate) fn lock(self) -> Result<FlockOperation, Errno> {
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

    /// A copy of the caller's descriptor. Only if the call still waits afterwards, it was the caller's.
    pub(crate) fn file(self) -> Result<OwnedFd, Errno> {
        let process = process_of(self.caller).ok_or(Errno::SRCH)?;
        let pidfd = pidfd_open(process, PidfdFlags::empty())?;
        pidfd_getfd(pidfd, self.descriptor, PidfdGetfdFlags::empty())
    }
}

/// The process of a thread.
fn process_of(thread: i32) -> Option<Pid> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    process.and_then(Pid::from_raw)
}

/// Returns true if copies of other processes' descriptors can be had here.
pub(crate) fn can_copy_descriptors() -> bool {
    let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let copied = own.and_then(|own| pidfd_getfd(own, 0, PidfdGetfdFlags::empty()));
    matches!(copied, Ok(_) | Err(Errno::BADF))
}

/// A message to init, with the file, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlockMessage {
    /// The warden's number for the listener.
    pub(crate) listener: u64,
    pub(crate) call: FlockCall,
    /// The answer's error number; 0 for none.
    pub(crate) error: i32,
}

/// Length of a message, bytes.
const LENGTH: usize = 48;

impl FlockMessage {
    pub(crate) fn send(self, socket: impl AsFd, file: Option<BorrowedFd<'_>>, flags: SendFlags) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = file.as_slice();
        if !files.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(files));
        }
        let (bytes, flags) = (self.to_bytes(), SendFlags::NOSIGNAL | flags);
        retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags)).map(drop)
    }

    /// Receives one, and the file if there is one. An error where the other end has gone.
    pub(crate) fn receive(socket: impl AsFd, flags: RecvFlags) -> Result<(Self, Option<OwnedFd>), Errno> {
        let mut bytes = [0; LENGTH];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let flags = flags | RecvFlags::CMSG_CLOEXEC;
            recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)
        })?;
        let mut file = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                file = rights.last();
            }
        }
        if received.bytes == LENGTH { Ok((Self::of(&bytes), file)) } else { Err(Errno::PIPE) }
    }

    fn to_bytes(self) -> [u8; LENGTH] {
        let Self { listener, call: FlockCall { number, caller, descriptor, operation }, error } = self;
        let small = |number: i32| u64::from(number.cast_unsigned());
        let words = [listener, number, small(caller), small(descriptor), small(operation), small(error)];
        let mut bytes = [0; LENGTH];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8; LENGTH]) -> Self {
        let mut words = [0; 6];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let [listener, number, small @ ..] = words;
        let [caller, descriptor, operation, error] = small.map(|word| word as i32);
        Self { listener, call: FlockCall { number, caller, descriptor, operation }, error }
    }
}

/// Runs in init: takes locks until the warden hangs up. Init's filter allows few calls, so nothing is allocated here.
pub(crate) fn serve(socket: BorrowedFd<'_>) -> ! {
    loop {
        let Ok((mut message, file)) = FlockMessage::receive(socket, RecvFlags::empty()) else { sys::exit(1) };
        let locked = match (file, message.call.lock()) {
            (Some(file), Ok(lock)) => rustix::fs::flock(&file, lock),
            (None, _) | (_, Err(_)) => Err(Errno::INVAL),
        };
        message.error = locked.err().map_or(0, Errno::raw_os_error);
        if message.send(socket, None, SendFlags::empty()).is_err() {
            sys::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic and explains itself")]

    use super::*;

    #[test]
    fn a_message_arrives_with_its_file() {
        let (ours, theirs) = crate::message::socket_pair().unwrap();
        let call = FlockCall { number: u64::MAX - 1, caller: 7, descriptor: -1, operation: libc::LOCK_EX };
        let message = FlockMessage { listener: 1 << 40, call, error: libc::EWOULDBLOCK };
        let file = std::fs::File::open("/dev/null").unwrap();
        message.send(&ours, Some(file.as_fd()), SendFlags::DONTWAIT).unwrap();
        let (received, copy) = FlockMessage::receive(&theirs, RecvFlags::DONTWAIT).unwrap();
        assert_eq!((received, copy.is_some()), (message, true));
        assert_eq!(FlockMessage::receive(&theirs, RecvFlags::DONTWAIT).unwrap_err(), Errno::AGAIN);
        drop(ours);
        assert!(FlockMessage::receive(&theirs, RecvFlags::DONTWAIT).is_err());
    }

    #[test]
    fn only_locks_are_taken() {
        let call = |operation| FlockCall { number: 1, caller: 1, descriptor: 0, operation };
        assert!(call(libc::LOCK_SH).waits() && !call(libc::LOCK_EX | libc::LOCK_NB).waits());
        assert_eq!(call(libc::LOCK_SH).lock(), Ok(FlockOperation::NonBlockingLockShared));
        assert_eq!(call(libc::LOCK_EX | libc::LOCK_NB).lock(), Ok(FlockOperation::NonBlockingLockExclusive));
        for operation in [0, 3, 32, libc::LOCK_EX | 32, -1] {
            assert_eq!(call(operation).lock(), Err(Errno::INVAL), "{operation}");
        }
    }
}
