//! Keys and their tenants. Since every request has a key, each is read from the store at most once a second.

use std::time::Duration;

use aludel_store::{Error, Store, Tenant};
use sha2::{Digest, Sha256};

use super::ttl_cache::TtlCache;

/// Default time for which an answer is valid.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// SHA-256 of a key.
type KeyHash = [u8; 32];

/// The reason for which a key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyRefusal {
    /// It does not exist, or was revoked.
    Unknown,
    /// It has expired.
    Expired,
}

/// A cache of the store's answers about keys. A revoked or expired key is refused once its entry is too old.
#[derive(Debug)]
pub(crate) struct KeyCache {
    /// Tenants by hashes of keys: a text that is sent as a key may be long.
    tenants: TtlCache<KeyHash, Result<Tenant, KeyRefusal>>,
    /// Tenants with a valid key.
    allowed: TtlCache<Tenant, bool>,
    /// True if there are keys at all.
    has_keys: TtlCache<(), bool>,
}

impl KeyCache {
    /// A cache whose entries are valid for this long.
    pub(crate) fn new(fresh: Duration) -> Self {
        Self { tenants: TtlCache::new(fresh), allowed: TtlCache::new(fresh), has_keys: TtlCache::new(fresh) }
    }

    /// Returns the tenant of a key.
    pub(crate) async fn tenant_of(&self, store: &Store, key: &str) -> Result<Result<Tenant, KeyRefusal>, Error> {
        let hash = hash(key);
        if let Some(tenant) = self.tenants.get(&hash) {
            return Ok(tenant);
        }
        let tenant = match store.tenant_of_key(key).await? {
            Some(tenant) => Ok(tenant),
            None if store.has_expired(key).await? => Err(KeyRefusal::Expired),
            None => Err(KeyRefusal::Unknown),
        };
        self.tenants.insert(hash, tenant.clone());
        Ok(tenant)
    }

    /// Returns true if a tenant's key is still valid, for requests with another credential.
    pub(crate) async fn may_ask(&self, store: &Store, tenant: &Tenant) -> Result<bool, Error> {
        if let Some(may) = self.allowed.get(tenant) {
            return Ok(may);
        }
        let may = store.may_ask(tenant).await?;
        self.allowed.insert(tenant.clone(), may);
        Ok(may)
    }

    /// Returns true if there are keys.
    pub(crate) async fn has_keys(&self, store: &Store) -> Result<bool, Error> {
        if let Some(has_keys) = self.has_keys.get(&()) {
            return Ok(has_keys);
        }
        let has_keys = store.has_keys().await?;
        self.has_keys.insert((), has_keys);
        Ok(has_keys)
    }
}

fn hash(key: &str) -> KeyHash {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_are_known_for_a_second() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        // A cache that outlasts the test, and one without any time to live.
        let (callers, asking) = (KeyCache::new(Duration::from_secs(600)), KeyCache::new(Duration::ZERO));
        assert!(!callers.has_keys(&store).await.unwrap() && !asking.has_keys(&store).await.unwrap());
        let key = store.create_key("a", None).await.unwrap();
        let tenant = callers.tenant_of(&store, &key.secret).await.unwrap().unwrap();
        assert!(callers.may_ask(&store, &tenant).await.unwrap());
        store.revoke_key(key.id).await.unwrap();
        assert!(callers.tenant_of(&store, &key.secret).await.unwrap().is_ok());
        assert!(callers.may_ask(&store, &tenant).await.unwrap());
        assert_eq!(asking.tenant_of(&store, &key.secret).await.unwrap(), Err(KeyRefusal::Unknown));
        assert!(!asking.may_ask(&store, &tenant).await.unwrap());
        assert!(asking.may_ask(&store, &Tenant::local()).await.unwrap());
        let expired = store.create_key("b", Some(0)).await.unwrap();
        assert_eq!(asking.tenant_of(&store, &expired.secret).await.unwrap(), Err(KeyRefusal::Expired));
        assert!(!callers.has_keys(&store).await.unwrap() && asking.has_keys(&store).await.unwrap());
    }
}
