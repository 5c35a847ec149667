//! How long it takes to make a sandbox.

use std::time::Instant;

use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt};

use super::Scope;
use super::metrics::ResultLabels;

/// Makes a sandbox, in a span of its own.
pub(crate) async fn starting<T, E>(making: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let Some(scope) = Scope::current() else { return making.await };
    let span = scope.traces().map(|traces| traces.start(scope.context(), "create sandbox", SpanKind::Internal, []));
    let began = Instant::now();
    let made = making.await;
    let result = if made.is_ok() { "ok" } else { "failed" };
    if let Some(metrics) = scope.metrics() {
        metrics.sandbox_start_seconds.observe(began.elapsed().as_secs_f64());
        metrics.sandbox_starts.get_or_create(&ResultLabels { result }).inc();
    }
    if let Some(context) = &span {
        let span = context.span();
        if made.is_err() {
            span.set_attribute(KeyValue::new("error.type", result));
            span.set_status(Status::error(""));
        }
        span.end();
    }
    made
}
