//! The kernel driver: runs cells over a [`Link`] and enforces time, output and interrupts on every backend.

mod cell_run;
mod long_frame;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aludel_ignore::Ignore;
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot, watch};
use tokio::time::timeout;

use self::cell_run::CellRun;
use crate::event_queue::event_queue;
use crate::execution::{Execution, Interrupter};
use crate::frame::{FromKernel, ToKernel};
use crate::kernel::{self, Cell, KernelOptions};
use crate::link::{KernelExit, Link, LinkControl, LinkInput, Signal};
use crate::output::{FramePace, text_cost};
use crate::workspace::Snapshot;
use crate::{Error, Language, Limits, Workspace};

/// Time that a killed kernel may take to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a kernel has to accept a program, or answers that it waits for.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of code from which on its way to the kernel counts as memory.
const LONG_PROGRAM: usize = 16 << 10;
/// Time that the kernel of another language may take to start.
const LANGUAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// A ready kernel, and the limits under which it runs cells.
pub(crate) struct Driver<L: Link> {
    kernel: Arc<Mutex<KernelState<L>>>,
    control: Arc<L::Control>,
    exit: watch::Receiver<Option<KernelExit>>,
    paused: watch::Receiver<bool>,
    flags: Arc<KernelFlags>,
    workspace: Arc<dyn Workspace>,
    limits: Limits,
}

/// A kernel's link and the facts about earlier cells; held by the running cell.
struct KernelState<L> {
    link: L,
    exit: watch::Receiver<Option<KernelExit>>,
    /// Cells that ran, except the one that a checkpoint undid.
    cells: u64,
    /// True if it was killed because a program was not sent as a whole, and has not ended yet.
    is_doomed: bool,
    /// The pace of its frames.
    frames: FramePace,
}

/// Facts about the kernel that are known without its lock.
#[derive(Debug, Default)]
struct KernelFlags {
    /// A cell has ended, so there is, or will be, a checkpoint.
    has_run: AtomicBool,
    /// It ended, and no checkpoint took its place, or it is to end.
    is_dead: AtomicBool,
}

impl<L: Link> std::fmt::Debug for Driver<L> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Driver").finish_non_exhaustive()
    }
}

impl<L: Link> Driver<L> {
    /// Takes over the link to a kernel that is ready.
    pub(crate) fn new(link: L, workspace: Arc<dyn Workspace>, limits: Limits) -> Self {
        let (control, exit) = (Arc::clone(link.control()), link.exit());
        let paused = control.paused();
        let kernel = KernelState { link, exit: exit.clone(), cells: 0, is_doomed: false, frames: FramePace::default() };
        Self { kernel: Arc::new(Mutex::new(kernel)), control, exit, paused, flags: Arc::default(), workspace, limits }
    }

    /// The limits.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The files.
    pub(crate) fn workspace(&self) -> &Arc<dyn Workspace> {
        &self.workspace
    }

    /// Returns true if the kernel lives, or its checkpoint will.
    pub(crate) fn is_alive(&self) -> bool {
        let may_restore = self.flags.has_run.load(Ordering::Relaxed) && self.control.keeps_checkpoint();
        !self.flags.is_dead.load(Ordering::Relaxed) && (may_restore || self.exit.borrow().is_none())
    }

    /// Returns true if a cell has ended.
    pub(crate) fn has_run(&self) -> bool {
        self.flags.has_run.load(Ordering::Relaxed)
    }

    /// Waits until no cell runs, and returns the kernel, or its checkpoint if it ended.
    async fn lock(&self) -> Result<OwnedMutexGuard<KernelState<L>>, Error> {
        let mut kernel = Arc::clone(&self.kernel).lock_owned().await;
        if *self.paused.borrow() {
            return Err(Error::Paused);
        }
        if kernel.is_doomed {
            timeout(KILL_TIMEOUT, wait_for_exit(&mut kernel.exit)).await.ignore("the wait is bounded");
            kernel.is_doomed = false;
        }
        if !self.is_alive() {
            return Err(Error::KernelGone("it ended before".into()));
        }
        if self.exit.borrow().is_some() {
            // In a task: if the caller gave up halfway, a checkpoint would be awake without its channel.
            let restoring = tokio::spawn(async move { kernel.link.restore().await.then_some(kernel) });
            let Ok(Some(restored)) = restoring.await else {
                self.flags.is_dead.store(true, Ordering::Relaxed);
                return Err(Error::KernelGone("it ended between two executions".into()));
            };
            kernel = restored;
        }
        Ok(kernel)
    }

    /// Runs one cell. Cells run one at a time; the next waits here.
    pub(crate) async fn execute(&self, cell: Cell<'_>) -> Result<Execution, Error> {
        let Cell { code, environment, tools, event_memory } = cell;
        kernel::check_environment(environment)?;
        kernel::check_tools(tools)?;
        let kernel = self.lock().await?;
        let _of_earlier_ones = self.control.take_refused_calls();
        let cpu_before = match self.limits.cpu_time {
            Some(_) => self.control.usage().await.cpu,
            None => Duration::ZERO,
        };
        let most = most_entries(&self.limits);
        let before = Arc::clone(&self.workspace).walk_async(most, self.control.is_touched(), Snapshot::of).await?;
        let (events, receiver) = event_queue();
        let (answers, answered) = mpsc::unbounded_channel();
        let (interrupter, interrupted) = watch::channel(false);
        let interrupter = Interrupter::new(interrupter);
        let run = CellRun::new(
            self,
            (cpu_before, before),
            (tools.to_vec(), event_memory.cloned()),
            (events, answered, interrupted),
        );
        // A kernel that does not read keeps both copies until it is given up, whoever waits for it. Quotes have two bytes in the second
        // one.
        let held = match event_memory {
            Some(memory) if code.len() > LONG_PROGRAM => {
                Some(memory.hold_bytes(2 * code.len() + text_cost(code)).await)
            }
            _ => None,
        };
        let (code, environment, tools) = (code.to_owned(), environment.to_vec(), tools.to_vec());
        let (sender, sent) = oneshot::channel();
        let mut kernel = DrivenKernel { kernel, control: Arc::clone(&self.control) };
        // In a task: if the caller gave up halfway, a partial frame would be left, and the kernel would have to end. The program is
        // interrupted then.
        tokio::spawn(async move {
            if sender.is_closed() {
                return;
            }
            // Before the program can run out of memory, which is told from what ran out of it earlier.
            kernel.control.cell_started();
            let frame = ToKernel::Execute { code: &code, environment: &environment, tools: &tools };
            let result = kernel.send(&frame).await;
            // Many long programs may run.
            drop((code, environment, tools, held));
            match result {
                Ok(()) => {
                    kernel.cells += 1;
                    sender.send(Ok(kernel.cells)).ignore("a caller who gave up has dropped the interrupter, too");
                    run.drive(kernel).await;
                }
                Err(error) => sender.send(Err(error)).ignore("nobody waits for it"),
            }
        });
        let number = sent.await.unwrap_or_else(|_| Err(Error::KernelGone("its program could not be sent".into())))?;
        Ok(Execution::new(receiver, answers, interrupter, number))
    }

    /// Sets the working directory and variables for later cells.
    pub(crate) async fn configure(&self, options: &KernelOptions) -> Result<(), Error> {
        kernel::check_environment(&options.environment)?;
        let kernel = self.lock().await?;
        let mut kernel = DrivenKernel { kernel, control: Arc::clone(&self.control) };
        let options = options.clone();
        // In a task, as with a program.
        let configuring = tokio::spawn(async move { kernel.configure(&options).await });
        configuring.await.unwrap_or_else(|_| Err(Error::KernelGone("it could not be set up".into())))
    }

    /// Ends the kernel, whatever runs in it, and waits until it has ended.
    pub(crate) async fn close(&self) {
        self.flags.is_dead.store(true, Ordering::Relaxed);
        self.control.end();
        timeout(KILL_TIMEOUT, wait_for_exit(&mut self.exit.clone())).await.ignore("the wait is bounded");
    }

    /// Makes the kernel do what its first cell needs once.
    pub(crate) async fn warm_up(&self) -> Result<(), Error> {
        let mut kernel = self.kernel.lock().await;
        let gone = |error: std::io::Error| Error::KernelGone(error.to_string());
        kernel.link.send(&ToKernel::WarmUp).await.map_err(gone)?;
        match timeout(KILL_TIMEOUT, kernel.link.receive()).await {
            Ok(Ok(LinkInput::Frame(FromKernel::WarmedUp, _))) => Ok(()),
            _ => Err(Error::KernelGone("it did not survive the warm-up".into())),
        }
    }
}

impl<L: Link> kernel::Kernel for Driver<L> {
    fn is_alive(&self) -> bool {
        Driver::is_alive(self)
    }

    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, Error>> {
        Box::pin(Driver::execute(self, cell))
    }

    fn configure<'a>(&'a self, options: &'a KernelOptions) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(Driver::configure(self, options))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(Driver::close(self))
    }
}

/// A kernel in use. After a panic nobody knows what its next frames would mean: it is killed.
struct DrivenKernel<L: Link> {
    kernel: OwnedMutexGuard<KernelState<L>>,
    control: Arc<L::Control>,
}

impl<L: Link> Deref for DrivenKernel<L> {
    type Target = KernelState<L>;

    fn deref(&self) -> &KernelState<L> {
        &self.kernel
    }
}

impl<L: Link> DerefMut for DrivenKernel<L> {
    fn deref_mut(&mut self) -> &mut KernelState<L> {
        &mut self.kernel
    }
}

impl<L: Link> Drop for DrivenKernel<L> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.doom();
        }
    }
}

impl<L: Link> DrivenKernel<L> {
    /// Sends a frame. If that fails, a part of it may have been sent, and the kernel is killed.
    async fn send(&mut self, frame: &ToKernel<'_>) -> Result<(), Error> {
        // A kernel whose loop an earlier cell stopped does not read.
        let reason = match timeout(SEND_TIMEOUT, self.kernel.link.send(frame)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it no longer listens".to_owned(),
        };
        self.doom();
        Err(Error::KernelGone(reason))
    }

    async fn configure(&mut self, options: &KernelOptions) -> Result<(), Error> {
        let KernelOptions { directory, environment, forms, command_line, language } = options;
        self.send(&ToKernel::Configure {
            directory: directory.as_deref(),
            environment,
            forms: *forms,
            command_line: command_line.as_ref(),
            language: language.as_ref().map(Language::as_str),
        })
        .await?;
        let answer = async {
            loop {
                match self.link.receive().await {
                    Ok(LinkInput::Frame(FromKernel::Configured, _)) => return Ok(()),
                    Ok(LinkInput::Frame(FromKernel::Failed(reason), _)) => return Err(Error::Start(reason)),
                    // Output of a thread between two cells.
                    Ok(
                        LinkInput::LongFrame(_)
                        | LinkInput::SkippedFrame(_)
                        | LinkInput::Frame(..)
                        | LinkInput::Printed(..),
                    ) => {}
                    Ok(LinkInput::Closed) | Err(_) => return Err(Error::KernelGone("it ended meanwhile".into())),
                }
            }
        };
        let patience = if language.is_some() { LANGUAGE_TIMEOUT } else { SEND_TIMEOUT };
        timeout(patience, answer).await.unwrap_or_else(|_| Err(Error::KernelGone("it no longer answers".into())))
    }

    fn doom(&mut self) {
        self.kernel.is_doomed = true;
        self.control.signal(Signal::Kill);
    }
}

async fn wait_for_exit(exit: &mut watch::Receiver<Option<KernelExit>>) -> KernelExit {
    exit.wait_for(Option::is_some).await.ok().and_then(|exit| *exit).unwrap_or_default()
}

/// The most entries of a workspace that are looked at.
fn most_entries(limits: &Limits) -> u64 {
    limits.files.saturating_add(1)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;

    use super::*;
    use crate::link::OutputStream;
    use crate::memory::Memory;
    use crate::outcome::{ExecutionEvent, MimeBundle, MimeData, Outcome};
    use crate::{Backend, SandboxId, SandboxSpec, Usage};

    /// A link to a kernel that sends this, and then nothing more, or something that nobody can read.
    struct ScriptedLink {
        control: Arc<TestControl>,
        inputs: VecDeque<LinkInput>,
        is_silent: bool,
    }

    struct TestControl {
        exit: watch::Sender<Option<KernelExit>>,
        paused: watch::Sender<bool>,
    }

    impl Link for ScriptedLink {
        type Control = TestControl;

        fn control(&self) -> &Arc<TestControl> {
            &self.control
        }

        fn exit(&self) -> watch::Receiver<Option<KernelExit>> {
            self.control.exit.subscribe()
        }

        async fn send(&mut self, _frame: &ToKernel<'_>) -> io::Result<()> {
            Ok(())
        }

        async fn receive(&mut self) -> io::Result<LinkInput> {
            match self.inputs.pop_front() {
                Some(input) => Ok(input),
                None if self.is_silent => std::future::pending().await,
                None => panic!("a fault of the driver's"),
            }
        }

        fn accept(&mut self) {}

        async fn printed(&mut self, _stream: OutputStream) -> Vec<u8> {
            Vec::new()
        }

        async fn restore(&mut self) -> bool {
            false
        }
    }

    impl LinkControl for TestControl {
        fn signal(&self, signal: Signal) {
            if signal == Signal::Kill {
                self.exit.send_replace(Some(KernelExit::default()));
            }
        }

        fn keeps_checkpoint(&self) -> bool {
            false
        }

        fn end(&self) {}

        fn paused(&self) -> watch::Receiver<bool> {
            self.paused.subscribe()
        }

        async fn usage(&self) -> Usage {
            Usage::default()
        }
    }

    async fn driver(inputs: impl IntoIterator<Item = LinkInput>, is_silent: bool) -> Driver<ScriptedLink> {
        let limits = Limits { output: 4 << 20, ..Limits::default() };
        let sandbox = Memory::default().create(SandboxId::unique(), SandboxSpec::new(limits.clone())).await.unwrap();
        let control = TestControl { exit: watch::Sender::new(None), paused: watch::Sender::new(false) };
        let link = ScriptedLink { control: Arc::new(control), inputs: inputs.into_iter().collect(), is_silent };
        Driver::new(link, Arc::clone(sandbox.workspace()), limits)
    }

    #[tokio::test]
    async fn a_kernel_does_not_outlive_a_panic() {
        let driver = driver([], false).await;
        assert_eq!(driver.execute(Cell::new("")).await.unwrap().next().await, None);
        assert!(matches!(driver.execute(Cell::new("")).await, Err(Error::KernelGone(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_frame_that_does_not_arrive_ends_its_kernel() {
        let driver = driver([LinkInput::LongFrame(1 << 20)], true).await;
        let began = tokio::time::Instant::now();
        let mut execution = driver.execute(Cell::new("")).await.unwrap();
        let Some(ExecutionEvent::Finished(finished)) = execution.next().await else { panic!("it goes on") };
        assert!(matches!(finished.outcome, Outcome::KernelDied(_)), "{finished:?}");
        assert!((30..35).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_pauses_while_a_long_frame_arrives_costs_no_kernel() {
        let bundle = MimeBundle(vec![("text/html".into(), MimeData::Text("picture".to_owned()))]);
        let inputs = [
            LinkInput::LongFrame(1 << 20),
            LinkInput::Printed(OutputStream::Stdout, vec![b'x'; 2 << 20]),
            LinkInput::Frame(FromKernel::Display(bundle.clone(), 1), 1 << 20),
            LinkInput::Frame(FromKernel::Done, 0),
        ];
        let driver = driver(inputs, false).await;
        let mut execution = driver.execute(Cell::new("")).await.unwrap();
        tokio::time::sleep(Duration::from_secs(45)).await;
        let (mut displayed, mut outcome) = (false, None);
        while let Some(event) = execution.next().await {
            displayed |= event == ExecutionEvent::Display(bundle.clone());
            if let ExecutionEvent::Finished(finished) = event {
                outcome = Some(finished.outcome);
            }
        }
        assert_eq!((displayed, outcome), (true, Some(Outcome::Completed)));
    }
}
