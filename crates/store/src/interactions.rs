//! Interactions and their input.

use rusqlite::{Connection, params};

use crate::database::one;
use crate::{Error, InteractionId, QuotaCheck, Store, Tenant, now};

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

impl Store {
    /// Adds an interaction.
    pub async fn add_interaction(&self, tenant: &Tenant, interaction: InteractionRecord) -> Result<(), Error> {
        let tenant = tenant.clone();
        self.run(move |store| {
            let InteractionRecord { id, object, input } = interaction;
            store.write_counted(&tenant, QuotaCheck::Checked.reserved(), |database| {
                let query =
                    "INSERT INTO interactions (id, tenant, created_at, object, input) VALUES (?1, ?2, ?3, ?4, ?5)";
                database.prepare_cached(query)?.execute(params![&id, &tenant, now(), object, input])?;
                Ok(())
            })
        })
        .await
    }

    /// Replaces the object of an interaction. Returns false if it was removed meanwhile.
    pub async fn update_interaction(
        &self,
        tenant: &Tenant,
        id: &InteractionId,
        object: String,
        room: QuotaCheck,
    ) -> Result<bool, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.run(move |store| {
            store.write_counted(&tenant, room.reserved(), |database| {
                let query = "UPDATE interactions SET object = ?3 WHERE tenant = ?1 AND id = ?2";
                Ok(database.prepare_cached(query)?.execute(params![&tenant, &id, object])? > 0)
            })
        })
        .await
    }

    /// Returns an interaction.
    pub async fn interaction(&self, tenant: &Tenant, id: &InteractionId) -> Result<Option<InteractionRecord>, Error> {
        let text = self.interaction_text(tenant, id).await?;
        Ok(text.map(|InteractionText { object, input }| InteractionRecord { id: id.clone(), object, input }))
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
        let (tenant, id) = (tenant.clone(), id.clone());
        let query = "DELETE FROM interactions WHERE tenant = ?1 AND id = ?2";
        self.write(move |database| Ok(database.execute(query, params![tenant, id])? > 0)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_interaction_is_its_tenants_counts_and_stays_removed() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(data.path()).await.unwrap();
        let (tenant, other, id) = (Tenant::local(), Tenant::terminal(), InteractionId::new());
        let record = InteractionRecord { id: id.clone(), object: r#"{"a":1}"#.into(), input: r#"[{"b":2}]"#.into() };
        let before = store.bytes_of(&tenant).await.unwrap();
        store.add_interaction(&tenant, record.clone()).await.unwrap();
        assert!(store.bytes_of(&tenant).await.unwrap() > before + 1024);
        assert_eq!(store.interaction(&tenant, &id).await.unwrap(), Some(record));
        assert_eq!(store.interaction(&other, &id).await.unwrap(), None);
        assert!(!store.update_interaction(&other, &id, "{}".into(), QuotaCheck::Reserved).await.unwrap());
        assert!(store.update_interaction(&tenant, &id, r#"{"a":2}"#.into(), QuotaCheck::Reserved).await.unwrap());
        assert_eq!(store.interaction_text(&tenant, &id).await.unwrap().unwrap().object, r#"{"a":2}"#);
        assert!(!store.delete_interaction(&other, &id).await.unwrap());
        assert!(store.delete_interaction(&tenant, &id).await.unwrap());
        assert!(!store.update_interaction(&tenant, &id, "{}".into(), QuotaCheck::Reserved).await.unwrap());
        assert_eq!(store.bytes_of(&tenant).await.unwrap(), before);
    }
}
