//! Processor time of processes that go on after the program or command that started them.

use std::sync::Arc;
use std::time::Duration;

use aludel_sandbox::Sandbox;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::Account;

/// A sandbox may use this part of the time for itself, for example to serve its files.
const OWN_PART: u32 = 60;
/// Longest wait for a figure of the backend.
const READING_LIMIT: Duration = Duration::from_secs(1);

/// The processor time of one sandbox in which no program and no command of its client runs. It is counted as that of programs: once a
/// minute, before the sandbox is closed, and when this is dropped.
#[derive(Debug)]
pub(crate) struct Leftovers {
    watched: Arc<Watched>,
    number: u64,
}

/// A sandbox whose leftovers are counted.
#[derive(Debug)]
pub(crate) struct Watched {
    sandbox: Arc<dyn Sandbox>,
    account: Account,
    ledger: Arc<Mutex<Ledger>>,
}

/// A program or command that runs, until this is dropped.
#[derive(Debug)]
pub(crate) struct Attendance(Arc<Mutex<Ledger>>);

impl Leftovers {
    /// Counts for the owner of a new sandbox.
    pub(crate) fn new(sandbox: Arc<dyn Sandbox>, account: Account) -> Self {
        let ledger = Arc::new(Mutex::new(Ledger::new(Instant::now())));
        let watched = Arc::new(Watched { sandbox, account, ledger });
        Self { number: watched.account.watch(&watched), watched }
    }

    /// Marks the beginning of a program or command.
    pub(crate) fn attend(&self) -> Attendance {
        self.watched.ledger.lock().begin(Instant::now());
        Attendance(Arc::clone(&self.watched.ledger))
    }

    /// Counts up to now.
    pub(crate) async fn count(&self) {
        self.watched.count().await;
    }
}

impl Watched {
    /// Counts up to now. A backend that does not answer is asked again later.
    pub(crate) async fn count(&self) {
        let Ok(usage) = timeout(READING_LIMIT, self.sandbox.usage()).await else { return };
        let left = self.ledger.lock().read(usage.cpu, self.sandbox.limits().cpus, Instant::now());
        self.account.count_program_time(left);
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        self.watched.account.forget(self.number);
        if self.watched.sandbox.is_alive() {
            // The sandbox ends after it.
            let watched = Arc::clone(&self.watched);
            self.watched.account.spawn(async move { watched.count().await });
        }
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        self.0.lock().end(Instant::now());
    }
}

/// The time in which programs and commands ran since the last reading of a sandbox's processor time.
#[derive(Debug)]
struct Ledger {
    /// Programs and commands that run.
    running: usize,
    /// Time up to which `attended` is counted, while one runs.
    since: Instant,
    /// Time since the last reading in which at least one ran.
    attended: Duration,
    /// The moment and the processor time of the last reading.
    last: (Instant, Duration),
}

impl Ledger {
    fn new(now: Instant) -> Self {
        Self { running: 0, since: now, attended: Duration::ZERO, last: (now, Duration::ZERO) }
    }

    fn begin(&mut self, now: Instant) {
        self.count(now);
        self.running += 1;
    }

    fn end(&mut self, now: Instant) {
        self.count(now);
        self.running -= 1;
    }

    fn count(&mut self, now: Instant) {
        let passed = now.duration_since(std::mem::replace(&mut self.since, now));
        if self.running > 0 {
            self.attended += passed;
        }
    }

    /// Takes a reading of the processor time used so far, and returns the part since the last one that was nobody's.
    fn read(&mut self, used: Duration, cpus: f64, now: Instant) -> Duration {
        self.count(now);
        let attended = std::mem::take(&mut self.attended);
        let (before, used_before) = self.last;
        self.last = (now, used.max(used_before));
        let own = now.duration_since(before) / OWN_PART;
        // Whatever runs beside a program is that program's.
        let covered = Duration::try_from_secs_f64(attended.as_secs_f64() * cpus).unwrap_or(Duration::MAX);
        used.saturating_sub(used_before).saturating_sub(own).saturating_sub(covered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_counted_once_and_only_beside_programs() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut ledger = Ledger::new(start);
        let read = |ledger: &mut Ledger, used, now| ledger.read(Duration::from_secs(used), 2.0, at(now)).as_secs();
        // Two programs at once cover as much as one.
        ledger.begin(at(0));
        ledger.begin(at(5));
        ledger.end(at(10));
        ledger.end(at(20));
        assert_eq!(read(&mut ledger, 40, 60), 0);
        assert_eq!(read(&mut ledger, 61, 120), 20);
        // A backend that knows no figure says zero.
        assert_eq!(read(&mut ledger, 0, 180), 0);
        assert_eq!(read(&mut ledger, 91, 240), 29);
        // A program that runs on covers the time up to each reading.
        ledger.begin(at(270));
        assert_eq!(read(&mut ledger, 211, 300), 59);
        assert_eq!(read(&mut ledger, 331, 360), 0);
        ledger.end(at(360));
        assert_eq!(read(&mut ledger, 332, 420), 0);
    }
}
