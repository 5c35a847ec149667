//! Processor time of this process's own work, shared fairly between tenants.
//!
//! A tenant that is alone takes all there is. Beside others, one that has taken more than its share waits between two steps of its work,
//! until they would have had theirs. A step is one poll of a future: reading a body, making the request to a model, telling an answer. The
//! time of programs in sandboxes is not counted here; their control groups share that.

use std::cell::Cell;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use aludel_store::Tenant;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, Sleep, sleep};

/// A tenant may have the time of one in so many processors beside others.
const ONE_IN: u32 = 2;
/// Time that a tenant may take before its share counts.
const AT_ONCE: Duration = Duration::from_millis(20);
/// The most that a tenant pays for later: a step that took longer is not held against it for ever.
const MOST_OWED: Duration = Duration::from_millis(500);
/// The longest wait before the others are looked at again.
const MAX_WAIT: Duration = Duration::from_millis(10);
/// Time after its last step for which a tenant counts as one of the others.
const ACTIVE_FOR: Duration = Duration::from_millis(200);
/// Processor time after which a step is long, see [`end_long_step`].
const LONG_STEP: Duration = Duration::from_millis(2);
/// Tenants that are remembered before those are forgotten that owe nothing.
const MAX_IDLE_TENANTS: usize = 256;

thread_local! {
    /// Processor time of this thread when the step began that it is at, if it is at one.
    static STEP_BEGAN: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// The time of all processors.
#[derive(Debug, Clone)]
pub struct ProcessorTime(Arc<AllShares>);

#[derive(Debug)]
struct AllShares {
    began: Instant,
    /// Processors that one tenant may use beside others, in thousandths.
    share: u64,
    tenants: Mutex<HashMap<Tenant, Arc<UsedTime>>>,
}

/// One tenant's time, in microseconds since the beginning.
#[derive(Debug, Default)]
struct UsedTime {
    /// The moment at which its share has made up for all that it took.
    paid_at: AtomicU64,
    last_step: AtomicU64,
}

/// One tenant's share.
#[derive(Debug, Clone)]
pub struct ProcessorShare {
    all: Arc<AllShares>,
    used: Arc<UsedTime>,
}

impl Default for ProcessorTime {
    fn default() -> Self {
        Self::of(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl ProcessorTime {
    fn of(processors: usize) -> Self {
        let share = (processors as u64 * 1000 / u64::from(ONE_IN)).max(1);
        Self(Arc::new(AllShares { began: Instant::now(), share, tenants: Mutex::default() }))
    }

    /// The share of a tenant.
    pub fn share_of(&self, tenant: &Tenant) -> ProcessorShare {
        let mut tenants = self.0.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if tenants.len() >= MAX_IDLE_TENANTS && !tenants.contains_key(tenant) {
            let now = self.0.now();
            tenants.retain(|_, used| Arc::strong_count(used) > 1 || used.paid_at.load(Ordering::Relaxed) > now);
        }
        let used = match tenants.get(tenant) {
            Some(used) => Arc::clone(used),
            None => Arc::clone(tenants.entry(tenant.clone()).or_default()),
        };
        ProcessorShare { all: Arc::clone(&self.0), used }
    }
}

impl AllShares {
    /// Microseconds since the beginning.
    fn now(&self) -> u64 {
        micros(self.began.elapsed())
    }

    /// Returns true if another tenant has worked lately.
    fn has_others(&self, own: &Arc<UsedTime>) -> bool {
        let since = self.now().saturating_sub(micros(ACTIVE_FOR));
        let tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        let mut others = tenants.values().filter(|used| !Arc::ptr_eq(used, own));
        others.any(|used| used.last_step.load(Ordering::Relaxed) > since)
    }
}

impl ProcessorShare {
    /// The future, whose steps take from this share and wait for it.
    pub fn pace<F: Future>(&self, future: F) -> ThrottledFuture<F> {
        ThrottledFuture { future: Box::pin(future), gate: Throttle::new(self.clone()) }
    }

    /// A gate for steps that are not a future's.
    pub fn gate(&self) -> Throttle {
        Throttle::new(self.clone())
    }

    /// Waits until the tenant may work.
    pub async fn wait(&self) {
        let mut gate = self.gate();
        std::future::poll_fn(|context| gate.poll(context)).await;
    }

    /// Does the work, which takes from this share.
    pub fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = thread_time();
        let outer = STEP_BEGAN.replace(Some(began));
        let done = work();
        STEP_BEGAN.set(outer);
        self.take(thread_time().saturating_sub(began));
        done
    }

    /// Takes so much time, which was used.
    pub fn take(&self, time: Duration) {
        let now = self.all.now();
        self.used.last_step.store(now.max(1), Ordering::Relaxed);
        let cost = micros(time).saturating_mul(1000) / self.all.share;
        let add = |paid_at: u64| Some((paid_at.max(now) + cost).min(now + micros(MOST_OWED)));
        let _always = self.used.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Returns the time to wait before the next step, if it must.
    fn pause(&self) -> Option<Duration> {
        let owed = self.used.paid_at.load(Ordering::Relaxed).saturating_sub(self.all.now());
        let over = Duration::from_micros(owed).checked_sub(AT_ONCE).filter(|over| !over.is_zero())?;
        self.all.has_others(&self.used).then(|| over.min(MAX_WAIT))
    }
}

/// Lets steps of one task pass when its tenant may work.
#[derive(Debug)]
pub struct Throttle {
    share: ProcessorShare,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Throttle {
    fn new(share: ProcessorShare) -> Self {
        Self { share, pause: None }
    }

    /// The share that steps take from.
    pub fn share(&self) -> &ProcessorShare {
        &self.share
    }

    /// Ready when the next step may be done.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match self.share.pause() {
                None => return Poll::Ready(()),
                Some(time) => self.pause = Some(Box::pin(sleep(time))),
            }
        }
    }
}

/// A future that takes from its tenant's share.
#[derive(Debug)]
pub struct ThrottledFuture<F> {
    future: Pin<Box<F>>,
    gate: Throttle,
}

impl<F: Future> Future for ThrottledFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, gate } = &mut *self;
        ready!(gate.poll(context));
        gate.share.work(|| future.as_mut().poll(context))
    }
}

/// Ends the step here if it was long: others have their turn between two parts of the work for a large request, which is then done in
/// steps of its parts.
pub async fn end_long_step() {
    if STEP_BEGAN.get().is_some_and(|began| thread_time().saturating_sub(began) > LONG_STEP) {
        tokio::task::yield_now().await;
    }
}

/// Processor time that this thread has taken.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or_default(), time.tv_nsec.try_into().unwrap_or_default())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn tenants() -> [Tenant; 2] {
        ["good", "bad"].map(Tenant::of_signed)
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_alone_takes_all_and_who_is_not_waits() {
        let [good, bad] = tenants();
        let time = ProcessorTime::of(2);
        let (good, bad) = (time.share_of(&good), time.share_of(&bad));
        bad.take(Duration::from_millis(500));
        assert_eq!(bad.pause(), None);
        good.take(Duration::from_millis(1));
        assert_eq!(bad.pause(), Some(MAX_WAIT));
        assert_eq!(good.pause(), None);
        let began = Instant::now();
        // The other one goes on working, with little.
        let working = async {
            loop {
                good.take(Duration::from_micros(10));
                sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            () = bad.pace(async {}) => {}
            () = working => {}
        }
        // Half of two processors is one: it waits as long as it has worked, but for what it may take at once.
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(480) && waited < Duration::from_millis(500), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_when_the_others_have_gone() {
        let [good, bad] = tenants();
        let time = ProcessorTime::of(2);
        let (good, bad) = (time.share_of(&good), time.share_of(&bad));
        good.take(Duration::from_millis(1));
        bad.take(Duration::from_secs(60));
        let began = Instant::now();
        bad.wait().await;
        let waited = began.elapsed();
        assert!(waited >= ACTIVE_FOR && waited < ACTIVE_FOR + 2 * MAX_WAIT, "{waited:?}");
    }

    #[tokio::test]
    async fn a_step_ends_where_it_was_long() {
        let [good, _] = tenants();
        let share = ProcessorTime::of(2).share_of(&good);
        let polls_of = async |work: Duration| {
            let mut polls = 0;
            let mut paced = Box::pin(share.pace(async {
                let began = thread_time();
                while thread_time() - began <= work {}
                end_long_step().await;
            }));
            std::future::poll_fn(|context| {
                polls += 1;
                paced.as_mut().poll(context)
            })
            .await;
            polls
        };
        assert_eq!(polls_of(Duration::ZERO).await, 1);
        assert_eq!(polls_of(LONG_STEP).await, 2);
        // Nobody's step.
        end_long_step().now_or_never().unwrap();
    }

    #[tokio::test]
    async fn tenants_that_owe_nothing_are_forgotten() {
        let [good, _] = tenants();
        let time = ProcessorTime::of(2);
        for place in 0..2 * MAX_IDLE_TENANTS {
            time.share_of(&Tenant::of_signed(&place.to_string()));
        }
        let held = time.share_of(&good);
        assert!(time.0.tenants.lock().unwrap().len() <= MAX_IDLE_TENANTS + 1);
        assert!(Arc::ptr_eq(&held.used, &time.share_of(&good).used));
    }
}
