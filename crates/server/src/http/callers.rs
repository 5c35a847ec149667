//! Keys and their tenants: asked of the store at most once a second for each key, for every request brings one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aludel_store::{Error, Store, Tenant};

/// Time for which an answer holds, if nothing else is said.
pub(crate) const FRESH: Duration = Duration::from_secs(1);
/// Keys that are remembered; with more, all are forgotten.
const MAX_KEYS: usize = 10_000;

/// The reason for which a key is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is none like it, or it was revoked.
    Unknown,
    /// Its time is over.
    Expired,
}

/// Answers about keys.
#[derive(Debug)]
pub(crate) struct Callers {
    known: Mutex<Known>,
    /// Time for which an answer holds. A key that was revoked, or has expired, is refused after that.
    fresh: Duration,
}

#[derive(Debug, Default)]
struct Known {
    tenants: HashMap<String, (Instant, Result<Tenant, Refused>)>,
    /// True if there are keys at all. Once there were, there are.
    has_keys: Option<(Instant, bool)>,
}

impl Callers {
    /// Answers that hold for this long.
    pub(crate) fn new(fresh: Duration) -> Self {
        Self { known: Mutex::default(), fresh }
    }

    /// Returns the tenant of a key.
    pub(crate) async fn tenant_of(&self, store: &Store, key: &str) -> Result<Result<Tenant, Refused>, Error> {
        let known =
            self.lock().tenants.get(key).filter(|(at, _)| at.elapsed() < self.fresh).map(|(_, tenant)| tenant.clone());
        if let Some(tenant) = known {
            return Ok(tenant);
        }
        let tenant = match store.tenant_of_key(key).await? {
            Some(tenant) => Ok(tenant),
            None if store.has_expired(key).await? => Err(Refused::Expired),
            None => Err(Refused::Unknown),
        };
        let mut known = self.lock();
        if known.tenants.len() >= MAX_KEYS {
            known.tenants.clear();
        }
        known.tenants.insert(key.to_owned(), (Instant::now(), tenant.clone()));
        Ok(tenant)
    }

    /// Returns true if there are keys.
    pub(crate) async fn has_keys(&self, store: &Store) -> Result<bool, Error> {
        if let Some((at, has_keys)) = self.lock().has_keys
            && (has_keys || at.elapsed() < self.fresh)
        {
            return Ok(has_keys);
        }
        let has_keys = store.has_keys().await?;
        self.lock().has_keys = Some((Instant::now(), has_keys));
        Ok(has_keys)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        // Nothing that could panic happens while it is held.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_are_known_for_a_second() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let callers = Callers::new(FRESH);
        assert!(!callers.has_keys(&store).await.unwrap());
        let key = store.create_key("a", None).await.unwrap();
        assert!(callers.tenant_of(&store, &key.secret).await.unwrap().is_ok());
        store.revoke_key(key.id).await.unwrap();
        let asked = |at: Instant| callers.lock().tenants.get_mut(&key.secret).unwrap().0 = at;
        asked(Instant::now());
        assert!(callers.tenant_of(&store, &key.secret).await.unwrap().is_ok());
        let long_ago = Instant::now().checked_sub(FRESH).unwrap();
        asked(long_ago);
        assert!(callers.tenant_of(&store, &key.secret).await.unwrap().is_err());
        let expired = store.create_key("b", Some(0)).await.unwrap();
        assert_eq!(callers.tenant_of(&store, &expired.secret).await.unwrap(), Err(Refused::Expired));
        callers.lock().has_keys = Some((long_ago, false));
        assert!(callers.has_keys(&store).await.unwrap());
        for number in 0..=MAX_KEYS {
            callers.lock().tenants.insert(number.to_string(), (Instant::now(), Err(Refused::Unknown)));
        }
        callers.tenant_of(&store, "one more").await.unwrap().unwrap_err();
        assert_eq!(callers.lock().tenants.len(), 1);
    }
}
