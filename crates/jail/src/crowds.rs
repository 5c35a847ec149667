//! The process that pauses the sandboxes with most busy threads while the warden waits for Linux.
//!
//! All kernels are forks of one process, so Linux guards the memory that they share by the same locks, and the mounts and the record
//! locks of all sandboxes by others. A program that was preempted while it holds such a lock gives it back when it gets a processor, which
//! took 10 to 60 s among hundreds of busy processes of a background group. So all of them get processor time, and stop once they leave the
//! kernel.
//!
//! The warden can look after nothing meanwhile: it is the one that waits. It publishes the start of what it does in memory that this
//! process shares, and so does the counter of locks, for which the lockers of the whole host wait.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use rustix::process::{Pid, Signal};

use crate::cgroup::Hierarchy;
use crate::stopped::{FoundProcess, StoppedProcesses, state_in};
use crate::{Step, StepError, sys};

/// Time after which the warden is late.
const PATIENCE: Duration = Duration::from_millis(200);
/// Pause between two looks at the warden.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// The shortest pause between two looks at processes that are to stop.
const STOP_PAUSE: Duration = Duration::from_millis(2);
/// Time for which they stay stopped once the warden goes on: what it does next would be late again.
const LINGER: Duration = Duration::from_millis(200);
/// The longest that they stay stopped. Something else holds the warden up then.
const MAX_HOLD: Duration = Duration::from_secs(10);
/// Time between two lines of the log about it.
const LOG_PAUSE: Duration = Duration::from_secs(60);
/// Busy threads of all sandboxes together that may go on. Those with most pause first.
const MAX_GOING_ON: usize = 32;
/// Busy threads of a sandbox that never pauses.
const MAX_SMALL: usize = 2;
/// Threads of a sandbox that are looked at.
const MAX_LOOKED_AT: usize = 1000;
/// Files with the share of a group, and the share in which it gets through.
const SHARES: [(&str, &str); 2] = [("cpu.shares", "8192"), ("cpu.weight", "800")];

/// Somebody whose waits are watched.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Waiter {
    Warden,
    LockCounter,
}

/// The waits that the process watches, in memory that it shares with the waiters: the start of what each of them does, milliseconds of the
/// monotonic clock, or 0 if it rests; and a number that is odd while sandboxes pause.
#[derive(Clone, Copy)]
pub(crate) struct Waits(&'static [AtomicU64; 3]);

impl Waits {
    /// Memory for them.
    pub(crate) fn new() -> Result<Self, StepError> {
        Ok(Self(sys::shared_numbers().step("share memory with the watch of crowds")?))
    }

    /// Marks the start of something that may wait for Linux.
    pub(crate) fn begin(self, waiter: Waiter) {
        self.since(waiter).store(now(), Ordering::Relaxed);
    }

    /// Marks its end.
    pub(crate) fn end(self, waiter: Waiter) {
        self.since(waiter).store(0, Ordering::Relaxed);
    }

    /// A number that changes whenever sandboxes begin or cease to pause; `None` while they do.
    pub(crate) fn quiet(self) -> Option<u64> {
        Some(self.holds().load(Ordering::SeqCst)).filter(|holds| holds % 2 == 0)
    }

    fn since(self, waiter: Waiter) -> &'static AtomicU64 {
        let [warden, lock_counter, _] = self.0;
        match waiter {
            Waiter::Warden => warden,
            Waiter::LockCounter => lock_counter,
        }
    }

    fn holds(self) -> &'static AtomicU64 {
        let [_, _, holds] = self.0;
        holds
    }

    /// Starts the process, for the sandboxes in groups below this hierarchy, and returns its id. It sees the processes that its caller
    /// sees.
    pub(crate) fn watch(self, hierarchy: &Hierarchy) -> Result<Pid, StepError> {
        let groups = hierarchy.parents();
        match sys::fork(0).step("fork the watch of crowds")? {
            sys::Fork::Parent(pid) => {
                // Only these two write to it. Processes of sandboxes are forks of the warden's, too.
                sys::keep_from_forks(self.0).step("keep memory from sandboxes")?;
                Ok(pid)
            }
            sys::Fork::Child => {
                if let Err(error) = self.serve(&groups) {
                    eprintln!("aludel: {error}");
                }
                sys::exit(1)
            }
        }
    }

    fn serve(self, groups: &[PathBuf]) -> Result<(), StepError> {
        sys::close_all_but(std::io::stderr().as_fd()).step("close the warden's descriptors")?;
        sys::reset_signals().step("reset the signals")?;
        rustix::thread::set_name(c"aludel-crowds").step("take a name")?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
        let mut paused = Paused::default();
        loop {
            if self.is_late() {
                let began = Instant::now();
                let count = self.hold(groups);
                paused.note(count, began.elapsed());
            }
            paused.tell();
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    fn is_late(self) -> bool {
        [Waiter::Warden, Waiter::LockCounter].into_iter().any(|waiter| {
            let since = self.since(waiter).load(Ordering::Relaxed);
            since != 0 && now().saturating_sub(since) > PATIENCE.as_millis() as u64
        })
    }

    /// Pauses the crowded sandboxes until nobody is late. Returns their number.
    fn hold(self, groups: &[PathBuf]) -> usize {
        let crowded = most_crowded(groups);
        if crowded.is_empty() {
            return 0;
        }
        self.holds().fetch_add(1, Ordering::SeqCst);
        let (began, mut late_until) = (Instant::now(), Instant::now());
        let shares: Vec<_> = crowded.iter().flat_map(|name| boost(groups, name)).collect();
        let mut stopped = StoppedProcesses::new();
        while late_until.elapsed() < LINGER && began.elapsed() < MAX_HOLD {
            let looked = Instant::now();
            if let Some(groups) = groups.first() {
                crowded.iter().for_each(|name| stop(&groups.join(name), &mut stopped));
            }
            std::thread::sleep(STOP_PAUSE.max(looked.elapsed()));
            if self.is_late() {
                late_until = Instant::now();
            }
        }
        stopped.resume();
        for RaisedShare { file, before, raised } in shares {
            // The warden may have set it meanwhile, and sets it once.
            if fs::read_to_string(&file).is_ok_and(|now| now.trim() == raised) {
                fs::write(file, before).ignore("it may have ended");
            }
        }
        self.holds().fetch_add(1, Ordering::SeqCst);
        if began.elapsed() >= MAX_HOLD {
            // It would begin again at once, and they would never run.
            while self.is_late() {
                std::thread::sleep(LOOK_PAUSE);
            }
        }
        crowded.len()
    }
}

/// Pauses that the log has not told yet.
#[derive(Default)]
struct Paused {
    times: u32,
    most: usize,
    took: Duration,
    told: Option<Instant>,
}

impl Paused {
    fn note(&mut self, sandboxes: usize, took: Duration) {
        if sandboxes > 0 {
            self.times += 1;
            self.most = self.most.max(sandboxes);
            self.took += took;
        }
    }

    /// Writes them to the log, at most once in [`LOG_PAUSE`].
    fn tell(&mut self) {
        if self.times > 0 && self.told.is_none_or(|told| told.elapsed() > LOG_PAUSE) {
            let Self { times, most, took, .. } = self;
            let ms = took.as_millis();
            let crowded = format!("those with most busy threads, up to {most}, paused {times} times, {ms} ms in all");
            // Not by a macro that panics where the disk of the log is full.
            writeln!(std::io::stderr(), "aludel: Linux held the sandboxes up: {crowded}").ignore("the log is full");
            *self = Self { told: Some(Instant::now()), ..Self::default() };
        }
    }
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64) * 1000 + (now.tv_nsec as u64) / 1_000_000
}

/// The processes of a group.
fn processes_of(group: &Path) -> Vec<Pid> {
    let listed = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    listed.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// The number of threads of a group that run or wait inside Linux. Sleeping ones have none of its locks.
fn busy_threads_of(group: &Path) -> usize {
    let listed = ["cgroup.threads", "tasks"].iter().find_map(|file| fs::read_to_string(group.join(file)).ok());
    let listed = listed.unwrap_or_default();
    let states = listed.lines().take(MAX_LOOKED_AT).filter_map(|thread| {
        let stat = fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
        state_in(&stat)
    });
    states.filter(|state| matches!(state, 'R' | 'D')).count()
}

/// The groups of the sandboxes with most busy threads, so many that the others have few together.
fn most_crowded(groups: &[PathBuf]) -> Vec<String> {
    let Some(parent) = groups.first() else { return Vec::new() };
    let names = fs::read_dir(parent).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let is_sandbox = |name: &String| name.strip_prefix('s').is_some_and(|id| id.parse::<u64>().is_ok());
    let counted = names.filter(is_sandbox).map(|name| (busy_threads_of(&parent.join(&name)), name));
    let mut counted: Vec<_> = counted.filter(|(count, _)| *count > MAX_SMALL).collect();
    counted.sort_unstable_by(|one, other| other.cmp(one));
    let mut going_on: usize = counted.iter().map(|(count, _)| count).sum();
    let mut crowded = Vec::new();
    for (count, name) in counted {
        if going_on <= MAX_GOING_ON {
            break;
        }
        going_on -= count;
        crowded.push(name);
    }
    crowded
}

/// A share of a group that was raised.
struct RaisedShare {
    file: PathBuf,
    before: String,
    raised: &'static str,
}

/// Raises the share of a group.
fn boost(groups: &[PathBuf], name: &str) -> Vec<RaisedShare> {
    let mut shares = Vec::new();
    for (parent, (file, share)) in groups.iter().flat_map(|parent| SHARES.map(|share| (parent, share))) {
        let file = parent.join(name).join(file);
        if let Ok(before) = fs::read_to_string(&file) {
            fs::write(&file, share).ignore("they take longer without it");
            shares.push(RaisedShare { file, before, raised: share });
        }
    }
    shares
}

/// Returns true for the first process of a pid namespace, for which the warden may wait.
fn is_init(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    pids.and_then(|pids| pids.split_whitespace().next_back()).is_some_and(|innermost| innermost == "1")
}

/// Stops the processes of a group that run, without its init.
fn stop(group: &Path, stopped: &mut StoppedProcesses) {
    stopped.stop(processes_of(group).into_iter().filter_map(FoundProcess::open), is_init);
}
