//! Ready sandboxes: each with an empty workspace and a first process that has imported the modules that kernels need.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::super::{ReadyHost, StdioWorkspace};
use super::{BackendState, HostProvider};
use crate::{KernelSpec, Limits, Profile, Workspace};

/// The pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time until ready sandboxes that have died are replaced.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// The longest wait after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Ready sandboxes.
#[derive(Debug)]
pub(in crate::backends::stdio) struct StdioPool<H: HostProvider> {
    size: usize,
    limits: Limits,
    ready: Mutex<Vec<Member<H>>>,
    /// The requested profiles; the pool keeps its number of each.
    profiles: Mutex<Vec<Profile>>,
    /// Notified when a sandbox is taken.
    taken: Arc<Notify>,
}

/// A sandbox without a kernel.
#[derive(Debug)]
pub(in crate::backends::stdio) struct Member<H: HostProvider> {
    pub(super) workspace: Arc<dyn Workspace>,
    pub(super) ready: ReadyHost<H::Host>,
    pub(super) profile: Profile,
}

impl<H: HostProvider> Member<H> {
    /// Returns true unless its host or its files have ended.
    fn lives(&self, instance: &str) -> bool {
        let files = StdioWorkspace::<H::Home>::of(&self.workspace, instance);
        self.ready.is_alive() && files.is_some_and(|files| !files.is_lost())
    }
}

impl<H: HostProvider> StdioPool<H> {
    /// A pool of so many sandboxes with these limits.
    pub(super) fn new(size: usize, limits: Limits) -> Self {
        let profiles = Mutex::new(vec![Profile::Data]);
        Self { size, limits, ready: Mutex::default(), profiles, taken: Arc::default() }
    }

    /// Takes a ready sandbox with these limits and this profile, if there is one.
    pub(super) fn take(&self, limits: &Limits, profile: Profile, instance: &str) -> Option<Member<H>> {
        if self.is_off() || !are_alike(&self.limits, limits) {
            return None;
        }
        let mut profiles = self.profiles.lock();
        if !profiles.contains(&profile) {
            profiles.push(profile);
        }
        drop(profiles);
        let mut ready = self.ready.lock();
        ready.retain(|member| member.lives(instance));
        let index = ready.iter().rposition(|member| member.profile == profile);
        let found = index.map(|index| ready.swap_remove(index));
        drop(ready);
        self.taken.notify_one();
        found
    }

    /// Drops those that have died, and returns how many are ready.
    pub(super) fn ready(&self, instance: &str) -> usize {
        let mut ready = self.ready.lock();
        ready.retain(|member| member.lives(instance));
        ready.len()
    }

    /// Returns true if it keeps none.
    pub(super) fn is_off(&self) -> bool {
        self.size == 0
    }

    /// Returns a profile of which some are missing.
    fn missing(&self) -> Option<Profile> {
        let ready = self.ready.lock();
        let count = |profile| ready.iter().filter(|member| member.profile == profile).count();
        self.profiles.lock().iter().copied().find(|profile| count(*profile) < self.size)
    }
}

/// Returns true if hosts for these limits are equal. Limits of time, output and kernels do not concern the host.
fn are_alike(one: &Limits, other: &Limits) -> bool {
    let Limits { timeout, cpu_time, grace, output, kernels, .. } = other.clone();
    Limits { timeout, cpu_time, grace, output, kernels, ..one.clone() } == *other
}

/// Keeps the pool full until the backend ends.
pub(super) async fn refill<H: HostProvider>(backend: Weak<BackendState<H>>, kernel: Arc<KernelSpec>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(backend) = backend.upgrade() else { return };
        let end = backend.life().end().clone();
        let pool = backend.pool();
        let instance = backend.life().instance();
        pool.ready(instance);
        let Some(profile) = pool.missing() else {
            let (taken, is_off) = (Arc::clone(&pool.taken), pool.is_off());
            // The last reference to the backend may be dropped meanwhile.
            drop(backend);
            tokio::select! {
                () = taken.notified() => continue,
                () = tokio::time::sleep(LOOK_INTERVAL), if !is_off => continue,
                () = end.cancelled() => return,
            }
        };
        let made = tokio::select! {
            made = backend.member(&kernel, &pool.limits, profile) => made,
            () = end.cancelled() => return,
        };
        match made {
            Ok(member) => {
                pool.ready.lock().push(member);
                pause = FIRST_PAUSE;
                backend.note(None);
            }
            Err(error) => {
                // Logged once, until it works again.
                if pause == FIRST_PAUSE {
                    tracing::warn!(%error, "no sandbox could be made ready ahead");
                }
                backend.note(Some(&error));
                drop(backend);
                tokio::select! {
                    () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                    () = end.cancelled() => return,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_host_have_to_be_the_same() {
        let usual = Limits::default();
        let fast = Limits { timeout: Duration::from_secs(1), output: 1, kernels: 1, ..usual.clone() };
        assert!(are_alike(&usual, &fast));
        for other in [
            Limits { memory: 1, ..usual.clone() },
            Limits { processes: 1, ..usual.clone() },
            Limits { disk: 1, ..usual.clone() },
            Limits { cpus: 0.5, ..usual.clone() },
        ] {
            assert!(!are_alike(&usual, &other), "{other:?}");
        }
    }
}
