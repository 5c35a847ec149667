//! The erasure of what was stored for a revoked key.

use std::cell::Cell;

use rusqlite::{Connection, params};

use crate::blobs::NAMING_BLOBS;
use crate::database::{all, one};
use crate::quota::used;
use crate::{BlobName, Error, KeyId, Store, Tenant, TurnId, now, turns};

/// The tables that are emptied, rows that refer to others before those. Turns are removed in their own way. What is left is the audit log,
/// which can only be archived, and the counts of what was done.
const ERASED: [&str; 17] = [
    "upload_parts",
    "uploads",
    "files",
    "container_files",
    "container_variables",
    "containers",
    "conversation_items",
    "conversations",
    "interactions",
    "run_steps",
    "messages",
    "runs",
    "threads",
    "assistants",
    "response_items",
    "responses",
    "approvals",
];

/// Rows of one transaction; other writers run in between.
const AT_ONCE: usize = 50;

/// Seconds after its revocation in which a key may still be served, and its turns end.
const GRACE: i64 = 30;

/// Outcome of an erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraseOutcome {
    /// Nothing but the audit log is left.
    Erased {
        /// Bytes of storage that were given back.
        bytes: u64,
        /// Bytes of the audit log, which count on until they are archived.
        left: u64,
    },
    /// The key is not revoked.
    NotRevoked,
    /// It was revoked so shortly before that a server may still serve it.
    TooEarly {
        /// Seconds to wait.
        seconds: u64,
    },
    /// There is no such key.
    Unknown,
}

impl Store {
    /// Removes what was stored for a revoked key, except the audit log and the counts of its work, and has nothing more stored for it. If
    /// the process ends meanwhile, another call goes on.
    pub async fn erase_key(&self, id: KeyId) -> Result<EraseOutcome, Error> {
        self.run(move |store| {
            let query = "SELECT revoked_at FROM keys WHERE id = ?1";
            let revoked = store.0.database.read(None, |database| one(database, query, [&id], |row| row.get(0)))?;
            let at: i64 = match revoked {
                None => return Ok(EraseOutcome::Unknown),
                Some(None) => return Ok(EraseOutcome::NotRevoked),
                Some(Some(at)) => at,
            };
            if let Some(seconds) = u64::try_from(at + GRACE - now()).ok().filter(|seconds| *seconds > 0) {
                return Ok(EraseOutcome::TooEarly { seconds });
            }
            // First: what is stored at the moment is stored before this, or not at all.
            let query = "UPDATE keys SET erased_at = coalesce(erased_at, ?2) WHERE id = ?1";
            store.0.database.delete(None, |database| Ok(database.execute(query, params![id, now()])?))?;
            store.erase(&Tenant::of_key(&id))
        })
        .await
    }

    fn erase(&self, tenant: &Tenant) -> Result<EraseOutcome, Error> {
        let bytes = || self.0.database.read(None, |database| used(database, tenant));
        let before = bytes()?;
        let query = "SELECT id FROM turns WHERE tenant = ?1";
        let found = |database: &Connection| all(database, query, [tenant], |row| row.get::<_, TurnId>(0));
        for id in self.0.database.read(None, found)? {
            turns::remove(self, Some(tenant), &id)?;
        }
        for table in ERASED {
            self.empty(table, tenant)?;
        }
        let left = bytes()?;
        Ok(EraseOutcome::Erased { bytes: before.saturating_sub(left), left })
    }

    /// Removes a tenant's rows of a table, with their blobs.
    fn empty(&self, table: &str, tenant: &Tenant) -> Result<(), Error> {
        // Found by a reader: no index leads to some tables' rows of a tenant, and writers wait for no search.
        let (key, values) = if table == "response_items" { ("id", "DISTINCT id") } else { ("rowid", "rowid") };
        let query = format!("SELECT {values} FROM {table} WHERE tenant = ?1");
        let read =
            |database: &Connection| all(database, &query, [tenant], |row| row.get::<_, rusqlite::types::Value>(0));
        let found = self.0.database.read(None, read)?;
        let has_blobs = NAMING_BLOBS.contains(&table);
        let returned = if has_blobs { " RETURNING blob" } else { "" };
        let query = format!("DELETE FROM {table} WHERE tenant = ?1 AND {key} = ?2{returned}");
        let left = Cell::new(found.as_slice());
        let delete = |database: &Connection, rows: usize| {
            let piece = left.get().get(..rows).unwrap_or(left.get());
            let mut removed: Vec<BlobName> = Vec::new();
            for value in piece {
                let row = params![tenant, value];
                if has_blobs {
                    removed.extend(all(database, &query, row, |row| row.get::<_, BlobName>(0))?);
                } else {
                    database.prepare_cached(&query)?.execute(row)?;
                }
            }
            Ok((piece.len(), (piece.len(), removed)))
        };
        self.0.database.in_pieces_of(AT_ONCE, Some(tenant), delete, |(count, removed)| {
            left.set(left.get().get(count..).unwrap_or_default());
            self.remove_blobs(&removed);
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::time::Duration;

    use super::*;
    use crate::{NewFile, NewSessionRecord, NewTurn};

    /// Tables of tenants that an erasure leaves: the audit log, the counts of work, and the sum of what is stored.
    const LEFT: [&str; 5] = ["audit", "open_programs", "programs", "metered", "usage"];

    #[tokio::test]
    async fn every_table_of_tenants_is_erased_or_left_on_purpose() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).await.unwrap();
        let query = "SELECT tables.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
                     WHERE tables.type = 'table' AND columns.name = 'tenant' ORDER BY tables.name";
        let found = store.0.database.read(None, |database| all(database, query, [], |row| row.get::<_, String>(0)));
        let mut known: Vec<&str> = ERASED.into_iter().chain(LEFT).chain(["turns"]).collect();
        known.sort_unstable();
        assert_eq!(found.unwrap(), known);
    }

    #[tokio::test]
    async fn a_revoked_key_leaves_nothing_and_others_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).await.unwrap();
        let mut keys = Vec::new();
        for name in ["gone", "stays"] {
            let key = store.create_key(name, None).await.unwrap();
            let tenant = Tenant::of_key(&key.id);
            let blob = store.write_blob(&tenant, b"rows").await.unwrap();
            let file = NewFile {
                filename: "a.csv".into(),
                purpose: "user_data".into(),
                mime: "text/csv".into(),
                expires_at: None,
            };
            let file = store.add_file(&tenant, file, blob).await.unwrap();
            let session = NewSessionRecord {
                name: "auto".into(),
                memory_limit: None,
                idle: Duration::from_secs(60),
                variables: Some("{}".into()),
            };
            store.add_session(&tenant, session, Vec::new()).await.unwrap();
            let turn = NewTurn {
                id: TurnId::new(),
                dialect: "d".into(),
                lease_until_ms: i64::MAX,
                expires_at: None,
                session: None,
                spec: "{}".into(),
                dialect_state: "{}".into(),
                items: vec!["{}".into()],
            };
            store.create_turn(&tenant, turn).await.unwrap().unwrap();
            keys.push((key.id, tenant, file));
        }
        let [(gone, gone_tenant, gone_file), (_, stays_tenant, stays_file)] = keys.try_into().unwrap();
        let stays_bytes = store.bytes_of(&stays_tenant).await.unwrap();
        assert_eq!(store.erase_key(gone.clone()).await.unwrap(), EraseOutcome::NotRevoked);
        store.revoke_key(gone.clone()).await.unwrap();
        assert!(matches!(store.erase_key(gone.clone()).await.unwrap(), EraseOutcome::TooEarly { .. }));
        let query = "UPDATE keys SET revoked_at = revoked_at - 60 WHERE id = ?1";
        let key = gone.clone();
        store.write(move |database| Ok(database.execute(query, [key])?)).await.unwrap();

        let bytes = store.bytes_of(&gone_tenant).await.unwrap();
        assert_eq!(store.erase_key(gone.clone()).await.unwrap(), EraseOutcome::Erased { bytes, left: 0 });
        for table in ERASED.into_iter().chain(["turns"]) {
            let query = format!("SELECT count(*) FROM {table} WHERE tenant = ?1");
            let count = |tenant| {
                store.0.database.read(None, |database| one(database, &query, [tenant], |row| row.get::<_, u64>(0)))
            };
            assert_eq!(count(&gone_tenant).unwrap(), Some(0), "{table}");
        }
        assert!(store.read_blob(&gone_file.blob).await.is_err());
        let content = store.read_blob(&stays_file.blob).await.unwrap().read_whole(100).await.unwrap();
        assert_eq!((content.as_slice(), store.bytes_of(&stays_tenant).await.unwrap()), (&b"rows"[..], stays_bytes));
        // An upload that began before the key was revoked.
        let blob = store.write_blob(&gone_tenant, b"late").await.unwrap();
        let file = NewFile { filename: "b.csv".into(), purpose: "p".into(), mime: "m".into(), expires_at: None };
        assert!(matches!(store.add_file(&gone_tenant, file, blob).await, Err(Error::Erased)));
        let again = store.erase_key(gone).await.unwrap();
        assert_eq!(again, EraseOutcome::Erased { bytes: 0, left: 0 });
        assert_eq!(store.erase_key(KeyId::new()).await.unwrap(), EraseOutcome::Unknown);
    }
}
