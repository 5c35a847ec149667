//! The subscriber of `tracing`: writes events to the log, with the request that they are about.
//!
//! It is the process's, while every server has a [`super::Telemetry`] of its own. So a request's root span carries its [`Scope`], and whoever needs one finds
//! it on the way from a span to its root.

use std::fmt;
use std::sync::{Arc, Once};
use std::time::{Instant, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::Context as OtelContext;
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Span, Subscriber, dispatcher};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, SpanRef};
use tracing_subscriber::{Layer, Registry};

use super::{Scope, Telemetry, log, model, sandbox, turn};

/// Prefix of the targets of our crates. Libraries are not listened to.
const TARGET: &str = "aludel";
/// Target by which others ask whether prompts, programs and outputs may be told.
const CONTENTS: &str = "aludel::contents";

/// Installs the subscriber of this process, once.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // A program that uses this crate may have a subscriber of its own, which then hears everything instead.
        let _installed = tracing::subscriber::set_global_default(Registry::default().with(SpanTracker));
    });
}

/// Attaches something to a span, for all that happens below it.
pub(super) fn attach<T: Send + Sync + 'static>(span: &Span, value: T) {
    span.with_subscriber(|(id, dispatch)| {
        if let Some(span) = dispatch.downcast_ref::<Registry>().and_then(|registry| registry.span(id)) {
            span.extensions_mut().insert(value);
        }
    });
}

/// Returns the scope of the span that this thread is in.
pub(super) fn current() -> Option<Scope> {
    dispatcher::get_default(|dispatch| {
        let current = dispatch.current_span();
        scope_of(&dispatch.downcast_ref::<Registry>()?.span(current.id()?)?)
    })
}

/// Returns the scope of a span or of the nearest one above that has one.
fn scope_of<'s, S: LookupSpan<'s>>(span: &SpanRef<'s, S>) -> Option<Scope> {
    span.scope().find_map(|span| span.extensions().get::<Scope>().cloned())
}

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

/// Returns headers that let another program go on with the trace of the span that this thread is in.
pub(super) fn headers() -> HeaderMap {
    let found = dispatcher::get_default(|dispatch| {
        let current = dispatch.current_span();
        let span = dispatch.downcast_ref::<Registry>()?.span(current.id()?)?;
        let extensions = span.extensions();
        extensions.get::<TrackedSpan>().map(|watched| watched.scope.headers(&watched.context))
    });
    found.unwrap_or_default()
}

struct SpanTracker;

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for SpanTracker {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.target() == CONTENTS {
            Interest::sometimes()
        } else if metadata.target().starts_with(TARGET) && *metadata.level() <= Level::INFO {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    // Asked of contents alone: one server may tell them while another one does not.
    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        let scope = || context.lookup_current().and_then(|span| scope_of(&span));
        metadata.target() != CONTENTS || scope().is_some_and(|scope| scope.tells_contents())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if span.name() == "go on after a restart" {
            let server = span.scope().find_map(|span| span.extensions().get::<Arc<Telemetry>>().cloned());
            if let Some(server) = server {
                span.extensions_mut().insert(Scope::after_restart(&server));
            }
            return;
        }
        let Some(scope) = scope_of(&span) else { return };
        let mut values = Values::default();
        attributes.record(&mut values);
        if span.name() == "answer" {
            let mut facts = scope.facts();
            facts.api = values.text("api").map(Into::into);
            facts.answer = values.text("id").map(Into::into);
        }
        let context = if span.name() == "chat" { model::begin(&scope, &values) } else { OtelContext::new() };
        let (began, started) = (Instant::now(), SystemTime::now());
        span.extensions_mut().insert(TrackedSpan { scope, began, started, values, context, spent: (0, 0) });
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut values = Values::default();
        record.record(&mut values);
        let mut extensions = span.extensions_mut();
        let Some(watched) = extensions.get_mut::<TrackedSpan>() else { return };
        match span.name() {
            "create sandbox" => {
                if let Some(result) = values.text("result") {
                    sandbox::created(watched, result);
                }
            }
            "chat" => {
                if let Some(seconds) = values.number("first_piece") {
                    model::speaks(watched, seconds);
                }
                if let Some(result) = values.text("result") {
                    model::ended(watched, result, &values);
                }
            }
            "execute_tool" => {
                if let Some(outcome) = values.text("outcome") {
                    turn::executed(watched, outcome, &values);
                }
            }
            "turn" => {
                turn::spent(watched, &values);
                if let Some(ending) = values.text("ending") {
                    turn::ended(watched, ending);
                }
            }
            _ => {}
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let watched = span.extensions_mut().remove::<TrackedSpan>();
        if let Some(watched) = watched
            && span.name() == "answer"
        {
            watched.scope.has_answered();
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut values = Values::default();
        event.record(&mut values);
        let scope = context.event_span(event).and_then(|span| scope_of(&span));
        log::tell(*event.metadata().level(), &values.take_message(), values.0, scope.as_ref());
    }
}

/// Fields of an event or a span.
#[derive(Debug, Default)]
pub(super) struct Values(Vec<(&'static str, Value)>);

impl Values {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.get(name)?.as_f64()
    }

    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Takes the words out, which `tracing` has as one of the fields.
    fn take_message(&mut self) -> String {
        let at = self.0.iter().position(|(name, _)| *name == "message");
        match at.map(|at| self.0.remove(at).1) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        }
    }

    fn push(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.push((field.name(), value.into()));
    }
}

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }
}

#[cfg(test)]
mod tests {
    use tracing::{enabled, info_span};

    use super::*;

    fn telemetry(contents: bool) -> Arc<Telemetry> {
        Arc::new(Telemetry::new(true, None, contents))
    }

    /// The same place in the code for all servers, since `tracing` remembers what it was told of a place.
    fn are_contents_wanted() -> bool {
        enabled!(target: CONTENTS, Level::INFO)
    }

    #[test]
    fn each_server_of_a_process_says_for_itself_whether_contents_are_told() {
        for contents in [true, false, true] {
            let span = info_span!(parent: None, "request");
            attach(&span, Scope::after_restart(&telemetry(contents)));
            let below = span.in_scope(|| info_span!("turn"));
            assert_eq!(below.in_scope(are_contents_wanted), contents);
        }
        assert!(!are_contents_wanted());
    }

    #[test]
    fn a_turn_after_a_restart_is_counted_by_its_server() {
        let (one, other) = (telemetry(false), telemetry(false));
        let resumed = one.span().in_scope(|| info_span!("go on after a restart"));
        let answer = resumed.in_scope(|| info_span!("answer", api = "chat", id = "resp_1"));
        let turn = answer.in_scope(|| info_span!("turn", ending = tracing::field::Empty));
        turn.record("ending", "answered");
        for (telemetry, turns) in [(one, 1), (other, 0)] {
            let labels = super::super::metrics::TurnLabels { api: "chat".into(), ending: "answered".into() };
            let counted = telemetry.metrics.as_ref().unwrap().turns.get_or_create(&labels).get();
            assert_eq!(counted, turns);
        }
    }
}
