//! Turns whose program waits for the answers of its client's tools: kept from the request that ends with the calls until the one with the
//! answers.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aludel_sandbox::ClientAnswer;
use aludel_store::{MeteredWork, SessionId, Tenant, TurnId};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument as _;

use super::agent_events::{ChoiceProgress, PendingClientCalls};
use super::{Agents, ChoicePlan, Run, SessionRetention};
use crate::Engine;
use crate::permits::{Permit, Permits};
use crate::turns::event::{EndReason, EventKind, ItemId, ToolCall, TurnEvent};
use crate::turns::in_flight::HeldResource;
use crate::turns::render::{Render, RenderedEvent};
use crate::turns::{Failure, RequestFingerprint};

/// Turns that wait at once, of all tenants. Beyond that, calls fail.
const MAX_WAITING: usize = 256;
/// Programs that are remembered after their calls were answered, so that no call is answered twice.
const MAX_ANSWERED: usize = 4096;
const ANSWERED_LIFE: Duration = Duration::from_secs(3600);

/// The turns that wait, by the items of their programs.
#[derive(Debug)]
pub struct Suspensions {
    entries: Mutex<HashMap<ItemId, Entry>>,
    permits: Arc<Permits>,
}

#[derive(Debug)]
enum Entry {
    Waiting(Box<Suspension>),
    /// Its calls were answered.
    Answered {
        tenant: Tenant,
        at: Instant,
    },
}

/// A turn that waits.
pub struct Suspension {
    tenant: Tenant,
    plan: ChoicePlan,
    progress: ChoiceProgress,
    waits: SuspendedWork,
    /// Memory that it takes.
    held: Vec<HeldResource>,
    _ends: DropGuard,
}

/// The work that waits, with its calls.
pub(super) struct SuspendedWork {
    agents: Agents,
    /// The call of the program, by the id of the model's server.
    call_id: String,
    program: ItemId,
    calls: Vec<ToolCall>,
    _permit: Permit,
}

/// The result of [`Suspensions::take`].
#[derive(Debug)]
pub enum TakenSuspension {
    /// The turn, which no longer waits.
    Waiting(Box<Suspension>),
    /// Its calls already have answers.
    Answered,
    /// There is none: its time was over, or its process has ended.
    Lost,
}

impl Default for Suspensions {
    fn default() -> Self {
        Self { entries: Mutex::default(), permits: Permits::new(MAX_WAITING, MAX_WAITING) }
    }
}

impl Suspensions {
    /// Takes the turn whose program has this id; later answers are refused. If `check` refuses it, it keeps waiting.
    pub fn take<E>(
        &self,
        tenant: &Tenant,
        program: &ItemId,
        check: impl FnOnce(&Suspension) -> Result<(), E>,
    ) -> Result<TakenSuspension, E> {
        let mut entries = self.entries.lock();
        match entries.get(program) {
            Some(Entry::Waiting(waiting)) if waiting.tenant == *tenant => check(waiting)?,
            Some(Entry::Answered { tenant: owner, .. }) if owner == tenant => return Ok(TakenSuspension::Answered),
            Some(_) | None => return Ok(TakenSuspension::Lost),
        }
        entries.retain(|_, entry| !matches!(entry, Entry::Answered { at, .. } if at.elapsed() > ANSWERED_LIFE));
        if entries.len() >= MAX_ANSWERED {
            let age = |(id, entry): (&ItemId, &Entry)| match entry {
                Entry::Answered { at, .. } => Some((*at, id.clone())),
                Entry::Waiting(_) => None,
            };
            if let Some((_, oldest)) = entries.iter().filter_map(age).min_by_key(|(at, _)| *at) {
                entries.remove(&oldest);
            }
        }
        let answered = Entry::Answered { tenant: tenant.clone(), at: Instant::now() };
        match entries.insert(program.clone(), answered) {
            Some(Entry::Waiting(waiting)) => Ok(TakenSuspension::Waiting(waiting)),
            _ => Ok(TakenSuspension::Lost),
        }
    }

    /// Forgets a program whose calls were answered.
    fn forget(&self, program: &ItemId) {
        let mut entries = self.entries.lock();
        if matches!(entries.get(program), Some(Entry::Answered { .. })) {
            entries.remove(program);
        }
    }

    /// Returns the number of turns that wait.
    pub fn waiting(&self) -> usize {
        self.permits.in_use()
    }

    /// Takes a turn whose time is over.
    fn expire(&self, program: &ItemId) -> Option<Box<Suspension>> {
        let mut entries = self.entries.lock();
        if !matches!(entries.get(program), Some(Entry::Waiting(_))) {
            return None;
        }
        match entries.remove(program) {
            Some(Entry::Waiting(waiting)) => Some(waiting),
            _ => None,
        }
    }
}

impl Suspension {
    /// The calls whose answers it waits for.
    pub fn calls(&self) -> &[ToolCall] {
        &self.waits.calls
    }

    /// The program that waits.
    pub fn code(&self) -> &str {
        self.progress.calls.get(&self.waits.call_id).map_or("", |running| &running.input)
    }

    /// The name of the model.
    pub fn model(&self) -> &str {
        &self.plan.model
    }

    /// The session of its programs.
    pub fn session(&self) -> Option<&SessionId> {
        self.plan.session.as_ref().map(|session| session.id())
    }

    /// Ends a turn whose program got no answers. Its end is recorded, and its files are stored.
    async fn give_up(self, engine: Arc<Engine>) {
        let (tenant, id) = (self.tenant.clone(), TurnId::new());
        let Ok(in_flight) = engine.in_flight.begin(&tenant, RequestFingerprint::none(), id.clone()) else { return };
        in_flight.cancel.cancel();
        let run = Run::new(&engine, &tenant, in_flight, Vec::new(), Box::new(SilentRenderer));
        run.resume_suspended(self, None).await;
        engine.in_flight.forget(&id);
    }
}

impl fmt::Debug for Suspension {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Suspension").field("calls", &self.waits.calls).finish_non_exhaustive()
    }
}

impl Run {
    /// Ends the turn for its client, which has to answer its program's calls. If the turn cannot wait, for lack of room or of a way to
    /// bring the answers, the calls fail and it goes on.
    pub(super) async fn wait_for_client(
        &mut self,
        choice: usize,
        asked: PendingClientCalls,
        agents: Agents,
        progress: &mut [ChoiceProgress],
    ) -> Result<SuspendedWork, Agents> {
        let PendingClientCalls { call_id, calls } = asked;
        let running = progress.get(choice).and_then(|progress| progress.calls.get(&call_id));
        let program = running.map(|running| running.item.clone());
        let may_wait = self.choices.len() == 1 && self.journal.is_none();
        let permit = self.engine.suspended.permits.acquire(&self.tenant).ok().filter(|_| may_wait);
        let (Some(program), Some(permit)) = (program, permit) else {
            let words = "Too many programs wait for answers at the moment; call it again later.";
            if let Some(handles) = agents.handles.get(choice) {
                handles.answerer.answer(calls.iter().map(|_| ClientAnswer::error(words)).collect());
            }
            return Err(agents);
        };
        let call = |call: aludel_sandbox::ClientCall| {
            let item = ItemId::new();
            let (call_id, caller) = (item.with_prefix(""), Some(program.clone()));
            ToolCall { item, call_id, name: call.name, arguments: call.arguments, caller }
        };
        let calls: Vec<ToolCall> = calls.into_iter().map(call).collect();
        let ending = EndReason::WaitsForClient { programs: Vec::new(), calls: calls.clone() };
        self.end_choice(choice, ending, progress).await;
        Ok(SuspendedWork { agents, call_id, program, calls, _permit: permit })
    }

    /// Keeps the turn until its client answers, its time is over, its session is deleted, or the process ends.
    pub(super) fn suspend(&mut self, waits: SuspendedWork, progress: &mut Vec<ChoiceProgress>) {
        let (Some(mut plan), Some(progress)) = (self.choices.pop(), progress.pop()) else { return };
        // The client knows of it by now.
        plan.retention = SessionRetention::Keep;
        let (ends, program) = (CancellationToken::new(), waits.program.clone());
        let deleted = plan.session.as_ref().map(|session| session.deleted().clone()).unwrap_or_default();
        let suspension = Suspension {
            tenant: self.tenant.clone(),
            plan,
            progress,
            waits,
            held: self.in_flight.take_held(),
            _ends: ends.clone().drop_guard(),
        };
        self.engine.suspended.entries.lock().insert(program.clone(), Entry::Waiting(Box::new(suspension)));
        let engine = Arc::clone(&self.engine);
        let watch = async move {
            tokio::select! {
                () = ends.cancelled() => return,
                () = sleep(engine.settings.answers) => {}
                () = deleted.cancelled() => {}
                () = engine.shutdown.cancelled() => {}
            }
            if let Some(suspension) = engine.suspended.expire(&program) {
                suspension.give_up(engine).await;
            }
        };
        self.engine.tasks.spawn(watch.in_current_span());
    }

    /// Runs a waiting turn to its end, with the answers to its calls.
    pub async fn go_on(self, suspension: Box<Suspension>, answers: Vec<ClientAnswer>) {
        let share = self.engine.processor_time.share_of(&self.tenant);
        share.pace(self.resume_suspended(*suspension, Some(answers))).await;
    }

    async fn resume_suspended(mut self, suspension: Suspension, answers: Option<Vec<ClientAnswer>>) {
        let Suspension { plan, mut progress, waits, held, tenant: _, _ends: ends } = suspension;
        let SuspendedWork { agents, program, _permit: permit, .. } = waits;
        drop((ends, permit));
        held.into_iter().for_each(|held| self.in_flight.hold(held));
        self.choices = vec![plan];
        progress.has_ended = false;
        if let Some(answers) = answers {
            self.count(0, MeteredWork { requests: 1, ..MeteredWork::default() });
            self.emit(0, EventKind::Started).await;
            // Other programs of the same round have begun too, and run after it.
            for running in progress.calls.values() {
                let (item, tool, output) = (running.item.clone(), running.tool, running.output.clone());
                self.emit(0, EventKind::ToolResumed { item, tool, output }).await;
            }
            agents.handles.iter().for_each(|handles| handles.answerer.answer(answers.clone()));
        }
        let mut progress = vec![progress];
        let outcome = self.drive_agents(agents, &mut progress).await;
        if self.render.failure().is_some() || self.in_flight.cancel.is_cancelled() {
            // Its client received no result for its answers, and may send them again: the program is lost.
            self.engine.suspended.forget(&program);
        }
        self.finish(outcome, progress).await;
    }
}

/// The renderer of a turn without clients.
struct SilentRenderer;

impl Render for SilentRenderer {
    fn render(&mut self, _event: &TurnEvent) -> RenderedEvent {
        RenderedEvent::default()
    }

    fn document(&self) -> Box<RawValue> {
        Box::default()
    }

    fn failure(&self) -> Option<Failure> {
        None
    }
}

#[cfg(test)]
mod tests;
