//! What happens in a turn, as figures and spans.

use std::collections::HashMap;
use std::time::{Instant, SystemTime};

use aludel_agent::{CutOff, Ending, Event};
use aludel_engine::execution::{Event as ExecutionEvent, Finished, LimitHit, Outcome};
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanBuilder, SpanKind, Status, TraceContextExt};
use serde_json::json;

use super::Scope;
use super::contents::Excerpt;
use super::metrics::{ApiLabels, OutcomeLabels, TurnLabels};

/// Characters of a call's id in a span: the model's server makes it up.
const MAX_ID: usize = 200;

/// Which dialect a turn is told in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Responses,
}

impl Api {
    fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
        }
    }
}

/// Watches a turn of the request of this task: to be given every event.
pub(crate) fn observe(api: Api) -> impl FnMut(&Event) + Send + 'static {
    let mut observer =
        Scope::current().map(|scope| Observer { scope, api, began: Instant::now(), programs: HashMap::new() });
    move |event| {
        if let Some(observer) = &mut observer {
            observer.see(event);
        }
    }
}

struct Observer {
    scope: Scope,
    api: Api,
    began: Instant,
    /// Programs that have not ended, by the ids of their calls.
    programs: HashMap<String, Program>,
}

/// A program that is to run or runs.
struct Program {
    began: SystemTime,
    /// Itself and what it put out, if that may be told.
    contents: Option<(Excerpt, Excerpt)>,
}

impl Observer {
    fn see(&mut self, event: &Event) {
        match event {
            Event::CodeFinished { call_id, code } => {
                let contents = self.scope.tells_contents().then(|| (code.as_str().into(), Excerpt::default()));
                self.programs.insert(call_id.clone(), Program { began: SystemTime::now(), contents });
            }
            Event::ApprovalDecided { call_id, denied: None } => {
                // Until now it waited for somebody, which may take days.
                if let Some(program) = self.programs.get_mut(call_id) {
                    program.began = SystemTime::now();
                }
            }
            Event::CallRejected { call_id, .. } | Event::ApprovalDecided { call_id, denied: Some(_) } => {
                self.programs.remove(call_id);
            }
            Event::Execution { call_id, event: ExecutionEvent::Finished(finished) } => {
                let program = self.programs.remove(call_id);
                self.executed(call_id, program.as_ref(), finished);
            }
            Event::Execution { call_id, event } => {
                let program = self.programs.get_mut(call_id);
                if let Some(Program { contents: Some((_, output)), .. }) = program {
                    output.push(text_of(event));
                }
            }
            Event::Usage(usage) => self.scope.spent(usage.input, usage.output),
            Event::Finished(ending) => self.finished(ending),
            _ => {}
        }
    }

    fn executed(&self, call_id: &str, program: Option<&Program>, finished: &Finished) {
        self.scope.facts().work.executions += 1;
        let outcome = word_of(&finished.outcome);
        if let Some(metrics) = self.scope.metrics() {
            metrics.executions.get_or_create(&OutcomeLabels { outcome }).inc();
            metrics.execution_seconds.observe(finished.elapsed.as_secs_f64());
        }
        let contents = program.and_then(|program| program.contents.as_ref());
        if let Some((code, output)) = contents {
            self.scope
                .line("execution")
                .with("call", call_id)
                .with("outcome", outcome)
                .with("seconds", finished.elapsed.as_secs_f64())
                .with("code", code.as_str())
                .with("output", output.as_str())
                .write();
        }
        let Some(traces) = self.scope.traces() else { return };
        let mut span = SpanBuilder::from_name("execute_tool python").with_kind(SpanKind::Internal).with_attributes([
            KeyValue::new("gen_ai.operation.name", "execute_tool"),
            KeyValue::new("gen_ai.tool.name", "python"),
            KeyValue::new("gen_ai.tool.type", "function"),
            KeyValue::new("gen_ai.tool.call.id", call_id.chars().take(MAX_ID).collect::<String>()),
            KeyValue::new("aludel.execution.outcome", outcome),
        ]);
        span.start_time = program.map(|program| program.began);
        let context = traces.begin(self.scope.context(), span);
        if let Some((code, output)) = contents {
            let arguments = json!({ "code": code.as_str() }).to_string();
            context.span().set_attribute(KeyValue::new("gen_ai.tool.call.arguments", arguments));
            context.span().set_attribute(KeyValue::new("gen_ai.tool.call.result", output.as_str().to_owned()));
        }
        if finished.outcome != Outcome::Completed {
            context.span().set_attribute(KeyValue::new("error.type", outcome));
            context.span().set_status(Status::error(""));
        }
        context.span().end();
    }

    fn finished(&self, ending: &Ending) {
        let ending = word_of_ending(ending);
        self.scope.facts().work.ending = Some(ending);
        if let Some(metrics) = self.scope.metrics() {
            let api = self.api.word();
            metrics.turns.get_or_create(&TurnLabels { api, ending }).inc();
            metrics.turn_seconds.get_or_create(&ApiLabels { api }).observe(self.began.elapsed().as_secs_f64());
        }
    }
}

/// The words that a program put out; pictures have none.
fn text_of(event: &ExecutionEvent) -> &str {
    match event {
        ExecutionEvent::Stdout(text) | ExecutionEvent::Stderr(text) => text,
        ExecutionEvent::Display(bundle) | ExecutionEvent::Result(bundle) => bundle.text().unwrap_or_default(),
        ExecutionEvent::Error(error) => &error.traceback,
        ExecutionEvent::Finished(_) => "",
    }
}

fn word_of(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Failed(_) => "exception",
        Outcome::Limit(LimitHit::Memory { .. }) => "memory_limit",
        Outcome::Limit(LimitHit::WallClock { .. }) => "timeout",
        Outcome::Limit(LimitHit::CpuTime { .. }) => "cpu_time_limit",
        Outcome::Limit(LimitHit::Disk { .. }) => "disk_limit",
        Outcome::Limit(LimitHit::Files { .. }) => "files_limit",
        Outcome::Interrupted => "interrupted",
        Outcome::KernelDied(_) => "kernel_died",
    }
}

fn word_of_ending(ending: &Ending) -> &'static str {
    match ending {
        Ending::Answered => "answered",
        Ending::Refused => "refused",
        Ending::CutOff(CutOff::Length) => "length",
        Ending::CutOff(CutOff::Filter) => "content_filter",
        Ending::Budget(_) => "budget",
        Ending::ClientTools(_) => "client_tools",
        Ending::AwaitsApproval { .. } => "awaits_approval",
        Ending::Upstream(_) => "upstream_failed",
        Ending::Sandbox(_) => "sandbox_failed",
        Ending::Cancelled => "cancelled",
    }
}
