//! A scripted kernel: a task that speaks the kernel program's protocol.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use aludel_ignore::Ignore;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::Script;
use super::commands::Commands;
use super::script::{ScriptStep, ScriptedCell, raised};
use super::workspace::MemoryWorkspace;
use crate::frame::{FromKernel, LONG_FRAME, ToKernel};
use crate::link::{KernelExit, Link, LinkControl, LinkInput, OutputStream, Signal};
use crate::process::{ExitStatus, Process, SIGKILL};
use crate::{ClientAnswer, ClientCall, Error, ProgramError, Usage};

/// Messages that the host has not read; a program that prints more waits.
const QUEUE: usize = 16;
/// Bytes that a flood prints at once.
const CHUNK: usize = 16 << 10;

type Variables = BTreeMap<String, String>;
type Answers = (u64, Vec<ClientAnswer>);

/// A program for a scripted kernel.
struct CellProgram {
    code: String,
    environment: Variables,
    tools: Vec<String>,
}

/// The scripted kernels of one sandbox.
#[derive(Debug, Default)]
pub(super) struct Kernels {
    live: Mutex<Vec<Weak<MemoryControl>>>,
    /// True once the first kernel was started.
    has_first: AtomicBool,
    /// True while the sandbox is paused: the driver then reads nothing, so the kernels soon wait.
    paused: watch::Sender<bool>,
    is_destroyed: AtomicBool,
    commands: Commands,
}

impl Kernels {
    /// Starts a kernel without variables, if there are fewer than `most`.
    pub(super) fn start(
        self: &Arc<Self>,
        script: &Arc<Script>,
        workspace: &Arc<MemoryWorkspace>,
        most: u32,
    ) -> Result<MemoryLink, Error> {
        let mut live = self.live.lock();
        live.retain(|kernel| kernel.upgrade().is_some_and(|kernel| kernel.exit.borrow().is_none()));
        if self.is_destroyed() {
            return Err(Error::KernelGone("the sandbox ended".into()));
        }
        if *self.paused.borrow() {
            return Err(Error::Paused);
        }
        if live.len() as u64 >= most.into() {
            return Err(Error::Full);
        }
        let link = MemoryLink::start(Arc::clone(script), Arc::clone(workspace), Arc::clone(self));
        // Further kernels keep none, as on every backend.
        link.control.has_checkpoint.store(!self.has_first.swap(true, Ordering::Relaxed), Ordering::Relaxed);
        live.push(Arc::downgrade(&link.control));
        Ok(link)
    }

    /// Starts a command beside the kernels.
    pub(super) fn start_command(&self) -> Result<Process, Error> {
        if self.is_destroyed() {
            return Err(Error::KernelGone("the sandbox ended".into()));
        }
        if *self.paused.borrow() {
            return Err(Error::Paused);
        }
        Ok(self.commands.start())
    }

    /// Pauses the kernels, or lets them go on.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    pub(super) fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::Relaxed)
    }

    /// Kills every kernel and command, and leaves no kernel a checkpoint.
    pub(super) fn kill_for_good(&self) {
        let live = self.live.lock();
        self.is_destroyed.store(true, Ordering::Relaxed);
        live.iter().filter_map(Weak::upgrade).for_each(|kernel| kernel.end());
        self.commands.end();
    }

    /// Ends the sandbox and waits until its kernels have ended.
    pub(super) async fn destroy(&self) {
        self.kill_for_good();
        let live: Vec<_> = self.live.lock().iter().filter_map(Weak::upgrade).collect();
        for kernel in live {
            let mut exit = kernel.exit.subscribe();
            exit.wait_for(Option::is_some).await.ignore("the sender is a field of this kernel");
        }
    }

    /// Returns true if no other kernel runs: only then may a checkpoint take over, as on every backend.
    fn is_alone(&self, of: &Arc<MemoryControl>) -> bool {
        let is_other = |kernel: Arc<MemoryControl>| !Arc::ptr_eq(&kernel, of) && kernel.exit.borrow().is_none();
        !self.live.lock().iter().filter_map(Weak::upgrade).any(is_other)
    }
}

/// The host's end of a scripted kernel.
pub(super) struct MemoryLink {
    script: Arc<Script>,
    workspace: Arc<MemoryWorkspace>,
    control: Arc<MemoryControl>,
    /// Variables from before the cell that runs.
    checkpoint: Arc<Mutex<Variables>>,
    /// Environment variables for all cells.
    environment: Variables,
    kernels: Arc<Kernels>,
    cells: mpsc::Sender<CellProgram>,
    /// Answers to calls of the client's tools, each with the number of its request.
    answers: mpsc::UnboundedSender<Answers>,
    inputs: mpsc::Receiver<LinkInput>,
    /// Taken out of `inputs` and not handed on yet.
    pending: VecDeque<LinkInput>,
    /// True if the next frame is skipped.
    skips: bool,
}

/// The end of a scripted kernel that signals go to.
#[derive(Debug)]
pub(super) struct MemoryControl {
    /// Interrupts so far.
    interrupts: watch::Sender<u64>,
    /// Kills so far: a checkpoint that takes over is not affected by the kill that ended the kernel.
    kills: watch::Sender<u64>,
    exit: watch::Sender<Option<KernelExit>>,
    has_checkpoint: AtomicBool,
    paused: watch::Receiver<bool>,
}

impl LinkControl for MemoryControl {
    fn signal(&self, signal: Signal) {
        match signal {
            Signal::Interrupt => self.interrupts.send_modify(|interrupts| *interrupts += 1),
            Signal::Kill => self.kills.send_modify(|kills| *kills += 1),
        }
    }

    fn keeps_checkpoint(&self) -> bool {
        self.has_checkpoint.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.has_checkpoint.store(false, Ordering::Relaxed);
        self.signal(Signal::Kill);
    }

    fn paused(&self) -> watch::Receiver<bool> {
        self.paused.clone()
    }

    async fn usage(&self) -> Usage {
        Usage::default()
    }
}

impl MemoryLink {
    fn start(script: Arc<Script>, workspace: Arc<MemoryWorkspace>, kernels: Arc<Kernels>) -> Self {
        let control = Arc::new(MemoryControl {
            interrupts: watch::Sender::new(0),
            kills: watch::Sender::new(0),
            exit: watch::Sender::new(None),
            has_checkpoint: AtomicBool::new(true),
            paused: kernels.paused.subscribe(),
        });
        let checkpoint = Arc::default();
        let kills = control.kills.subscribe();
        let (cells, answers, inputs) = spawn(&script, &workspace, &control, &checkpoint, kills);
        let (environment, pending, skips) = (Variables::new(), VecDeque::new(), false);
        Self { script, workspace, control, checkpoint, environment, kernels, cells, answers, inputs, pending, skips }
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.control.end();
        self.kernels.live.lock().retain(|kernel| !std::ptr::eq(kernel.as_ptr(), Arc::as_ptr(&self.control)));
    }
}

impl Link for MemoryLink {
    type Control = MemoryControl;

    fn control(&self) -> &Arc<MemoryControl> {
        &self.control
    }

    fn exit(&self) -> watch::Receiver<Option<KernelExit>> {
        self.control.exit.subscribe()
    }

    async fn send(&mut self, frame: &ToKernel<'_>) -> io::Result<()> {
        match frame {
            ToKernel::Execute { code, environment, tools } => {
                let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
                let all = self.environment.clone().into_iter().chain(environment.iter().cloned());
                let (code, environment) = ((*code).to_owned(), all.collect());
                let program = CellProgram { code, environment, tools: tools.to_vec() };
                self.cells.send(program).await.map_err(gone)
            }
            // The workspace is the only directory.
            ToKernel::Configure { directory: _, environment, forms: _, command_line, language } => {
                self.environment.extend(environment.iter().cloned());
                let answer = match (command_line, language) {
                    (None, None) => FromKernel::Configured,
                    (Some(_), _) => FromKernel::Failed("a scripted program has no command line".to_owned()),
                    (None, Some(language)) => FromKernel::Failed(format!("no kernel for {language} is installed")),
                };
                self.pending.push_back(LinkInput::Frame(answer, 0));
                Ok(())
            }
            ToKernel::Answers { number, answers } => {
                self.answers.send((*number, answers.to_vec())).ignore("a program that has ended needs no answer");
                Ok(())
            }
            // A scripted program does not wait for its displays, has no limits of its own and needs no rehearsal.
            ToKernel::Shown { .. } | ToKernel::Start { .. } | ToKernel::WarmUp | ToKernel::Run { .. } => Ok(()),
        }
    }

    async fn receive(&mut self) -> io::Result<LinkInput> {
        let input = match self.pending.pop_front() {
            Some(input) => input,
            None => self.inputs.recv().await.unwrap_or(LinkInput::Closed),
        };
        Ok(match input {
            LinkInput::LongFrame(_) => {
                self.skips = true;
                input
            }
            LinkInput::Frame(FromKernel::Display(..) | FromKernel::Result(_), _) if std::mem::take(&mut self.skips) => {
                LinkInput::SkippedFrame(None)
            }
            input => input,
        })
    }

    fn accept(&mut self) {
        self.skips = false;
    }

    async fn printed(&mut self, stream: OutputStream) -> Vec<u8> {
        while self.pending.len() < QUEUE
            && let Ok(input) = self.inputs.try_recv()
        {
            self.pending.push_back(input);
        }
        // Frames come after earlier output, so output that follows a frame has to wait.
        let printed = |input: &LinkInput| matches!(input, LinkInput::Printed(of, _) if *of == stream);
        let before_frames = self.pending.iter().take_while(|input| matches!(input, LinkInput::Printed(..)));
        let position = before_frames.enumerate().find(|(_, input)| printed(input)).map(|(position, _)| position);
        match position.and_then(|position| self.pending.remove(position)) {
            Some(LinkInput::Printed(_, bytes)) => bytes,
            _ => Vec::new(),
        }
    }

    async fn restore(&mut self) -> bool {
        // Subscribed before the check for its end: a later kill reaches the new kernel.
        let kills = self.control.kills.subscribe();
        if !self.control.keeps_checkpoint() || !self.kernels.is_alone(&self.control) {
            return false;
        }
        self.pending.clear();
        self.control.exit.send_replace(None);
        (self.cells, self.answers, self.inputs) =
            spawn(&self.script, &self.workspace, &self.control, &self.checkpoint, kills);
        true
    }
}

/// Starts a kernel's task, which goes on from the checkpoint.
fn spawn(
    script: &Arc<Script>,
    workspace: &Arc<MemoryWorkspace>,
    control: &Arc<MemoryControl>,
    checkpoint: &Arc<Mutex<Variables>>,
    mut kills: watch::Receiver<u64>,
) -> (mpsc::Sender<CellProgram>, mpsc::UnboundedSender<Answers>, mpsc::Receiver<LinkInput>) {
    let (cells, cell_receiver) = mpsc::channel(1);
    let (answers, answer_receiver) = mpsc::unbounded_channel();
    let (input_sender, inputs) = mpsc::channel(QUEUE);
    let kernel = ScriptedKernel {
        script: Arc::clone(script),
        workspace: Arc::clone(workspace),
        interrupts: control.interrupts.subscribe(),
        checkpoint: Arc::clone(checkpoint),
        cells: cell_receiver,
        answers: answer_receiver,
        inputs: input_sender,
        displays: 0,
    };
    let control = Arc::clone(control);
    tokio::spawn(async move {
        let exited = |status| KernelExit { status: Some(status), out_of_memory: None };
        let exit = tokio::select! {
            biased;
            // It cannot fail: this task holds the sender.
            _killed = kills.changed() => exited(ExitStatus::Signal(SIGKILL)),
            died = kernel.run() => died.unwrap_or(exited(ExitStatus::Code(0))),
        };
        control.exit.send_replace(Some(exit));
    });
    (cells, answers, inputs)
}

/// The task's side.
struct ScriptedKernel {
    script: Arc<Script>,
    workspace: Arc<MemoryWorkspace>,
    interrupts: watch::Receiver<u64>,
    checkpoint: Arc<Mutex<Variables>>,
    cells: mpsc::Receiver<CellProgram>,
    answers: mpsc::UnboundedReceiver<Answers>,
    inputs: mpsc::Sender<LinkInput>,
    displays: u64,
}

/// The end of a cell before its last step.
enum CellEnd {
    /// An exception of this name, with this value.
    Raised(&'static str, Cow<'static, str>),
    Failed(ProgramError),
    Died(KernelExit),
}

impl ScriptedKernel {
    /// Runs cells until none is left or it dies of one.
    async fn run(mut self) -> Option<KernelExit> {
        while let Some(CellProgram { code, environment, tools }) = self.cells.recv().await {
            self.interrupts.mark_unchanged();
            let variables = self.checkpoint.lock().clone();
            let mut cell = ScriptedCell::new(&code, variables, environment, Arc::clone(&self.workspace));
            cell.tools = tools;
            (self.script)(&code, &mut cell);
            let ScriptedCell { variables, steps, .. } = cell;
            let mut ended = Ok(());
            for step in steps {
                ended = self.step(step).await;
                if ended.is_err() {
                    break;
                }
            }
            match ended {
                Ok(()) => {}
                Err(CellEnd::Raised(name, value)) => self.send(FromKernel::Error(raised(&code, name, &value))).await,
                Err(CellEnd::Failed(error)) => self.send(FromKernel::Error(error)).await,
                Err(CellEnd::Died(exit)) => return Some(exit),
            }
            *self.checkpoint.lock() = variables;
            self.send(FromKernel::Done).await;
        }
        None
    }

    async fn step(&mut self, step: ScriptStep) -> Result<(), CellEnd> {
        match step {
            ScriptStep::Print(text) => self.print(OutputStream::Stdout, text.into_bytes()).await,
            ScriptStep::PrintError(text) => self.print(OutputStream::Stderr, text.into_bytes()).await,
            ScriptStep::Flood(bytes) => {
                let mut line = vec![b'x'; CHUNK - 1];
                line.push(b'\n');
                let mut left = bytes;
                while left > 0 {
                    let count = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
                    self.print(OutputStream::Stdout, line.get(CHUNK - count..).unwrap_or_default().to_vec()).await?;
                    left -= count as u64;
                }
                Ok(())
            }
            ScriptStep::Display(bundle) => {
                self.displays += 1;
                self.send(FromKernel::Display(bundle, self.displays)).await;
                self.unless_interrupted(std::future::ready(())).await
            }
            ScriptStep::Result(bundle) => {
                self.send(FromKernel::Result(bundle)).await;
                Ok(())
            }
            ScriptStep::Call(calls) => {
                let answers = self.call(calls).await?;
                for answer in answers {
                    if answer.is_error {
                        return Err(CellEnd::Raised("ToolError", answer.text.into()));
                    }
                    self.print(OutputStream::Stdout, format!("{}\n", answer.text).into_bytes()).await?;
                }
                Ok(())
            }
            ScriptStep::Fail(error) => Err(CellEnd::Failed(error)),
            ScriptStep::Write(path, bytes) => {
                if self.workspace.write_some(&path, &bytes) {
                    return Ok(());
                }
                Err(CellEnd::Raised("OSError", "[Errno 28] No space left on device".into()))
            }
            ScriptStep::Wait(signal) => self.unless_interrupted(async move { signal.notified().await }).await,
            ScriptStep::Hang => std::future::pending().await,
            ScriptStep::Die(exit) => Err(CellEnd::Died(exit)),
        }
    }

    /// Calls tools of the client's and waits for the answers.
    async fn call(&mut self, calls: Vec<ClientCall>) -> Result<Vec<ClientAnswer>, CellEnd> {
        self.displays += 1;
        self.send(FromKernel::Calls(calls, self.displays)).await;
        loop {
            let answers = tokio::select! {
                biased;
                _interrupted = self.interrupts.changed() => return Err(CellEnd::Raised("KeyboardInterrupt", "".into())),
                answers = self.answers.recv() => answers,
            };
            match answers {
                Some((number, answers)) if number == self.displays => return Ok(answers),
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    async fn print(&mut self, stream: OutputStream, bytes: Vec<u8>) -> Result<(), CellEnd> {
        let inputs = self.inputs.clone();
        // When the host reads no more, the kernel dies.
        self.unless_interrupted(async move { drop(inputs.send(LinkInput::Printed(stream, bytes)).await) }).await
    }

    async fn send(&self, frame: FromKernel) {
        if let FromKernel::Display(bundle, _) | FromKernel::Result(bundle) = &frame
            && bundle.bytes() > LONG_FRAME
        {
            let announced = self.inputs.send(LinkInput::LongFrame(bundle.bytes())).await;
            announced.ignore("the driver may be gone");
        }
        self.inputs.send(LinkInput::Frame(frame, 0)).await.ignore("the driver may be gone");
    }

    async fn unless_interrupted(&mut self, work: impl Future<Output = ()>) -> Result<(), CellEnd> {
        tokio::select! {
            biased;
            _interrupted = self.interrupts.changed() => Err(CellEnd::Raised("KeyboardInterrupt", "".into())),
            () = work => Ok(()),
        }
    }
}
