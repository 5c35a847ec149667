//! Executions without a turn: programs that a client sends itself, through the same gate, audit log and permits as those of a model.

mod temporary;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aludel_agent::{ApprovalDecision, ApprovalRequest, ProgramSpan, Runtime};
use aludel_ignore::Ignore;
use aludel_sandbox::{Cell, EventMemory, Execution as SandboxExecution, Finished, Interrupter, LimitHit, Outcome};
use aludel_store::{ApprovalRecord, Tenant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{Instrument as _, error};

use crate::approvals::{Decider, Gate, KernelPrograms, ProgramOrigin};
use crate::arrivals::Arrival;
use crate::permits::{NoRoom, Permit};
use crate::sessions::Session;
use crate::turns::effects::{self, ExecutionPiece};
use crate::turns::{OutputPiece, ToolOutcome};
use crate::{Engine, Error};

pub use temporary::TemporarySession;

/// Bytes of the longest program.
pub const MAX_CODE: usize = 4 << 20;
/// Executions under way at once, of all tenants, including those that wait for a kernel or for approval.
pub(crate) const MAX_EXECUTIONS: usize = 256;
/// Events that may wait for their reader. Beyond that, the execution waits.
const MAX_UNREAD: usize = 64;
/// Output that may wait for its reader, KiB. A single event may exceed it.
const MAX_UNREAD_KIB: u32 = 1024;

/// A program that a client sends.
#[derive(Debug)]
pub struct ClientProgram {
    /// The execution's id, made by the caller and used once: in the audit log and in requests for approval.
    pub id: String,
    /// The tenant whose program it is.
    pub tenant: Tenant,
    /// The name of the client that sends it, for people who decide about it.
    pub sender: String,
    /// The place where it runs.
    pub target: ProgramTarget,
    /// The program.
    pub code: String,
    /// Time after its start when it is interrupted, if the limit of the sandbox is not earlier.
    pub timeout: Option<Duration>,
}

/// The place where a program runs.
#[derive(Clone)]
pub enum ProgramTarget {
    /// A session: what the program makes is stored.
    Session(Arc<Session>),
    /// A kernel whose files are not stored.
    Kernel {
        /// The kernel.
        runtime: Arc<dyn Runtime>,
        /// Its programs.
        kernel_programs: Arc<KernelPrograms>,
    },
}

/// An event of an execution, sent after its effects are stored. [`DirectEvent::Ended`] comes exactly once and last.
#[derive(Debug)]
pub enum DirectEvent {
    /// It waits for the decision about this request.
    ApprovalRequested(ApprovalRecord),
    /// It runs.
    Started,
    /// It prints or displays something.
    Output(OutputPiece),
    /// It ended.
    Ended(DirectEnd),
}

/// The end of an execution.
#[derive(Debug)]
pub enum DirectEnd {
    /// It ran.
    Ran(Box<ToolOutcome>),
    /// It was not allowed to run.
    Denied {
        /// The reason.
        reason: String,
    },
    /// It was cancelled before it ran.
    Cancelled,
    /// It could not run: a fault of the server or the host, or no room.
    Failed(Error),
}

/// An execution under way. Dropping it cancels the program; its end is recorded all the same.
#[derive(Debug)]
pub struct DirectExecution {
    events: mpsc::Receiver<(DirectEvent, OwnedSemaphorePermit)>,
    /// The room of the last event, until the next is asked for.
    room: Option<OwnedSemaphorePermit>,
    cancel: CancellationToken,
    _cancels: DropGuard,
}

impl DirectExecution {
    /// The next event; `None` after [`DirectEvent::Ended`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<DirectEvent> {
        self.room = None;
        let (event, room) = self.events.recv().await?;
        self.room = Some(room);
        Some(event)
    }

    /// A token that interrupts the program. Its end is sent as usual.
    pub fn canceller(&self) -> CancellationToken {
        self.cancel.clone()
    }
}

/// Starts a program. A task runs it once the gate allows it and its kernel is free. Programs of one kernel begin in the order of these
/// calls, except that no program waits for one that a person has to decide about.
pub fn start(engine: &Arc<Engine>, program: ClientProgram) -> Result<DirectExecution, Error> {
    if program.code.len() > MAX_CODE {
        let reason = format!("the program has {} bytes; at most {MAX_CODE} are allowed", program.code.len());
        return Err(Error::Invalid { field: "code", reason });
    }
    let limit = MAX_EXECUTIONS;
    let permit = engine.executions.acquire(&program.tenant).map_err(|no_room| match no_room {
        NoRoom::AtAll => Error::ExecutionsFull { limit },
        NoRoom::ForThisTenant => Error::ExecutionsShared { limit },
    })?;
    let origin = ProgramOrigin {
        request: program.id.clone(),
        kernel_programs: Arc::clone(program.target.kernel_programs()),
        model: program.sender.clone(),
    };
    let arrival = program.target.kernel_programs().arrive();
    let gate = Gate::new(engine, &program.tenant, origin, Decider::Operator, false);
    let (sender, events) = mpsc::channel(MAX_UNREAD);
    let cancel = CancellationToken::new();
    let room = Arc::new(Semaphore::new(MAX_UNREAD_KIB as usize));
    let task = Task { engine: Arc::clone(engine), program, gate, cancel: cancel.clone(), events: sender, room };
    let share = engine.processor_time.share_of(&task.program.tenant);
    engine.tasks.spawn(share.pace(task.run(permit, arrival)).in_current_span());
    Ok(DirectExecution { events, room: None, _cancels: cancel.clone().drop_guard(), cancel })
}

impl ProgramTarget {
    fn kernel_programs(&self) -> &Arc<KernelPrograms> {
        match self {
            Self::Session(session) => session.kernel_programs(),
            Self::Kernel { kernel_programs, .. } => kernel_programs,
        }
    }

    fn runtime(&self) -> &dyn Runtime {
        match self {
            Self::Session(session) => &**session,
            Self::Kernel { runtime, .. } => &**runtime,
        }
    }

    fn session(&self) -> Option<&Session> {
        match self {
            Self::Session(session) => Some(session),
            Self::Kernel { .. } => None,
        }
    }

    async fn execute(&self, code: &str, memory: &EventMemory) -> Result<SandboxExecution, Error> {
        match self {
            Self::Session(session) => session.execute(code).await,
            Self::Kernel { runtime, .. } => {
                let cell = Cell { event_memory: Some(memory), ..Cell::new(code) };
                Ok(runtime.execute(cell).await?)
            }
        }
    }
}

impl std::fmt::Debug for ProgramTarget {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("ProgramTarget").field(self.kernel_programs()).finish()
    }
}

/// The task of one execution.
struct Task {
    engine: Arc<Engine>,
    program: ClientProgram,
    gate: Arc<Gate>,
    cancel: CancellationToken,
    events: mpsc::Sender<(DirectEvent, OwnedSemaphorePermit)>,
    /// Room for events that nobody has read, KiB.
    room: Arc<Semaphore>,
}

impl Task {
    async fn run(self, permit: Permit, arrival: Arrival) {
        let mut carried_out = pin!(self.carry_out(arrival));
        let end = tokio::select! {
            end = &mut carried_out => end,
            () = self.engine.key_ends(&self.program.tenant) => {
                self.cancel.cancel();
                carried_out.await
            }
        };
        let end = end.unwrap_or_else(|end| end);
        if let Err(error) = self.gate.cut_off().await {
            error!("{}: it has no end in the audit log yet: {error}", self.program.id);
            self.engine.tasks.spawn(Arc::clone(&self.gate).cut_off_later().in_current_span());
        }
        drop(permit);
        self.send(DirectEvent::Ended(end)).await;
    }

    async fn carry_out(&self, arrival: Arrival) -> Result<DirectEnd, DirectEnd> {
        let mut arrival = Some(arrival);
        let (id, code) = (&self.program.id, &self.program.code);
        match self.decided(&mut arrival).await? {
            ApprovalDecision::Allow | ApprovalDecision::AllowAll => {}
            ApprovalDecision::Deny { reason } => return Ok(DirectEnd::Denied { reason }),
            ApprovalDecision::Later => return Ok(DirectEnd::Denied { reason: "nobody decided about it".to_owned() }),
        }
        let traced = ProgramSpan::begin(self.program.target.runtime().kernel(), id);
        let span = traced.span().clone();
        let memory = self.engine.sessions.event_memory(&self.program.tenant);
        let begun = async {
            if let Some(arrival) = &arrival {
                arrival.wait().await;
            }
            // The kernel may be busy with another program.
            self.program.target.execute(code, &memory).await
        };
        let execution = tokio::select! {
            biased;
            () = self.stopped() => return Ok(DirectEnd::Cancelled),
            execution = begun.instrument(span.clone()) => execution.map_err(DirectEnd::Failed)?,
        };
        drop(arrival);
        self.send(DirectEvent::Started).await;
        self.watch(execution, traced).instrument(span).await
    }

    /// Asks the gate. If a person has to decide, sends an event and gives up the place in the order.
    async fn decided(&self, arrival: &mut Option<Arrival>) -> Result<ApprovalDecision, DirectEnd> {
        let request = ApprovalRequest { call_id: self.program.id.clone(), code: self.program.code.clone() };
        let mut pending = self.gate.pending_approval.subscribe();
        let mut deciding = pin!(self.gate.decide(&request));
        loop {
            tokio::select! {
                biased;
                () = self.stopped() => return Err(DirectEnd::Cancelled),
                decision = &mut deciding => return decision.map_err(DirectEnd::Failed),
                Ok(()) = pending.changed() => {
                    let record = pending.borrow_and_update().clone();
                    if let Some(record) = record {
                        *arrival = None;
                        self.send(DirectEvent::ApprovalRequested(record)).await;
                    }
                }
            }
        }
    }

    /// Sends the program's events up to its end, and interrupts it at its time limit.
    async fn watch(&self, mut execution: SandboxExecution, mut traced: ProgramSpan) -> Result<DirectEnd, DirectEnd> {
        let session = self.program.target.session();
        let mut stop = Stop {
            interrupter: execution.interrupter(),
            deadline: self.program.timeout.map(|timeout| (Instant::now() + timeout, timeout)),
            is_stopped: false,
            overran: None,
        };
        let (mut figures, mut failure) = (Vec::new(), None);
        loop {
            let event = async {
                // While its events wait for their reader, the next stays where it is.
                drop(self.room.acquire_many(MAX_UNREAD_KIB / 2).await);
                execution.next().await
            };
            let event = self.interruptible(event, &mut stop).await;
            let Some(event) = event else {
                return Err(DirectEnd::Failed(Error::internal("an execution ended without an end")));
            };
            traced.record(&self.program.code, &event);
            let files = effects::FileTarget { session, publish_as: None };
            match effects::piece(event, files, &mut figures).await {
                Ok(ExecutionPiece::Output(output)) => {
                    self.interruptible(self.send(DirectEvent::Output(output)), &mut stop).await;
                }
                // No tools were given to it.
                Ok(ExecutionPiece::Calls(_)) => execution.answer(Vec::new()),
                Ok(ExecutionPiece::Finished(mut finished)) => {
                    timed_out(&mut finished, stop.overran);
                    let noted = self.gate.ended(&self.program.id, &finished).await;
                    let (outcome, stored) = effects::store(finished, files, figures).await;
                    noted.and(stored).map_err(DirectEnd::Failed)?;
                    return Ok(failure.map_or_else(|| DirectEnd::Ran(Box::new(outcome)), DirectEnd::Failed));
                }
                // Its output cannot be stored; the program ends first.
                Err(error) => {
                    stop.now();
                    failure.get_or_insert(error);
                }
            }
        }
    }

    /// Awaits a future, and interrupts the program meanwhile if it is cancelled or its time is up.
    async fn interruptible<T>(&self, future: impl Future<Output = T>, stop: &mut Stop) -> T {
        let mut future = pin!(future);
        loop {
            tokio::select! {
                biased;
                // First, because a program that never pauses always has an event.
                () = self.stopped(), if !stop.is_stopped => stop.now(),
                limit = expired(stop.deadline), if !stop.is_stopped => {
                    stop.overran = Some(limit);
                    stop.now();
                }
                done = &mut future => return done,
            }
        }
    }

    /// Waits until the program is cancelled or the engine closes.
    async fn stopped(&self) {
        tokio::select! {
            () = self.cancel.cancelled() => {}
            () = self.engine.shutdown.cancelled() => {}
        }
    }

    async fn send(&self, event: DirectEvent) {
        let bytes = if let DirectEvent::Output(output) = &event { output.memory() } else { 0 };
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).min(MAX_UNREAD_KIB);
        let sent = async {
            // It is never closed.
            let Ok(room) = Arc::clone(&self.room).acquire_many_owned(kib).await else { return };
            self.events.send((event, room)).await.ignore("the reader has gone");
        };
        tokio::select! {
            () = sent => {}
            () = self.events.closed() => {}
        }
    }
}

/// The means and reasons to interrupt a program.
struct Stop {
    interrupter: Interrupter,
    deadline: Option<(Instant, Duration)>,
    is_stopped: bool,
    /// The client's limit that it hit.
    overran: Option<Duration>,
}

impl Stop {
    fn now(&mut self) {
        self.is_stopped = true;
        self.interrupter.interrupt();
    }
}

/// Waits for a deadline. Returns the limit that it stands for.
async fn expired(deadline: Option<(Instant, Duration)>) -> Duration {
    match deadline {
        Some((at, limit)) => {
            sleep_until(at).await;
            limit
        }
        None => std::future::pending().await,
    }
}

/// Sets the limit that a program hit if its client's timeout interrupted it.
fn timed_out(finished: &mut Finished, overran: Option<Duration>) {
    if let (Outcome::Interrupted, Some(limit)) = (&finished.outcome, overran) {
        finished.outcome = Outcome::Limit(LimitHit::WallClock { limit });
    }
}

#[cfg(test)]
mod tests;
