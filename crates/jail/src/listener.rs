//! System calls that a sandbox was refused: the filter leaves each to us, we answer EPERM and tell its number.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::sys;

/// How many refusals one process tree gets at once. A program that makes refused calls in a loop waits in them; the warden, whose time
/// belongs to all sandboxes, does not work for it.
const BURST: u32 = 256;
/// How long it then waits for the next ones.
const REST: Duration = Duration::from_secs(1);

/// The warden's end of a filter.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    since: Instant,
    answered: u32,
}

/// What came of looking at a listener.
#[derive(Debug)]
pub(crate) enum Heard {
    /// A call was refused; its number.
    Refused(i64),
    /// Nothing worth telling.
    Nothing,
    /// Too much of it: look again at that time.
    Rests(Instant),
    /// Nobody is left who could make a call.
    Over,
}

impl Listener {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, since: Instant::now(), answered: 0 }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Answers one call; to be asked when the descriptor is readable.
    pub(crate) fn answer(&mut self) -> Heard {
        if self.since.elapsed() > REST {
            (self.since, self.answered) = (Instant::now(), 0);
        }
        if self.answered == BURST {
            return Heard::Rests(self.since + REST);
        }
        self.answered += 1;
        match sys::refuse_call(self.fd.as_fd()) {
            Ok(Some(number)) => Heard::Refused(number),
            Ok(None) => Heard::Nothing,
            Err(_) => Heard::Over,
        }
    }
}
