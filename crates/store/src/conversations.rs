//! Conversations and their items.

use rusqlite::{Connection, params};
use serde_json::Value;

use crate::database::{all, one};
use crate::{ConversationId, Error, Page, PageQuery, QuotaCheck, RowChange, Store, Tenant, now};

/// A conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct ConversationRecord {
    /// Id.
    pub id: ConversationId,
    /// Time of creation, seconds since 1970.
    pub created_at: i64,
    /// The client's metadata, a JSON object.
    pub metadata: Value,
}

impl RowChange {
    /// Appends items to a conversation, if it is there: see [`Store::add_items`].
    pub fn items(tenant: &Tenant, conversation: &ConversationId, items: Vec<(String, Value)>) -> Self {
        let (tenant, conversation) = (tenant.clone(), conversation.clone());
        Self::new(move || {
            let items = texts(items);
            Ok(move |database: &Connection| append_items(database, &tenant, &conversation, &items).map(drop))
        })
    }
}

impl Store {
    /// Creates a conversation. Each item is its id and its JSON.
    pub async fn add_conversation(
        &self,
        tenant: &Tenant,
        metadata: Value,
        items: Vec<(String, Value)>,
    ) -> Result<ConversationRecord, Error> {
        let tenant = tenant.clone();
        self.run(move |store| {
            let record = ConversationRecord { id: ConversationId::new(), created_at: now(), metadata };
            let (metadata, items) = (record.metadata.to_string(), texts(items));
            store.write_counted(&tenant, 0, |database| {
                let query = "INSERT INTO conversations (id, tenant, created_at, metadata) VALUES (?1, ?2, ?3, ?4)";
                database.execute(query, params![record.id, tenant, record.created_at, metadata])?;
                insert_items(database, &tenant, &record.id, &items)
            })?;
            Ok(record)
        })
        .await
    }

    /// Returns a conversation.
    pub async fn conversation(
        &self,
        tenant: &Tenant,
        id: &ConversationId,
    ) -> Result<Option<ConversationRecord>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT created_at, metadata FROM conversations WHERE tenant = ?1 AND id = ?2";
            let row = one(database, query, params![tenant, id], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
            row.map(|(created_at, metadata)| {
                Ok(ConversationRecord { id, created_at, metadata: serde_json::from_str(&metadata)? })
            })
            .transpose()
        })
        .await
    }

    /// Replaces a conversation's metadata. Returns false if there is no such conversation.
    pub async fn update_conversation(
        &self,
        tenant: &Tenant,
        id: &ConversationId,
        metadata: &Value,
    ) -> Result<bool, Error> {
        let (id, metadata) = (id.clone(), metadata.to_string());
        let query = "UPDATE conversations SET metadata = ?3 WHERE tenant = ?1 AND id = ?2";
        self.write_for(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, id, metadata])? > 0))
            .await
    }

    /// Removes a conversation with its items. Returns false if there was none. The items go first, in pieces.
    pub async fn delete_conversation(&self, tenant: &Tenant, id: &ConversationId) -> Result<bool, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        let items = "DELETE FROM conversation_items WHERE position IN (SELECT position FROM conversation_items
                         INDEXED BY items_of_conversation WHERE tenant = ?1 AND conversation = ?2 LIMIT ?3)";
        let query = "DELETE FROM conversations WHERE tenant = ?1 AND id = ?2";
        self.run(move |store| {
            let database = &store.0.database;
            database.delete_in_pieces(Some(&tenant), items, &[&tenant, &id])?;
            database.delete(Some(&tenant), |database| Ok(database.execute(query, params![tenant, id])? > 0))
        })
        .await
    }

    /// Appends items, all or none; each is its id and its JSON. An item whose id exists stays as it is. Returns false if there is no such
    /// conversation.
    pub async fn add_items(
        &self,
        tenant: &Tenant,
        conversation: &ConversationId,
        items: Vec<(String, Value)>,
        room: QuotaCheck,
    ) -> Result<bool, Error> {
        let (tenant, conversation) = (tenant.clone(), conversation.clone());
        self.run(move |store| {
            let items = texts(items);
            store.write_counted(&tenant, room.reserved(), |database| {
                append_items(database, &tenant, &conversation, &items)
            })
        })
        .await
    }

    /// Returns a page of a conversation's items, each its id and its JSON; `None` if `after` is the id of no item the conversation has
    /// or had.
    pub async fn items(
        &self,
        tenant: &Tenant,
        conversation: &ConversationId,
        page: PageQuery,
    ) -> Result<Option<Page<(String, String)>>, Error> {
        let conversation = conversation.clone();
        self.read(tenant, move |database: &Connection, tenant: &Tenant| {
            let query = "SELECT position FROM conversation_items WHERE tenant = ?1 AND conversation = ?2 AND id = ?3";
            let position: Option<i64> = match &page.after {
                Some(after) => one(database, query, params![tenant, conversation, after], |row| row.get(0))?,
                None => None,
            };
            if page.after.is_some() && position.is_none() {
                return Ok(None);
            }
            let select =
                "SELECT id, item FROM conversation_items WHERE tenant = ?1 AND conversation = ?2 AND item <> ''";
            let after = position.as_ref().map(|position| position as &dyn rusqlite::ToSql);
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            Ok(Some(page.read(database, (select, "position"), vec![&tenant, &conversation], after, row)?))
        })
        .await
    }

    /// Returns the JSON of one item of a conversation.
    pub async fn item(
        &self,
        tenant: &Tenant,
        conversation: &ConversationId,
        id: &str,
    ) -> Result<Option<String>, Error> {
        let (conversation, id) = (conversation.clone(), id.to_owned());
        let query =
            "SELECT item FROM conversation_items WHERE tenant = ?1 AND conversation = ?2 AND id = ?3 AND item <> ''";
        self.read(tenant, move |database, tenant| {
            one(database, query, params![tenant, conversation, id], |row| row.get(0))
        })
        .await
    }

    /// Returns the JSON of the items with these ids in all conversations, each once; `None` if it is longer than `limit` bytes.
    pub async fn items_of_ids(
        &self,
        tenant: &Tenant,
        ids: Vec<String>,
        limit: u64,
    ) -> Result<Option<Vec<String>>, Error> {
        self.read(tenant, move |database, tenant| {
            let query =
                "SELECT item FROM conversation_items WHERE tenant = ?1 AND id = ?2 AND item <> '' ORDER BY position DESC LIMIT 1";
            let (mut found, mut bytes) = (Vec::new(), 0);
            for id in &ids {
                if let Some(item) = one(database, query, params![tenant, id], |row| row.get::<_, String>(0))? {
                    bytes += item.len() as u64;
                    found.push(item);
                }
                if bytes > limit {
                    return Ok(None);
                }
            }
            Ok(Some(found))
        })
        .await
    }

    /// Returns the bytes of the JSON of all items of a conversation; 0 if there is none.
    pub async fn bytes_of_items(&self, tenant: &Tenant, conversation: &ConversationId) -> Result<u64, Error> {
        let conversation = conversation.clone();
        self.read(tenant, move |database, tenant| bytes_of_items(database, tenant, &conversation)).await
    }

    /// Returns the JSON of all items of a conversation, oldest first; `None` if it is longer than `limit` bytes.
    pub async fn all_items(
        &self,
        tenant: &Tenant,
        conversation: &ConversationId,
        limit: u64,
    ) -> Result<Option<Vec<String>>, Error> {
        let conversation = conversation.clone();
        self.read(tenant, move |database, tenant| {
            if bytes_of_items(database, tenant, &conversation)? > limit {
                return Ok(None);
            }
            let query = "SELECT item FROM conversation_items WHERE tenant = ?1 AND conversation = ?2 AND item <> '' ORDER BY position";
            Ok(Some(all(database, query, params![tenant, conversation], |row| row.get(0))?))
        })
        .await
    }

    /// Removes an item. Returns false if there was none. Its id keeps its position, as text without JSON, so that a client that deletes
    /// what it lists can go on behind it; the conversation's deletion removes it.
    pub async fn delete_item(&self, tenant: &Tenant, conversation: &ConversationId, id: &str) -> Result<bool, Error> {
        let (conversation, id) = (conversation.clone(), id.to_owned());
        let query = "UPDATE conversation_items SET item = '' WHERE tenant = ?1 AND conversation = ?2 AND id = ?3 AND item <> ''";
        self.delete(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, conversation, id])? > 0))
            .await
    }
}

/// Turns items into the text that is stored, each with its id.
fn texts(items: Vec<(String, Value)>) -> Vec<(String, String)> {
    items.into_iter().map(|(id, item)| (id, item.to_string())).collect()
}

fn append_items(
    database: &Connection,
    tenant: &Tenant,
    conversation: &ConversationId,
    items: &[(String, String)],
) -> Result<bool, Error> {
    let query = "SELECT 1 FROM conversations WHERE tenant = ?1 AND id = ?2";
    if one(database, query, params![tenant, conversation], |_| Ok(()))?.is_none() {
        return Ok(false);
    }
    insert_items(database, tenant, conversation, items)?;
    Ok(true)
}

fn insert_items(
    database: &Connection,
    tenant: &Tenant,
    conversation: &ConversationId,
    items: &[(String, String)],
) -> Result<(), Error> {
    let deleted = "DELETE FROM conversation_items WHERE tenant = ?1 AND conversation = ?2 AND id = ?3 AND item = ''";
    let query = "INSERT INTO conversation_items (id, tenant, conversation, item) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (conversation, id) DO NOTHING";
    let (mut deleted, mut statement) = (database.prepare_cached(deleted)?, database.prepare_cached(query)?);
    for (id, item) in items {
        deleted.execute(params![tenant, conversation, id])?;
        statement.execute(params![id, tenant, conversation, item])?;
    }
    Ok(())
}

fn bytes_of_items(database: &Connection, tenant: &Tenant, conversation: &ConversationId) -> Result<u64, Error> {
    let query = "SELECT coalesce(sum(octet_length(item)), 0) FROM conversation_items INDEXED BY items_of_conversation
                 WHERE tenant = ?1 AND conversation = ?2";
    Ok(database.query_row(query, params![tenant, conversation], |row| row.get(0))?)
}
