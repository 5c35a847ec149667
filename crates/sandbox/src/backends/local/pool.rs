//! Sandboxes that are ready before anyone asks.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use aludel_ignore::Ignore;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Shared;
use super::lazy_kernel::LazyKernel;
use super::link::LocalLink;
use super::warden_client::SandboxHandle;
use crate::driver::Driver;
use crate::kernel::Kernel as _;
use crate::{Error, Limits, Profile};

/// The pause after a sandbox that could not be made.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The longest wait for the first program of a taken sandbox, so that it has the processors to itself.
const MAX_FIRST_PROGRAM_WAIT: Duration = Duration::from_millis(25);

/// The pause between two looks at such a program.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A pool, and whether sandboxes can be made.
#[derive(Debug)]
pub(super) struct LocalPool {
    size: usize,
    limits: Limits,
    ready: Mutex<VecDeque<Arc<LazyKernel>>>,
    wanted: Notify,
    /// Those that were taken, and have perhaps not run a program.
    taken: Mutex<Vec<(Instant, Weak<Driver<LocalLink>>)>>,
    /// Reason for which the last sandbox could not be made.
    failure: Mutex<Option<String>>,
    end: CancellationToken,
    task: TaskTracker,
}

impl LocalPool {
    /// Makes a pool of `size` sandboxes. A task keeps it full until [`LocalPool::end`].
    pub(super) fn start(size: usize, limits: Limits, shared: &Arc<Shared>) -> Arc<Self> {
        let (ready, taken, failure) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (end, task) = (CancellationToken::new(), TaskTracker::new());
        let pool = Arc::new(Self { size, limits, ready, wanted: Notify::new(), taken, failure, end, task });
        if size > 0 {
            let refill = Self::refill(Arc::clone(&pool), Arc::clone(shared));
            pool.task.spawn(pool.end.clone().run_until_cancelled_owned(refill));
        }
        pool.task.close();
        pool
    }

    /// Takes a sandbox with these limits, if one is ready.
    pub(super) fn take(&self, limits: &Limits) -> Option<Arc<LazyKernel>> {
        if *limits != self.limits {
            return None;
        }
        let made = std::iter::from_fn(|| self.ready.lock().pop_front()).find(|made| made.is_alive());
        if let Some(made) = &made {
            self.taken.lock().push((Instant::now(), made.downgrade()));
        }
        self.wanted.notify_one();
        made
    }

    /// Drops sandboxes that have died, and returns the number of ready ones.
    pub(super) fn ready(&self) -> usize {
        let mut ready = self.ready.lock();
        ready.retain(|made| made.is_alive());
        ready.len()
    }

    /// Makes no more sandboxes, and destroys those that are ready or begun.
    pub(super) fn end(&self) {
        self.end.cancel();
        let ready = std::mem::take(&mut *self.ready.lock());
        drop(ready);
    }

    /// Waits until no more are made. Call it after [`LocalPool::end`].
    pub(super) async fn ended(&self) {
        self.task.wait().await;
    }

    /// Returns the reason for the last failure to make a sandbox.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Notes whether a sandbox could be made, and logs a change.
    pub(super) fn note(&self, error: Option<&Error>) {
        // Without a pool no attempt follows, and one failure would stand for ever. Other errors say nothing about the host: the limit of
        // sandboxes is reached, the workspace is not this backend's, or the warden has ended, which its supervisor reports.
        let is_harmless =
            matches!(error, Some(Error::Full | Error::NotSupported(_) | Error::WorkspaceLost | Error::Over(_)));
        if self.size == 0 || is_harmless {
            return;
        }
        let reason = error.map(ToString::to_string);
        let before = std::mem::replace(&mut *self.failure.lock(), reason.clone());
        match (before, reason) {
            (None, Some(error)) => tracing::warn!(error, "sandboxes cannot be made"),
            (Some(_), None) => tracing::info!("sandboxes can be made again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }

    async fn refill(pool: Arc<Self>, shared: Arc<Shared>) {
        loop {
            let missing = pool.size.saturating_sub(pool.ready());
            if missing == 0 {
                timeout(RETRY_PAUSE, pool.wanted.notified())
                    .await
                    .ignore("nobody tells of ready ones that died, so the loop looks now and then");
                continue;
            }
            pool.rest().await;
            // One at a time does not keep up with clients that take one every 20 ms.
            let at_once = if missing * 2 >= pool.size { missing.min(2) } else { 1 };
            let made = join_all((0..at_once).map(|_| pool.make_kernel(&shared))).await;
            let mut has_failed = false;
            for made in made {
                pool.note(made.as_ref().err());
                match made {
                    Ok(made) => pool.ready.lock().push_back(made),
                    // Requests get this error; the pool only tries again.
                    Err(_) => has_failed = true,
                }
            }
            if has_failed {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Waits until the first programs of taken sandboxes have ended.
    async fn rest(&self) {
        let taken = std::mem::take(&mut *self.taken.lock());
        for (since, kernel) in taken {
            let first_cell = async {
                while kernel.upgrade().is_some_and(|kernel| !kernel.has_run()) {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            };
            timeout_at(since + MAX_FIRST_PROGRAM_WAIT, first_cell).await.ignore("the pool is refilled in any case");
        }
    }

    async fn make_kernel(&self, shared: &Shared) -> Result<Arc<LazyKernel>, Error> {
        let client = shared.supervisor.client().await?;
        let handle = Arc::new(SandboxHandle::new(&client)?);
        let making = async {
            let made = shared.prepare_kernel(handle, self.limits.clone(), Profile::Data, None).await?;
            made.warm_up().await?;
            Ok(made)
        };
        match making.await {
            // A kernel that ended may have ended with its warden, as when the backend is shut down.
            Err(Error::Setup(_) | Error::KernelGone(_)) if client.is_over().await => Err(client.over()),
            made => made,
        }
    }
}
