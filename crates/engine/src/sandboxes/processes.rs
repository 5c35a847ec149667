//! Commands that run in a sandbox and outlive the clients that started them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use aludel_ignore::Ignore;
use aludel_sandbox::Sandbox;
pub use aludel_sandbox::process::PtySize;
use aludel_sandbox::process::{Command, ExitStatus, Process as Started, SIGKILL};
use aludel_store::{AuditEntry, AuditEvent, Store, Tenant};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::HOME;
use super::sandbox::Shared;
use crate::Error;
use crate::environment::check_names;
use crate::leftovers::{Attendance, Leftovers};
use crate::meter::{CommandTime, sleep_unless_paused};

/// Commands of one sandbox that run at once, including those that are starting.
const MAX_RUNNING: usize = 128;
/// Ended commands of one sandbox that clients can still look up.
const MAX_ENDED: usize = 32;
/// Clients that follow one command at once.
const MAX_FOLLOWERS: usize = 16;
/// The most recent bytes of output that are kept while a command has no follower, or as its log.
const MAX_KEPT: usize = 64 << 10;
/// Bytes that are read at once.
const CHUNK_BYTES: usize = 32 << 10;
/// Chunks that wait for the slowest follower. Beyond that, the command waits.
const MAX_QUEUED_CHUNKS: u64 = 16;
/// Signals and sizes that wait for a command.
const MAX_ORDERS: usize = 16;
/// Bytes of a command line and its variables.
const MAX_COMMAND: usize = 1 << 20;
/// Bytes of a command line and its variables that are kept and shown.
const MAX_SHOWN: usize = 16 << 10;
/// Bytes of a client's name for a command.
pub const MAX_TAG: usize = 128;
/// Bytes of one command's entries in the audit log, besides the command itself.
const AUDIT_ENTRIES_BYTES: u64 = 4096;
/// Time for reading the rest of a command's pipes after its end: its children may hold them open for ever.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_millis(300);
/// The longest wait for a command to read its input.
const INPUT_TIMEOUT: Duration = Duration::from_secs(30);

/// A command to start.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// The program, and its arguments.
    pub arguments: Vec<String>,
    /// Environment variables beside those that every process of a sandbox has.
    pub environment: BTreeMap<String, String>,
    /// The directory in which it starts; home if there is none.
    pub directory: Option<String>,
    /// The client's name for it.
    pub tag: Option<String>,
    /// True if its stdin stays open for input of clients; always so in a terminal.
    pub input: bool,
    /// The size of its terminal; `None` for pipes.
    pub pty: Option<PtySize>,
    /// Time after which it is killed, without that in which the sandbox is paused.
    pub time_limit: Option<Duration>,
    /// True if its output is for [`SandboxProcess::log`], not for its next follower.
    pub log: bool,
}

impl ProcessSpec {
    /// The same without the words and variables that would take too much memory for as long as the command is known.
    fn shortened(mut self) -> Self {
        let (mut left, mut kept) = (MAX_SHOWN, 0);
        for word in &mut self.arguments {
            if left == 0 {
                break;
            }
            word.truncate(word.floor_char_boundary(left));
            word.shrink_to_fit();
            left -= left.min(word.len() + 1);
            kept += 1;
        }
        self.arguments.truncate(kept);
        self.arguments.shrink_to_fit();
        self.environment.retain(|name, value| {
            let bytes = name.len() + value.len() + 1;
            let is_kept = bytes <= left;
            left -= if is_kept { bytes } else { 0 };
            is_kept
        });
        self
    }
}

/// Output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A terminal.
    Pty,
}

/// Something that a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// It printed something.
    Output(ProcessStream, Bytes),
    /// It ended; nothing follows.
    Ended(ProcessEnd),
}

/// The end of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEnd {
    /// By itself or by a signal.
    Status(ExitStatus),
    /// It was killed when its time was over.
    TimedOut,
    /// The sandbox ended first.
    SandboxEnded,
}

/// The commands of one sandbox.
pub struct Processes {
    sandbox: Arc<dyn Sandbox>,
    leftovers: Arc<Leftovers>,
    shared: Shared,
    tenant: Tenant,
    sandbox_id: String,
    /// The number of the last command, which counts on when another sandbox takes this id over.
    last: Arc<AtomicU32>,
    /// Commands by number.
    known: Mutex<BTreeMap<u32, Arc<SandboxProcess>>>,
    /// Held by each command from before it starts.
    permits: Arc<Semaphore>,
    /// True while the sandbox is paused.
    paused: watch::Sender<bool>,
}

impl fmt::Debug for Processes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Processes").field("sandbox", &self.sandbox_id).finish_non_exhaustive()
    }
}

/// A command that runs or has ended.
pub struct SandboxProcess {
    pid: u32,
    /// Its number in the order in which commands were started.
    number: u32,
    spec: ProcessSpec,
    started: SystemTime,
    input: AsyncMutex<Option<Box<dyn AsyncWrite + Send + Sync + Unpin>>>,
    orders: mpsc::Sender<ControlMessage>,
    output: Mutex<OutputLog>,
    /// Wakes followers when output comes, or the end.
    added: Notify,
    /// Wakes the readers of the command's pipes when a follower takes a chunk or leaves.
    taken: Notify,
    ended: CancellationToken,
}

/// An order to a command.
#[derive(Debug, Clone, Copy)]
enum ControlMessage {
    Signal(i32),
    Resize(PtySize),
}

/// Output of a command that its followers have not read yet.
#[derive(Default)]
struct OutputLog {
    chunks: VecDeque<(ProcessStream, Bytes)>,
    /// Bytes of these chunks.
    bytes: usize,
    /// The number of the first of these chunks.
    first: u64,
    /// The number of the first chunk that no follower has taken.
    unseen: u64,
    /// The number of the next chunk of each follower.
    followers: BTreeMap<u64, u64>,
    last_follower: u64,
    log: LogTail,
    end: Option<(ProcessEnd, SystemTime)>,
}

/// The last output of a command, as far as it is kept.
#[derive(Default)]
struct LogTail {
    bytes: VecDeque<u8>,
    /// Bytes that were kept before.
    dropped: u64,
}

/// A part of the output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPart {
    /// The output.
    pub bytes: Vec<u8>,
    /// Bytes between the cursor and this part that are no longer kept.
    pub dropped: u64,
    /// The cursor of the next part.
    pub next: u64,
}

impl fmt::Debug for SandboxProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SandboxProcess").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// A client's view of a command. Dropping it leaves the command running, and its unread output for the next view.
#[derive(Debug)]
pub struct ProcessView {
    /// The command.
    pub process: Arc<SandboxProcess>,
    follower: u64,
    has_sent_end: bool,
}

impl ProcessView {
    /// The next event; `None` after the end. Cancel-safe.
    pub async fn next(&mut self) -> Option<ProcessEvent> {
        let process = Arc::clone(&self.process);
        loop {
            // Output from here on is not missed.
            let added = process.added.notified();
            {
                let mut output = process.output();
                if let Some((stream, bytes)) = output.take(self.follower) {
                    process.taken.notify_waiters();
                    return Some(ProcessEvent::Output(stream, bytes));
                }
                if let Some((end, _)) = output.end {
                    let is_first = !std::mem::replace(&mut self.has_sent_end, true);
                    return is_first.then_some(ProcessEvent::Ended(end));
                }
            }
            added.await;
        }
    }
}

impl Drop for ProcessView {
    fn drop(&mut self) {
        self.process.output().leave(self.follower, self.process.spec.log);
        self.process.taken.notify_waiters();
    }
}

impl Processes {
    pub(super) fn new(
        sandbox: Arc<dyn Sandbox>,
        leftovers: Arc<Leftovers>,
        shared: Shared,
        tenant: Tenant,
        sandbox_id: String,
        last: Arc<AtomicU32>,
    ) -> Self {
        let (known, permits) = (Mutex::default(), Arc::new(Semaphore::new(MAX_RUNNING)));
        let paused = watch::Sender::new(false);
        Self { sandbox, leftovers, shared, tenant, sandbox_id, last, known, permits, paused }
    }

    /// Stops the clocks of the commands, or lets them go on.
    pub(super) fn set_paused(&self, is_paused: bool) {
        self.paused.send_replace(is_paused);
    }

    /// Starts a command. It is in the audit log before it runs.
    pub async fn start(&self, spec: ProcessSpec) -> Result<ProcessView, Error> {
        Self::check(&spec)?;
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| Error::InvalidSandbox {
            field: "cmd",
            reason: format!("{MAX_RUNNING} commands run already"),
        })?;
        let line = command_line(&spec.arguments);
        let bytes = AUDIT_ENTRIES_BYTES + line.len() as u64;
        let _room = self.shared.store.reserve(&self.tenant, bytes..=bytes).await?;
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut note = AuditNote {
            store: self.shared.store.clone(),
            tenant: self.tenant.clone(),
            sandbox_id: self.sandbox_id.clone(),
            number,
            line,
        };
        note.write(AuditEvent::Started, "the client", "").await?;
        // The entry of its end has the beginning.
        note.line.truncate(note.line.floor_char_boundary(MAX_SHOWN));
        note.line.shrink_to_fit();
        let command = Command {
            arguments: spec.arguments.clone(),
            environment: spec.environment.clone().into_iter().collect(),
            directory: spec.directory.clone().unwrap_or_else(|| HOME.to_owned()),
            pty: spec.pty,
        };
        let mut started = match self.sandbox.spawn(command).await {
            Ok(started) => started,
            Err(error) => {
                note.write(AuditEvent::Ended, "", &error.to_string()).await?;
                return Err(error.into());
            }
        };
        let input = if spec.input || spec.pty.is_some() { started.stdin.take() } else { None };
        drop(started.stdin.take());
        let (pid, (orders, receiver)) = (started.id(), mpsc::channel(MAX_ORDERS));
        let process = Arc::new(SandboxProcess::new(pid, number, spec.shortened(), input, orders));
        let attached = process.attach()?;
        self.remember(&process);
        let time = (self.shared.meter.command(&self.tenant), self.leftovers.attend());
        self.shared.tasks.spawn(run(process, started, receiver, note, time, self.paused.subscribe(), permit));
        Ok(attached)
    }

    fn check(spec: &ProcessSpec) -> Result<(), Error> {
        let invalid = |field, reason: String| Err(Error::InvalidSandbox { field, reason });
        let words = spec.arguments.iter().map(String::len).sum::<usize>();
        let variables = spec.environment.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if spec.arguments.first().is_none_or(String::is_empty) {
            return invalid("cmd", "there is no command".to_owned());
        }
        if words + variables > MAX_COMMAND {
            return invalid("cmd", format!("a command and its variables may have {} KB", MAX_COMMAND >> 10));
        }
        if spec.arguments.iter().chain(&spec.directory).any(|word| word.contains('\0')) {
            return invalid("cmd", "a command has no zero bytes".to_owned());
        }
        if spec.tag.as_ref().is_some_and(|tag| tag.len() > MAX_TAG) {
            return invalid("tag", format!("a tag has at most {MAX_TAG} bytes"));
        }
        check_names(&spec.environment)?;
        Ok(())
    }

    fn remember(&self, process: &Arc<SandboxProcess>) {
        let mut known = self.lock();
        known.insert(process.number, Arc::clone(process));
        let ended: Vec<_> =
            known.values().filter(|process| process.has_ended()).map(|process| process.number).collect();
        for number in ended.iter().take(ended.len().saturating_sub(MAX_ENDED)) {
            known.remove(number);
        }
    }

    /// The commands that run, in the order in which they were started.
    pub fn running(&self) -> Vec<Arc<SandboxProcess>> {
        self.lock().values().filter(|process| !process.has_ended()).cloned().collect()
    }

    /// The last started command with this process id, running or ended.
    pub fn of_pid(&self, pid: u32) -> Option<Arc<SandboxProcess>> {
        self.lock().values().rev().find(|process| process.pid == pid).cloned()
    }

    /// The command that was last started under this tag.
    pub fn of_tag(&self, tag: &str) -> Option<Arc<SandboxProcess>> {
        self.lock().values().rev().find(|process| process.spec.tag.as_deref() == Some(tag)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<SandboxProcess>>> {
        // No code that holds it can panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SandboxProcess {
    fn new(
        pid: u32,
        number: u32,
        spec: ProcessSpec,
        input: Option<Box<dyn AsyncWrite + Send + Sync + Unpin>>,
        orders: mpsc::Sender<ControlMessage>,
    ) -> Self {
        Self {
            pid,
            number,
            spec,
            started: SystemTime::now(),
            input: AsyncMutex::new(input),
            orders,
            output: Mutex::default(),
            added: Notify::new(),
            taken: Notify::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Its process id, as programs of the sandbox see it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The request that started it.
    pub fn spec(&self) -> &ProcessSpec {
        &self.spec
    }

    /// The time when it was started.
    pub fn started(&self) -> SystemTime {
        self.started
    }

    /// Its end with the time; `None` while it runs.
    pub fn exit(&self) -> Option<(ProcessEnd, SystemTime)> {
        self.output().end
    }

    /// Its output from a cursor on; 0 is the beginning. Output from a time without a log is missing.
    pub fn log(&self, cursor: u64) -> LogPart {
        self.output().log.part(cursor)
    }

    /// Returns true once it has ended.
    pub fn has_ended(&self) -> bool {
        self.output().end.is_some()
    }

    /// Waits until it has ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Follows it, beginning with the output that nobody has read.
    pub fn attach(self: &Arc<Self>) -> Result<ProcessView, Error> {
        let follower = self.output().join().ok_or_else(|| {
            let reason = format!("{MAX_FOLLOWERS} clients follow this command already");
            Error::InvalidSandbox { field: "process", reason }
        })?;
        Ok(ProcessView { process: Arc::clone(self), follower, has_sent_end: false })
    }

    /// Sends input. Fails if its stdin does not exist or is closed, if it does not read, or if it ends.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let invalid = |reason: &str| Error::InvalidSandbox { field: "input", reason: reason.to_owned() };
        let writing = async {
            let mut input = self.input.lock().await;
            let Some(pipe) = input.as_mut() else { return Err(invalid("the input of this command is not open")) };
            pipe.write_all(bytes).await.map_err(|error| invalid(&format!("the command does not read: {error}")))
        };
        tokio::select! {
            biased;
            sent = timeout(INPUT_TIMEOUT, writing) => {
                sent.unwrap_or_else(|_| Err(invalid("the command does not read its input")))
            }
            // A child of it may hold the pipe open, and never read.
            () = self.ended() => Err(invalid("the command has ended")),
        }
    }

    /// Closes its input.
    pub async fn close_input(&self) {
        drop(self.input.lock().await.take());
    }

    /// Sends a signal to its process group. Does nothing if it has ended.
    pub async fn signal(&self, signal: i32) {
        self.orders.send(ControlMessage::Signal(signal)).await.ignore("the command may have ended");
    }

    /// Kills its process group, without waiting.
    pub fn kill(&self) {
        self.orders.try_send(ControlMessage::Signal(SIGKILL)).ignore("the command may have ended");
    }

    /// Changes the size of its terminal. Does nothing if it has ended or has no terminal.
    pub async fn resize(&self, size: PtySize) {
        self.orders.send(ControlMessage::Resize(size)).await.ignore("the command may have ended");
    }

    fn output(&self) -> MutexGuard<'_, OutputLog> {
        // No code that holds it can panic.
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes output to followers, and waits for slow ones; keeps it if there are none.
    async fn publish(&self, stream: ProcessStream, bytes: Bytes) {
        if self.spec.log {
            self.output().log.append(&bytes);
        }
        loop {
            let taken = self.taken.notified();
            {
                let mut output = self.output();
                if output.has_room() {
                    output.add(stream, bytes, self.spec.log);
                    break;
                }
            }
            taken.await;
        }
        self.added.notify_waiters();
    }

    /// Records its end, which followers get after its output.
    fn end(&self, end: ProcessEnd) {
        self.output().end = Some((end, SystemTime::now()));
        self.added.notify_waiters();
        self.ended.cancel();
    }
}

impl LogTail {
    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(MAX_KEPT);
        self.bytes.drain(..excess);
        self.dropped += excess as u64;
    }

    fn part(&self, cursor: u64) -> LogPart {
        let end = self.dropped + self.bytes.len() as u64;
        let from = cursor.clamp(self.dropped, end);
        let skipped = usize::try_from(from - self.dropped).unwrap_or(usize::MAX);
        let bytes = self.bytes.iter().skip(skipped).copied().collect();
        LogPart { bytes, dropped: from.saturating_sub(cursor), next: end }
    }
}

impl OutputLog {
    /// The number of a new follower; `None` if there are too many.
    fn join(&mut self) -> Option<u64> {
        if self.followers.len() >= MAX_FOLLOWERS {
            return None;
        }
        self.last_follower += 1;
        self.followers.insert(self.last_follower, self.unseen);
        Some(self.last_follower)
    }

    /// The number of the next chunk.
    fn next(&self) -> u64 {
        self.first + self.chunks.len() as u64
    }

    /// Returns true unless a follower is too far behind.
    fn has_room(&self) -> bool {
        self.followers.values().all(|position| self.next() - position < MAX_QUEUED_CHUNKS)
    }

    /// Adds a chunk. Without followers it keeps the last chunks, or none if the output is logged.
    fn add(&mut self, stream: ProcessStream, bytes: Bytes, is_logged: bool) {
        self.bytes += bytes.len();
        self.chunks.push_back((stream, bytes));
        self.forget(is_logged);
    }

    /// Takes the next chunk of a follower.
    fn take(&mut self, follower: u64) -> Option<(ProcessStream, Bytes)> {
        let position = self.followers.get_mut(&follower)?;
        let index = usize::try_from(*position - self.first).ok()?;
        let chunk = self.chunks.get(index)?.clone();
        *position += 1;
        self.unseen = self.unseen.max(*position);
        self.forget(false);
        Some(chunk)
    }

    /// Removes a follower. Unread output stays for the next one, within the bounds for output without followers.
    fn leave(&mut self, follower: u64, is_logged: bool) {
        self.followers.remove(&follower);
        self.forget(is_logged);
    }

    /// Removes the chunks that no follower needs.
    fn forget(&mut self, is_logged: bool) {
        let wanted = match self.followers.values().min() {
            Some(position) => *position,
            None if is_logged => self.next(),
            None => self.unseen,
        };
        let is_followed = !self.followers.is_empty();
        while self.first < wanted || (!is_followed && self.bytes > MAX_KEPT) {
            let Some((_, oldest)) = self.chunks.pop_front() else { break };
            self.bytes -= oldest.len();
            self.first += 1;
        }
        self.unseen = self.unseen.max(self.first);
    }
}

/// Runs a command: forwards output and signals, and records its end.
async fn run(
    process: Arc<SandboxProcess>,
    mut started: Started,
    mut orders: mpsc::Receiver<ControlMessage>,
    note: AuditNote,
    (time, _attendance): (CommandTime, Attendance),
    paused: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
) {
    let mut stdout = std::mem::replace(&mut started.stdout, Box::new(tokio::io::empty()));
    let mut stderr = std::mem::replace(&mut started.stderr, Box::new(tokio::io::empty()));
    let shown = if process.spec.pty.is_some() { ProcessStream::Pty } else { ProcessStream::Stdout };
    let ended = CancellationToken::new();
    let reading = async {
        tokio::join!(
            read_all(&process, shown, &mut *stdout, &ended),
            read_all(&process, ProcessStream::Stderr, &mut *stderr, &ended)
        )
    };
    let ending = async {
        let limit = process.spec.time_limit;
        let mut timer = std::pin::pin!(async {
            match limit {
                Some(limit) => sleep_unless_paused(limit, paused.clone()).await,
                None => std::future::pending().await,
            }
        });
        let mut timed_out = false;
        loop {
            let order = tokio::select! {
                status = started.wait() => {
                    return match status {
                        None => ProcessEnd::SandboxEnded,
                        Some(_) if timed_out => ProcessEnd::TimedOut,
                        Some(status) => ProcessEnd::Status(status),
                    };
                }
                () = &mut timer, if !timed_out => {
                    timed_out = true;
                    ControlMessage::Signal(SIGKILL)
                }
                // The sender lives as long as the process is known.
                Some(order) = orders.recv() => order,
            };
            match order {
                ControlMessage::Signal(signal) => started.signal(signal),
                ControlMessage::Resize(size) => {
                    started.resize(size).ignore("there may be no terminal");
                }
            }
        }
    };
    let mut reading = std::pin::pin!(reading);
    let mut ending = std::pin::pin!(time.count_during(paused.clone(), ending));
    let exit = tokio::select! {
        exit = &mut ending => {
            ended.cancel();
            reading.await;
            exit
        }
        _ends = &mut reading => ending.await,
    };
    let outcome = match exit {
        ProcessEnd::Status(ExitStatus::Code(code)) => format!("exit status {code}"),
        ProcessEnd::Status(ExitStatus::Signal(signal)) => format!("signal {signal}"),
        ProcessEnd::TimedOut => "time limit".to_owned(),
        ProcessEnd::SandboxEnded => "the sandbox ended".to_owned(),
    };
    if let Err(error) = note.write(AuditEvent::Ended, "", &outcome).await {
        tracing::error!("{}: a command has no end in the audit log until the next start: {error}", note.sandbox_id);
    }
    process.end(exit);
    // Whoever waited for it to read has given up.
    process.close_input().await;
}

/// Reads until the pipes are closed or, once the command has ended, until no more comes. Time spent waiting for followers does not count.
async fn read_all(
    process: &SandboxProcess,
    stream: ProcessStream,
    pipe: &mut (dyn AsyncRead + Send + Sync + Unpin),
    ended: &CancellationToken,
) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let silence = async {
            ended.cancelled().await;
            sleep(FINAL_OUTPUT_TIMEOUT).await;
        };
        let read = tokio::select! {
            read = pipe.read(&mut buffer) => read,
            () = silence => return,
        };
        let Ok(count @ 1..) = read else { return };
        let bytes = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        process.publish(stream, bytes).await;
    }
}

/// A command in the audit log.
struct AuditNote {
    store: Store,
    tenant: Tenant,
    sandbox_id: String,
    number: u32,
    line: String,
}

impl AuditNote {
    async fn write(&self, event: AuditEvent, actor: &str, outcome: &str) -> Result<(), Error> {
        let entry = AuditEntry {
            event,
            request: format!("{}-{}", self.sandbox_id, self.number),
            session: self.sandbox_id.clone(),
            code: self.line.clone(),
            actor: actor.to_owned(),
            outcome: outcome.to_owned(),
        };
        Ok(self.store.audit(&self.tenant, vec![entry]).await?)
    }
}

/// The command as a line that a shell would read back.
fn command_line(arguments: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./=:,+@%".contains(&byte))
    };
    let quoted = |word: &String| {
        if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    arguments.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command without a sandbox, with output from the test.
    fn scripted(log: bool) -> Arc<SandboxProcess> {
        let (orders, _receiver) = mpsc::channel(1);
        Arc::new(SandboxProcess::new(1, 1, ProcessSpec { log, ..ProcessSpec::default() }, None, orders))
    }

    #[test]
    fn of_a_command_no_more_is_kept_than_is_shown() {
        let long = "é".repeat(MAX_SHOWN / 2 - 4);
        let variables = [("A", "x"), ("B", long.as_str()), ("C", "y")];
        let environment: BTreeMap<_, _> =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let arguments = vec!["sh".to_owned(), "-c".to_owned(), "true".to_owned()];
        let spec = ProcessSpec { arguments: arguments.clone(), environment, ..ProcessSpec::default() }.shortened();
        assert_eq!((spec.arguments, spec.environment.into_keys().collect::<String>()), (arguments, "AC".to_owned()));
        let words = vec!["sh".to_owned(), long.clone(), long, "end".to_owned()];
        let spec = ProcessSpec { arguments: words.clone(), ..ProcessSpec::default() }.shortened();
        assert_eq!((&spec.arguments[..2], spec.arguments[2].as_str()), (&words[..2], "éé"));
        assert_eq!(spec.arguments.len(), 3);
    }

    async fn print(process: &SandboxProcess, text: &'static str) {
        process.publish(ProcessStream::Stdout, Bytes::from_static(text.as_bytes())).await;
    }

    async fn printed(view: &mut ProcessView) -> String {
        match view.next().await {
            Some(ProcessEvent::Output(_, bytes)) => String::from_utf8(bytes.into()).unwrap(),
            event => panic!("{event:?}"),
        }
    }

    #[tokio::test]
    async fn output_that_a_client_did_not_take_is_the_next_ones() {
        let process = scripted(false);
        let mut first = process.attach().unwrap();
        for text in ["one", "two", "three"] {
            print(&process, text).await;
        }
        assert_eq!(printed(&mut first).await, "one");
        drop(first);
        print(&process, "four").await;
        let mut second = process.attach().unwrap();
        assert_eq!(printed(&mut second).await, "two");
        drop(second);
        let mut third = process.attach().unwrap();
        assert_eq!([printed(&mut third).await, printed(&mut third).await], ["three", "four"]);
        process.end(ProcessEnd::TimedOut);
        assert_eq!(third.next().await, Some(ProcessEvent::Ended(ProcessEnd::TimedOut)));
        assert_eq!(third.next().await, None);
    }

    #[tokio::test]
    async fn each_of_several_clients_gets_all_and_none_of_it_comes_again() {
        let process = scripted(false);
        let (mut first, mut second) = (process.attach().unwrap(), process.attach().unwrap());
        print(&process, "one").await;
        assert_eq!([printed(&mut first).await, printed(&mut second).await], ["one", "one"]);
        print(&process, "two").await;
        assert_eq!(printed(&mut first).await, "two");
        drop((first, second));
        print(&process, "three").await;
        assert_eq!(printed(&mut process.attach().unwrap()).await, "three");
        assert!(process.output().chunks.is_empty());
    }

    #[tokio::test]
    async fn a_command_waits_for_the_slowest_client_and_no_longer_than_that_stays() {
        let process = scripted(false);
        let mut slow = process.attach().unwrap();
        for _ in 0..MAX_QUEUED_CHUNKS {
            print(&process, "x").await;
        }
        let mut waiting = Box::pin(print(&process, "y"));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        assert_eq!(printed(&mut slow).await, "x");
        assert!(futures_util::poll!(&mut waiting).is_ready());
        let mut waiting = Box::pin(print(&process, "z"));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        drop(slow);
        assert!(futures_util::poll!(&mut waiting).is_ready());
        let followers: Vec<_> = (0..MAX_FOLLOWERS).map(|_| process.attach().unwrap()).collect();
        assert!(process.attach().is_err());
        drop(followers);
        assert!(process.attach().is_ok());
    }

    #[tokio::test]
    async fn output_without_clients_is_bounded_and_none_where_a_log_has_it() {
        let chunk = Bytes::from(vec![b'x'; CHUNK_BYTES]);
        let (process, logged) = (scripted(false), scripted(true));
        let view = process.attach().unwrap();
        for _ in 0..4 {
            process.publish(ProcessStream::Stdout, chunk.clone()).await;
            logged.publish(ProcessStream::Stdout, chunk.clone()).await;
        }
        assert_eq!(process.output().bytes, 4 * CHUNK_BYTES);
        drop(view);
        assert_eq!(process.output().bytes, MAX_KEPT);
        process.publish(ProcessStream::Stdout, chunk).await;
        assert_eq!(process.output().bytes, MAX_KEPT);
        assert_eq!(logged.log(0).bytes.len(), MAX_KEPT);
        assert_eq!(logged.output().bytes, 0);
    }

    #[test]
    fn a_log_keeps_its_end_and_counts_the_rest() {
        let mut log = LogTail::default();
        log.append(b"abc");
        assert_eq!(log.part(1), LogPart { bytes: b"bc".to_vec(), dropped: 0, next: 3 });
        assert_eq!(log.part(9), LogPart { bytes: Vec::new(), dropped: 0, next: 3 });
        log.append(&vec![b'x'; MAX_KEPT]);
        let part = log.part(1);
        assert_eq!((part.bytes.len(), part.dropped, part.next), (MAX_KEPT, 2, 3 + MAX_KEPT as u64));
    }
}
