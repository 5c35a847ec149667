//! Sessions and their files: the data from which a session is made again. Its tables have OpenAI's word for it, `containers`.

use std::io::Read;
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, params};

use crate::blobs::FileBatch;
use crate::database::{all, one};
use crate::{
    BlobName, BlobReader, Error, NewBlob, Page, PageQuery, SessionFileId, SessionId, Store, Tenant, now, now_ms,
};

const COLUMNS: &str = "id, name, memory_limit, idle_ms, created_at, last_active_ms, has_run";
const FILE_COLUMNS: &str = "id, path, blob, bytes, sha256, mime, source, place, created_at";

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// Id.
    pub id: SessionId,
    /// Name that the client gave.
    pub name: String,
    /// Memory limit, as the client wrote it.
    pub memory_limit: Option<String>,
    /// Idle time after which it expires.
    pub idle: Duration,
    /// Time of creation, seconds since 1970.
    pub created_at: i64,
    /// Time of last use, milliseconds since 1970.
    pub last_active_ms: i64,
    /// True if programs have run in it.
    pub has_run: bool,
}

impl SessionRecord {
    /// Returns whether it has been idle for too long.
    pub fn is_expired(&self) -> bool {
        let idle = i64::try_from(self.idle.as_millis()).unwrap_or(i64::MAX);
        now_ms() >= self.last_active_ms.saturating_add(idle)
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            memory_limit: row.get(2)?,
            idle: Duration::from_millis(row.get(3)?),
            created_at: row.get(4)?,
            last_active_ms: row.get(5)?,
            has_run: row.get(6)?,
        })
    }
}

/// A file of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFileRecord {
    /// Id.
    pub id: SessionFileId,
    /// Path, relative to the workspace.
    pub path: String,
    /// Blob that holds the content.
    pub blob: BlobName,
    /// Size, bytes.
    pub bytes: u64,
    /// SHA-256 of the content, in hexadecimal.
    pub sha256: String,
    /// MIME type.
    pub mime: String,
    /// Origin.
    pub source: FileOrigin,
    /// Location beside the store.
    pub location: FileLocation,
    /// Time at which a file of this path was first stored, seconds since 1970.
    pub created_at: i64,
}

/// Origin of a session's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileOrigin {
    /// The client.
    User,
    /// A program.
    Assistant,
}

impl FileOrigin {
    /// Returns the word that clients and the database know.
    pub fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

impl ToSql for FileOrigin {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.word().into())
    }
}

impl FromSql for FileOrigin {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let text = value.as_str()?;
        let all = [Self::User, Self::Assistant];
        all.into_iter().find(|source| source.word() == text).ok_or(FromSqlError::InvalidType)
    }
}

/// Location of a session's file beside the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileLocation {
    /// The workspace, where programs see it.
    Workspace,
    /// Nowhere: a picture that a program only showed.
    Nowhere,
}

impl FileLocation {
    fn word(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Nowhere => "nowhere",
        }
    }
}

impl ToSql for FileLocation {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.word().into())
    }
}

impl FromSql for FileLocation {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let text = value.as_str()?;
        let all = [Self::Workspace, Self::Nowhere];
        all.into_iter().find(|location| location.word() == text).ok_or(FromSqlError::InvalidType)
    }
}

/// A session to be created.
#[derive(Debug)]
pub struct NewSessionRecord {
    /// Name that the client gave.
    pub name: String,
    /// Memory limit, as the client wrote it.
    pub memory_limit: Option<String>,
    /// Idle time after which it expires.
    pub idle: Duration,
    /// Environment variables of its programs, in the caller's format.
    pub variables: Option<String>,
}

/// A file to be kept for a session.
#[derive(Debug)]
pub struct NewSessionFile {
    /// Id that it gets if its path is new.
    pub id: SessionFileId,
    /// Path, relative to the workspace.
    pub path: String,
    /// MIME type.
    pub mime: String,
    /// Origin.
    pub source: FileOrigin,
    /// Location beside the store.
    pub location: FileLocation,
}

/// Outcome of writing files of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFiles {
    /// The files that are there.
    pub records: Vec<SessionFileRecord>,
    /// Paths of files that exceed the tenant's quota, and of those without a reader. Older files of these paths stay.
    pub without_room: Vec<String>,
}

impl SessionFileRecord {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            path: row.get(1)?,
            blob: row.get(2)?,
            bytes: row.get(3)?,
            sha256: row.get(4)?,
            mime: row.get(5)?,
            source: row.get(6)?,
            location: row.get(7)?,
            created_at: row.get(8)?,
        })
    }
}

fn insert(database: &Connection, tenant: &Tenant, new: NewSessionRecord) -> Result<SessionRecord, Error> {
    let NewSessionRecord { name, memory_limit, idle, variables } = new;
    let (id, created_at, last_active_ms) = (SessionId::new(), now(), now_ms());
    let query = format!("INSERT INTO containers (tenant, {COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, FALSE)");
    let idle_ms = i64::try_from(idle.as_millis()).unwrap_or(i64::MAX);
    let row = params![tenant, id, name, memory_limit, idle_ms, created_at, last_active_ms];
    database.prepare_cached(&query)?.execute(row)?;
    if let Some(variables) = variables {
        put_variables(database, tenant, &id, &variables)?;
    }
    Ok(SessionRecord { id, name, memory_limit, idle, created_at, last_active_ms, has_run: false })
}

fn put_variables(database: &Connection, tenant: &Tenant, id: &SessionId, variables: &str) -> Result<(), Error> {
    let query = "INSERT INTO container_variables (container, tenant, variables) VALUES (?1, ?2, ?3)
                 ON CONFLICT (container) DO UPDATE SET variables = excluded.variables";
    database.prepare_cached(query)?.execute(params![id, tenant, variables])?;
    Ok(())
}

impl Store {
    /// Creates a session with copies of blobs as its files, all or nothing.
    pub async fn add_session(
        &self,
        tenant: &Tenant,
        new: NewSessionRecord,
        files: Vec<(NewSessionFile, BlobName)>,
    ) -> Result<SessionRecord, Error> {
        let tenant = tenant.clone();
        self.run(move |store| {
            let copied = files.into_iter().map(|(file, blob)| Ok((file, store.copy_blob_now(&tenant, &blob)?)));
            let files = copied.collect::<Result<Vec<_>, Error>>()?;
            let record = store.write_counted(&tenant, reserved(&files), |database| {
                let record = insert(database, &tenant, new)?;
                put_files(database, &tenant, &record.id, &files, &mut Vec::new())?;
                Ok(record)
            })?;
            files.into_iter().for_each(|(_, blob)| blob.commit());
            Ok(record)
        })
        .await
    }

    /// Returns the last used session of this name, or a new one.
    pub async fn session_by_name(&self, tenant: &Tenant, new: NewSessionRecord) -> Result<SessionRecord, Error> {
        // In the writer's transaction, so that concurrent requests find the same one.
        self.write_for(tenant, move |database, tenant| {
            let query = format!(
                "SELECT {COLUMNS} FROM containers INDEXED BY containers_by_name
                 WHERE tenant = ?1 AND name = ?2 ORDER BY last_active_ms DESC LIMIT 1"
            );
            match one(database, &query, params![tenant, new.name], SessionRecord::read)? {
                Some(record) => Ok(record),
                None => insert(database, tenant, new),
            }
        })
        .await
    }

    /// Returns a session.
    pub async fn session(&self, tenant: &Tenant, id: &SessionId) -> Result<Option<SessionRecord>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = format!("SELECT {COLUMNS} FROM containers WHERE tenant = ?1 AND id = ?2");
            one(database, &query, params![tenant, id], SessionRecord::read)
        })
        .await
    }

    /// Returns the environment variables of a session's programs, as they were stored.
    pub async fn session_variables(&self, tenant: &Tenant, id: &SessionId) -> Result<Option<String>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT variables FROM container_variables WHERE tenant = ?1 AND container = ?2";
            one(database, query, params![tenant, id], |row| row.get(0))
        })
        .await
    }

    /// Replaces the environment variables of a session's programs. Returns false if there is no such session.
    pub async fn set_session_variables(
        &self,
        tenant: &Tenant,
        id: &SessionId,
        variables: String,
    ) -> Result<bool, Error> {
        let id = id.clone();
        self.write_for(tenant, move |database, tenant| {
            let query = "SELECT 1 FROM containers WHERE tenant = ?1 AND id = ?2";
            let is_there = one(database, query, params![tenant, id], |_| Ok(()))?.is_some();
            if is_there {
                put_variables(database, tenant, &id, &variables)?;
            }
            Ok(is_there)
        })
        .await
    }

    /// Returns a page of the sessions, all or those of one name.
    pub async fn sessions(
        &self,
        tenant: &Tenant,
        name: Option<String>,
        page: PageQuery,
    ) -> Result<Page<SessionRecord>, Error> {
        self.read(tenant, move |database, tenant| {
            let select = format!("SELECT {COLUMNS} FROM containers WHERE tenant = ?1 AND coalesce(name = ?2, TRUE)");
            page.read(database, (&select, "id"), vec![&tenant, &name], page.after(), SessionRecord::read)
        })
        .await
    }

    /// Notes that a session is in use. Returns false if there is none.
    pub async fn touch_session(&self, tenant: &Tenant, id: &SessionId) -> Result<bool, Error> {
        let id = id.clone();
        let query = "UPDATE containers SET last_active_ms = max(last_active_ms, ?3) WHERE tenant = ?1 AND id = ?2";
        self.write_uncounted(tenant, move |database, tenant| {
            Ok(database.prepare_cached(query)?.execute(params![tenant, id, now_ms()])? > 0)
        })
        .await
    }

    /// Notes that programs have run in a session.
    pub async fn note_programs_of(&self, tenant: &Tenant, id: &SessionId) -> Result<(), Error> {
        let id = id.clone();
        let query = "UPDATE containers SET has_run = TRUE WHERE tenant = ?1 AND id = ?2";
        self.write_uncounted(tenant, move |database, tenant| {
            database.prepare_cached(query)?.execute(params![tenant, id])?;
            Ok(())
        })
        .await
    }

    /// Marks a session as expired, whatever the wall clock says.
    pub async fn expire_session(&self, tenant: &Tenant, id: &SessionId) -> Result<(), Error> {
        let id = id.clone();
        let query =
            "UPDATE containers SET last_active_ms = min(last_active_ms, ?3 - idle_ms) WHERE tenant = ?1 AND id = ?2";
        self.write_uncounted(tenant, move |database, tenant| {
            database.prepare_cached(query)?.execute(params![tenant, id, now_ms()])?;
            Ok(())
        })
        .await
    }

    /// Removes a session with its files. Returns false if there was none.
    pub async fn delete_session(&self, tenant: &Tenant, id: &SessionId) -> Result<bool, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.run(move |store| {
            let (deleted, blobs) = store.0.database.delete(Some(&tenant), |database| {
                let query = "DELETE FROM container_files WHERE tenant = ?1 AND container = ?2 RETURNING blob";
                let blobs = all(database, query, params![tenant, id], |row| row.get(0))?;
                let query = "DELETE FROM containers WHERE tenant = ?1 AND id = ?2";
                Ok((database.execute(query, params![tenant, id])? > 0, blobs))
            })?;
            store.remove_blobs(&blobs);
            Ok(deleted)
        })
        .await
    }

    /// Removes the sessions, with their files, that have been unused for this time.
    pub async fn remove_sessions_unused_for(&self, time: Duration) -> Result<(), Error> {
        let before = now_ms().saturating_sub(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        /// Sessions of one transaction; other writers run in between.
        const AT_ONCE: usize = 20;
        let unused = "SELECT id FROM containers WHERE last_active_ms < ?1 LIMIT ?2";
        let files = "DELETE FROM container_files WHERE container = ?1 RETURNING blob";
        self.run(move |store| {
            // A session goes with all of its files: it may be in use again a moment later.
            let delete = |database: &Connection, sessions: usize| {
                let ids: Vec<SessionId> = all(database, unused, params![before, sessions], |row| row.get(0))?;
                let mut blobs: Vec<BlobName> = Vec::new();
                for id in &ids {
                    blobs.extend(all(database, files, [id], |row| row.get::<_, BlobName>(0))?);
                    database.execute("DELETE FROM containers WHERE id = ?1", [id])?;
                }
                Ok((ids.len(), blobs))
            };
            store.0.database.in_pieces_of(AT_ONCE, None, delete, |blobs| store.remove_blobs(&blobs))
        })
        .await
    }

    /// Removes the expired sessions of a tenant, with their files.
    pub async fn remove_expired_sessions(&self, tenant: &Tenant) -> Result<(), Error> {
        let tenant = tenant.clone();
        self.run(move |store| {
            let blobs = store.0.database.delete(Some(&tenant), |database| {
                let expired = "SELECT id FROM containers WHERE tenant = ?1 AND last_active_ms + idle_ms <= ?2";
                let row = params![tenant, now_ms()];
                let query = format!("DELETE FROM container_files WHERE container IN ({expired}) RETURNING blob");
                let blobs = all(database, &query, row, |row| row.get(0))?;
                database.execute(&format!("DELETE FROM containers WHERE id IN ({expired})"), row)?;
                Ok(blobs)
            })?;
            store.remove_blobs(&blobs);
            Ok(())
        })
        .await
    }

    /// Stores files of a session, all or none. A file replaces one of the same path and takes over its id. `None` if the session is
    /// gone.
    pub async fn put_session_files(
        &self,
        tenant: &Tenant,
        session: &SessionId,
        files: Vec<(NewSessionFile, NewBlob)>,
    ) -> Result<Option<Vec<SessionFileRecord>>, Error> {
        let (tenant, session) = (tenant.clone(), session.clone());
        self.run(move |store| {
            let mut replaced = Vec::new();
            let put = |database: &Connection| put_files(database, &tenant, &session, &files, &mut replaced);
            let Some(records) = store.write_counted(&tenant, reserved(&files), put)? else { return Ok(None) };
            files.into_iter().for_each(|(_, blob)| blob.commit());
            store.remove_blobs(&replaced);
            Ok(Some(records))
        })
        .await
    }

    /// Stores readers' contents as files of a session, and removes others, all or nothing except files that exceed the tenant's quota.
    /// Each reader is requested when the previous one has been read, so they need not be open at once. Once begun it is finished, blobs and
    /// rows, even if the caller gives up. One without a reader counts as without room. A file replaces one of the same path, unless it has
    /// the same content. `None` if the session is gone.
    pub async fn write_session_files<R: Read>(
        &self,
        tenant: &Tenant,
        session: &SessionId,
        files: impl IntoIterator<Item = (NewSessionFile, Option<R>)> + Send + 'static,
        gone: Vec<SessionFileId>,
    ) -> Result<Option<WrittenFiles>, Error> {
        let (tenant, session) = (tenant.clone(), session.clone());
        self.run(move |store| {
            let (mut named, mut without_room) = (Vec::new(), Vec::new());
            let mut writing = FileBatch::new(store.no_room(&tenant));
            for (file, reader) in files {
                let Some(reader) = reader else {
                    without_room.push(file.path);
                    continue;
                };
                match writing.add(store, reader) {
                    Ok(()) => named.push(file),
                    Err(Error::Full { .. }) => without_room.push(file.path),
                    Err(error) => return Err(error),
                }
            }
            let mut files: Vec<_> = named.into_iter().zip(writing.finish(store)?).collect();
            let mut replaced = Vec::new();
            let (mut same, mut records) = (Vec::new(), Vec::new());
            let written = store.write_counted(&tenant, reserved(&files), |database| {
                let query = format!(
                    "SELECT {FILE_COLUMNS} FROM container_files WHERE tenant = ?1 AND container = ?2 AND path = ?3 AND sha256 = ?4"
                );
                for (file, blob) in &files {
                    let row = params![tenant, session, file.path, blob.sha256()];
                    same.extend(one(database, &query, row, SessionFileRecord::read)?);
                }
                files.retain(|(file, _)| same.iter().all(|same| same.path != file.path));
                let Some(put) = put_files(database, &tenant, &session, &files, &mut replaced)? else { return Ok(false) };
                records = put;
                replaced.extend(delete_files(database, &tenant, &session, &gone)?);
                Ok(true)
            })?;
            if !written {
                return Ok(None);
            }
            files.into_iter().for_each(|(_, blob)| blob.commit());
            store.remove_blobs(&replaced);
            records.extend(same);
            Ok(Some(WrittenFiles { records, without_room }))
        })
        .await
    }

    /// Opens a file of a session. A program may replace it between the reading of its row and of its content: then it is the new one.
    pub async fn open_session_file(
        &self,
        tenant: &Tenant,
        session: &SessionId,
        id: &SessionFileId,
    ) -> Result<Option<(SessionFileRecord, BlobReader)>, Error> {
        let mut gone = None;
        loop {
            let Some(file) = self.session_file(tenant, session, id).await? else { return Ok(None) };
            match self.read_blob(&file.blob).await {
                Ok(content) => return Ok(Some((file, content))),
                Err(error) if gone.as_ref() == Some(&file.blob) => return Err(error),
                Err(_) => gone = Some(file.blob),
            }
        }
    }

    /// Returns a file of a session.
    pub async fn session_file(
        &self,
        tenant: &Tenant,
        session: &SessionId,
        id: &SessionFileId,
    ) -> Result<Option<SessionFileRecord>, Error> {
        let (session, id) = (session.clone(), id.clone());
        self.read(tenant, move |database, tenant| {
            let query =
                format!("SELECT {FILE_COLUMNS} FROM container_files WHERE tenant = ?1 AND container = ?2 AND id = ?3");
            one(database, &query, params![tenant, session, id], SessionFileRecord::read)
        })
        .await
    }

    /// Returns a session's file by its id alone, with the id of the session.
    pub async fn file_of_any_session(
        &self,
        tenant: &Tenant,
        id: &SessionFileId,
    ) -> Result<Option<(SessionId, SessionFileRecord)>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = format!("SELECT {FILE_COLUMNS}, container FROM container_files WHERE tenant = ?1 AND id = ?2");
            let read = |row: &Row<'_>| Ok((row.get("container")?, SessionFileRecord::read(row)?));
            one(database, &query, params![tenant, id], read)
        })
        .await
    }

    /// Returns a page of a session's files.
    pub async fn session_files(
        &self,
        tenant: &Tenant,
        session: &SessionId,
        page: PageQuery,
    ) -> Result<Page<SessionFileRecord>, Error> {
        let session = session.clone();
        self.read(tenant, move |database, tenant| {
            let select = format!("SELECT {FILE_COLUMNS} FROM container_files WHERE tenant = ?1 AND container = ?2");
            page.read(database, (&select, "id"), vec![&tenant, &session], page.after(), SessionFileRecord::read)
        })
        .await
    }

    /// Returns all files of a session. Their number is bounded by its workspace.
    pub async fn all_session_files(
        &self,
        tenant: &Tenant,
        session: &SessionId,
    ) -> Result<Vec<SessionFileRecord>, Error> {
        let session = session.clone();
        self.read(tenant, move |database, tenant| {
            let query =
                format!("SELECT {FILE_COLUMNS} FROM container_files WHERE tenant = ?1 AND container = ?2 ORDER BY id");
            all(database, &query, params![tenant, session], SessionFileRecord::read)
        })
        .await
    }

    /// Removes files of a session. Returns how many there were.
    pub async fn delete_session_files(
        &self,
        tenant: &Tenant,
        session: &SessionId,
        ids: Vec<SessionFileId>,
    ) -> Result<usize, Error> {
        let (tenant, session) = (tenant.clone(), session.clone());
        self.run(move |store| {
            let blobs =
                store.0.database.delete(Some(&tenant), |database| delete_files(database, &tenant, &session, &ids))?;
            store.remove_blobs(&blobs);
            Ok(blobs.len())
        })
        .await
    }
}

/// Returns the bytes that are reserved for files.
fn reserved(files: &[(NewSessionFile, NewBlob)]) -> u64 {
    files.iter().map(|(_, blob)| blob.reserved()).sum()
}

/// Writes the rows of files, and adds the blobs of replaced files to `replaced`. `None` if the session is gone.
fn put_files(
    database: &Connection,
    tenant: &Tenant,
    session: &SessionId,
    files: &[(NewSessionFile, NewBlob)],
    replaced: &mut Vec<BlobName>,
) -> Result<Option<Vec<SessionFileRecord>>, Error> {
    let mut records = Vec::new();
    let insert = format!(
        "INSERT INTO container_files (tenant, container, {FILE_COLUMNS})
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11 FROM containers WHERE tenant = ?1 AND id = ?2
         ON CONFLICT (container, path) DO UPDATE SET blob = excluded.blob, bytes = excluded.bytes,
             sha256 = excluded.sha256, mime = excluded.mime, source = excluded.source, place = excluded.place
         RETURNING {FILE_COLUMNS}"
    );
    for (file, blob) in files {
        let NewSessionFile { id, path, mime, source, location } = file;
        let query = "SELECT blob FROM container_files WHERE tenant = ?1 AND container = ?2 AND path = ?3";
        replaced.extend(one(database, query, params![tenant, session, path], |row| row.get(0))?);
        let (name, bytes, sha256) = (blob.name(), blob.bytes(), blob.sha256());
        let row = params![tenant, session, id, path, name, bytes, sha256, mime, source, location, now()];
        let Some(record) = one(database, &insert, row, SessionFileRecord::read)? else { return Ok(None) };
        records.push(record);
    }
    Ok(Some(records))
}

/// Deletes the rows of files, and returns their blobs.
fn delete_files(
    database: &Connection,
    tenant: &Tenant,
    session: &SessionId,
    ids: &[SessionFileId],
) -> Result<Vec<BlobName>, Error> {
    let query = "DELETE FROM container_files WHERE tenant = ?1 AND container = ?2 AND id = ?3 RETURNING blob";
    let mut blobs = Vec::new();
    for id in ids {
        blobs.extend(one(database, query, params![tenant, session, id], |row| row.get(0))?);
    }
    Ok(blobs)
}
