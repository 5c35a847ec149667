//! Processor time of this process's own work, shared fairly between tenants.
//!
//! A tenant that is alone takes all there is. Beside others, one that has taken more than its share waits between two steps of its work,
//! until they would have had theirs, and no more of its steps are done at the same time than its share has processors. The same
//! holds for one with long steps even while it is alone, so that the next tenant finds a free processor. A step is one poll of a future:
//! reading a body, making the request to a model, telling an answer. The time of programs in sandboxes is not counted here; their control
//! groups share that, but for their starts.

use std::cell::Cell;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{self, Duration};

use aludel_ignore::Ignore;
use aludel_store::Tenant;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep, sleep};

/// Divisor of the processors: the share of one tenant beside others.
const ONE_IN: u32 = 2;
/// Time that a tenant may take before its share counts.
const AT_ONCE: Duration = Duration::from_millis(20);
/// The most debt of a tenant, so that a single long step does not count against it for ever.
const MAX_OWED: Duration = Duration::from_millis(500);
/// The longest wait before the other tenants are checked again.
const MAX_WAIT: Duration = Duration::from_millis(10);
/// Time after its last step for which a tenant counts as active.
const ACTIVE_FOR: Duration = Duration::from_millis(200);
/// Time of a step during which no other thread takes its processor.
const SHORT_STEP: Duration = Duration::from_micros(50);
/// Time for which a reading of a thread's processor time is used again.
const TOLD_FOR: Duration = Duration::from_millis(1);
/// Time after which a step is long, see [`end_long_step`].
const LONG_STEP: Duration = Duration::from_millis(2);
/// Processor time of a step that others notice if it runs on all processors.
const VERY_LONG_STEP: Duration = Duration::from_millis(10);
/// Processor time that the start of a kernel or a command counts as: the processes of others wait while it is forked. As much as a tenant
/// may take at once, so that a single one does not wait.
const PROCESS_START: Duration = AT_ONCE;
/// Processor time for a request whose caller is not known, most of it for the protocol.
const STRANGER_TIME: Duration = Duration::from_micros(100);
/// Divisor of the processors: the share of all such requests of one kind.
const STRANGERS_ONE_IN: u32 = 16;
/// Tenants in memory; beyond that, those without debt are forgotten.
const MAX_IDLE_TENANTS: usize = 256;

thread_local! {
    /// The beginning of this thread's current step, if there is one.
    static STEP_BEGAN: Cell<Option<time::Instant>> = const { Cell::new(None) };
    /// The last time at which the system told this thread's processor time, and that time.
    static LAST_TOLD: Cell<Option<(time::Instant, Duration)>> = const { Cell::new(None) };
}

/// The time of all processors.
#[derive(Debug, Clone)]
pub struct ProcessorTime(Arc<AllShares>);

#[derive(Debug)]
struct AllShares {
    began: Instant,
    /// Processors that one tenant may use beside others, in thousandths.
    share: u64,
    /// Steps of one tenant that may be done at the same time beside others.
    steps: usize,
    /// The moments at which the debts of requests whose caller is not known are paid off, in microseconds since the beginning, by their
    /// kind.
    strangers_paid_at: [AtomicU64; 2],
    tenants: Mutex<HashMap<Tenant, Arc<UsedTime>>>,
}

/// A kind of requests whose caller is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrangerRequest {
    /// It is refused, or reads the documentation.
    Other,
    /// It asks for the server's health. Restarts depend on the answer, so it waits for no other kind, and less.
    Probe,
}

impl StrangerRequest {
    /// The most debt of the kind, and so the longest wait of one of them.
    fn most_owed(self) -> Duration {
        match self {
            Self::Other => Duration::from_secs(5),
            Self::Probe => Duration::from_millis(500),
        }
    }
}

/// One tenant's time, in microseconds since the beginning, and its steps.
#[derive(Debug, Default)]
struct UsedTime {
    /// The moment at which its debt is paid off by its share.
    paid_at: AtomicU64,
    last_step: AtomicU64,
    /// The end of its last very long step, or 0.
    last_very_long_step: AtomicU64,
    /// Steps that are being done.
    steps: AtomicUsize,
    /// Notified when a step ends.
    ended: Arc<Notify>,
}

/// A step that is being done.
#[derive(Debug)]
struct Step(Arc<UsedTime>);

impl Drop for Step {
    fn drop(&mut self) {
        self.0.steps.fetch_sub(1, Ordering::AcqRel);
        self.0.ended.notify_one();
    }
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
        let steps = (share / 1000).max(1) as usize;
        let (strangers_paid_at, tenants) = Default::default();
        Self(Arc::new(AllShares { began: Instant::now(), share, steps, strangers_paid_at, tenants }))
    }

    /// The share of a tenant.
    pub fn share_of(&self, tenant: &Tenant) -> ProcessorShare {
        let mut tenants = self.0.tenants.lock();
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

    /// Waits before a request whose caller is not known is answered. All of a kind together get a small share, also while nobody else
    /// works: each is a line in the log.
    pub async fn pace_stranger(&self, kind: StrangerRequest) {
        let now = self.0.now();
        let cost = micros(STRANGER_TIME) * 1000 * u64::from(STRANGERS_ONE_IN / ONE_IN) / self.0.share;
        let add = |paid_at: u64| (paid_at.max(now) + cost).min(now + micros(kind.most_owed()));
        let update = |paid_at| Some(add(paid_at));
        let [other, probe] = &self.0.strangers_paid_at;
        let paid_at = match kind {
            StrangerRequest::Other => other,
            StrangerRequest::Probe => probe,
        };
        let before = paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).unwrap_or_default();
        let owed = Duration::from_micros(add(before) - now).saturating_sub(AT_ONCE);
        if !owed.is_zero() {
            sleep(owed).await;
        }
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
        let tenants = self.tenants.lock();
        tenants.values().any(|used| !Arc::ptr_eq(used, own) && used.last_step.load(Ordering::Relaxed) > since)
    }
}

impl ProcessorShare {
    /// Wraps a future, whose steps then use this share and wait for it.
    pub fn pace<F: Future>(&self, future: F) -> ThrottledFuture<F> {
        ThrottledFuture { future: Box::pin(future), gate: Throttle::new(self.clone()) }
    }

    /// A gate for steps that are not a future's.
    pub fn gate(&self) -> Throttle {
        Throttle::new(self.clone())
    }

    /// Waits until the tenant has paid for what it took.
    pub async fn wait(&self) {
        let mut gate = self.gate();
        std::future::poll_fn(|context| gate.poll_paid(context)).await;
    }

    /// Does the work at the cost of this share. Within a step it counts as a part of that step.
    pub fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        if STEP_BEGAN.get().is_some() {
            return work();
        }
        let began = begin();
        let _end = Taking { share: self, began };
        work()
    }

    /// Charges the start of a process in a sandbox, and waits until the tenant has paid.
    pub async fn start_process(&self) {
        self.owe(self.all.now(), PROCESS_START);
        self.wait().await;
    }

    /// Charges time that was used.
    pub fn take(&self, time: Duration) {
        let now = self.all.now();
        if time > VERY_LONG_STEP {
            self.used.last_very_long_step.store(now.max(1), Ordering::Relaxed);
        }
        self.owe(now, time);
    }

    fn owe(&self, now: u64, time: Duration) {
        self.used.last_step.store(now.max(1), Ordering::Relaxed);
        let cost = micros(time).saturating_mul(1000) / self.all.share;
        let add = |paid_at: u64| Some((paid_at.max(now) + cost).min(now + micros(MAX_OWED)));
        self.used.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ignore("the update never declines");
    }

    /// Returns the time to wait before the next step, if it must.
    fn pause(&self) -> Option<Duration> {
        let owed = self.used.paid_at.load(Ordering::Relaxed).saturating_sub(self.all.now());
        let over = Duration::from_micros(owed).checked_sub(AT_ONCE).filter(|over| !over.is_zero())?;
        self.all.has_others(&self.used).then(|| over.min(MAX_WAIT))
    }

    /// Returns true if one of the tenant's steps was very long lately.
    fn is_slow(&self) -> bool {
        let last = self.used.last_very_long_step.load(Ordering::Relaxed);
        last > 0 && last + micros(ACTIVE_FOR) > self.all.now()
    }

    /// Begins a step, unless the tenant is at as many as it may be beside others.
    fn begin_step(&self) -> Option<Step> {
        let one_more = |steps| (steps < self.all.steps).then_some(steps + 1);
        let has_room = self.used.steps.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok();
        if !has_room {
            if self.is_slow() || self.all.has_others(&self.used) {
                return None;
            }
            self.used.steps.fetch_add(1, Ordering::AcqRel);
        }
        Some(Step(Arc::clone(&self.used)))
    }
}

/// Takes a step's time from its share when it is dropped, also by a panic.
struct Taking<'a> {
    share: &'a ProcessorShare,
    began: time::Instant,
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        STEP_BEGAN.set(None);
        self.share.take(time_since(self.began));
    }
}

/// Lets the steps of one task pass when its tenant may work.
#[derive(Debug)]
pub struct Throttle {
    share: ProcessorShare,
    pause: Option<Pin<Box<Sleep>>>,
    /// The end of the tenant's other step, while this waits for it.
    other_step: Option<Pin<Box<OwnedNotified>>>,
}

impl Throttle {
    fn new(share: ProcessorShare) -> Self {
        Self { share, pause: None, other_step: None }
    }

    /// The share that steps take from.
    pub fn share(&self) -> &ProcessorShare {
        &self.share
    }

    /// Does a step of work when its tenant may. Within another step it counts as a part of that.
    pub fn poll_step<T>(&mut self, context: &mut Context<'_>, work: impl FnOnce(&mut Context<'_>) -> T) -> Poll<T> {
        // A task that waits for the end of another step has paid already. Told of that end, it must begin: nothing else wakes the next one.
        if self.other_step.is_none() {
            ready!(self.poll_paid(context));
        }
        if STEP_BEGAN.get().is_some() {
            return Poll::Ready(work(context));
        }
        let _step = ready!(self.poll_room(context));
        Poll::Ready(self.share.work(|| work(context)))
    }

    /// Ready with a step when there is room for it.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        loop {
            if let Some(ended) = &mut self.other_step {
                ready!(ended.as_mut().poll(context));
                self.other_step = None;
            }
            if let Some(step) = self.share.begin_step() {
                return Poll::Ready(step);
            }
            let mut ended = Box::pin(Arc::clone(&self.share.used.ended).notified_owned());
            // No end is missed from here on.
            ended.as_mut().enable();
            if let Some(step) = self.share.begin_step() {
                return Poll::Ready(step);
            }
            self.other_step = Some(ended);
        }
    }

    /// Ready when the tenant has paid for what it took.
    fn poll_paid(&mut self, context: &mut Context<'_>) -> Poll<()> {
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
        ready!(gate.poll_step(context, |context| future.as_mut().poll(context)))
    }
}

/// Ends the current step here if it was long, so that others run between two parts of the work for a large request.
pub async fn end_long_step() {
    if STEP_BEGAN.get().is_some_and(|began| began.elapsed() > LONG_STEP) {
        tokio::task::yield_now().await;
    }
}

/// Begins a step of this thread.
fn begin() -> time::Instant {
    let now = time::Instant::now();
    STEP_BEGAN.set(Some(now));
    if LAST_TOLD.get().is_none_or(|(then, _)| now.duration_since(then) > TOLD_FOR) {
        LAST_TOLD.set(Some((now, thread_time())));
    }
    now
}

/// Processor time of this thread since the step began. The system is asked for it, which takes as long as a short step, only where other
/// threads may have run meanwhile; the time since it was last asked may be in it.
fn time_since(began: time::Instant) -> Duration {
    let elapsed = began.elapsed();
    let Some((_, then)) = LAST_TOLD.get().filter(|_| elapsed > SHORT_STEP) else { return elapsed };
    let now = thread_time();
    LAST_TOLD.set(Some((began + elapsed, now)));
    now.saturating_sub(then).min(elapsed)
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

    /// Works on and on, with little load.
    async fn keep_working(share: &ProcessorShare) {
        loop {
            share.take(Duration::from_micros(10));
            sleep(Duration::from_millis(50)).await;
        }
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
        tokio::select! {
            () = bad.pace(async {}) => {}
            () = keep_working(&good) => {}
        }
        // Half of two processors is one: it waits for as long as it has worked, except for the initial allowance.
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(480) && waited < Duration::from_millis(500), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn starts_of_processes_wait_beside_others_alone() {
        let time = ProcessorTime::of(2);
        let [good, bad] = tenants().map(|tenant| time.share_of(&tenant));
        let start = async |count: u32| {
            let began = Instant::now();
            for _ in 0..count {
                bad.start_process().await;
            }
            began.elapsed()
        };
        assert_eq!(start(1000).await, Duration::ZERO);
        sleep(Duration::from_secs(1)).await;
        let waited = tokio::select! {
            biased;
            () = keep_working(&good) => unreachable!(),
            waited = async { (start(1).await, start(50).await) } => waited,
        };
        assert_eq!(waited.0, Duration::ZERO);
        assert!((980..1020).contains(&waited.1.as_millis()), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_wait_for_others_of_their_kind() {
        let time = ProcessorTime::of(2);
        let ask = async |kind, count: u32| {
            let began = Instant::now();
            for _ in 0..count {
                time.pace_stranger(kind).await;
            }
            began.elapsed()
        };
        assert_eq!(ask(StrangerRequest::Other, 20).await, Duration::ZERO);
        // A second for 1250 of them on two processors.
        let waited = ask(StrangerRequest::Other, 2500).await;
        assert!((1900..2100).contains(&waited.as_millis()), "{waited:?}");
        assert_eq!(ask(StrangerRequest::Probe, 20).await, Duration::ZERO);
        let at_once = futures_util::future::join_all((0..10_000).map(|_| ask(StrangerRequest::Probe, 1)));
        let longest = at_once.await.into_iter().max().unwrap();
        assert!((450..500).contains(&longest.as_millis()), "{longest:?}");
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

    #[tokio::test(start_paused = true)]
    async fn one_step_at_a_time_is_done_beside_others() {
        let [good, bad] = tenants();
        let time = ProcessorTime::of(2);
        let (good, bad) = (time.share_of(&good), time.share_of(&bad));
        let alone = [bad.begin_step(), bad.begin_step()];
        assert!(alone.iter().all(Option::is_some));
        good.take(Duration::from_millis(1));
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(bad.pace(async {}))).collect();
        assert!(waiting.iter_mut().all(|step| step.as_mut().now_or_never().is_none()));
        good.pace(async {}).now_or_never().unwrap();
        let [one, another] = alone;
        drop(one);
        assert!(waiting[0].as_mut().now_or_never().is_none());
        drop(another);
        // A dropped one passes the notification on.
        drop(waiting.remove(0));
        for step in &mut waiting {
            step.as_mut().now_or_never().unwrap();
        }
        // A step within a step does not wait for it.
        bad.pace(bad.pace(async {})).now_or_never().unwrap();
        assert_eq!(bad.used.steps.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_alone_and_slow_leaves_a_processor_to_who_comes_next() {
        let [_, bad] = tenants();
        let bad = ProcessorTime::of(2).share_of(&bad);
        bad.take(VERY_LONG_STEP * 2);
        let step = bad.begin_step();
        assert!(step.is_some() && bad.begin_step().is_none());
        tokio::time::advance(ACTIVE_FOR * 2).await;
        assert!(bad.begin_step().is_some());
    }

    #[tokio::test]
    async fn a_panic_ends_its_step() {
        let [good, _] = tenants();
        let share = ProcessorTime::of(2).share_of(&good);
        let panics = std::panic::AssertUnwindSafe(share.pace(async { panic!("a panic of the test") }));
        panics.catch_unwind().await.unwrap_err();
        assert_eq!((STEP_BEGAN.get(), share.used.steps.load(Ordering::Relaxed)), (None, 0));
    }

    #[test]
    fn a_step_costs_its_processor_time() {
        let cost_of = |work: &dyn Fn()| {
            let began = begin();
            work();
            STEP_BEGAN.set(None);
            time_since(began)
        };
        let spin = || {
            let began = thread_time();
            while thread_time() - began < LONG_STEP {}
        };
        let worked = cost_of(&|| (0..10).for_each(|_| spin()));
        assert!((10 * LONG_STEP..25 * LONG_STEP).contains(&worked), "{worked:?}");
        let waited = cost_of(&|| std::thread::sleep(100 * LONG_STEP));
        assert!(waited < 2 * LONG_STEP, "{waited:?}");
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
        // Outside of a step.
        end_long_step().now_or_never().unwrap();
    }

    #[tokio::test]
    async fn tenants_that_owe_nothing_are_forgotten() {
        let [good, _] = tenants();
        let time = ProcessorTime::of(2);
        for index in 0..2 * MAX_IDLE_TENANTS {
            time.share_of(&Tenant::of_signed(&index.to_string()));
        }
        let held = time.share_of(&good);
        assert!(time.0.tenants.lock().len() <= MAX_IDLE_TENANTS + 1);
        assert!(Arc::ptr_eq(&held.used, &time.share_of(&good).used));
    }
}
