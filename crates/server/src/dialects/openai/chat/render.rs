//! A completion's events as chunks, and as the completion itself.

use std::collections::HashMap;
use std::sync::Arc;

use aludel_engine::Error;
use aludel_engine::turns::{
    Documents, EndReason, EventKind, Failure, Flow, Frame, ItemId, Render, RenderedEvent, TurnEvent,
};
use aludel_store::{RowChange, Tenant};
use futures_util::future::BoxFuture;
use serde_json::value::RawValue;

use super::rounds;
use super::writer::Writer;
use crate::app::App;
use crate::dialects::openai::error;
use crate::dialects::openai::program::{CollectedOutput, ProgramEnd};
use crate::raw_json::raw_json;

/// The renderer of one completion.
pub(super) struct CompletionRenderer {
    writer: Writer,
    /// Output of programs that run.
    printed: HashMap<ItemId, CollectedOutput>,
    failure: Option<Failure>,
}

impl CompletionRenderer {
    pub(super) fn new(writer: Writer) -> Self {
        Self { writer, printed: HashMap::new(), failure: None }
    }

    fn handle(&mut self, event: &TurnEvent) -> Flow {
        let index = event.choice;
        match &event.kind {
            EventKind::Ended { ending, .. } => return self.end(index, ending),
            EventKind::Closed => self.close(),
            // After a stop word nothing more is sent.
            _ if self.writer.has_finished(index) => {}
            EventKind::Text { delta, .. } => {
                if !self.writer.text(index, delta) {
                    return Flow::Stop;
                }
            }
            EventKind::Refusal { delta, .. } => {
                if !self.writer.refuse(index, delta) {
                    return Flow::Stop;
                }
            }
            EventKind::Reasoning { delta, .. } => self.writer.think(index, delta),
            EventKind::ToolStarted { item, .. } => self.writer.start_program(index, item),
            EventKind::ToolInput { item, delta } => self.writer.code(index, item, delta),
            EventKind::ToolReady { item, input, .. } => self.writer.code_done(index, item, input),
            EventKind::ApprovalPending { item } => self.writer.ask_approval(index, item),
            EventKind::Output { item, output } => self.printed.entry(item.clone()).or_default().record(output),
            EventKind::ToolEnded { item, outcome } => {
                let ended = self.printed.remove(item).unwrap_or_default().end(outcome);
                self.writer.end_program(index, item, ended);
            }
            EventKind::ToolRejected { item: Some(item), reason, .. } => {
                self.writer.end_program(index, item, ProgramEnd::rejected(reason.clone()));
            }
            EventKind::ApprovalDecided { item, denied: Some(reason) } => {
                let ended = ProgramEnd::rejected(format!("It was not allowed to run: {reason}"));
                self.writer.end_program(index, item, ended);
            }
            EventKind::Usage { usage, .. } => self.writer.use_tokens(*usage),
            EventKind::Created { .. }
            | EventKind::Started
            | EventKind::Resumed { .. }
            | EventKind::RoundStarted { .. }
            | EventKind::Retrying { .. }
            | EventKind::TextEnded { .. }
            | EventKind::ApprovalRequested { .. }
            | EventKind::ApprovalDecided { denied: None, .. }
            | EventKind::ToolResumed { .. }
            | EventKind::ToolRunning { .. }
            | EventKind::ToolRejected { item: None, .. }
            | EventKind::Observed { .. } => {}
        }
        Flow::GoOn
    }

    fn end(&mut self, index: usize, ending: &EndReason) -> Flow {
        if self.writer.has_finished(index) {
            return Flow::GoOn;
        }
        let reason = match ending {
            EndReason::Answered | EndReason::Refused => "stop",
            EndReason::TooLong => "length",
            EndReason::Filtered => "content_filter",
            EndReason::TokenBudget { words } | EndReason::Budget { words } => {
                self.writer.note(index, &format!("I stopped: {words} are used up."));
                "length"
            }
            EndReason::WaitsForClient { calls, .. } => {
                calls.iter().for_each(|call| self.writer.function_call(index, call));
                "tool_calls"
            }
            // One failed answer ends all: a client gets all of them, or an error.
            EndReason::Cancelled => {
                self.failure.get_or_insert_with(Failure::cancelled);
                return Flow::StopAll;
            }
            EndReason::Failed { failure, .. } => {
                self.failure.get_or_insert(failure.clone());
                return Flow::StopAll;
            }
        };
        self.writer.finish(index, reason);
        Flow::GoOn
    }

    fn close(&mut self) {
        match &self.failure {
            Some(failure) => self.writer.fail(&error::body(&failure.clone().into())),
            None => self.writer.end(),
        }
    }
}

impl Render for CompletionRenderer {
    fn render(&mut self, event: &TurnEvent) -> RenderedEvent {
        let flow = self.handle(event);
        RenderedEvent { frames: self.writer.take_chunks(), flow, ..RenderedEvent::default() }
    }

    fn document(&self) -> Box<RawValue> {
        match &self.failure {
            Some(failure) => raw_json(&error::body(&failure.clone().into())),
            None => raw_json(&self.writer.object()),
        }
    }

    fn failure(&self) -> Option<Failure> {
        self.failure.clone()
    }
}

/// Stores the rounds that a client has to answer; nothing else of a completion is stored.
pub(super) struct Rounds {
    pub(super) app: Arc<App>,
    pub(super) tenant: Tenant,
}

impl Documents for Rounds {
    fn save(&self, _: Box<RawValue>) -> Result<Vec<RowChange>, Error> {
        Ok(Vec::new())
    }

    fn hand_over<'a>(&'a self, document: &'a RawValue) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { Ok(rounds::keep_all(&self.app, &self.tenant, document).await?) })
    }
}

/// A frame of the stream; the protocol has no names of frames.
pub(super) fn framed(frame: &Frame) -> String {
    format!("data: {}\n\n", frame.text)
}

#[cfg(test)]
mod tests {
    use aludel_engine::turns::FailureKind;

    use super::super::writer::{ERROR, IncludeUsage};
    use super::*;

    #[test]
    fn a_failure_before_the_first_word_is_in_the_stream_too() {
        let choices = vec![(None, None)];
        let writer = Writer::new("chatcmpl-1".into(), "m".into(), IncludeUsage(true), choices, &[]);
        let mut renderer = CompletionRenderer::new(writer);
        let failure = Failure::new(FailureKind::RateLimited, "too many");
        let ended = EventKind::Ended {
            item: ItemId::new(),
            ending: EndReason::Failed { failure, cause: None },
            linked: Vec::new(),
        };
        let mut frames = Vec::new();
        for (sequence, kind) in (0..).zip([ended, EventKind::Closed]) {
            frames.extend(renderer.render(&TurnEvent { sequence, at_ms: 0, choice: 0, kind }).frames);
        }
        // Its status may have been sent long before, as the model's server was asked again and again.
        let sent: Vec<String> = frames.iter().map(framed).collect();
        assert!(sent[0].starts_with(r#"data: {"error":{"message":"too many""#), "{sent:?}");
        assert_eq!((frames[0].kind.as_str(), sent[1..].concat().as_str()), (ERROR, "data: [DONE]\n\n"));
    }
}
