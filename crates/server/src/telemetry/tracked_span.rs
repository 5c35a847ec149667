//! A span below a request, and what is known of it until its end.

use std::time::{Instant, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::Context as OtelContext;
use tracing::dispatcher;
use tracing_subscriber::Registry;
use tracing_subscriber::registry::LookupSpan as _;

use super::Scope;
use super::values::Values;

/// A span that belongs to a request.
#[derive(Debug)]
pub(super) struct TrackedSpan {
    pub(super) scope: Scope,
    pub(super) began: Instant,
    pub(super) started: SystemTime,
    /// Fields that it began with.
    pub(super) values: Values,
    /// Context of the span of OpenTelemetry, if it has one.
    pub(super) context: OtelContext,
    /// Tokens that were counted.
    pub(super) spent: (u64, u64),
}

/// Returns headers with the trace context of this thread's span, for another program.
pub(super) fn headers() -> HeaderMap {
    let found = dispatcher::get_default(|dispatch| {
        let current = dispatch.current_span();
        let span = dispatch.downcast_ref::<Registry>()?.span(current.id()?)?;
        let extensions = span.extensions();
        extensions.get::<TrackedSpan>().map(|watched| watched.scope.headers(&watched.context))
    });
    found.unwrap_or_default()
}
