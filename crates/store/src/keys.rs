//! API keys. Only their hashes are kept; a key is shown once, when it is made.

use rusqlite::{Row, params};
use sha2::{Digest, Sha256};

use crate::database::{all, one};
use crate::id::{hex, random_hex};
use crate::{Error, KeyId, Store, Tenant, now};

/// Beginning of every key that is made here; hexadecimal digits follow.
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
        })
    }
}

impl Store {
    /// Makes a key, and with it a tenant.
    pub async fn create_key(&self, name: &str) -> Result<NewKey, Error> {
        let (id, secret) = (KeyId::new(), format!("{KEY_PREFIX}{}", random_hex()));
        // It is random, so there is none like it.
        let _new = self.insert_key(&id, name, &secret).await?;
        Ok(NewKey { id, secret })
    }

    /// Takes a key that was made elsewhere, which must be long and random, and makes a tenant for it. `None` if it was here before, revoked or
    /// not.
    pub async fn add_key(&self, name: &str, secret: &str) -> Result<Option<KeyId>, Error> {
        let id = KeyId::new();
        Ok(self.insert_key(&id, name, secret).await?.then_some(id))
    }

    /// Inserts a key. Returns whether it is new.
    async fn insert_key(&self, id: &KeyId, name: &str, secret: &str) -> Result<bool, Error> {
        let (id, name, hash, hint) = (id.clone(), name.to_owned(), hash(secret), hint(secret));
        let query = "INSERT INTO keys (id, name, hash, hint, created_at) VALUES (?1, ?2, ?3, ?4, ?5) \
                     ON CONFLICT (hash) DO NOTHING";
        self.write(move |database| Ok(database.execute(query, params![id, name, hash, hint, now()])? > 0)).await
    }

    /// Returns all keys, revoked ones too, oldest first.
    pub async fn keys(&self) -> Result<Vec<KeyRecord>, Error> {
        let query = "SELECT id, name, hint, created_at, revoked_at FROM keys ORDER BY id";
        self.read_any(move |database| all(database, query, [], KeyRecord::read)).await
    }

    /// Refuses a key from now on. What its tenant owns stays. Returns whether there was such a key.
    pub async fn revoke_key(&self, id: KeyId) -> Result<bool, Error> {
        let query = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1";
        self.write(move |database| Ok(database.execute(query, params![id, now()])? > 0)).await
    }

    /// Returns the tenant of a key that was not revoked.
    pub async fn tenant_of_key(&self, secret: &str) -> Result<Option<Tenant>, Error> {
        // Keys are long and random, so a plain hash cannot be searched, and looking it up tells nothing by its time.
        let hash = hash(secret);
        let query = "SELECT id FROM keys WHERE hash = ?1 AND revoked_at IS NULL";
        let id = self.read_any(move |database| one(database, query, [hash], |row| row.get::<_, KeyId>(0))).await?;
        Ok(id.map(|id| Tenant::of_key(&id)))
    }

    /// Returns whether there was ever a key. Revoking the last one does not open the door again.
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
