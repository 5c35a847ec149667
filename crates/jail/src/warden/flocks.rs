//! Calls of `flock` on their way to a sandbox's init, and those that wait for a lock that somebody else has.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::WardenServer;
use super::watches::{EpollSource, EpollWatch};
use crate::flock::{self, FlockCall, FlockMessage};
use crate::seccomp_listener::SeccompListener;
use crate::sys::CallAnswer;

/// Calls of one sandbox that are made at once; further ones wait.
const MAX_FLOCKS_AT_ONCE: u32 = 1024;
/// Time after which there may be as many again.
const FLOCKS_PAUSE: Duration = Duration::from_secs(1);
/// Interval between attempts for a sandbox whose calls wait, after one of its locks was taken. It doubles with each attempt. An attempt is for
/// one of the calls, so however many wait, they take little of the warden's time.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);

/// The calls that wait.
pub(super) struct Flocks {
    waiting: HashMap<u64, WaitingFlocks>,
    /// The calls of each sandbox since a moment.
    recent: HashMap<u64, (Instant, u32)>,
    /// False where descriptors of programs cannot be had: Linux makes their calls then.
    can_take: bool,
}

/// The calls of one sandbox that wait, the next one first, with their listeners.
struct WaitingFlocks {
    calls: VecDeque<(u64, FlockCall)>,
    due: Instant,
    pause: Duration,
}

impl Default for Flocks {
    fn default() -> Self {
        Self { waiting: HashMap::new(), recent: HashMap::new(), can_take: flock::can_copy_descriptors() }
    }
}

impl Flocks {
    /// Removes the calls of a sandbox that has ended.
    pub(super) fn forget(&mut self, sandbox: u64) {
        self.waiting.remove(&sandbox);
        self.recent.remove(&sandbox);
    }

    /// Counts a new call. Returns true if it may be made at once.
    fn admits(&mut self, sandbox: u64, now: Instant) -> bool {
        let (since, count) = self.recent.entry(sandbox).or_insert((now, 0));
        if now.saturating_duration_since(*since) > FLOCKS_PAUSE {
            (*since, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        *count <= MAX_FLOCKS_AT_ONCE
    }

    fn add(&mut self, sandbox: u64, listener: u64, call: FlockCall, now: Instant) {
        let first = || WaitingFlocks { calls: VecDeque::new(), due: now + SHORTEST_PAUSE, pause: SHORTEST_PAUSE };
        self.waiting.entry(sandbox).or_insert_with(first).calls.push_back((listener, call));
    }

    /// Notes that a lock was taken: more of them may change hands.
    fn hurry(&mut self, sandbox: u64) {
        if let Some(waiting) = self.waiting.get_mut(&sandbox) {
            waiting.pause = SHORTEST_PAUSE;
        }
    }

    /// Removes the calls to try now, with their sandboxes and listeners.
    fn due(&mut self, now: Instant) -> Vec<(u64, u64, FlockCall)> {
        let mut due = Vec::new();
        self.waiting.retain(|sandbox, waiting| {
            if waiting.due > now {
                return true;
            }
            waiting.due = now + waiting.pause;
            waiting.pause = LONGEST_PAUSE.min(waiting.pause * 2);
            let next = waiting.calls.pop_front();
            due.extend(next.map(|(listener, call)| (*sandbox, listener, call)));
            // Init has had the time to answer the last one.
            next.is_some()
        });
        due
    }
}

impl WardenServer {
    /// Handles a new call.
    pub(super) fn note_flock(&mut self, id: u64, token: u64, call: FlockCall) {
        let now = Instant::now();
        if self.flocks.admits(id, now) {
            self.request_lock(id, token, call);
        } else {
            self.flocks.add(id, token, call, now);
        }
    }

    /// Has a lock taken by the sandbox's init.
    fn request_lock(&mut self, id: u64, token: u64, call: FlockCall) {
        let Some(listener) = self.listener(id, token) else { return };
        let answer = match self.send_to_init(id, token, listener, call) {
            Ok(()) => return,
            // Init has much to do.
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => return self.flocks.add(id, token, call, Instant::now()),
            Err(error @ (Errno::BADF | Errno::INVAL)) => CallAnswer::Fails(error.raw_os_error()),
            Err(Errno::NOSYS) => CallAnswer::Proceeds,
            Err(_) => CallAnswer::Fails(libc::ENOLCK),
        };
        listener.answer(call.number, answer).ignore("its program may be gone");
    }

    fn send_to_init(&self, id: u64, token: u64, listener: &SeccompListener, call: FlockCall) -> Result<(), Errno> {
        if !self.flocks.can_take {
            return Err(Errno::NOSYS);
        }
        call.lock()?;
        let file = call.file()?;
        // Only now it is certain that the file is the caller's.
        match self.sandboxes.get(&id).filter(|_| listener.is_waiting(call.number)) {
            Some(sandbox) => FlockMessage { listener: token, call, error: 0 }.send(
                &*sandbox.init_socket,
                Some(file.as_fd()),
                SendFlags::DONTWAIT,
            ),
            None => Ok(()),
        }
    }

    /// Handles init's answer.
    pub(super) fn note_lock(&mut self, id: u64, message: FlockMessage) {
        let FlockMessage { listener: token, call, error } = message;
        if error == libc::EWOULDBLOCK && call.waits() {
            return self.flocks.add(id, token, call, Instant::now());
        }
        let answer = if error == 0 { CallAnswer::Done } else { CallAnswer::Fails(error) };
        if let Some(listener) = self.listener(id, token) {
            listener.answer(call.number, answer).ignore("its program may be gone");
        }
        if error == 0 {
            self.flocks.hurry(id);
        }
    }

    /// Tries again what waits; returns the time of the next attempt.
    pub(super) fn retry_locks(&mut self, now: Instant) -> Option<Instant> {
        for (id, token, call) in self.flocks.due(now) {
            self.request_lock(id, token, call);
        }
        self.flocks.waiting.values().map(|waiting| waiting.due).min()
    }

    /// The listener of this number, if it is one of the sandbox's.
    fn listener(&self, id: u64, token: u64) -> Option<&SeccompListener> {
        match self.watches.get(&token) {
            Some(EpollWatch { sandbox, what: EpollSource::Refusals { listener, .. } }) if *sandbox == id => {
                Some(listener)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_of_a_sandbox_is_tried_at_a_time_and_ever_more_rarely() {
        let mut flocks = Flocks::default();
        let start = Instant::now();
        let call = |number| FlockCall { number, caller: 1, descriptor: 0, operation: libc::LOCK_EX };
        let due = |flocks: &mut Flocks, after| {
            let due = flocks.due(start + Duration::from_millis(after));
            due.into_iter().map(|(sandbox, _, call)| (sandbox, call.number)).collect::<Vec<_>>()
        };
        flocks.add(1, 5, call(10), start);
        flocks.add(1, 5, call(11), start);
        assert_eq!(due(&mut flocks, 1), []);
        assert_eq!(due(&mut flocks, 2), [(1, 10)]);
        flocks.add(1, 5, call(10), start);
        assert_eq!(due(&mut flocks, 3), []);
        assert_eq!(due(&mut flocks, 4), [(1, 11)]);
        assert_eq!(due(&mut flocks, 7), []);
        assert_eq!(due(&mut flocks, 8), [(1, 10)]);
        flocks.hurry(1);
        assert_eq!(due(&mut flocks, 16), []);
        assert!(flocks.waiting.is_empty(), "nothing is kept of it");
        flocks.add(2, 5, call(12), start);
        assert!((0..MAX_FLOCKS_AT_ONCE).all(|_| flocks.admits(2, start)));
        assert!(!flocks.admits(2, start + FLOCKS_PAUSE) && flocks.admits(1, start));
        assert!(flocks.admits(2, start + FLOCKS_PAUSE + Duration::from_millis(1)));
        flocks.forget(2);
        assert_eq!(due(&mut flocks, 100), []);
    }
}
