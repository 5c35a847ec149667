//! Responses and their input.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row, params};
use serde::Deserialize;
use serde_json::Value;

use crate::database::{all, one};
use crate::{Error, QuotaCheck, ResponseId, RowChange, Store, Tenant, now};

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseRecord {
    /// Id.
    pub id: ResponseId,
    /// Object as clients see it, JSON.
    pub object: String,
    /// List of the items that it answers, oldest first, JSON.
    pub input: String,
    /// Time at which it is removed, seconds since 1970.
    pub expires_at: Option<i64>,
}

/// A response as it is stored: JSON that nothing was built of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseText {
    /// Object as clients see it.
    pub object: String,
    /// List of the items that it answers, oldest first.
    pub input: String,
}

impl RowChange {
    /// Adds a response, or replaces the one with its id.
    pub fn response(tenant: &Tenant, response: ResponseRecord) -> Self {
        let tenant = tenant.clone();
        Self::new(move || {
            let ResponseRecord { id, object, input, expires_at } = response;
            let known: KnownObject = serde_json::from_str(&object)?;
            let items = known.output.into_iter().chain(serde_json::from_str::<Vec<KnownItem>>(&input)?);
            let items: Vec<String> = items.filter_map(|item| Some(item.id?.as_str()?.to_owned())).collect();
            Ok(move |database: &Connection| {
                let query = "INSERT INTO responses (id, tenant, status, created_at, expires_at, object, input)
                             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
                             ON CONFLICT (id) DO UPDATE SET status = excluded.status, expires_at = excluded.expires_at,
                                 object = excluded.object, input = excluded.input
                             WHERE tenant = excluded.tenant";
                let status = known.status.as_deref().unwrap_or("completed");
                let row = params![&id, &tenant, status, now(), expires_at, object, input];
                if database.prepare_cached(query)?.execute(row)? > 0 {
                    let query = "INSERT OR IGNORE INTO response_items (tenant, id, response) VALUES (?1, ?2, ?3)";
                    let mut statement = database.prepare_cached(query)?;
                    for item in &items {
                        statement.execute(params![tenant, item, id])?;
                    }
                }
                Ok(())
            })
        })
    }
}

impl Store {
    /// Stores a response, replacing an earlier version; its event log stays. The object's `status` has its own column.
    pub async fn put_response(&self, tenant: &Tenant, response: ResponseRecord, room: QuotaCheck) -> Result<(), Error> {
        self.apply_changes(tenant, vec![RowChange::response(tenant, response)], room).await
    }

    /// Returns a response, unless it has expired.
    pub async fn response(&self, tenant: &Tenant, id: &ResponseId) -> Result<Option<ResponseRecord>, Error> {
        let (id, wanted) = (id.clone(), id.clone());
        let query = move |database: &Connection, tenant: &Tenant| {
            let query = "SELECT object, input, expires_at FROM responses
                         WHERE tenant = ?1 AND id = ?2 AND coalesce(expires_at > ?3, TRUE)";
            one(database, query, params![tenant, wanted, now()], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get(2)?))
            })
        };
        let row = self.read(tenant, query).await?;
        Ok(row.map(|(object, input, expires_at)| ResponseRecord { id, object, input, expires_at }))
    }

    /// Returns the bytes of a response's texts, unless it has expired.
    pub async fn response_bytes(&self, tenant: &Tenant, id: &ResponseId) -> Result<Option<u64>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT octet_length(object) + octet_length(input) FROM responses
                         WHERE tenant = ?1 AND id = ?2 AND coalesce(expires_at > ?3, TRUE)";
            one(database, query, params![tenant, id, now()], |row| row.get(0))
        })
        .await
    }

    /// Returns the text of a response, unless it has expired.
    pub async fn response_text(&self, tenant: &Tenant, id: &ResponseId) -> Result<Option<ResponseText>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT object, input FROM responses
                         WHERE tenant = ?1 AND id = ?2 AND coalesce(expires_at > ?3, TRUE)";
            one(database, query, params![tenant, id, now()], text)
        })
        .await
    }

    /// Returns the responses with items of these ids in their output or input: for each id the newest one, and each response once, newest
    /// first. `None` if their JSON is longer than `limit` bytes.
    pub async fn responses_of_items(
        &self,
        tenant: &Tenant,
        items: Vec<String>,
        limit: u64,
    ) -> Result<Option<Vec<ResponseText>>, Error> {
        self.read(tenant, move |database, tenant| {
            let query = "SELECT responses.id, octet_length(object) + octet_length(input)
                         FROM response_items JOIN responses ON responses.id = response
                         WHERE response_items.tenant = ?1 AND response_items.id = ?2 AND coalesce(expires_at > ?3, TRUE)
                         ORDER BY response DESC LIMIT 1";
            let mut found: BTreeMap<ResponseId, u64> = BTreeMap::new();
            for item in &items {
                found.extend(one(database, query, params![tenant, item, now()], |row| Ok((row.get(0)?, row.get(1)?)))?);
            }
            if found.values().sum::<u64>() > limit {
                return Ok(None);
            }
            let query = "SELECT object, input FROM responses WHERE id = ?1";
            let mut texts = Vec::with_capacity(found.len());
            for id in found.into_keys().rev() {
                texts.extend(one(database, query, [&id], text)?);
            }
            Ok(Some(texts))
        })
        .await
    }

    /// Removes a response with its log. Returns false if there was none.
    pub async fn delete_response(&self, tenant: &Tenant, id: &ResponseId) -> Result<bool, Error> {
        let id = id.clone();
        let query = "DELETE FROM responses WHERE tenant = ?1 AND id = ?2";
        self.delete(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, id])? > 0)).await
    }

    /// Returns the responses of all tenants with one of these statuses: for those that a dead server left unfinished.
    pub async fn responses_with_status(&self, statuses: &'static [&str]) -> Result<Vec<(Tenant, ResponseId)>, Error> {
        self.read_any(move |database| {
            let mut found = Vec::new();
            for status in statuses {
                let query = "SELECT tenant, id FROM responses WHERE status = ?1 ORDER BY id";
                found.extend(all(database, query, [status], |row| Ok((row.get(0)?, row.get(1)?)))?);
            }
            Ok(found)
        })
        .await
    }
}

/// The fields of an object that are noted apart.
#[derive(Deserialize)]
struct KnownObject {
    status: Option<String>,
    #[serde(default)]
    output: Vec<KnownItem>,
}

#[derive(Deserialize)]
struct KnownItem {
    id: Option<Value>,
}

fn text(row: &Row<'_>) -> rusqlite::Result<ResponseText> {
    Ok(ResponseText { object: row.get(0)?, input: row.get(1)? })
}
