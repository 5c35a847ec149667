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
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use crate::sys;

/// The largest error number of Linux.
const MAX_ERROR: i32 = 4095;

/// A call of `flock` that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlockCall {
    /// The call's number at its listener.
    pub(crate) number: u64,
    /// The thread that made it.
    pub(crate) caller: i32,
    pub(crate) arguments: FlockArguments,
}

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

/// Sends a call to init, with the pidfd of its caller. The warden itself has no copy of a program's descriptor: closing it can take as long
/// as a program likes.
pub(crate) fn send(socket: impl AsFd, call: FlockCall, caller: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [caller];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let FlockArguments { descriptor, operation } = call.arguments;
    let [descriptor, operation] = [descriptor, operation].map(i32::to_ne_bytes);
    let bytes = [IoSlice::new(&descriptor), IoSlice::new(&operation)];
    retry_on_intr(|| sendmsg(&socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)).map(drop)
}

/// Receives init's answer to the oldest call that it has not answered. An error where init has gone.
pub(crate) fn receive_answer(socket: impl AsFd) -> Result<Result<(), Errno>, Errno> {
    let mut bytes = [0; 4];
    let (_, length) = retry_on_intr(|| rustix::net::recv(&socket, &mut bytes, RecvFlags::DONTWAIT))?;
    match i32::from_ne_bytes(bytes) {
        0 if length == bytes.len() => Ok(Ok(())),
        error @ 1..=MAX_ERROR if length == bytes.len() => Ok(Err(Errno::from_raw_os_error(error))),
        _ => Err(Errno::PIPE),
    }
}

/// Runs in init: takes locks until the warden hangs up. Init's filter allows few calls, so nothing is allocated here.
pub(crate) fn serve(socket: BorrowedFd<'_>) -> ! {
    loop {
        let Ok((arguments, caller)) = receive(socket) else { sys::exit(1) };
        let error = lock(arguments, caller).err().map_or(0, Errno::raw_os_error);
        let (bytes, mut nothing) = (error.to_ne_bytes(), SendAncillaryBuffer::default());
        let sent = retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&bytes)], &mut nothing, SendFlags::NOSIGNAL));
        if sent.is_err() {
            sys::exit(1);
        }
    }
}

/// Receives the arguments of a call, and the pidfd of its caller.
fn receive(socket: BorrowedFd<'_>) -> Result<(FlockArguments, Option<OwnedFd>), Errno> {
    let (mut descriptor, mut operation) = ([0; 4], [0; 4]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut bytes = [IoSliceMut::new(&mut descriptor), IoSliceMut::new(&mut operation)];
        recvmsg(socket, &mut bytes, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut caller = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            caller = rights.last();
        }
    }
    let [descriptor, operation] = [descriptor, operation].map(i32::from_ne_bytes);
    let arguments = FlockArguments { descriptor, operation };
    if received.bytes == size_of::<FlockArguments>() { Ok((arguments, caller)) } else { Err(Errno::PIPE) }
}

/// Takes the lock, without waiting for it.
fn lock(arguments: FlockArguments, caller: Option<OwnedFd>) -> Result<(), Errno> {
    let lock = arguments.lock()?;
    let file = pidfd_getfd(caller.ok_or(Errno::SRCH)?, arguments.descriptor, PidfdGetfdFlags::empty())?;
    rustix::fs::flock(&file, lock)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic and explains itself")]

    use std::os::fd::AsRawFd;

    use super::*;
    use crate::caller;

    #[test]
    fn a_call_arrives_with_its_caller_and_is_answered() {
        let (ours, theirs) = crate::message::socket_pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let arguments = FlockArguments { descriptor: file.as_raw_fd(), operation: libc::LOCK_SH | libc::LOCK_NB };
        let caller = || caller::open(thread).unwrap();
        let call = FlockCall { number: 7, caller: thread, arguments };
        send(&ours, call, caller().as_fd()).unwrap();
        let (received, copy) = receive(theirs.as_fd()).unwrap();
        assert_eq!(received, arguments);
        assert_eq!(lock(received, copy), Ok(()));
        assert_eq!(lock(FlockArguments { descriptor: -1, ..received }, Some(caller())), Err(Errno::BADF));
        assert_eq!(receive_answer(&ours), Err(Errno::AGAIN));
        drop(theirs);
        assert!(receive_answer(&ours).is_err_and(|error| error != Errno::AGAIN));
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
