//! Timers of the warden: processor shares, counts of locks and sockets, the namespaces of the next sandbox.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use rustix::event::Timespec;

use super::WardenServer;
use crate::cgroup::CpuShare;
use crate::idmap::IdMap;
use crate::namespaces::SpareNamespaces;
use crate::sandbox::JailSandbox;
use crate::{StepError, pid_namespace};

/// Interval between counts of locks and sockets, which no control group counts. In this time a processor can allocate some 50 MB of locks
/// or connections.
const OBJECTS_INTERVAL: Duration = Duration::from_millis(250);
/// Delay between a sandbox and the namespaces of the next one, so that the sandbox's first program has the processors.
const SPARE_DELAY: Duration = Duration::from_millis(10);
/// Times after the start of a cell at which its checkpoint may have sent its greeting.
const LATE_CHECKPOINTS: [Duration; 3] =
    [Duration::from_millis(5), Duration::from_millis(20), Duration::from_millis(80)];
/// Delay after namespaces could not be made ahead.
const SPARE_PAUSE: Duration = Duration::from_secs(1);

/// A checkpoint that a cell may have requested and that has not sent its greeting.
pub(super) struct LateCheckpoint {
    id: u64,
    since: Instant,
    looks: usize,
}

impl LateCheckpoint {
    fn due(&self) -> Option<Instant> {
        LATE_CHECKPOINTS.get(self.looks).map(|after| self.since + *after)
    }
}

impl WardenServer {
    /// Runs the timers that are due; returns the time to the next one.
    pub(super) fn run_timers(&mut self) -> Option<Timespec> {
        let now = Instant::now();
        let next = [
            self.resume_listeners(now),
            self.lower_shares(now),
            self.rank_late_checkpoints(now),
            self.enforce_object_limits(now),
            self.retry_locks(now),
            self.continue_freezing(now),
        ];
        let spare_due = self.spare.is_none().then_some(self.spare_due);
        let wait = match next.into_iter().flatten().chain(spare_due).min()? {
            next if next <= now => Duration::ZERO,
            next => next - now + Duration::from_millis(1),
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() })
    }

    /// Makes the namespaces of the next sandbox ahead.
    pub(super) fn make_spare(&mut self) {
        if self.spare.is_none() && self.spare_due <= Instant::now() {
            match self.new_namespaces() {
                Ok(spare) => self.spare = Some(spare),
                // The next request tries again, and gets the error.
                Err(_) => self.spare_due = Instant::now() + SPARE_PAUSE,
            }
        }
    }

    fn new_namespaces(&self) -> Result<SpareNamespaces, StepError> {
        SpareNamespaces::make(self.zygote.pidfd.as_fd(), self.map != IdMap::Single)
    }

    /// The spare namespaces, if their init lives, or new ones.
    pub(super) fn take_spare(&mut self) -> Result<SpareNamespaces, StepError> {
        self.spare_due = Instant::now() + SPARE_DELAY;
        match self.spare.take().filter(|spare| spare.init().is_some()) {
            Some(spare) => Ok(spare),
            None => self.new_namespaces(),
        }
    }

    /// Lowers the shares of sandboxes whose boost or foreground time is over; returns the time of the next change.
    fn lower_shares(&mut self, now: Instant) -> Option<Instant> {
        while let Some((id, share)) = self.foreground.next_change(now) {
            let Some(sandbox) = self.sandboxes.get_mut(&id) else { continue };
            if share == CpuShare::Normal {
                sandbox.boost_usage.note(Duration::from_micros(sandbox.cgroup.cpu_time()), now);
            }
            sandbox.cgroup.set_share(share).ignore("the old share stays");
        }
        self.foreground.next_due()
    }

    /// Raises the share of a sandbox in which a client begins to wait for work.
    pub(super) fn put_into_foreground(&mut self, id: u64) {
        let Some(sandbox) = self.sandboxes.get(&id) else { return };
        let now = Instant::now();
        if let Some(share) = self.foreground.begin(id, now, sandbox.boost_usage.is_recent(now)) {
            sandbox.cgroup.set_share(share).ignore("the old share stays");
        }
    }

    /// Sets the OOM score of the checkpoint in time. Returns true if there is a new checkpoint.
    pub(super) fn rank_checkpoint(&mut self, id: u64) -> bool {
        self.sandboxes.get_mut(&id).is_some_and(JailSandbox::rank_checkpoint)
    }

    /// Does the same at the start of a cell, whose checkpoint may only be made now.
    pub(super) fn rank_checkpoint_of_cell(&mut self, id: u64) {
        self.late_checkpoints.retain(|late| late.id != id);
        if !self.rank_checkpoint(id) {
            self.late_checkpoints.push(LateCheckpoint { id, since: Instant::now(), looks: 0 });
        }
    }

    /// Looks for checkpoints of recently started cells; returns the time of the next look.
    fn rank_late_checkpoints(&mut self, now: Instant) -> Option<Instant> {
        let mut late = std::mem::take(&mut self.late_checkpoints);
        late.retain_mut(|late| {
            while late.due().is_some_and(|due| due <= now) {
                late.looks += 1;
                if self.rank_checkpoint(late.id) {
                    return false;
                }
            }
            late.due().is_some()
        });
        self.late_checkpoints = late;
        self.late_checkpoints.iter().filter_map(LateCheckpoint::due).min()
    }

    /// Ends sandboxes that exceed the limit of sockets, and has locks counted: no control group counts either. Returns the time of the next
    /// count.
    fn enforce_object_limits(&mut self, now: Instant) -> Option<Instant> {
        if self.sandboxes.is_empty() {
            return None;
        }
        if self.objects_due <= now {
            self.objects_due = now + OBJECTS_INTERVAL;
            self.locks.ask(self.sandboxes.len());
            for sandbox in self.sandboxes.values_mut() {
                sandbox.rank_checkpoint();
                if sandbox.init.pid.is_some() && !sandbox.init_ended && sandbox.has_too_many_sockets() {
                    sandbox.kill();
                }
            }
        }
        Some(self.objects_due)
    }

    /// Ends sandboxes that exceed the limit of locks, as the answer of the lock counter tells.
    pub(super) fn enforce_lock_limit(&mut self) {
        let Some((excessive, since)) = self.locks.answer() else { return self.give_up("the lock counter ended") };
        if excessive.is_empty() {
            return;
        }
        for sandbox in self.sandboxes.values_mut() {
            let is_meant = !sandbox.init_ended && sandbox.made < since;
            let Some(init) = sandbox.init.pid.filter(|_| is_meant) else { continue };
            if pid_namespace::namespace_of(init).is_some_and(|namespace| excessive.contains(&namespace)) {
                sandbox.kill();
            }
        }
    }
}
