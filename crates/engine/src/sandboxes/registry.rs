//! The registry of sandboxes that clients own.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aludel_ignore::Ignore;
use aludel_sandbox::template::TemplateName;
use aludel_sandbox::{Backend, Capabilities, Error as SandboxError, Profile, SandboxId, SandboxSpec};
use aludel_store::Tenant;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error, warn};

use super::Shared;
use super::sandbox::{ClientSandbox, KeptPart, NAME, NewSandbox};
use crate::processor_time::ProcessorTime;
use crate::revoked::key_ends;
use crate::sessions::SandboxPermit;
use crate::{Error, Missing, Sessions, Tasks, creation};

/// The longest time that a request for a new sandbox waits for a permit.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests of one tenant that may wait for a permit. Each still counts for its share of requests.
const MAX_WAITING: usize = 32;
/// Time between two attempts to acquire a permit.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Attempts to pause a sandbox with its processes at the end of its time, before its files alone are kept.
const PAUSE_ATTEMPTS: u32 = 6;
/// Time for which a sandbox continues after a failed attempt: a program that waits for a disk cannot be stopped.
const PAUSE_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// All sandboxes that clients own. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    sessions: Sessions,
    tasks: Tasks,
    processor_time: ProcessorTime,
    draining: CancellationToken,
    shutdown: CancellationToken,
    lifetime: Duration,
    known: Arc<Mutex<HashMap<String, Arc<ClientSandbox>>>>,
    /// Unique names of sandboxes that are being made.
    claimed: Arc<Mutex<HashSet<OwnedName>>>,
    /// The requests that wait for a permit.
    lines: Lines,
}

/// Tenants with requests that wait for a permit; the first of each holds its mutex.
type Lines = Arc<Mutex<HashMap<Tenant, Arc<tokio::sync::Mutex<()>>>>>;

/// A request in a line. Dropping the last one removes the line.
struct OpenLine<'t> {
    lines: Lines,
    tenant: &'t Tenant,
}

impl Drop for OpenLine<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        // The map's own, and that of the request that drops it.
        if lines.get(self.tenant).is_some_and(|line| Arc::strong_count(line) <= 2) {
            lines.remove(self.tenant);
        }
    }
}

/// A tenant and the name of one of its sandboxes.
type OwnedName = (Tenant, String);

/// A unique name, taken until the sandbox is known by it. Dropping it gives the name up.
#[derive(Debug)]
struct NameClaim {
    claimed: Arc<Mutex<HashSet<OwnedName>>>,
    name: OwnedName,
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        self.claimed.lock().remove(&self.name);
    }
}

impl Sandboxes {
    /// An empty registry. It uses the permits, store and backend of the sessions; `lifetime` is the longest life of a sandbox.
    pub(crate) fn new(
        sessions: Sessions,
        tasks: Tasks,
        processor_time: ProcessorTime,
        draining: CancellationToken,
        shutdown: CancellationToken,
        lifetime: Duration,
    ) -> Self {
        Self {
            sessions,
            tasks,
            processor_time,
            draining,
            shutdown,
            lifetime,
            known: Arc::default(),
            claimed: Arc::default(),
            lines: Arc::default(),
        }
    }

    /// Capabilities of the backend.
    pub fn capabilities(&self) -> &Capabilities {
        self.backend().capabilities()
    }

    /// The further template of this name, if there is one.
    pub fn template(&self, name: &str) -> Option<TemplateName> {
        let offers = self.capabilities().templates.iter();
        offers.map(|offer| &offer.name).find(|known| known.as_str() == name).cloned()
    }

    /// The longest lifetime that may be requested.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    fn backend(&self) -> &Arc<dyn Backend> {
        self.sessions.backend()
    }

    /// Makes a sandbox. Dropping the future undoes what it began.
    pub async fn create(&self, tenant: &Tenant, new: NewSandbox) -> Result<Arc<ClientSandbox>, Error> {
        new.check(self.lifetime)?;
        // Held until the sandbox is known.
        let _claim = self.claim(tenant, &new)?;
        let permit = self.permit_in_time(tenant).await?;
        let creating = self.backend().create(SandboxId::unique(), self.backend_spec(tenant, &new));
        let sandbox = creation::observed(creating).await?;
        let sandbox = Arc::new(ClientSandbox::new(tenant.clone(), new, sandbox, self.shared(), permit));
        self.known.lock().insert(sandbox.id().to_owned(), Arc::clone(&sandbox));
        self.tasks.spawn(self.clone().end_in_time(Arc::clone(&sandbox)));
        Ok(sandbox)
    }

    /// A permit for a sandbox. While others have them all, it waits for a moment, in the order of a tenant's requests: clients that are
    /// refused come back together.
    async fn permit_in_time(&self, tenant: &Tenant) -> Result<SandboxPermit, Error> {
        let end = Instant::now() + ROOM_TIMEOUT;
        let line = Arc::clone(self.lines.lock().entry(tenant.clone()).or_default());
        let _line = OpenLine { lines: Arc::clone(&self.lines), tenant };
        // The map has it, too.
        if Arc::strong_count(&line) > MAX_WAITING + 1 {
            return self.sessions.permit(tenant).await;
        }
        let turn = async {
            let _turn = line.lock().await;
            loop {
                match self.sessions.permit(tenant).await {
                    Err(Error::SessionsFull { .. } | Error::SessionsShared { .. }) => {
                        tokio::time::sleep(ROOM_CHECK_INTERVAL).await;
                    }
                    done => return done,
                }
            }
        };
        tokio::select! {
            biased;
            done = turn => done,
            () = self.draining.cancelled() => self.sessions.permit(tenant).await,
            () = tokio::time::sleep_until(end) => self.sessions.permit(tenant).await,
        }
    }

    /// Takes the name of a sandbox that must be the only one of its tenant's with it.
    fn claim(&self, tenant: &Tenant, new: &NewSandbox) -> Result<Option<NameClaim>, Error> {
        let Some(name) = new.metadata.get(NAME).filter(|_| new.has_unique_name) else { return Ok(None) };
        let is_taken = |why: String| Err(Error::Invalid { field: "name", reason: why });
        let mut claimed = self.claimed.lock();
        let others = self.list(tenant);
        if let Some(other) = others.iter().find(|other| other.metadata().get(NAME) == Some(name)) {
            return is_taken(format!("the sandbox {} has it already", other.id()));
        }
        let name = (tenant.clone(), name.clone());
        if !claimed.insert(name.clone()) {
            return is_taken("a sandbox with it is being made".to_owned());
        }
        Ok(Some(NameClaim { claimed: Arc::clone(&self.claimed), name }))
    }

    fn shared(&self) -> Shared {
        let (store, meter) = (self.sessions.store().clone(), self.sessions.meter().clone());
        Shared { store, meter, tasks: self.tasks.clone(), processor_time: self.processor_time.clone() }
    }

    fn backend_spec(&self, tenant: &Tenant, new: &NewSandbox) -> SandboxSpec {
        let mut limits = self.sessions.limits();
        // Clients limit their own programs, and the sandbox's end limits all of them.
        limits.timeout = self.lifetime;
        limits.cpus = new.cpus.map_or(limits.cpus, |cpus| cpus.min(limits.cpus));
        limits.memory = new.memory.map_or(limits.memory, |memory| memory.min(limits.memory));
        let (owner, profile) = (Some(tenant.as_str().to_owned()), Profile::Services);
        let template = new.template.clone().or_else(|| self.sessions.template_of(tenant));
        SandboxSpec { owner, profile, template, ..SandboxSpec::new(limits) }
    }

    /// Ends a sandbox when its time or its tenant's key expires, when it ends by itself or by request, or when the process shuts down.
    async fn end_in_time(self, sandbox: Arc<ClientSandbox>) {
        let mut failures = 0;
        loop {
            tokio::select! {
                // One that is gone cannot be paused.
                biased;
                () = sandbox.ended() => break,
                () = sandbox.lost() => break,
                () = self.shutdown.cancelled() => break,
                // Then nobody can use or end it.
                () = key_ends(self.sessions.store(), sandbox.tenant()) => break,
                () = sandbox.expired() => {}
            }
            if !self.outlives_its_time(&sandbox, &mut failures).await {
                break;
            }
        }
        self.end(&sandbox).await;
    }

    /// Pauses a sandbox whose time is over, if its client wants that; `failures` counts failed attempts. Returns false if it has to end.
    async fn outlives_its_time(&self, sandbox: &ClientSandbox, failures: &mut u32) -> bool {
        let _one_at_a_time = sandbox.pausing().await;
        if sandbox.has_ended() || !sandbox.has_expired() {
            // It was resumed, or its end put off, at the last moment.
            return true;
        }
        let Some(kept) = sandbox.spec().pauses.filter(|_| !sandbox.is_paused()) else { return false };
        let id = sandbox.id();
        let Err(failure) = sandbox.pause(kept).await else {
            *failures = 0;
            sandbox.set_timeout(self.lifetime);
            return true;
        };
        *failures += 1;
        if *failures < PAUSE_ATTEMPTS {
            let seconds = PAUSE_RETRY_INTERVAL.as_secs();
            warn!(sandbox = %id, error = %failure, "a sandbox was not paused at the end of its time; trying again in {seconds} s");
            // Its client may have put its end off by more.
            sandbox.extend(PAUSE_RETRY_INTERVAL);
            return true;
        }
        error!(sandbox = %id, error = %failure, "a sandbox could not be paused at the end of its time; only its files are kept");
        sandbox.keep_files().await;
        sandbox.set_timeout(self.lifetime);
        true
    }

    /// Pauses a sandbox, to end after `timeout` from now if one is given. Returns false if it is already paused. It is finished even if the
    /// future is dropped.
    pub async fn pause(
        &self,
        sandbox: &Arc<ClientSandbox>,
        kept: KeptPart,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        let (all, sandbox) = (self.clone(), Arc::clone(sandbox));
        self.tasks
            .finish(async move {
                let _one_at_a_time = sandbox.pausing().await;
                let sandbox = all.current(&sandbox)?;
                if sandbox.is_paused() {
                    return Ok(false);
                }
                sandbox.pause(kept).await?;
                if let Some(timeout) = timeout {
                    sandbox.set_timeout(timeout);
                }
                Ok(true)
            })
            .await?
    }

    /// Resumes a sandbox, to end after `timeout` from now if one is given. If only its files are kept, another takes its place, by the same
    /// id and with the same secrets. Returns false if it is not paused. It is finished even if the future is dropped.
    pub async fn resume(&self, sandbox: &Arc<ClientSandbox>, timeout: Option<Duration>) -> Result<bool, Error> {
        let (all, sandbox) = (self.clone(), Arc::clone(sandbox));
        self.tasks
            .finish(async move {
                let _one_at_a_time = sandbox.pausing().await;
                let sandbox = all.current(&sandbox)?;
                match sandbox.paused() {
                    None => return Ok(false),
                    Some(KeptPart::Everything) => {
                        sandbox.wake().await?;
                        sandbox.set_resumed(timeout);
                    }
                    Some(KeptPart::Files) => all.restart(&sandbox, timeout).await?,
                }
                Ok(true)
            })
            .await?
    }

    /// The sandbox that has this one's id now.
    fn current(&self, sandbox: &ClientSandbox) -> Result<Arc<ClientSandbox>, Error> {
        let current = self.known.lock().get(sandbox.id()).cloned();
        current.ok_or_else(|| Error::NotFound(Missing::Sandbox(sandbox.id().to_owned())))
    }

    /// Replaces a sandbox by a new one with its files.
    async fn restart(&self, sandbox: &Arc<ClientSandbox>, timeout: Option<Duration>) -> Result<(), Error> {
        let spec = self.backend_spec(sandbox.tenant(), sandbox.spec());
        let spec = spec.with_workspace(Arc::clone(sandbox.inner().workspace()));
        let inner = match creation::observed(self.backend().create(SandboxId::unique(), spec)).await {
            Err(failure @ SandboxError::WorkspaceLost) => {
                warn!(sandbox = %sandbox.id(), error = %failure, "a paused sandbox is removed: its files are gone");
                self.end(sandbox).await;
                return Err(Error::NotFound(Missing::Sandbox(sandbox.id().to_owned())));
            }
            made => made?,
        };
        let restarted = Arc::new(sandbox.restarted(inner, self.shared()));
        let is_known = match self.known.lock().get_mut(sandbox.id()) {
            Some(known) if Arc::ptr_eq(known, sandbox) => {
                *known = Arc::clone(&restarted);
                true
            }
            _ => false,
        };
        if !is_known {
            // Its end was requested meanwhile.
            restarted.close().await;
            return Err(Error::NotFound(Missing::Sandbox(sandbox.id().to_owned())));
        }
        sandbox.leave();
        sandbox.set_resumed(timeout);
        self.tasks.spawn(self.clone().end_in_time(restarted));
        Ok(())
    }

    /// The sandbox of a tenant with this id.
    pub fn get(&self, tenant: &Tenant, id: &str) -> Option<Arc<ClientSandbox>> {
        self.known.lock().get(id).filter(|sandbox| sandbox.tenant() == tenant).cloned()
    }

    /// The sandbox of this id, of any tenant: for requests that prove their right by the sandbox's own secret.
    pub fn of_any_tenant(&self, id: &str) -> Option<Arc<ClientSandbox>> {
        self.known.lock().get(id).cloned()
    }

    /// The sandbox for which `holds` is true, of any tenant: for requests that prove their right by the sandbox's own secret.
    pub fn find(&self, holds: impl Fn(&ClientSandbox) -> bool) -> Option<Arc<ClientSandbox>> {
        let all: Vec<_> = self.known.lock().values().cloned().collect();
        all.into_iter().find(|sandbox| holds(sandbox))
    }

    /// All sandboxes of a tenant, the newest first.
    pub fn list(&self, tenant: &Tenant) -> Vec<Arc<ClientSandbox>> {
        let mut own: Vec<_> =
            self.known.lock().values().filter(|sandbox| sandbox.tenant() == tenant).cloned().collect();
        own.sort_by_key(|sandbox| Reverse(sandbox.order()));
        own
    }

    /// Ends a sandbox of a tenant, with everything in it. Returns false if there was none. It is finished even if the future is dropped.
    pub async fn kill(&self, tenant: &Tenant, id: &str) -> bool {
        let Some(sandbox) = self.get(tenant, id) else { return false };
        self.end(&sandbox).await;
        true
    }

    async fn end(&self, sandbox: &Arc<ClientSandbox>) {
        // From here on it cannot be found. Another that took its place stays.
        let is_removed = {
            let mut known = self.known.lock();
            let is_known = known.get(sandbox.id()).is_some_and(|known| Arc::ptr_eq(known, sandbox));
            is_known && known.remove(sandbox.id()).is_some()
        };
        if is_removed {
            // Nobody else would close it, if the caller left in between.
            let sandbox = Arc::clone(sandbox);
            let closing = self.tasks.spawn(async move { sandbox.close().await }.in_current_span());
            closing.await.ignore("a panic is logged");
        }
    }

    /// Sets the time from now after which a sandbox of a tenant ends. Returns its end; `None` if there is no such sandbox.
    pub fn set_timeout(&self, tenant: &Tenant, id: &str, timeout: Duration) -> Result<Option<SystemTime>, Error> {
        NewSandbox::check_timeout(timeout, self.lifetime)?;
        Ok(self.get(tenant, id).map(|sandbox| sandbox.set_timeout(timeout)))
    }
}
