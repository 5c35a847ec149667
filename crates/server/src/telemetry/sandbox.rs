//! Sandboxes that are created, as figures and spans.

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanBuilder, Status, TraceContextExt};

use super::metrics::ResultLabels;
use super::tracked_span::TrackedSpan;

/// Counts an attempt to create a sandbox, by its result.
pub(super) fn created(span: &TrackedSpan, result: &str) {
    let scope = &span.scope;
    if let Some(metrics) = scope.metrics() {
        metrics.sandbox_start_seconds.observe(span.began.elapsed().as_secs_f64());
        metrics.sandbox_starts.get_or_create(&ResultLabels { result: result.into() }).inc();
    }
    let Some(traces) = scope.traces() else { return };
    let context = traces.begin(scope.context(), SpanBuilder::from_name("create sandbox").with_start_time(span.started));
    if result != "ok" {
        context.span().set_attribute(KeyValue::new("error.type", result.to_owned()));
        context.span().set_status(Status::error(""));
    }
    context.span().end();
}
