//! An answer's events as frames, and as the answer itself.

use std::collections::HashMap;

use aludel_engine::turns::{
    EndReason, EventKind, Failure, Flow, Frame, ItemId, Render, RenderedEvent, ToolEnd, ToolOutcome, TurnEvent,
};
use aludel_wire::gemini::{FinishReason, Outcome};
use serde_json::value::RawValue;

use super::error;
use super::program_output::CollectedOutput;
use super::writer::Writer;
use crate::raw_json::raw_json;

/// The renderer of one answer.
pub(super) struct ContentRenderer {
    writer: Writer,
    /// Output of programs that run.
    printed: HashMap<ItemId, CollectedOutput>,
    failure: Option<Failure>,
}

impl ContentRenderer {
    pub(super) fn new(writer: Writer) -> Self {
        Self { writer, printed: HashMap::new(), failure: None }
    }

    fn handle(&mut self, kind: &EventKind) -> Flow {
        match kind {
            EventKind::Ended { ending, .. } => return self.end(ending),
            EventKind::Closed => self.close(),
            EventKind::Usage { round, usage } => self.writer.use_tokens(*round, *usage),
            // After a stop sequence nothing more is sent.
            _ if self.writer.has_finished() => {}
            EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => {
                if !self.writer.text(delta) {
                    return Flow::Stop;
                }
            }
            EventKind::TextEnded { .. } => self.writer.end_text(),
            EventKind::Reasoning { delta, .. } => self.writer.think(delta),
            EventKind::ToolReady { item, input, .. } => self.writer.program(item, input),
            EventKind::Output { item, output } => self.printed.entry(item.clone()).or_default().record(output),
            EventKind::ToolEnded { item, outcome } => self.end_program(item, outcome),
            EventKind::ToolRejected { item: Some(item), reason, .. } => self.refuse_program(item, reason.clone()),
            EventKind::ApprovalDecided { item, denied: Some(reason) } => {
                self.refuse_program(item, format!("It was not allowed to run: {reason}"));
            }
            EventKind::Created { .. }
            | EventKind::Started
            | EventKind::Resumed { .. }
            | EventKind::RoundStarted { .. }
            | EventKind::Retrying { .. }
            | EventKind::ToolStarted { .. }
            | EventKind::ToolInput { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalPending { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolResumed { .. }
            | EventKind::ToolRunning { .. }
            | EventKind::ToolRejected { item: None, .. }
            | EventKind::Observed { .. } => {}
        }
        Flow::GoOn
    }

    fn end_program(&mut self, item: &ItemId, outcome: &ToolOutcome) {
        let printed = self.printed.remove(item).unwrap_or_default().end(outcome);
        let end = match outcome.end {
            ToolEnd::Completed => Outcome::OutcomeOk,
            ToolEnd::Timeout | ToolEnd::CpuLimit => Outcome::OutcomeDeadlineExceeded,
            ToolEnd::Raised | ToolEnd::Interrupted | ToolEnd::MemoryLimit | ToolEnd::DiskLimit | ToolEnd::Died => {
                Outcome::OutcomeFailed
            }
        };
        self.writer.end_program(item, end, printed.text);
        self.writer.show(printed.pictures);
        self.writer.add_files(&outcome.files);
    }

    fn refuse_program(&mut self, item: &ItemId, reason: String) {
        self.printed.remove(item);
        self.writer.end_program(item, Outcome::OutcomeFailed, reason);
    }

    fn end(&mut self, ending: &EndReason) -> Flow {
        if self.writer.has_finished() {
            return Flow::GoOn;
        }
        let reason = match ending {
            EndReason::Answered | EndReason::Refused => FinishReason::Stop,
            EndReason::TooLong => FinishReason::MaxTokens,
            EndReason::Filtered => FinishReason::Safety,
            EndReason::TokenBudget { words } | EndReason::Budget { words } => {
                self.writer.note(&format!("I stopped: {words} are used up."));
                match ending {
                    EndReason::TokenBudget { .. } => FinishReason::MaxTokens,
                    _ => FinishReason::TooManyToolCalls,
                }
            }
            EndReason::WaitsForClient { calls, .. } => {
                calls.iter().for_each(|call| self.writer.function_call(call));
                FinishReason::Stop
            }
            EndReason::Cancelled => {
                self.failure.get_or_insert_with(Failure::cancelled);
                return Flow::StopAll;
            }
            EndReason::Failed { failure, .. } => {
                self.failure.get_or_insert(failure.clone());
                return Flow::StopAll;
            }
        };
        self.writer.finish(reason);
        Flow::GoOn
    }

    fn close(&mut self) {
        match &self.failure {
            Some(failure) => self.writer.fail(&error::envelope(&failure.clone().into())),
            None => self.writer.end(),
        }
    }
}

impl Render for ContentRenderer {
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent {
        let flow = self.handle(&event.kind);
        RenderedEvent { frames: self.writer.take_frames(), flow, ..RenderedEvent::default() }
    }

    fn document(&self) -> Box<RawValue> {
        match &self.failure {
            Some(failure) => raw_json(&error::envelope(&failure.clone().into())),
            None => raw_json(&self.writer.answer()),
        }
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.clone()
    }
}

/// A frame of the stream: clients understand only this line.
pub(super) fn framed(frame: &Frame) -> String {
    format!("data: {}\n\n", frame.text)
}
