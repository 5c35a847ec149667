//! A message's events as frames, and as the message itself.

use std::collections::HashMap;

use aludel_engine::turns::{EndReason, EventKind, Failure, Flow, ItemId, Render, RenderedEvent, TurnEvent};
use aludel_wire::anthropic::{ErrorEnvelope, StopReason};
use serde_json::value::RawValue;

use super::error;
use super::program::{CollectedOutput, ProgramEnd};
use super::writer::Writer;
use crate::raw_json::raw_json;

/// The kind of a frame with a failure.
pub(super) const ERROR: &str = "error";
/// Sent when there is nothing else to send for a while.
pub(super) const PING: &str = "event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// The renderer of one message.
pub(super) struct MessageRenderer {
    writer: Writer,
    /// Output of programs that run.
    printed: HashMap<ItemId, CollectedOutput>,
    failure: Option<Failure>,
    /// The request's id, which errors in a stream repeat.
    request_id: Option<String>,
}

impl MessageRenderer {
    pub(super) fn new(writer: Writer, request_id: Option<String>) -> Self {
        Self { writer, printed: HashMap::new(), failure: None, request_id }
    }

    fn handle(&mut self, kind: &EventKind) -> Flow {
        match kind {
            EventKind::Ended { ending, .. } => return self.end(ending),
            EventKind::Closed => self.close(),
            EventKind::Usage { usage, .. } => self.writer.use_tokens(*usage),
            // After a stop sequence nothing more is sent.
            _ if self.writer.has_finished() => {}
            EventKind::Text { delta, .. } | EventKind::Refusal { delta, .. } => {
                if !self.writer.text(delta) {
                    return Flow::Stop;
                }
            }
            EventKind::TextEnded { .. } => self.writer.end_text(),
            EventKind::Reasoning { delta, .. } => self.writer.think(delta),
            EventKind::ToolStarted { item, tool, .. } => {
                self.printed.insert(item.clone(), CollectedOutput::of(*tool));
                self.writer.start_program(item, *tool);
            }
            EventKind::ToolInput { item, delta } => self.writer.code(item, delta),
            EventKind::ToolReady { item, tool, input, .. } => {
                self.printed.entry(item.clone()).or_insert_with(|| CollectedOutput::of(*tool));
                self.writer.code_done(item, *tool, input);
            }
            EventKind::ToolResumed { item, tool, output } => {
                let mut printed = CollectedOutput::of(*tool);
                output.iter().for_each(|output| printed.record(output));
                self.printed.insert(item.clone(), printed);
                self.writer.resume_program(item, *tool);
            }
            EventKind::Output { item, output } => {
                if let Some(printed) = self.printed.get_mut(item) {
                    printed.record(output);
                }
            }
            EventKind::ToolEnded { item, outcome } => {
                if let Some(printed) = self.printed.remove(item) {
                    self.writer.end_program(item, printed.end(outcome));
                }
            }
            EventKind::ToolRejected { item: Some(item), reason, .. } => {
                if let Some(printed) = self.printed.remove(item) {
                    self.writer.end_program(item, ProgramEnd::rejected(printed.tool(), reason));
                }
            }
            EventKind::ApprovalDecided { item, denied: Some(reason) } => {
                if let Some(printed) = self.printed.remove(item) {
                    self.writer.end_program(item, ProgramEnd::refused(printed.tool(), reason));
                }
            }
            EventKind::Created { .. }
            | EventKind::Started
            | EventKind::Resumed { .. }
            | EventKind::RoundStarted { .. }
            | EventKind::Retrying { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalPending { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolRunning { .. }
            | EventKind::ToolRejected { item: None, .. }
            | EventKind::Observed { .. } => {}
        }
        Flow::GoOn
    }

    fn end(&mut self, ending: &EndReason) -> Flow {
        if self.writer.has_finished() {
            return Flow::GoOn;
        }
        let reason = match ending {
            EndReason::Answered => StopReason::EndTurn,
            EndReason::Refused | EndReason::Filtered => StopReason::Refusal,
            EndReason::TooLong => StopReason::MaxTokens,
            // If the client sends it back unchanged, the model goes on from the last result.
            EndReason::TokenBudget { .. } | EndReason::Budget { .. } if self.writer.ends_with_result() => {
                StopReason::PauseTurn
            }
            EndReason::TokenBudget { .. } | EndReason::Budget { .. } => StopReason::MaxTokens,
            EndReason::WaitsForClient { calls, .. } => {
                if calls.iter().any(|call| call.caller.is_some()) {
                    self.writer.wait_for_client();
                }
                calls.iter().for_each(|call| self.writer.tool_call(call));
                StopReason::ToolUse
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
        match self.envelope() {
            Some(envelope) => self.writer.fail(envelope),
            None => self.writer.end(),
        }
    }

    fn envelope(&self) -> Option<ErrorEnvelope> {
        Some(error::envelope(&self.failure.clone()?.into(), self.request_id.clone()))
    }
}

impl Render for MessageRenderer {
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent {
        self.writer.set_time(event.at_ms / 1000);
        let flow = self.handle(&event.kind);
        RenderedEvent { frames: self.writer.take_frames(), flow, ..RenderedEvent::default() }
    }

    fn document(&self) -> Box<RawValue> {
        match self.envelope() {
            Some(envelope) => raw_json(&envelope),
            None => raw_json(&self.writer.message()),
        }
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.clone()
    }
}
