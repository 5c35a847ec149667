//! One sandbox that a client owns.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aludel_sandbox::files::Files;
use aludel_sandbox::template::TemplateName;
use aludel_sandbox::{Sandbox, Usage};
use aludel_store::{Tenant, random_hex};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::contexts::Contexts;
use super::processes::Processes;
use super::programs::RunningPrograms;
use super::watches::Watches;
use super::{HOME, Shared};
use crate::Error;
use crate::environment::{MAX_BYTES, MAX_ENTRIES, check_names};
use crate::meter::Leftovers;
use crate::sessions::SandboxPermit;

/// Connections to its programs that outlive their request.
const MAX_TUNNELS: usize = 32;
/// Concurrent requests to its programs. Other requests of its tenant are counted separately.
const MAX_PROGRAM_REQUESTS: usize = 64;
/// Lists of its files that are made at once. Each may take tens of megabytes until it is a text.
const MAX_LISTINGS: usize = 2;
/// Bytes of a template's name.
const MAX_NAME: usize = 128;

/// The note with a sandbox's name.
pub(super) const NAME: &str = "name";

/// A sandbox to make.
#[derive(Debug, Clone, Default)]
pub struct NewSandbox {
    /// The template, as its client calls it.
    pub template_label: String,
    /// The template that it starts from; `None` for the usual one.
    pub template: Option<TemplateName>,
    /// The client's own notes, as they were at first.
    pub metadata: BTreeMap<String, String>,
    /// True if no other sandbox of its tenant may have its name, the note `name`.
    pub has_unique_name: bool,
    /// The command that its client declares it is for.
    pub entrypoint: Vec<String>,
    /// Environment variables of everything that runs in it.
    pub environment: BTreeMap<String, String>,
    /// Time after which it ends.
    pub timeout: Duration,
    /// The environment variable for its id, if any.
    pub id_variable: Option<&'static str>,
    /// True if requests to its programs need a secret.
    pub private: bool,
    /// True if its id is enough to manage its contexts: only its owner is told the id.
    pub contexts_by_id: bool,
    /// The name that its programs see as their host, with `${PORT}` for the port; `None` for the one that clients use.
    pub shown_host: Option<String>,
    /// Processors, up to the operator's limit; `None` for that limit.
    pub cpus: Option<f64>,
    /// Memory in bytes, up to the operator's limit; `None` for that limit.
    pub memory: Option<u64>,
    /// The part that a pause keeps when its time is over; `None` if it ends then.
    pub pauses: Option<KeptPart>,
    /// True if a request resumes it while it is paused, unless the pause keeps only its files.
    pub resumes: bool,
}

/// The part of a sandbox that a pause keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptPart {
    /// All of it: its processes stop until it is resumed.
    Everything,
    /// Its home directory: its processes end and their memory is free for others.
    Files,
}

impl NewSandbox {
    pub(super) fn check(&self, lifetime: Duration) -> Result<(), Error> {
        let invalid = |field, reason: String| Err(Error::Invalid { field, reason });
        if self.template_label.len() > MAX_NAME {
            return invalid("template", format!("a template's name has at most {MAX_NAME} bytes"));
        }
        let words: usize = self.entrypoint.iter().map(String::len).sum();
        if self.entrypoint.len() > MAX_ENTRIES || words > MAX_BYTES {
            return invalid("entrypoint", format!("at most {MAX_ENTRIES} words of {} KB together", MAX_BYTES >> 10));
        }
        check_entries("metadata", &self.metadata)?;
        check_entries("environment", &self.environment)?;
        check_names(&self.environment)?;
        Self::check_timeout(self.timeout, lifetime)
    }

    pub(super) fn check_timeout(timeout: Duration, lifetime: Duration) -> Result<(), Error> {
        if timeout > lifetime {
            let reason = format!(
                "a sandbox may live for at most {} s (sandbox.lifetime); ask for less and extend it later",
                lifetime.as_secs()
            );
            return Err(Error::Invalid { field: "timeout", reason });
        }
        Ok(())
    }
}

fn check_entries(field: &'static str, entries: &BTreeMap<String, String>) -> Result<(), Error> {
    let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
    if entries.len() > MAX_ENTRIES || bytes > MAX_BYTES {
        let reason = format!("at most {MAX_ENTRIES} entries of {} KB together", MAX_BYTES >> 10);
        return Err(Error::Invalid { field, reason });
    }
    Ok(())
}

/// A sandbox that a client owns. It lives until its time is over, its end is requested, or the process ends.
pub struct ClientSandbox {
    identity: Arc<Identity>,
    sandbox: Arc<dyn Sandbox>,
    contexts: Contexts,
    watches: Watches,
    processes: Processes,
    programs: RunningPrograms,
    leftovers: Arc<Leftovers>,
    paused: watch::Sender<Option<KeptPart>>,
    files: AsyncMutex<Option<Files>>,
    tunnels: Arc<Semaphore>,
    program_requests: Arc<Semaphore>,
    listings: Semaphore,
    ended: CancellationToken,
}

/// The part of a client's sandbox that outlives its processes.
struct Identity {
    id: String,
    tenant: Tenant,
    new: NewSandbox,
    secret: String,
    traffic_secret: Option<String>,
    started: (Instant, SystemTime),
    order: u64,
    ends: watch::Sender<Instant>,
    metadata: Mutex<BTreeMap<String, String>>,
    /// Serializes pausing and resuming.
    pausing: AsyncMutex<()>,
    /// The number of the last command, so that none comes twice in the audit log.
    last_command: Arc<AtomicU32>,
    _permit: SandboxPermit,
}

impl fmt::Debug for ClientSandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secrets are left out.
        formatter.debug_struct("ClientSandbox").field("id", &self.identity.id).finish_non_exhaustive()
    }
}

impl ClientSandbox {
    pub(super) fn new(
        tenant: Tenant,
        mut new: NewSandbox,
        sandbox: Arc<dyn Sandbox>,
        shared: Shared,
        permit: SandboxPermit,
    ) -> Self {
        static ORDER: AtomicU64 = AtomicU64::new(0);
        let now = Instant::now();
        // Usable in host names: lower case and without a dash.
        let id = format!("i{:.20}", random_hex());
        if let Some(name) = new.id_variable {
            new.environment.insert(name.to_owned(), id.clone());
        }
        let identity = Identity {
            id,
            secret: format!("ea_{:.40}", random_hex()),
            traffic_secret: new.private.then(|| format!("ta_{:.40}", random_hex())),
            ends: watch::Sender::new(now + new.timeout),
            started: (now, SystemTime::now()),
            order: ORDER.fetch_add(1, Ordering::Relaxed),
            metadata: Mutex::new(new.metadata.clone()),
            pausing: AsyncMutex::default(),
            last_command: Arc::default(),
            tenant,
            new,
            _permit: permit,
        };
        Self::with_identity(Arc::new(identity), sandbox, shared)
    }

    /// The client's same sandbox, over a new one of the backend.
    pub(super) fn restarted(&self, sandbox: Arc<dyn Sandbox>, shared: Shared) -> Self {
        Self::with_identity(Arc::clone(&self.identity), sandbox, shared)
    }

    fn with_identity(identity: Arc<Identity>, sandbox: Arc<dyn Sandbox>, shared: Shared) -> Self {
        let (id, tenant, last) = (identity.id.clone(), identity.tenant.clone(), Arc::clone(&identity.last_command));
        let leftovers = Arc::new(Leftovers::new(Arc::clone(&sandbox), shared.meter.account(&tenant)));
        let counted = Arc::clone(&leftovers);
        let share = shared.processor_time.share_of(&tenant);
        let environment = &identity.new.environment;
        Self {
            contexts: Contexts::new(Arc::clone(&sandbox), Arc::clone(&leftovers), &id, environment, share),
            watches: Watches::default(),
            processes: Processes::new(Arc::clone(&sandbox), counted, shared, tenant, id, last),
            programs: RunningPrograms::default(),
            leftovers,
            paused: watch::Sender::default(),
            identity,
            sandbox,
            files: AsyncMutex::default(),
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
            program_requests: Arc::new(Semaphore::new(MAX_PROGRAM_REQUESTS)),
            listings: Semaphore::new(MAX_LISTINGS),
            ended: CancellationToken::new(),
        }
    }

    /// A permit for a connection to one of its programs that outlives its request, if one is free.
    pub fn tunnel(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.tunnels).try_acquire_owned().ok()
    }

    /// A permit for a request to one of its programs, if one is free.
    pub fn program_request(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.program_requests).try_acquire_owned().ok()
    }

    /// A turn at making a list of its files.
    pub async fn listing(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.listings.acquire().await.ok()
    }

    /// Its id: an `i` and hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.identity.id
    }

    /// The tenant that it belongs to.
    pub fn tenant(&self) -> &Tenant {
        &self.identity.tenant
    }

    /// The request that made it.
    pub fn spec(&self) -> &NewSandbox {
        &self.identity.new
    }

    /// The client's own notes.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        self.identity.metadata.lock().clone()
    }

    /// Changes the client's own notes: those without a value go.
    pub fn change_metadata(&self, changes: BTreeMap<String, Option<String>>) -> Result<(), Error> {
        let mut known = self.identity.metadata.lock();
        let mut changed = known.clone();
        for (key, value) in changes {
            match value {
                Some(value) => changed.insert(key, value),
                None => changed.remove(&key),
            };
        }
        check_entries("metadata", &changed)?;
        *known = changed;
        Ok(())
    }

    /// Locks pausing and resuming of it and of its successors.
    pub(super) async fn pausing(&self) -> MutexGuard<'_, ()> {
        self.identity.pausing.lock().await
    }

    /// Stops everything in it, or ends all but its files. Call it with [`Self::pausing`] locked, and do not drop the future.
    pub(super) async fn pause(&self, kept: KeptPart) -> Result<(), Error> {
        match kept {
            KeptPart::Everything => {
                self.sandbox.pause().await?;
                self.set_paused(Some(kept));
            }
            KeptPart::Files => self.keep_files().await,
        }
        Ok(())
    }

    /// Ends all of it but its files, even if processes take long to end. Call it as [`Self::pause`].
    pub(super) async fn keep_files(&self) {
        // Before their end, which is not to be taken for that of the client's sandbox.
        self.set_paused(Some(KeptPart::Files));
        self.end_processes().await;
    }

    /// Continues everything in it. Call it as [`Self::pause`].
    pub(super) async fn wake(&self) -> Result<(), Error> {
        Ok(self.sandbox.resume().await?)
    }

    pub(super) fn set_resumed(&self, timeout: Option<Duration>) {
        self.set_paused(None);
        if let Some(timeout) = timeout {
            self.set_timeout(timeout);
        }
    }

    fn set_paused(&self, kept: Option<KeptPart>) {
        self.paused.send_replace(kept);
        self.processes.set_paused(kept == Some(KeptPart::Everything));
    }

    /// The part that its pause keeps; `None` while it is not paused.
    pub fn paused(&self) -> Option<KeptPart> {
        *self.paused.borrow()
    }

    /// Returns true while it is paused.
    pub fn is_paused(&self) -> bool {
        self.paused().is_some()
    }

    /// Waits until everything in it is paused, or it has ended. Then no answer comes from it. A pause that keeps only the files is no such
    /// pause: it ends the processes, and their streams tell it.
    pub async fn suspended_or_ended(&self) {
        let mut paused = self.paused.subscribe();
        tokio::select! {
            () = self.ended() => {}
            // The sender is a field of this sandbox.
            _paused = paused.wait_for(|kept| *kept == Some(KeptPart::Everything)) => {}
        }
    }

    /// Waits until the backend has lost it.
    pub(super) async fn lost(&self) {
        self.sandbox.lost().await;
        if self.paused() == Some(KeptPart::Files) {
            // It is gone because only its files are kept.
            std::future::pending().await
        }
    }

    /// The secret that gives access to it.
    pub fn secret(&self) -> &str {
        &self.identity.secret
    }

    /// The secret that gives access to its programs, if one is needed.
    pub fn traffic_secret(&self) -> Option<&str> {
        self.identity.traffic_secret.as_deref()
    }

    /// The time when it was made.
    pub fn started(&self) -> SystemTime {
        self.identity.started.1
    }

    /// The time when it will end.
    pub fn ends(&self) -> SystemTime {
        self.identity.started.1 + self.identity.ends.borrow().saturating_duration_since(self.identity.started.0)
    }

    /// Its number in the order in which sandboxes were made.
    pub fn order(&self) -> u64 {
        self.identity.order
    }

    pub(super) fn set_timeout(&self, timeout: Duration) -> SystemTime {
        self.identity.ends.send_replace(Instant::now() + timeout);
        self.ends()
    }

    /// Extends its life to at least this time from now.
    pub fn extend(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        self.identity.ends.send_if_modified(|ends| std::mem::replace(ends, end.max(*ends)) < end);
    }

    /// Returns true once its time is over.
    pub(super) fn has_expired(&self) -> bool {
        *self.identity.ends.borrow() <= Instant::now()
    }

    /// Waits until its time is over.
    pub(super) async fn expired(&self) {
        let mut ends = self.identity.ends.subscribe();
        loop {
            let end = *ends.borrow_and_update();
            tokio::select! {
                () = sleep_until(end) => return,
                // The sender is a field of this sandbox.
                _changed = ends.changed() => {}
            }
        }
    }

    /// Returns true once it has ended, or another has taken its place.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Waits until it has ended, or another has taken its place.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// The sandbox of the backend.
    pub fn inner(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// Its kernels.
    pub fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// The directories whose changes clients poll.
    pub fn watches(&self) -> &Watches {
        &self.watches
    }

    /// The commands that run in it.
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// The programs that run in it and can be interrupted.
    pub fn programs(&self) -> &RunningPrograms {
        &self.programs
    }

    /// The resources that it uses.
    pub async fn usage(&self) -> Usage {
        self.sandbox.usage().await
    }

    /// Its files. Their server is started on first use, or again if it has ended.
    pub async fn files(&self) -> Result<Files, Error> {
        let mut files = self.files.lock().await;
        if let Some(running) = files.as_ref().filter(|files| files.is_alive()) {
            return Ok(running.clone());
        }
        let started = Files::start(&*self.sandbox, HOME).await?;
        *files = Some(started.clone());
        Ok(started)
    }

    /// Ends all that waits for it.
    pub(super) fn leave(&self) {
        self.ended.cancel();
    }

    pub(super) async fn close(&self) {
        self.leave();
        self.end_processes().await;
    }

    async fn end_processes(&self) {
        self.leftovers.count().await;
        if let Err(error) = self.sandbox.close().await {
            tracing::warn!(sandbox = %self.identity.id, error = %error, "a sandbox did not end in time");
        }
    }
}
