//! Runs of assistants on threads, and their steps.
//!
//! A run is carried out by one turn after another: after each answer of its client to calls of functions, a new turn continues. Only the
//! turn that its row names changes it.

use rusqlite::{Connection, Row, params};
use serde_json::Value;

use crate::database::{all, one};
use crate::threads::{count, insert_messages, parsed, refused, texts};
use crate::{
    AddOutcome, Error, MessageId, Page, PageQuery, QuotaCheck, RowChange, RunId, StepId, Store, Tenant, ThreadId,
    TurnId,
};

/// Runs of one thread.
const MAX_RUNS: u64 = 10_000;
const COLUMNS: &str = "id, thread, turn, is_active, expires_at, object";

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// Id.
    pub id: RunId,
    /// Thread.
    pub thread: ThreadId,
    /// Turn that carries it out, or did so last.
    pub turn: TurnId,
    /// True until it has ended: its thread takes nothing meanwhile.
    pub is_active: bool,
    /// Time at which it is over, done or not, seconds since 1970.
    pub expires_at: i64,
    /// Object as clients see it.
    pub object: Value,
}

/// A run that begins.
#[derive(Debug)]
pub struct NewRun {
    /// Id.
    pub id: RunId,
    /// Thread.
    pub thread: ThreadId,
    /// Turn that carries it out.
    pub turn: TurnId,
    /// Time at which it is over, done or not, seconds since 1970.
    pub expires_at: i64,
    /// Object as clients see it.
    pub object: Value,
    /// Messages that the thread gets with it, each with its id.
    pub messages: Vec<(MessageId, Value)>,
}

/// News of a run.
#[derive(Debug, Default)]
pub struct RunUpdate {
    /// Object for clients, if it changed. Its `metadata` stays as the client set it.
    pub object: Option<Value>,
    /// True when the run has ended.
    pub has_ended: bool,
    /// Turn that goes on with it, if not the same.
    pub next: Option<TurnId>,
    /// Steps, new and changed ones, each with its id.
    pub steps: Vec<(StepId, Value)>,
    /// New messages, each with its id.
    pub messages: Vec<(MessageId, Value)>,
}

impl RowChange {
    /// Updates an active run, if `turn` is the one that carries it out: see [`Store::update_run`].
    pub fn run(tenant: &Tenant, id: &RunId, turn: &TurnId, update: RunUpdate) -> Self {
        let (tenant, id, turn) = (tenant.clone(), id.clone(), turn.clone());
        Self::new(move || {
            let update = RunTexts::of(update);
            Ok(move |database: &Connection| update.write(database, &tenant, &id, &turn).map(drop))
        })
    }
}

/// An update of a run in its stored form.
struct RunTexts {
    object: Option<String>,
    has_ended: bool,
    next: Option<TurnId>,
    steps: Vec<(StepId, String)>,
    messages: Vec<(MessageId, String)>,
}

impl RunTexts {
    fn of(update: RunUpdate) -> Self {
        let RunUpdate { object, has_ended, next, steps, messages } = update;
        let object = object.map(|object| object.to_string());
        Self { object, has_ended, next, steps: texts(steps), messages: texts(messages) }
    }

    fn write(&self, database: &Connection, tenant: &Tenant, id: &RunId, turn: &TurnId) -> Result<bool, Error> {
        let Self { object, has_ended, next, steps, messages } = self;
        let query = "UPDATE runs SET is_active = ?4, turn = ?5, object = coalesce(
                         json_set(?6, '$.metadata', json(coalesce(object -> '$.metadata', '{}'))), object)
                     WHERE tenant = ?1 AND id = ?2 AND turn = ?3 AND is_active RETURNING thread";
        let row = params![tenant, id, turn, !has_ended, next.as_ref().unwrap_or(turn), object];
        let Some(thread) = one(database, query, row, |row| row.get::<_, ThreadId>(0))? else {
            return Ok(false);
        };
        let query = "INSERT INTO run_steps (id, tenant, thread, run, object) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (id) DO UPDATE SET object = excluded.object WHERE run = excluded.run";
        let mut statement = database.prepare_cached(query)?;
        for (step, object) in steps {
            statement.execute(params![step, tenant, thread, id, object])?;
        }
        insert_messages(database, tenant, &thread, Some(id), messages)?;
        Ok(true)
    }
}

impl Store {
    /// Begins a run on a thread that has no active one.
    pub async fn begin_run(&self, tenant: &Tenant, run: NewRun) -> Result<AddOutcome, Error> {
        let NewRun { id, thread, turn, expires_at, object, messages } = run;
        let (object, messages) = (object.to_string(), texts(messages));
        self.write_for(tenant, move |database, tenant| {
            if let Some(refused) = refused(database, tenant, &thread, messages.len())? {
                return Ok(refused);
            }
            if count(database, "SELECT count(*) FROM runs WHERE thread = ?1", [&thread])? >= MAX_RUNS {
                return Ok(AddOutcome::Full { limit: MAX_RUNS });
            }
            let query = "INSERT INTO runs (tenant, id, thread, turn, is_active, expires_at, object)
                         VALUES (?1, ?2, ?3, ?4, TRUE, ?5, ?6)";
            let row = params![tenant, id, thread, turn, expires_at, object];
            database.prepare_cached(query)?.execute(row)?;
            insert_messages(database, tenant, &thread, None, &messages)?;
            Ok(AddOutcome::Added)
        })
        .await
    }

    /// Returns a run.
    pub async fn thread_run(&self, tenant: &Tenant, thread: &ThreadId, id: &RunId) -> Result<Option<RunRecord>, Error> {
        let (thread, id) = (thread.clone(), id.clone());
        let query = move |database: &Connection, tenant: &Tenant| {
            let query = format!("SELECT {COLUMNS} FROM runs WHERE tenant = ?1 AND thread = ?2 AND id = ?3");
            one(database, &query, params![tenant, thread, id], RunRow::read)
        };
        self.read_then(tenant, query, |row| row.map(RunRow::parsed).transpose()).await
    }

    /// Returns the active run of a thread.
    pub async fn active_run(&self, tenant: &Tenant, thread: &ThreadId) -> Result<Option<RunRecord>, Error> {
        let thread = thread.clone();
        let query = move |database: &Connection, tenant: &Tenant| {
            let query = format!("SELECT {COLUMNS} FROM runs WHERE tenant = ?1 AND thread = ?2 AND is_active");
            one(database, &query, params![tenant, thread], RunRow::read)
        };
        self.read_then(tenant, query, |row| row.map(RunRow::parsed).transpose()).await
    }

    /// Returns the active runs of all tenants: at a server's start, those that the one before left.
    pub async fn active_runs(&self) -> Result<Vec<(Tenant, ThreadId, RunId)>, Error> {
        let query = "SELECT tenant, thread, id FROM runs WHERE is_active";
        self.read_any(move |database| all(database, query, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))).await
    }

    /// Returns a page of a thread's runs.
    pub async fn runs(&self, tenant: &Tenant, thread: &ThreadId, page: PageQuery) -> Result<Page<RunRecord>, Error> {
        let thread = thread.clone();
        let query = move |database: &Connection, tenant: &Tenant| {
            let select = format!("SELECT {COLUMNS} FROM runs WHERE tenant = ?1 AND thread = ?2");
            page.read(database, (&select, "id"), vec![tenant, &thread], page.after(), RunRow::read)
        };
        self.read_then(tenant, query, |page| {
            let data = page.data.into_iter().map(RunRow::parsed).collect::<Result<_, _>>()?;
            Ok(Page { data, has_more: page.has_more })
        })
        .await
    }

    /// Replaces the metadata of a run, a JSON object. Returns false if there is no such run.
    pub async fn set_run_metadata(&self, tenant: &Tenant, id: &RunId, metadata: &Value) -> Result<bool, Error> {
        let (id, metadata) = (id.clone(), metadata.to_string());
        let query = "UPDATE runs SET object = json_set(object, '$.metadata', json(?3)) WHERE tenant = ?1 AND id = ?2";
        self.write_for(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, id, metadata])? > 0))
            .await
    }

    /// Updates an active run, as long as `turn` is the one that carries it out. Returns false if it is not, or if the run has ended.
    pub async fn update_run(
        &self,
        tenant: &Tenant,
        id: &RunId,
        turn: &TurnId,
        update: RunUpdate,
        room: QuotaCheck,
    ) -> Result<bool, Error> {
        let (tenant, id, turn) = (tenant.clone(), id.clone(), turn.clone());
        self.run(move |store| {
            let update = RunTexts::of(update);
            store.write_counted(&tenant, room.reserved(), |database| update.write(database, &tenant, &id, &turn))
        })
        .await
    }

    /// Removes a run that could not be begun.
    pub async fn delete_run(&self, tenant: &Tenant, id: &RunId) -> Result<(), Error> {
        let id = id.clone();
        let query = "DELETE FROM runs WHERE tenant = ?1 AND id = ?2";
        self.delete(tenant, move |database, tenant| Ok(database.execute(query, params![tenant, id]).map(drop)?)).await
    }

    /// Returns a step of a run.
    pub async fn step(&self, tenant: &Tenant, run: &RunId, id: &StepId) -> Result<Option<Value>, Error> {
        let (run, id) = (run.clone(), id.clone());
        let query = "SELECT object FROM run_steps WHERE tenant = ?1 AND run = ?2 AND id = ?3";
        self.read_then(
            tenant,
            move |database, tenant| one(database, query, params![tenant, run, id], |row| row.get(0)),
            |object: Option<String>| object.map(|object| parsed(&object)).transpose(),
        )
        .await
    }

    /// Returns a page of a run's steps.
    pub async fn steps(&self, tenant: &Tenant, run: &RunId, page: PageQuery) -> Result<Page<Value>, Error> {
        let run = run.clone();
        let query = move |database: &Connection, tenant: &Tenant| {
            let select = "SELECT object FROM run_steps WHERE tenant = ?1 AND run = ?2";
            page.read(database, (select, "id"), vec![tenant, &run], page.after(), |row| row.get(0))
        };
        self.read_then(tenant, query, Page::parsed).await
    }
}

/// A run's row.
struct RunRow {
    id: RunId,
    thread: ThreadId,
    turn: TurnId,
    is_active: bool,
    expires_at: i64,
    object: String,
}

impl RunRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            thread: row.get(1)?,
            turn: row.get(2)?,
            is_active: row.get(3)?,
            expires_at: row.get(4)?,
            object: row.get(5)?,
        })
    }

    fn parsed(self) -> Result<RunRecord, Error> {
        let Self { id, thread, turn, is_active, expires_at, object } = self;
        Ok(RunRecord { id, thread, turn, is_active, expires_at, object: parsed(&object)? })
    }
}
