//! System calls that wait for an answer while another process makes them in the place of their callers: by messages between the warden and
//! a process of the sandbox.
//!
//! A message has the arguments of a call and the pidfd of its caller. The warden itself has no copy of a program's descriptor: closing it
//! can take as long as a program likes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::sys;

/// The largest error number of Linux, negative.
const LEAST_ANSWER: i32 = -4095;

/// A system call that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldCall<A> {
    /// The call's number at its listener.
    pub(crate) number: u64,
    /// The thread that made it.
    pub(crate) caller: i32,
    pub(crate) arguments: A,
}

/// A held call, with the number of its listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenedCall<A> {
    pub(crate) listener: u64,
    pub(crate) call: HeldCall<A>,
}

/// The arguments of a system call, as bytes of a message.
pub(crate) trait CallArguments: Sized {
    type Bytes: AsRef<[u8]> + AsMut<[u8]> + Default;

    fn to_bytes(&self) -> Self::Bytes;
    fn from_bytes(bytes: Self::Bytes) -> Self;
}

/// Sends a call, with the pidfd of its caller.
pub(crate) fn send<A: CallArguments>(socket: impl AsFd, arguments: &A, caller: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [caller];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let bytes = arguments.to_bytes();
    let bytes = [IoSlice::new(bytes.as_ref())];
    retry_on_intr(|| sendmsg(&socket, &bytes, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)).map(drop)
}

/// Receives the answer to the oldest call that has none: a number from 0 up, or an error. An error of its own where nobody answers any
/// more.
pub(crate) fn receive_answer(socket: impl AsFd) -> Result<Result<i32, Errno>, Errno> {
    let mut bytes = [0; 4];
    let (_, length) = retry_on_intr(|| rustix::net::recv(&socket, &mut bytes, RecvFlags::DONTWAIT))?;
    match i32::from_ne_bytes(bytes) {
        number @ 0.. if length == bytes.len() => Ok(Ok(number)),
        error @ LEAST_ANSWER..0 if length == bytes.len() => Ok(Err(Errno::from_raw_os_error(-error))),
        _ => Err(Errno::PIPE),
    }
}

/// Makes calls until the warden hangs up, in a process whose filter allows few calls: nothing is allocated here.
pub(crate) fn serve<A: CallArguments>(socket: BorrowedFd<'_>, make: impl Fn(A, OwnedFd) -> Result<i32, Errno>) -> ! {
    loop {
        let Ok((arguments, caller)) = receive(socket) else { sys::exit(1) };
        let answer = caller.ok_or(Errno::SRCH).and_then(|caller| make(arguments, caller));
        let bytes = answer.unwrap_or_else(|error| -error.raw_os_error()).to_ne_bytes();
        let mut nothing = SendAncillaryBuffer::default();
        let sent = retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&bytes)], &mut nothing, SendFlags::NOSIGNAL));
        if sent.is_err() {
            sys::exit(1);
        }
    }
}

/// Receives the arguments of a call, and the pidfd of its caller.
pub(crate) fn receive<A: CallArguments>(socket: BorrowedFd<'_>) -> Result<(A, Option<OwnedFd>), Errno> {
    let mut bytes = A::Bytes::default();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(bytes.as_mut())], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut caller = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            caller = rights.last();
        }
    }
    if received.bytes == bytes.as_ref().len() { Ok((A::from_bytes(bytes), caller)) } else { Err(Errno::PIPE) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic and explains itself")]

    use super::*;

    #[test]
    fn an_answer_is_a_number_or_an_error() {
        let (ours, theirs) = crate::message::socket_pair().unwrap();
        let answer = |bytes: &[u8]| {
            rustix::net::send(&theirs, bytes, SendFlags::empty()).unwrap();
            receive_answer(&ours)
        };
        assert_eq!(answer(&5_i32.to_ne_bytes()), Ok(Ok(5)));
        assert_eq!(answer(&(-13_i32).to_ne_bytes()), Ok(Err(Errno::ACCESS)));
        assert_eq!(answer(&i32::MIN.to_ne_bytes()), Err(Errno::PIPE));
        assert_eq!(answer(b"no"), Err(Errno::PIPE));
        assert_eq!(receive_answer(&ours), Err(Errno::AGAIN));
        drop(theirs);
        assert!(receive_answer(&ours).is_err_and(|error| error != Errno::AGAIN));
    }
}
