//! The warden's client: requests and their answers by number, reports by sandbox.
//!
//! Requests never block: each is sent at once if the warden's queue has room, and by a thread otherwise. The supervisor's thread receives
//! the warden's messages.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_jail::WardenProcess;
use aludel_jail::message::{
    self, FIRST_KERNEL, KernelStart, NumberedRequest, TerminalSize, WardenAnswer, WardenMessage, WardenRequest,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Semaphore, oneshot, watch};

use super::slots::Slot;
use crate::guest_pipe::Touched;
use crate::link::KernelExit;
use crate::process::{ExitStatus, PtySize};
use crate::{Error, Usage};

/// The longest wait for an answer of the warden.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections to one sandbox's ports that are asked for at once.
const MAX_CONNECTING: usize = 2;
/// Pause before one is asked for again that had no place.
const PORTS_BUSY_PAUSE: Duration = Duration::from_millis(5);
/// The longest wait for a checkpoint to wake.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(5);
/// Name of a refused system call with an unknown number.
const UNKNOWN_CALL: &str = "(an unknown number)";
/// Number of requests whose answer is not waited for.
const UNANSWERED: u64 = 0;
/// Reason of an end that the warden did not give.
const ENDED: &str = "the warden ended";
/// Reason of an end that came from here.
const HANGS: &str = "the warden gave no sign of life and was ended";
/// The longest silence of a warden before its last ping; without an answer it is replaced a fifth of this time later. It is silent while it
/// waits for an init (10 s at most) and a slow zygote (20 s), and may be short of processor time or memory.
pub(super) const MAX_SILENCE: Duration = Duration::from_secs(45);
/// Divisor of that time: after each part a silent warden is pinged.
const PARTS_OF_SILENCE: u32 = 5;

/// Connection of this process to one warden: sends it requests, and passes on its answers and reports.
#[derive(Debug)]
pub(crate) struct WardenClient {
    warden: WardenProcess,
    state: Mutex<State>,
    queue: Mutex<Queue>,
    queued: Condvar,
    /// Held while messages of the warden are received and passed on; contains the reason that it gave for its end.
    receiving: Mutex<Option<String>>,
    next_number: AtomicU64,
    next_id: AtomicU64,
    /// The host uid of slot 0, when every slot has its own.
    owner_base: Option<u32>,
    memory_is_bounded: bool,
    /// Longest silence.
    max_silence: Duration,
    /// Number of messages so far.
    received: AtomicU64,
    /// True if it has made a sandbox.
    has_made_sandbox: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// Waiters by the number of their request.
    waiters: HashMap<u64, Waiter>,
    /// Every sandbox that has a [`SandboxHandle`].
    reports: HashMap<u64, SandboxReports>,
    /// Reason for which nothing will be answered any more.
    over: Option<String>,
}

/// The receiver of an answer.
#[derive(Debug)]
enum Waiter {
    Caller(oneshot::Sender<AnswerWithDescriptors>),
    /// A workspace that is being closed. Its slot and files are released when the warden reports that it is gone.
    Workspace(#[allow(dead_code, reason = "held until the answer")] Slot, Option<Arc<OwnedFd>>),
}

#[derive(Debug)]
struct AnswerWithDescriptors {
    answer: WardenAnswer,
    descriptors: Vec<OwnedFd>,
}

/// Reports about a sandbox that no request asked for.
#[derive(Debug, Default)]
struct SandboxReports {
    kernels: HashMap<u64, KernelReports>,
    processes: HashMap<u64, oneshot::Sender<Option<ExitStatus>>>,
    sandbox_lost: watch::Sender<bool>,
}

/// News of a kernel.
#[derive(Debug, Default)]
struct KernelReports {
    exit: watch::Sender<Option<KernelExit>>,
    /// Names of refused system calls. Calls without a name count as one, so that there are never more than Linux has calls.
    refused_calls: BTreeSet<&'static str>,
}

/// Requests that could not be sent at once, for the writer thread.
#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Work>,
    /// True if the writer is busy with something that it took.
    is_writing: bool,
    is_over: bool,
}

#[derive(Debug)]
enum Work {
    Send(NumberedRequest, Vec<OwnedFd>),
    /// The last reference to files in memory; dropping it may take a while.
    Close(Arc<OwnedFd>),
}

impl WardenClient {
    /// Wraps a ready warden and starts the thread that writes to it.
    pub(super) fn start(
        warden: WardenProcess,
        owner_base: Option<u32>,
        memory_is_bounded: bool,
        max_silence: Duration,
    ) -> std::io::Result<Arc<Self>> {
        let client = Arc::new(Self {
            warden,
            state: Mutex::default(),
            queue: Mutex::default(),
            queued: Condvar::new(),
            receiving: Mutex::default(),
            next_number: AtomicU64::new(UNANSWERED + 1),
            next_id: AtomicU64::new(1),
            owner_base,
            memory_is_bounded,
            max_silence,
            received: AtomicU64::new(0),
            has_made_sandbox: AtomicBool::new(false),
        });
        let writer = Arc::clone(&client);
        std::thread::Builder::new().name("aludel-writer".into()).spawn(move || writer.write())?;
        Ok(client)
    }

    /// The host's user id of a slot, where every slot has its own.
    pub(super) fn owner_of(&self, slot: u32) -> Option<u32> {
        self.owner_base.map(|base| base + slot)
    }

    /// Returns true if a control group bounds the memory of a sandbox.
    pub(super) fn memory_is_bounded(&self) -> bool {
        self.memory_is_bounded
    }

    /// Returns true if it has made a sandbox.
    pub(super) fn has_made_sandbox(&self) -> bool {
        self.has_made_sandbox.load(Ordering::Relaxed)
    }

    /// Records that it has made a sandbox.
    pub(super) fn note_made_sandbox(&self) {
        self.has_made_sandbox.store(true, Ordering::Relaxed);
    }

    /// A new number for a sandbox or workspace of this warden.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the warden remove everything and end.
    pub(super) fn hang_up(&self) {
        self.warden.hang_up();
    }

    /// Waits until the warden has removed everything. Blocks; call it after [`WardenClient::hang_up`].
    pub(super) fn wait(&self) {
        self.warden.wait();
    }

    /// Returns true if no request will be answered any more. Pings the warden: its processes may be gone before its own end is known.
    pub(super) async fn is_over(&self) -> bool {
        let nothing = WardenRequest::Ping;
        matches!(self.ask("sign of life", nothing, Vec::new(), ANSWER_TIMEOUT).await, Err(Error::Over(_)))
    }

    /// Sends a request and waits for its answer, at most for `limit`. Giving up leaves nothing behind here.
    pub(super) async fn ask(
        &self,
        what: &'static str,
        request: WardenRequest,
        descriptors: Vec<OwnedFd>,
        limit: Duration,
    ) -> Result<(WardenAnswer, Vec<OwnedFd>), Error> {
        self.begin(request, descriptors)?.answer(what, limit).await
    }

    /// Sends a request, and returns the wait for its answer.
    pub(super) fn begin(&self, request: WardenRequest, descriptors: Vec<OwnedFd>) -> Result<PendingRequest<'_>, Error> {
        let (sender, receiver) = oneshot::channel();
        let number = self.wait_as(Waiter::Caller(sender))?;
        let asked = PendingRequest { client: self, number, receiver };
        self.send(NumberedRequest { number, request }, descriptors)?;
        Ok(asked)
    }

    /// Closes a workspace, even if the request to open it is not answered yet. The slot is released when nothing of it is left.
    pub(super) fn close_workspace(&self, workspace: u64, slot: Slot, root: Option<Arc<OwnedFd>>) {
        // Without a warden there is no workspace.
        if let Ok(number) = self.wait_as(Waiter::Workspace(slot, root)) {
            self.send(NumberedRequest { number, request: WardenRequest::CloseWorkspace { workspace } }, Vec::new())
                .ignore("without a warden there is no workspace");
        }
    }

    /// Sends a request whose answer is not waited for, if there is one.
    fn tell(&self, request: WardenRequest) {
        self.send(NumberedRequest { number: UNANSWERED, request }, Vec::new())
            .ignore("without a warden, the subject of the request does not exist either");
    }

    fn wait_as(&self, waiter: Waiter) -> Result<u64, Error> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.state()?.waiters.insert(number, waiter);
        Ok(number)
    }

    /// Sends now if that does not block and nothing else waits, otherwise leaves it to the writer thread.
    fn send(&self, request: NumberedRequest, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        let mut queue = self.queue.lock();
        if queue.is_over {
            return Err(self.over());
        }
        if queue.work.is_empty() && !queue.is_writing {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            match self.warden.try_send(&request, &borrowed) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if is_hang_up(&error) => return Err(self.over()),
                sent => return sent.map_err(|error| Error::Setup(format!("ask the warden: {error}"))),
            }
        }
        queue.work.push_back(Work::Send(request, descriptors));
        drop(queue);
        self.queued.notify_one();
        Ok(())
    }

    /// Does the work that could block, until the warden is gone.
    fn write(&self) {
        loop {
            let mut queue = self.queue.lock();
            queue.is_writing = false;
            let work = loop {
                if queue.is_over {
                    return;
                }
                match queue.work.pop_front() {
                    Some(work) => break work,
                    None => self.queued.wait(&mut queue),
                }
            };
            queue.is_writing = matches!(work, Work::Send(..));
            drop(queue);
            match work {
                // The caller has given up; what was not begun need not be undone.
                Work::Send(
                    NumberedRequest {
                        number,
                        request: WardenRequest::OpenWorkspace { .. } | WardenRequest::Create { .. },
                    },
                    _,
                ) if !self.state.lock().waiters.contains_key(&number) => {}
                Work::Send(request, descriptors) => {
                    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    self.warden.send(&request, &borrowed).ignore("the listening thread notices the warden's end");
                }
                Work::Close(descriptor) => drop(descriptor),
            }
        }
    }

    /// Passes on the warden's messages until it closes the socket, or hangs; returns the reason.
    pub(super) fn listen(&self) -> String {
        let mut silences = 0;
        let over = loop {
            let before = self.received.load(Ordering::Relaxed);
            let waited =
                self.warden.wait_for_reply(self.max_silence / PARTS_OF_SILENCE).map_err(|error| error.to_string());
            if let Err(reason) = waited.and_then(|()| self.receive()) {
                break reason;
            }
            // Another thread has received something.
            if self.received.load(Ordering::Relaxed) != before {
                silences = 0;
            } else if silences == PARTS_OF_SILENCE {
                self.warden.kill();
                break HANGS.to_owned();
            } else {
                silences += 1;
                self.tell(WardenRequest::Ping);
            }
        };
        let ended = {
            let mut state = self.state.lock();
            std::mem::replace(&mut *state, State { over: Some(over.clone()), ..State::default() })
        };
        for KernelReports { exit, .. } in ended.reports.into_values().flat_map(|reports| reports.kernels.into_values())
        {
            exit.send_replace(Some(KernelExit::default()));
        }
        // Dropping the senders ends the receivers' waits.
        drop(ended.waiters);
        self.queue.lock().is_over = true;
        self.queued.notify_all();
        over
    }

    /// Passes on the messages that have arrived, without waiting. The error is the reason for which no more will come.
    fn receive(&self) -> Result<(), String> {
        let mut over = self.receiving.lock();
        loop {
            if let Some(reason) = &*over {
                return Err(reason.clone());
            }
            match self.warden.try_receive() {
                Ok(Some((WardenMessage::Unusable { reason }, _))) => *over = Some(reason),
                Ok(Some((reply, descriptors))) => {
                    self.received.fetch_add(1, Ordering::Relaxed);
                    self.dispatch(reply, descriptors);
                }
                Ok(None) => *over = Some(ENDED.to_owned()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_hang_up(&error) => *over = Some(ENDED.to_owned()),
                Err(error) => *over = Some(format!("the warden is not understood: {error}")),
            }
        }
    }

    fn dispatch(&self, reply: WardenMessage, descriptors: Vec<OwnedFd>) {
        let mut state = self.state.lock();
        match reply {
            WardenMessage::Answer { number, answer } => match state.waiters.remove(&number) {
                Some(Waiter::Caller(sender)) => {
                    sender.send(AnswerWithDescriptors { answer, descriptors }).ignore("the caller may be gone");
                }
                Some(Waiter::Workspace(_, root)) => {
                    drop(state);
                    if let Some(root) = root {
                        self.queue.lock().work.push_back(Work::Close(root));
                        self.queued.notify_one();
                    }
                }
                None => {}
            },
            WardenMessage::Exited { id, kernel, status, out_of_memory } => {
                if let Some(kernel) = state.kernel(id, kernel) {
                    kernel.exit.send_replace(Some(KernelExit { status, out_of_memory }));
                }
            }
            WardenMessage::Lost { id } => {
                if let Some(reports) = state.reports.get(&id) {
                    reports.sandbox_lost.send_replace(true);
                }
            }
            WardenMessage::Restored { id } => {
                if let Some(kernel) = state.kernel(id, FIRST_KERNEL) {
                    kernel.exit.send_replace(None);
                }
            }
            WardenMessage::ProcessExited { id, process, status } => {
                let sender = state.reports.get_mut(&id).and_then(|reports| reports.processes.remove(&process));
                if let Some(sender) = sender {
                    sender.send(status).ignore("the receiver may be gone");
                }
            }
            WardenMessage::CallReported { id, kernel, number } => {
                if let Some(kernel) = state.kernel(id, kernel) {
                    let call = usize::try_from(number).ok().and_then(syscalls::Sysno::new);
                    kernel.refused_calls.insert(call.map_or(UNKNOWN_CALL, |call| call.name()));
                }
            }
            WardenMessage::Ready { .. } | WardenMessage::Unusable { .. } => {}
        }
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.state.lock();
        match &state.over {
            Some(reason) => Err(Error::Over(reason.clone())),
            None => Ok(state),
        }
    }

    /// The error for requests that will not be answered any more.
    pub(super) fn over(&self) -> Error {
        Error::Over(self.state.lock().over.clone().unwrap_or_else(|| ENDED.into()))
    }
}

impl State {
    fn kernel(&mut self, id: u64, kernel: u64) -> Option<&mut KernelReports> {
        self.reports.get_mut(&id)?.kernels.get_mut(&kernel)
    }
}

/// A sent request. Dropping it ends the wait for its answer.
pub(super) struct PendingRequest<'a> {
    client: &'a WardenClient,
    number: u64,
    receiver: oneshot::Receiver<AnswerWithDescriptors>,
}

impl PendingRequest<'_> {
    /// Waits for the answer, at most for `limit`.
    pub(super) async fn answer(
        mut self,
        what: &'static str,
        limit: Duration,
    ) -> Result<(WardenAnswer, Vec<OwnedFd>), Error> {
        match tokio::time::timeout(limit, &mut self.receiver).await {
            Ok(Ok(AnswerWithDescriptors { answer: WardenAnswer::Failed { reason }, .. })) => Err(Error::Setup(reason)),
            Ok(Ok(AnswerWithDescriptors { answer, descriptors })) => Ok((answer, descriptors)),
            Ok(Err(_)) => Err(self.client.over()),
            Err(_) => Err(Error::Timeout { what, limit }),
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.client.state.lock().waiters.remove(&self.number);
    }
}

/// One sandbox of the warden, from before its request on. Dropping it destroys the sandbox, made or not.
#[derive(Debug)]
pub(crate) struct SandboxHandle {
    id: u64,
    client: Arc<WardenClient>,
    next_kernel: AtomicU64,
    touched: Touched,
    /// True while it is paused or about to be.
    paused: watch::Sender<bool>,
    /// True if its end was asked for.
    ended: AtomicBool,
    /// True once it has ended unasked.
    sandbox_lost: watch::Receiver<bool>,
    /// Permits to ask for a connection, so that few requests wait at the warden.
    connecting: Semaphore,
}

/// One kernel of the warden, from before its request on. Dropping it ends the kernel; the first kernel ends with its sandbox.
#[derive(Debug)]
pub(crate) struct KernelHandle {
    sandbox: Arc<SandboxHandle>,
    number: u64,
    exit: watch::Receiver<Option<KernelExit>>,
}

impl SandboxHandle {
    /// A handle of a new sandbox.
    pub(super) fn new(client: &Arc<WardenClient>) -> Result<Self, Error> {
        let id = client.next_id();
        let reports = SandboxReports::default();
        let sandbox_lost = reports.sandbox_lost.subscribe();
        client.state()?.reports.insert(id, reports);
        let (next_kernel, ended) = (AtomicU64::new(FIRST_KERNEL + 1), AtomicBool::new(false));
        let (client, touched, paused) = (Arc::clone(client), Touched::default(), watch::Sender::new(false));
        let connecting = Semaphore::new(MAX_CONNECTING);
        Ok(Self { id, client, next_kernel, touched, paused, ended, sandbox_lost, connecting })
    }

    /// A handle of its first kernel, which keeps a checkpoint.
    pub(super) fn first_kernel(self: &Arc<Self>) -> Result<KernelHandle, Error> {
        self.insert_kernel(FIRST_KERNEL, 1)
    }

    /// A handle of a new kernel, if there are fewer than `most`.
    pub(super) fn kernel(self: &Arc<Self>, most: u32) -> Result<KernelHandle, Error> {
        self.insert_kernel(self.next_kernel.fetch_add(1, Ordering::Relaxed), most)
    }

    fn insert_kernel(self: &Arc<Self>, number: u64, most: u32) -> Result<KernelHandle, Error> {
        let mut state = self.client.state()?;
        let reports = state.reports.get_mut(&self.id).ok_or_else(|| Error::KernelGone("the sandbox ended".into()))?;
        let living = reports.kernels.values().filter(|kernel| kernel.exit.borrow().is_none()).count();
        if living as u64 >= most.into() {
            return Err(Error::Full);
        }
        let kernel = KernelReports::default();
        let exit = kernel.exit.subscribe();
        reports.kernels.insert(number, kernel);
        drop(state);
        Ok(KernelHandle { sandbox: Arc::clone(self), number, exit })
    }

    /// Returns true until its end is requested or its warden has ended.
    pub(super) fn is_there(&self) -> bool {
        !self.ended.load(Ordering::SeqCst) && !*self.sandbox_lost.borrow() && self.client.state().is_ok()
    }

    /// Waits until it has ended unasked, or its warden has.
    pub(super) async fn lost(&self) {
        // Reports about it end with its warden.
        let mut lost = self.sandbox_lost.clone();
        lost.wait_for(|is_lost| *is_lost).await.ignore("reports about it end with its warden");
    }

    /// The number that the sandbox has at the warden.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The connection to its warden.
    pub(super) fn client(&self) -> &Arc<WardenClient> {
        &self.client
    }

    /// The mark that programs may run in it.
    pub(super) fn touched(&self) -> &Touched {
        &self.touched
    }

    /// Fails if the end of the sandbox was requested, even before it was made.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.ended.load(Ordering::SeqCst) {
            return Err(Error::Setup("the sandbox was destroyed while it was made".into()));
        }
        Ok(())
    }

    /// Starts a process. The receiver gets its end: `None` if it could not be made or the sandbox is gone.
    pub(crate) fn spawn(
        &self,
        process: u64,
        terminal: bool,
        descriptors: [OwnedFd; 5],
    ) -> Result<oneshot::Receiver<Option<ExitStatus>>, Error> {
        self.touched.touch();
        let (sender, ended) = oneshot::channel();
        let mut state = self.client.state()?;
        let reports = state.reports.get_mut(&self.id).ok_or_else(|| Error::KernelGone("the sandbox ended".into()))?;
        reports.processes.insert(process, sender);
        drop(state);
        let request =
            NumberedRequest { number: UNANSWERED, request: WardenRequest::Spawn { id: self.id, process, terminal } };
        if let Err(error) = self.client.send(request, descriptors.into()) {
            if let Ok(mut state) = self.client.state()
                && let Some(reports) = state.reports.get_mut(&self.id)
            {
                reports.processes.remove(&process);
            }
            return Err(error);
        }
        Ok(ended)
    }

    /// True while it is paused or about to be.
    pub(super) fn paused(&self) -> &watch::Sender<bool> {
        &self.paused
    }

    /// Fails while it is paused.
    pub(super) fn check_running(&self) -> Result<(), Error> {
        if *self.paused.borrow() { Err(Error::Paused) } else { Ok(()) }
    }

    /// Stops everything in it. Await it to its end: dropped earlier, it leaves the sandbox half stopped.
    pub(super) async fn pause(&self) -> Result<(), Error> {
        self.paused.send_replace(true);
        let asked = self.client.ask("pause", WardenRequest::Freeze { id: self.id }, Vec::new(), ANSWER_TIMEOUT).await;
        let stopped = asked.and_then(|(answer, _)| match answer {
            WardenAnswer::NotStopped => Err(Error::NotStopped),
            _ => Ok(()),
        });
        if stopped.is_err() {
            // An answer that was too late to be waited for says that it is stopped.
            self.client.tell(WardenRequest::Thaw { id: self.id });
            self.paused.send_replace(false);
        }
        stopped
    }

    /// Lets everything go on. To be waited for to the end.
    pub(super) async fn resume(&self) -> Result<(), Error> {
        self.client.ask("resume", WardenRequest::Thaw { id: self.id }, Vec::new(), ANSWER_TIMEOUT).await?;
        self.paused.send_replace(false);
        Ok(())
    }

    /// Opens a terminal, and returns its controlling side and the side for programs.
    pub(super) async fn open_terminal(&self, size: PtySize) -> Result<[OwnedFd; 2], Error> {
        let PtySize { columns, rows } = size;
        let request = WardenRequest::OpenTerminal { id: self.id, size: TerminalSize { columns, rows } };
        let (answer, descriptors) = self.client.ask("terminal", request, Vec::new(), ANSWER_TIMEOUT).await?;
        if matches!(answer, WardenAnswer::NoTerminal) {
            return Err(Error::NoTerminal);
        }
        descriptors.try_into().map_err(|_| Error::Setup("the terminal came without its ends".into()))
    }

    /// Connects to a port. The connection may not be established yet. Waits while as many connections are being made as may be.
    pub(super) async fn connect(&self, port: u16) -> Result<OwnedFd, Error> {
        let _permit = self.connecting.acquire().await;
        loop {
            let request = WardenRequest::Connect { id: self.id, port };
            match self.client.ask("connection", request, Vec::new(), ANSWER_TIMEOUT).await? {
                (WardenAnswer::PortClosed, _) => return Err(Error::PortClosed(port)),
                (WardenAnswer::PortsBusy, _) => tokio::time::sleep(PORTS_BUSY_PAUSE).await,
                (_, descriptors) => {
                    let socket = descriptors.into_iter().next();
                    return socket.ok_or_else(|| Error::Setup("the connection came without its socket".into()));
                }
            }
        }
    }

    /// Sends a signal to a program that [`SandboxHandle::spawn`] started.
    pub(crate) fn signal_process(&self, process: u64, signal: i32) {
        self.client.tell(WardenRequest::SignalProcess { id: self.id, process, signal });
    }

    /// Returns the sandbox's usage; zeros when it is gone.
    pub(crate) async fn usage(&self) -> Usage {
        match self.client.ask("usage", WardenRequest::Usage { id: self.id }, Vec::new(), ANSWER_TIMEOUT).await {
            Ok((WardenAnswer::Usage(usage), _)) => self::usage(usage),
            _ => Usage::default(),
        }
    }

    /// Destroys the sandbox and waits until nothing of it is left. May be called at any time, and repeatedly.
    pub(crate) async fn destroy(&self) -> Result<(), Error> {
        self.ended.store(true, Ordering::SeqCst);
        match self
            .client
            .ask("end of the sandbox", WardenRequest::Destroy { id: self.id }, Vec::new(), ANSWER_TIMEOUT)
            .await
        {
            // It has ended with its warden.
            Ok(_) | Err(Error::Over(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for SandboxHandle {
    fn drop(&mut self) {
        self.client.state.lock().reports.remove(&self.id);
        // Even if its end was requested before: that may have been before it was made.
        self.client.tell(WardenRequest::Destroy { id: self.id });
    }
}

impl KernelHandle {
    /// The request that makes this kernel, for a further one.
    pub(super) fn start_request(&self, start: KernelStart) -> WardenRequest {
        WardenRequest::StartKernel { id: self.sandbox.id, kernel: self.number, start }
    }

    /// Returns true if it keeps a checkpoint: only the sandbox's first kernel does.
    pub(super) fn keeps_checkpoint(&self) -> bool {
        self.number == FIRST_KERNEL
    }

    /// Its sandbox.
    pub(super) fn sandbox(&self) -> &Arc<SandboxHandle> {
        &self.sandbox
    }

    /// The end of the kernel process, set once it has ended and no checkpoint has taken over.
    pub(super) fn exit(&self) -> watch::Receiver<Option<KernelExit>> {
        self.exit.clone()
    }

    /// Sends a signal to the kernel process.
    pub(super) fn signal(&self, signal: i32) {
        let Self { sandbox, number: kernel, .. } = self;
        sandbox.client.tell(WardenRequest::Signal { id: sandbox.id, kernel: *kernel, signal });
    }

    /// Ends the kernel and its checkpoint.
    pub(super) fn end(&self) {
        let Self { sandbox, number: kernel, .. } = self;
        sandbox.client.tell(WardenRequest::EndKernel { id: sandbox.id, kernel: *kernel });
    }

    /// Returns true if its checkpoint may take over: no other kernel or program, which it would end, runs in the sandbox.
    pub(super) fn is_alone(&self) -> bool {
        let Ok(state) = self.sandbox.client.state() else { return false };
        let Some(reports) = state.reports.get(&self.sandbox.id) else { return false };
        let is_other =
            |(number, kernel): (&u64, &KernelReports)| *number != self.number && kernel.exit.borrow().is_none();
        self.keeps_checkpoint() && reports.processes.is_empty() && !reports.kernels.iter().any(is_other)
    }

    /// Replaces an ended kernel by its checkpoint. `pipes` are the kernel's ends of the new channel.
    pub(super) async fn restore(&self, pipes: [OwnedFd; 2]) -> bool {
        let request = WardenRequest::Restore { id: self.sandbox.id };
        self.sandbox.client.ask("checkpoint", request, pipes.into(), RESTORE_TIMEOUT).await.is_ok()
    }

    /// Takes the names of the system calls refused since the last call of this. Call it after [`KernelHandle::synced`].
    pub(super) fn take_refused_calls(&self) -> Vec<String> {
        let Ok(mut state) = self.sandbox.client.state() else { return Vec::new() };
        let kernel = state.kernel(self.sandbox.id, self.number);
        let names = kernel.map(|kernel| std::mem::take(&mut kernel.refused_calls)).unwrap_or_default();
        names.into_iter().map(str::to_owned).collect()
    }

    /// Reports that a cell begins for which a client waits.
    pub(super) fn foreground(&self) {
        self.sandbox.client.tell(WardenRequest::Foreground { id: self.sandbox.id });
    }

    /// Handles the messages that the warden has sent by now.
    pub(super) fn catch_up(&self) {
        // The listening thread reports its end.
        let _over = self.sandbox.client.receive();
    }

    /// Returns when the warden has handled all requests so far, and its reports up to then have arrived.
    pub(super) async fn synced(&self) {
        self.sandbox
            .client
            .ask("answer", WardenRequest::Ping, Vec::new(), ANSWER_TIMEOUT)
            .await
            .ignore("without a warden there is nothing to wait for");
    }
}

impl Drop for KernelHandle {
    fn drop(&mut self) {
        if !self.keeps_checkpoint() {
            if let Some(reports) = self.sandbox.client.state.lock().reports.get_mut(&self.sandbox.id) {
                reports.kernels.remove(&self.number);
            }
            self.end();
        }
    }
}

/// Returns true for the errors of a socket whose other end is closed.
fn is_hang_up(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset)
}

fn usage(usage: message::CgroupUsage) -> Usage {
    let message::CgroupUsage { memory, memory_peak, cpu } = usage;
    Usage { memory, memory_peak, cpu: Duration::from_micros(cpu) }
}
