//! Pauses of sandboxes with many processes, while a fork of a fork server does not get through.
//!
//! All kernels are forks of one process, so Linux guards the memory that they share by the same locks. Where hundreds of busy processes
//! fork or end, a fork waits in line with them, and the first in line has the lock before it has a processor: on a busy host a sandbox took
//! 10 to 31 s. So all of them get processor time, and stop once they leave the kernel.

use std::time::Instant;

use aludel_ignore::Ignore;

use super::WardenServer;
use crate::cgroup::CpuShare;
use crate::fork_server::FORK_TIMEOUT;
use crate::freezer::{FreezeProgress, Freezing, FrozenSandbox};

/// Processes of a sandbox that may pause.
const CROWD: u64 = 32;

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
            for (id, sandbox) in &warden.sandboxes {
                let is_stopped = sandbox.frozen.is_some() || warden.freezing.contains_key(id);
                if !is_stopped && sandbox.cgroup.processes() >= CROWD {
                    self.crowded.push(*id);
                    sandbox.cgroup.set_share(CpuShare::Boosted).ignore("they take longer without it");
                    let stopping = Freezing::begin(sandbox.cgroup.freezer(), sandbox.init.pid, FORK_TIMEOUT);
                    self.stopping.extend(stopping.ok().filter(|_| !sandbox.is_ending));
                }
            }
        }
        for freezing in std::mem::take(&mut self.stopping) {
            if freezing.due > Instant::now() {
                self.stopping.push(freezing);
                continue;
            }
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
            eprintln!(
                "aludel: a fork was late: {count} sandboxes of {CROWD} processes or more had to pause for {ms} ms"
            );
        }
    }
}
