//! One container: a session that is opened when somebody needs it, and files that are kept beside it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use aludel_session::{Error, FileEntry, Limits, SandboxError, Session};
use aludel_store::{
    ContainerFileId, ContainerFileRecord, ContainerId, ContainerRecord, FileRecord, NewBlob, NewContainerFile, Place,
    Source, Tenant, now_ms,
};
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tracing::field::Empty;
use tracing::{Instrument, Span, info_span};

use super::registry::Shared;
use super::{ROOT, no_container};
use crate::error::ApiError;
use crate::http::check_name;

/// Files that no execution reported, of which so many are kept at once.
const MAX_UNREPORTED: usize = 1000;

/// A container that somebody uses. Whoever holds it keeps it from expiring.
#[derive(Debug)]
pub(crate) struct Container {
    shared: Arc<Shared>,
    tenant: Tenant,
    id: ContainerId,
    limits: Limits,
    idle: Duration,
    /// When it was last used, milliseconds since 1970.
    last_active_ms: AtomicI64,
    /// After how many idle milliseconds its session ends, if earlier than the container does.
    linger_ms: AtomicI64,
    life: Mutex<Life>,
    /// What the names of its programs mean, as far as rules have read them.
    pub(crate) names: std::sync::Mutex<aludel_rules::Known>,
}

/// Whether there is a session. Held while files move, so that the session and the store agree.
#[derive(Debug)]
enum Life {
    /// None: nobody needed one yet, or it ended. The next one starts from the files in the store, in the place that is kept for it if there
    /// is one.
    Dormant(Option<OwnedSemaphorePermit>),
    /// One that counts among the live ones.
    Live { session: Session, _place: OwnedSemaphorePermit },
    /// There will be none any more.
    Deleted,
}

/// A file as a client can download it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerFile {
    pub(crate) id: ContainerFileId,
    /// Its path inside, `/mnt/data/…`.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) mime: String,
    pub(crate) source: Source,
    pub(crate) created_at: i64,
}

impl From<ContainerFileRecord> for ContainerFile {
    fn from(record: ContainerFileRecord) -> Self {
        let ContainerFileRecord { id, path, bytes, mime, source, created_at, .. } = record;
        Self { id, path: format!("{ROOT}/{path}"), bytes, mime, source, created_at }
    }
}

impl Container {
    pub(super) fn new(shared: Arc<Shared>, tenant: Tenant, record: &ContainerRecord) -> Self {
        Self {
            limits: shared.limits_of(record),
            shared,
            tenant,
            id: record.id.clone(),
            idle: record.idle,
            last_active_ms: AtomicI64::new(now_ms()),
            linger_ms: AtomicI64::new(i64::MAX),
            life: Mutex::new(Life::Dormant(None)),
            names: std::sync::Mutex::default(),
        }
    }

    /// Its id, `cntr_…`.
    pub(crate) fn id(&self) -> &ContainerId {
        &self.id
    }

    /// What it may use.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Makes sure that there is room for a session; an error when there is none. To be given back with [`Container::release`].
    pub(crate) async fn reserve(&self) -> Result<(), ApiError> {
        let mut life = self.life.lock().await;
        if let Life::Dormant(place @ None) = &mut *life {
            *place = Some(self.shared.place_for(&self.tenant).await?);
        }
        Ok(())
    }

    /// Gives a reserved place back that nobody used.
    pub(crate) async fn release(&self) {
        if let Life::Dormant(place) = &mut *self.life.lock().await {
            *place = None;
        }
    }

    /// Its session, opened now if there is none: a new one has the files that the store kept, and no variables.
    pub(crate) async fn session(&self) -> Result<Session, ApiError> {
        let mut life = self.life.lock().await;
        let reserved = match &mut *life {
            Life::Live { session, .. } => return Ok(session.clone()),
            Life::Deleted => return Err(no_container(self.id.as_str())),
            Life::Dormant(place) => place.take(),
        };
        let place = match reserved {
            Some(place) => place,
            None => self.shared.place_for(&self.tenant).await?,
        };
        let creating = async {
            let created = Session::create(self.shared.backend.clone(), self.limits.clone()).await;
            Span::current().record("result", if created.is_ok() { "ok" } else { "failed" });
            created
        };
        let session = creating.instrument(info_span!("create sandbox", result = Empty)).await?;
        if let Err(error) = self.restore(&session).await {
            // The error that matters is the other one.
            let _closed = session.close().await;
            return Err(error);
        }
        *life = Life::Live { session: session.clone(), _place: place };
        Ok(session)
    }

    async fn restore(&self, session: &Session) -> Result<(), ApiError> {
        for file in self.shared.store.all_container_files(&self.tenant, &self.id).await? {
            if file.place == Place::Workspace {
                session.add_file(&file.path, &self.shared.store.blob_path(&file.blob)).await.map_err(refused_file)?;
            }
        }
        Ok(())
    }

    /// Keeps what an execution created or changed, and forgets what is not there any more. Returns the files of `changed` that are
    /// still there, each as a client can download it.
    pub(crate) async fn store_changes(&self, changed: &[FileEntry]) -> Result<Vec<ContainerFile>, ApiError> {
        let life = self.life.lock().await;
        let Life::Live { session, .. } = &*life else { return Ok(Vec::new()) };
        self.touch();
        let present = session.files().await?;
        let paths: HashSet<&str> = present.iter().map(|file| file.path.as_str()).collect();
        let stored = self.records().await?;
        let mut stored: HashMap<String, ContainerFileRecord> =
            stored.into_iter().map(|file| (file.path.clone(), file)).collect();
        // An execution reports only so many files, and a program that was left behind makes some that none reports.
        let reported: HashSet<&str> = changed.iter().map(|file| file.path.as_str()).collect();
        let unknown = |file: &&FileEntry| !reported.contains(file.path.as_str()) && !stored.contains_key(&file.path);
        let unreported = present.iter().filter(unknown).take(MAX_UNREPORTED);
        let wanted: Vec<&FileEntry> =
            changed.iter().filter(|file| paths.contains(file.path.as_str())).chain(unreported).collect();
        let (mut records, mut fresh) = (Vec::new(), Vec::new());
        let stays = |file: &&ContainerFileRecord| {
            let path = file.path.as_str();
            file.place == Place::Workspace && paths.contains(path) && wanted.iter().all(|entry| entry.path != path)
        };
        let others: u64 = stored.values().filter(stays).map(|file| file.bytes).sum();
        for (entry, blob) in self.take(session, &wanted, self.limits.disk.saturating_sub(others)).await? {
            match stored.remove(&entry.path) {
                Some(same) if same.sha256 == blob.sha256() => records.push(same),
                _ => fresh.push((new_file(&entry.path, entry.mime, Source::Assistant), blob)),
            }
        }
        records.extend(self.put(fresh).await?);
        records.retain(|record| reported.contains(record.path.as_str()));
        records.sort_by(|one, other| one.path.cmp(&other.path));
        let gone = |file: &&ContainerFileRecord| file.place == Place::Workspace && !paths.contains(file.path.as_str());
        let gone = stored.values().filter(gone).map(|file| file.id.clone()).collect();
        self.shared.store.delete_container_files(&self.tenant, &self.id, gone).await?;
        Ok(records.into_iter().map(Into::into).collect())
    }

    /// Copies files out of the workspace, but those that a program that still runs has taken away, and those that are more than all files
    /// together may have: they would not fit into the next workspace.
    async fn take<'f>(
        &self,
        session: &Session,
        wanted: &[&'f FileEntry],
        mut left: u64,
    ) -> Result<Vec<(&'f FileEntry, NewBlob)>, ApiError> {
        let (mut entries, mut copies) = (Vec::new(), Vec::new());
        for entry in wanted {
            let scratch = self.shared.store.scratch();
            match session.copy_out(&entry.path, scratch.path(), left).await {
                Ok(bytes) => {
                    left -= bytes;
                    entries.push(*entry);
                    copies.push(scratch);
                }
                Err(Error::Sandbox(SandboxError::File { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(entries.into_iter().zip(self.shared.store.adopt(copies).await?).collect())
    }

    /// Keeps a picture that a program showed. It is not in the workspace.
    pub(crate) async fn add_figure(&self, bytes: &[u8], mime: &str) -> Result<ContainerFile, ApiError> {
        let mut blob = self.shared.store.new_blob().await?;
        blob.write(bytes).await?;
        let blob = blob.finish().await?;
        let id = ContainerFileId::new();
        let ending = match mime {
            "image/jpeg" => "jpg",
            "image/svg+xml" => "svg",
            _ => "png",
        };
        let file = NewContainerFile {
            path: format!("{id}.{ending}"),
            id,
            mime: mime.to_owned(),
            source: Source::Assistant,
            place: Place::Nowhere,
        };
        self.put_one(file, blob).await
    }

    /// Puts a client's file in, in place of the one of the same path.
    pub(crate) async fn add_file(&self, path: &str, mime: &str, blob: NewBlob) -> Result<ContainerFile, ApiError> {
        check_name(path)?;
        let life = self.life.lock().await;
        self.touch();
        match &*life {
            Life::Live { session, .. } => {
                session.add_file(path, blob.path()).await.map_err(refused_file)?;
            }
            Life::Dormant(_) => self.check_room(path, blob.bytes()).await?,
            Life::Deleted => return Err(no_container(self.id.as_str())),
        }
        self.put_one(new_file(path, mime, Source::User), blob).await
    }

    /// Puts a file of the Files API in, under a name that no other file has.
    pub(crate) async fn add_stored_file(&self, file: &FileRecord) -> Result<ContainerFile, ApiError> {
        let taken: HashSet<String> = self.records().await?.into_iter().map(|file| file.path).collect();
        let blob = self.shared.store.copy_blob(&file.blob, file.bytes).await?;
        self.add_file(&free_name(&file.filename, &taken), &file.mime, blob).await
    }

    /// Takes a file away. Returns whether there was one.
    pub(crate) async fn delete_file(&self, id: &ContainerFileId) -> Result<bool, ApiError> {
        let life = self.life.lock().await;
        self.touch();
        let Some(file) = self.shared.store.container_file(&self.tenant, &self.id, id).await? else { return Ok(false) };
        if let Life::Live { session, .. } = &*life
            && file.place == Place::Workspace
        {
            session.remove_file(&file.path).await.map_err(refused_file)?;
        }
        Ok(self.shared.store.delete_container_files(&self.tenant, &self.id, vec![id.clone()]).await? > 0)
    }

    /// All files that a client can download.
    pub(crate) async fn files(&self) -> Result<Vec<ContainerFile>, ApiError> {
        Ok(self.records().await?.into_iter().map(Into::into).collect())
    }

    async fn records(&self) -> Result<Vec<ContainerFileRecord>, ApiError> {
        Ok(self.shared.store.all_container_files(&self.tenant, &self.id).await?)
    }

    async fn put(&self, files: Vec<(NewContainerFile, NewBlob)>) -> Result<Vec<ContainerFileRecord>, ApiError> {
        let records = self.shared.store.put_container_files(&self.tenant, &self.id, files).await?;
        records.ok_or_else(|| no_container(self.id.as_str()))
    }

    async fn put_one(&self, file: NewContainerFile, blob: NewBlob) -> Result<ContainerFile, ApiError> {
        let record = self.put(vec![(file, blob)]).await?.pop();
        Ok(record.ok_or_else(|| no_container(self.id.as_str()))?.into())
    }

    /// Whether another file will fit when there is a workspace again.
    async fn check_room(&self, path: &str, bytes: u64) -> Result<(), ApiError> {
        let others = self.records().await?;
        let others = others.iter().filter(|file| file.path != path && file.place == Place::Workspace);
        let (count, used) = others.fold((1, 0), |(count, used), file| (count + 1, used + file.bytes));
        if used + bytes > self.limits.disk || count > self.limits.files {
            return Err(ApiError::invalid(
                "file",
                format!("The file does not fit: the files of a container may have {} MB.", self.limits.disk >> 20),
            ));
        }
        Ok(())
    }

    /// Notes that it is in use.
    pub(super) fn touch(&self) {
        self.last_active_ms.fetch_max(now_ms(), Ordering::Relaxed);
    }

    /// Whether it was left alone too long.
    pub(super) fn is_expired(&self) -> bool {
        let idle = i64::try_from(self.idle.as_millis()).unwrap_or(i64::MAX);
        now_ms() >= self.last_active_ms().saturating_add(idle)
    }

    /// Ends its session when it was left alone so long. The container itself stays: its files are there when it is used again.
    pub(crate) fn linger(&self, for_: Duration) {
        let linger = i64::try_from(for_.as_millis()).unwrap_or(i64::MAX);
        self.linger_ms.store(linger, Ordering::Relaxed);
    }

    /// Whether its session has been left alone too long.
    pub(super) fn has_lingered(&self) -> bool {
        now_ms() >= self.last_active_ms().saturating_add(self.linger_ms.load(Ordering::Relaxed)) && self.is_live()
    }

    /// When it was last used, milliseconds since 1970.
    pub(super) fn last_active_ms(&self) -> i64 {
        self.last_active_ms.load(Ordering::Relaxed)
    }

    /// Whether it has a session, as far as can be told without waiting for whoever is busy with it.
    pub(super) fn is_live(&self) -> bool {
        self.life.try_lock().is_ok_and(|life| matches!(*life, Life::Live { .. }))
    }

    pub(super) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Ends the session; the files in the store stay.
    pub(super) async fn end(&self) {
        self.replace(Life::Dormant(None)).await;
    }

    /// Ends the session for good.
    pub(super) async fn delete(&self) {
        self.replace(Life::Deleted).await;
    }

    async fn replace(&self, next: Life) {
        let last = std::mem::replace(&mut *self.life.lock().await, next);
        if let Life::Live { session, _place } = last {
            // Closing fails only when it is closed already.
            let _closed = session.close().await;
        }
    }
}

fn new_file(path: &str, mime: &str, source: Source) -> NewContainerFile {
    let (path, mime) = (path.to_owned(), mime.to_owned());
    NewContainerFile { id: ContainerFileId::new(), path, mime, source, place: Place::Workspace }
}

/// A workspace that refuses a client's file: full, most of all.
fn refused_file(error: Error) -> ApiError {
    match error {
        Error::Sandbox(SandboxError::File { path, reason }) => {
            let shown: String = path.chars().take(80).flat_map(char::escape_debug).collect();
            ApiError::invalid("file", format!("The container cannot take the file '{shown}': {reason}."))
        }
        error => error.into(),
    }
}

/// The name itself or, when it is taken, the name with a number before its ending.
fn free_name(name: &str, taken: &HashSet<String>) -> String {
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = name[start..].rfind('.').filter(|dot| *dot > 0).map_or(name.len(), |dot| start + dot);
    let (stem, ending) = name.split_at(dot);
    let numbered = (2..).map(|number| format!("{stem}-{number}{ending}"));
    std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_file_of_a_name_gets_a_number() {
        let taken: HashSet<String> = ["a.csv", "a-2.csv", "d.d/x", "archive.tar.gz", ".env"].map(str::to_owned).into();
        for (name, free) in [
            ("b.csv", "b.csv"),
            ("a.csv", "a-3.csv"),
            ("d.d/x", "d.d/x-2"),
            ("archive.tar.gz", "archive.tar-2.gz"),
            (".env", ".env-2"),
        ] {
            assert_eq!(free_name(name, &taken), free);
        }
    }
}
