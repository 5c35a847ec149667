//! The host's end of a terminal.

use std::io;
use std::os::fd::OwnedFd;

use rustix::termios::{Winsize, tcsetwinsize};

use crate::guest_pipe::{GuestReader, GuestWriter, Touched};
use crate::guest_threads;
use crate::process::PtySize;

/// The controlling side of a terminal.
pub(super) struct PtyMaster {
    /// Text that is shown. It ends when no program has the terminal open.
    pub(super) screen: GuestReader,
    /// Text that is typed.
    pub(super) keyboard: GuestWriter,
    /// Its window.
    pub(super) window: Window,
}

impl PtyMaster {
    pub(super) fn new(end: OwnedFd) -> io::Result<Self> {
        let screen = GuestReader::new(end.try_clone()?, Touched::set())?;
        let keyboard = GuestWriter::new(end.try_clone()?, Touched::set())?;
        Ok(Self { screen, keyboard, window: Window(Some(end)) })
    }
}

/// The window of a terminal.
pub(super) struct Window(Option<OwnedFd>);

impl Window {
    /// Changes its size, and notifies the programs.
    pub(super) fn resize(&self, size: PtySize) -> io::Result<()> {
        let Some(end) = &self.0 else { return Ok(()) };
        let PtySize { columns: ws_col, rows: ws_row } = size;
        Ok(tcsetwinsize(end, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // The last close hangs up, for which a program can hold the terminal.
        let end = self.0.take();
        guest_threads::spawn(move || drop(end));
    }
}
