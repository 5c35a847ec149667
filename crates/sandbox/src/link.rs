//! The driver's interface to one kernel. A backend that implements it gets its limits enforced by [`crate::driver`].

use std::io;
use std::sync::Arc;

use tokio::sync::watch;

use crate::Usage;
use crate::frame::{ArrivingFrame, FromKernel, ToKernel};
use crate::process::ExitStatus;

/// The exclusive end of the link to a kernel: its holder runs cells.
pub(crate) trait Link: Send + 'static {
    /// The shared end.
    type Control: LinkControl;

    /// Returns the shared end.
    fn control(&self) -> &Arc<Self::Control>;

    /// Returns the end of the kernel process, set once it has ended and no checkpoint has taken over. A closed channel counts as an end.
    fn exit(&self) -> watch::Receiver<Option<KernelExit>>;

    /// Sends a frame to the kernel. Dropping the future may leave a partial frame.
    fn send(&mut self, frame: &ToKernel<'_>) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits for the next input from the kernel. What was printed before a frame comes before it. Cancel-safe.
    fn receive(&mut self) -> impl Future<Output = io::Result<LinkInput>> + Send;

    /// Accepts the long frame that was announced last.
    fn accept(&mut self);

    /// Takes output that is there, without waiting for more; empty if there is none. Cancel-safe.
    fn printed(&mut self, stream: OutputStream) -> impl Future<Output = Vec<u8>> + Send;

    /// Replaces a kernel that ended by its checkpoint, and returns true if there was one that took over.
    fn restore(&mut self) -> impl Future<Output = bool> + Send;
}

/// The shared end of the way to a kernel.
pub(crate) trait LinkControl: Send + Sync + 'static {
    /// Sends a signal to the kernel process.
    fn signal(&self, signal: Signal);

    /// Returns true if the kernel has a checkpoint once it has run a cell.
    fn keeps_checkpoint(&self) -> bool;

    /// Ends the kernel for good, its checkpoint with it.
    fn end(&self);

    /// Returns whether the sandbox is paused, now and from now on.
    fn paused(&self) -> watch::Receiver<bool>;

    /// Returns the sandbox's usage.
    fn usage(&self) -> impl Future<Output = Usage> + Send;

    /// Returns once everything that was sent before has been seen to.
    fn synced(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Returns false before any program can run beside the kernel: then calls on what they share with the host do not last.
    fn is_touched(&self) -> bool {
        true
    }

    /// Processes the reports so far. A refused system call is reported before its caller gets the error.
    fn catch_up(&self) {}

    /// Reports that a cell begins for which a client waits.
    fn cell_started(&self) {}

    /// Takes the names of the system calls refused since the last call of this.
    fn take_refused_calls(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One thing from a kernel.
pub(crate) enum LinkInput {
    /// The beginning of a long frame, and its length. It is skipped unless it is accepted before more is received.
    LongFrame(usize),
    /// The end of a frame that was skipped, with the number to acknowledge if there is one.
    SkippedFrame(Option<u64>),
    /// A frame, and its length.
    Frame(FromKernel, usize),
    /// Printed bytes.
    Printed(OutputStream, Vec<u8>),
    /// The end of the frames.
    Closed,
}

impl From<ArrivingFrame> for LinkInput {
    fn from(arriving: ArrivingFrame) -> Self {
        match arriving {
            ArrivingFrame::Long(length) => Self::LongFrame(length),
            ArrivingFrame::Skipped(number) => Self::SkippedFrame(number),
            ArrivingFrame::Whole(frame, length) => Self::Frame(frame, length),
        }
    }
}

/// One of the two streams that programs print to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

/// A signal to a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ends the cell.
    Interrupt,
    /// Ends the kernel.
    Kill,
}

impl Signal {
    /// The number of the signal.
    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Interrupt => 2,
            Self::Kill => 9,
        }
    }
}

/// The end of a kernel process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KernelExit {
    /// `None` where it is not known.
    pub(crate) status: Option<ExitStatus>,
    /// The peak memory use of the sandbox, bytes, if the process was killed for lack of memory; 0 if it is not counted.
    pub(crate) out_of_memory: Option<u64>,
}
