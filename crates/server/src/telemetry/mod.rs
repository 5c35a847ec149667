//! Telemetry for the operator: a log, metrics and traces.
//!
//! Other modules and crates use `tracing`, and `layer` receives their spans and events. `scope` is one request, known to everything that
//! the request causes; `turn`, `model` and `sandbox` report what happens there; `log` with `log_line`, `metrics` and `traces` are the
//! outputs. `tracked_span` is a span until its end, `values` its fields, and `tail` the end of a forwarded answer, which has its token
//! counts. Everything except failures in the log is off by default. `Telemetry::contents` decides whether prompts, programs and their
//! output may be logged.

use std::sync::Arc;

use tracing::{Span, info_span};
use tracing_subscriber::Registry;
use tracing_subscriber::registry::LookupSpan as _;

mod layer;
mod log;
mod log_line;
mod log_writer;
mod metrics;
mod model;
mod sandbox;
mod scope;
mod tail;
mod traces;
mod tracked_span;
mod turn;
mod values;

pub use log::notice;
pub use log_line::{LogFormat, LogLevel};
pub use log_writer::{flush_log, write_line, write_log_aside};
pub(crate) use metrics::{METRICS, Metrics};
pub(crate) use model::{passed_on, watched};
pub(crate) use scope::Scope;
pub use traces::Traces;

/// The name of the span of such a program.
const LOCAL_PROGRAM: &str = "local program";

/// A server's metrics, traces and log.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Option<Metrics>,
    pub(crate) traces: Option<Traces>,
    /// True if prompts, programs and their output may be logged.
    pub(crate) contents: bool,
}

impl Telemetry {
    pub(crate) fn new(metrics: bool, traces: Option<Traces>, contents: bool) -> Self {
        layer::install();
        Self { metrics: metrics.then(|| Metrics::new(traces.as_ref())), traces, contents }
    }

    /// Returns a span for work of this server without a request.
    pub(crate) fn span(self: &Arc<Self>) -> Span {
        let span = info_span!(parent: None, "server");
        attach(&span, Arc::clone(self));
        span
    }

    /// Returns a span for a program of the server's own user that comes without a request.
    pub(crate) fn local_program(self: &Arc<Self>) -> Span {
        self.span().in_scope(|| info_span!(LOCAL_PROGRAM))
    }

    /// Returns true if successful work is reported, too.
    pub(crate) fn is_watching(&self) -> bool {
        self.metrics.is_some() || self.traces.is_some() || LogFormat::is_json()
    }

    /// Sends the remaining spans.
    pub(crate) async fn finish(&self) {
        if let Some(traces) = &self.traces {
            traces.finish().await;
        }
    }
}

/// Writes the log of this process in this format from now on.
pub fn log_as(format: LogFormat) {
    layer::install();
    log_line::set_format(format);
}

/// Attaches a value to a span, for all spans below it.
fn attach<T: Send + Sync + 'static>(span: &Span, value: T) {
    span.with_subscriber(|(id, dispatch)| {
        if let Some(span) = dispatch.downcast_ref::<Registry>().and_then(|registry| registry.span(id)) {
            span.extensions_mut().insert(value);
        }
    });
}
