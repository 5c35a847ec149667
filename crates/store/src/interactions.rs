//! Interactions and their input.

use rusqlite::{Connection, params};

use crate::database::one;
use crate::{Error, InteractionId, RowChange, Store, Tenant, now};

/// An interaction.
#[derive(Debug, Clone, PartialEq)]
pub struct InteractionRecord {
    /// Id.
    pub id: InteractionId,
    /// Object as clients see it, without the input, JSON.
    pub object: String,
    /// List of the steps that it answers, oldest first, JSON.
    pub input: String,
}

/// An interaction as stored: JSON that has not been parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InteractionText {
    /// Object as clients see it, without the input.
    pub object: String,
    /// List of the steps that it answers, oldest first.
    pub input: String,
}

impl RowChange {
    /// Adds an interaction.
    pub fn new_interaction(tenant: &Tenant, interaction: InteractionRecord) -> Self {
        let tenant = tenant.clone();
        Self::new(move || {
            let InteractionRecord { id, object, input } = interaction;
            Ok(move |database: &Connection| {
                let query =
                    "INSERT INTO interactions (id, tenant, created_at, object, input) VALUES (?1, ?2, ?3, ?4, ?5)";
                database.prepare_cached(query)?.execute(params![&id, &tenant, now(), object, input])?;
                Ok(())
            })
        })
    }

    /// Replaces the object of an interaction, JSON, unless it was removed meanwhile.
    pub fn interaction(tenant: &Tenant, id: &InteractionId, object: String) -> Self {
        let (tenant, id) = (tenant.clone(), id.clone());
        Self::new(move || {
            Ok(move |database: &Connection| {
                let query = "UPDATE interactions SET object = ?3 WHERE tenant = ?1 AND id = ?2";
                database.prepare_cached(query)?.execute(params![&tenant, &id, object])?;
                Ok(())
            })
        })
    }
}

impl Store {
    /// Returns an interaction.
    pub async fn interaction(&self, tenant: &Tenant, id: &InteractionId) -> Result<Option<InteractionRecord>, Error> {
        let text = self.interaction_text(tenant, id).await?;
        Ok(text.map(|InteractionText { object, input }| InteractionRecord { id: id.clone(), object, input }))
    }

    /// Returns the bytes of an interaction's texts.
    pub async fn interaction_bytes(&self, tenant: &Tenant, id: &InteractionId) -> Result<Option<u64>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query =
                "SELECT octet_length(object) + octet_length(input) FROM interactions WHERE tenant = ?1 AND id = ?2";
            one(database, query, params![tenant, id], |row| row.get(0))
        })
        .await
    }

    /// Returns the text of an interaction.
    pub async fn interaction_text(
        &self,
        tenant: &Tenant,
        id: &InteractionId,
    ) -> Result<Option<InteractionText>, Error> {
        let id = id.clone();
        self.read(tenant, move |database: &Connection, tenant| {
            let query = "SELECT object, input FROM interactions WHERE tenant = ?1 AND id = ?2";
            one(database, query, params![tenant, id], |row| {
                Ok(InteractionText { object: row.get(0)?, input: row.get(1)? })
            })
        })
        .await
    }

    /// Removes an interaction. Returns false if there was none.
    pub async fn delete_interaction(&self, tenant: &Tenant, id: &InteractionId) -> Result<bool, Error> {
        let id = id.clone();
        let query = "DELETE FROM interactions WHERE tenant = ?1 AND id = ?2";
        self.delete(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, id])? > 0)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QuotaCheck;

    #[tokio::test]
    async fn an_interaction_is_its_tenants_counts_and_stays_removed() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let (tenant, other, id) = (Tenant::local(), Tenant::terminal(), InteractionId::new());
        let record = InteractionRecord { id: id.clone(), object: r#"{"a":1}"#.into(), input: r#"[{"b":2}]"#.into() };
        let before = store.bytes_of(&tenant).await.unwrap();
        let change = |tenant, object: &str| vec![RowChange::interaction(tenant, &id, object.into())];
        let added = vec![RowChange::new_interaction(&tenant, record.clone())];
        store.apply_changes(&tenant, added, QuotaCheck::Checked).await.unwrap();
        assert!(store.bytes_of(&tenant).await.unwrap() > before + 1024);
        assert_eq!(store.interaction(&tenant, &id).await.unwrap(), Some(record));
        assert_eq!(store.interaction(&other, &id).await.unwrap(), None);
        store.apply_changes(&tenant, change(&tenant, r#"{"a":2}"#), QuotaCheck::Reserved).await.unwrap();
        store.apply_changes(&other, change(&other, "{}"), QuotaCheck::Reserved).await.unwrap();
        assert_eq!(store.interaction_text(&tenant, &id).await.unwrap().unwrap().object, r#"{"a":2}"#);
        assert!(!store.delete_interaction(&other, &id).await.unwrap());
        assert!(store.delete_interaction(&tenant, &id).await.unwrap());
        store.apply_changes(&tenant, change(&tenant, "{}"), QuotaCheck::Reserved).await.unwrap();
        assert_eq!(store.interaction(&tenant, &id).await.unwrap(), None);
        assert_eq!(store.bytes_of(&tenant).await.unwrap(), before);
    }
}
