//! The subscriber of `tracing`: writes events to the log, with their request.
//!
//! It belongs to the process, while every server has its own [`super::Telemetry`]. So a request's root span carries its [`Scope`], which is
//! found on the way from a span to its root.

use std::sync::{Arc, Once};
use std::time::{Instant, SystemTime};

use aludel_ignore::Ignore;
use opentelemetry::Context as OtelContext;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use super::tracked_span::TrackedSpan;
use super::values::Values;
use super::{LOCAL_PROGRAM, Scope, Telemetry, log, model, sandbox, turn};

/// Prefix of the targets of our crates. Events of libraries are ignored.
const TARGET: &str = "aludel";
/// Target that is enabled if prompts, programs and outputs may be logged.
const CONTENTS: &str = "aludel::contents";

/// Installs the subscriber of this process, once.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        tracing::subscriber::set_global_default(Registry::default().with(SpanTracker))
            .ignore("a program that uses this crate may have its own subscriber, which then gets everything");
    });
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

    // Only for the target of contents: one server may log them while another does not.
    fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
        let scope = || context.lookup_current().and_then(|span| Scope::of_span(&span));
        metadata.target() != CONTENTS || scope().is_some_and(|scope| scope.tells_contents())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if matches!(span.name(), "go on after a restart" | LOCAL_PROGRAM) {
            let server = span.scope().find_map(|span| span.extensions().get::<Arc<Telemetry>>().cloned());
            if let Some(server) = server {
                span.extensions_mut().insert(Scope::without_request(&server, span.name()));
            }
            return;
        }
        let Some(scope) = Scope::of_span(&span) else { return };
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
        let scope = context.event_span(event).and_then(|span| Scope::of_span(&span));
        log::tell(*event.metadata().level(), &values.take_message(), values.0, scope.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use tracing::{enabled, info_span};

    use super::super::attach;
    use super::*;

    fn telemetry(contents: bool) -> Arc<Telemetry> {
        Arc::new(Telemetry::new(true, None, contents))
    }

    /// The same call site for all servers, since `tracing` caches the first answer for a call site.
    fn are_contents_wanted() -> bool {
        enabled!(target: CONTENTS, Level::INFO)
    }

    #[test]
    fn each_server_of_a_process_says_for_itself_whether_contents_are_told() {
        for contents in [true, false, true] {
            let span = info_span!(parent: None, "request");
            attach(&span, Scope::without_request(&telemetry(contents), "request"));
            let below = span.in_scope(|| info_span!("turn"));
            assert_eq!(below.in_scope(are_contents_wanted), contents);
        }
        assert!(!are_contents_wanted());
    }

    #[test]
    fn a_program_of_the_servers_user_is_counted() {
        let telemetry = telemetry(false);
        let local = telemetry.local_program();
        let program = local.in_scope(|| info_span!("execute_tool", outcome = tracing::field::Empty));
        program.record("outcome", "completed");
        let labels = super::super::metrics::OutcomeLabels { outcome: "completed".into() };
        assert_eq!(telemetry.metrics.as_ref().unwrap().executions.get_or_create(&labels).get(), 1);
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
