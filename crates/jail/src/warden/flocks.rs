//! Calls of `flock` on their way to a sandbox's init, and those that wait for a lock that somebody else has.

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use rustix::io::Errno;

use super::WardenServer;
use super::watches::listener_of;
use crate::caller;
use crate::flock::{FlockArguments, FlockCall};
use crate::held_call::{self, ListenedCall};
use crate::sys::CallAnswer;

/// Calls of one sandbox that are made at once; further ones wait.
const MAX_FLOCKS_AT_ONCE: u32 = 1024;
/// Calls of all sandboxes that are made at once: less than half of a processor's time.
const MAX_FLOCKS_OF_ALL: u32 = 4096;
/// Time after which there may be as many again.
const FLOCKS_PAUSE: Duration = Duration::from_secs(1);
/// Calls of one sandbox that wait, with those whose callers have gone. Further ones fail with ENOLCK.
const MAX_WAITING: usize = 4096;
/// Interval between attempts for a sandbox whose calls wait, after one of its calls was answered. It doubles with each attempt. An attempt
/// is for one of the calls, so however many wait, they take little of the warden's time. It is longer where many sandboxes wait.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Interval between attempts for all sandboxes together, on average.
const PAUSE_OF_ALL: Duration = Duration::from_micros(500);

/// The calls that are not yet answered, by sandbox.
pub(super) struct Flocks {
    /// Calls that init has, the oldest first.
    sent: HashMap<u64, VecDeque<ListenedCall<FlockArguments>>>,
    waiting: HashMap<u64, WaitingFlocks>,
    /// The calls of each sandbox.
    recent: HashMap<u64, RecentCalls>,
    recent_of_all: RecentCalls,
    /// False where descriptors of programs cannot be had: Linux makes their calls then.
    pub(super) can_take: bool,
}

/// The number of calls since a moment.
#[derive(Clone, Copy)]
struct RecentCalls {
    since: Instant,
    count: u32,
}

/// The calls of one sandbox that wait, the next one first.
struct WaitingFlocks {
    calls: VecDeque<ListenedCall<FlockArguments>>,
    due: Instant,
    pause: Duration,
}

impl Default for Flocks {
    fn default() -> Self {
        let (can_take, recent_of_all) = (caller::can_copy_descriptors(), RecentCalls::new(Instant::now()));
        Self { sent: HashMap::new(), waiting: HashMap::new(), recent: HashMap::new(), recent_of_all, can_take }
    }
}

impl RecentCalls {
    fn new(since: Instant) -> Self {
        Self { since, count: 0 }
    }

    /// Counts a call. Returns true if it is one of the first `most` of its second.
    fn admit(&mut self, most: u32, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) > FLOCKS_PAUSE {
            *self = Self::new(now);
        }
        self.count = self.count.saturating_add(1);
        self.count <= most
    }
}

impl Flocks {
    /// Removes the calls of a sandbox that has ended.
    pub(super) fn forget(&mut self, sandbox: u64) {
        self.sent.remove(&sandbox);
        self.waiting.remove(&sandbox);
        self.recent.remove(&sandbox);
    }

    /// Counts a new call. Returns true if it may be made at once.
    fn admits(&mut self, sandbox: u64, now: Instant) -> bool {
        let own = self.recent.entry(sandbox).or_insert_with(|| RecentCalls::new(now));
        own.admit(MAX_FLOCKS_AT_ONCE, now) && self.recent_of_all.admit(MAX_FLOCKS_OF_ALL, now)
    }

    /// Lets a call wait. Returns false if too many do.
    fn add(&mut self, sandbox: u64, call: ListenedCall<FlockArguments>, now: Instant) -> bool {
        let first = || WaitingFlocks { calls: VecDeque::new(), due: now + SHORTEST_PAUSE, pause: SHORTEST_PAUSE };
        let waiting = self.waiting.entry(sandbox).or_insert_with(first);
        let has_room = waiting.calls.len() < MAX_WAITING;
        if has_room {
            waiting.calls.push_back(call);
        }
        has_room
    }

    /// Notes that a call was answered: locks may change hands.
    fn hurry(&mut self, sandbox: u64) {
        if let Some(waiting) = self.waiting.get_mut(&sandbox) {
            waiting.pause = SHORTEST_PAUSE;
        }
    }

    /// Removes the calls to try now, one of each sandbox. Those whose callers have gone are left out.
    fn due(
        &mut self,
        now: Instant,
        is_waiting: impl Fn(u64, ListenedCall<FlockArguments>) -> bool,
    ) -> Vec<(u64, ListenedCall<FlockArguments>)> {
        let mut due = Vec::new();
        let least = PAUSE_OF_ALL.saturating_mul(u32::try_from(self.waiting.len()).unwrap_or(u32::MAX));
        self.waiting.retain(|sandbox, waiting| {
            if waiting.due > now {
                return true;
            }
            waiting.due = now + waiting.pause.max(least);
            waiting.pause = LONGEST_PAUSE.min(waiting.pause * 2);
            let next = std::iter::from_fn(|| waiting.calls.pop_front()).find(|call| is_waiting(*sandbox, *call));
            due.extend(next.map(|call| (*sandbox, call)));
            // Init has had the time to answer the last one.
            next.is_some()
        });
        due
    }
}

impl WardenServer {
    /// Handles a new call.
    pub(super) fn note_flock(&mut self, id: u64, listener: u64, call: FlockCall) {
        let (call, now) = (ListenedCall { listener, call }, Instant::now());
        if !self.flocks.can_take {
            self.answer_call(id, call, CallAnswer::Proceeds);
        } else if self.flocks.admits(id, now) {
            self.request_lock(id, call);
        } else {
            self.let_wait(id, call);
        }
    }

    /// Has a lock taken by the sandbox's init.
    fn request_lock(&mut self, id: u64, call: ListenedCall<FlockArguments>) {
        match self.send_to_init(id, call) {
            Ok(()) => self.flocks.sent.entry(id).or_default().push_back(call),
            // Init has much to do.
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => self.let_wait(id, call),
            Err(error) => self.answer_call(id, call, failure(error)),
        }
    }

    fn send_to_init(
        &self,
        id: u64,
        ListenedCall { listener, call }: ListenedCall<FlockArguments>,
    ) -> Result<(), Errno> {
        call.arguments.lock()?;
        let caller = caller::open(call.caller)?;
        // Only now it is certain that it is the caller.
        let is_caller =
            listener_of(&self.watches, id, listener).is_some_and(|listener| listener.is_waiting(call.number));
        let sandbox = self.sandboxes.get(&id).filter(|_| is_caller).ok_or(Errno::SRCH)?;
        held_call::send(&*sandbox.init_socket, &call.arguments, caller.as_fd())
    }

    /// Handles init's answer to its oldest call.
    pub(super) fn note_answer(&mut self, id: u64, answer: Result<i32, Errno>) {
        let Some(call) = self.flocks.sent.get_mut(&id).and_then(VecDeque::pop_front) else { return };
        match answer {
            Ok(_) => self.answer_call(id, call, CallAnswer::Returns(0)),
            Err(Errno::WOULDBLOCK) if call.call.arguments.waits() => self.let_wait(id, call),
            Err(error) => self.answer_call(id, call, failure(error)),
        }
    }

    fn let_wait(&mut self, id: u64, call: ListenedCall<FlockArguments>) {
        if !self.flocks.add(id, call, Instant::now()) {
            self.answer_call(id, call, CallAnswer::Fails(libc::ENOLCK));
        }
    }

    fn answer_call(
        &mut self,
        id: u64,
        ListenedCall { listener, call }: ListenedCall<FlockArguments>,
        answer: CallAnswer,
    ) {
        if let Some(listener) = listener_of(&self.watches, id, listener) {
            listener.answer(call.number, answer).ignore("its program may be gone");
        }
        self.flocks.hurry(id);
    }

    /// Tries again what waits; returns the time of the next attempt.
    pub(super) fn retry_locks(&mut self, now: Instant) -> Option<Instant> {
        let Self { flocks, watches, .. } = self;
        let is_waiting = |id, ListenedCall { listener, call }: ListenedCall<FlockArguments>| {
            listener_of(watches, id, listener).is_some_and(|listener| listener.is_waiting(call.number))
        };
        for (id, call) in flocks.due(now, is_waiting) {
            self.request_lock(id, call);
        }
        self.flocks.waiting.values().map(|waiting| waiting.due).min()
    }
}

/// The answer to a call that could not be made, or was refused by Linux.
fn failure(error: Errno) -> CallAnswer {
    match error {
        Errno::BADF | Errno::INVAL | Errno::WOULDBLOCK => CallAnswer::Fails(error.raw_os_error()),
        // The host lets nobody have copies of descriptors.
        Errno::PERM | Errno::NOSYS => CallAnswer::Proceeds,
        _ => CallAnswer::Fails(libc::ENOLCK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64) -> ListenedCall<FlockArguments> {
        let arguments = FlockArguments { descriptor: 0, operation: libc::LOCK_EX };
        ListenedCall { listener: 5, call: FlockCall { number, caller: 1, arguments } }
    }

    #[test]
    fn one_call_of_a_sandbox_is_tried_at_a_time_and_ever_more_rarely() {
        let (mut flocks, start) = (Flocks::default(), Instant::now());
        let due = |flocks: &mut Flocks, after| {
            let due = flocks.due(start + Duration::from_millis(after), |_, call| call.call.number != 99);
            due.into_iter().map(|(sandbox, call)| (sandbox, call.call.number)).collect::<Vec<_>>()
        };
        for number in [99, 10, 99, 99, 11] {
            assert!(flocks.add(1, call(number), start));
        }
        assert_eq!(due(&mut flocks, 1), []);
        assert_eq!(due(&mut flocks, 2), [(1, 10)], "the caller of the first has gone");
        assert!(flocks.add(1, call(10), start));
        assert_eq!(due(&mut flocks, 3), []);
        assert_eq!(due(&mut flocks, 4), [(1, 11)]);
        assert_eq!(due(&mut flocks, 7), []);
        assert_eq!(due(&mut flocks, 8), [(1, 10)]);
        flocks.hurry(1);
        assert_eq!(due(&mut flocks, 16), []);
        assert!(flocks.waiting.is_empty(), "nothing is kept of it");
    }

    #[test]
    fn many_sandboxes_that_wait_are_tried_no_more_often_together() {
        let start = Instant::now();
        let tried = |sandboxes: u64| {
            let mut flocks = Flocks::default();
            for sandbox in 0..sandboxes {
                assert!((0..1000).all(|number| flocks.add(sandbox, call(number), start)));
            }
            let tried = (1..=1000).map(|after| {
                // Each is answered at once.
                (0..sandboxes).for_each(|sandbox| flocks.hurry(sandbox));
                flocks.due(start + Duration::from_millis(after), |_, _| true).len()
            });
            tried.sum::<usize>()
        };
        assert!((450..=500).contains(&tried(1)));
        for sandboxes in [10, 100, 1000] {
            let tried = tried(sandboxes);
            assert!((1500..=2000 + sandboxes).contains(&(tried as u64)), "{tried} of {sandboxes}");
        }
    }

    #[test]
    fn calls_are_bounded() {
        let (mut flocks, start) = (Flocks::default(), Instant::now());
        assert!((0..MAX_FLOCKS_AT_ONCE).all(|_| flocks.admits(2, start)));
        assert!(!flocks.admits(2, start + FLOCKS_PAUSE) && flocks.admits(1, start));
        let later = start + FLOCKS_PAUSE + Duration::from_millis(1);
        assert!(flocks.admits(2, later));
        let admitted = (3..1000).filter(|sandbox| flocks.admits(sandbox % 200, later)).count();
        assert_eq!(admitted, 997);
        let admitted = (0..100_000).filter(|sandbox| flocks.admits(sandbox % 200, later)).count();
        assert_eq!(admitted + 998, MAX_FLOCKS_OF_ALL as usize);
        assert!((0..MAX_WAITING).all(|_| flocks.add(2, call(1), start)));
        assert!(!flocks.add(2, call(1), start) && flocks.add(1, call(1), start));
        flocks.forget(2);
        assert!(flocks.add(2, call(1), start));
    }
}
