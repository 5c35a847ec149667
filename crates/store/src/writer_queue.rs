//! A queue of threads for one resource, shared fairly between tenants.
//!
//! The next thread is one of the tenant that has used the resource least since the queue was last empty. A tenant that comes later starts
//! level with the others, without credit. So a tenant with few threads waits for at most one thread of each other tenant, however many of
//! theirs are queued.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::Tenant;
use parking_lot::Mutex;

#[derive(Debug, Default)]
pub(crate) struct WriterQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    /// In the order in which they came.
    waiting: Vec<QueuedThread>,
    /// Time for which each tenant had the resource; `None` is the server itself.
    had: HashMap<Option<Tenant>, Duration>,
    /// The least time of the tenants that were let in last.
    level: Duration,
}

#[derive(Debug)]
struct QueuedThread {
    tenant: Option<Tenant>,
    thread: Thread,
    is_next: Arc<AtomicBool>,
}

/// The head of the line, until this is dropped.
#[derive(Debug)]
pub(crate) struct QueueHead<'l> {
    line: &'l WriterQueue,
    tenant: Option<Tenant>,
    since: Instant,
}

impl WriterQueue {
    /// Waits until it is this thread's turn.
    pub(crate) fn enter(&self, tenant: Option<&Tenant>) -> QueueHead<'_> {
        let tenant = tenant.cloned();
        let mut state = self.0.lock();
        if state.is_busy {
            let is_next = Arc::new(AtomicBool::new(false));
            let thread = thread::current();
            state.waiting.push(QueuedThread { tenant: tenant.clone(), thread, is_next: Arc::clone(&is_next) });
            drop(state);
            while !is_next.load(Ordering::Acquire) {
                thread::park();
            }
        } else {
            state.is_busy = true;
        }
        QueueHead { line: self, tenant, since: Instant::now() }
    }

    /// Threads that wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().waiting.len()
    }
}

impl QueueHead<'_> {
    /// Returns true if another thread waits.
    pub(crate) fn has_others_behind(&self) -> bool {
        !self.line.0.lock().waiting.is_empty()
    }
}

impl Drop for QueueHead<'_> {
    fn drop(&mut self) {
        let mut state = self.line.0.lock();
        let State { is_busy, waiting, had, level } = &mut *state;
        let of = |tenant: &Option<Tenant>, had: &HashMap<_, Duration>| had.get(tenant).copied().unwrap_or_default();
        let all = of(&self.tenant, had).max(*level) + self.since.elapsed();
        had.insert(self.tenant.take(), all);
        let next = waiting.iter().enumerate().min_by_key(|(_, other)| of(&other.tenant, had).max(*level));
        let Some(next) = next.map(|(index, _)| index) else {
            *is_busy = false;
            had.clear();
            *level = Duration::ZERO;
            return;
        };
        let next = waiting.remove(next);
        *level = of(&next.tenant, had).max(*level);
        had.retain(|_, time| *time > *level);
        next.is_next.store(true, Ordering::Release);
        next.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_little_waits_for_one_of_another_tenant_only() {
        let line = WriterQueue::default();
        let (good, bad) = (Tenant::of_signed("good"), Tenant::of_signed("bad"));
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let first = line.enter(Some(&bad));
            let come = |tenant, name| {
                let (before, line, order) = (line.waiting(), &line, &order);
                scope.spawn(move || {
                    let _place = line.enter(Some(tenant));
                    order.lock().push(name);
                    thread::sleep(Duration::from_millis(if name == "bad" { 20 } else { 1 }));
                });
                while line.waiting() == before {
                    thread::yield_now();
                }
            };
            for _ in 0..5 {
                come(&bad, "bad");
            }
            come(&good, "good");
            come(&good, "good");
            // Longer than a busy machine delays one of the other tenants' threads.
            thread::sleep(Duration::from_millis(300));
            drop(first);
        });
        assert_eq!(*order.lock(), ["good", "good", "bad", "bad", "bad", "bad", "bad"]);
        assert!(line.0.lock().had.is_empty() && !line.0.lock().is_busy);
    }

    #[test]
    fn those_of_one_tenant_go_in_the_order_in_which_they_came() {
        let line = WriterQueue::default();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let first = line.enter(None);
            for number in 0..4 {
                let (line, order) = (&line, &order);
                scope.spawn(move || {
                    let _place = line.enter(None);
                    order.lock().push(number);
                });
                while line.waiting() == number {
                    thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(*order.lock(), [0, 1, 2, 3]);
    }
}
