//! Files of the Files API.

use rusqlite::{Connection, Row, ToSql, params};

use crate::database::{all, one, piece_of};
use crate::{BlobName, Error, FileId, NewBlob, Page, PageQuery, Store, Tenant, now, turns};

const COLUMNS: &str = "id, blob, bytes, filename, purpose, mime, created_at, expires_at, name, sha256";

/// Seconds.
const DAY: i64 = 24 * 3600;

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRecord {
    /// Id.
    pub id: FileId,
    /// Blob that holds the content.
    pub blob: BlobName,
    /// Size, bytes.
    pub bytes: u64,
    /// Name that the client gave.
    pub filename: String,
    /// Purpose that the client gave.
    pub purpose: String,
    /// MIME type.
    pub mime: String,
    /// Time of creation, seconds since 1970.
    pub created_at: i64,
    /// Time at which it expires, seconds since 1970.
    pub expires_at: Option<i64>,
    /// Name by which the tenant finds it besides its id.
    pub name: Option<String>,
    /// SHA-256 of the content, in hexadecimal; `None` for files of format 21 and before.
    pub sha256: Option<String>,
}

/// A file to be kept.
#[derive(Debug)]
pub struct NewFile {
    /// Name that the client gave.
    pub filename: String,
    /// Purpose that the client gave.
    pub purpose: String,
    /// MIME type.
    pub mime: String,
    /// Time at which it expires, seconds since 1970.
    pub expires_at: Option<i64>,
}

impl FileRecord {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            blob: row.get(1)?,
            bytes: row.get(2)?,
            filename: row.get(3)?,
            purpose: row.get(4)?,
            mime: row.get(5)?,
            created_at: row.get(6)?,
            expires_at: row.get(7)?,
            name: row.get(8)?,
            sha256: row.get(9)?,
        })
    }
}

impl Store {
    /// Keeps a file.
    pub async fn add_file(&self, tenant: &Tenant, file: NewFile, blob: NewBlob) -> Result<FileRecord, Error> {
        let tenant = tenant.clone();
        self.run(move |store| {
            let record = store
                .write_counted(&tenant, blob.reserved(), |database| insert(database, &tenant, file, None, &blob))?;
            blob.commit();
            Ok(record)
        })
        .await
    }

    /// Returns a file, unless it has expired.
    pub async fn file(&self, tenant: &Tenant, id: &FileId) -> Result<Option<FileRecord>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = format!(
                "SELECT {COLUMNS} FROM files WHERE tenant = ?1 AND id = ?2 AND coalesce(expires_at > ?3, TRUE)"
            );
            one(database, &query, params![tenant, id, now()], FileRecord::read)
        })
        .await
    }

    /// Returns the file of this name, unless it has expired.
    pub async fn file_named(&self, tenant: &Tenant, name: &str) -> Result<Option<FileRecord>, Error> {
        let name = name.to_owned();
        self.read(tenant, move |database, tenant| named(database, tenant, &name)).await
    }

    /// Returns a page of the files, all or those of one purpose.
    pub async fn files(
        &self,
        tenant: &Tenant,
        purpose: Option<String>,
        page: PageQuery,
    ) -> Result<Page<FileRecord>, Error> {
        self.read(tenant, move |database, tenant| {
            let select = format!(
                "SELECT {COLUMNS} FROM files WHERE tenant = ?1 AND coalesce(purpose = ?2, TRUE) \
                 AND coalesce(expires_at > ?3, TRUE)"
            );
            let now = now();
            page.read(database, (&select, "id"), vec![&tenant, &purpose, &now], page.after(), FileRecord::read)
        })
        .await
    }

    /// Removes a file. Returns false if there was none.
    pub async fn delete_file(&self, tenant: &Tenant, id: &FileId) -> Result<bool, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.run(move |store| {
            let query = "DELETE FROM files WHERE tenant = ?1 AND id = ?2 RETURNING blob";
            let row = params![tenant, id];
            let blobs =
                store.0.database.delete(Some(&tenant), |database| all(database, query, row, |row| row.get(0)))?;
            store.remove_blobs(&blobs);
            Ok(!blobs.is_empty())
        })
        .await
    }

    /// Removes expired files, uploads, responses, approvals and ended turns, and what dead processes left.
    pub async fn remove_expired(&self) -> Result<(), Error> {
        self.run(|store| {
            // First: on a full disk it makes room for the rest.
            let swept = store.sweep_if_due();
            let now = now();
            let query =
                "DELETE FROM files WHERE id IN (SELECT id FROM files WHERE expires_at <= ?1 LIMIT ?2) RETURNING blob";
            store.delete_files_in_pieces(query, &[&now])?;
            let query = "DELETE FROM upload_parts WHERE id IN (SELECT id FROM upload_parts WHERE upload IN
                             (SELECT id FROM uploads WHERE expires_at <= ?1) LIMIT ?2) RETURNING blob";
            store.delete_files_in_pieces(query, &[&now])?;
            let (a_day_ago, a_month_ago) = (now - DAY, now - 30 * DAY);
            for (query, before) in [
                ("DELETE FROM responses WHERE id IN (SELECT id FROM responses WHERE expires_at <= ?1 LIMIT ?2)", &now),
                // Some time after their expiry: a client may still ask for them.
                (
                    "DELETE FROM uploads WHERE id IN (SELECT id FROM uploads WHERE expires_at <= ?1 LIMIT ?2)",
                    &a_day_ago,
                ),
                (
                    "DELETE FROM approvals WHERE id IN
                         (SELECT id FROM approvals WHERE decider = 'client' AND expires_at < ?1 LIMIT ?2)",
                    &now,
                ),
                (
                    "DELETE FROM approvals WHERE id IN (SELECT id FROM approvals
                         WHERE decider = 'operator' AND expires_at <= ?1 AND status <> 'pending' LIMIT ?2)",
                    &a_month_ago,
                ),
            ] {
                store.0.database.delete_in_pieces(None, query, &[before])?;
            }
            turns::remove_expired(store)?;
            if store.0.lock.is_some() {
                store.0.database.fill_reserve();
            }
            swept
        })
        .await
    }

    /// Deletes rows of files for the server, and their blobs, as `Database::delete_in_pieces` does. The query returns the blobs.
    fn delete_files_in_pieces(&self, query: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<(), Error> {
        let delete = |database: &Connection, rows| {
            let mut statement = database.prepare_cached(query)?;
            let blobs = statement.query_map(&*piece_of(parameters, &rows), |row| row.get(0))?;
            let blobs: Vec<BlobName> = blobs.collect::<Result<_, _>>()?;
            Ok((blobs.len(), blobs))
        };
        self.0.database.in_pieces(None, delete, |blobs| self.remove_blobs(&blobs))
    }
}

/// The file of this name, unless it has expired.
pub(crate) fn named(database: &Connection, tenant: &Tenant, name: &str) -> Result<Option<FileRecord>, Error> {
    let query =
        format!("SELECT {COLUMNS} FROM files WHERE tenant = ?1 AND name = ?2 AND coalesce(expires_at > ?3, TRUE)");
    one(database, &query, params![tenant, name, now()], FileRecord::read)
}

/// Writes the row of a new file. Its name, if it has one, must be free; an expired file loses it.
pub(crate) fn insert(
    database: &Connection,
    tenant: &Tenant,
    file: NewFile,
    name: Option<String>,
    blob: &NewBlob,
) -> Result<FileRecord, Error> {
    let NewFile { filename, purpose, mime, expires_at } = file;
    let record = FileRecord {
        id: FileId::new(),
        blob: blob.name().clone(),
        bytes: blob.bytes(),
        filename,
        purpose,
        mime,
        created_at: now(),
        expires_at,
        name,
        sha256: Some(blob.sha256().to_owned()),
    };
    let FileRecord { id, blob, bytes, filename, purpose, mime, created_at, expires_at, name, sha256 } = &record;
    if name.is_some() {
        let query = "UPDATE files SET name = NULL WHERE tenant = ?1 AND name = ?2 AND expires_at <= ?3";
        database.prepare_cached(query)?.execute(params![tenant, name, created_at])?;
    }
    let query = format!("INSERT INTO files (tenant, {COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)");
    let row = params![tenant, id, blob, bytes, filename, purpose, mime, created_at, expires_at, name, sha256];
    database.prepare_cached(&query)?.execute(row)?;
    Ok(record)
}
