//! The registry of sessions: stored, known and live ones.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use aludel_sandbox::template::TemplateName;
use aludel_sandbox::{Backend, EventMemory, Health, KernelSpec, Limits};
use aludel_store::{FileId, FileOrigin, NewSessionRecord, SessionId, SessionRecord, Store, Tenant};
use futures_util::StreamExt as _;
use futures_util::stream::iter;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::names::{check_directories, free_name};
use super::session::new_file;
use super::{MemoryTier, Session, check_name};
use crate::error::Missing;
use crate::event_memories::EventMemories;
use crate::meter::{Account, Meter, SandboxTime};
use crate::permits::{NoRoom, Permit, Permits};
use crate::{Engine, Environment, Error, SessionSettings, Tasks};

/// Files that can be put into a new session by their ids.
const MAX_FILES: usize = 50;
/// Idle time after which a session without a sandbox is forgotten here.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Sandboxes that are ending while others are made in their place.
const MAX_ENDS: usize = 8;
/// Idle sandboxes that end at once: one may take seconds.
const ENDED_AT_ONCE: usize = 16;

/// All sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Sessions {
    shared: Arc<SessionContext>,
    known: Arc<SessionTable>,
}

/// Sessions that are in use or live.
type SessionTable = Mutex<HashMap<SessionId, Arc<Session>>>;

/// A permit for one live sandbox, whose time is counted when this is dropped.
#[derive(Debug)]
pub(crate) struct SandboxPermit {
    _permit: Permit,
    _time: SandboxTime,
}

/// State that all sessions share.
#[derive(Debug)]
pub(super) struct SessionContext {
    pub(super) store: Store,
    pub(super) backend: Arc<dyn Backend>,
    settings: SessionSettings,
    /// Permits for live sandboxes, shared between tenants.
    permits: Arc<Permits>,
    /// Permits for sandboxes that end while others are made in their place.
    ends: Arc<Semaphore>,
    meter: Meter,
    event_memories: EventMemories,
    /// Weak, because sessions hold this context.
    known: Weak<SessionTable>,
}

/// The session that a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionChoice {
    /// A new one.
    Auto {
        /// Uploaded files to put in.
        file_ids: Vec<FileId>,
        /// The memory that it may use.
        memory: Option<MemoryTier>,
    },
    /// The session of this name, or a new one.
    Named {
        /// The name.
        name: String,
        /// The memory of a new session.
        memory: Option<MemoryTier>,
    },
    /// The session of an earlier part of the conversation, even if it has expired.
    Reuse(SessionId),
    /// This one and no other.
    Explicit(SessionId),
}

/// A session to make.
#[derive(Debug)]
pub struct NewSession {
    /// Its name, which need not be unique.
    pub name: String,
    /// Uploaded files to put in.
    pub file_ids: Vec<FileId>,
    /// The memory that it may use, if not as much as usual.
    pub memory: Option<MemoryTier>,
    /// The idle time after which it expires, if not the usual one.
    pub idle: Option<Duration>,
    /// Environment variables of its programs.
    pub environment: Environment,
}

impl NewSession {
    /// A session of this name, without files and variables, with the usual memory and idle time.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), file_ids: Vec::new(), memory: None, idle: None, environment: Environment::default() }
    }
}

/// A live session that nobody uses.
struct IdleSession {
    id: SessionId,
    tenant: Tenant,
    last_active: Instant,
}

/// Returns true if a session is live and has no users.
fn is_idle(session: &Arc<Session>) -> bool {
    // One reference is the map's own, and others are only made while the map is locked.
    Arc::strong_count(session) == 1 && session.is_live()
}

impl SessionContext {
    /// The template of a tenant; `None` for the usual one.
    pub(super) fn template_of(&self, tenant: &Tenant) -> Option<TemplateName> {
        self.settings.template_of(tenant).cloned()
    }

    /// The environment variables of all programs.
    pub(crate) fn environment(&self) -> &Environment {
        &self.settings.environment
    }

    /// A tenant's account.
    pub(super) fn account(&self, tenant: &Tenant) -> Account {
        self.meter.account(tenant)
    }

    /// A tenant's memory for long events of its programs.
    pub(super) fn event_memory(&self, tenant: &Tenant) -> EventMemory {
        self.event_memories.of(tenant)
    }

    /// The limits of a session whose row has this memory.
    pub(super) fn limits_of(&self, memory: Option<&str>) -> Limits {
        match memory.and_then(MemoryTier::parse) {
            Some(asked) => asked.limits(&self.settings.limits, self.settings.max_memory),
            None => self.settings.limits.clone(),
        }
    }

    /// A permit for a live sandbox, for a tenant that has storage left.
    pub(super) async fn permit_for(&self, tenant: &Tenant) -> Result<SandboxPermit, Error> {
        self.store.check_room(tenant, 1).await?;
        loop {
            let idle = self.idle_sessions(tenant);
            let limit = self.settings.sessions;
            let spare = idle.iter().filter(|session| session.tenant != *tenant).count();
            let (evicted, error) = match self.permits.acquire_beside(tenant, spare) {
                Ok(permit) => return Ok(SandboxPermit { _permit: permit, _time: self.meter.sandbox(tenant) }),
                Err(NoRoom::AtAll) => (idle.first(), Error::SessionsFull { limit }),
                Err(NoRoom::ForThisTenant) => {
                    (idle.iter().find(|session| session.tenant == *tenant), Error::SessionsShared { limit })
                }
            };
            let Some(evicted) = evicted else { return Err(error) };
            // Its files are kept; its next use opens another sandbox. If it is in use again by now, another one is found.
            if let Some(session) = self.take_if_idle(&evicted.id) {
                session.make_room(&self.ends).await;
            }
        }
    }

    /// The idle live sessions that may be ended for another one of a tenant: its own, and those of tenants with more. Sorted: first those
    /// of the tenant with most, the longest idle first.
    fn idle_sessions(&self, tenant: &Tenant) -> Vec<IdleSession> {
        let Some(known) = self.known.upgrade() else { return Vec::new() };
        let taken = self.permits.in_use_by_tenant();
        let count = |tenant: &Tenant| taken.get(tenant).copied().unwrap_or_default();
        let known = known.lock();
        let may_end = |session: &&Arc<Session>| {
            is_idle(session) && (session.tenant() == tenant || count(session.tenant()) > count(tenant))
        };
        let idle = known.values().filter(may_end).map(|session| IdleSession {
            id: session.id().clone(),
            tenant: session.tenant().clone(),
            last_active: session.last_active(),
        });
        let mut idle: Vec<IdleSession> = idle.collect();
        idle.sort_by_key(|session| (Reverse(count(&session.tenant)), session.last_active));
        idle
    }

    /// Removes a session from the table if it is still idle.
    fn take_if_idle(&self, id: &SessionId) -> Option<Arc<Session>> {
        let known = self.known.upgrade()?;
        let mut known = known.lock();
        known.get(id).filter(|session| is_idle(session))?;
        known.remove(id)
    }
}

impl Sessions {
    /// A registry without known sessions; stored ones are found on demand.
    pub fn new(store: Store, backend: Arc<dyn Backend>, settings: SessionSettings, meter: Meter) -> Self {
        store.limit_storage(settings.storage);
        let permits = Permits::new(settings.sessions, settings.sessions);
        let known = Arc::default();
        Self {
            shared: Arc::new(SessionContext {
                store,
                backend,
                settings,
                permits,
                ends: Arc::new(Semaphore::new(MAX_ENDS)),
                meter,
                event_memories: EventMemories::default(),
                known: Arc::downgrade(&known),
            }),
            known,
        }
    }

    /// The kernel that programs run in.
    pub(crate) fn kernel(&self) -> &KernelSpec {
        self.shared.backend.capabilities().kernel()
    }

    /// The source of sandboxes.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.shared.backend
    }

    /// The state.
    pub(crate) fn store(&self) -> &Store {
        &self.shared.store
    }

    /// A tenant's memory for long events of its programs.
    pub(crate) fn event_memory(&self, tenant: &Tenant) -> EventMemory {
        self.shared.event_memory(tenant)
    }

    /// The meter.
    pub(crate) fn meter(&self) -> &Meter {
        &self.shared.meter
    }

    /// The template of a tenant; `None` for the usual one.
    pub(crate) fn template_of(&self, tenant: &Tenant) -> Option<TemplateName> {
        self.shared.template_of(tenant)
    }

    /// The environment variables of all programs.
    pub(crate) fn environment(&self) -> &Environment {
        self.shared.environment()
    }

    /// The limits of a session that asks for none.
    pub(crate) fn limits(&self) -> Limits {
        self.shared.limits_of(None)
    }

    /// A permit for a live sandbox without a session, which is not ended for others.
    pub(crate) async fn permit(&self, tenant: &Tenant) -> Result<SandboxPermit, Error> {
        self.shared.permit_for(tenant).await
    }

    /// Returns the backend's health as far as it is known, without trying.
    pub(crate) fn backend_health(&self) -> Health {
        self.shared.backend.health()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Session>>> {
        self.known.lock()
    }

    /// The sessions in the table.
    #[cfg(test)]
    pub(super) fn known_ids(&self) -> Vec<SessionId> {
        self.known().keys().cloned().collect()
    }

    /// The session that a request wants, in use from now on.
    pub async fn open(&self, tenant: &Tenant, choice: SessionChoice) -> Result<Arc<Session>, Error> {
        let id = match choice {
            SessionChoice::Auto { file_ids, memory } => {
                return self.create_auto(tenant, file_ids, memory).await;
            }
            SessionChoice::Named { name, memory } => {
                let (memory_limit, idle) = (memory.map(|memory| memory.word()), self.shared.settings.idle);
                let new = NewSessionRecord { name, memory_limit, idle, variables: None };
                let record = self.shared.store.session_by_name(tenant, new).await?;
                return self.enter(tenant, &record).await?.ok_or_else(|| Error::no_session(&record.id));
            }
            SessionChoice::Reuse(ref id) | SessionChoice::Explicit(ref id) => id,
        };
        let record = self.shared.store.session(tenant, id).await?;
        let is_explicit = matches!(choice, SessionChoice::Explicit(_));
        let entered = match record {
            Some(record) if is_explicit && self.status(&record) == SessionStatus::Expired => {
                return Err(Error::Expired(id.to_string()));
            }
            Some(record) => self.enter(tenant, &record).await?,
            None => None,
        };
        match entered {
            Some(session) => Ok(session),
            None if is_explicit => Err(Error::no_session(id)),
            None => self.create_auto(tenant, Vec::new(), None).await,
        }
    }

    async fn create_auto(
        &self,
        tenant: &Tenant,
        file_ids: Vec<FileId>,
        memory: Option<MemoryTier>,
    ) -> Result<Arc<Session>, Error> {
        let new = NewSession { file_ids, memory, ..NewSession::named("auto") };
        Ok(self.create(tenant, new).await?.0)
    }

    /// Makes a session with its files, all or nothing. It gets a sandbox when a program needs one.
    pub async fn create(&self, tenant: &Tenant, new: NewSession) -> Result<(Arc<Session>, SessionRecord), Error> {
        let NewSession { name, file_ids, memory, idle, environment } = new;
        if file_ids.len() > MAX_FILES {
            return Err(Error::TooManyFiles { limit: MAX_FILES });
        }
        let memory_limit = memory.map(|memory| memory.word());
        let limits = self.shared.limits_of(memory_limit.as_deref());
        let (mut files, mut taken, mut bytes) = (Vec::new(), HashSet::new(), 0);
        for id in &file_ids {
            let file = self.shared.store.file(tenant, id).await?;
            let file = file.ok_or_else(|| Error::NotFound(Missing::File(id.to_string())))?;
            let path = free_name(&file.filename, &taken);
            check_name(&path)?;
            check_directories(&path, taken.iter().map(String::as_str))?;
            bytes += file.bytes;
            files.push((new_file(&path, &file.mime, FileOrigin::User), file.blob));
            taken.insert(path);
        }
        if bytes > limits.disk || files.len() as u64 > limits.files {
            return Err(Error::WorkspaceFull { limit: limits.disk });
        }
        let idle = idle.unwrap_or(self.shared.settings.idle);
        let new = NewSessionRecord { name, memory_limit, idle, variables: environment.to_json() };
        let record = self.shared.store.add_session(tenant, new, files).await?;
        Ok((self.know(tenant, &record), record))
    }

    /// Adds a session to the table, and records that it is in use. `None` if it was deleted meanwhile.
    async fn enter(&self, tenant: &Tenant, record: &SessionRecord) -> Result<Option<Arc<Session>>, Error> {
        let session = self.know(tenant, record);
        if !self.shared.store.touch_session(tenant, &record.id).await? {
            // Maybe before it was in the table.
            self.known().remove(&record.id);
            session.delete().await;
            return Ok(None);
        }
        Ok(Some(session))
    }

    fn know(&self, tenant: &Tenant, record: &SessionRecord) -> Arc<Session> {
        let mut known = self.known();
        let make = || Arc::new(Session::new(Arc::clone(&self.shared), tenant.clone(), record));
        let session = Arc::clone(known.entry(record.id.clone()).or_insert_with(make));
        session.touch();
        session
    }

    /// Returns the status of a session.
    pub fn status(&self, record: &SessionRecord) -> SessionStatus {
        // A session in use does not expire, however long the use takes, nor one whose sandbox still has its variables.
        let is_kept = |session: &Arc<Session>| !session.is_expired() || session.is_live();
        let used = self.known().get(&record.id).is_some_and(is_kept);
        if used || !record.is_expired() { SessionStatus::Running } else { SessionStatus::Expired }
    }

    /// Removes a session with its files. Returns false if there was none.
    pub async fn delete(&self, tenant: &Tenant, id: &SessionId) -> Result<bool, Error> {
        if !self.shared.store.delete_session(tenant, id).await? {
            return Ok(false);
        }
        // Without its row, no other request enters it.
        let session = self.known().remove(id);
        if let Some(session) = session {
            session.delete().await;
        }
        Ok(true)
    }

    /// Removes a session that was made for a request which could not be begun.
    pub async fn remove_unused(&self, session: &Session) {
        if let Err(error) = self.delete(session.tenant(), session.id()).await {
            // It will expire.
            tracing::error!("cannot remove {}: {error}", session.id());
        }
    }

    /// The tenants of the sessions in the table.
    pub(crate) fn tenants(&self) -> Vec<Tenant> {
        self.known().values().map(|session| session.tenant().clone()).collect()
    }

    /// Ends the sandboxes of a tenant's sessions, whatever runs in them.
    pub(crate) fn end_all_of(&self, tenant: &Tenant, tasks: &Tasks) {
        for (_, session) in self.known().extract_if(|_, session| session.tenant() == tenant) {
            tasks.spawn(async move { session.end().await });
        }
    }

    /// Ends sessions that were idle too long, and records which are in use.
    pub(crate) async fn reap_once(&self) {
        // Before any is forgotten: whoever opens it again hears of its programs from the store.
        let ran: Vec<_> = self.known().values().filter(|session| session.has_programs_to_note()).cloned().collect();
        for session in ran {
            session.note_programs().await;
        }
        let (mut ended, mut used) = (Vec::new(), Vec::new());
        self.known().retain(|_, session| {
            // One reference is the map's own, and others are only made while the map is locked.
            let in_use = Arc::strong_count(session) > 1;
            if in_use {
                session.touch();
                used.push(Arc::clone(session));
            } else if session.is_expired() || session.has_lingered() {
                ended.push(Arc::clone(session));
                return false;
            }
            // The store has all that there is of a session without a sandbox.
            in_use || session.is_live() || session.last_active().elapsed() < FORGET_AFTER
        });
        for session in used {
            if let Err(error) = self.shared.store.touch_session(session.tenant(), session.id()).await {
                tracing::error!("cannot note that {} is in use: {error}", session.id());
            }
        }
        let end = async |session: Arc<Session>| {
            session.end().await;
            // It may have been opened again since.
            let is_over = session.is_expired() && !self.known().contains_key(session.id());
            if is_over && let Err(error) = self.shared.store.expire_session(session.tenant(), session.id()).await {
                tracing::error!("cannot note that {} has expired: {error}", session.id());
            }
        };
        iter(ended).for_each_concurrent(ENDED_AT_ONCE, end).await;
    }

    /// The number of permits in use: of live sandboxes, and those reserved for one.
    pub fn in_use(&self) -> usize {
        self.shared.permits.in_use()
    }

    /// Ends the sandbox of every session.
    pub async fn close_all(&self) {
        let all: Vec<Arc<Session>> = self.known().drain().map(|(_, session)| session).collect();
        iter(all).for_each_concurrent(ENDED_AT_ONCE, async |session| session.end().await).await;
    }
}

/// The status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionStatus {
    /// In use, or not idle for long enough to expire.
    Running,
    /// Idle for too long.
    Expired,
}

/// Time between two checks of the known sessions.
fn pause(settings: &SessionSettings) -> Duration {
    (settings.idle.min(settings.linger) / 4).clamp(Duration::from_millis(50), Duration::from_secs(15))
}

/// Records in the store that sessions are in use, until the engine closes. For a process beside a server, with sessions of its own.
pub async fn heartbeat(engine: Arc<Engine>) {
    loop {
        engine.sessions.reap_once().await;
        tokio::select! {
            () = tokio::time::sleep(pause(&engine.settings)) => {}
            () = engine.shutdown.cancelled() => return,
        }
    }
}

/// Ends idle sessions, and removes expired ones from memory and the store, until the engine closes.
pub async fn reap(engine: Arc<Engine>) {
    /// Time between two passes through the store.
    const SWEEP: Duration = Duration::from_secs(60);
    let settings = &engine.settings;
    let pause = pause(settings);
    let mut since_sweep = SWEEP;
    loop {
        engine.sessions.reap_once().await;
        engine.in_flight.forget_old();
        if since_sweep >= SWEEP {
            since_sweep = Duration::ZERO;
            // On a full disk one may fail, and another make room for it.
            let swept = async {
                let expired = engine.store.remove_expired().await;
                let unused = engine.store.remove_sessions_unused_for(settings.retention).await;
                expired.and(unused).and(engine.store.shrink().await)
            };
            if let Err(error) = swept.await {
                tracing::error!("cannot remove what has expired: {error}");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => since_sweep += pause,
            () = engine.shutdown.cancelled() => return,
        }
    }
}
