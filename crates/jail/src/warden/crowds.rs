//! Pauses of the sandboxes with most processes, while a fork of a fork server does not get through.
//!
//! All kernels are forks of one process, so Linux guards the memory that they share by the same locks. Where hundreds of busy processes
//! fork or end, a fork waits in line with them, and the first in line has the lock before it has a processor: on a busy host a sandbox took
//! 10 to 31 s. So all of them get processor time, and stop once they leave the kernel.

use std::cmp::Reverse;
use std::time::Instant;

use aludel_ignore::Ignore;

use super::WardenServer;
use crate::cgroup::CpuShare;
use crate::fork_server::FORK_TIMEOUT;
use crate::freezer::{FreezeProgress, Freezing, FrozenSandbox};
use crate::sandbox::JailSandbox;

/// Processes of all sandboxes together that may go on. Those with most pause first.
const MAX_GOING_ON: u64 = 32;
/// Processes of a sandbox that never pauses.
const MAX_SMALL: u64 = 4;

/// Sandboxes that pause until this is released.
#[derive(Default)]
pub(super) struct HeldCrowds {
    began: Option<Instant>,
    crowded: Vec<u64>,
    stopping: Vec<Freezing>,
    stopped: Vec<FrozenSandbox>,
}

impl HeldCrowds {
    /// Begins to stop the crowded sandboxes that are not stopped for a client, or goes on with it.
    pub(super) fn hold(&mut self, warden: &WardenServer) {
        if self.began.is_none() {
            self.began = Some(Instant::now());
            for (id, sandbox) in most_crowded(warden) {
                self.crowded.push(id);
                sandbox.cgroup.set_share(CpuShare::Boosted).ignore("they take longer without it");
                if !sandbox.is_ending {
                    let stopping = Freezing::begin(sandbox.cgroup.freezer(), sandbox.init.pid, FORK_TIMEOUT);
                    self.stopping.extend(stopping);
                }
            }
        }
        for freezing in std::mem::take(&mut self.stopping) {
            match freezing.look() {
                Ok(FreezeProgress::Done(frozen)) => self.stopped.push(frozen),
                Ok(FreezeProgress::Continues(freezing)) => self.stopping.push(freezing),
                Ok(FreezeProgress::Undone) | Err(_) => {}
            }
        }
    }

    /// Lets them go on.
    pub(super) fn release(self, warden: &WardenServer) {
        self.stopping.into_iter().for_each(|freezing| freezing.cancel().ignore("its processes may have ended"));
        self.stopped.into_iter().for_each(|frozen| frozen.thaw().ignore("its processes may have ended"));
        for id in &self.crowded {
            if let Some(sandbox) = warden.sandboxes.get(id) {
                let share = warden.foreground.share_of(*id);
                sandbox.cgroup.set_share(share).ignore("the next change sets it again");
            }
        }
        if let Some(began) = self.began.filter(|_| !self.crowded.is_empty()) {
            let (count, ms) = (self.crowded.len(), began.elapsed().as_millis());
            eprintln!("aludel: a fork was late: the {count} sandboxes with most processes had to pause for {ms} ms");
        }
    }
}

/// The sandboxes with most processes, so many that the others have few together. Those that are stopped for a client are left out.
fn most_crowded(warden: &WardenServer) -> Vec<(u64, &JailSandbox)> {
    let runs = |id: &u64, sandbox: &JailSandbox| sandbox.frozen.is_none() && !warden.freezing.contains_key(id);
    let running = warden.sandboxes.iter().filter(|(id, sandbox)| runs(id, sandbox));
    let mut counted: Vec<_> = running.map(|(id, sandbox)| (sandbox.cgroup.processes(), *id, sandbox)).collect();
    counted.retain(|(processes, ..)| *processes > MAX_SMALL);
    counted.sort_unstable_by_key(|(processes, ..)| Reverse(*processes));
    let mut going_on: u64 = counted.iter().map(|(processes, ..)| processes).sum();
    let mut crowded = Vec::new();
    for (processes, id, sandbox) in counted {
        if going_on <= MAX_GOING_ON {
            break;
        }
        going_on -= processes;
        crowded.push((id, sandbox));
    }
    crowded
}
