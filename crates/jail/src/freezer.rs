//! Freezing and thawing of a sandbox: by its control group on version 2, and by signals elsewhere.
//!
//! The freezer of version 1 is not used. It is a separate tree: joining it at the start would slow down every sandbox, and moving later
//! takes a grace period of RCU for each process, during which the warden would block.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::pid_namespace::namespace_of;
use crate::stopped::{FoundProcess, StoppedProcesses};
use crate::{Step, StepError};

/// The longest that a sandbox may take to stop for a client. Each look signals the processes that still run; until then they can fork.
pub(crate) const FREEZE_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause before a look that is put off.
const LATER: Duration = Duration::from_millis(5);
/// The shortest pause between two looks.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// A sandbox that is being stopped.
pub(crate) struct Freezing {
    frozen: FrozenSandbox,
    init: Option<Pid>,
    namespace: Option<PathBuf>,
    deadline: Instant,
    /// The time of the next look.
    pub(crate) due: Instant,
}

/// The state of a sandbox after a look.
pub(crate) enum FreezeProgress {
    /// Nothing runs.
    Done(FrozenSandbox),
    /// Something still runs, or is about to stop.
    Continues(Freezing),
    /// Something did not stop in time, for example a program that waits for a disk. Everything goes on.
    Undone,
}

impl Freezing {
    /// Begins to stop everything in a sandbox: by its control group if that can be frozen, otherwise by a signal to each process in the pid
    /// namespace of its init. What has not stopped within `limit` goes on.
    pub(crate) fn begin(group: Option<PathBuf>, init: Option<Pid>, limit: Duration) -> Result<Self, StepError> {
        let frozen = match group {
            Some(group) => {
                fs::write(group.join("cgroup.freeze"), "1").step("freeze the control group")?;
                FrozenSandbox::Group(group)
            }
            None => FrozenSandbox::Stopped(StoppedProcesses::new()),
        };
        let now = Instant::now();
        Ok(Self { frozen, init, namespace: init.and_then(namespace_of), deadline: now + limit, due: now })
    }

    /// Puts the next look off.
    pub(crate) fn later(mut self) -> Self {
        self.due = Instant::now() + LATER;
        self
    }

    /// Looks at the processes, and signals those that still run. After an error everything goes on.
    pub(crate) fn look(mut self) -> Result<FreezeProgress, StepError> {
        let began = Instant::now();
        let running = match &mut self.frozen {
            FrozenSandbox::Group(group) => Ok(usize::from(!is_frozen(group))),
            FrozenSandbox::Stopped(stopped) => stop(self.namespace.as_ref(), self.init, stopped),
        };
        let now = Instant::now();
        match running.step("look at the processes") {
            Ok(0) => Ok(FreezeProgress::Done(self.frozen)),
            Ok(_) if now <= self.deadline => {
                // However many processes the host has, looking takes at most half of the warden's time.
                self.due = now + SHORTEST_PAUSE.max(now - began);
                Ok(FreezeProgress::Continues(self))
            }
            Ok(_) => {
                self.frozen.thaw()?;
                Ok(FreezeProgress::Undone)
            }
            Err(error) => {
                self.frozen.thaw()?;
                Err(error)
            }
        }
    }

    /// Lets everything go on.
    pub(crate) fn cancel(self) -> Result<(), StepError> {
        self.frozen.thaw()
    }
}

fn is_frozen(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.events")).is_ok_and(|events| events.lines().any(|line| line == "frozen 1"))
}

/// The record that is needed to thaw a sandbox.
pub(crate) enum FrozenSandbox {
    /// Its control group.
    Group(PathBuf),
    /// Its processes.
    Stopped(StoppedProcesses),
}

impl FrozenSandbox {
    /// Thaws everything.
    pub(crate) fn thaw(self) -> Result<(), StepError> {
        match self {
            Self::Group(group) => fs::write(group.join("cgroup.freeze"), "0").step("thaw the control group"),
            Self::Stopped(stopped) => {
                stopped.resume();
                Ok(())
            }
        }
    }
}

/// Signals the processes of a namespace that still run, and returns their number. Init is left out: it acts for programs alone.
fn stop(namespace: Option<&PathBuf>, init: Option<Pid>, stopped: &mut StoppedProcesses) -> io::Result<usize> {
    if namespace.is_none() {
        return Ok(0);
    }
    let pid_of = |name: OsString| Pid::from_raw(name.to_str()?.parse().ok()?);
    let pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| pid_of(entry.file_name()));
    let found = pids.filter_map(FoundProcess::open).filter(|found| namespace_of(found.pid).as_ref() == namespace);
    Ok(stopped.stop(found, |pid| Some(pid) == init))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// A group of version 2 of the test's own, wherever that is mounted.
    fn group() -> Option<PathBuf> {
        let tops = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        let top = tops.into_iter().find(|top| top.join("cgroup.controllers").exists())?;
        let group = top.join(format!("aludel-test-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        Some(group)
    }

    fn has_grown(child: &Child, within: Duration) -> bool {
        let ticks = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.split(' ').skip(13).take(2).map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
        };
        let (before, deadline) = (ticks(), Instant::now() + within);
        while ticks() == before && Instant::now() < deadline {
            std::thread::sleep(SHORTEST_PAUSE);
        }
        ticks() > before
    }

    #[test]
    fn a_group_of_version_2_stops_and_goes_on() {
        let Some(group) = group() else {
            println!("not checked for want of control groups of version 2");
            return;
        };
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
        let long = Duration::from_secs(10);
        assert!(has_grown(&child, long), "the control: it runs");
        let mut freezing = Freezing::begin(Some(group.clone()), None, FREEZE_TIMEOUT).unwrap();
        let frozen = loop {
            match freezing.look().unwrap() {
                FreezeProgress::Done(frozen) => break frozen,
                FreezeProgress::Continues(continues) => freezing = continues,
                FreezeProgress::Undone => panic!("it is stopped in time"),
            }
            std::thread::sleep(SHORTEST_PAUSE);
        };
        let grew_while_frozen = has_grown(&child, Duration::from_millis(100));
        frozen.thaw().unwrap();
        let grew_again = has_grown(&child, long);
        child.kill().unwrap();
        child.wait().unwrap();
        crate::cgroup::remove(&group).unwrap();
        assert!(!grew_while_frozen && grew_again);
    }

    #[test]
    fn a_group_that_does_not_stop_in_time_goes_on() {
        let group = tempfile::tempdir().unwrap();
        let mut freezing = Freezing::begin(Some(group.path().to_owned()), None, FREEZE_TIMEOUT).unwrap();
        let (mut looks, began) = (0, Instant::now());
        while let FreezeProgress::Continues(continues) = freezing.look().unwrap() {
            (freezing, looks) = (continues, looks + 1);
            std::thread::sleep(SHORTEST_PAUSE);
        }
        assert!(looks > 0 && began.elapsed() >= FREEZE_TIMEOUT);
        assert_eq!(fs::read_to_string(group.path().join("cgroup.freeze")).unwrap(), "0");
    }
}
