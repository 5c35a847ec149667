//! The subscriber of `tracing`: writes events to the log, with the request that they are about.
//!
//! It is the process's, while every server has a [`super::Telemetry`] of its own. So a request's root span carries its [`Scope`], and whoever needs one finds
//! it on the way from a span to its root.

use std::fmt;
use std::sync::{Arc, Once};
use std::time::{Instant, SystemTime};

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Span, Subscriber, dispatcher};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, SpanRef};
use tracing_subscriber::{Layer, Registry};

use super::{Scope, Telemetry, log, sandbox};

/// Prefix of the targets of our crates. Libraries are not listened to.
const TARGET: &str = "aludel";

/// Installs the subscriber of this process, once.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // A program that uses this crate may have a subscriber of its own, which then hears everything instead.
        let _installed = tracing::subscriber::set_global_default(Registry::default().with(Watch));
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
pub(super) struct Watched {
    pub(super) scope: Scope,
    pub(super) began: Instant,
    pub(super) started: SystemTime,
}

struct Watch;

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Watch {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.target().starts_with(TARGET) && *metadata.level() <= Level::INFO {
            Interest::always()
        } else {
            Interest::never()
        }
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
        if span.name() == "answer"
            && let Some(id) = values.text("id")
        {
            scope.answers(id.to_owned());
        }
        span.extensions_mut().insert(Watched { scope, began: Instant::now(), started: SystemTime::now() });
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut values = Values::default();
        record.record(&mut values);
        let extensions = span.extensions();
        let Some(watched) = extensions.get::<Watched>() else { return };
        if span.name() == "create sandbox"
            && let Some(result) = values.text("result")
        {
            sandbox::created(watched, result);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let watched = span.extensions_mut().remove::<Watched>();
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
        self.0.iter().find(|(known, _)| *known == name)?.1.as_str()
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
