//! Turns and their programs, as figures and spans.

use std::sync::Arc;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanBuilder, Status, TraceContextExt};
use serde_json::json;

use super::log_writer::write_if_json;
use super::metrics::{ApiLabels, OutcomeLabels, TurnLabels};
use super::tracked_span::TrackedSpan;
use super::values::Values;

/// Characters of a call's id in a span: the model's server chooses it.
const MAX_ID: usize = 200;

/// Counts a program that ran.
pub(super) fn executed(span: &TrackedSpan, outcome: &str, values: &Values) {
    let scope = &span.scope;
    scope.facts().work.executions += 1;
    let seconds = values.number("seconds").unwrap_or_default();
    if let Some(metrics) = scope.metrics() {
        metrics.executions.get_or_create(&OutcomeLabels { outcome: outcome.into() }).inc();
        metrics.execution_seconds.observe(seconds);
    }
    let call_id = span.values.text("call_id").unwrap_or_default();
    let contents = values.text("code").zip(values.text("output"));
    if let Some((code, output)) = contents {
        let line = scope.line("execution").with("call", call_id).with("outcome", outcome);
        write_if_json(line.with("seconds", seconds).with("code", code).with("output", output));
    }
    let Some(traces) = scope.traces() else { return };
    let tool = span.values.text("tool").unwrap_or_default();
    let program = SpanBuilder::from_name(format!("execute_tool {tool}")).with_start_time(span.started);
    let context = traces.begin(
        scope.context(),
        program.with_attributes([
            KeyValue::new("gen_ai.operation.name", "execute_tool"),
            KeyValue::new("gen_ai.tool.name", tool.to_owned()),
            KeyValue::new("gen_ai.tool.type", "function"),
            KeyValue::new("gen_ai.tool.call.id", call_id.chars().take(MAX_ID).collect::<String>()),
            KeyValue::new("aludel.execution.outcome", outcome.to_owned()),
        ]),
    );
    if let Some((code, output)) = contents {
        context.span().set_attribute(KeyValue::new("gen_ai.tool.call.arguments", json!({ "code": code }).to_string()));
        context.span().set_attribute(KeyValue::new("gen_ai.tool.call.result", output.to_owned()));
    }
    if outcome != "completed" {
        context.span().set_attribute(KeyValue::new("error.type", outcome.to_owned()));
        context.span().set_status(Status::error(""));
    }
    context.span().end();
}

/// Counts the tokens that a turn has used since the last call of this.
pub(super) fn spent(span: &mut TrackedSpan, values: &Values) {
    let (Some(input), Some(output)) = (values.count("input_tokens"), values.count("output_tokens")) else { return };
    let (input_before, output_before) = std::mem::replace(&mut span.spent, (input, output));
    span.scope.spent(input.saturating_sub(input_before), output.saturating_sub(output_before));
}

/// Counts a turn that ended.
pub(super) fn ended(span: &TrackedSpan, ending: &str) {
    let ending: Arc<str> = ending.into();
    let api = {
        let mut facts = span.scope.facts();
        facts.work.ending = Some(Arc::clone(&ending));
        facts.api.clone().unwrap_or_else(|| "none".into())
    };
    if let Some(metrics) = span.scope.metrics() {
        metrics.turns.get_or_create(&TurnLabels { api: Arc::clone(&api), ending }).inc();
        metrics.turn_seconds.get_or_create(&ApiLabels { api }).observe(span.began.elapsed().as_secs_f64());
    }
}
