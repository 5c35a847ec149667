//! One session: live while it is needed, with its files kept in the store.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use aludel_agent::{Runtime, RuntimeError};
use aludel_sandbox::template::TemplateName;
use aludel_sandbox::{Cell, Error as SandboxError, Execution, FileEntry, KernelSpec, Limits, Workspace, mime_of};
use aludel_store::{
    BlobName, FileId, FileLocation, FileOrigin, FileRecord, NewBlob, NewFile, NewSessionFile, SessionFileId,
    SessionFileRecord, SessionId, SessionRecord, Tenant, WrittenFiles,
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::names::{check_directories, check_name, free_name, names_like, shortened};
use super::registry::SessionContext;
use super::{SandboxPermit, SessionSandbox, WORKSPACE};
use crate::approvals::KernelPrograms;
use crate::{Environment, Error, creation};

/// Files without a report of an execution that are stored at once.
const MAX_UNREPORTED: usize = 1000;

/// Longest wait of a turn's program for a permit, if its turn reserved none.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which such a program looks for a permit.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A session in use. Holding it keeps it from expiring.
#[derive(Debug)]
pub struct Session {
    shared: Arc<SessionContext>,
    tenant: Tenant,
    id: SessionId,
    limits: Limits,
    /// The template of its next sandbox; `None` for the usual one.
    template: Mutex<Option<TemplateName>>,
    idle: Duration,
    /// Time of the last use. Monotonic: if the wall clock were set, the session would end early or late.
    last_active: Mutex<Instant>,
    /// Idle milliseconds after which its sandbox is ended, if its expiry is not earlier.
    linger_ms: AtomicU64,
    state: AsyncMutex<State>,
    /// The permit that turns have reserved.
    reserved: Mutex<Weak<ReservedPermit>>,
    kernel_programs: Arc<KernelPrograms>,
    /// Cancelled when it ends for good.
    deleted: CancellationToken,
    /// True once a program has run in it.
    has_run: AtomicBool,
    /// True once the store says so.
    is_noted: AtomicBool,
    /// True from the start of a further sandbox to its first program.
    has_lost_variables: AtomicBool,
}

/// The sandbox, if there is one. Locked while files are copied, so that the workspace and the store agree.
#[derive(Debug)]
enum State {
    /// No sandbox: none was needed yet, or it ended. The next one starts from the files in the store, with the reserved permit if there is
    /// one.
    Dormant,
    /// A sandbox with its permit.
    Live { sandbox: SessionSandbox, _permit: SandboxPermit },
    /// Deleted: no further sandbox is made.
    Deleted,
}

/// A permit, until a sandbox takes it.
type ReservedPermit = Mutex<Option<SandboxPermit>>;

/// The permit for a session's sandbox, which all of its turns share. If no turn used it, it is released with the last.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct SessionReservation(Arc<ReservedPermit>);

/// A file of a session as a client can download it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionFile {
    /// Its id.
    #[serde(with = "file_id")]
    pub id: SessionFileId,
    /// Its path inside, `/mnt/data/…`.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its MIME type.
    pub mime: String,
    /// Its maker: the client or a program.
    #[serde(with = "source")]
    pub source: FileOrigin,
    /// Time when it was first there, seconds since 1970.
    pub created_at: i64,
    /// The id of its latest copy among the tenant's files, if there is one.
    #[serde(rename = "kept_as", default, skip_serializing_if = "Option::is_none")]
    pub published_id: Option<String>,
}

impl From<SessionFileRecord> for SessionFile {
    fn from(record: SessionFileRecord) -> Self {
        let SessionFileRecord { id, path, bytes, mime, source, created_at, .. } = record;
        Self { id, path: format!("{WORKSPACE}/{path}"), bytes, mime, source, created_at, published_id: None }
    }
}

impl SessionFile {
    /// Returns true for a picture or page that a program only showed: its name is its id, and programs find no such file.
    pub fn was_only_shown(&self) -> bool {
        self.path.rsplit('/').next().is_some_and(|name| name.starts_with(self.id.as_str()))
    }
}

/// Outcome of storing what an execution changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredChanges {
    /// Files that exist, as a client can download them.
    pub files: Vec<SessionFile>,
    /// Paths of the files for which the tenant or the next workspace has no room.
    pub without_room: Vec<String>,
}

impl Session {
    pub(super) fn new(shared: Arc<SessionContext>, tenant: Tenant, record: &SessionRecord) -> Self {
        Self {
            limits: shared.limits_of(record.memory_limit.as_deref()),
            template: Mutex::new(shared.template_of(&tenant)),
            shared,
            tenant,
            id: record.id.clone(),
            idle: record.idle,
            last_active: Mutex::new(Instant::now()),
            linger_ms: AtomicU64::new(u64::MAX),
            state: AsyncMutex::new(State::Dormant),
            reserved: Mutex::default(),
            kernel_programs: KernelPrograms::new(record.id.as_str()),
            deleted: CancellationToken::new(),
            has_run: AtomicBool::new(record.has_run),
            is_noted: AtomicBool::new(record.has_run),
            has_lost_variables: AtomicBool::new(false),
        }
    }

    /// Sets the template of its next sandbox, by default its tenant's, and returns it. A living sandbox keeps its own.
    pub fn start_from(&self, template: Option<TemplateName>) -> Option<TemplateName> {
        let template = template.or_else(|| self.shared.template_of(&self.tenant));
        self.template.lock().clone_from(&template);
        template
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The limits of every execution.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The programs of its kernel.
    pub fn kernel_programs(&self) -> &Arc<KernelPrograms> {
        &self.kernel_programs
    }

    /// Reserves a permit for its sandbox; fails if there is none.
    pub async fn reserve(&self) -> Result<SessionReservation, Error> {
        let state = self.state.lock().await;
        let reservation = self.reservation();
        let is_needed = matches!(*state, State::Dormant) && reservation.0.lock().is_none();
        if is_needed {
            let permit = self.shared.permit_for(&self.tenant).await?;
            *reservation.0.lock() = Some(permit);
        }
        Ok(reservation)
    }

    /// Reserves a permit for its sandbox, and waits for a while if there is none.
    pub(crate) async fn reserve_in_time(&self) -> Result<SessionReservation, Error> {
        let end = Instant::now() + ROOM_TIMEOUT;
        loop {
            match self.reserve().await {
                Err(Error::SessionsFull { .. } | Error::SessionsShared { .. }) if Instant::now() < end => {
                    tokio::time::sleep(ROOM_CHECK_INTERVAL).await;
                }
                done => return done,
            }
        }
    }

    /// The reservation that there is, or a new one without a permit. Call it while the state is locked.
    fn reservation(&self) -> SessionReservation {
        let mut reserved = self.reserved.lock();
        SessionReservation(reserved.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *reserved = Arc::downgrade(&new);
            new
        }))
    }

    /// Its sandbox, opened if there is none: a new one has the files from the store and no variables.
    pub async fn sandbox(&self) -> Result<SessionSandbox, Error> {
        let mut state = self.state.lock().await;
        match &*state {
            State::Live { sandbox, .. } => return Ok(sandbox.clone()),
            State::Deleted => return Err(Error::no_session(&self.id)),
            State::Dormant => {}
        }
        let reserved = self.reservation().0.lock().take();
        let permit = match reserved {
            Some(permit) => permit,
            None => self.shared.permit_for(&self.tenant).await?,
        };
        let template = self.template.lock().clone();
        let environment = self.shared.environment().below(self.environment().await?);
        let (account, backend) = (Some(self.shared.account(&self.tenant)), self.shared.backend.clone());
        let creating = SessionSandbox::create(account, backend, self.limits.clone(), template, environment);
        let sandbox = creation::observed(creating).await?;
        if let Err(error) = self.load_files(&sandbox).await {
            sandbox.close().await;
            return Err(error);
        }
        *state = State::Live { sandbox: sandbox.clone(), _permit: permit };
        self.has_lost_variables.store(self.has_run.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(sandbox)
    }

    /// The environment variables of its own.
    async fn environment(&self) -> Result<Environment, Error> {
        Environment::from_json(self.shared.store.session_variables(&self.tenant, &self.id).await?.as_deref())
    }

    /// Adds environment variables for its programs: for its present sandbox, once no program runs in it, and for all later ones.
    pub async fn add_environment(&self, more: &Environment) -> Result<(), Error> {
        let state = self.state.lock().await;
        let before = self.environment().await?;
        let environment = before.with(more)?;
        let Some(stored) = environment.to_json().filter(|_| environment != before) else { return Ok(()) };
        if !self.shared.store.set_session_variables(&self.tenant, &self.id, stored).await? {
            return Err(Error::no_session(&self.id));
        }
        let sandbox = match &*state {
            State::Live { sandbox, .. } => Some(sandbox.clone()),
            // A later sandbox reads the stored variables.
            State::Dormant | State::Deleted => None,
        };
        drop(state);
        match sandbox {
            Some(sandbox) => sandbox.set_environment(self.shared.environment().below(environment)).await,
            None => Ok(()),
        }
    }

    /// Runs one cell. A lost sandbox is replaced first. The outcome says so if variables of earlier programs are lost.
    pub async fn execute<'a>(&self, cell: impl Into<Cell<'a>>) -> Result<Execution, Error> {
        let memory = self.shared.event_memory(&self.tenant);
        let cell = Cell { event_memory: Some(&memory), ..cell.into() };
        let (mut losses, mut _kept) = (0, None);
        let execution = loop {
            let sandbox = self.sandbox().await?;
            match sandbox.execute(cell).await {
                // Nothing of this code ran.
                Err(Error::Sandbox(SandboxError::WorkspaceLost)) if losses < 2 => {
                    losses += 1;
                    _kept = self.drop_sandbox(&sandbox).await;
                }
                result => break result?,
            }
        };
        self.has_run.store(true, Ordering::Relaxed);
        let has_lost = self.has_lost_variables.swap(false, Ordering::Relaxed);
        Ok(if has_lost || losses > 0 { execution.restarted() } else { execution })
    }

    /// Returns true if programs have run in it, and the store does not know.
    pub(super) fn has_programs_to_note(&self) -> bool {
        self.has_run.load(Ordering::Relaxed) && !self.is_noted.load(Ordering::Relaxed)
    }

    /// Notes in the store that programs have run in it, once.
    pub(super) async fn note_programs(&self) {
        if !self.has_programs_to_note() || self.is_noted.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = self.shared.store.note_programs_of(&self.tenant, &self.id).await {
            tracing::error!("cannot note that programs have run in {}: {error}", self.id);
            self.is_noted.store(false, Ordering::Relaxed);
        }
    }

    /// Drops a lost sandbox; reserves its permit for the next one.
    async fn drop_sandbox(&self, lost: &SessionSandbox) -> Option<SessionReservation> {
        let mut state = self.state.lock().await;
        match std::mem::replace(&mut *state, State::Dormant) {
            State::Live { sandbox, _permit } if sandbox.is(lost) => {
                let reservation = self.reservation();
                *reservation.0.lock() = Some(_permit);
                Some(reservation)
            }
            // Another caller was faster.
            other => {
                *state = other;
                None
            }
        }
    }

    async fn load_files(&self, sandbox: &SessionSandbox) -> Result<(), Error> {
        for file in self.shared.store.all_session_files(&self.tenant, &self.id).await? {
            if file.location == FileLocation::Workspace {
                self.put_in(sandbox, &file.path, &file.blob).await?;
            }
        }
        Ok(())
    }

    /// Copies a blob into the workspace.
    async fn put_in(&self, sandbox: &SessionSandbox, path: &str, blob: &BlobName) -> Result<(), Error> {
        let content = self.shared.store.read_blob(blob).await?;
        let (bytes, content) = (content.bytes(), content.into_blocking().await);
        sandbox.add_file(path, bytes, content).await.map_err(refused_file)?;
        Ok(())
    }

    /// Stores files that an execution created or changed, and removes those that no longer exist. Returns the files of `changed` that still
    /// exist, as clients can download them, and those that exceed the tenant's storage.
    pub async fn store_changes(&self, changed: &[FileEntry]) -> Result<StoredChanges, Error> {
        let state = self.state.lock().await;
        let State::Live { sandbox, .. } = &*state else { return Ok(StoredChanges::default()) };
        self.touch();
        let listing = match sandbox.listing().await {
            Ok(listing) => listing,
            // Everything stored stays, and the next execution begins with it.
            Err(Error::Sandbox(SandboxError::WorkspaceLost)) => return Ok(StoredChanges::default()),
            Err(error) => return Err(error),
        };
        let present = &listing.files;
        let paths: HashSet<&str> = present.iter().map(|file| file.path.as_str()).collect();
        let stored = self.records().await?;
        let stored: HashMap<String, SessionFileRecord> =
            stored.into_iter().map(|file| (file.path.clone(), file)).collect();
        // Reports of executions are limited in number, and programs that run on after their cell make files without a report.
        let reported: HashSet<&str> = changed.iter().map(|file| file.path.as_str()).collect();
        let unknown = |file: &&FileEntry| !reported.contains(file.path.as_str()) && !stored.contains_key(&file.path);
        let unreported = present.iter().filter(unknown).take(MAX_UNREPORTED);
        let wanted: Vec<FileEntry> =
            changed.iter().filter(|file| paths.contains(file.path.as_str())).chain(unreported).cloned().collect();
        let taken: HashSet<&str> = wanted.iter().map(|file| file.path.as_str()).collect();
        let inside = || stored.values().filter(|file| file.location == FileLocation::Workspace);
        let stays = |path: &str| !listing.lacks(path) && !taken.contains(path);
        let others: u64 = inside().filter(|file| stays(&file.path)).map(|file| file.bytes).sum();
        let gone = inside().filter(|file| listing.lacks(&file.path)).map(|file| file.id.clone());
        let gone: Vec<_> = gone.collect();
        if wanted.is_empty() && gone.is_empty() {
            return Ok(StoredChanges::default());
        }
        let files = readers(sandbox.workspace().await?, wanted, self.limits.disk.saturating_sub(others));
        let written = self.shared.store.write_session_files(&self.tenant, &self.id, files, gone).await?;
        let WrittenFiles { mut records, without_room } = written.ok_or_else(|| Error::no_session(&self.id))?;
        records.retain(|record| reported.contains(record.path.as_str()));
        records.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(StoredChanges { files: records.into_iter().map(Into::into).collect(), without_room })
    }

    /// Stores a displayed picture or page. It is not in the workspace.
    pub async fn add_figure(&self, bytes: &[u8], mime: &str) -> Result<SessionFile, Error> {
        let blob = self.shared.store.write_blob(&self.tenant, bytes).await?;
        let id = SessionFileId::new();
        let ending = match mime {
            "image/jpeg" => "jpg",
            "image/svg+xml" => "svg",
            "text/html" => "html",
            _ => "png",
        };
        let file = NewSessionFile {
            path: format!("{id}.{ending}"),
            id,
            mime: mime.to_owned(),
            source: FileOrigin::Assistant,
            location: FileLocation::Nowhere,
        };
        self.put_one(file, blob).await
    }

    /// Adds a client's file, replacing the one of the same path.
    pub async fn add_file(&self, path: &str, mime: &str, blob: NewBlob) -> Result<SessionFile, Error> {
        check_name(path)?;
        self.add_file_as_named(path, mime, blob).await
    }

    /// Adds a client's file under a name that is not shown to people: it only has to be a relative path.
    pub async fn add_file_as_named(&self, path: &str, mime: &str, blob: NewBlob) -> Result<SessionFile, Error> {
        let state = self.state.lock().await;
        self.add(&state, path, mime, blob).await
    }

    /// Adds a client's file, with the lock of the state.
    async fn add(&self, state: &State, path: &str, mime: &str, blob: NewBlob) -> Result<SessionFile, Error> {
        self.touch();
        match state {
            State::Live { sandbox, .. } => {
                self.put_in(sandbox, path, blob.name()).await?;
            }
            State::Dormant => self.check_fits(path, blob.bytes()).await?,
            State::Deleted => return Err(Error::no_session(&self.id)),
        }
        self.put_one(new_file(path, mime, FileOrigin::User), blob).await
    }

    /// Adds one of the tenant's files, under a free name.
    pub async fn add_stored_file(&self, file: &FileRecord) -> Result<SessionFile, Error> {
        let blob = self.shared.store.copy_blob(&self.tenant, &file.blob).await?;
        // Held until the file is there: another one may come under the same name.
        let state = self.state.lock().await;
        let taken: HashSet<String> = self.records().await?.into_iter().map(|file| file.path).collect();
        let name = free_name(&file.filename, &taken);
        check_name(&name)?;
        self.add(&state, &name, &file.mime, blob).await
    }

    /// Adds a client's file under its name or, where another file has that, a free one, and returns it. One that is there already with the
    /// same content is not added again.
    pub async fn add_attached_file(&self, name: &str, mime: &str, blob: NewBlob) -> Result<String, Error> {
        check_name(name)?;
        let state = self.state.lock().await;
        let records = self.records().await?;
        let known: HashMap<&str, &SessionFileRecord> = records.iter().map(|file| (file.path.as_str(), file)).collect();
        let is_same =
            |file: &&SessionFileRecord| file.location == FileLocation::Workspace && file.sha256 == blob.sha256();
        // Programs that run on after their cell make files without a record. If they cannot be listed, the records decide.
        let listed = match &*state {
            State::Live { sandbox, .. } => sandbox.listing().await.ok(),
            State::Dormant | State::Deleted => None,
        };
        let listed = listed.into_iter().flat_map(|listing| listing.files);
        let inside: HashSet<String> = listed.map(|file| file.path).collect();
        let free = |name: &String| known.get(name.as_str()).map_or(!inside.contains(name), is_same);
        let name = names_like(name).find(free).unwrap_or_default();
        if !known.contains_key(name.as_str()) {
            self.add(&state, &name, mime, blob).await?;
        }
        Ok(name)
    }

    /// Copies files to the tenant's files in their present state, and sets their `published_id`, unless the file is gone or exceeds the
    /// tenant's storage.
    pub async fn publish_files(&self, files: &mut [SessionFile], purpose: &str) -> Result<(), Error> {
        for file in files {
            file.published_id = match self.publish_file(file, purpose).await {
                Ok(id) => id.map(Into::into),
                Err(Error::StorageFull { .. }) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    async fn publish_file(&self, file: &SessionFile, purpose: &str) -> Result<Option<FileId>, Error> {
        let store = &self.shared.store;
        let Some(record) = store.session_file(&self.tenant, &self.id, &file.id).await? else { return Ok(None) };
        let filename = record.path.rsplit('/').next().unwrap_or(&record.path).to_owned();
        let copy = store.copy_blob(&self.tenant, &record.blob).await?;
        let file = NewFile { filename, purpose: purpose.to_owned(), mime: record.mime, expires_at: None };
        Ok(Some(store.add_file(&self.tenant, file, copy).await?.id))
    }

    /// Removes a file. Returns false if there was none.
    pub async fn delete_file(&self, id: &SessionFileId) -> Result<bool, Error> {
        let state = self.state.lock().await;
        self.touch();
        let Some(file) = self.shared.store.session_file(&self.tenant, &self.id, id).await? else { return Ok(false) };
        if let State::Live { sandbox, .. } = &*state
            && file.location == FileLocation::Workspace
        {
            sandbox.remove_file(&file.path).await.map_err(refused_file)?;
        }
        Ok(self.shared.store.delete_session_files(&self.tenant, &self.id, vec![id.clone()]).await? > 0)
    }

    /// All files that a client can download.
    pub async fn files(&self) -> Result<Vec<SessionFile>, Error> {
        Ok(self.records().await?.into_iter().map(Into::into).collect())
    }

    async fn records(&self) -> Result<Vec<SessionFileRecord>, Error> {
        Ok(self.shared.store.all_session_files(&self.tenant, &self.id).await?)
    }

    async fn put(&self, files: Vec<(NewSessionFile, NewBlob)>) -> Result<Vec<SessionFileRecord>, Error> {
        let records = self.shared.store.put_session_files(&self.tenant, &self.id, files).await?;
        records.ok_or_else(|| Error::no_session(&self.id))
    }

    async fn put_one(&self, file: NewSessionFile, blob: NewBlob) -> Result<SessionFile, Error> {
        let record = self.put(vec![(file, blob)]).await?.pop();
        Ok(record.ok_or_else(|| Error::no_session(&self.id))?.into())
    }

    /// Checks that another file will have a place in the next workspace.
    async fn check_fits(&self, path: &str, bytes: u64) -> Result<(), Error> {
        let others = self.records().await?;
        let others = others.iter().filter(|file| file.path != path && file.location == FileLocation::Workspace);
        check_directories(path, others.clone().map(|file| file.path.as_str()))?;
        let (count, used) = others.fold((1, 0), |(count, used), file| (count + 1, used + file.bytes));
        if used + bytes > self.limits.disk || count > self.limits.files {
            return Err(Error::WorkspaceFull { limit: self.limits.disk });
        }
        Ok(())
    }

    /// A token that is cancelled when it ends for good.
    pub(crate) fn deleted(&self) -> &CancellationToken {
        &self.deleted
    }

    /// Records that it is in use.
    pub(super) fn touch(&self) {
        *self.last_active.lock() = Instant::now();
    }

    /// Returns true if it was idle for longer than it may be.
    pub(super) fn is_expired(&self) -> bool {
        self.last_active().elapsed() >= self.idle
    }

    /// Ends its sandbox after this idle time. The session stays, and its files are there at the next use.
    pub fn linger(&self, for_: Duration) {
        let linger = u64::try_from(for_.as_millis()).unwrap_or(u64::MAX);
        self.linger_ms.store(linger, Ordering::Relaxed);
    }

    /// Returns true if its sandbox was idle for longer than [`Session::linger`] allows.
    pub(super) fn has_lingered(&self) -> bool {
        let linger = Duration::from_millis(self.linger_ms.load(Ordering::Relaxed));
        self.last_active().elapsed() >= linger && self.is_live()
    }

    /// Returns the time of the last use.
    pub(super) fn last_active(&self) -> Instant {
        *self.last_active.lock()
    }

    /// Returns true if it has a sandbox; false while its state is locked. Does not wait.
    pub(super) fn is_live(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| matches!(*state, State::Live { .. }))
    }

    /// The tenant that owns it.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Ends its sandbox; the files in the store stay.
    pub(super) async fn end(&self) {
        self.replace(State::Dormant).await;
        self.note_programs().await;
    }

    /// Ends the sandbox to make room for another, which may be made when this returns: the end completes in the background. `ends` limits
    /// such ends, because until then there are more sandboxes than permits.
    pub(super) async fn make_room(&self, ends: &Arc<Semaphore>) {
        self.note_programs().await;
        let end = Arc::clone(ends).acquire_owned().await;
        let last = std::mem::replace(&mut *self.state.lock().await, State::Dormant);
        if let State::Live { sandbox, _permit } = last {
            #[expect(clippy::disallowed_methods, reason = "the end of the process ends the sandbox as well")]
            tokio::spawn(async move {
                sandbox.close().await;
                drop(end);
            });
        }
    }

    /// Ends the session for good.
    pub(super) async fn delete(&self) {
        self.deleted.cancel();
        self.replace(State::Deleted).await;
    }

    async fn replace(&self, next: State) {
        let last = std::mem::replace(&mut *self.state.lock().await, next);
        if let State::Live { sandbox, _permit } = last {
            sandbox.close().await;
        }
    }
}

impl Runtime for Session {
    fn limits(&self) -> &Limits {
        Session::limits(self)
    }

    fn kernel(&self) -> &KernelSpec {
        self.shared.backend.capabilities().kernel()
    }

    fn files(&self) -> BoxFuture<'_, Vec<FileEntry>> {
        Box::pin(async move {
            let records = self.records().await.unwrap_or_default();
            let inside = records.into_iter().filter(|file| file.location == FileLocation::Workspace);
            inside.map(|file| FileEntry { mime: mime_of(&file.path), size: file.bytes, path: file.path }).collect()
        })
    }

    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, RuntimeError>> {
        Box::pin(async move { Ok(Session::execute(self, cell).await?) })
    }
}

pub(super) fn new_file(path: &str, mime: &str, source: FileOrigin) -> NewSessionFile {
    let (path, mime) = (path.to_owned(), mime.to_owned());
    NewSessionFile { id: SessionFileId::new(), path, mime, source, location: FileLocation::Workspace }
}

/// Files of a workspace, each opened on demand. Leaves out those that a running program has removed. Those beyond the total size of a
/// workspace, which holes and hard links make, have no reader: they would not fit into the next one.
fn readers(
    workspace: Arc<dyn Workspace>,
    wanted: Vec<FileEntry>,
    mut left: u64,
) -> impl Iterator<Item = (NewSessionFile, Option<impl Read>)> + Send {
    wanted.into_iter().filter_map(move |FileEntry { path, mime, .. }| {
        let file = new_file(&path, mime, FileOrigin::Assistant);
        // Only its announced size is read.
        let (reader, size) = workspace.open(&path).ok()?;
        let rest = left.checked_sub(size);
        left = rest.unwrap_or(left);
        Some((file, rest.map(|_| reader.take(size))))
    })
}

/// A workspace that refuses a client's file: full, most of all.
fn refused_file(error: Error) -> Error {
    match error {
        Error::Sandbox(SandboxError::File { path, reason }) => Error::FileRefused { path: shortened(&path), reason },
        error => error,
    }
}

/// A file's id as text.
mod file_id {
    use aludel_store::SessionFileId;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(id: &SessionFileId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(id.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SessionFileId, D::Error> {
        let text = String::deserialize(deserializer)?;
        SessionFileId::parse(&text).ok_or_else(|| D::Error::custom("not the id of a session's file"))
    }
}

/// A file's source as its word.
mod source {
    use aludel_store::FileOrigin;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(source: &FileOrigin, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(source.word())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FileOrigin, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(if text == FileOrigin::User.word() { FileOrigin::User } else { FileOrigin::Assistant })
    }
}
