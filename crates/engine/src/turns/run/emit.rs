//! Events on their way to the client and to the log.

use std::future::pending;
use std::time::Duration;

use aludel_agent::Item;
use aludel_store::{QuotaCheck, RowChange, TurnState, now_ms};
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep_until};
use tracing::error;

use super::Run;
use crate::Error;
use crate::processor_time::end_long_step;
use crate::turns::Failure;
use crate::turns::event::{EventKind, TurnEvent};
use crate::turns::journal::Journal;
use crate::turns::render::{Documents, Flow, Frame, RenderedEvent};

/// Frames that are published together.
const MAX_PENDING_FRAMES: usize = 64;
/// Bytes of frames that are published together, not counting the last one. Until then they are not counted for a tenant.
const MAX_PENDING_BYTES: usize = 256 << 10;
/// Delay after which the events of a request without followers are stored.
const MAX_STORE_DELAY: Duration = Duration::from_millis(50);

/// Rendered frames that wait to be published together.
#[derive(Default)]
pub(super) struct PendingFrames {
    pub(super) frames: Vec<Frame>,
    /// Documents to store before them.
    pub(super) saved: Vec<Box<RawValue>>,
    /// True if their events are stored before they are published.
    pub(super) has_milestone: bool,
    /// Arrival of the first of them.
    since: Option<Instant>,
}

impl PendingFrames {
    /// Completes at once if clients follow, after `MAX_STORE_DELAY` if not, and never if nothing is pending.
    pub(super) fn due(&self, is_followed: bool) -> impl Future<Output = ()> + use<> {
        let is_empty = self.frames.is_empty() && !self.has_milestone;
        let delay = self.since.filter(|_| !is_followed).map(|since| sleep_until(since + MAX_STORE_DELAY));
        async move {
            match delay {
                _ if is_empty => pending().await,
                Some(delay) => delay.await,
                None => {}
            }
        }
    }
}

impl Run {
    /// Makes and renders an event, and publishes it.
    pub(in crate::turns) async fn emit(&mut self, choice: usize, kind: EventKind) -> Flow {
        let flow = self.queue(choice, kind).await;
        self.publish_if_followed().await;
        flow
    }

    /// Publishes the pending frames, if there are followers. Otherwise they wait for those of the next moment.
    pub(super) async fn publish_if_followed(&mut self) {
        if self.is_followed {
            self.publish().await;
        }
    }

    /// Makes and renders an event. [`Run::publish`] publishes its frames together with others of the same moment.
    pub(super) async fn queue(&mut self, choice: usize, kind: EventKind) -> Flow {
        self.pending.has_milestone |= !kind.is_piece();
        self.pending.since.get_or_insert_with(Instant::now);
        let rendered = self.event(choice, kind).await;
        self.pending.frames.extend(rendered.frames);
        self.pending.saved.extend(rendered.save);
        let bytes: usize = self.pending.frames.iter().map(|frame| frame.text.len()).sum();
        if self.pending.frames.len() >= MAX_PENDING_FRAMES || bytes >= MAX_PENDING_BYTES {
            self.publish().await;
        }
        rendered.flow
    }

    /// Publishes the pending frames. If a milestone is among them, their events are stored first.
    pub(super) async fn publish(&mut self) {
        let PendingFrames { frames, saved, has_milestone, .. } = std::mem::take(&mut self.pending);
        let mut changes = Vec::new();
        for document in saved {
            match self.documents.as_ref().map_or_else(|| Ok(Vec::new()), |documents| documents.save(document)) {
                Ok(more) => changes.extend(more),
                // All of them are stored again at the end.
                Err(error) => error!("{}: {error}", self.in_flight.id),
            }
        }
        if (has_milestone || !changes.is_empty())
            && let Err(failure) = self.store_with_events(None, changes).await
        {
            error!("{}: {}", self.in_flight.id, failure.cause.as_deref().unwrap_or(&failure.message));
        }
        self.in_flight.publish(frames);
    }

    /// Makes and renders an event, which [`Run::store_events`] stores with others. Without room there is no event and the request is
    /// cancelled.
    pub(in crate::turns) async fn event(&mut self, choice: usize, kind: EventKind) -> RenderedEvent {
        end_long_step().await;
        let sequence = self.journal.as_ref().map_or(self.next, Journal::next);
        let event = TurnEvent { sequence, at_ms: now_ms(), choice, kind };
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.push(&self.engine.store, &event).await
        {
            self.in_flight.cancel.cancel();
            self.unstored.get_or_insert_with(|| error.into());
            return RenderedEvent::default();
        }
        self.next = sequence + 1;
        end_long_step().await;
        let rendered = self.render.render(&event);
        if let Some(journal) = &mut self.journal
            && let Some(last) = rendered.frames.last()
            && let Err(failure) = journal.reserve(&self.engine.store, last).await
        {
            error!("{}: {failure}", self.in_flight.id);
        }
        rendered
    }

    pub(super) fn record(&mut self, item: &Item) {
        if let Some(journal) = &mut self.journal {
            journal.push_item(item);
        }
    }

    pub(super) async fn store_events(&mut self, state: Option<TurnState>) -> Result<(), Failure> {
        self.store_with_events(state, Vec::new()).await
    }

    /// Stores the events and these changes, all or nothing.
    pub(super) async fn store_with_events(
        &mut self,
        state: Option<TurnState>,
        changes: Vec<RowChange>,
    ) -> Result<(), Failure> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let Err(error) = journal.flush(&self.engine.store, state, changes).await else { return Ok(()) };
        self.in_flight.cancel.cancel();
        let failure = Failure::while_doing("cannot store what happened")(error);
        self.unstored.get_or_insert_with(|| failure.clone());
        Err(failure)
    }

    /// Completes when output of a program has waited long enough to be stored; never if none waits.
    pub(super) fn output_due(&self) -> impl Future<Output = ()> + use<> {
        let due = self.journal.as_ref().map(Journal::output_due);
        async move {
            match due {
                Some(due) => due.await,
                None => pending().await,
            }
        }
    }

    /// Stores that it waits for approval. No event follows until the decision, so another process can continue without a gap.
    pub(super) async fn store_waiting(&mut self) -> Result<(), Failure> {
        match &mut self.journal {
            Some(journal) => Ok(journal.hand_on(&self.engine.store, Some(TurnState::WaitingApproval)).await?),
            None => Ok(()),
        }
    }

    /// Stores the document as it stands.
    pub(super) async fn save(&self) -> Result<(), Failure> {
        self.change_document(|documents, document| documents.save(document)).await
    }

    /// Stores the document at the beginning.
    pub(super) async fn begin_document(&self) -> Result<(), Failure> {
        self.change_document(|documents, document| documents.begin(document)).await
    }

    async fn change_document(
        &self,
        changes: impl FnOnce(&dyn Documents, Box<RawValue>) -> Result<Vec<RowChange>, Error>,
    ) -> Result<(), Failure> {
        let Some(documents) = &self.documents else { return Ok(()) };
        end_long_step().await;
        let changes = changes(&**documents, self.render.document())?;
        self.engine.store.apply_changes(&self.tenant, changes, QuotaCheck::Checked).await.map_err(Error::from)?;
        Ok(())
    }
}

impl EventKind {
    /// Returns true for a piece of a text or an output, which is published at once and stored with the next milestone, output soon.
    fn is_piece(&self) -> bool {
        matches!(
            self,
            Self::Text { .. }
                | Self::Reasoning { .. }
                | Self::ToolInput { .. }
                | Self::Output { .. }
                | Self::Observed { .. }
                | Self::Usage { .. }
        )
    }
}
