//! One request, shared by everything that it causes: its id, its span, and the facts to report at its end.

use std::sync::Arc;
use std::time::Instant;

use aludel_store::{Tenant, fresh_id};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use parking_lot::{Mutex, MutexGuard};
use tracing::{Span, dispatcher, info_span};
use tracing_subscriber::Registry;
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use super::log_line::{LogLevel, LogLine};
use super::log_writer::write_if_json;
use super::metrics::{Metrics, RequestLabels, RouteLabels, TokenLabels};
use super::{Telemetry, Traces, attach};

/// Headers with the trace that a request belongs to.
const TRACE: [HeaderName; 2] = [HeaderName::from_static("traceparent"), HeaderName::from_static("tracestate")];

/// Characters of a refused parameter's name in the log.
const MAX_PARAM: usize = 100;

/// The status of a request whose client disconnected before one, as in other servers.
const GONE: u16 = 499;

/// One request. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Scope(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    telemetry: Arc<Telemetry>,
    id: String,
    method: &'static str,
    route: Arc<str>,
    began: Instant,
    /// The client's own trace context, if it sent one.
    trace: HeaderMap,
    /// Holds the request's span, if there is one.
    context: Context,
    facts: Mutex<Facts>,
}

/// Facts of a request that are collected while it is answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    tenant: Option<Tenant>,
    status: Option<u16>,
    /// The code of its refusal, and the parameter that is wrong.
    refused: (Option<&'static str>, Option<String>),
    pub(super) model: Option<Arc<str>>,
    /// The dialect in which it is answered.
    pub(super) api: Option<Arc<str>>,
    /// The response or the completion.
    pub(super) answer: Option<String>,
    pub(super) work: RequestWork,
    /// The part of it that the request's own line has.
    logged: Option<RequestWork>,
}

/// Work that was done for a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RequestWork {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) executions: u64,
    /// The end of the turn, if there was one and it has ended.
    pub(super) ending: Option<Arc<str>>,
}

impl Scope {
    /// Begins a request, and returns the span for everything that it causes. The request ends when the last of the three values is dropped:
    /// after the answer's last byte, or when the client disconnects.
    pub(crate) fn begin(telemetry: &Arc<Telemetry>, request: &Request) -> (Self, Span, OpenRequest) {
        let method = word_of(request.method());
        let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str);
        let id = fresh_id("req_");
        let trace = TRACE.into_iter().filter_map(|name| Some((name.clone(), request.headers().get(&name)?.clone())));
        let trace: HeaderMap = trace.collect();
        let context = match &telemetry.traces {
            Some(traces) => traces.start(
                &Traces::context_of(&trace),
                format!("{method} {route}"),
                SpanKind::Server,
                [
                    KeyValue::new("http.request.method", method),
                    KeyValue::new("http.route", route.to_owned()),
                    KeyValue::new("aludel.request.id", id.clone()),
                ],
            ),
            None => Context::new(),
        };
        if let Some(metrics) = &telemetry.metrics {
            metrics.requests_in_flight.inc();
        }
        let (telemetry, route, facts) = (Arc::clone(telemetry), Arc::from(route), Mutex::default());
        let began = Instant::now();
        let scope = Self(Arc::new(Inner { telemetry, id, method, route, began, trace, context, facts }));
        let span = info_span!(parent: None, "request");
        attach(&span, scope.clone());
        (scope.clone(), span, OpenRequest(scope))
    }

    /// Tokens that the model of this request read and wrote.
    pub(super) fn spent(&self, input: u64, output: u64) {
        let mut facts = self.facts();
        facts.work.input_tokens = facts.work.input_tokens.saturating_add(input);
        facts.work.output_tokens = facts.work.output_tokens.saturating_add(output);
        if let (Some(metrics), Some(model)) = (self.metrics(), &facts.model) {
            for (direction, tokens) in [("input", input), ("output", output)] {
                let model = Arc::clone(model);
                metrics.tokens.get_or_create(&TokenLabels { model, direction }).inc_by(tokens);
            }
        }
    }

    /// Begins work without a request: a turn that goes on after a restart, or a program of the server's own user.
    pub(super) fn without_request(telemetry: &Arc<Telemetry>, name: &'static str) -> Self {
        let context = match &telemetry.traces {
            Some(traces) => traces.start(&Context::new(), name, SpanKind::Internal, []),
            None => Context::new(),
        };
        // It gets no other line.
        let facts = Mutex::new(Facts { logged: Some(RequestWork::default()), ..Facts::default() });
        Self(Arc::new(Inner {
            telemetry: Arc::clone(telemetry),
            id: fresh_id("req_"),
            method: "none",
            route: "none".into(),
            began: Instant::now(),
            trace: HeaderMap::new(),
            context,
            facts,
        }))
    }

    /// Returns the request of the current span, if it has one.
    pub(crate) fn current() -> Option<Self> {
        dispatcher::get_default(|dispatch| {
            let current = dispatch.current_span();
            Self::of_span(&dispatch.downcast_ref::<Registry>()?.span(current.id()?)?)
        })
    }

    /// Returns the request of a span, or of its nearest ancestor with one.
    pub(super) fn of_span<'s, S: LookupSpan<'s>>(span: &SpanRef<'s, S>) -> Option<Self> {
        span.scope().find_map(|span| span.extensions().get::<Self>().cloned())
    }

    /// Its id, `req_…`.
    pub(crate) fn id(&self) -> &str {
        &self.0.id
    }

    /// The route that it matches, with placeholders in place of parameters.
    pub(crate) fn route(&self) -> &str {
        &self.0.route
    }

    /// Records the tenant of the current request.
    pub(crate) fn note_tenant(tenant: &Tenant) {
        if let Some(scope) = Self::current() {
            scope.facts().tenant = Some(tenant.clone());
        }
    }

    /// Records its status.
    pub(crate) fn note_status(&self, status: StatusCode) {
        self.facts().status = Some(status.as_u16());
    }

    /// Headers with the trace context for another program: this context's span, or without spans the client's own.
    pub(super) fn headers(&self, context: &Context) -> HeaderMap {
        let mut headers = self.0.trace.clone();
        if self.0.telemetry.traces.is_some() {
            Traces::put(context, &mut headers);
        }
        headers
    }

    pub(super) fn metrics(&self) -> Option<&Metrics> {
        self.0.telemetry.metrics.as_ref()
    }

    pub(super) fn traces(&self) -> Option<&Traces> {
        self.0.telemetry.traces.as_ref()
    }

    /// Returns true if successful work is reported, too.
    pub(super) fn is_watched(&self) -> bool {
        self.0.telemetry.is_watching()
    }

    pub(super) fn tells_contents(&self) -> bool {
        self.0.telemetry.contents
    }

    /// Notes the code and the parameter of a refusal. Its message may have what the client sent.
    pub(crate) fn note_refusal(&self, code: Option<&'static str>, param: Option<&str>) {
        let param = param.map(|param| param.chars().take(MAX_PARAM).collect());
        self.facts().refused = (code, param);
    }

    /// The holder of the request's span.
    pub(super) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(super) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.facts.lock()
    }

    /// A line about this request.
    pub(super) fn line(&self, message: &str) -> LogLine {
        self.identify(LogLine::new(LogLevel::Info, message))
    }

    /// Adds the request's id to a line.
    pub(super) fn identify(&self, line: LogLine) -> LogLine {
        let span = self.0.context.span().span_context().clone();
        let trace = span.is_valid().then(|| span.trace_id().to_string());
        line.with("request", self.id()).with("trace", trace)
    }

    /// Reports work of the request that ended after its own line was written.
    pub(super) fn has_answered(&self) {
        let facts = self.facts().clone();
        if facts.logged.as_ref().is_some_and(|logged| *logged != facts.work) {
            self.tell("turn", &facts);
            self.0.context.span().end();
        }
    }

    fn end(&self) {
        let inner = &self.0;
        let facts = {
            let mut facts = self.facts();
            facts.status.get_or_insert(GONE);
            facts.logged = Some(facts.work.clone());
            facts.clone()
        };
        let status = facts.status.unwrap_or(GONE);
        if let Some(metrics) = self.metrics() {
            let (method, route) = (inner.method, Arc::clone(&inner.route));
            let elapsed = inner.began.elapsed().as_secs_f64();
            metrics.request_seconds.get_or_create(&RouteLabels { method, route: Arc::clone(&route) }).observe(elapsed);
            metrics.requests.get_or_create(&RequestLabels { method, route, status }).inc();
            // Last, so that when none is in flight all of them are counted.
            metrics.requests_in_flight.dec();
        }
        let span = inner.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            span.set_attribute(KeyValue::new("error.type", status.to_string()));
            span.set_status(Status::error(""));
        }
        span.end();
        self.tell("request", &facts);
    }

    /// Writes the line of the request.
    fn tell(&self, message: &str, facts: &Facts) {
        let inner = &self.0;
        let work = &facts.work;
        let counted = |count: u64| work.ending.as_ref().map(|_| count);
        let line = self
            .line(message)
            .with("method", inner.method)
            .with("route", &*inner.route)
            .with("status", facts.status)
            .with("code", facts.refused.0)
            .with("param", facts.refused.1.as_deref())
            .with("seconds", inner.began.elapsed().as_secs_f64())
            .with("tenant", facts.tenant.as_ref().map(Tenant::as_str))
            .with("model", facts.model.as_deref())
            .with("answer", facts.answer.as_deref())
            .with("ending", work.ending.as_deref())
            .with("input_tokens", counted(work.input_tokens))
            .with("output_tokens", counted(work.output_tokens))
            .with("executions", counted(work.executions));
        write_if_json(line);
    }
}

/// A request that has not ended.
#[derive(Debug)]
pub(crate) struct OpenRequest(Scope);

impl Drop for OpenRequest {
    // A client may disconnect at any time; the only sign is that the rest is never asked for.
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The name of a method, from a fixed set: clients may make up others.
fn word_of(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
