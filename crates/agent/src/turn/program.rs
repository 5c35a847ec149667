//! One program of a turn: its approval, its run, and its observation for the model.

use std::sync::Arc;
use std::time::Duration;

use aludel_sandbox::{Execution, ExecutionEvent};
use tokio::time::Instant;
use tracing::Instrument;

use super::State;
use crate::approval::{ApprovalDecision, ApprovalRequest, Approver, denied};
use crate::event::{Ending, Event};
use crate::interpreter::CodeInterpreter;
use crate::item::Part;
use crate::observation::Observer;
use crate::shell::{ProgramTool, ToolProgram};
use crate::trace::ProgramSpan;

/// State of a program's approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consent {
    /// It has to be asked for.
    Asked,
    /// It was approved after the turn before.
    Given,
}

/// Reason for which a program has no observation.
pub(super) enum Halt {
    /// The approval has not been decided.
    Waits,
    /// The turn ends.
    Ends(Ending),
}

impl From<Ending> for Halt {
    fn from(ending: Ending) -> Self {
        Self::Ends(ending)
    }
}

impl State {
    /// Asks for approval unless it was given before this turn, runs the program and makes the observation.
    pub(super) async fn run(
        &mut self,
        interpreter: &CodeInterpreter,
        call_id: &str,
        program: ToolProgram,
        consent: Consent,
    ) -> Result<Vec<Part>, Halt> {
        let ToolProgram { tool, code, input } = program;
        self.sink.send(Event::CodeWritten { call_id: call_id.to_owned(), tool, input, code: code.clone() }).await;
        self.check_calls()?;
        match consent {
            Consent::Asked => {
                if let Some(reason) = self.denied(interpreter, call_id, &code).await? {
                    return Ok(vec![Part::Text(denied(&reason))]);
                }
            }
            Consent::Given => {
                self.sink.send(Event::ApprovalGiven { call_id: call_id.to_owned() }).await;
                self.sink.drained().await;
            }
        }
        self.programs += 1;
        let traced = ProgramSpan::begin(interpreter.kernel(), call_id);
        let span = traced.span().clone();
        let execution = tokio::select! {
            biased;
            // The session may be busy with a program of another user.
            ending = self.stopped() => return Err(ending.into()),
            execution = start(interpreter, tool, &code).instrument(span.clone()) => execution?,
        };
        self.sink.send(Event::ExecutionStarted { call_id: call_id.to_owned() }).await;
        let (observer, stopped) = self.watch(interpreter, call_id, &code, execution, traced).instrument(span).await;
        let failed = observer.failed();
        let repeated = failed && self.last_failure.as_ref() == Some(&code);
        self.last_failure = failed.then_some(code);
        let parts = observer.into_parts(repeated, self.parts.upstream.capabilities().vision);
        match stopped {
            None => Ok(parts),
            Some(ending) => {
                self.observe(call_id, parts).await;
                Err(ending.into())
            }
        }
    }

    /// Passes on the program's events, and interrupts it when the turn has to end. The turn's clock stops while the program waits for the
    /// caller's answers.
    async fn watch(
        &mut self,
        interpreter: &CodeInterpreter,
        call_id: &str,
        code: &str,
        mut execution: Execution,
        mut traced: ProgramSpan,
    ) -> (Observer, Option<Ending>) {
        let mut observer = Observer::default();
        let (mut stopped, mut waits_since) = (None, None);
        let (cancel, budget) = (self.cancel.clone(), self.parts.budgets.time);
        loop {
            let event = tokio::select! {
                biased;
                // First, because a program that never pauses always has an event.
                ending = super::stopped(&cancel, self.deadline, budget), if stopped.is_none() && waits_since.is_none() => {
                    execution.interrupter().interrupt();
                    stopped = Some(ending);
                    continue;
                }
                () = cancel.cancelled(), if stopped.is_none() && waits_since.is_some() => {
                    execution.interrupter().interrupt();
                    stopped = Some(Ending::Cancelled);
                    continue;
                }
                Some(answers) = self.answers.recv() => {
                    execution.answer(answers);
                    self.deadline += waits_since.take().map_or(Duration::ZERO, |since: Instant| since.elapsed());
                    continue;
                }
                event = execution.next() => event,
            };
            let event = match event {
                None => return (observer, stopped),
                Some(ExecutionEvent::Calls(calls)) => {
                    waits_since = Some(Instant::now());
                    ExecutionEvent::Calls(interpreter.callable().tools_of(calls))
                }
                Some(event) => event,
            };
            observer.record(&event);
            let last = matches!(event, ExecutionEvent::Finished(_));
            traced.record(code, &event);
            self.sink.send(Event::Execution { call_id: call_id.to_owned(), event }).await;
            if last {
                return (observer, stopped);
            }
        }
    }

    /// Returns the reason for which the program may not run, if there is one.
    async fn denied(
        &mut self,
        interpreter: &CodeInterpreter,
        call_id: &str,
        code: &str,
    ) -> Result<Option<String>, Halt> {
        let ask = match interpreter.approver() {
            Approver::Callback(ask) if self.needs_approval => Arc::clone(ask),
            _ => return Ok(None),
        };
        self.sink.send(Event::ApprovalRequested { call_id: call_id.to_owned() }).await;
        // So that the caller has seen the whole program.
        self.sink.drained().await;
        let answer = tokio::select! {
            biased;
            ending = self.stopped() => return Err(ending.into()),
            answer = ask(ApprovalRequest { call_id: call_id.to_owned(), code: code.to_owned() }) => answer,
        };
        let denied = match answer {
            ApprovalDecision::Allow => None,
            ApprovalDecision::AllowAll => {
                self.needs_approval = false;
                None
            }
            ApprovalDecision::Later => return Err(Halt::Waits),
            ApprovalDecision::Deny { reason } => Some(reason),
        };
        self.sink.send(Event::ApprovalDecided { call_id: call_id.to_owned(), denied: denied.clone() }).await;
        Ok(denied)
    }
}

async fn start(interpreter: &CodeInterpreter, tool: ProgramTool, code: &str) -> Result<Execution, Ending> {
    interpreter.execute(tool, code).await.map_err(|error| Ending::Sandbox(error.to_string()))
}
