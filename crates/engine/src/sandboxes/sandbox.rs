//! One sandbox that a client owns.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, SystemTime};

use aludel_sandbox::files::Files;
use aludel_sandbox::template::TemplateName;
use aludel_sandbox::{Sandbox, Usage};
use aludel_store::{Store, Tenant, random_hex};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::HOME;
use super::contexts::Contexts;
use super::processes::Processes;
use super::programs::RunningPrograms;
use super::watches::Watches;
use crate::Error;
use crate::environment::{MAX_BYTES, MAX_ENTRIES, check_names};
use crate::meter::Meter;
use crate::sessions::SandboxPermit;

/// Connections to its programs that go on after their request.
const MAX_TUNNELS: usize = 32;
/// Concurrent requests to its programs. Other requests of its tenant are counted separately.
const MAX_PROGRAM_REQUESTS: usize = 64;
/// Bytes of a template's name.
const MAX_NAME: usize = 128;

/// A sandbox to make.
#[derive(Debug, Clone, Default)]
pub struct NewSandbox {
    /// The template, as its client calls it.
    pub template_label: String,
    /// The template that it starts from; `None` for the usual one.
    pub template: Option<TemplateName>,
    /// The client's own notes, as they were at first.
    pub metadata: BTreeMap<String, String>,
    /// The command that its client says it is for.
    pub entrypoint: Vec<String>,
    /// Environment variables of everything that runs in it.
    pub environment: BTreeMap<String, String>,
    /// Time after which it ends.
    pub timeout: Duration,
    /// The environment variable for its id, if any.
    pub id_variable: Option<&'static str>,
    /// True if requests to its programs need a secret.
    pub private: bool,
    /// The name that its programs see as their host, with `${PORT}` for the port; `None` for the one that clients use.
    pub shown_host: Option<String>,
    /// Processors, up to the operator's limit; `None` for that limit.
    pub cpus: Option<f64>,
    /// Memory in bytes, up to the operator's limit; `None` for that limit.
    pub memory: Option<u64>,
    /// True if it is paused when its time is over, and not ended.
    pub pauses: bool,
    /// True if a request to it resumes it when it is paused.
    pub resumes: bool,
}

impl NewSandbox {
    pub(super) fn check(&self, lifetime: Duration) -> Result<(), Error> {
        let invalid = |field, reason: String| Err(Error::InvalidSandbox { field, reason });
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
            return Err(Error::InvalidSandbox { field: "timeout", reason });
        }
        Ok(())
    }
}

fn check_entries(field: &'static str, entries: &BTreeMap<String, String>) -> Result<(), Error> {
    let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
    if entries.len() > MAX_ENTRIES || bytes > MAX_BYTES {
        let reason = format!("at most {MAX_ENTRIES} entries of {} KB together", MAX_BYTES >> 10);
        return Err(Error::InvalidSandbox { field, reason });
    }
    Ok(())
}

/// A sandbox that a client owns. It lives until its time is over, its end is requested, or the process ends.
pub struct ClientSandbox {
    id: String,
    tenant: Tenant,
    new: NewSandbox,
    secret: String,
    traffic_secret: Option<String>,
    started: (Instant, SystemTime),
    order: u64,
    ends: watch::Sender<Instant>,
    sandbox: Arc<dyn Sandbox>,
    contexts: Contexts,
    watches: Watches,
    processes: Processes,
    programs: RunningPrograms,
    metadata: StdMutex<BTreeMap<String, String>>,
    paused: AtomicBool,
    /// Serializes pausing and resuming.
    pausing: Mutex<()>,
    files: Mutex<Option<Files>>,
    tunnels: Arc<Semaphore>,
    program_requests: Arc<Semaphore>,
    ended: CancellationToken,
    _permit: SandboxPermit,
}

impl fmt::Debug for ClientSandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secrets are left out.
        formatter.debug_struct("ClientSandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ClientSandbox {
    pub(super) fn new(
        tenant: Tenant,
        mut new: NewSandbox,
        sandbox: Arc<dyn Sandbox>,
        store: Store,
        meter: Meter,
        permit: SandboxPermit,
    ) -> Self {
        static ORDER: AtomicU64 = AtomicU64::new(0);
        let now = Instant::now();
        // Usable in host names: lower case and without a dash.
        let id = format!("i{:.20}", random_hex());
        if let Some(name) = new.id_variable {
            new.environment.insert(name.to_owned(), id.clone());
        }
        Self {
            contexts: Contexts::new(Arc::clone(&sandbox), &id, &new.environment),
            watches: Watches::default(),
            programs: RunningPrograms::default(),
            metadata: StdMutex::new(new.metadata.clone()),
            paused: AtomicBool::new(false),
            pausing: Mutex::default(),
            processes: Processes::new(Arc::clone(&sandbox), store, meter, tenant.clone(), id.clone()),
            id,
            secret: format!("ea_{:.40}", random_hex()),
            traffic_secret: new.private.then(|| format!("ta_{:.40}", random_hex())),
            ends: watch::Sender::new(now + new.timeout),
            started: (now, SystemTime::now()),
            order: ORDER.fetch_add(1, Ordering::Relaxed),
            tenant,
            new,
            sandbox,
            files: Mutex::default(),
            tunnels: Arc::new(Semaphore::new(MAX_TUNNELS)),
            program_requests: Arc::new(Semaphore::new(MAX_PROGRAM_REQUESTS)),
            ended: CancellationToken::new(),
            _permit: permit,
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

    /// Its id: an `i` and hexadecimal digits.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The tenant that it belongs to.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The spec that it was made by.
    pub fn spec(&self) -> &NewSandbox {
        &self.new
    }

    /// The client's own notes.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        self.metadata.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the client's own notes: those without a value go.
    pub fn change_metadata(&self, changes: BTreeMap<String, Option<String>>) -> Result<(), Error> {
        let mut known = self.metadata.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Stops everything in it until [`Self::resume`]. Its end still comes in time. Returns false if it is already paused.
    pub async fn pause(&self) -> Result<bool, Error> {
        let _one_at_a_time = self.pausing.lock().await;
        self.sandbox.pause().await?;
        Ok(!self.paused.swap(true, Ordering::Relaxed))
    }

    /// Lets it go on. Returns false if it is not paused.
    pub async fn resume(&self) -> Result<bool, Error> {
        let _one_at_a_time = self.pausing.lock().await;
        self.sandbox.resume().await?;
        Ok(self.paused.swap(false, Ordering::Relaxed))
    }

    /// Resumes it, to end after `timeout` from now. Returns false if it is not paused.
    pub async fn resume_for(&self, timeout: Duration) -> Result<bool, Error> {
        let is_resumed = self.resume().await?;
        if is_resumed {
            self.set_timeout(timeout);
        }
        Ok(is_resumed)
    }

    /// Returns true while it is paused.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// The secret that gives access to it.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The secret that gives access to its programs, if one is needed.
    pub fn traffic_secret(&self) -> Option<&str> {
        self.traffic_secret.as_deref()
    }

    /// The time when it was made.
    pub fn started(&self) -> SystemTime {
        self.started.1
    }

    /// The time when it will end.
    pub fn ends(&self) -> SystemTime {
        self.started.1 + self.ends.borrow().saturating_duration_since(self.started.0)
    }

    /// Its number in the order in which sandboxes were made.
    pub fn order(&self) -> u64 {
        self.order
    }

    pub(super) fn set_timeout(&self, timeout: Duration) -> SystemTime {
        self.ends.send_replace(Instant::now() + timeout);
        self.ends()
    }

    /// Extends its life to at least this time from now.
    pub fn extend(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        self.ends.send_if_modified(|ends| std::mem::replace(ends, end.max(*ends)) < end);
    }

    /// Waits until its time is over.
    pub(super) async fn expired(&self) {
        let mut ends = self.ends.subscribe();
        loop {
            let end = *ends.borrow_and_update();
            tokio::select! {
                () = sleep_until(end) => return,
                // The sender is a field of this sandbox.
                _changed = ends.changed() => {}
            }
        }
    }

    /// Waits until it has ended.
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

    /// The directories of which clients poll the changes.
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

    pub(super) async fn close(&self) {
        self.ended.cancel();
        if let Err(error) = self.sandbox.close().await {
            tracing::warn!(sandbox = %self.id, error = %error, "a sandbox did not end in time");
        }
    }
}
