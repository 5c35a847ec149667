//! A live sandbox and the executions in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aludel_jail::message::{ExitStatus, Usage};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, watch};
use tokio::time::{Instant, timeout};

use crate::backends::local::warden_client::{Exit, Handle};
use crate::backends::local::workspace::Snapshot;
use crate::execution::{Death, Event, Finished, LimitHit, MimeBundle, MimeData, Outcome, ProgramError, State};
use crate::frame::{Channel, FromKernel, ToKernel};
use crate::output::Output;
use crate::{Error, Limits, Workspace};

/// The most that one execution may display, bytes of all bundles together.
const MAX_DISPLAYED: usize = 64 << 20;
/// The most that a kernel may send during one execution, bytes. The kernel program never comes near.
const MAX_RECEIVED: usize = 1 << 30;
/// What each frame counts as beside its length: reading the smallest takes us longer than a program needs to write it.
const FRAME_COST: usize = 8 << 10;
/// The most bundles that one execution may display.
const MAX_DISPLAYS: usize = 500;
/// How much of a workspace may be left for it to count as full: less than one large write.
const FULL: u64 = 1 << 20;
/// What the system says of a full file system, in every library's message.
const NO_SPACE: &str = "No space left on device";
/// How long a killed kernel may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a kernel may take to accept the answer to a display, for which it waits; deadlines wait for it.
const SHOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// How often processor time is looked at where it is limited.
const CPU_INTERVAL: Duration = Duration::from_millis(200);
/// How long a kernel may take to accept a program.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// A live sandbox with one kernel. Dropping it destroys it; the workspace stays as long as someone holds it.
#[derive(Debug)]
pub struct Sandbox {
    handle: Arc<Handle>,
    kernel: Arc<Mutex<Kernel>>,
    exit: watch::Receiver<Option<Exit>>,
    state: Arc<AtomicState>,
    workspace: Arc<Workspace>,
    limits: Limits,
    processes: AtomicU64,
}

/// What can still become of the kernel.
#[derive(Debug, Default)]
struct AtomicState {
    /// A cell has ended, so there is, or will be, a checkpoint.
    has_run: AtomicBool,
    /// It ended, and no checkpoint took its place.
    is_lost: AtomicBool,
}

/// The host's side of a kernel.
pub(crate) struct Kernel {
    pub(crate) channel: Channel,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    exit: watch::Receiver<Option<Exit>>,
    /// Out-of-memory kills that were told before.
    oom_kills: u64,
    /// Whether somebody gave up while sending it a program: it was killed for that, and has yet to end.
    is_doomed: bool,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Kernel").finish_non_exhaustive()
    }
}

impl Kernel {
    pub(crate) fn new(
        channel: Channel,
        stdout: pipe::Receiver,
        stderr: pipe::Receiver,
        exit: watch::Receiver<Option<Exit>>,
    ) -> Self {
        Self { channel, stdout, stderr, exit, oom_kills: 0, is_doomed: false }
    }

    /// Lets the checkpoint of a kernel that ended take its place. What the dead one left half-written stays in the old socket.
    async fn resume(&mut self, handle: &Handle) -> bool {
        let Ok((ours, theirs)) = std::os::unix::net::UnixStream::pair() else { return false };
        let Ok(channel) = Channel::new(ours) else { return false };
        if !handle.resume(theirs.into()).await {
            return false;
        }
        self.channel = channel;
        matches!(timeout(KILL_TIMEOUT, self.channel.receive()).await, Ok(Ok(Some(FromKernel::Resumed))))
    }
}

impl Sandbox {
    pub(crate) fn new(handle: Handle, kernel: Kernel, workspace: Arc<Workspace>, limits: Limits) -> Self {
        let exit = kernel.exit.clone();
        Self {
            handle: Arc::new(handle),
            kernel: Arc::new(Mutex::new(kernel)),
            exit,
            state: Arc::default(),
            workspace,
            limits,
            processes: AtomicU64::new(0),
        }
    }

    /// A number that no other sandbox of this backend has had.
    pub fn id(&self) -> u64 {
        self.handle.id()
    }

    /// The files.
    pub fn workspace(&self) -> &Arc<Workspace> {
        &self.workspace
    }

    /// What it may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the kernel lives, or its checkpoint will. A sandbox without either is of no more use; its workspace is.
    pub fn is_alive(&self) -> bool {
        let may_resume = self.state.has_run.load(Ordering::Relaxed);
        !self.state.is_lost.load(Ordering::Relaxed) && (may_resume || self.exit.borrow().is_none())
    }

    /// Bytes of memory in use and at most so far, as far as the host counts them.
    pub async fn memory(&self) -> (u64, u64) {
        let usage = self.handle.usage().await;
        (usage.memory, usage.memory_peak)
    }

    /// Runs one cell. One runs at a time; the next waits here for its turn.
    pub async fn execute(&self, code: &str) -> Result<Execution, Error> {
        let mut kernel = Arc::clone(&self.kernel).lock_owned().await;
        if std::mem::take(&mut kernel.is_doomed) {
            let _in_time = timeout(KILL_TIMEOUT, wait_for_exit(&mut kernel.exit)).await;
        }
        if !self.is_alive() {
            return Err(Error::KernelGone("it ended before".into()));
        }
        if self.exit.borrow().is_some() && !kernel.resume(&self.handle).await {
            self.state.is_lost.store(true, Ordering::Relaxed);
            return Err(Error::KernelGone("it ended between two executions".into()));
        }
        self.handle.foreground();
        let _of_earlier_ones = self.handle.take_blocked();
        let cpu_before = match self.limits.cpu_time {
            Some(_) => self.handle.usage().await.cpu,
            None => 0,
        };
        let before = scan(&self.workspace, &self.limits).await?;
        // Whoever gives up in the middle leaves half a frame behind, which must not run later, unseen.
        let unsent = KillUnless { sent: false, kernel: &mut kernel, handle: &self.handle };
        // A kernel whose loop was stopped by an earlier cell does not read.
        match timeout(SEND_TIMEOUT, unsent.kernel.channel.send(&ToKernel::Execute { code })).await {
            Ok(Ok(())) => unsent.disarm(),
            Ok(Err(error)) => return Err(Error::KernelGone(error.to_string())),
            Err(_) => return Err(Error::KernelGone("it no longer listens".into())),
        }
        let (events, receiver) = mpsc::unbounded_channel();
        let (interrupter, interrupted) = watch::channel(false);
        let interrupter = Interrupter(Arc::new(interrupter));
        let run = Run {
            handle: Arc::clone(&self.handle),
            state: Arc::clone(&self.state),
            workspace: Arc::clone(&self.workspace),
            limits: self.limits.clone(),
            cpu_before,
            events,
            interrupted,
            started: Instant::now(),
            before,
            stdout: Output::new(self.limits.output),
            stderr: Output::new(self.limits.output),
            error: None,
            ending: None,
            displayed: 0,
            displays: 0,
        };
        tokio::spawn(run.drive(kernel));
        Ok(Execution { events: receiver, interrupter })
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// A number that no other program of this sandbox has had.
    pub(crate) fn next_process(&self) -> u64 {
        self.processes.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the kernel rehearse a first cell.
    pub(crate) async fn touch(&self) -> Result<(), Error> {
        let mut kernel = self.kernel.lock().await;
        let gone = |error: std::io::Error| Error::KernelGone(error.to_string());
        kernel.channel.send(&ToKernel::Touch).await.map_err(gone)?;
        match timeout(KILL_TIMEOUT, kernel.channel.receive()).await {
            Ok(Ok(Some(FromKernel::Touched))) => Ok(()),
            _ => Err(Error::KernelGone("it did not survive the rehearsal".into())),
        }
    }

    /// Destroys the sandbox, whatever runs in it, and waits until nothing of it is left but the workspace.
    pub async fn close(&self) {
        // What the warden could not end in time it ends later.
        let _in_time = self.handle.destroy().await;
    }
}

/// Kills the kernel when it is dropped before a program was sent as a whole.
struct KillUnless<'a> {
    sent: bool,
    kernel: &'a mut Kernel,
    handle: &'a Handle,
}

impl KillUnless<'_> {
    fn disarm(mut self) {
        self.sent = true;
    }
}

impl Drop for KillUnless<'_> {
    fn drop(&mut self) {
        if !self.sent {
            self.kernel.is_doomed = true;
            self.handle.signal(SIGKILL);
        }
    }
}

/// A running execution. Dropping it interrupts the program.
#[derive(Debug)]
pub struct Execution {
    events: mpsc::UnboundedReceiver<Event>,
    interrupter: Interrupter,
}

impl Execution {
    /// The next event; `None` after [`Event::Finished`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// A handle that can interrupt the program from elsewhere.
    pub fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.interrupter.interrupt();
    }
}

/// Interrupts one execution. Cheap to clone; does nothing once the execution has ended.
#[derive(Debug, Clone)]
pub struct Interrupter(Arc<watch::Sender<bool>>);

impl Interrupter {
    /// SIGINT now; the kernel is killed when the program has not ended after the grace period.
    pub fn interrupt(&self) {
        self.0.send_replace(true);
    }
}

/// Why we end a program before its own end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Caller,
    WallClock,
    CpuTime,
}

/// A program that we are ending.
struct Ending {
    cause: Cause,
    /// When to interrupt once more: the first signal may have come before the cell began.
    again_at: Option<Instant>,
    /// When to kill the kernel.
    kill_at: Instant,
}

/// One execution, from its first byte to its outcome.
struct Run {
    handle: Arc<Handle>,
    state: Arc<AtomicState>,
    /// Microseconds, if they are counted.
    cpu_before: u64,
    workspace: Arc<Workspace>,
    limits: Limits,
    events: mpsc::UnboundedSender<Event>,
    interrupted: watch::Receiver<bool>,
    started: Instant,
    before: Snapshot,
    stdout: Output,
    stderr: Output,
    error: Option<ProgramError>,
    ending: Option<Ending>,
    displayed: usize,
    displays: usize,
}

/// What ended the wait for events.
enum End {
    Done,
    Exited(Exit),
}

impl Run {
    async fn drive(mut self, mut kernel: OwnedMutexGuard<Kernel>) {
        let end = self.listen(&mut kernel).await;
        self.handle.cell_ended();
        // What was written before the last frame is still in the pipes.
        self.drain(&mut kernel, &mut vec![0; 64 << 10]);
        let outcome = match &end {
            End::Done => self.outcome_of_end().await,
            End::Exited(exit) => self.outcome_of_exit(exit, &mut kernel),
        };
        let state = match end {
            End::Done => {
                self.state.has_run.store(true, Ordering::Relaxed);
                State::Kept
            }
            End::Exited(_) if self.state.has_run.load(Ordering::Relaxed) && kernel.resume(&self.handle).await => {
                State::RolledBack
            }
            End::Exited(_) => {
                self.state.is_lost.store(true, Ordering::Relaxed);
                State::Lost
            }
        };
        // The warden answers in order: what it told of the execution was told by then, and no signal of ours is under way any more.
        self.handle.usage().await;
        let (tail, stdout_dropped) = std::mem::replace(&mut self.stdout, Output::new(0)).finish();
        self.tell_text(tail, Event::Stdout);
        let (tail, stderr_dropped) = std::mem::replace(&mut self.stderr, Output::new(0)).finish();
        self.tell_text(tail, Event::Stderr);
        let after = scan(&self.workspace, &self.limits).await.unwrap_or_default();
        let (files, files_left_out) = after.changed_since(&self.before);
        let finished = Finished {
            outcome,
            files,
            files_left_out,
            elapsed: self.started.elapsed(),
            output_dropped: stdout_dropped + stderr_dropped,
            state,
            blocked: self.handle.take_blocked(),
        };
        // The kernel is free for the next execution before the caller learns of the end of this one.
        drop(kernel);
        self.tell(Event::Finished(finished));
    }

    /// Passes on what the kernel tells and enforces the limits, until the cell or the kernel has ended.
    async fn listen(&mut self, kernel: &mut Kernel) -> End {
        let mut stdout = vec![0; 64 << 10];
        let mut stderr = vec![0; 16 << 10];
        let (mut stdout_open, mut stderr_open) = (true, true);
        let deadline = self.started + self.limits.timeout;
        let mut interrupted = self.interrupted.clone();
        let mut received = 0;
        let mut cpu_looked_at = self.started;
        loop {
            let timer = match &self.ending {
                Some(ending) => ending.again_at.unwrap_or(ending.kill_at),
                None => deadline,
            };
            tokio::select! {
                frame = kernel.channel.receive() => match frame {
                    Ok(Some(FromKernel::Done)) => return End::Done,
                    Ok(Some(frame)) => {
                        received += kernel.channel.take_received() + FRAME_COST;
                        if received > MAX_RECEIVED {
                            return End::Exited(self.kill(kernel).await);
                        }
                        self.drain(kernel, &mut stdout);
                        if let Some(number) = self.frame(frame)
                            // Small, and the kernel waits for it; whoever does not read it has replaced the kernel program.
                            && !matches!(timeout(SHOWN_TIMEOUT, kernel.channel.send(&ToKernel::Shown { number })).await, Ok(Ok(())))
                        {
                            return End::Exited(self.kill(kernel).await);
                        }
                    }
                    // A closed or senseless channel: the program did that to its own kernel.
                    Ok(None) | Err(_) => return End::Exited(self.kill(kernel).await),
                },
                count = kernel.stdout.read(&mut stdout), if stdout_open => {
                    stdout_open = self.print(&count, &stdout, Event::Stdout);
                }
                count = kernel.stderr.read(&mut stderr), if stderr_open => {
                    stderr_open = self.print(&count, &stderr, Event::Stderr);
                }
                exit = wait_for_exit(&mut kernel.exit) => return End::Exited(exit),
                () = wait_for_interrupt(&mut interrupted), if self.ending.is_none() => self.interrupt(Cause::Caller),
                () = tokio::time::sleep_until(cpu_looked_at + CPU_INTERVAL), if self.counts_cpu() => {
                    cpu_looked_at = Instant::now();
                    if self.cpu_is_used_up().await {
                        self.interrupt(Cause::CpuTime);
                    }
                }
                () = tokio::time::sleep_until(timer) => match self.ending.as_mut().map(|ending| ending.again_at.take()) {
                    Some(Some(_)) => self.handle.signal(SIGINT),
                    Some(None) => return End::Exited(self.kill(kernel).await),
                    None => self.interrupt(Cause::WallClock),
                }
            }
        }
    }

    fn counts_cpu(&self) -> bool {
        self.limits.cpu_time.is_some() && self.ending.is_none()
    }

    async fn cpu_is_used_up(&self) -> bool {
        let used = self.handle.usage().await.cpu.saturating_sub(self.cpu_before);
        self.limits.cpu_time.is_some_and(|limit| Duration::from_micros(used) > limit)
    }

    fn interrupt(&mut self, cause: Cause) {
        self.handle.signal(SIGINT);
        let now = Instant::now();
        self.ending =
            Some(Ending { cause, again_at: Some(now + self.limits.grace / 4), kill_at: now + self.limits.grace });
    }

    async fn kill(&self, kernel: &mut Kernel) -> Exit {
        self.handle.signal(SIGKILL);
        let unknown = Exit { status: None, usage: Usage::default() };
        timeout(KILL_TIMEOUT, wait_for_exit(&mut kernel.exit)).await.unwrap_or(unknown)
    }

    /// Takes what was read from a pipe. Returns whether the pipe is still open.
    fn print<E>(&mut self, count: &Result<usize, E>, buffer: &[u8], event: fn(String) -> Event) -> bool {
        let Ok(count @ 1..) = *count else { return false };
        let bytes = buffer.get(..count).unwrap_or_default();
        let output = if matches!(event(String::new()), Event::Stdout(_)) { &mut self.stdout } else { &mut self.stderr };
        let text = output.push(bytes);
        self.tell_text(text, event);
        true
    }

    /// Reads what is in the pipes already, without waiting. Bounded: a child left behind may write for ever. Past tokio, whose `try_read`
    /// knows only of what its last poll saw.
    fn drain(&mut self, kernel: &mut Kernel, buffer: &mut [u8]) {
        for _ in 0..4 {
            let count = rustix::io::read(&kernel.stdout, &mut *buffer);
            if !self.print(&count, buffer, Event::Stdout) {
                break;
            }
        }
        for _ in 0..4 {
            let count = rustix::io::read(&kernel.stderr, &mut *buffer);
            if !self.print(&count, buffer, Event::Stderr) {
                break;
            }
        }
    }

    /// Passes a frame on. Returns the number of a display that is to be answered.
    fn frame(&mut self, frame: FromKernel) -> Option<u64> {
        match frame {
            FromKernel::Display(bundle, number) => {
                self.display(bundle, Event::Display);
                return Some(number);
            }
            FromKernel::Result(bundle) => self.display(bundle, Event::Result),
            FromKernel::Error(error) if self.error.is_none() => {
                self.error = Some(error.clone());
                self.tell(Event::Error(error));
            }
            // Out of place; only user code that plays with the channel sends them.
            FromKernel::Ready
            | FromKernel::Touched
            | FromKernel::Resumed
            | FromKernel::Error(_)
            | FromKernel::Done
            | FromKernel::Failed(_) => {}
        }
        None
    }

    fn display(&mut self, bundle: MimeBundle, event: fn(MimeBundle) -> Event) {
        self.displays += 1;
        self.displayed += bundle.0.iter().map(|(mime, data)| mime.len() + length(data)).sum::<usize>();
        if self.displays < MAX_DISPLAYS && self.displayed < MAX_DISPLAYED {
            self.tell(event(bundle));
        } else if self.displays == MAX_DISPLAYS || self.displayed >= MAX_DISPLAYED {
            // Said once: from here on nothing is displayed, whatever its size.
            if self.displays < usize::MAX / 2 {
                self.displays = usize::MAX / 2;
                let text = "[too much was displayed; the rest is left out]".to_owned();
                self.tell(event(MimeBundle(vec![("text/plain".into(), MimeData::Text(text))])));
            }
        }
    }

    async fn outcome_of_end(&mut self) -> Outcome {
        if let Some(ending) = self.ending.take() {
            return self.outcome_of_cause(ending.cause);
        }
        match self.error.take() {
            None => Outcome::Completed,
            Some(error) if error.name == "MemoryError" => {
                let used = self.handle.usage().await.memory_peak;
                Outcome::Limit(LimitHit::Memory { used, limit: self.limits.memory })
            }
            Some(error) if error.value.contains(NO_SPACE) => match self.full() {
                Some(hit) => Outcome::Limit(hit),
                // Another place was full: /tmp, which the program's own message says.
                None => Outcome::Failed(error),
            },
            Some(error) => Outcome::Failed(error),
        }
    }

    /// Which limit of the workspace is used up, if one is.
    fn full(&self) -> Option<LimitHit> {
        let (used, limit, takes_files) = self.workspace.room().ok()?;
        if used + FULL > limit {
            Some(LimitHit::Disk { used, limit })
        } else {
            (!takes_files).then_some(LimitHit::Files { limit: self.limits.files })
        }
    }

    fn outcome_of_exit(&mut self, exit: &Exit, kernel: &mut Kernel) -> Outcome {
        let out_of_memory = exit.usage.oom_kills > kernel.oom_kills;
        kernel.oom_kills = exit.usage.oom_kills;
        if let Some(ending) = self.ending.take() {
            return self.outcome_of_cause(ending.cause);
        }
        match exit.status {
            Some(ExitStatus::Signal(SIGKILL)) | None if out_of_memory => {
                Outcome::Limit(LimitHit::Memory { used: exit.usage.memory_peak, limit: self.limits.memory })
            }
            Some(ExitStatus::Signal(signal)) => Outcome::KernelDied(Death::Signalled(signal)),
            Some(ExitStatus::Code(code)) => Outcome::KernelDied(Death::Exited(code)),
            None => Outcome::KernelDied(Death::Unknown),
        }
    }

    fn outcome_of_cause(&self, cause: Cause) -> Outcome {
        match cause {
            Cause::Caller => Outcome::Interrupted,
            Cause::WallClock => Outcome::Limit(LimitHit::WallClock { limit: self.limits.timeout }),
            Cause::CpuTime => {
                Outcome::Limit(LimitHit::CpuTime { limit: self.limits.cpu_time.unwrap_or(self.limits.timeout) })
            }
        }
    }

    fn tell_text(&self, text: String, event: fn(String) -> Event) {
        if !text.is_empty() {
            self.tell(event(text));
        }
    }

    fn tell(&self, event: Event) {
        // Nobody may be listening any more; the execution is being interrupted then.
        let _nobody = self.events.send(event);
    }
}

async fn wait_for_interrupt(interrupted: &mut watch::Receiver<bool>) {
    // An error means that everyone who could interrupt is gone, which counts as one.
    let _dropped = interrupted.wait_for(|now| *now).await.map(|now| *now);
}

async fn wait_for_exit(exit: &mut watch::Receiver<Option<Exit>>) -> Exit {
    let unknown = Exit { status: None, usage: Usage::default() };
    exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit).unwrap_or(unknown)
}

async fn scan(workspace: &Arc<Workspace>, limits: &Limits) -> Result<Snapshot, Error> {
    let workspace = Arc::clone(workspace);
    let most = limits.files;
    let scanned = tokio::task::spawn_blocking(move || workspace.scan(most.saturating_add(1))).await;
    scanned.map_err(|error| Error::File { path: ".".into(), reason: error.to_string() })?
}

fn length(data: &MimeData) -> usize {
    match data {
        MimeData::Text(text) => text.len(),
        MimeData::Binary(bytes) => bytes.len(),
    }
}
