//! Recovery of stored requests whose process is gone.
//!
//! A request that waits for the operator's approval goes on from its rows: its spec, its conversation and its events. Every other request
//! is ended with a failure: a program that was started is never started again, since its effects are unknown. A request of a dialect that
//! is not served here, such as the terminal's, is ended without events, and a session that was made only for it is removed.

use std::collections::HashSet;
use std::sync::Arc;

use aludel_agent::upstream::{TokenUsage, ToolChoice};
use aludel_agent::{ApprovalRequest, Item, LEAST_TOKENS};
use aludel_store::{BlobName, SessionId, TurnRecord, TurnState, TurnUpdate, now_ms};
use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use tracing::{Instrument, error, info_span, warn};

use super::event::{EndReason, EventKind, ItemId, TurnEvent};
use super::journal::{DialectState, Journal};
use super::render::{Documents, Render};
use super::run::{PendingApproval, Run, SessionRetention};
use super::{Failure, FailureKind, Frame, InFlightRequest, InFlightRequests, RequestFingerprint, TurnSpec, lease};
use crate::processor_time::end_long_step;
use crate::sessions::SessionChoice;
use crate::{Engine, Error};

/// Requests that are taken over at once.
const MAX_REQUESTS: usize = 100_000;
/// Events of one request that are read at once.
const MAX_EVENTS: usize = 1_000_000;

/// Bytes of images and other blobs of one request that are read at once: twice the limit of its frames.
const MAX_BLOB_BYTES: u64 = 256 << 20;

/// A kind of stored requests, as its dialect restores them.
pub trait StoredRequests: Send + Sync {
    /// Its name in stored requests.
    fn name(&self) -> &'static str;

    /// A renderer and the documents of a stored request, from the dialect's own state, as they were when it began. `None` when its first
    /// document is not there, so that no client knows of it.
    fn restore<'a>(
        &'a self,
        turn: &'a TurnRecord,
        own: &'a RawValue,
    ) -> BoxFuture<'a, Result<Option<RestoredRequest>, Error>>;

    /// Closes documents without a stored request, after all stored requests were taken over. Those of `in_flight` go on.
    fn close_orphans<'a>(&'a self, _in_flight: &'a InFlightRequests) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }
}

/// A stored request's renderer and documents.
pub struct RestoredRequest {
    /// The renderer, which was given no event yet.
    pub render: Box<dyn Render>,
    /// The documents.
    pub documents: Box<dyn Documents>,
}

/// The outcome of a recovery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecoveryOutcome {
    /// Requests that continue.
    pub resumed: usize,
    /// Requests that were ended.
    pub ended: usize,
}

/// Takes over every stored request whose owner is gone: see the module's documentation.
pub async fn recover(engine: &Arc<Engine>, kinds: &[Arc<dyn StoredRequests>]) -> Result<RecoveryOutcome, Error> {
    let mut recovered = RecoveryOutcome::default();
    let (mut resumed, mut failed) = (Vec::new(), None);
    for turn in engine.store.take_over_turns(now_ms(), lease::until(), MAX_REQUESTS).await? {
        let id = turn.id.clone();
        let own_session = own_session(&turn);
        let (tenant, lease) = (turn.tenant.clone(), turn.lease());
        let restored = match kinds.iter().find(|kind| kind.name() == turn.dialect) {
            Some(kind) => resume_or_end(engine, kind.as_ref(), turn).await,
            // It belongs to a process that rendered it only to its own user, such as a terminal's.
            None => Ok(None),
        };
        let restored = restored.unwrap_or_else(|error| {
            // The others are recovered all the same.
            error!("{id} cannot be restored, and ends: {error}");
            None
        });
        let outcome = match restored {
            Some(outcome) => outcome,
            None => {
                // The others are recovered all the same.
                if let Err(error) = engine.store.end_turn(&lease).await {
                    error!("{id} cannot be ended: {error}");
                    failed.get_or_insert(error);
                }
                ResumeOutcome::Ended
            }
        };
        match outcome {
            ResumeOutcome::Resumed => {
                recovered.resumed += 1;
                resumed.push(id.to_string());
            }
            ResumeOutcome::Ended => {
                recovered.ended += 1;
                if let Some(session) = own_session
                    && let Err(error) = engine.sessions.delete(&tenant, &session).await
                {
                    // The session will expire.
                    error!("cannot remove the session of {id}: {error}");
                }
            }
        }
    }
    engine.store.expire_approvals_except(resumed).await?;
    for kind in kinds {
        kind.close_orphans(&engine.in_flight).await?;
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(recovered),
    }
}

/// The frames of a stored request after the one of this number, or all of them, rendered again.
pub async fn replay(
    engine: &Engine,
    kind: &dyn StoredRequests,
    turn: &TurnRecord,
    after: Option<u64>,
) -> Result<Vec<Frame>, Error> {
    let state: DialectState = serde_json::from_str(&turn.dialect_state).map_err(Error::internal)?;
    let Some(mut restored) = kind.restore(turn, &state.own).await? else { return Ok(Vec::new()) };
    let (events, mut frames) = (events(engine, turn).await?, Vec::new());
    for event in events {
        end_long_step().await;
        let rendered = restored.render.render(&event).frames;
        frames.extend(rendered.into_iter().filter(|frame| after.is_none_or(|after| frame.sequence > after)));
    }
    Ok(frames)
}

/// The session that was made for a request and for nothing else.
fn own_session(turn: &TurnRecord) -> Option<SessionId> {
    let state: DialectState = serde_json::from_str(&turn.dialect_state).ok()?;
    turn.session.as_deref().filter(|_| state.owns_session).and_then(SessionId::parse)
}

enum ResumeOutcome {
    Resumed,
    Ended,
}

/// Continues or ends a request. `None` if no client knows of it.
async fn resume_or_end(
    engine: &Arc<Engine>,
    kind: &dyn StoredRequests,
    turn: TurnRecord,
) -> Result<Option<ResumeOutcome>, Error> {
    let state: DialectState = serde_json::from_str(&turn.dialect_state).map_err(Error::internal)?;
    let Some(RestoredRequest { mut render, documents }) = kind.restore(&turn, &state.own).await? else {
        return Ok(None);
    };
    let events = events(engine, &turn).await?;
    let frames: Vec<Frame> = events.iter().flat_map(|event| render.render(event).frames).collect();
    if events.iter().any(|event| matches!(event.kind, EventKind::Closed)) {
        // It has ended, and its document could not be stored.
        let changes = documents.finish(render.document())?;
        let ended = TurnUpdate { state: Some(TurnState::Ended), changes, ..TurnUpdate::default() };
        let _appended = engine.store.append_turn(&turn.lease(), ended).await?;
        return Ok(Some(ResumeOutcome::Ended));
    }
    let in_flight = engine.in_flight.begin(&turn.tenant, RequestFingerprint::none(), turn.id.clone());
    let Ok(in_flight) = in_flight else { return Err(Error::internal(format!("{} goes on already", turn.id))) };
    in_flight.publish(frames);
    let next_frame = state.reserved_frames;
    let journal = Journal::of(&engine.store, turn.lease(), turn.next_sequence, true, state);
    let mut run = Run::new(engine, &turn.tenant, Arc::clone(&in_flight), Vec::new(), render);
    (run.documents, run.journal) = (Some(documents), Some(journal));
    run.resume(next_frame).await;
    if turn.state == TurnState::WaitingApproval {
        // It has no request whose span could contain it; this span shows operators that it works again.
        let span = info_span!("go on after a restart");
        match waiting(engine, &turn, &events, &in_flight).instrument(span.clone()).await {
            Ok((plan, waiting)) => {
                run.choices.push(plan);
                run.survives_restart = true;
                let span = info_span!(parent: &span, "answer", api = kind.name(), id = %turn.id);
                engine.tasks.spawn(run.run_from_approval(Some(waiting)).instrument(span));
                return Ok(Some(ResumeOutcome::Resumed));
            }
            Err(error) => error!("{} cannot go on: {error}", turn.id),
        }
    }
    run.fail(Failure::new(FailureKind::Internal, "The server was stopped before the response was done.")).await;
    engine.in_flight.forget(&turn.id);
    Ok(Some(ResumeOutcome::Ended))
}

/// The turn of a request that waits for approval, and the waiting program.
async fn waiting(
    engine: &Arc<Engine>,
    turn: &TurnRecord,
    events: &[TurnEvent],
    in_flight: &InFlightRequest,
) -> Result<(super::ChoicePlan, PendingApproval), Error> {
    let broken = |what: &str| Error::internal(format!("its stored state is not whole: {what}"));
    let mut spec = TurnSpec::read(&turn.spec).ok_or_else(|| broken("its spec"))?;
    let (item, call_id, code) = open_call(events).ok_or_else(|| broken("its program"))?;
    let session = turn.session.as_deref().and_then(SessionId::parse).ok_or_else(|| broken("its session"))?;
    let session = engine.sessions.open(&turn.tenant, SessionChoice::Reuse(session)).await?;
    let request = turn.id.to_string();
    let started = engine.store.programs_started(&turn.tenant, &request).await?;
    // A program is started before the event about its start is stored.
    let asked = engine.store.approval_of_call(&request, &call_id).await?;
    if started > allowed(events) || asked.is_some_and(|asked| asked.started_at.is_some()) {
        return Err(broken("its program was started, and its outcome is not known"));
    }
    if let Some(most) = &mut spec.max_programs {
        *most = most.saturating_sub(started);
    }
    // Its first round is over: what it used is gone, and the tool that it had to call was called.
    spec.tool_choice = ToolChoice::Auto;
    let used = used(events);
    let limits = [(&mut spec.max_input_tokens, used.input), (&mut spec.max_output_tokens, used.output)];
    for (most, used) in limits {
        *most = most.map(|most| most.saturating_sub(used));
    }
    if let Some(most) = &mut spec.sampling.max_output_tokens {
        *most = most.saturating_sub(u32::try_from(used.output).unwrap_or(u32::MAX)).max(LEAST_TOKENS);
    }
    let items = conversation(engine, turn, &call_id).await?;
    let gate = spec.gate(engine, &turn.tenant, in_flight.id.to_string(), &session, true);
    let plan = spec.plan_choice(engine, &turn.tenant, items, Some((session, gate)), SessionRetention::Keep)?;
    let ran_code = events.iter().any(|event| matches!(event.kind, EventKind::ToolRunning { .. }));
    Ok((plan, PendingApproval { item, program: ApprovalRequest { call_id, code }, ran_code }))
}

/// The tokens of all rounds so far.
fn used(events: &[TurnEvent]) -> TokenUsage {
    let mut used = TokenUsage::default();
    for event in events {
        if let EventKind::Usage { usage, .. } = &event.kind {
            used += *usage;
        }
    }
    used
}

/// The conversation up to the waiting call. Other calls of its round are dropped: the model makes them anew.
async fn conversation(engine: &Engine, turn: &TurnRecord, call_id: &str) -> Result<Vec<Item>, Error> {
    let stored = engine.store.turn_items(&turn.tenant, &turn.id).await?;
    let items = stored.iter().map(|item| serde_json::from_str(item)).collect::<Result<Vec<Item>, _>>();
    let mut items = items.map_err(Error::internal)?;
    let answered: Vec<String> = items
        .iter()
        .filter_map(|item| match item {
            Item::Output(output) => Some(output.call_id.clone()),
            _ => None,
        })
        .collect();
    items.retain(|item| match item {
        Item::Call(call) => call.id == call_id || answered.contains(&call.id),
        _ => true,
    });
    Ok(items)
}

/// The last undecided program for which a decision was requested.
fn open_call(events: &[TurnEvent]) -> Option<(ItemId, String, String)> {
    let asked = events.iter().rev().find_map(|event| match &event.kind {
        EventKind::ApprovalRequested { item } => Some(item.clone()),
        _ => None,
    })?;
    let is_decided = events.iter().any(|event| match &event.kind {
        EventKind::ApprovalDecided { item, .. }
        | EventKind::ToolRunning { item }
        | EventKind::ToolRejected { item: Some(item), .. } => *item == asked,
        _ => false,
    });
    let ready = events.iter().rev().find_map(|event| match &event.kind {
        EventKind::ToolReady { item, call_id, input, .. } if *item == asked => Some((call_id.clone(), input.clone())),
        _ => None,
    });
    let (call_id, code) = ready.filter(|_| !is_decided)?;
    Some((asked, call_id, code))
}

/// The number of programs that were allowed to run, according to the log.
fn allowed(events: &[TurnEvent]) -> u32 {
    let allowed = events.iter().filter(|event| matches!(event.kind, EventKind::ApprovalDecided { denied: None, .. }));
    u32::try_from(allowed.count()).unwrap_or(u32::MAX)
}

/// The stored events of a request, with their bytes.
pub(super) async fn events(engine: &Engine, turn: &TurnRecord) -> Result<Vec<TurnEvent>, Error> {
    let stored = engine.store.turn_events(&turn.tenant, &turn.id, None, MAX_EVENTS).await?;
    let events = stored.iter().map(|stored| serde_json::from_str(&stored.event)).collect::<Result<Vec<TurnEvent>, _>>();
    let mut events = events.map_err(Error::internal)?;
    let known: HashSet<BlobName> = engine.store.turn_blobs(&turn.tenant, &turn.id).await?.into_iter().collect();
    let mut left = MAX_BLOB_BYTES;
    for bytes in events.iter_mut().flat_map(TurnEvent::bytes_mut) {
        let Some(blob) = bytes.blob.as_ref().filter(|blob| known.contains(*blob)) else { continue };
        match read(engine, blob, left).await {
            Ok(content) => {
                left = left.saturating_sub(content.len() as u64);
                bytes.bytes = content.into();
            }
            // One damaged file must not keep all requests from being taken over.
            Err(error) => warn!("an image of {} is left out: {error}", turn.id),
        }
    }
    Ok(events)
}

async fn read(engine: &Engine, blob: &BlobName, limit: u64) -> Result<Vec<u8>, Error> {
    engine.store.read_blob(blob).await?.read_whole(limit).await.map_err(Error::internal)
}

impl Run {
    /// Adds [`EventKind::Resumed`], with the number of the next frame.
    async fn resume(&mut self, next_frame: u64) {
        self.emit(0, EventKind::Resumed { next_frame }).await;
    }

    /// Ends a request that cannot continue.
    async fn fail(mut self, failure: Failure) {
        let ended = EventKind::Ended { item: ItemId::new(), ending: EndReason::failed(failure), linked: Vec::new() };
        // Stored together with the last event, so that no later recovery ends it again.
        self.last_frames = self.event(0, ended).await.frames;
        self.close(false).await;
    }
}
