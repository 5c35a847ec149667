//! Uploads in parts, which become files.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, params};

use crate::database::{all, one};
use crate::{BlobName, Error, FileId, FileRecord, NewBlob, NewFile, PartId, Store, Tenant, UploadId, files, now};

const COLUMNS: &str = "id, status, bytes, filename, purpose, mime, created_at, expires_at, file_lives, file, name";

/// An upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadRecord {
    /// Id.
    pub id: UploadId,
    /// Status.
    pub status: UploadStatus,
    /// Announced size, bytes.
    pub bytes: u64,
    /// Name of the file.
    pub filename: String,
    /// Purpose of the file.
    pub purpose: String,
    /// MIME type.
    pub mime: String,
    /// Time of creation, seconds since 1970.
    pub created_at: i64,
    /// Time at which it expires unless it is completed, seconds since 1970.
    pub expires_at: i64,
    /// Time until the file expires once it is complete, seconds.
    pub file_lives: Option<i64>,
    /// File that it became.
    pub file: Option<FileId>,
    /// Name by which the tenant will find the file besides its id.
    pub name: Option<String>,
}

/// An upload to be begun.
#[derive(Debug)]
pub struct NewUpload {
    /// Announced size, bytes.
    pub bytes: u64,
    /// Name of the file.
    pub filename: String,
    /// Purpose of the file.
    pub purpose: String,
    /// MIME type.
    pub mime: String,
    /// Time at which it expires unless it is completed, seconds since 1970.
    pub expires_at: i64,
    /// Time until the file expires once it is complete, seconds.
    pub file_lives: Option<i64>,
    /// Name by which the tenant will find the file besides its id.
    pub name: Option<String>,
}

/// Status of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadStatus {
    /// Taking parts.
    Pending,
    /// Become a file.
    Completed,
    /// Given up.
    Cancelled,
}

impl UploadStatus {
    fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl ToSql for UploadStatus {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.word().into())
    }
}

impl FromSql for UploadStatus {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let text = value.as_str()?;
        let all = [Self::Pending, Self::Completed, Self::Cancelled];
        all.into_iter().find(|status| status.word() == text).ok_or(FromSqlError::InvalidType)
    }
}

/// A part of an upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartRecord {
    /// Id.
    pub id: PartId,
    /// Blob that holds the content.
    pub blob: BlobName,
    /// Size, bytes.
    pub bytes: u64,
    /// Time at which it came, seconds since 1970.
    pub created_at: i64,
}

impl PartRecord {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { id: row.get(0)?, blob: row.get(1)?, bytes: row.get(2)?, created_at: row.get(3)? })
    }
}

impl UploadRecord {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let file: Option<String> = row.get(9)?;
        Ok(Self {
            id: row.get(0)?,
            status: row.get(1)?,
            bytes: row.get(2)?,
            filename: row.get(3)?,
            purpose: row.get(4)?,
            mime: row.get(5)?,
            created_at: row.get(6)?,
            expires_at: row.get(7)?,
            file_lives: row.get(8)?,
            file: file.as_deref().and_then(FileId::parse),
            name: row.get(10)?,
        })
    }
}

impl Store {
    /// Begins an upload.
    pub async fn add_upload(&self, tenant: &Tenant, upload: NewUpload) -> Result<UploadRecord, Error> {
        let NewUpload { bytes, filename, purpose, mime, expires_at, file_lives, name } = upload;
        self.write_for(tenant, move |database, tenant| {
            let id = UploadId::new();
            let (status, created_at) = (UploadStatus::Pending, now());
            let query = format!(
                "INSERT INTO uploads (tenant, {COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, NULL, ?11)"
            );
            let row =
                params![tenant, id, status, bytes, filename, purpose, mime, created_at, expires_at, file_lives, name];
            database.prepare_cached(&query)?.execute(row)?;
            Ok(UploadRecord {
                id,
                status,
                bytes,
                filename,
                purpose,
                mime,
                created_at,
                expires_at,
                file_lives,
                file: None,
                name,
            })
        })
        .await
    }

    /// Returns an upload.
    pub async fn upload(&self, tenant: &Tenant, id: &UploadId) -> Result<Option<UploadRecord>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = format!("SELECT {COLUMNS} FROM uploads WHERE tenant = ?1 AND id = ?2");
            one(database, &query, params![tenant, id], UploadRecord::read)
        })
        .await
    }

    /// Keeps a part. `None` when the upload takes none any more.
    pub async fn add_part(
        &self,
        tenant: &Tenant,
        upload: &UploadId,
        blob: NewBlob,
    ) -> Result<Option<PartRecord>, Error> {
        self.add_part_at(tenant, upload, None, blob).await
    }

    /// The same for a part that begins at this byte of the upload. `None` also if others are there up to another byte.
    pub async fn add_part_at(
        &self,
        tenant: &Tenant,
        upload: &UploadId,
        offset: Option<u64>,
        blob: NewBlob,
    ) -> Result<Option<PartRecord>, Error> {
        let (tenant, upload) = (tenant.clone(), upload.clone());
        self.run(move |store| {
            let part =
                PartRecord { id: PartId::new(), blob: blob.name().clone(), bytes: blob.bytes(), created_at: now() };
            let query = "INSERT INTO upload_parts (id, tenant, upload, blob, bytes, created_at)
                         SELECT ?1, ?2, ?3, ?4, ?5, ?6 FROM uploads WHERE tenant = ?2 AND id = ?3 AND status = ?7
                             AND (?8 IS NULL OR ?8 = (SELECT coalesce(sum(bytes), 0) FROM upload_parts WHERE upload = ?3))";
            let status = UploadStatus::Pending;
            let row = params![part.id, tenant, upload, part.blob, part.bytes, part.created_at, status, offset];
            if store.write_counted(&tenant, blob.reserved(), |database| Ok(database.execute(query, row)?))? == 0 {
                return Ok(None);
            }
            blob.commit();
            Ok(Some(part))
        })
        .await
    }

    /// Returns the parts of an upload, in the order in which they came.
    pub async fn parts(&self, tenant: &Tenant, upload: &UploadId) -> Result<Vec<PartRecord>, Error> {
        let upload = upload.clone();
        let query =
            "SELECT id, blob, bytes, created_at FROM upload_parts WHERE tenant = ?1 AND upload = ?2 ORDER BY id";
        self.read(tenant, move |database, tenant| all(database, query, params![tenant, upload], PartRecord::read)).await
    }

    /// Makes a file of an upload, with the content `blob`. `None` if it was completed or cancelled meanwhile, or another file has its name.
    pub async fn complete_upload(
        &self,
        tenant: &Tenant,
        upload: &UploadRecord,
        blob: NewBlob,
    ) -> Result<Option<FileRecord>, Error> {
        let (tenant, upload) = (tenant.clone(), upload.clone());
        self.run(move |store| {
            let new = NewFile {
                filename: upload.filename,
                purpose: upload.purpose,
                mime: upload.mime,
                expires_at: upload.file_lives.map(|seconds| now().saturating_add(seconds)),
            };
            let made = store.write_counted(&tenant, blob.reserved(), |database| {
                if let Some(name) = &upload.name
                    && files::named(database, &tenant, name)?.is_some()
                {
                    return Ok(None);
                }
                let query = "UPDATE uploads SET status = ?3 WHERE tenant = ?1 AND id = ?2 AND status = ?4";
                let row = params![tenant, upload.id, UploadStatus::Completed, UploadStatus::Pending];
                if database.execute(query, row)? == 0 {
                    return Ok(None);
                }
                let file = files::insert(database, &tenant, new, upload.name.clone(), &blob)?;
                let query = "UPDATE uploads SET file = ?3 WHERE tenant = ?1 AND id = ?2";
                database.execute(query, params![tenant, upload.id, file.id])?;
                Ok(Some((file, take_parts(database, &tenant, &upload.id)?)))
            })?;
            let Some((file, parts)) = made else { return Ok(None) };
            blob.commit();
            store.remove_blobs(&parts);
            Ok(Some(file))
        })
        .await
    }

    /// Gives an upload up. Returns whether it was still pending.
    pub async fn cancel_upload(&self, tenant: &Tenant, id: &UploadId) -> Result<bool, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.run(move |store| {
            let parts = store.0.database.delete(Some(&tenant), |database| {
                let query = "UPDATE uploads SET status = ?3 WHERE tenant = ?1 AND id = ?2 AND status = ?4";
                let row = params![tenant, id, UploadStatus::Cancelled, UploadStatus::Pending];
                if database.execute(query, row)? == 0 {
                    return Ok(None);
                }
                take_parts(database, &tenant, &id).map(Some)
            })?;
            store.remove_blobs(parts.as_deref().unwrap_or_default());
            Ok(parts.is_some())
        })
        .await
    }
}

/// Deletes the rows of an upload's parts, and returns their blobs.
fn take_parts(database: &Connection, tenant: &Tenant, upload: &UploadId) -> Result<Vec<BlobName>, Error> {
    let query = "DELETE FROM upload_parts WHERE tenant = ?1 AND upload = ?2 RETURNING blob";
    all(database, query, params![tenant, upload], |row| row.get(0))
}
