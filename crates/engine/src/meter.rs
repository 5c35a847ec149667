//! The meter: work done for tenants, counted in memory and stored some seconds later. A crash loses these seconds, and up to a minute of
//! sandboxes' time.

mod leftovers;

use std::collections::HashMap;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use aludel_store::{MeteredDay, MeteredWork, Store, Tenant, today};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::error;

use self::leftovers::Watched;
pub(crate) use self::leftovers::{Attendance, Leftovers};
use crate::Tasks;

/// Delay between the first count and the moment when all counts are stored.
const STORE_DELAY: Duration = Duration::from_secs(5);
/// Time between two counts of a command that runs on.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two counts of the sandboxes in use.
const SANDBOXES_INTERVAL: Duration = Duration::from_secs(60);
/// Rows that wait to be stored. Further work is counted in the tenant's row without a model.
const MAX_ROWS: usize = 10_000;

/// Counts work and stores it. Cheap to clone; clones share their counts.
#[derive(Debug, Clone)]
pub struct Meter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    tasks: Tasks,
    shutdown: CancellationToken,
    counted: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    rows: HashMap<Row, MeteredWork>,
    /// True while a task waits to store them.
    is_due: bool,
    /// The sandboxes in use, each with the moment up to which it is counted.
    sandboxes: HashMap<u64, (Tenant, Instant)>,
    /// The sandboxes whose processor time is counted.
    watched: HashMap<u64, Weak<Watched>>,
    /// The last number of either.
    last_number: u64,
    /// True while a task counts the sandboxes at intervals.
    is_counting: bool,
}

/// A tenant, a day and a model.
type Row = (Tenant, i64, String);

/// A tenant whose work is counted, as long as there is an engine.
#[derive(Debug, Clone)]
pub struct Account {
    meter: Weak<Inner>,
    tenant: Tenant,
}

impl Account {
    /// Counts time of programs.
    pub(crate) fn count_program_time(&self, time: Duration) {
        if let Some(meter) = self.meter().filter(|_| !time.is_zero()) {
            meter.count(&self.tenant, "", MeteredWork { program_ms: millis(time), ..MeteredWork::default() });
        }
    }

    /// Has a sandbox counted from now on, and returns its number.
    pub(crate) fn watch(&self, watched: &Arc<Watched>) -> u64 {
        let Some(meter) = self.meter() else { return 0 };
        let mut counted = meter.0.counted.lock();
        counted.last_number += 1;
        let number = counted.last_number;
        counted.watched.insert(number, Arc::downgrade(watched));
        number
    }

    /// Has the sandbox of this number counted no longer.
    pub(crate) fn forget(&self, number: u64) {
        if let Some(meter) = self.meter() {
            meter.0.counted.lock().watched.remove(&number);
        }
    }

    /// Starts a task, unless there is no runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(meter) = self.meter().filter(|_| tokio::runtime::Handle::try_current().is_ok()) {
            meter.0.tasks.spawn(task);
        }
    }

    fn meter(&self) -> Option<Meter> {
        self.meter.upgrade().map(Meter)
    }
}

/// A sandbox in use. Its time is counted at intervals, and when this is dropped.
#[derive(Debug)]
pub(crate) struct SandboxTime {
    meter: Meter,
    tenant: Tenant,
    number: u64,
}

/// A command that runs in a sandbox. Its time is counted at intervals, since it may run for long, and when this is dropped.
#[derive(Debug)]
pub(crate) struct CommandTime {
    meter: Meter,
    tenant: Tenant,
    since: Instant,
}

impl CommandTime {
    /// Counts the time in which `future` is awaited, without that in which the sandbox is paused.
    pub(crate) async fn count_during<T>(mut self, paused: watch::Receiver<bool>, future: impl Future<Output = T>) -> T {
        let (mut future, mut paused) = (pin!(future), paused);
        loop {
            tokio::select! {
                done = &mut future => return done,
                () = sleep(COUNT_INTERVAL) => self.count(),
                () = becomes(&mut paused, true) => {
                    self.count();
                    let done = tokio::select! {
                        done = &mut future => Some(done),
                        () = becomes(&mut paused, false) => None,
                    };
                    self.since = Instant::now();
                    if let Some(done) = done {
                        return done;
                    }
                }
            }
        }
    }

    fn count(&mut self) {
        let since = std::mem::replace(&mut self.since, Instant::now());
        let work = MeteredWork { program_ms: millis(self.since.duration_since(since)), ..MeteredWork::default() };
        self.meter.count(&self.tenant, "", work);
    }
}

/// Sleeps for a time of which pauses are no part.
pub(crate) async fn sleep_unless_paused(mut time: Duration, mut paused: watch::Receiver<bool>) {
    loop {
        becomes(&mut paused, false).await;
        let began = Instant::now();
        tokio::select! {
            () = sleep(time) => return,
            () = becomes(&mut paused, true) => time = time.saturating_sub(began.elapsed()),
        }
    }
}

/// Waits until a sandbox is paused, or no longer paused.
async fn becomes(paused: &mut watch::Receiver<bool>, is_paused: bool) {
    if paused.wait_for(|now| *now == is_paused).await.is_err() {
        // The sandbox has ended.
        pending::<()>().await;
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Drop for CommandTime {
    fn drop(&mut self) {
        self.count();
    }
}

impl Meter {
    /// A meter that stores in tasks of `tasks`, which end soon after `shutdown`.
    pub(crate) fn new(store: Store, tasks: Tasks, shutdown: CancellationToken) -> Self {
        Self(Arc::new(Inner { store, tasks, shutdown, counted: Mutex::default() }))
    }

    /// Counts work with a model of the configuration, or with none.
    pub fn count(&self, tenant: &Tenant, model: &str, work: MeteredWork) {
        self.add([((tenant.clone(), today(), model.to_owned()), work)]);
    }

    /// A tenant's account.
    pub fn account(&self, tenant: &Tenant) -> Account {
        Account { meter: Arc::downgrade(&self.0), tenant: tenant.clone() }
    }

    /// Counts the time of a sandbox from now on.
    pub(crate) fn sandbox(&self, tenant: &Tenant) -> SandboxTime {
        let mut counted = self.0.counted.lock();
        counted.last_number += 1;
        let number = counted.last_number;
        counted.sandboxes.insert(number, (tenant.clone(), Instant::now()));
        if !counted.is_counting && tokio::runtime::Handle::try_current().is_ok() {
            counted.is_counting = true;
            let (inner, shutdown) = (Arc::downgrade(&self.0), self.0.shutdown.clone());
            self.0.tasks.spawn(async move {
                loop {
                    tokio::select! {
                        () = sleep(SANDBOXES_INTERVAL) => {}
                        // The end of each sandbox counts the rest.
                        () = shutdown.cancelled() => return,
                    }
                    let Some(meter) = inner.upgrade().map(Self) else { return };
                    if !meter.count_sandboxes() {
                        return;
                    }
                    meter.count_watched().await;
                }
            });
        }
        SandboxTime { meter: self.clone(), tenant: tenant.clone(), number }
    }

    /// Counts the sandboxes in use up to now. Returns false if there are none.
    fn count_sandboxes(&self) -> bool {
        let mut counted = self.0.counted.lock();
        let now = Instant::now();
        let mut times: HashMap<Tenant, u64> = HashMap::new();
        for (tenant, since) in counted.sandboxes.values_mut() {
            let time = times.entry(tenant.clone()).or_default();
            *time = time.saturating_add(millis(now.duration_since(std::mem::replace(since, now))));
        }
        let has_some = !times.is_empty();
        counted.is_counting = has_some;
        drop(counted);
        let row = |(tenant, sandbox_ms)| {
            ((tenant, today(), String::new()), MeteredWork { sandbox_ms, ..MeteredWork::default() })
        };
        self.add(times.into_iter().map(row));
        has_some
    }

    /// Counts the processor time of the sandboxes that are watched.
    async fn count_watched(&self) {
        let watched: Vec<_> = self.0.counted.lock().watched.values().cloned().collect();
        for watched in watched {
            if let Some(watched) = watched.upgrade() {
                watched.count().await;
            }
        }
    }

    /// Counts a command that begins now, and its time.
    pub(crate) fn command(&self, tenant: &Tenant) -> CommandTime {
        self.count(tenant, "", MeteredWork { programs: 1, ..MeteredWork::default() });
        CommandTime { meter: self.clone(), tenant: tenant.clone(), since: Instant::now() }
    }

    fn add(&self, more: impl IntoIterator<Item = (Row, MeteredWork)>) {
        let mut counted = self.0.counted.lock();
        for ((tenant, day, model), work) in more {
            let key = (tenant, day, model);
            let is_full = counted.rows.len() >= MAX_ROWS && !counted.rows.contains_key(&key);
            let key = if is_full { (key.0, key.1, String::new()) } else { key };
            *counted.rows.entry(key).or_default() += work;
        }
        // Outside of a runtime it cannot be stored; the next count does it.
        if !counted.is_due && tokio::runtime::Handle::try_current().is_ok() {
            counted.is_due = true;
            let (inner, shutdown) = (Arc::downgrade(&self.0), self.0.shutdown.clone());
            self.0.tasks.spawn(async move {
                tokio::select! {
                    () = sleep(STORE_DELAY) => {}
                    () = shutdown.cancelled() => {}
                }
                // Without an engine nothing more is counted, and the state may belong to another process.
                if let Some(inner) = inner.upgrade() {
                    Self(inner).flush().await;
                }
            });
        }
    }

    /// Stores all counts. If that fails, for example on a full disk, it is tried again some seconds later, unless the engine closes.
    pub async fn flush(&self) {
        let rows = {
            let mut counted = self.0.counted.lock();
            counted.is_due = false;
            std::mem::take(&mut counted.rows)
        };
        if rows.is_empty() {
            return;
        }
        let metered = rows.iter().map(|((tenant, day, model), work)| MeteredDay {
            tenant: tenant.clone(),
            day: *day,
            model: model.clone(),
            work: *work,
        });
        if let Err(error) = self.0.store.meter(metered.collect()).await {
            if self.0.shutdown.is_cancelled() {
                error!("work of the last seconds is not counted: {error}");
            } else {
                self.add(rows);
            }
        }
    }
}

impl Drop for SandboxTime {
    fn drop(&mut self) {
        let counted = self.meter.0.counted.lock().sandboxes.remove(&self.number);
        let sandbox_ms = counted.map_or(0, |(_, since)| millis(since.elapsed()));
        self.meter.count(&self.tenant, "", MeteredWork { sandbox_ms, ..MeteredWork::default() });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[tokio::test]
    async fn what_was_counted_is_stored_when_the_engine_closes() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let (tasks, shutdown) = (Tasks::default(), CancellationToken::new());
        let meter = Meter::new(store.clone(), tasks.clone(), shutdown.clone());
        let one = MeteredWork { requests: 1, input_tokens: 10, output_tokens: 3, ..MeteredWork::default() };
        meter.count(&Tenant::local(), "m", one);
        meter.count(&Tenant::local(), "m", one);
        drop(meter.sandbox(&Tenant::local()));
        assert_eq!(store.metered(0).await.unwrap(), []);
        shutdown.cancel();
        tasks.close();
        tasks.wait().await;
        // Later counts are added to the stored ones.
        meter.count(&Tenant::local(), "m", one);
        tasks.wait().await;
        let metered = store.metered(0).await.unwrap();
        let found: Vec<_> =
            metered.iter().map(|row| (row.model.as_str(), row.work.requests, row.work.input_tokens)).collect();
        assert_eq!(found, [("", 0, 0), ("m", 3, 30)]);
        assert_eq!(store.metered(today() + 1).await.unwrap(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_is_counted_while_it_runs() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let (tasks, shutdown) = (Tasks::default(), CancellationToken::new());
        let meter = Meter::new(store.clone(), tasks, shutdown);
        let counted = async || {
            meter.flush().await;
            let [metered] = &store.metered(0).await.unwrap()[..] else { panic!("a row") };
            (metered.work.programs, metered.work.program_ms)
        };
        let (pause, paused) = watch::channel(false);
        let time = meter.command(&Tenant::local());
        let mut command = Box::pin(time.count_during(paused.clone(), pending::<()>()));
        let mut limit = Box::pin(sleep_unless_paused(Duration::from_secs(30), paused));
        let mut run_for = async |seconds| {
            tokio::select! {
                () = &mut command => panic!("it goes on"),
                () = &mut limit => true,
                () = sleep(Duration::from_secs(seconds)) => false,
            }
        };
        assert!(!run_for(25).await);
        assert_eq!(counted().await, (1, 20_000));
        pause.send_replace(true);
        assert!(!run_for(1000).await);
        assert_eq!(counted().await, (1, 25_000));
        pause.send_replace(false);
        assert!(!run_for(4).await);
        assert!(run_for(2).await);
        drop(command);
        assert_eq!(counted().await, (1, 30_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sandbox_is_counted_while_it_lives() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let tasks = Tasks::default();
        let meter = Meter::new(store.clone(), tasks.clone(), CancellationToken::new());
        let counted = async || {
            meter.flush().await;
            store.metered(0).await.unwrap().iter().map(|row| row.work.sandbox_ms / 1000).collect::<Vec<_>>()
        };
        let times = [meter.sandbox(&Tenant::local()), meter.sandbox(&Tenant::local())];
        sleep(Duration::from_secs(130)).await;
        assert_eq!(counted().await, [240]);
        drop(times);
        assert_eq!(counted().await, [260]);
        sleep(Duration::from_secs(3600)).await;
        assert_eq!(counted().await, [260]);
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn the_rows_that_wait_are_bounded() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let meter = Meter::new(store, Tasks::default(), CancellationToken::new());
        for number in 0..MAX_ROWS + 10 {
            meter.count(&Tenant::local(), &format!("{number}"), MeteredWork { programs: 1, ..MeteredWork::default() });
        }
        let counted = meter.0.counted.lock();
        assert_eq!(counted.rows.len(), MAX_ROWS + 1);
        assert_eq!(counted.rows.values().map(|work| work.programs).sum::<u64>(), MAX_ROWS as u64 + 10);
    }
}
