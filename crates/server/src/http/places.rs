//! Room for requests, shared fairly between tenants: nobody waits, and nobody takes it all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aludel_store::Tenant;

/// A tenant may use so many times the room that is left. So one that is alone gets two thirds, two get two fifths each, and whoever
/// comes next finds room.
const SHARE: usize = 2;

/// How many requests may be answered at once.
#[derive(Debug)]
pub(crate) struct Places {
    all: usize,
    /// How many of them one tenant may have.
    each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_tenant: HashMap<Tenant, usize>,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The tenant has its share.
    ForThisTenant,
    /// All places are taken.
    AtAll,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    tenant: Tenant,
}

impl Places {
    /// So many in all, and so many for each tenant.
    pub(crate) fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { all, each, taken: Mutex::default() })
    }

    /// How many there are.
    pub(crate) fn all(&self) -> usize {
        self.all
    }

    /// A place for a tenant, or the reason why there is none now. Without keys there is one tenant, which need not share.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &Tenant) -> Result<Place, NoRoom> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.all.saturating_sub(taken.all);
        if free == 0 {
            return Err(NoRoom::AtAll);
        }
        let own = taken.by_tenant.get(tenant).copied().unwrap_or_default();
        let share = if *tenant == Tenant::local() { self.all } else { free.saturating_mul(SHARE) };
        if own >= share.min(self.each) {
            return Err(NoRoom::ForThisTenant);
        }
        taken.all += 1;
        *taken.by_tenant.entry(tenant.clone()).or_default() += 1;
        Ok(Place { places: Arc::clone(self), tenant: tenant.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= 1;
        if let Some(own) = taken.by_tenant.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                taken.by_tenant.remove(&self.tenant);
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
            let key = store.create_key(&name.to_string()).await.unwrap();
            tenants.push(store.tenant_of_key(&key.secret).await.unwrap().unwrap());
        }
        tenants
    }

    fn take_all(places: &Arc<Places>, tenant: &Tenant) -> Vec<Place> {
        std::iter::from_fn(|| places.enter(tenant).ok()).collect()
    }

    #[tokio::test]
    async fn whoever_comes_next_finds_room() {
        let tenants = tenants(4).await;
        let places = Places::new(90, 90);
        let mut held: Vec<Vec<Place>> = tenants.iter().map(|tenant| take_all(&places, tenant)).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [60, 20, 7, 2]);
        assert_eq!(places.enter(&tenants[0]).unwrap_err(), NoRoom::ForThisTenant);
        // What the greedy one gives back is for the others.
        held[0].truncate(30);
        let more = take_all(&places, &tenants[3]);
        assert_eq!(more.len(), 20);
        assert_eq!(places.enter(&tenants[0]).unwrap_err(), NoRoom::ForThisTenant);
        drop((held, more));
        assert_eq!(places.taken.lock().unwrap().by_tenant.len(), 0);
        assert_eq!(take_all(&places, &Tenant::local()).len(), 90);
        assert_eq!(take_all(&Places::new(90, 7), &tenants[0]).len(), 7);
        let _all = take_all(&places, &Tenant::local());
        assert_eq!(places.enter(&tenants[0]).unwrap_err(), NoRoom::AtAll);
        assert_eq!(take_all(&Places::new(1, 1), &tenants[0]).len(), 1);
    }
}
