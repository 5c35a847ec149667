//! A running execution, from its caller's side.

use std::any::Any;
use std::sync::Arc;

use aludel_ignore::Ignore;
use tokio::sync::{mpsc, watch};

use crate::event_queue::EventReceiver;
use crate::outcome::{ClientAnswer, ExecutionEvent, Finished, VariablesState};

/// A running execution. A program whose events nobody reads waits once there are some megabytes of them, and its time goes on. Dropping it
/// interrupts the program.
#[derive(Debug)]
pub struct Execution {
    events: EventReceiver,
    answers: mpsc::UnboundedSender<Vec<ClientAnswer>>,
    interrupter: Interrupter,
    number: u64,
    is_restarted: bool,
    _held: Option<Box<dyn Any + Send + Sync>>,
}

impl Execution {
    /// The execution of the cell of this number.
    pub(crate) fn new(
        events: EventReceiver,
        answers: mpsc::UnboundedSender<Vec<ClientAnswer>>,
        interrupter: Interrupter,
        number: u64,
    ) -> Self {
        Self { events, answers, interrupter, number, is_restarted: false, _held: None }
    }

    /// Marks the outcome with [`VariablesState::Restarted`]: the sandbox of earlier executions was lost.
    #[must_use]
    pub fn restarted(mut self) -> Self {
        self.is_restarted = true;
        self
    }

    /// Holds a value until the execution is dropped.
    #[must_use]
    pub fn holding(mut self, value: impl Any + Send + Sync) -> Self {
        self._held = Some(Box::new(value));
        self
    }

    /// The next event; `None` after [`ExecutionEvent::Finished`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<ExecutionEvent> {
        let mut event = self.events.recv().await;
        if let Some(ExecutionEvent::Finished(Finished { state: state @ VariablesState::Kept, .. })) = &mut event
            && self.is_restarted
        {
            *state = VariablesState::Restarted;
        }
        event
    }

    /// Answers the calls of the last [`ExecutionEvent::Calls`], in order, and lets the program continue. Does nothing if no call is open.
    pub fn answer(&self, answers: Vec<ClientAnswer>) {
        self.answers.send(answers).ignore("a program that has ended needs no answers");
    }

    /// The number of the cell in its kernel, from 1. If a checkpoint undid a cell, its number is used again.
    pub fn number(&self) -> u64 {
        self.number
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
    /// A handle that sets this to true.
    pub(crate) fn new(interrupt: watch::Sender<bool>) -> Self {
        Self(Arc::new(interrupt))
    }

    /// Sends SIGINT now; the kernel is killed if the program has not ended after the grace period.
    pub fn interrupt(&self) {
        self.0.send_replace(true);
    }
}
