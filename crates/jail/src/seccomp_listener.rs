//! System calls of a sandbox that its filter passes to the warden: the refused ones, which it answers with EPERM and reports, `flock`, and
//! watches of files.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::flock::{FlockArguments, FlockCall};
use crate::inotify::{WatchArguments, WatchCall};
use crate::message::Profile;
use crate::sys::{self, CallAnswer};
use crate::syscalls;

/// Refusals taken at once of one process tree. A program that repeats refused calls waits in them and does not take the warden's time from
/// other sandboxes.
const MAX_REFUSALS_AT_ONCE: u32 = 256;
/// Calls of `flock` that count as one refusal.
const FLOCKS_PER_REFUSAL: u32 = 4;
/// Pause before the next ones.
const PAUSE: Duration = Duration::from_secs(1);

/// The warden's end of a filter.
#[derive(Debug)]
pub(crate) struct SeccompListener {
    fd: OwnedFd,
    profile: Profile,
    /// True if it gets every call, and decides by the profile's list.
    observes: bool,
    since: Instant,
    /// Calls taken since then, in calls of `flock`.
    taken: u32,
}

/// Result of reading from a listener.
#[derive(Debug)]
pub(crate) enum ListenerResult {
    /// A call, or that its caller has gone.
    Something,
    /// A call that is not yet answered.
    Flock(FlockCall),
    /// Another call that is not yet answered.
    Watch(WatchCall),
    /// Too much of it: look again at that time.
    Rests(Instant),
    /// No process with this filter is left.
    Over,
}

impl SeccompListener {
    /// The listener of a filter of this profile that passes on refused calls, or with `observes` every call.
    pub(crate) fn new(fd: OwnedFd, profile: Profile, observes: bool) -> Self {
        Self { fd, profile, observes, since: Instant::now(), taken: 0 }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Takes a call. Reports its number, then answers it, so that the report comes before any report of its caller. Call it when the
    /// descriptor is readable.
    pub(crate) fn take(&mut self, tell: impl FnOnce(i64)) -> ListenerResult {
        if self.since.elapsed() > PAUSE {
            (self.since, self.taken) = (Instant::now(), 0);
        }
        if self.taken >= MAX_REFUSALS_AT_ONCE * FLOCKS_PER_REFUSAL && !self.observes {
            return ListenerResult::Rests(self.since + PAUSE);
        }
        let call = match sys::receive_call(self.fd.as_fd()) {
            Ok(Some(call)) => call,
            Ok(None) => return ListenerResult::Something,
            Err(_) => return ListenerResult::Over,
        };
        let number = i64::from(call.number);
        let (id, caller) = (call.id, call.pid.cast_signed());
        let [first, second, third, ..] = call.arguments;
        let answer = match number {
            _ if self.observes => match syscalls::permits(self.profile, number, call.arguments) {
                true => CallAnswer::Proceeds,
                false => CallAnswer::Fails(libc::EPERM),
            },
            libc::SYS_flock => {
                self.taken += 1;
                let arguments = FlockArguments { descriptor: first as i32, operation: second as i32 };
                return ListenerResult::Flock(FlockCall { number: id, caller, arguments });
            }
            libc::SYS_inotify_add_watch if self.profile == Profile::Services => {
                let arguments = WatchArguments { descriptor: first as i32, mask: third as u32, path: second };
                return ListenerResult::Watch(WatchCall { number: id, caller, arguments });
            }
            _ => CallAnswer::Fails(libc::EPERM),
        };
        self.taken = self.taken.saturating_add(FLOCKS_PER_REFUSAL);
        tell(number);
        match self.answer(call.id, answer) {
            Ok(()) => ListenerResult::Something,
            Err(_) => ListenerResult::Over,
        }
    }

    /// Answers the call of this number; does nothing if its caller is gone.
    pub(crate) fn answer(&self, number: u64, answer: CallAnswer) -> io::Result<()> {
        sys::answer_call(self.fd.as_fd(), number, answer)
    }

    /// Returns true if the caller of the call of this number still waits for the answer.
    pub(crate) fn is_waiting(&self, number: u64) -> bool {
        sys::is_call_waiting(self.fd.as_fd(), number)
    }
}
