//! Turns: their state, their owners, their events and their items.
//!
//! A turn is driven by one owner at a time. The owner holds a lease, which it renews. An expired lease can be taken over, which raises the
//! turn's **epoch**. Every write for a turn has the epoch of its lease, and is refused if the row has another one: an owner that was
//! wrongly believed dead can change nothing any more.
//!
//! Specs, dialects' states, events and items are texts that the store does not parse. The statements are portable SQL.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, params};

use crate::database::{all, one};
use crate::{BlobName, Error, NewBlob, OwnerId, RowChange, Store, Tenant, TurnId, now, now_ms};

const COLUMNS: &str = "id, tenant, dialect, state, owner, epoch, lease_until_ms, created_at_ms, updated_at_ms, ended_at_ms, \
                       expires_at, session, spec, dialect_state, next_sequence, next_position";

/// Bytes that an event or an item counts besides its text.
const ROW: u64 = 128;

/// State of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnState {
    /// Being driven.
    Running,
    /// Waiting for the decision about a program.
    WaitingApproval,
    /// Over. The row does not change any more.
    Ended,
}

impl TurnState {
    /// Returns the word that stands in the database.
    pub fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::WaitingApproval => "waiting_approval",
            Self::Ended => "ended",
        }
    }
}

impl ToSql for TurnState {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.word().into())
    }
}

impl FromSql for TurnState {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_str()? {
            // An earlier version's word for a turn in the background.
            "running" | "queued" => Ok(Self::Running),
            "waiting_approval" => Ok(Self::WaitingApproval),
            "ended" => Ok(Self::Ended),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

/// A turn to be created.
#[derive(Debug, Clone)]
pub struct NewTurn {
    /// Id, chosen by the caller.
    pub id: TurnId,
    /// Name of the dialect that it came in.
    pub dialect: String,
    /// End of the first lease, milliseconds since 1970. The owner is this process.
    pub lease_until_ms: i64,
    /// Time at which it is removed unless it is driven, seconds since 1970.
    pub expires_at: Option<i64>,
    /// Id of the session that its programs run in, if it is known.
    pub session: Option<String>,
    /// Model, instructions, tools and budgets, as versioned JSON.
    pub spec: String,
    /// The dialect's own state, as JSON that only the dialect reads.
    pub dialect_state: String,
    /// Items to begin with, as JSON, oldest first.
    pub items: Vec<String>,
}

/// A turn as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnRecord {
    /// Id.
    pub id: TurnId,
    /// Tenant whose turn it is.
    pub tenant: Tenant,
    /// Name of the dialect that it came in.
    pub dialect: String,
    /// State.
    pub state: TurnState,
    /// Process that drives it, or drove it last.
    pub owner: OwnerId,
    /// Number of the lease. It rises with each change of owner.
    pub epoch: u64,
    /// End of the lease, milliseconds since 1970.
    pub lease_until_ms: i64,
    /// Time of its creation, milliseconds since 1970.
    pub created_at_ms: i64,
    /// Time of the last change, milliseconds since 1970. Renewing a lease is not a change.
    pub updated_at_ms: i64,
    /// Time of its end, milliseconds since 1970.
    pub ended_at_ms: Option<i64>,
    /// Time at which it is removed unless it is driven, seconds since 1970.
    pub expires_at: Option<i64>,
    /// Id of the session that its programs run in.
    pub session: Option<String>,
    /// Model, instructions, tools and budgets, as versioned JSON.
    pub spec: String,
    /// The dialect's own state, as JSON that only the dialect reads.
    pub dialect_state: String,
    /// Least sequence number that no event ever had.
    pub next_sequence: u64,
}

impl TurnRecord {
    /// Returns the lease of this row. Only its owner may write under it.
    pub fn lease(&self) -> TurnLease {
        TurnLease { tenant: self.tenant.clone(), turn: self.id.clone(), epoch: self.epoch }
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            tenant: row.get(1)?,
            dialect: row.get(2)?,
            state: row.get(3)?,
            owner: row.get(4)?,
            epoch: row.get(5)?,
            lease_until_ms: row.get(6)?,
            created_at_ms: row.get(7)?,
            updated_at_ms: row.get(8)?,
            ended_at_ms: row.get(9)?,
            expires_at: row.get(10)?,
            session: row.get(11)?,
            spec: row.get(12)?,
            dialect_state: row.get(13)?,
            next_sequence: row.get(14)?,
        })
    }
}

/// The right to write for a turn, until another owner takes it over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TurnLease {
    /// Tenant whose turn it is.
    pub tenant: Tenant,
    /// The turn.
    pub turn: TurnId,
    /// Number of the lease.
    pub epoch: u64,
}

/// An event of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnEventRecord {
    /// Number in the turn's log. Numbers rise, and none is used twice.
    pub sequence: u64,
    /// Time, milliseconds since 1970.
    pub at_ms: i64,
    /// The event, as JSON.
    pub event: String,
}

/// Additions to a turn and changes of it, all or nothing.
#[derive(Debug, Default)]
pub struct TurnUpdate {
    /// Events in the order of their numbers, all of which are [`TurnRecord::next_sequence`] or higher.
    pub events: Vec<TurnEventRecord>,
    /// Blobs that its events name. They go with the turn.
    pub blobs: Vec<NewBlob>,
    /// Items behind those that are there, as JSON.
    pub items: Vec<String>,
    /// New state.
    pub state: Option<TurnState>,
    /// New state of the dialect.
    pub dialect_state: Option<String>,
    /// Changes of other rows of the tenant, for which room was reserved. They are made even if the turn has ended, but not if it was
    /// deleted: its document went with it.
    pub changes: Vec<RowChange>,
}

impl TurnUpdate {
    /// Returns the bytes of its events, blobs and items that count for the tenant.
    pub fn bytes(&self) -> u64 {
        let events: u64 = self.events.iter().map(|event| ROW + event.event.len() as u64).sum();
        let blobs: u64 = self.blobs.iter().map(NewBlob::reserved).sum();
        events + blobs + bytes_of_items(&self.items)
    }
}

fn bytes_of_items(items: &[String]) -> u64 {
    items.iter().map(|item| ROW + item.len() as u64).sum()
}

/// Outcome of a write for a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a refused update is not stored"]
pub enum AppendOutcome {
    /// It is stored.
    Stored {
        /// Sequence number of the next event.
        next_sequence: u64,
    },
    /// Refused: another owner has taken over. The caller must stop driving the turn.
    Fenced,
    /// Refused: the turn has ended.
    Ended,
    /// Refused: the turn was deleted.
    Gone,
}

impl Store {
    /// Returns an id for a turn that ends with this process at the latest, so that [`Store::end_what_was_cut_off`] of other processes can
    /// tell whether it still runs.
    pub async fn owned_turn_id(&self, prefix: &'static str) -> Result<TurnId, Error> {
        self.run(move |store| {
            store.0.owner.register()?;
            Ok(store.0.owner.turn_id(prefix))
        })
        .await
    }

    /// Creates a turn, with this process as its owner. Returns `None` if the id exists.
    pub async fn create_turn(&self, tenant: &Tenant, new: NewTurn) -> Result<Option<TurnRecord>, Error> {
        let NewTurn { id, dialect, lease_until_ms, expires_at, session, spec, dialect_state, items } = new;
        let now = now_ms();
        let record = TurnRecord {
            id,
            tenant: tenant.clone(),
            dialect,
            state: TurnState::Running,
            owner: self.owner().clone(),
            epoch: 1,
            lease_until_ms,
            created_at_ms: now,
            updated_at_ms: now,
            ended_at_ms: None,
            expires_at,
            session,
            spec,
            dialect_state,
            next_sequence: 0,
        };
        self.run(move |store| {
            store.0.owner.name_in_rows()?;
            let tenant = record.tenant.clone();
            store.write_counted(&tenant, 0, |database| {
                let query = format!(
                    "INSERT INTO turns ({COLUMNS}, bytes)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, NULL, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
                     ON CONFLICT (id) DO NOTHING"
                );
                let row = params![
                    record.id,
                    record.tenant,
                    record.dialect,
                    record.state,
                    record.owner,
                    record.epoch,
                    record.lease_until_ms,
                    record.created_at_ms,
                    record.updated_at_ms,
                    record.expires_at,
                    record.session,
                    record.spec,
                    record.dialect_state,
                    record.next_sequence,
                    items.len(),
                    bytes_of_items(&items),
                ];
                if database.prepare_cached(&query)?.execute(row)? == 0 {
                    return Ok(None);
                }
                insert_items(database, &record.id, 0, &items)?;
                Ok(Some(record))
            })
        })
        .await
    }

    /// Returns a turn.
    pub async fn turn(&self, tenant: &Tenant, id: &TurnId) -> Result<Option<TurnRecord>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = format!("SELECT {COLUMNS} FROM turns WHERE tenant = ?1 AND id = ?2");
            one(database, &query, params![tenant, id], TurnRecord::read)
        })
        .await
    }

    /// Adds events, their blobs and items to a turn and changes its state, in one transaction, which is refused if the row has another
    /// lease. Reused event numbers are [`Error::Sequence`]. It is stored even without room, because a turn must be able to end; drivers
    /// reserve room for events in advance.
    pub async fn append_turn(&self, lease: &TurnLease, mut update: TurnUpdate) -> Result<AppendOutcome, Error> {
        let lease = lease.clone();
        self.run(move |store| {
            let changes = std::mem::take(&mut update.changes);
            let writes = changes.into_iter().map(RowChange::prepare).collect::<Result<Vec<_>, _>>()?;
            let appended = store.0.database.write_for(&lease.tenant, |database| {
                let appended = append(database, &lease, &update)?;
                if matches!(appended, AppendOutcome::Stored { .. } | AppendOutcome::Ended) {
                    writes.into_iter().try_for_each(|write| write(database))?;
                }
                Ok(appended)
            })?;
            if matches!(appended, AppendOutcome::Stored { .. }) {
                update.blobs.into_iter().for_each(NewBlob::commit);
            }
            Ok(appended)
        })
        .await
    }

    /// Ends a turn that has nothing more to say.
    pub async fn end_turn(&self, lease: &TurnLease) -> Result<AppendOutcome, Error> {
        self.append_turn(lease, TurnUpdate { state: Some(TurnState::Ended), ..TurnUpdate::default() }).await
    }

    /// Returns at most `limit` events of a turn, in order; all, or those after a sequence number.
    pub async fn turn_events(
        &self,
        tenant: &Tenant,
        id: &TurnId,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<TurnEventRecord>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT sequence, at_ms, event FROM turn_events
                         WHERE turn = (SELECT id FROM turns WHERE tenant = ?1 AND id = ?2) AND sequence >= ?3
                         ORDER BY sequence LIMIT ?4";
            let first = after.map_or(Some(0), |after| after.checked_add(1));
            let Some(first) = first.and_then(|first| i64::try_from(first).ok()) else { return Ok(Vec::new()) };
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            all(database, query, params![tenant, id, first, limit], |row| {
                Ok(TurnEventRecord { sequence: row.get(0)?, at_ms: row.get(1)?, event: row.get(2)? })
            })
        })
        .await
    }

    /// Returns the bytes that a turn counts; 0 if there is none.
    pub async fn turn_bytes(&self, tenant: &Tenant, id: &TurnId) -> Result<u64, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT bytes FROM turns WHERE tenant = ?1 AND id = ?2";
            Ok(one(database, query, params![tenant, id], |row| row.get(0))?.unwrap_or_default())
        })
        .await
    }

    /// Returns the names of a turn's blobs.
    pub async fn turn_blobs(&self, tenant: &Tenant, id: &TurnId) -> Result<Vec<BlobName>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT blob FROM turn_blobs WHERE turn = (SELECT id FROM turns WHERE tenant = ?1 AND id = ?2)";
            all(database, query, params![tenant, id], |row| row.get(0))
        })
        .await
    }

    /// Returns all items of a turn, oldest first.
    pub async fn turn_items(&self, tenant: &Tenant, id: &TurnId) -> Result<Vec<String>, Error> {
        let id = id.clone();
        self.read(tenant, move |database, tenant| {
            let query = "SELECT item FROM turn_items
                         WHERE turn = (SELECT id FROM turns WHERE tenant = ?1 AND id = ?2) ORDER BY position";
            all(database, query, params![tenant, id], |row| row.get(0))
        })
        .await
    }

    /// Returns the turns of an owner that have not ended, oldest first.
    pub async fn turns_of_owner(&self, owner: &OwnerId) -> Result<Vec<TurnRecord>, Error> {
        let owner = owner.clone();
        self.read_any(move |database| {
            let query =
                format!("SELECT {COLUMNS} FROM turns WHERE owner = ?1 AND state <> 'ended' ORDER BY created_at_ms, id");
            all(database, &query, params![owner], TurnRecord::read)
        })
        .await
    }

    /// Renews the leases of all turns that an owner drives, and returns them. A turn that is missing was ended, deleted or taken over.
    pub async fn renew_leases(&self, owner: &OwnerId, until_ms: i64) -> Result<Vec<TurnLease>, Error> {
        let owner = owner.clone();
        self.write(move |database| {
            let query = "UPDATE turns SET lease_until_ms = ?2 WHERE owner = ?1 AND state <> 'ended'
                         RETURNING tenant, id, epoch";
            all(database, query, params![owner, until_ms], |row| {
                Ok(TurnLease { tenant: row.get(0)?, turn: row.get(1)?, epoch: row.get(2)? })
            })
        })
        .await
    }

    /// Takes over at most `limit` turns whose leases expired before `expired_before_ms`, with this process as their owner until `until_ms`.
    /// Returns each with its new epoch. If several processes try at once, one gets a turn.
    pub async fn take_over_turns(
        &self,
        expired_before_ms: i64,
        until_ms: i64,
        limit: usize,
    ) -> Result<Vec<TurnRecord>, Error> {
        self.run(move |store| {
            store.0.owner.name_in_rows()?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let row = params![store.owner(), until_ms, expired_before_ms, limit];
            store.0.database.write(|database| {
                let query = format!(
                    "UPDATE turns SET owner = ?1, epoch = epoch + 1, lease_until_ms = ?2
                     WHERE id IN (SELECT id FROM turns WHERE state <> 'ended' AND lease_until_ms < ?3
                                  ORDER BY lease_until_ms, id LIMIT ?4)
                     RETURNING {COLUMNS}"
                );
                all(database, &query, row, TurnRecord::read)
            })
        })
        .await
    }

    /// Removes a turn with its events, blobs and items. Returns false if there was none.
    pub async fn delete_turn(&self, tenant: &Tenant, id: &TurnId) -> Result<bool, Error> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.run(move |store| {
            let query = "SELECT 1 FROM turns WHERE tenant = ?1 AND id = ?2";
            let is_there = store
                .0
                .database
                .read(Some(&tenant), |database| Ok(one(database, query, params![tenant, id], |_| Ok(()))?.is_some()))?;
            if is_there {
                remove(store, Some(&tenant), &id)?;
            }
            Ok(is_there)
        })
        .await
    }
}

/// Lets the leases of an owner's turns run out.
pub(crate) fn release(database: &Connection, owner: &OwnerId) -> Result<(), Error> {
    let query = "UPDATE turns SET lease_until_ms = 0 WHERE owner = ?1 AND state <> 'ended'";
    database.prepare_cached(query)?.execute(params![owner])?;
    Ok(())
}

/// Removes the expired turns that are not driven: ended ones, and those whose leases ran out without a new owner.
pub(crate) fn remove_expired(store: &Store) -> Result<(), Error> {
    let query = "SELECT id FROM turns WHERE expires_at <= ?1 AND (state = 'ended' OR lease_until_ms < ?2)";
    let row = params![now(), now_ms()];
    let expired: Vec<TurnId> = store.0.database.read(None, |database| all(database, query, row, |row| row.get(0)))?;
    // Looked at again, because another process may have taken over one meanwhile. None does once it has ended.
    let query = "UPDATE turns SET state = 'ended'
                 WHERE id = ?1 AND expires_at <= ?2 AND (state = 'ended' OR lease_until_ms < ?3)";
    for id in &expired {
        let row = params![id, now(), now_ms()];
        if store.0.database.delete(None, |database| Ok(database.execute(query, row)?))? > 0 {
            remove(store, None, id)?;
        }
    }
    Ok(())
}

/// Removes a turn. Its events go before, in pieces.
pub(crate) fn remove(store: &Store, tenant: Option<&Tenant>, id: &TurnId) -> Result<(), Error> {
    let query = "DELETE FROM turn_events WHERE turn = ?1 AND sequence IN
                     (SELECT sequence FROM turn_events WHERE turn = ?1 LIMIT ?2)
                 RETURNING octet_length(event)";
    let delete = |database: &Connection, rows: usize| {
        let bytes: Vec<u64> = all(database, query, params![id, rows], |row| row.get(0))?;
        // The rest is counted rightly if the process ends between two pieces.
        let query = "UPDATE turns SET bytes = bytes - ?2 WHERE id = ?1";
        database.prepare_cached(query)?.execute(params![id, bytes.iter().map(|bytes| ROW + bytes).sum::<u64>()])?;
        Ok((bytes.len(), ()))
    };
    store.0.database.in_pieces(tenant, delete, |()| ())?;
    let blobs: Vec<BlobName> = store.0.database.delete(tenant, |database| {
        let blobs = all(database, "DELETE FROM turn_blobs WHERE turn = ?1 RETURNING blob", [id], |row| row.get(0))?;
        database.execute("DELETE FROM turns WHERE id = ?1", [id])?;
        Ok(blobs)
    })?;
    store.remove_blobs(&blobs);
    Ok(())
}

fn append(database: &Connection, lease: &TurnLease, update: &TurnUpdate) -> Result<AppendOutcome, Error> {
    let query = "SELECT state, epoch, next_sequence, next_position FROM turns WHERE tenant = ?1 AND id = ?2";
    let found = one(database, query, params![lease.tenant, lease.turn], |row| {
        Ok((row.get::<_, TurnState>(0)?, row.get::<_, u64>(1)?, row.get::<_, u64>(2)?, row.get::<_, u64>(3)?))
    })?;
    let Some((state, epoch, mut next_sequence, position)) = found else { return Ok(AppendOutcome::Gone) };
    if epoch != lease.epoch {
        return Ok(AppendOutcome::Fenced);
    }
    if state == TurnState::Ended {
        return Ok(AppendOutcome::Ended);
    }
    let TurnUpdate { events, blobs, items, state, dialect_state, changes: _ } = update;
    let query = "INSERT INTO turn_events (turn, sequence, at_ms, event) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = database.prepare_cached(query)?;
    for TurnEventRecord { sequence, at_ms, event } in events {
        if *sequence < next_sequence {
            return Err(Error::Sequence { turn: lease.turn.clone(), sequence: *sequence, next: next_sequence });
        }
        insert.execute(params![lease.turn, sequence, at_ms, event])?;
        next_sequence = sequence.saturating_add(1);
    }
    let mut insert = database.prepare_cached("INSERT INTO turn_blobs (turn, blob, bytes) VALUES (?1, ?2, ?3)")?;
    for blob in blobs {
        insert.execute(params![lease.turn, blob.name(), blob.bytes()])?;
    }
    insert_items(database, &lease.turn, position, items)?;
    let query = "UPDATE turns SET state = coalesce(?2, state), dialect_state = coalesce(?3, dialect_state),
                     updated_at_ms = ?4, ended_at_ms = CASE WHEN ?2 = 'ended' THEN ?4 END, next_sequence = ?5,
                     next_position = ?6, bytes = bytes + ?7
                 WHERE id = ?1";
    let position = position.saturating_add(items.len() as u64);
    let bytes = update.bytes();
    let row = params![lease.turn, state, dialect_state, now_ms(), next_sequence, position, bytes];
    database.prepare_cached(query)?.execute(row)?;
    Ok(AppendOutcome::Stored { next_sequence })
}

fn insert_items(database: &Connection, turn: &TurnId, position: u64, items: &[String]) -> Result<(), Error> {
    let mut insert = database.prepare_cached("INSERT INTO turn_items (turn, position, item) VALUES (?1, ?2, ?3)")?;
    for (position, item) in (position..).zip(items) {
        insert.execute(params![turn, position, item])?;
    }
    Ok(())
}
