//! API keys. Only their hashes are stored; a key is shown once, when it is made.

use rusqlite::{Connection, Row, params};
use sha2::{Digest, Sha256};

use crate::database::{all, one};
use crate::id::{hex, random_hex};
use crate::{DailyBudget, Error, KeyId, Store, Tenant, now};

/// Prefix of every key that is made here; hexadecimal digits follow.
pub const KEY_PREFIX: &str = "sk-aludel-";

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Id, which is no secret.
    pub id: KeyId,
    /// Name, for people.
    pub name: String,
    /// Last characters of the secret, to tell keys apart.
    pub hint: String,
    /// Time of creation, seconds since 1970.
    pub created_at: i64,
    /// Time at which it was revoked, seconds since 1970.
    pub revoked_at: Option<i64>,
    /// Time from which it is refused, seconds since 1970; `None` for no expiry.
    pub expires_at: Option<i64>,
    /// Time up to which its former secret is served too, seconds since 1970.
    pub former_until: Option<i64>,
    /// The most that is done for it on a day.
    pub budget: DailyBudget,
}

/// A new API key.
pub struct NewKey {
    /// Id.
    pub id: KeyId,
    /// Secret. It cannot be read again.
    pub secret: String,
}

impl KeyRecord {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            hint: row.get(2)?,
            created_at: row.get(3)?,
            revoked_at: row.get(4)?,
            expires_at: row.get(5)?,
            former_until: row.get(6)?,
            budget: DailyBudget::read(row, 7)?,
        })
    }

    /// Returns true if it was not revoked and has not expired.
    pub fn is_active(&self) -> bool {
        self.revoked_at.is_none() && !self.has_expired()
    }

    /// Returns true if its time is over.
    pub fn has_expired(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= now())
    }
}

impl Store {
    /// Makes a key, and with it a tenant. From `expires_at` on, seconds since 1970, the key is refused.
    pub async fn create_key(&self, name: &str, expires_at: Option<i64>) -> Result<NewKey, Error> {
        let (id, secret) = (KeyId::new(), format!("{KEY_PREFIX}{}", random_hex()));
        // It is random, so it cannot exist.
        let _new = self.insert_key(&id, name, &secret, expires_at).await?;
        Ok(NewKey { id, secret })
    }

    /// Adds a key from elsewhere, which must be long and random, and makes a tenant for it. `None` if it was added before, revoked or not.
    pub async fn add_key(&self, name: &str, secret: &str, expires_at: Option<i64>) -> Result<Option<KeyId>, Error> {
        let id = KeyId::new();
        Ok(self.insert_key(&id, name, secret, expires_at).await?.then_some(id))
    }

    /// Inserts a key. Returns true if it is new.
    async fn insert_key(&self, id: &KeyId, name: &str, secret: &str, expires_at: Option<i64>) -> Result<bool, Error> {
        let (id, name, hash, hint) = (id.clone(), name.to_owned(), hash(secret), hint(secret));
        let query = "INSERT INTO keys (id, name, hash, hint, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                     ON CONFLICT (hash) DO NOTHING";
        self.write(move |database| Ok(database.execute(query, params![id, name, hash, hint, now(), expires_at])? > 0))
            .await
    }

    /// Sets or removes the expiry of a key, seconds since 1970. Returns false if there is no such key.
    pub async fn set_expiry(&self, id: KeyId, expires_at: Option<i64>) -> Result<bool, Error> {
        let query = "UPDATE keys SET expires_at = ?2 WHERE id = ?1";
        self.change_key(move |database| Ok(database.execute(query, params![id, expires_at])? > 0)).await
    }

    /// Returns all keys, revoked ones too, oldest first.
    pub async fn keys(&self) -> Result<Vec<KeyRecord>, Error> {
        let query = "SELECT id, name, hint, created_at, revoked_at, expires_at, \
                     iif(former_until > ?1 AND revoked_at IS NULL, former_until, NULL), requests_per_day, tokens_per_day, \
                     program_seconds_per_day FROM keys ORDER BY id";
        self.read_any(move |database| all(database, query, [now()], KeyRecord::read)).await
    }

    /// Revokes a key. The data of its tenant stays. Returns false if there was no such key.
    pub async fn revoke_key(&self, id: KeyId) -> Result<bool, Error> {
        let query = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1";
        self.change_key(move |database| Ok(database.execute(query, params![id, now()])? > 0)).await
    }

    /// Changes a key, also on a full disk.
    async fn change_key(
        &self,
        change: impl Fn(&Connection) -> Result<bool, Error> + Send + 'static,
    ) -> Result<bool, Error> {
        self.run(move |store| store.0.database.delete(None, change)).await
    }

    /// Gives a key that is not revoked a new secret. The former one is served until `former_until`, seconds since 1970, but none before it.
    /// `None` if there is no such key.
    pub async fn rotate_key(&self, id: KeyId, former_until: i64) -> Result<Option<NewKey>, Error> {
        let secret = format!("{KEY_PREFIX}{}", random_hex());
        let (hash, hint, key) = (hash(&secret), hint(&secret), id.clone());
        let query = "UPDATE keys SET former_hash = hash, former_until = ?4, hash = ?2, hint = ?3 \
                     WHERE id = ?1 AND revoked_at IS NULL";
        let rotated =
            self.write(move |database| Ok(database.execute(query, params![key, hash, hint, former_until])? > 0));
        Ok(rotated.await?.then_some(NewKey { id, secret }))
    }

    /// Returns the tenant of a key that is neither revoked nor expired.
    pub async fn tenant_of_key(&self, secret: &str) -> Result<Option<Tenant>, Error> {
        // Keys are long and random, so a plain hash cannot be reversed by search, and lookup time reveals nothing.
        let hash = hash(secret);
        let query = "SELECT id FROM keys WHERE (hash = ?1 OR former_hash = ?1 AND former_until > ?2) AND revoked_at IS NULL \
             AND (expires_at IS NULL OR expires_at > ?2)";
        let found =
            move |database: &Connection| one(database, query, params![hash, now()], |row| row.get::<_, KeyId>(0));
        Ok(self.read_any(found).await?.map(|id| Tenant::of_key(&id)))
    }

    /// Returns true if there is such a key, not revoked but expired.
    pub async fn has_expired(&self, secret: &str) -> Result<bool, Error> {
        let hash = hash(secret);
        let query = "SELECT EXISTS (SELECT 1 FROM keys WHERE hash = ?1 AND revoked_at IS NULL AND expires_at <= ?2)";
        self.read_any(move |database| Ok(database.query_row(query, params![hash, now()], |row| row.get(0))?)).await
    }

    /// Returns true if a tenant's key is neither revoked nor expired, or if the tenant has no key.
    pub async fn may_ask(&self, tenant: &Tenant) -> Result<bool, Error> {
        let tenant = tenant.clone();
        let query =
            "SELECT NOT EXISTS (SELECT 1 FROM keys WHERE id = ?1 AND (revoked_at IS NOT NULL OR expires_at <= ?2))";
        self.read_any(move |database| Ok(database.query_row(query, params![tenant, now()], |row| row.get(0))?)).await
    }

    /// Returns true if there was ever a key. Revoking the last one does not reopen the server to clients without keys.
    pub async fn has_keys(&self) -> Result<bool, Error> {
        let query = "SELECT EXISTS (SELECT 1 FROM keys)";
        self.read_any(move |database| Ok(database.query_row(query, [], |row| row.get(0))?)).await
    }
}

fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

fn hint(secret: &str) -> String {
    format!("…{}", secret.len().checked_sub(4).and_then(|start| secret.get(start..)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[tokio::test]
    async fn a_new_secret_has_the_tenant_of_the_former_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).await.unwrap();
        let first = store.create_key("a", None).await.unwrap();
        let tenant = store.tenant_of_key(&first.secret).await.unwrap();
        let second = store.rotate_key(first.id.clone(), now() + 60).await.unwrap().unwrap();
        for secret in [&first.secret, &second.secret] {
            assert!(tenant.is_some() && store.tenant_of_key(secret).await.unwrap() == tenant);
        }
        assert!(store.keys().await.unwrap()[0].former_until.is_some_and(|until| until > now()));
        let third = store.rotate_key(first.id.clone(), 0).await.unwrap().unwrap();
        assert_eq!(store.keys().await.unwrap()[0].former_until, None);
        assert_eq!(store.tenant_of_key(&third.secret).await.unwrap(), tenant);
        for secret in [&first.secret, &second.secret] {
            assert_eq!(store.tenant_of_key(secret).await.unwrap(), None);
        }
        store.revoke_key(first.id.clone()).await.unwrap();
        assert!(store.rotate_key(first.id, 0).await.unwrap().is_none());
    }
}
