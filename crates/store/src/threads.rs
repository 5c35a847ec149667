//! Threads and their messages.

use rusqlite::{Connection, Params, params};
use serde_json::Value;

use crate::database::{all, one};
use crate::{Error, MessageId, Page, PageQuery, RunId, SessionId, Store, Tenant, ThreadId, TurnId};

/// Threads of one tenant.
const MAX_THREADS: u64 = 100_000;
/// Messages of one thread.
const MAX_MESSAGES: u64 = 10_000;

/// A thread.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadRecord {
    /// Object as clients see it.
    pub object: Value,
    /// Session of its programs, if there is one.
    pub session: Option<SessionId>,
}

/// Objects of a removed thread, for the caller to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedThread {
    /// Session of its programs.
    pub session: Option<SessionId>,
    /// Turn of its active run.
    pub turn: Option<TurnId>,
}

/// Outcome of adding something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddOutcome {
    /// It is there now.
    Added,
    /// The thread that it was to belong to is not there.
    NoThread,
    /// The thread has an active run, and takes nothing meanwhile.
    Locked(RunId),
    /// There are as many of these as may be.
    Full {
        /// The most of them.
        limit: u64,
    },
}

impl Store {
    /// Adds a thread with its first messages, each with its id.
    pub async fn add_thread(
        &self,
        tenant: &Tenant,
        id: ThreadId,
        object: &Value,
        messages: Vec<(MessageId, Value)>,
    ) -> Result<AddOutcome, Error> {
        let (object, messages) = (object.to_string(), texts(messages));
        self.write_for(tenant, move |database, tenant| {
            if count(database, "SELECT count(*) FROM threads WHERE tenant = ?1", params![tenant])? >= MAX_THREADS {
                return Ok(AddOutcome::Full { limit: MAX_THREADS });
            }
            let query = "INSERT INTO threads (id, tenant, object) VALUES (?1, ?2, ?3)";
            database.execute(query, params![id, tenant, object])?;
            insert_messages(database, tenant, &id, None, &messages)?;
            Ok(AddOutcome::Added)
        })
        .await
    }

    /// Returns a thread.
    pub async fn thread(&self, tenant: &Tenant, id: &ThreadId) -> Result<Option<ThreadRecord>, Error> {
        let id = id.clone();
        let query = move |database: &Connection, tenant: &Tenant| {
            let query = "SELECT object, session FROM threads WHERE tenant = ?1 AND id = ?2";
            one(database, query, params![tenant, id], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)))
        };
        self.read_then(tenant, query, |row| {
            row.map(|(object, session)| Ok(ThreadRecord { object: parsed(&object)?, session })).transpose()
        })
        .await
    }

    /// Replaces a thread's object if it is still `was`. Returns false if it has changed, or there is no such thread.
    pub async fn update_thread(
        &self,
        tenant: &Tenant,
        id: &ThreadId,
        was: &Value,
        object: &Value,
    ) -> Result<bool, Error> {
        let (id, was, object) = (id.clone(), was.to_string(), object.to_string());
        let query = "UPDATE threads SET object = ?4 WHERE tenant = ?1 AND id = ?2 AND object = ?3";
        self.write_for(tenant, move |database, tenant| {
            Ok(database.execute(query, params![tenant, id, was, object])? > 0)
        })
        .await
    }

    /// Replaces a thread's session. Returns false if it is not the expected one, or there is no such thread.
    pub async fn set_thread_session(
        &self,
        tenant: &Tenant,
        id: &ThreadId,
        before: Option<SessionId>,
        session: SessionId,
    ) -> Result<bool, Error> {
        let id = id.clone();
        let query = "UPDATE threads SET session = ?4 WHERE tenant = ?1 AND id = ?2 AND session IS ?3";
        let work = move |database: &Connection, tenant: &Tenant| {
            Ok(database.execute(query, params![tenant, id, before, session])? > 0)
        };
        self.write_uncounted(tenant, work).await
    }

    /// Removes a thread with its messages and runs, if there is one.
    pub async fn delete_thread(&self, tenant: &Tenant, id: &ThreadId) -> Result<Option<RemovedThread>, Error> {
        let id = id.clone();
        self.delete(tenant, move |database, tenant| {
            let query = "SELECT turn FROM runs WHERE tenant = ?1 AND thread = ?2 AND is_active";
            let turn = one(database, query, params![tenant, id], |row| row.get(0))?;
            let query = "DELETE FROM threads WHERE tenant = ?1 AND id = ?2 RETURNING session";
            let removed = one(database, query, params![tenant, id], |row| row.get(0))?;
            Ok(removed.map(|session| RemovedThread { session, turn }))
        })
        .await
    }

    /// Adds a message to a thread that has no active run.
    pub async fn add_message(
        &self,
        tenant: &Tenant,
        thread: &ThreadId,
        id: MessageId,
        object: &Value,
    ) -> Result<AddOutcome, Error> {
        let (thread, message) = (thread.clone(), (id, object.to_string()));
        self.write_for(tenant, move |database, tenant| {
            let refused = refused(database, tenant, &thread, 1)?;
            if refused.is_none() {
                insert_messages(database, tenant, &thread, None, &[message])?;
            }
            Ok(refused.unwrap_or(AddOutcome::Added))
        })
        .await
    }

    /// Returns a message.
    pub async fn message(&self, tenant: &Tenant, thread: &ThreadId, id: &MessageId) -> Result<Option<Value>, Error> {
        let (thread, id) = (thread.clone(), id.clone());
        let query = "SELECT object FROM messages WHERE tenant = ?1 AND thread = ?2 AND id = ?3";
        self.read_then(
            tenant,
            move |database, tenant| one(database, query, params![tenant, thread, id], |row| row.get(0)),
            |object: Option<String>| object.map(|object| parsed(&object)).transpose(),
        )
        .await
    }

    /// Returns a page of a thread's messages, all or those of one run.
    pub async fn messages(
        &self,
        tenant: &Tenant,
        thread: &ThreadId,
        run: Option<RunId>,
        page: PageQuery,
    ) -> Result<Page<Value>, Error> {
        let thread = thread.clone();
        let query = move |database: &Connection, tenant: &Tenant| {
            let select = "SELECT object FROM messages WHERE tenant = ?1 AND thread = ?2 AND (?3 IS NULL OR run IS ?3)";
            page.read(database, (select, "id"), vec![tenant, &thread, &run], page.after(), |row| row.get(0))
        };
        self.read_then(tenant, query, Page::parsed).await
    }

    /// Replaces a message. Returns false if there is none.
    pub async fn update_message(
        &self,
        tenant: &Tenant,
        thread: &ThreadId,
        id: &MessageId,
        object: &Value,
    ) -> Result<bool, Error> {
        let (thread, id, object) = (thread.clone(), id.clone(), object.to_string());
        let query = "UPDATE messages SET object = ?4 WHERE tenant = ?1 AND thread = ?2 AND id = ?3";
        let row = move |database: &Connection, tenant: &Tenant| {
            Ok(database.execute(query, params![tenant, thread, id, object])? > 0)
        };
        self.write_for(tenant, row).await
    }

    /// Removes a message. Returns false if there was none.
    pub async fn delete_message(&self, tenant: &Tenant, thread: &ThreadId, id: &MessageId) -> Result<bool, Error> {
        let (thread, id) = (thread.clone(), id.clone());
        let query = "DELETE FROM messages WHERE tenant = ?1 AND thread = ?2 AND id = ?3";
        self.delete(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, thread, id])? > 0)).await
    }

    /// Returns all messages and steps of a thread, oldest first; `None` if their JSON is longer than `limit` bytes.
    pub async fn thread_contents(
        &self,
        tenant: &Tenant,
        thread: &ThreadId,
        limit: u64,
    ) -> Result<Option<(Vec<String>, Vec<String>)>, Error> {
        let thread = thread.clone();
        self.read(tenant, move |database, tenant| {
            let (mut bytes, mut found) = (0, Vec::new());
            for table in ["messages", "run_steps"] {
                let of_thread = format!("FROM {table} WHERE tenant = ?1 AND thread = ?2");
                let query = format!("SELECT coalesce(sum(octet_length(object)), 0) {of_thread}");
                bytes += count(database, &query, params![tenant, thread])?;
                if bytes > limit {
                    return Ok(None);
                }
                let query = format!("SELECT object {of_thread} ORDER BY id");
                found.push(all(database, &query, params![tenant, thread], |row| row.get::<_, String>(0))?);
            }
            let (steps, messages) = (found.pop().unwrap_or_default(), found.pop().unwrap_or_default());
            Ok(Some((messages, steps)))
        })
        .await
    }
}

/// Returns the reason for which a thread accepts no messages now, if there is one.
pub(crate) fn refused(
    database: &Connection,
    tenant: &Tenant,
    thread: &ThreadId,
    messages: usize,
) -> Result<Option<AddOutcome>, Error> {
    let query = "SELECT 1 FROM threads WHERE tenant = ?1 AND id = ?2";
    if one(database, query, params![tenant, thread], |_| Ok(()))?.is_none() {
        return Ok(Some(AddOutcome::NoThread));
    }
    let query = "SELECT id FROM runs WHERE thread = ?1 AND is_active";
    if let Some(run) = one(database, query, [thread], |row| row.get(0))? {
        return Ok(Some(AddOutcome::Locked(run)));
    }
    let there = count(database, "SELECT count(*) FROM messages WHERE thread = ?1", [thread])?;
    Ok((there + messages as u64 > MAX_MESSAGES).then_some(AddOutcome::Full { limit: MAX_MESSAGES }))
}

/// Writes messages, each with its id; one whose id exists stays as it is.
pub(crate) fn insert_messages(
    database: &Connection,
    tenant: &Tenant,
    thread: &ThreadId,
    run: Option<&RunId>,
    messages: &[(MessageId, String)],
) -> Result<(), Error> {
    let query = "INSERT INTO messages (id, tenant, thread, run, object) VALUES (?1, ?2, ?3, ?4, ?5)
                 ON CONFLICT (id) DO NOTHING";
    let mut statement = database.prepare_cached(query)?;
    for (id, object) in messages {
        statement.execute(params![id, tenant, thread, run, object])?;
    }
    Ok(())
}

/// Turns objects into the text that is stored, each with its id.
pub(crate) fn texts<I>(objects: Vec<(I, Value)>) -> Vec<(I, String)> {
    objects.into_iter().map(|(id, object)| (id, object.to_string())).collect()
}

pub(crate) fn count(database: &Connection, query: &str, parameters: impl Params) -> Result<u64, Error> {
    Ok(database.prepare_cached(query)?.query_row(parameters, |row| row.get(0))?)
}

pub(crate) fn parsed(text: &str) -> Result<Value, Error> {
    Ok(serde_json::from_str(text)?)
}

impl Page<String> {
    /// Reads the stored objects.
    pub(crate) fn parsed(self) -> Result<Page<Value>, Error> {
        let data = self.data.iter().map(|text| parsed(text)).collect::<Result<_, _>>()?;
        Ok(Page { data, has_more: self.has_more })
    }
}
