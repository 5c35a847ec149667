//! Assistants: a model with instructions and tools, by an id.

use rusqlite::params;
use serde_json::Value;

use crate::database::one;
use crate::threads::{AddOutcome, count, parsed};
use crate::{AssistantId, Error, Page, PageQuery, Store, Tenant};

/// Assistants of one tenant.
const MAX_ASSISTANTS: u64 = 10_000;

impl Store {
    /// Adds an assistant.
    pub async fn add_assistant(&self, tenant: &Tenant, id: AssistantId, object: &Value) -> Result<AddOutcome, Error> {
        let object = object.to_string();
        self.write_for(tenant, move |database, tenant| {
            let query = "SELECT count(*) FROM assistants WHERE tenant = ?1";
            if count(database, query, params![tenant])? >= MAX_ASSISTANTS {
                return Ok(AddOutcome::Full { limit: MAX_ASSISTANTS });
            }
            let query = "INSERT INTO assistants (id, tenant, object) VALUES (?1, ?2, ?3)";
            database.execute(query, params![id, tenant, object])?;
            Ok(AddOutcome::Added)
        })
        .await
    }

    /// Returns an assistant.
    pub async fn assistant(&self, tenant: &Tenant, id: &AssistantId) -> Result<Option<Value>, Error> {
        let id = id.clone();
        let query = "SELECT object FROM assistants WHERE tenant = ?1 AND id = ?2";
        self.read_then(
            tenant,
            move |database, tenant| one(database, query, params![tenant, id], |row| row.get(0)),
            |object: Option<String>| object.map(|object| parsed(&object)).transpose(),
        )
        .await
    }

    /// Replaces an assistant. Returns false if there is none.
    pub async fn update_assistant(&self, tenant: &Tenant, id: &AssistantId, object: &Value) -> Result<bool, Error> {
        let (id, object) = (id.clone(), object.to_string());
        let query = "UPDATE assistants SET object = ?3 WHERE tenant = ?1 AND id = ?2";
        self.write_for(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, id, object])? > 0))
            .await
    }

    /// Removes an assistant. Returns false if there was none.
    pub async fn delete_assistant(&self, tenant: &Tenant, id: &AssistantId) -> Result<bool, Error> {
        let id = id.clone();
        let query = "DELETE FROM assistants WHERE tenant = ?1 AND id = ?2";
        self.delete(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, id])? > 0)).await
    }

    /// Returns a page of the assistants.
    pub async fn assistants(&self, tenant: &Tenant, page: PageQuery) -> Result<Page<Value>, Error> {
        let query = move |database: &rusqlite::Connection, tenant: &Tenant| {
            let select = "SELECT object FROM assistants WHERE tenant = ?1";
            page.read(database, (select, "id"), vec![tenant], page.after(), |row| row.get(0))
        };
        self.read_then(tenant, query, Page::parsed).await
    }
}
