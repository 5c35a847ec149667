//! The order in which sandboxes of one owner are made.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Sandboxes of one owner that are made at the same time, for each processor.
const AT_ONCE: usize = 2;

/// A queue for each owner. Of a hundred sandboxes that are asked for together, the first are ready long before the last, which is ready
/// about as late as if all were made at the same time.
#[derive(Debug)]
pub(super) struct CreationQueues {
    at_once: usize,
    by_owner: Mutex<HashMap<Option<String>, Weak<Semaphore>>>,
}

impl Default for CreationQueues {
    fn default() -> Self {
        Self::new(AT_ONCE * thread::available_parallelism().map_or(1, usize::from))
    }
}

impl CreationQueues {
    fn new(at_once: usize) -> Self {
        Self { at_once, by_owner: Mutex::default() }
    }

    /// Waits until another sandbox of this owner may be made, which lasts until the result is dropped.
    pub(super) async fn next(&self, owner: Option<&str>) -> Option<OwnedSemaphorePermit> {
        let queue = self.of(owner);
        // It is never closed.
        queue.acquire_owned().await.ok()
    }

    fn of(&self, owner: Option<&str>) -> Arc<Semaphore> {
        let owner = owner.map(str::to_owned);
        let mut queues = self.by_owner.lock();
        if let Some(queue) = queues.get(&owner).and_then(Weak::upgrade) {
            return queue;
        }
        // An owner that makes none needs no queue.
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Semaphore::new(self.at_once));
        queues.insert(owner, Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn few_sandboxes_of_one_owner_are_made_at_a_time() {
        let queues = CreationQueues::new(2);
        let first = queues.next(Some("a")).await;
        let second = queues.next(Some("a")).await;
        assert!(first.is_some() && second.is_some());
        let mut third = Box::pin(queues.next(Some("a")));
        let mut fourth = Box::pin(queues.next(Some("a")));
        assert!(third.as_mut().now_or_never().is_none() && fourth.as_mut().now_or_never().is_none());
        let other = queues.next(Some("b")).now_or_never();
        assert!(other.is_some(), "another owner waited");
        drop(first);
        assert!(fourth.as_mut().now_or_never().is_none(), "the last was before the third");
        // A client that gives up leaves its place to the next.
        drop(third);
        assert!(fourth.now_or_never().is_some());
        drop((second, other));
        drop(queues.next(None).await);
        assert_eq!(queues.by_owner.lock().len(), 1, "queues without sandboxes stay");
    }
}
