//! The request to end a build, for a process that catches the signals that would end it.

use std::process::Child;
use std::sync::Arc;

use aludel_ignore::Ignore;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

/// Ends the builds that know it: kills the command that runs, and lets none start. Clones are the same request.
#[derive(Debug, Clone, Default)]
pub struct BuildCancellation(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    was_asked: bool,
    /// The process group of the command that runs.
    group: Option<Pid>,
}

impl BuildCancellation {
    /// Asks builds to end. They remove what they made and fail.
    pub fn cancel(&self) {
        let mut state = self.0.lock();
        state.was_asked = true;
        state.kill();
    }

    /// Returns true if builds were asked to end.
    pub(super) fn was_asked(&self) -> bool {
        self.0.lock().was_asked
    }

    /// Takes note of a command, which leads a process group of its own.
    pub(super) fn watch(&self, child: &Child) {
        let mut state = self.0.lock();
        state.group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        if state.was_asked {
            state.kill();
        }
    }

    /// Forgets the command, before its end is waited for and its number becomes another's.
    pub(super) fn unwatch(&self) {
        self.0.lock().group = None;
    }
}

impl State {
    fn kill(&self) {
        if let Some(group) = self.group {
            kill_process_group(group, Signal::KILL).ignore("it may have ended");
        }
    }
}
