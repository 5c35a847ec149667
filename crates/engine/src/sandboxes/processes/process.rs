//! One command, and the views of its clients.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aludel_ignore::Ignore;
use aludel_sandbox::process::{ExitStatus, Process as Started, PtySize, SIGKILL};
use aludel_store::AuditEvent;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::audit_note::AuditNote;
use super::output_log::{LogPart, MAX_FOLLOWERS, OutputLog, ProcessStream};
use super::{ProcessEnd, ProcessSpec};
use crate::Error;
use crate::meter::{Attendance, CommandTime, sleep_unless_paused};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 32 << 10;
/// Bytes of a stream that are read in a second while nobody follows its command. A command that prints faster waits.
const UNFOLLOWED_SPEED: f64 = (8 << 20) as f64;
/// Time for reading the rest of a command's pipes after its end: its children may hold them open for ever.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_millis(300);

/// Something that a command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// It printed something.
    Output(ProcessStream, Bytes),
    /// It ended; nothing follows.
    Ended(ProcessEnd),
}

/// A command that runs or has ended.
pub struct SandboxProcess {
    pid: u32,
    /// Its number in the order in which commands were started.
    pub(super) number: u32,
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
pub(super) enum ControlMessage {
    Signal(i32),
    Resize(PtySize),
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
                let mut output = process.output.lock();
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
        self.process.output.lock().leave(self.follower, self.process.spec.log);
        self.process.taken.notify_waiters();
    }
}

impl SandboxProcess {
    pub(super) fn new(
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
        self.output.lock().end
    }

    /// Its output from a cursor on; 0 is the beginning. Output from a time without a log is missing.
    pub fn log(&self, cursor: u64) -> LogPart {
        self.output.lock().log.part(cursor)
    }

    /// Returns true once it has ended.
    pub fn has_ended(&self) -> bool {
        self.output.lock().end.is_some()
    }

    /// Waits until it has ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Follows it, beginning with the output that nobody has read.
    pub fn attach(self: &Arc<Self>) -> Result<ProcessView, Error> {
        let full = Error::SandboxFull { limit: MAX_FOLLOWERS, things: "clients that follow a command" };
        let follower = self.output.lock().join().ok_or(full)?;
        Ok(ProcessView { process: Arc::clone(self), follower, has_sent_end: false })
    }

    /// Sends input, and waits until the command reads it: as long as the caller does. Fails if its stdin does not exist or is closed,
    /// or if it ends.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let invalid = |reason: &str| Error::Invalid { field: "input", reason: reason.to_owned() };
        let writing = async {
            let mut input = self.input.lock().await;
            let Some(pipe) = input.as_mut() else { return Err(invalid("the input of this command is not open")) };
            pipe.write_all(bytes).await.map_err(|error| invalid(&format!("the command does not read: {error}")))
        };
        tokio::select! {
            biased;
            sent = writing => sent,
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

    /// Passes output to followers, and waits for slow ones; keeps it if there are none.
    async fn publish(&self, stream: ProcessStream, bytes: Bytes) {
        if self.spec.log {
            self.output.lock().log.append(&bytes);
        }
        loop {
            let taken = self.taken.notified();
            {
                let mut output = self.output.lock();
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
        self.output.lock().end = Some((end, SystemTime::now()));
        self.added.notify_waiters();
        self.ended.cancel();
    }
}

/// Runs a command: forwards output and signals, and records its end.
pub(super) async fn run(
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
        tracing::error!("{}: a command has no end in the audit log until the next start: {error}", note.sandbox());
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
            // A busy host can be late by the whole silence, with the last output in the pipe.
            biased;
            read = pipe.read(&mut buffer) => read,
            () = silence => return,
        };
        let Ok(count @ 1..) = read else { return };
        let bytes = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        process.publish(stream, bytes).await;
        if !process.output.lock().has_followers() {
            sleep(Duration::from_secs_f64(count as f64 / UNFOLLOWED_SPEED)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::output_log::{MAX_KEPT, MAX_QUEUED_CHUNKS};
    use super::*;

    /// A command without a sandbox, with output from the test.
    fn scripted(log: bool) -> Arc<SandboxProcess> {
        let (orders, _receiver) = mpsc::channel(1);
        Arc::new(SandboxProcess::new(1, 1, ProcessSpec { log, ..ProcessSpec::default() }, None, orders))
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
        assert!(process.output.lock().chunks.is_empty());
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

    #[tokio::test(start_paused = true)]
    async fn the_last_output_is_read_however_late() {
        for _ in 0..20 {
            let process = scripted(false);
            let mut view = process.attach().unwrap();
            let (mut pipe, mut command) = tokio::io::duplex(64);
            let ended = CancellationToken::new();
            ended.cancel();
            let mut reading = Box::pin(read_all(&process, ProcessStream::Stdout, &mut pipe, &ended));
            assert!(futures_util::poll!(&mut reading).is_pending());
            command.write_all(b"last").await.unwrap();
            tokio::time::advance(2 * FINAL_OUTPUT_TIMEOUT).await;
            assert!(futures_util::poll!(&mut reading).is_pending());
            assert_eq!(printed(&mut view).await, "last");
        }
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
        assert_eq!(process.output.lock().bytes, 4 * CHUNK_BYTES);
        drop(view);
        assert_eq!(process.output.lock().bytes, MAX_KEPT);
        process.publish(ProcessStream::Stdout, chunk).await;
        assert_eq!(process.output.lock().bytes, MAX_KEPT);
        assert_eq!(logged.log(0).bytes.len(), MAX_KEPT);
        assert_eq!(logged.output.lock().bytes, 0);
    }
}
