//! One execution on a kernel, from its first byte to its outcome: its limits, its output, and the calls of its client's tools.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aludel_ignore::Ignore;
use futures_util::future::join;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::long_frame::{LongFrame, passed};
use super::{DrivenKernel, Driver, KILL_TIMEOUT, KernelFlags, KernelState, SEND_TIMEOUT, most_entries, wait_for_exit};
use crate::event_memory::HeldMemory;
use crate::event_queue::EventSender;
use crate::frame::{FromKernel, ToKernel};
use crate::link::{KernelExit, Link, LinkControl, LinkInput, OutputStream, Signal};
use crate::outcome::{
    ClientAnswer, ClientCall, ExecutionEvent, Finished, KernelDeath, LimitHit, MimeBundle, MimeData, Outcome,
    ProgramError, VariablesState,
};
use crate::output::{BoundedOutput, rest, text_cost};
use crate::process::ExitStatus;
use crate::workspace::{Snapshot, WorkspaceUsage};
use crate::{Error, EventMemory, Limits, Workspace};

/// The most that one execution may display, bytes of all bundles together.
const MAX_DISPLAYED: usize = 64 << 20;
/// The most that a kernel may send during one execution, bytes; far more than the kernel program sends.
const MAX_RECEIVED: usize = 1 << 30;
/// Bytes that each frame counts in addition to its length: reading the smallest frame takes longer than writing it.
const FRAME_COST: usize = 8 << 10;
/// The most bundles that one execution may display.
const MAX_DISPLAYS: usize = 500;
/// A workspace with fewer bytes left counts as full: less than one large write.
const FULL_BYTES: u64 = 1 << 20;
/// Percent of a sandbox's own memory limit that must have been in use to blame this limit and not one above it. It is below 100 because a
/// large page may not have fitted.
const OWN_LIMIT_PERCENT: u64 = 90;
/// The text of `ENOSPC`, which every library's message contains.
const NO_SPACE: &str = "No space left on device";
/// The text of `EPERM`, which every library's message contains.
const NOT_PERMITTED: &str = "Operation not permitted";
/// The note in place of a long display of a program that was to end, for which there was no memory.
const NO_MEMORY: &str = "[a long display is left out: the client had not read the ones before]";
/// Time that a kernel has to accept the answer to a display, for which it waits; deadlines wait for it.
const SHOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest wait for output that is there when an execution ends.
const LATE_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two looks at processor time where it is limited.
const CPU_INTERVAL: Duration = Duration::from_millis(200);
/// Time for an answer about it.
const USAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Calls of the client's tools in one execution.
const MAX_CALLS: usize = 1000;
/// Bytes of the answers to calls that were made at once.
const MAX_ANSWERS: usize = 4 << 20;

/// The reason for which we end a program before its own end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Caller,
    WallClock,
    CpuTime,
}

/// A program that we are ending.
struct Termination {
    cause: Cause,
    /// Time to interrupt again: the first signal may have come before the cell began.
    again_at: Option<Instant>,
    /// When to kill the kernel.
    kill_at: Instant,
}

impl Termination {
    fn put_off(&mut self, by: Duration) {
        self.kill_at += by;
        self.again_at = self.again_at.map(|at| at + by);
    }
}

/// Calls of the client's tools for which the program waits.
struct PendingCalls {
    /// The number to answer.
    number: u64,
    /// Number of the calls.
    count: usize,
    since: Instant,
}

/// The answer to a frame of a kernel that waits for one.
enum FrameReply {
    Shown(u64),
    Answers(u64, Vec<ClientAnswer>),
}

/// One execution, from its first byte to its outcome.
pub(super) struct CellRun<C> {
    control: Arc<C>,
    flags: Arc<KernelFlags>,
    /// Zero where it is not counted.
    cpu_before: Duration,
    workspace: Arc<dyn Workspace>,
    limits: Limits,
    events: EventSender,
    long_frame: LongFrame,
    /// Memory of the event that a frame becomes.
    held: Option<HeldMemory>,
    /// Tools of the client's that it can call.
    tools: Vec<String>,
    answers: mpsc::UnboundedReceiver<Vec<ClientAnswer>>,
    /// Calls so far.
    calls: usize,
    waiting: Option<PendingCalls>,
    /// Time for which it has waited for answers, or was paused.
    waited: Duration,
    interrupted: watch::Receiver<bool>,
    paused: watch::Receiver<bool>,
    started: Instant,
    before: Snapshot,
    /// Printed text, by stream.
    output: [BoundedOutput; 2],
    error: Option<ProgramError>,
    /// The error is a `MemoryError`, by its class.
    is_memory_error: bool,
    /// True if its error or its output contains the text of `EPERM`.
    says_not_permitted: bool,
    termination: Option<Termination>,
    /// True if the kernel was sent a signal.
    has_signalled: bool,
    displayed: usize,
    /// Bytes that the plain text of its displays may still have.
    plain_left: usize,
    /// Bytes of what was passed on of it.
    shown: usize,
    displays: usize,
    /// True if it was said that nothing more is displayed.
    displays_enough: bool,
    /// True once the cell's result has arrived.
    has_result: bool,
}

/// The end of a wait for events.
enum WaitEnd {
    Done,
    Exited(KernelExit),
}

impl<C: LinkControl> CellRun<C> {
    /// An execution on this kernel, with the processor time and the files before it, the tools that it may call and the memory for its
    /// events.
    pub(super) fn new<L: Link<Control = C>>(
        driver: &Driver<L>,
        (cpu_before, before): (Duration, Snapshot),
        (tools, event_memory): (Vec<String>, Option<EventMemory>),
        (events, answers, interrupted): (
            EventSender,
            mpsc::UnboundedReceiver<Vec<ClientAnswer>>,
            watch::Receiver<bool>,
        ),
    ) -> Self {
        let limits = driver.limits.clone();
        Self {
            control: Arc::clone(&driver.control),
            flags: Arc::clone(&driver.flags),
            workspace: Arc::clone(&driver.workspace),
            cpu_before,
            events,
            long_frame: LongFrame::new(event_memory),
            held: None,
            tools,
            answers,
            calls: 0,
            waiting: None,
            waited: Duration::ZERO,
            interrupted,
            paused: driver.paused.clone(),
            started: Instant::now(),
            before,
            output: [BoundedOutput::new(limits.output), BoundedOutput::new(limits.output)],
            plain_left: usize::try_from(limits.output).unwrap_or(usize::MAX),
            limits,
            error: None,
            is_memory_error: false,
            says_not_permitted: false,
            termination: None,
            has_signalled: false,
            displayed: 0,
            shown: 0,
            displays: 0,
            displays_enough: false,
            has_result: false,
        }
    }

    /// Runs it to its end, and sends its events.
    pub(super) async fn drive<L: Link<Control = C>>(mut self, mut kernel: DrivenKernel<L>) {
        let end = self.listen(&mut kernel).await;
        // Output of a kernel that has died may still be in the pipes, and a process of its that lives on may hold them up.
        timeout(LATE_OUTPUT_TIMEOUT, self.drain(&mut kernel.link)).await.ignore("the rest is lost");
        let outcome = match &end {
            WaitEnd::Done => self.outcome_of_cell().await,
            WaitEnd::Exited(exit) => self.outcome_of_kernel_exit(exit).await,
        };
        let is_settled = matches!(end, WaitEnd::Done) && !self.has_signalled;
        let state = match end {
            WaitEnd::Done => {
                self.flags.has_run.store(true, Ordering::Relaxed);
                VariablesState::Kept
            }
            WaitEnd::Exited(_) if self.may_restore() && kernel.link.restore().await => {
                kernel.cells -= 1;
                VariablesState::RolledBack
            }
            WaitEnd::Exited(_) => {
                self.flags.is_dead.store(true, Ordering::Relaxed);
                VariablesState::Lost
            }
        };
        let (before, most) = (std::mem::take(&mut self.before), most_entries(&self.limits));
        let changes =
            Arc::clone(&self.workspace).walk_async(most, true, move |workspace, most| before.changes(workspace, most));
        // After this no signal of this process is under way.
        let synced = async {
            if !is_settled {
                self.control.synced().await;
            }
        };
        let (changes, ()) = join(changes, synced).await;
        self.control.catch_up();
        let (files, files_left_out) = changes.unwrap_or_default();
        let mut output_dropped = 0;
        for (stream, output) in
            [OutputStream::Stdout, OutputStream::Stderr].into_iter().zip(std::mem::take(&mut self.output))
        {
            let (tail, dropped) = output.finish();
            self.says_not_permitted |= tail.contains(NOT_PERMITTED);
            self.tell_text(stream, tail);
            output_dropped += dropped;
        }
        let finished = Finished {
            refusal_may_have_mattered: self.says_not_permitted || matches!(outcome, Outcome::KernelDied(_)),
            outcome,
            files,
            files_left_out,
            elapsed: self.started.elapsed().saturating_sub(self.waited),
            output_dropped,
            state,
            refused_calls: self.control.take_refused_calls(),
        };
        // The kernel is released before the caller gets the outcome, so that the next execution can begin.
        drop(kernel);
        self.send(ExecutionEvent::Finished(finished));
    }

    /// Passes on the kernel's events and enforces the limits, until the cell or the kernel has ended.
    async fn listen<L: Link>(&mut self, kernel: &mut KernelState<L>) -> WaitEnd {
        let mut deadline = self.started + self.limits.timeout;
        let (mut interrupted, mut paused) = (self.interrupted.clone(), self.paused.clone());
        let mut received = 0;
        let mut cpu_looked_at = self.started;
        let mut rested_for = 0;
        loop {
            let dropped: u64 = self.output.iter().map(BoundedOutput::dropped).sum();
            rest(dropped - std::mem::replace(&mut rested_for, dropped)).await;
            let timer = match &self.termination {
                Some(ending) => ending.again_at.unwrap_or(ending.kill_at),
                None => deadline,
            };
            let next_frame_at = kernel.frames.next_at();
            let arrives_by = self.long_frame.arrives_by();
            tokio::select! {
                // A program that is to end waits for no reader: it would be killed, and its variables with it. Nor does one whose long
                // frame holds memory and is to arrive in time; the text that it prints meanwhile is bounded.
                input = async {
                    if self.termination.is_none() && arrives_by.is_none() {
                        self.events.room().await;
                        if let Some(at) = next_frame_at {
                            sleep_until(at).await;
                        }
                    }
                    if self.long_frame.accept(&mut kernel.link, self.termination.is_some()).await {
                        // Its time begins, for which the loop has to look at it.
                        return None;
                    }
                    Some(kernel.link.receive().await)
                } => match input {
                    None => {}
                    Some(Ok(LinkInput::Frame(FromKernel::Done, _))) => return WaitEnd::Done,
                    Some(Ok(LinkInput::LongFrame(length))) => self.long_frame.announce(length),
                    Some(Ok(LinkInput::SkippedFrame(number))) => {
                        let note = MimeData::Text(NO_MEMORY.to_owned());
                        self.display(MimeBundle(vec![("text/plain".into(), note)]), ExecutionEvent::Display, false);
                        if let Some(number) = number
                            && !FrameReply::Shown(number).send(&mut kernel.link).await
                        {
                            return WaitEnd::Exited(self.kill(kernel).await);
                        }
                    }
                    Some(Ok(LinkInput::Frame(frame, length))) => {
                        received += length + FRAME_COST;
                        if received > MAX_RECEIVED {
                            return WaitEnd::Exited(self.kill(kernel).await);
                        }
                        let shown_before = self.shown;
                        self.held = self.long_frame.arrived();
                        if let Some(reply) = self.frame(frame)
                            && !reply.send(&mut kernel.link).await
                        {
                            return WaitEnd::Exited(self.kill(kernel).await);
                        }
                        // Of a frame that was not passed on.
                        self.held = None;
                        kernel.frames.count(length.saturating_sub(self.shown - shown_before));
                    }
                    Some(Ok(LinkInput::Printed(stream, bytes))) => self.print(stream, &bytes),
                    // A closed channel or an invalid frame: the program did that to its own kernel.
                    Some(Ok(LinkInput::Closed) | Err(_)) => return WaitEnd::Exited(self.kill(kernel).await),
                },
                Some(answers) = self.answers.recv() => if let Some(reply) = self.answered(answers, &mut deadline)
                    && !reply.send(&mut kernel.link).await
                {
                    return WaitEnd::Exited(self.kill(kernel).await);
                },
                exit = wait_for_exit(&mut kernel.exit) => return WaitEnd::Exited(exit),
                () = passed(arrives_by) => return WaitEnd::Exited(self.kill(kernel).await),
                () = wait_for_pause(&mut paused) => {
                    let since = Instant::now();
                    tokio::select! {
                        exit = wait_for_exit(&mut kernel.exit) => return WaitEnd::Exited(exit),
                        () = wait_for_resume(&mut paused) => {}
                    }
                    let pause = since.elapsed();
                    deadline += pause;
                    self.waited += pause;
                    self.long_frame.put_off(pause);
                    if let Some(waiting) = &mut self.waiting {
                        waiting.since += pause;
                    }
                    if let Some(ending) = &mut self.termination {
                        ending.put_off(pause);
                    }
                }
                () = wait_for_interrupt(&mut interrupted), if self.termination.is_none() => {
                    self.interrupt(Cause::Caller);
                    self.release(&mut kernel.link).await;
                }
                () = sleep_until(cpu_looked_at + CPU_INTERVAL), if self.counts_cpu() => {
                    cpu_looked_at = Instant::now();
                    if self.cpu_is_used_up().await {
                        self.interrupt(Cause::CpuTime);
                        self.release(&mut kernel.link).await;
                    }
                }
                // Its clock stops while it waits for its client, whose time the caller limits.
                () = sleep_until(timer), if self.termination.is_some() || self.waiting.is_none() => match self.termination.as_mut().map(|ending| ending.again_at.take()) {
                    Some(Some(_)) => self.control.signal(Signal::Interrupt),
                    Some(None) => return WaitEnd::Exited(self.kill(kernel).await),
                    None => self.interrupt(Cause::WallClock),
                }
            }
        }
    }

    /// Returns true if there may be a checkpoint, and the kernel was not ended on purpose.
    fn may_restore(&self) -> bool {
        let has_run = self.flags.has_run.load(Ordering::Relaxed) && self.control.keeps_checkpoint();
        has_run && !self.flags.is_dead.load(Ordering::Relaxed)
    }

    fn counts_cpu(&self) -> bool {
        self.limits.cpu_time.is_some() && self.termination.is_none()
    }

    async fn cpu_is_used_up(&self) -> bool {
        // Its other limits and its output wait meanwhile.
        let Ok(usage) = timeout(USAGE_TIMEOUT, self.control.usage()).await else { return false };
        let used = usage.cpu.saturating_sub(self.cpu_before);
        self.limits.cpu_time.is_some_and(|limit| used > limit)
    }

    fn interrupt(&mut self, cause: Cause) {
        self.has_signalled = true;
        self.control.signal(Signal::Interrupt);
        let now = Instant::now();
        self.termination =
            Some(Termination { cause, again_at: Some(now + self.limits.grace / 4), kill_at: now + self.limits.grace });
    }

    async fn kill<L: Link>(&self, kernel: &mut KernelState<L>) -> KernelExit {
        self.control.signal(Signal::Kill);
        timeout(KILL_TIMEOUT, wait_for_exit(&mut kernel.exit)).await.unwrap_or_default()
    }

    /// Takes what was printed.
    fn print(&mut self, stream: OutputStream, bytes: &[u8]) {
        let [stdout, stderr] = &mut self.output;
        let output = match stream {
            OutputStream::Stdout => stdout,
            OutputStream::Stderr => stderr,
        };
        let text = output.push(bytes);
        self.says_not_permitted |= text.contains(NOT_PERMITTED);
        self.tell_text(stream, text);
    }

    /// Takes the output that is there. Bounded: a surviving child process may write for ever.
    async fn drain<L: Link>(&mut self, link: &mut L) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            for _ in 0..4 {
                let bytes = link.printed(stream).await;
                if bytes.is_empty() {
                    break;
                }
                self.print(stream, &bytes);
            }
        }
    }

    /// Takes the client's answers, if the program waits for some.
    fn answered(&mut self, answers: Vec<ClientAnswer>, deadline: &mut Instant) -> Option<FrameReply> {
        let PendingCalls { number, count, since } = self.waiting.take()?;
        let waited = since.elapsed();
        *deadline += waited;
        self.waited += waited;
        let mut room = MAX_ANSWERS;
        let missing = std::iter::repeat_with(|| ClientAnswer::error("There was no answer."));
        let fitting =
            answers.into_iter().chain(missing).take(count).map(|answer| match room.checked_sub(answer.text.len()) {
                Some(left) => {
                    room = left;
                    answer
                }
                None => ClientAnswer::error(format!(
                    "The answer has {} bytes; answers to calls made at once can have {MAX_ANSWERS}.",
                    answer.text.len()
                )),
            });
        Some(FrameReply::Answers(number, fitting.collect()))
    }

    /// Lets a program that is to end wait no longer.
    async fn release<L: Link>(&mut self, link: &mut L) {
        if let Some(PendingCalls { number, since, .. }) = self.waiting.take() {
            self.waited += since.elapsed();
            // If the kernel does not read it, it is killed in time.
            FrameReply::Answers(number, Vec::new()).send(link).await;
        }
    }

    /// Sends calls of the client's tools. Returns the answer to calls that are refused.
    fn called(&mut self, calls: Vec<ClientCall>, number: u64) -> Option<FrameReply> {
        // Only user code that writes to the channel sends these; it does not get an answer.
        if self.waiting.is_some() || calls.iter().any(|call| !self.tools.contains(&call.name)) {
            return None;
        }
        self.calls += calls.len();
        let refused =
            |words: &str| Some(FrameReply::Answers(number, calls.iter().map(|_| ClientAnswer::error(words)).collect()));
        if self.termination.is_some() || calls.is_empty() {
            return Some(FrameReply::Answers(number, Vec::new()));
        }
        if self.calls > MAX_CALLS {
            return refused(&format!("A program can call tools {MAX_CALLS} times."));
        }
        let is_object = |call: &ClientCall| serde_json::from_str::<serde_json::Map<_, _>>(&call.arguments).is_ok();
        if !calls.iter().all(is_object) {
            return refused("The arguments of a tool are a JSON object, nested no deeper than 100 levels.");
        }
        self.waiting = Some(PendingCalls { number, count: calls.len(), since: Instant::now() });
        let held = self.held.take();
        self.events.send(ExecutionEvent::Calls(calls), held);
        None
    }

    /// Passes a frame on. Returns the reply to a frame that needs one at once.
    fn frame(&mut self, frame: FromKernel) -> Option<FrameReply> {
        match frame {
            FromKernel::Display(bundle, number) => {
                self.display(bundle, ExecutionEvent::Display, false);
                return Some(FrameReply::Shown(number));
            }
            // All earlier output came before it.
            FromKernel::Flushed(number) => return Some(FrameReply::Shown(number)),
            FromKernel::Calls(calls, number) => return self.called(calls, number),
            FromKernel::Result(bundle) => {
                let is_first = !std::mem::replace(&mut self.has_result, true);
                self.display(bundle, ExecutionEvent::Result, is_first);
            }
            FromKernel::Error(error) => self.raised(error, false),
            FromKernel::MemoryError(error) => self.raised(error, true),
            // Unexpected here; only user code that writes to the channel sends them.
            FromKernel::Ready
            | FromKernel::WarmedUp
            | FromKernel::Configured
            | FromKernel::Started(_)
            | FromKernel::Restored
            | FromKernel::Done
            | FromKernel::Failed(_) => {}
        }
        None
    }

    /// Passes a display on, or the cell's result, which has its place after all displays.
    fn display(&mut self, mut bundle: MimeBundle, event: fn(MimeBundle) -> ExecutionEvent, has_place: bool) {
        self.displays += 1;
        // Together it is bounded like printed text.
        if let Some(text) = bundle.text_mut() {
            let bytes = text_cost(text);
            match self.plain_left.checked_sub(bytes) {
                Some(left) => self.plain_left = left,
                None => *text = format!("[a text of {bytes} bytes is left out: too much text was displayed]"),
            }
        }
        let bytes = bundle.bytes();
        self.displayed += bytes;
        let has_place = has_place || (!self.displays_enough && self.displays < MAX_DISPLAYS);
        if has_place && self.displayed < MAX_DISPLAYED {
            self.shown += bytes;
            let held = self.held.take();
            self.events.send(event(bundle), held);
        } else if !self.displays_enough {
            // Reported once: after it nothing is displayed, whatever its size.
            self.displays_enough = true;
            let text = "[too much was displayed; the rest is left out]".to_owned();
            self.send(event(MimeBundle(vec![("text/plain".into(), MimeData::Text(text))])));
        }
    }

    /// Records the cell's exception. There is one at most, unless user code writes to the channel.
    fn raised(&mut self, error: ProgramError, is_memory_error: bool) {
        if self.error.is_some() {
            return;
        }
        self.is_memory_error = is_memory_error;
        self.says_not_permitted |= error.value.contains(NOT_PERMITTED);
        self.error = Some(error.clone());
        self.send(ExecutionEvent::Error(error));
    }

    async fn outcome_of_cell(&mut self) -> Outcome {
        if let Some(ending) = self.termination.take() {
            return self.outcome_of_termination(ending.cause);
        }
        match self.error.take() {
            None => Outcome::Completed,
            Some(_) if self.is_memory_error => {
                let used = self.control.usage().await.memory_peak;
                self.out_of_memory(used, false).await
            }
            Some(error) if error.value.contains(NO_SPACE) => match self.full().await {
                Some(hit) => Outcome::Limit(hit),
                // Another file system was full: /tmp, which the program's own message says.
                None => Outcome::Failed(error),
            },
            Some(error) => Outcome::Failed(error),
        }
    }

    async fn out_of_memory(&self, used: u64, of_host: bool) -> Outcome {
        let files = self.workspace_usage().await.map_or(0, |usage| usage.used);
        Outcome::Limit(LimitHit::Memory { used, limit: self.limits.memory, files, of_host })
    }

    /// The room in the workspace, asked for where that may block.
    async fn workspace_usage(&self) -> Result<WorkspaceUsage, Error> {
        Arc::clone(&self.workspace).blocking(|workspace| workspace.usage()).await
    }

    /// The limit of the workspace that is reached, if any.
    async fn full(&self) -> Option<LimitHit> {
        let WorkspaceUsage { used, limit, takes_files } = self.workspace_usage().await.ok()?;
        if used + FULL_BYTES > limit {
            Some(LimitHit::Disk { used, limit })
        } else {
            (!takes_files).then_some(LimitHit::Files { limit: self.limits.files })
        }
    }

    async fn outcome_of_kernel_exit(&mut self, exit: &KernelExit) -> Outcome {
        if let Some(ending) = self.termination.take() {
            return self.outcome_of_termination(ending.cause);
        }
        if let Some(used) = exit.out_of_memory {
            // Without a count the only known limit is the sandbox's own.
            let of_host = used > 0 && used < self.limits.memory / 100 * OWN_LIMIT_PERCENT;
            return self.out_of_memory(used, of_host).await;
        }
        match exit.status {
            Some(ExitStatus::Signal(signal)) => Outcome::KernelDied(KernelDeath::Signalled(signal)),
            Some(ExitStatus::Code(code)) => Outcome::KernelDied(KernelDeath::Exited(code)),
            None => Outcome::KernelDied(KernelDeath::Unknown),
        }
    }

    fn outcome_of_termination(&self, cause: Cause) -> Outcome {
        match cause {
            Cause::Caller => Outcome::Interrupted,
            Cause::WallClock => Outcome::Limit(LimitHit::WallClock { limit: self.limits.timeout }),
            Cause::CpuTime => {
                Outcome::Limit(LimitHit::CpuTime { limit: self.limits.cpu_time.unwrap_or(self.limits.timeout) })
            }
        }
    }

    fn tell_text(&self, stream: OutputStream, text: String) {
        if !text.is_empty() {
            self.send(match stream {
                OutputStream::Stdout => ExecutionEvent::Stdout(text),
                OutputStream::Stderr => ExecutionEvent::Stderr(text),
            });
        }
    }

    fn send(&self, event: ExecutionEvent) {
        self.events.send(event, None);
    }
}

impl FrameReply {
    /// Sends it. Returns false if the kernel does not accept it, though it should be waiting: then the kernel program was replaced.
    async fn send<L: Link>(self, link: &mut L) -> bool {
        let (frame, limit) = match &self {
            Self::Shown(number) => (ToKernel::Shown { number: *number }, SHOWN_TIMEOUT),
            Self::Answers(number, answers) => (ToKernel::Answers { number: *number, answers }, SEND_TIMEOUT),
        };
        matches!(timeout(limit, link.send(&frame)).await, Ok(Ok(())))
    }
}

async fn wait_for_pause(paused: &mut watch::Receiver<bool>) {
    if paused.wait_for(|paused| *paused).await.is_err() {
        // No task is left that could pause it.
        std::future::pending().await
    }
}

async fn wait_for_resume(paused: &mut watch::Receiver<bool>) {
    paused
        .wait_for(|paused| !*paused)
        .await
        .ignore("it fails if the sandbox is being dropped, which the end of its kernel shows");
}

async fn wait_for_interrupt(interrupted: &mut watch::Receiver<bool>) {
    interrupted
        .wait_for(|now| *now)
        .await
        .ignore("it fails if every interrupter was dropped, which counts as an interrupt");
}
