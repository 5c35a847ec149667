//! Calls of `inotify_add_watch` on their way to a sandbox's watcher, which is made for the first of them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use rustix::io::Errno;

use super::WardenServer;
use super::watches::{EpollSource, listener_of};
use crate::held_call::{self, ListenedCall};
use crate::inotify::{self, WatchArguments, WatchCall, WatcherPlace};
use crate::lockdown::Identity;
use crate::sys::CallAnswer;
use crate::{Step, StepError, caller, message};

/// Calls that a watcher has and has not answered. Linux refuses more descriptors in flight than a user may have files open, and wakes
/// either side less often for several calls at once.
const MAX_SENT: usize = 16;
/// Calls of one sandbox that wait for their turn, with those whose callers have gone. Further ones fail.
const MAX_WAITING: usize = 4096;
/// Watchers that are made for one sandbox: without a user id of their own, programs can end them.
const MAX_WATCHERS: u32 = 16;
/// Time for a call of one sandbox, on average, and the time that may be used up at once: 8000 calls, then 1000 of a second.
const CALL: Duration = Duration::from_millis(1);
const BURST: Duration = Duration::from_secs(8);
/// The same for all sandboxes: 8000 calls, then 4000 of a second, which take less than half of a processor's time.
const CALL_OF_ALL: Duration = Duration::from_micros(250);
const BURST_OF_ALL: Duration = Duration::from_secs(2);

/// The watchers, by sandbox, and the calls that are not yet answered.
pub(super) struct Watchers {
    sandboxes: HashMap<u64, Watcher>,
    allowance_of_all: Allowance,
    /// False where descriptors and memory of programs cannot be had: Linux makes their calls then.
    pub(super) can_watch: bool,
}

/// The watcher of one sandbox.
#[derive(Default)]
struct Watcher {
    /// `None` until it is made, and after its end.
    socket: Option<Rc<OwnedFd>>,
    made: u32,
    /// Calls that it has, the oldest first.
    sent: VecDeque<ListenedCall<WatchArguments>>,
    waiting: VecDeque<ListenedCall<WatchArguments>>,
    allowance: Allowance,
}

/// The time up to which calls have used what they may use.
#[derive(Clone, Copy, Default)]
struct Allowance {
    used_until: Option<Instant>,
}

impl Allowance {
    /// Counts a call. Returns the time before which there should be no other, if it exceeds the burst.
    fn take(&mut self, call: Duration, burst: Duration, now: Instant) -> Option<Instant> {
        let used_until = self.used_until.map_or(now, |until| until.max(now)) + call;
        self.used_until = Some(used_until);
        let excess = used_until.saturating_duration_since(now + burst);
        (!excess.is_zero()).then(|| now + excess)
    }
}

impl Default for Watchers {
    fn default() -> Self {
        let can_watch = caller::can_copy_descriptors() && caller::can_read_memory();
        Self { sandboxes: HashMap::new(), allowance_of_all: Allowance::default(), can_watch }
    }
}

impl Watchers {
    /// Removes the calls of a sandbox that has ended.
    pub(super) fn forget(&mut self, sandbox: u64) {
        self.sandboxes.remove(&sandbox);
    }

    /// Counts a call. Returns the time before which its listener should take no other.
    fn count(&mut self, sandbox: u64, now: Instant) -> Option<Instant> {
        let own = self.sandboxes.entry(sandbox).or_default().allowance.take(CALL, BURST, now);
        own.max(self.allowance_of_all.take(CALL_OF_ALL, BURST_OF_ALL, now))
    }

    /// Lets a call wait for its turn. Returns false if too many do.
    fn add(&mut self, sandbox: u64, call: ListenedCall<WatchArguments>) -> bool {
        let waiting = &mut self.sandboxes.entry(sandbox).or_default().waiting;
        let has_room = waiting.len() < MAX_WAITING;
        if has_room {
            waiting.push_back(call);
        }
        has_room
    }

    /// Removes the call whose turn it is, if the watcher takes one.
    fn next(&mut self, sandbox: u64) -> Option<ListenedCall<WatchArguments>> {
        let watcher = self.sandboxes.get_mut(&sandbox).filter(|watcher| watcher.sent.len() < MAX_SENT)?;
        watcher.waiting.pop_front()
    }
}

impl WardenServer {
    /// Handles a new call.
    pub(super) fn note_watch(&mut self, id: u64, listener: u64, call: WatchCall) {
        let call = ListenedCall { listener, call };
        if !self.watchers.can_watch {
            return self.answer_watching(id, call, CallAnswer::Proceeds);
        }
        if let Some(until) = self.watchers.count(id, Instant::now()) {
            self.pause_listener(listener, until);
        }
        if self.watchers.add(id, call) {
            self.send_to_watcher(id);
        } else {
            self.answer_watching(id, call, CallAnswer::Fails(libc::ENOMEM));
        }
    }

    /// Sends the watcher as many calls as it takes.
    fn send_to_watcher(&mut self, id: u64) {
        while let Some(call) = self.watchers.next(id) {
            match self.try_to_watch(id, call) {
                Ok(()) => {
                    if let Some(watcher) = self.watchers.sandboxes.get_mut(&id) {
                        watcher.sent.push_back(call);
                    }
                }
                Err(_) => self.answer_watching(id, call, CallAnswer::Fails(libc::ENOMEM)),
            }
        }
    }

    fn try_to_watch(
        &mut self,
        id: u64,
        ListenedCall { listener, call }: ListenedCall<WatchArguments>,
    ) -> Result<(), StepError> {
        let caller = caller::open(call.caller).step("open the caller")?;
        // Only now it is certain that it is the caller.
        let is_caller =
            listener_of(&self.watches, id, listener).is_some_and(|listener| listener.is_waiting(call.number));
        if !is_caller {
            return Err(Errno::SRCH).step("open the caller");
        }
        held_call::send(&*self.watcher_of(id)?, &call.arguments, caller.as_fd()).step("send to the watcher")
    }

    /// The socket of a sandbox's watcher, which is made if there is none.
    fn watcher_of(&mut self, id: u64) -> Result<Rc<OwnedFd>, StepError> {
        let watcher = self.watchers.sandboxes.entry(id).or_default();
        if let Some(socket) = &watcher.socket {
            return Ok(Rc::clone(socket));
        }
        watcher.made = watcher.made.saturating_add(1);
        if watcher.made > MAX_WATCHERS {
            return Err(super::invalid("its watchers have ended"));
        }
        let sandbox = self.living(id)?;
        let (socket, theirs) = message::socket_pair().step("make the watcher's socket")?;
        let joins = sandbox.cgroup.open_joins().step("open the control group")?;
        let user = match sandbox.identity {
            Identity::Own(user) => Some(user),
            Identity::Only => None,
        };
        let place = WatcherPlace { init: sandbox.init.pidfd.as_fd(), user, joins: &joins };
        inotify::start(&place, &theirs)?;
        let socket = Rc::new(socket);
        self.watch(id, EpollSource::Watcher(Rc::clone(&socket)));
        if let Some(watcher) = self.watchers.sandboxes.get_mut(&id) {
            watcher.socket = Some(Rc::clone(&socket));
        }
        Ok(socket)
    }

    /// Handles the watcher's answer to its oldest call.
    pub(super) fn note_watched(&mut self, id: u64, answer: Result<i32, Errno>) {
        let watcher = self.watchers.sandboxes.get_mut(&id);
        let Some(call) = watcher.and_then(|watcher| watcher.sent.pop_front()) else { return };
        let answer = match answer {
            Ok(number) => CallAnswer::Returns(number),
            // Its caller's memory or files are none that a watcher gets at, or not its own.
            Err(Errno::PERM | Errno::SRCH) => CallAnswer::Fails(libc::EACCES),
            Err(error) => CallAnswer::Fails(error.raw_os_error()),
        };
        self.answer_watching(id, call, answer);
        self.send_to_watcher(id);
    }

    /// Lets the calls of a watcher that has ended fail, and has another one made for those that wait.
    pub(super) fn note_end_of_watcher(&mut self, id: u64) {
        let Some(watcher) = self.watchers.sandboxes.get_mut(&id) else { return };
        watcher.socket = None;
        for call in std::mem::take(&mut watcher.sent) {
            self.answer_watching(id, call, CallAnswer::Fails(libc::ENOMEM));
        }
        self.send_to_watcher(id);
    }

    fn answer_watching(
        &self,
        id: u64,
        ListenedCall { listener, call }: ListenedCall<WatchArguments>,
        answer: CallAnswer,
    ) {
        if let Some(listener) = listener_of(&self.watches, id, listener) {
            listener.answer(call.number, answer).ignore("its program may be gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64) -> ListenedCall<WatchArguments> {
        let arguments = WatchArguments { descriptor: 0, mask: 2, path: 0 };
        ListenedCall { listener: 5, call: WatchCall { number, caller: 1, arguments } }
    }

    #[test]
    fn many_calls_at_once_are_taken_and_then_fewer() {
        let (mut watchers, start) = (Watchers::default(), Instant::now());
        let taken = |watchers: &mut Watchers, sandboxes: u64, after| {
            let now = start + Duration::from_secs(after);
            (0..30_000).filter(|number| watchers.count(number % sandboxes, now).is_none()).count()
        };
        assert_eq!(taken(&mut watchers, 1, 0), 8000);
        assert_eq!(watchers.count(0, start), Some(start + CALL * 22_001));
        assert_eq!(taken(&mut watchers, 1, 30), 7999, "what was too much is made up for");
        assert_eq!(taken(&mut watchers, 1, 100), 8000);
        assert_eq!(taken(&mut watchers, 100, 200), 8000, "of all together");
    }

    #[test]
    fn calls_that_wait_are_bounded_and_in_order() {
        let mut watchers = Watchers::default();
        assert!((0..MAX_WAITING as u64).all(|number| watchers.add(2, call(number))));
        assert!(!watchers.add(2, call(1)) && watchers.add(1, call(1)));
        for number in 0..MAX_SENT as u64 {
            let next = watchers.next(2).expect("it is its turn");
            assert_eq!(next.call.number, number);
            watchers.sandboxes.get_mut(&2).expect("it is there").sent.push_back(next);
        }
        assert!(watchers.next(2).is_none(), "the watcher has enough to do");
        watchers.forget(2);
        assert!(watchers.next(2).is_none() && watchers.add(2, call(1)));
    }
}
