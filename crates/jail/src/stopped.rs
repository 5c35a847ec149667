//! Processes that are stopped by signals, and go on later.
//!
//! Parents stop before their children and go on after them: a shell that waits for its job would see the job stop, and take the terminal
//! back from it as after Ctrl-Z.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Time after which children no longer wait for their parents. Whoever forks all the time has ever more generations.
const PARENTS_FIRST: Duration = Duration::from_millis(50);

/// The processes that were stopped here. Those that somebody else stopped stay as they are.
pub(crate) struct StoppedProcesses {
    began: Instant,
    /// Each with its place in the order of the stops.
    processes: HashMap<Pid, (usize, OwnedFd)>,
}

/// A process, whose pidfd was opened before anything was read about it, so that a reused process id is noticed.
pub(crate) struct FoundProcess {
    pub(crate) pid: Pid,
    process: OwnedFd,
}

impl FoundProcess {
    /// `None` if it has ended.
    pub(crate) fn open(pid: Pid) -> Option<Self> {
        Some(Self { pid, process: pidfd_open(pid, PidfdFlags::empty()).ok()? })
    }
}

impl StoppedProcesses {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), processes: HashMap::new() }
    }

    /// Returns true if a process was stopped here.
    pub(crate) fn has(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Signals those of the processes that run and whose turn it is, also those that others have continued since, but none for which
    /// `is_spared` is true. Returns the number of those that run.
    pub(crate) fn stop(&mut self, found: impl Iterator<Item = FoundProcess>, is_spared: impl Fn(Pid) -> bool) -> usize {
        let is_ours = |pid| self.runs(pid) && (self.has(pid) || !is_spared(pid));
        let running: Vec<_> = found.filter(|found| is_ours(found.pid)).collect();
        let pids: HashSet<_> = running.iter().map(|found| found.pid).collect();
        let count = running.len();
        let may_wait = self.began.elapsed() < PARENTS_FIRST;
        for FoundProcess { pid, process } in running {
            let waits = may_wait && parent_of(pid).is_some_and(|parent| pids.contains(&parent));
            if !waits && pidfd_send_signal(&process, Signal::STOP).is_ok() {
                let next = self.processes.len();
                self.processes.entry(pid).or_insert((next, process));
            }
        }
        count
    }

    /// Lets them go on.
    pub(crate) fn resume(self) {
        let mut processes: Vec<_> = self.processes.into_values().collect();
        processes.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(*place));
        for (_, process) in processes {
            pidfd_send_signal(&process, Signal::CONT).ignore("it may have ended");
        }
    }

    /// Returns true if a process runs, and is not about to stop.
    fn runs(&self, pid: Pid) -> bool {
        let states = states_of(pid);
        let is_stopped = states.iter().all(|state| matches!(state, 'T' | 't' | 'Z' | 'X'));
        // A thread in an uninterruptible wait, as a parent in `vfork` is, stops when it returns from the kernel.
        let will_stop = self.has(pid) && !states.iter().any(|state| matches!(state, 'R' | 'S'));
        !is_stopped && !will_stop
    }
}

/// The fields of a `stat` after the name, which may hold anything: the state is the first.
fn fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ')
}

/// The state in a thread's `stat`.
pub(crate) fn state_in(stat: &str) -> Option<char> {
    fields(stat).next()?.chars().next()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    Pid::from_raw(fields(&stat).nth(1)?.parse().ok()?)
}

/// The states of a process's threads.
fn states_of(pid: Pid) -> Vec<char> {
    let state = |path: PathBuf| state_in(&fs::read_to_string(path).ok()?);
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    threads.filter_map(|thread| state(thread.path().join("stat"))).collect()
}
