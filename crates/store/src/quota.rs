//! Stored bytes of tenants, and their bound.
//!
//! Each tenant has a row in the table `usage`. Triggers update it in the same transaction as the counted rows, so no statement can forget
//! it. Data that is still being written is first reserved in memory, until it has its row or is abandoned.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rusqlite::Connection;

use crate::database::one;
use crate::{Error, Store, Tenant};

/// Bytes that a file counts besides its content, for its names, its row and the rest of its last block.
pub const FILE_COST: u64 = 4096;

/// The bound on each tenant's storage, and the reservations of this process.
#[derive(Debug)]
pub(crate) struct Quota {
    limit: AtomicU64,
    reserved: Mutex<HashMap<Tenant, u64>>,
}

impl Default for Quota {
    fn default() -> Self {
        Self { limit: AtomicU64::new(u64::MAX), reserved: Mutex::default() }
    }
}

impl Quota {
    /// Reserves the upper amount of the range if there is room beside `used` bytes, otherwise the lower; fails if that does not fit either.
    /// `used` is read while reservations cannot change, so that data that gets its row meanwhile is counted twice rather than not at all.
    fn admit(
        self: &Arc<Self>,
        tenant: &Tenant,
        wanted: RangeInclusive<u64>,
        used: impl FnOnce() -> Result<u64, Error>,
    ) -> Result<Reservation, Error> {
        let mut reserved = self.reserved.lock();
        let limit = self.limit.load(Ordering::Relaxed);
        let taken = reserved.get(tenant).copied().unwrap_or_default();
        let room = limit.saturating_sub(used()?).saturating_sub(taken);
        let (least, most) = wanted.into_inner();
        let bytes = if most <= room { most } else { least };
        if bytes > room {
            return Err(Error::Full { limit });
        }
        if bytes > 0 {
            reserved.insert(tenant.clone(), taken + bytes);
        }
        Ok(Reservation { quota: Arc::clone(self), tenant: tenant.clone(), bytes })
    }
}

/// Reserved room for data that is being written. Dropping it gives the room back.
#[derive(Debug)]
pub struct Reservation {
    quota: Arc<Quota>,
    tenant: Tenant,
    bytes: u64,
}

impl Reservation {
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds another reservation of the same tenant.
    pub fn add(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes a part of it, or all of it if it has less.
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { quota: Arc::clone(&self.quota), tenant: self.tenant.clone(), bytes }
    }

    /// Gives back all but so many bytes.
    pub fn shrink_to(&mut self, bytes: u64) {
        let spare = self.bytes.saturating_sub(bytes);
        self.bytes -= spare;
        let mut reserved = self.quota.reserved.lock();
        if let Some(taken) = reserved.get_mut(&self.tenant) {
            *taken = taken.saturating_sub(spare);
            if *taken == 0 {
                reserved.remove(&self.tenant);
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Room for texts that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaCheck {
    /// Looked for: what does not fit is [`Error::Full`].
    Checked,
    /// Reserved before, such as for the document of a turn while it ran: it is written in any case.
    Reserved,
}

impl QuotaCheck {
    /// Returns the bytes that are reserved already.
    pub(crate) fn reserved(self) -> u64 {
        match self {
            Self::Checked => 0,
            Self::Reserved => u64::MAX,
        }
    }
}

impl Store {
    /// Sets the storage limit of each tenant, bytes. Without it there is none.
    pub fn limit_storage(&self, bytes: u64) {
        self.0.quota.limit.store(bytes, Ordering::Relaxed);
    }

    /// Returns a tenant's stored bytes: contents of files, texts, and a flat sum for each row and each file.
    pub async fn bytes_of(&self, tenant: &Tenant) -> Result<u64, Error> {
        self.read(tenant, used).await
    }

    /// Reserves room for a tenant: the upper amount of `wanted` if it fits, otherwise the lower. Fails if that does not fit either.
    pub async fn reserve(&self, tenant: &Tenant, wanted: RangeInclusive<u64>) -> Result<Reservation, Error> {
        let tenant = tenant.clone();
        self.run(move |store| store.reserve_now(&tenant, wanted)).await
    }

    /// Returns an empty reservation, to be added to.
    pub fn no_room(&self, tenant: &Tenant) -> Reservation {
        Reservation { quota: Arc::clone(&self.0.quota), tenant: tenant.clone(), bytes: 0 }
    }

    /// Checks that a tenant may store so much more, bytes.
    pub async fn check_room(&self, tenant: &Tenant, bytes: u64) -> Result<(), Error> {
        self.reserve(tenant, bytes..=bytes).await.map(drop)
    }

    pub(crate) fn reserve_now(&self, tenant: &Tenant, wanted: RangeInclusive<u64>) -> Result<Reservation, Error> {
        let (quota, least) = (&self.0.quota, *wanted.start());
        let admit = |database: &Connection| quota.admit(tenant, wanted, || used(database, tenant));
        let room = self.0.database.read(Some(tenant), admit)?;
        self.check_disk(least)?;
        Ok(room)
    }

    fn check_disk(&self, bytes: u64) -> Result<(), Error> {
        let checked = self.0.disk.check_room(bytes);
        checked.map_err(|source| Error::Io { path: self.0.blobs.clone(), source })
    }

    /// Runs `work` in a transaction of the writer. It is rolled back if the tenant's usage grows by more than the `reserved` bytes and
    /// there is no room for the rest, or if it grows at all after what was stored for its key was erased.
    pub(crate) fn write_counted<T>(
        &self,
        tenant: &Tenant,
        reserved: u64,
        work: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (done, _until_committed) = self.0.database.write_for(tenant, |database| {
            let before = used(database, tenant)?;
            let done = work(database)?;
            let grown = used(database, tenant)?.saturating_sub(before);
            if grown > 0 && is_erased(database, tenant)? {
                return Err(Error::Erased);
            }
            let added = grown.saturating_sub(reserved);
            if added == 0 {
                return Ok((done, None));
            }
            let room = self.0.quota.admit(tenant, added..=added, || Ok(before))?;
            self.check_disk(added)?;
            Ok((done, Some(room)))
        })?;
        Ok(done)
    }
}

/// Returns true if what was stored for a tenant's key was erased.
fn is_erased(database: &Connection, tenant: &Tenant) -> Result<bool, Error> {
    let query = "SELECT erased_at IS NOT NULL FROM keys WHERE id = ?1";
    Ok(one(database, query, [tenant], |row| row.get(0))?.unwrap_or_default())
}

/// Returns a tenant's stored bytes.
pub(crate) fn used(database: &Connection, tenant: &Tenant) -> Result<u64, Error> {
    Ok(one(database, "SELECT bytes FROM usage WHERE tenant = ?1", [tenant], |row| row.get(0))?.unwrap_or_default())
}
