//! The stored log of a request: its events, and the conversation as the model sees it.

use std::future::pending;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::{Item, Part};
use aludel_store::{
    AppendOutcome, FILE_COST, NewTurn, Reservation, RowChange, Store, Tenant, TurnEventRecord, TurnId, TurnLease,
    TurnState, TurnUpdate,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};

use super::lease;
use super::{EventKind, Frame, TurnEvent};
use crate::Error;

/// Bytes that are reserved for the last events of a request; also the step of further reservations.
const END_RESERVE_BYTES: u64 = 64 << 10;
/// Copies of an event at a request's end: in the log, in the document and in the conversation.
const COPIES_AT_END: u64 = 3;
/// The longest that output of a program waits for another event, to be stored with it.
const OUTPUT_STORE_DELAY: Duration = Duration::from_millis(250);
/// Numbers of frames that are reserved at once. A crash skips at most this many; none is used twice.
const RESERVED_FRAMES: u64 = 4096;

/// The log of one request. This process owns it as long as its lease is valid.
#[derive(Debug)]
pub struct Journal {
    lease: TurnLease,
    next: u64,
    events: Vec<TurnEvent>,
    items: Vec<String>,
    /// True if the conversation is stored too, so that the request can go on after a restart.
    stores_items: bool,
    state: DialectState,
    /// The number of the next frame.
    next_frame: u64,
    /// Room for its end.
    room: Reservation,
    /// Bytes that the next flush stores, and the end again.
    unstored: u64,
    /// The time since which output of a program waits to be stored.
    output_since: Option<Instant>,
    /// True once there was no room for an event.
    is_full: bool,
}

/// A request to store.
#[derive(Debug)]
pub struct NewJournal {
    /// Its id.
    pub id: TurnId,
    /// The dialect that renders it.
    pub dialect: &'static str,
    /// Time after which it is forgotten, seconds since 1970.
    pub expires_at: Option<i64>,
    /// The session of its programs.
    pub session: Option<String>,
    /// True if the session was made for it, and is removed with it when its process is killed.
    pub owns_session: bool,
    /// The request in the form in which the engine resumes it, versioned JSON; `None` if it cannot be resumed.
    pub spec: Option<Value>,
    /// The dialect's own state, with which it renders the log again.
    pub own: Box<RawValue>,
    /// The conversation that it begins with.
    pub items: Vec<Item>,
}

/// The dialect's part of a stored request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct DialectState {
    /// Frames below this number may have been published.
    pub(super) reserved_frames: u64,
    /// The dialect's own state.
    pub(super) own: Box<RawValue>,
    /// True if the session was made for the request alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) owns_session: bool,
}

impl Journal {
    /// Begins the log of a request. `None` when its id is taken.
    pub(super) async fn create(store: &Store, tenant: &Tenant, new: NewJournal) -> Result<Option<Self>, Error> {
        let NewJournal { id, dialect, expires_at, session, owns_session, spec, own, items } = new;
        let state = DialectState { reserved_frames: RESERVED_FRAMES, own, owns_session };
        let stores_items = spec.is_some();
        let record = NewTurn {
            id,
            dialect: dialect.to_owned(),
            lease_until_ms: lease::until(),
            expires_at,
            session,
            spec: spec.unwrap_or_default().to_string(),
            dialect_state: written(&state),
            items: items.iter().filter(|_| stores_items).map(stored_form).collect(),
        };
        let room = store.reserve(tenant, END_RESERVE_BYTES..=END_RESERVE_BYTES).await?;
        let record = store.create_turn(tenant, record).await?;
        Ok(record.map(|record| Self { room, ..Self::of(store, record.lease(), 0, stores_items, state) }))
    }

    /// The log of a request that this process took over, from this event number on. Frame numbers continue after the reserved ones.
    pub(super) fn of(store: &Store, lease: TurnLease, next: u64, stores_items: bool, state: DialectState) -> Self {
        let (next_frame, room) = (state.reserved_frames, store.no_room(&lease.tenant));
        let (events, items) = (Vec::new(), Vec::new());
        Self {
            lease,
            next,
            events,
            items,
            stores_items,
            state,
            next_frame,
            room,
            unstored: 0,
            output_since: None,
            is_full: false,
        }
    }

    /// Completes when output of a program has waited long enough to be stored; never if none waits.
    pub(super) fn output_due(&self) -> impl Future<Output = ()> + use<> {
        let due = self.output_since.map(|since| sleep_until(since + OUTPUT_STORE_DELAY));
        async move {
            match due {
                Some(due) => due.await,
                None => pending().await,
            }
        }
    }

    /// The number of the next event.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Adds an event, which the next [`Journal::flush`] stores. Fails if there is no room for it and for its copies at the request's end;
    /// for the end itself there always is.
    pub(super) async fn push(&mut self, store: &Store, event: &TurnEvent) -> Result<(), Error> {
        let is_end = matches!(event.kind, EventKind::Ended { .. } | EventKind::Closed | EventKind::Resumed { .. });
        let unstored = self.unstored + COPIES_AT_END * event.stored_bytes();
        let lack = (unstored + END_RESERVE_BYTES).saturating_sub(self.room.bytes());
        if !is_end && (lack > 0 || self.is_full) {
            // Once there was no room, a smaller event would leave a gap.
            let least = if self.is_full { u64::MAX } else { lack };
            let room = store.reserve(&self.lease.tenant, least..=least.saturating_add(END_RESERVE_BYTES)).await;
            self.is_full |= room.is_err();
            self.room.add(room?);
        }
        if matches!(event.kind, EventKind::Output { .. }) {
            self.output_since.get_or_insert_with(Instant::now);
        }
        self.unstored = unstored;
        self.next = event.sequence + 1;
        self.events.push(event.clone());
        Ok(())
    }

    /// Adds to the conversation, which the next [`Journal::flush`] stores.
    pub(super) fn push_item(&mut self, item: &Item) {
        if self.stores_items {
            self.items.push(stored_form(item));
        }
    }

    /// Reserves a frame's number before it is published, so that no other process uses it.
    pub(super) async fn reserve(&mut self, store: &Store, frame: &Frame) -> Result<(), Error> {
        self.next_frame = frame.sequence + 1;
        if frame.sequence < self.state.reserved_frames {
            return Ok(());
        }
        self.state.reserved_frames = frame.sequence + RESERVED_FRAMES;
        let update = TurnUpdate { dialect_state: Some(written(&self.state)), ..TurnUpdate::default() };
        self.append(store, update).await
    }

    /// Stores the additions, with these changes and a new state if there is one. Fails if this process no longer owns the request.
    pub(super) async fn flush(
        &mut self,
        store: &Store,
        state: Option<TurnState>,
        changes: Vec<RowChange>,
    ) -> Result<(), Error> {
        if self.events.is_empty() && self.items.is_empty() && changes.is_empty() && state.is_none() {
            return Ok(());
        }
        let room = self.room.bytes();
        let flushed = async {
            let update = self.update(store).await?;
            let stored = update.bytes();
            self.append_all(store, TurnUpdate { state, changes, ..update }).await?;
            Ok::<_, Error>(stored)
        };
        match flushed.await {
            Ok(stored) => self.unstored = self.unstored.saturating_sub(stored),
            Err(error) => {
                // The next attempt needs it again.
                let lost = room.saturating_sub(self.room.bytes());
                self.room.add(store.reserve(&self.lease.tenant, 0..=lost).await?);
                return Err(error);
            }
        }
        self.room.shrink_to(self.unstored + 2 * END_RESERVE_BYTES);
        Ok(())
    }

    /// Stores the additions, and gives back reserved and unused numbers of frames, so that another process continues from there.
    pub(super) async fn hand_on(&mut self, store: &Store, state: Option<TurnState>) -> Result<(), Error> {
        self.state.reserved_frames = self.next_frame;
        let update = self.update(store).await?;
        let dialect_state = Some(written(&self.state));
        self.append_all(store, TurnUpdate { state, dialect_state, ..update }).await
    }

    /// Takes the additions as an update. The bytes of events become blobs.
    async fn update(&mut self, store: &Store) -> Result<TurnUpdate, Error> {
        let events = &mut self.events;
        let bytes = events.iter_mut().flat_map(TurnEvent::bytes_mut);
        let readers: Vec<_> = bytes.map(|bytes| Cursor::new(Arc::clone(&bytes.bytes))).collect();
        let bytes = readers.iter().map(|reader| FILE_COST + reader.get_ref().len() as u64).sum();
        let room = self.room.split(bytes);
        let blobs = if readers.is_empty() { Vec::new() } else { store.write_blobs(room, readers).await? };
        for (bytes, blob) in events.iter_mut().flat_map(TurnEvent::bytes_mut).zip(&blobs) {
            bytes.blob = Some(blob.name().clone());
        }
        let events = events.iter().map(|event| {
            // Plain data can always be written.
            let text = serde_json::to_string(event).unwrap_or_default();
            TurnEventRecord { sequence: event.sequence, at_ms: event.at_ms, event: text }
        });
        Ok(TurnUpdate { events: events.collect(), blobs, items: self.items.clone(), ..TurnUpdate::default() })
    }

    /// Stores an update with all additions; if that fails, the next call stores them.
    async fn append_all(&mut self, store: &Store, update: TurnUpdate) -> Result<(), Error> {
        self.append(store, update).await?;
        self.output_since = None;
        self.events.clear();
        self.items.clear();
        Ok(())
    }

    async fn append(&self, store: &Store, update: TurnUpdate) -> Result<(), Error> {
        match store.append_turn(&self.lease, update).await? {
            // A deleted request has no owner, and goes on for its followers.
            AppendOutcome::Stored { .. } | AppendOutcome::Gone | AppendOutcome::Ended => Ok(()),
            AppendOutcome::Fenced => Err(Error::internal("another process has taken the turn over")),
        }
    }
}

fn written(state: &DialectState) -> String {
    // Plain data can always be written.
    serde_json::to_string(state).unwrap_or_default()
}

/// An item in its stored form, without the images that programs displayed: the model has seen them.
fn stored_form(item: &Item) -> String {
    let without_images = match item {
        Item::Output(output) if output.parts.iter().any(|part| !matches!(part, Part::Text(_))) => {
            let images = output.parts.iter().filter(|part| !matches!(part, Part::Text(_))).count();
            let text = aludel_agent::text_of(&output.parts);
            Some(Item::output(&output.call_id, format!("{text}\n[{images} images were shown to the user]")))
        }
        _ => None,
    };
    serde_json::to_string(without_images.as_ref().unwrap_or(item)).unwrap_or_default()
}
