//! Durable state: one SQLite file and a directory of blobs.
//!
//! Every row belongs to a tenant, and every method for clients takes the tenant. A write has reached the disk when its future is done. The
//! content of a file is a blob: written under a temporary name, synced, renamed, and only then named by a row.
#![forbid(unsafe_code)]

mod approvals;
mod assistants;
mod audit;
mod backup;
mod blobs;
mod budgets;
mod checkpointer;
mod conversations;
mod database;
mod disk_reserve;
mod erase;
mod error;
mod files;
mod id;
mod interactions;
mod keys;
mod meter;
mod owners;
mod page;
mod quota;
mod responses;
mod row_change;
mod runs;
mod secrets;
mod sessions;
mod sweep;
mod synced_file;
mod threads;
mod turns;
mod uploads;
mod writer;
mod writer_queue;

use std::any::Any;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use aludel_ignore::Ignore;
use parking_lot::Mutex;
use rusqlite::Connection;
use tracing::warn;

pub use approvals::{ApprovalRecord, ApprovalStatus, ApprovalUpdate, DecisionOutcome, NewApproval, program_digest};
pub use audit::{AuditChain, AuditEntry, AuditEvent, AuditRecord, TamperEvidence};
pub use backup::Backup;
pub use blobs::{BlobName, BlobReader, BlobWriter, NewBlob};
pub use budgets::{DailyBudget, UsedUp};
pub use conversations::ConversationRecord;
use database::Database;
pub use database::UpgradeLoss;
pub use disk_reserve::FULL_DISK;
pub use erase::EraseOutcome;
pub use error::Error;
pub use files::{FileRecord, NewFile};
pub use id::{
    ApprovalId, AssistantId, ConversationId, FileId, InteractionId, KeyId, MessageId, PartId, ResponseId, RunId,
    SessionFileId, SessionId, StepId, Tenant, ThreadId, TurnId, UploadId, fresh_id, random_hex,
};
pub use interactions::{InteractionRecord, InteractionText};
pub use keys::{KEY_PREFIX, KeyRecord, NewKey};
pub use meter::{MeteredDay, MeteredWork, today};
use owners::Owner;
pub use owners::OwnerId;
pub use page::{Order, Page, PageQuery};
use quota::Quota;
pub use quota::{FILE_COST, QuotaCheck, Reservation};
pub use responses::{ResponseRecord, ResponseText};
pub use row_change::RowChange;
pub use runs::{NewRun, RunRecord, RunUpdate};
pub use sessions::{
    FileLocation, FileOrigin, NewSessionFile, NewSessionRecord, SessionFileRecord, SessionRecord, WrittenFiles,
};
pub use sweep::SweepOutcome;
use synced_file::Disk;
pub use threads::{AddOutcome, RemovedThread, ThreadRecord};
pub use turns::{AppendOutcome, NewTurn, TurnEventRecord, TurnLease, TurnRecord, TurnState, TurnUpdate};
pub use uploads::{NewUpload, PartRecord, UploadRecord, UploadStatus};

/// Everything that outlives the process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

/// The file that a server locks.
const LOCK: &str = "server.lock";

/// The database's file.
const DATABASE: &str = "aludel.db";

#[derive(Debug)]
struct Inner {
    database: Database,
    blobs: PathBuf,
    scratch: PathBuf,
    disk: Disk,
    owners: PathBuf,
    owner: Owner,
    quota: Arc<Quota>,
    next_sweep: Mutex<Option<Instant>>,
    /// Held for the life of the process, so that no second server works on the same data.
    lock: Option<File>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Closing the file is not enough: a process that is being started has a copy of it until its exec.
        if let Some(lock) = &self.lock {
            lock.unlock().ignore("the last copy of the file releases it otherwise");
        }
    }
}

impl Store {
    /// Opens the state in `directory` for a server. No other process may serve it at the same time. What dead processes left unfinished is
    /// removed now and by [`Store::remove_expired`].
    pub async fn open(directory: &Path) -> Result<Self, Error> {
        let directory = directory.to_path_buf();
        blocking(move || {
            backup::check_whole(&directory)?;
            make_directory(&directory)?;
            let lock = lock(&directory.join(LOCK))?;
            let store = Self::prepare(&directory, Some(lock))?;
            store.sweep_if_due()?;
            if let Err(error) = store.0.database.compact() {
                warn!(%error, "the database could not be written anew to make it smaller; the next start tries again");
            }
            store.0.database.fill_reserve();
            Ok(store)
        })
        .await
    }

    /// Opens the state beside a server that may be running, whose sweeps leave this process's unfinished work alone.
    pub async fn open_beside(directory: &Path) -> Result<Self, Error> {
        let directory = directory.to_path_buf();
        blocking(move || {
            backup::check_whole(&directory)?;
            make_directory(&directory)?;
            let _alone = if Database::is_older(&directory.join(DATABASE))? {
                let alone = lock(&directory.join(LOCK));
                Some(alone.map_err(|error| if matches!(error, Error::InUse(_)) { Error::OlderServer } else { error })?)
            } else {
                None
            };
            Self::prepare(&directory, None)
        })
        .await
    }

    fn prepare(directory: &Path, lock: Option<File>) -> Result<Self, Error> {
        let (blobs, scratch, owners) = (directory.join("blobs"), directory.join("scratch"), directory.join("owners"));
        make_directory(&blobs)?;
        make_directory(&scratch)?;
        let database = Database::open(&directory.join(DATABASE))?;
        let owner = Owner::new(owners.clone());
        let disk = Disk::of(blobs.clone());
        let (quota, next_sweep) = Default::default();
        Ok(Self(Arc::new(Inner { database, blobs, scratch, disk, owners, owner, quota, next_sweep, lock })))
    }

    /// Gives room of deleted rows back to the disk, a part of it if it is much.
    pub async fn shrink(&self) -> Result<(), Error> {
        self.run(|store| store.0.database.shrink()).await
    }

    /// Returns what the upgrade of an older version's state dropped, for the log.
    pub fn dropped_by_upgrade(&self) -> UpgradeLoss {
        self.0.database.dropped()
    }

    /// Returns the id of this process as an owner. Each opening of the state has another id.
    pub fn owner(&self) -> &OwnerId {
        self.0.owner.id()
    }

    /// Returns the bytes that this process can still write to the disk of the state; an error of kind
    /// [`ReadOnlyFilesystem`](io::ErrorKind::ReadOnlyFilesystem) if it can only be read.
    pub async fn free_bytes(&self) -> Result<u64, Error> {
        self.run(|store| {
            let directory = &store.0.blobs;
            let found = rustix::fs::statvfs(directory);
            let found = found.map_err(|error| Error::Io { path: directory.clone(), source: error.into() })?;
            // A file system that was found damaged refuses changes without being called read-only.
            let touched = File::open(directory).and_then(|directory| directory.set_modified(SystemTime::now()));
            if touched.is_err_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem) {
                return Err(Error::Io { path: directory.clone(), source: io::ErrorKind::ReadOnlyFilesystem.into() });
            }
            Ok(disk_reserve::free_bytes(&found))
        })
        .await
    }

    /// Runs `work`, which may block, on another thread. It is finished even if the caller gives up.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let store = self.clone();
        blocking(move || work(&store)).await
    }

    /// Runs `work` in a transaction of the writer.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.run(move |store| store.0.database.write(work)).await
    }

    /// Runs `work`, which deletes rows of a tenant, in a transaction of the writer, also on a full disk.
    async fn delete<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl Fn(&Connection, &Tenant) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tenant = tenant.clone();
        self.run(move |store| store.0.database.delete(Some(&tenant), |database| work(database, &tenant))).await
    }

    /// Runs `work` of a tenant, which adds nothing to its usage, in a transaction of the writer.
    async fn write_uncounted<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(&Connection, &Tenant) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tenant = tenant.clone();
        self.run(move |store| store.0.database.write_for(&tenant, |database| work(database, &tenant))).await
    }

    /// Runs `work` in a transaction of the writer that adds to a tenant's usage.
    async fn write_for<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(&Connection, &Tenant) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tenant = tenant.clone();
        self.run(move |store| store.write_counted(&tenant, 0, |database| work(database, &tenant))).await
    }

    /// Runs the queries of a tenant.
    async fn read<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(&Connection, &Tenant) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tenant = tenant.clone();
        self.run(move |store| store.0.database.read(Some(&tenant), |database| work(database, &tenant))).await
    }

    /// Runs the queries of a tenant, and converts their rows after the reader is free again.
    async fn read_then<R, T: Send + 'static>(
        &self,
        tenant: &Tenant,
        work: impl FnOnce(&Connection, &Tenant) -> Result<R, Error> + Send + 'static,
        then: impl FnOnce(R) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tenant = tenant.clone();
        self.run(move |store| then(store.0.database.read(Some(&tenant), |database| work(database, &tenant))?)).await
    }

    /// Runs queries that belong to no tenant.
    async fn read_any<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.read_for(None, work).await
    }

    /// Runs queries for a tenant, or for the operator.
    async fn read_for<T: Send + 'static>(
        &self,
        tenant: Option<&Tenant>,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let tenant = tenant.cloned();
        self.run(move |store| store.0.database.read(tenant.as_ref(), work)).await
    }
}

/// Runs `work`, which may block, on another thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    let done = blocking_erased(Box::new(move || Box::new(work()))).await;
    *done.downcast().expect("the result of the work")
}

/// Runs `work` on another thread. The runtime's code for a task is compiled for this one type, not for each piece of work.
async fn blocking_erased(work: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>) -> Box<dyn Any + Send> {
    let span = tracing::Span::current();
    let work = move || span.in_scope(work);
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Makes a directory that only its owner may look into.
fn make_directory(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

fn lock(path: &Path) -> Result<File, Error> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::InUse(path.parent().unwrap_or(path).to_path_buf())),
        Err(std::fs::TryLockError::Error(source)) => Err(io(source)),
    }
}

/// Seconds since 1970.
pub fn now() -> i64 {
    now_ms() / 1000
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
