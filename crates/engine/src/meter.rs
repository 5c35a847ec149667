//! The meter: work done for tenants, counted in memory and stored some seconds later. A crash loses these seconds.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aludel_store::{MeteredDay, MeteredWork, Store, Tenant, today};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::Tasks;

/// Delay between the first count and the moment when all counts are stored.
const STORE_DELAY: Duration = Duration::from_secs(5);
/// Time between two counts of a command that runs on.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);
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
    rows: HashMap<(Tenant, i64, String), MeteredWork>,
    /// True while a task waits to store them.
    is_due: bool,
}

/// A sandbox in use. Its time is counted when this is dropped.
#[derive(Debug)]
pub(crate) struct SandboxTime {
    meter: Meter,
    tenant: Tenant,
    since: Instant,
}

/// A command that runs in a sandbox. Its time is counted at intervals, since it may run for long, and when this is dropped.
#[derive(Debug)]
pub(crate) struct CommandTime {
    meter: Meter,
    tenant: Tenant,
    since: tokio::time::Instant,
}

impl CommandTime {
    /// Counts the time in which `future` is awaited.
    pub(crate) async fn count_during<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                done = &mut future => return done,
                () = sleep(COUNT_INTERVAL) => self.count(),
            }
        }
    }

    fn count(&mut self) {
        let since = std::mem::replace(&mut self.since, tokio::time::Instant::now());
        let program_ms = u64::try_from(self.since.duration_since(since).as_millis()).unwrap_or(u64::MAX);
        self.meter.count(&self.tenant, "", MeteredWork { program_ms, ..MeteredWork::default() });
    }
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

    /// Counts the time of a sandbox from now on.
    pub(crate) fn sandbox(&self, tenant: &Tenant) -> SandboxTime {
        SandboxTime { meter: self.clone(), tenant: tenant.clone(), since: Instant::now() }
    }

    /// Counts a command that begins now, and its time.
    pub(crate) fn command(&self, tenant: &Tenant) -> CommandTime {
        self.count(tenant, "", MeteredWork { programs: 1, ..MeteredWork::default() });
        CommandTime { meter: self.clone(), tenant: tenant.clone(), since: tokio::time::Instant::now() }
    }

    fn add(&self, more: impl IntoIterator<Item = ((Tenant, i64, String), MeteredWork)>) {
        let mut counted = self.0.counted.lock().unwrap_or_else(PoisonError::into_inner);
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
            let mut counted = self.0.counted.lock().unwrap_or_else(PoisonError::into_inner);
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
        let sandbox_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
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
        let mut time = meter.command(&Tenant::local());
        let command = sleep(Duration::from_secs(3600));
        tokio::select! {
            () = time.count_during(command) => panic!("it goes on"),
            () = sleep(Duration::from_secs(25)) => {}
        }
        assert_eq!(counted().await, (1, 20_000));
        drop(time);
        assert_eq!(counted().await, (1, 25_000));
    }

    #[tokio::test]
    async fn the_rows_that_wait_are_bounded() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let meter = Meter::new(store, Tasks::default(), CancellationToken::new());
        for number in 0..MAX_ROWS + 10 {
            meter.count(&Tenant::local(), &format!("{number}"), MeteredWork { programs: 1, ..MeteredWork::default() });
        }
        let counted = meter.0.counted.lock().unwrap();
        assert_eq!(counted.rows.len(), MAX_ROWS + 1);
        assert_eq!(counted.rows.values().map(|work| work.programs).sum::<u64>(), MAX_ROWS as u64 + 10);
    }
}
