//! The host's end of a terminal.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;

use crate::process::PtySize;

/// The controlling side of a terminal.
pub(super) struct PtyMaster {
    /// Text that is shown.
    pub(super) screen: PtyOutput,
    /// Text that is typed.
    pub(super) keyboard: pipe::Sender,
    /// Its window.
    pub(super) window: Window,
}

impl PtyMaster {
    pub(super) fn new(end: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&end, fcntl_getfl(&end)? | OFlags::NONBLOCK)?;
        // Tokio needs only readiness of a descriptor that it takes for a pipe.
        let screen = PtyOutput(pipe::Receiver::from_owned_fd_unchecked(end.try_clone()?)?);
        let keyboard = pipe::Sender::from_owned_fd_unchecked(end.try_clone()?)?;
        Ok(Self { screen, keyboard, window: Window(end) })
    }
}

/// The window of a terminal.
pub(super) struct Window(OwnedFd);

impl Window {
    /// Changes its size, and notifies the programs.
    pub(super) fn resize(&self, size: PtySize) -> io::Result<()> {
        let PtySize { columns: ws_col, rows: ws_row } = size;
        Ok(tcsetwinsize(&self.0, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?)
    }
}

/// The output of a terminal. It ends when no program has the terminal open.
pub(super) struct PtyOutput(pipe::Receiver);

impl AsyncRead for PtyOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(context, buffer) {
            // Linux reports the end this way.
            Poll::Ready(Err(error)) if Errno::from_io_error(&error) == Some(Errno::IO) => Poll::Ready(Ok(())),
            other => other,
        }
    }
}
