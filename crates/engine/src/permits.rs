//! Permits for requests, their memory and sessions, shared fairly between tenants: requests never wait, and no tenant takes everything.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_store::Tenant;
use parking_lot::Mutex;

/// A tenant may hold twice as many permits as are free, so a lone tenant gets two thirds, two get two fifths each, and there is always room
/// for the next one.
const SHARE_OF_REMAINING: usize = 2;

/// A fixed number of permits, shared between tenants.
#[derive(Debug)]
pub struct Permits {
    all: usize,
    /// The most permits of one tenant.
    each: usize,
    in_use: Mutex<PermitCounts>,
}

#[derive(Debug, Default)]
struct PermitCounts {
    all: usize,
    by_tenant: HashMap<Tenant, usize>,
}

/// The reason for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// The tenant has its share.
    ForThisTenant,
    /// All permits are in use.
    AtAll,
}

/// Permits in use, until this is dropped.
#[derive(Debug)]
pub struct Permit {
    permits: Arc<Permits>,
    tenant: Tenant,
    count: usize,
}

impl Permits {
    /// `all` permits, of which each tenant has at most `each`.
    pub fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { all, each, in_use: Mutex::default() })
    }

    /// Returns their number.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Returns the number of permits in use.
    pub fn in_use(&self) -> usize {
        self.in_use.lock().all
    }

    /// Returns the number of permits of each tenant that has any.
    pub fn in_use_by_tenant(&self) -> HashMap<Tenant, usize> {
        self.in_use.lock().by_tenant.clone()
    }

    /// Acquires a permit, where `spare` others could be given up for it. Those count as room; `NoRoom::AtAll` means that one of them has to
    /// be given up first.
    pub fn acquire_beside(self: &Arc<Self>, tenant: &Tenant, spare: usize) -> Result<Permit, NoRoom> {
        let mut permit = self.none(tenant);
        permit.acquire_more_beside(1, spare)?;
        Ok(permit)
    }

    /// A permit for nothing yet.
    pub fn none(self: &Arc<Self>, tenant: &Tenant) -> Permit {
        Permit { permits: Arc::clone(self), tenant: tenant.clone(), count: 0 }
    }

    /// Acquires a permit. Without keys there is only one tenant, which may take all.
    pub fn acquire(self: &Arc<Self>, tenant: &Tenant) -> Result<Permit, NoRoom> {
        self.acquire_many(tenant, 1)
    }

    /// Acquires `count` permits, or none.
    pub fn acquire_many(self: &Arc<Self>, tenant: &Tenant, count: usize) -> Result<Permit, NoRoom> {
        let mut permit = self.none(tenant);
        permit.acquire_more(count)?;
        Ok(permit)
    }
}

impl Permit {
    /// Returns the most permits that a tenant can have while others have none.
    pub fn most(&self) -> usize {
        self.permits.all * SHARE_OF_REMAINING / (SHARE_OF_REMAINING + 1)
    }

    /// Returns their number.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Acquires `count` more.
    pub fn acquire_more(&mut self, count: usize) -> Result<(), NoRoom> {
        self.acquire_more_beside(count, 0)
    }

    fn acquire_more_beside(&mut self, count: usize, spare: usize) -> Result<(), NoRoom> {
        if count == 0 {
            return Ok(());
        }
        let Permits { all, each, .. } = &*self.permits;
        let mut in_use = self.permits.in_use.lock();
        let free = all.saturating_sub(in_use.all);
        if free + spare < count {
            return Err(NoRoom::AtAll);
        }
        let own = in_use.by_tenant.get(&self.tenant).copied().unwrap_or_default() + count;
        // So that taking several one by one ends with as much room as taking them at once.
        let left = free + spare - count.saturating_sub(1);
        let share = if self.tenant == Tenant::local() { *all } else { left.saturating_mul(SHARE_OF_REMAINING) };
        if own > share.min(*each) {
            return Err(NoRoom::ForThisTenant);
        }
        if free < count {
            return Err(NoRoom::AtAll);
        }
        in_use.all += count;
        in_use.by_tenant.insert(self.tenant.clone(), own);
        self.count += count;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut in_use = self.permits.in_use.lock();
        in_use.all -= self.count;
        if let Some(own) = in_use.by_tenant.get_mut(&self.tenant) {
            *own -= self.count;
            if *own == 0 {
                in_use.by_tenant.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn tenants(count: usize) -> Vec<Tenant> {
        let data = tempfile::tempdir().unwrap();
        let store = aludel_store::Store::open(data.path()).await.unwrap();
        let mut tenants = Vec::new();
        for name in 0..count {
            let key = store.create_key(&name.to_string(), None).await.unwrap();
            tenants.push(store.tenant_of_key(&key.secret).await.unwrap().unwrap());
        }
        tenants
    }

    fn take_all(permits: &Arc<Permits>, tenant: &Tenant) -> Vec<Permit> {
        std::iter::from_fn(|| permits.acquire(tenant).ok()).collect()
    }

    #[tokio::test]
    async fn whoever_comes_next_finds_room() {
        let tenants = tenants(4).await;
        let permits = Permits::new(90, 90);
        let mut held: Vec<Vec<Permit>> = tenants.iter().map(|tenant| take_all(&permits, tenant)).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [60, 20, 7, 2]);
        assert_eq!(permits.acquire(&tenants[0]).unwrap_err(), NoRoom::ForThisTenant);
        // Permits that the greedy tenant gives back go to the others.
        held[0].truncate(30);
        let more = take_all(&permits, &tenants[3]);
        assert_eq!(more.len(), 20);
        assert_eq!(permits.acquire(&tenants[0]).unwrap_err(), NoRoom::ForThisTenant);
        drop((held, more));
        assert_eq!(permits.in_use.lock().by_tenant.len(), 0);
        assert_eq!(take_all(&permits, &Tenant::local()).len(), 90);
        assert_eq!(take_all(&Permits::new(90, 7), &tenants[0]).len(), 7);
        let _all = take_all(&permits, &Tenant::local());
        assert_eq!(permits.acquire(&tenants[0]).unwrap_err(), NoRoom::AtAll);
        assert_eq!(take_all(&Permits::new(1, 1), &tenants[0]).len(), 1);
    }

    #[tokio::test]
    async fn several_places_are_taken_at_once_or_not_at_all() {
        let tenants = tenants(2).await;
        let permits = Permits::new(90, 90);
        assert_eq!(permits.acquire_many(&tenants[0], 61).unwrap_err(), NoRoom::ForThisTenant);
        let mut permit = permits.acquire_many(&tenants[0], 50).unwrap();
        assert_eq!(permit.acquire_more(11).unwrap_err(), NoRoom::ForThisTenant);
        permit.acquire_more(10).unwrap();
        assert_eq!(permits.acquire_many(&tenants[1], 31).unwrap_err(), NoRoom::AtAll);
        assert_eq!(permits.acquire_many(&tenants[1], 21).unwrap_err(), NoRoom::ForThisTenant);
        drop(permits.acquire_many(&tenants[1], 20).unwrap());
        drop(permit);
        assert_eq!(permits.in_use.lock().all, 0);
        assert!(permits.in_use.lock().by_tenant.is_empty());
    }
}
