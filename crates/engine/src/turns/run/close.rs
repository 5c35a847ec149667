//! The end of a request: stored first, then published.

use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_store::TurnState;
use serde_json::value::RawValue;
use tokio::time::sleep;
use tracing::{Instrument as _, error};

use super::Run;
use crate::processor_time::end_long_step;
use crate::turns::event::EventKind;
use crate::turns::render::Documents;

use crate::turns::{Failure, FailureKind, RequestEnd};

/// Pause between two attempts to store a request's end.
const STORE_RETRY_PAUSE: Duration = Duration::from_secs(5);

impl Run {
    /// Ends the request: everything is stored before its last frames are published.
    pub(in crate::turns) async fn close(mut self, ran_code: bool) {
        self.publish_if_followed().await;
        let mut frames = std::mem::take(&mut self.pending).frames;
        frames.append(&mut self.last_frames);
        frames.extend(self.event(0, EventKind::Closed).await.frames);
        end_long_step().await;
        let (document, answer) = (self.render.document(), self.render.answer());
        end_long_step().await;
        let stored = self.store_end(&document).await;
        let unstored = stored.as_ref().is_err_and(may_pass).then(|| document.clone());
        let failure = self.render.failure();
        // Only a client that saw no program may repeat the request.
        let failure = failure.map(|failure| Failure { should_retry: ran_code.then_some(false), ..failure });
        self.in_flight.publish(frames);
        let end = RequestEnd { answer, failure };
        if self.journal.is_some() && stored.is_ok() {
            return self.engine.in_flight.end_stored(&self.in_flight, end);
        }
        self.engine.in_flight.end(&self.in_flight, end, ran_code);
        if let Err(failure) = stored {
            error!("{}: {}", self.in_flight.id, failure.cause.as_deref().unwrap_or(&failure.message));
        }
        if let Some(document) = unstored {
            let tasks = self.engine.tasks.clone();
            tasks.spawn(self.store_end_later(document).in_current_span());
        }
    }

    /// Stores the end: the last events, the document, and the state, all or nothing.
    pub(super) async fn store_end(&mut self, document: &RawValue) -> Result<(), Failure> {
        let finish = |documents: &dyn Documents| documents.finish(document.to_owned());
        let stored = match self.documents.as_deref().map_or_else(|| Ok(Vec::new()), finish) {
            Ok(changes) => self.store_with_events(Some(TurnState::Ended), changes).await,
            Err(error) => Err(error.into()),
        };
        if stored.is_err() {
            self.store_events(None).await.ignore("the next start completes the document");
        }
        stored
    }

    /// Retries to store the end until that succeeds: clients that poll for the request wait for it.
    pub(super) async fn store_end_later(mut self, document: Box<RawValue>) {
        // Nobody needs its sessions any more.
        self.choices.clear();
        loop {
            tokio::select! {
                () = sleep(STORE_RETRY_PAUSE) => {}
                // The next start ends it.
                () = self.engine.shutdown.cancelled() => return,
            }
            if !self.store_end(&document).await.as_ref().is_err_and(may_pass) {
                return;
            }
        }
    }

    /// Leaves a request that waits for approval to the next start.
    pub(super) async fn leave_for_restart(mut self) {
        if let Some(journal) = &mut self.journal
            && let Err(failure) = journal.hand_on(&self.engine.store, None).await
        {
            error!("{}: {failure}", self.in_flight.id);
        }
        let id = &self.in_flight.id;
        let message = format!(
            "The server is ending, and a program of {id} waits for approval; it goes on when the server is back: retrieve {id} then."
        );
        // A repetition would be a different request.
        let failure = Failure { should_retry: Some(false), ..Failure::new(FailureKind::Unavailable, message) };
        self.in_flight.end(RequestEnd { answer: self.render.answer(), failure: Some(failure) });
    }
}

/// Returns true if storing may succeed later.
fn may_pass(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::DiskFull | FailureKind::Storage | FailureKind::StorageFull)
}
