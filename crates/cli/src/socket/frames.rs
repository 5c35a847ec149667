//! Frames on a socket: the length in four bytes, then a message as JSON or bytes of a file.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::message::MAX_FILES;

/// Bytes of a client's longest frame: the longest program with every character escaped.
pub(super) const MAX_ASK: usize = 8 << 20;
/// Bytes of a server's longest frame: a value's forms as base64.
pub(super) const MAX_ANSWER: usize = 64 << 20;
/// Bytes that are read at once.
const READ: usize = 64 << 10;

/// Sends a message.
pub(super) async fn send(to: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let frame = frame(message)?;
    to.write_all(&frame).await
}

/// Sends bytes of a file; none end it.
pub(super) async fn send_bytes(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(&length(bytes.len())?).await?;
    to.write_all(bytes).await
}

/// Sends a message with descriptors, which are attached to its length.
pub(super) async fn send_with(
    to: &mut UnixStream,
    message: &impl Serialize,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let frame = frame(message)?;
    let (length, message) = frame.split_at(4);
    let sent = to.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many files for one message"));
        }
        Ok(sendmsg(&*to, &[IoSlice::new(length)], &mut ancillary, SendFlags::NOSIGNAL)?)
    });
    if sent.await? != length.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    to.write_all(message).await
}

/// Returns the first byte without consuming it: zero for a frame, a letter for HTTP.
pub(super) async fn first_byte(from: &UnixStream) -> io::Result<u8> {
    let mut byte = [0];
    let peeked = from.async_io(Interest::READABLE, || Ok(recv(from, &mut byte, RecvFlags::PEEK)?.0)).await?;
    if peeked == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(byte[0]) }
}

/// Receives a message with descriptors.
pub(super) async fn receive_with<T: DeserializeOwned>(from: &mut UnixStream) -> io::Result<(T, Vec<OwnedFd>)> {
    let mut length = [0; 4];
    let received = from.async_io(Interest::READABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&*from, &mut [IoSliceMut::new(&mut length)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        Ok((got.bytes, rights.flatten().collect::<Vec<OwnedFd>>()))
    });
    let (bytes, files) = received.await?;
    if bytes != length.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut frame = vec![0; checked(u32::from_be_bytes(length), MAX_ASK)?];
    from.read_exact(&mut frame).await?;
    Ok((serde_json::from_slice(&frame)?, files))
}

/// Reads frames. Cancel-safe: nothing is lost if a future is dropped.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    from: R,
    longest: usize,
    read: Vec<u8>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(from: R, longest: usize) -> Self {
        Self { from, longest, read: Vec::new() }
    }

    /// The next message; `None` if the other end closed between two messages. Cancel-safe.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some((length, rest)) = self.read.split_first_chunk() {
                let length = checked(u32::from_be_bytes(*length), self.longest)?;
                if let Some(frame) = rest.get(..length) {
                    let message = serde_json::from_slice(frame)?;
                    self.read.drain(..4 + length);
                    return Ok(Some(message));
                }
            }
            self.read.reserve(READ);
            if self.from.read_buf(&mut self.read).await? == 0 {
                return if self.read.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The other half, for writing.
    pub(super) fn stream(&mut self) -> &mut R {
        &mut self.from
    }

    /// The stream below; `None` when more was read than was taken.
    pub(super) fn into_inner(self) -> Option<R> {
        self.read.is_empty().then_some(self.from)
    }
}

/// Reads the length of a frame and its bytes. Blocks.
pub(super) fn read_frame(from: &mut impl io::Read, longest: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut frame = vec![0; checked(u32::from_be_bytes(length), longest)?];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

/// A message as it is sent.
pub(super) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = length(frame.len() - 4)?;
    frame.splice(..4, length);
    Ok(frame)
}

fn length(bytes: usize) -> io::Result<[u8; 4]> {
    let length = u32::try_from(bytes).map_err(|_| too_long(bytes))?;
    Ok(length.to_be_bytes())
}

fn checked(length: u32, longest: usize) -> io::Result<usize> {
    let length = length as usize;
    if length > longest { Err(too_long(length)) } else { Ok(length) }
}

fn too_long(bytes: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a message of {bytes} bytes is too long"))
}
