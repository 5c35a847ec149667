//! Refused system calls of a sandbox: the filter passes each to the warden, which answers EPERM and reports its number.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::message::Profile;
use crate::{sys, syscalls};

/// Refusals answered at once for one process tree. A program that repeats refused calls waits in them and does not take the warden's time
/// from other sandboxes.
const MAX_REFUSALS_AT_ONCE: u32 = 256;
/// Pause before the next ones.
const REFUSALS_PAUSE: Duration = Duration::from_secs(1);

/// The warden's end of a filter.
#[derive(Debug)]
pub(crate) struct SeccompListener {
    fd: OwnedFd,
    /// The list by which a listener that observes everything decides.
    observes: Option<Profile>,
    since: Instant,
    answered: u32,
}

/// Result of reading from a listener.
#[derive(Debug)]
pub(crate) enum ListenerResult {
    /// A call, or that its caller has gone.
    Something,
    /// Too much of it: look again at that time.
    Rests(Instant),
    /// No process with this filter is left.
    Over,
}

impl SeccompListener {
    /// The listener of a filter that passes on refused calls, or with `observes` every call, which is then decided by this profile's list.
    pub(crate) fn new(fd: OwnedFd, observes: Option<Profile>) -> Self {
        Self { fd, observes, since: Instant::now(), answered: 0 }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Reports the number of a call, then answers it, so that the report comes before any report of its caller. Call it when the descriptor
    /// is readable.
    pub(crate) fn answer(&mut self, tell: impl FnOnce(i64)) -> ListenerResult {
        if self.since.elapsed() > REFUSALS_PAUSE {
            (self.since, self.answered) = (Instant::now(), 0);
        }
        if self.answered == MAX_REFUSALS_AT_ONCE && self.observes.is_none() {
            return ListenerResult::Rests(self.since + REFUSALS_PAUSE);
        }
        self.answered = self.answered.saturating_add(1);
        let permits = |number, arguments| {
            tell(number);
            self.observes.is_some_and(|profile| syscalls::permits(profile, number, arguments))
        };
        match sys::answer_call(self.fd.as_fd(), permits) {
            Ok(()) => ListenerResult::Something,
            Err(_) => ListenerResult::Over,
        }
    }
}
