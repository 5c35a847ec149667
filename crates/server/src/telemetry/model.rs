//! Calls of models, as figures and spans.

use std::sync::Arc;

use aludel_agent::upstream::http::ForwardedResponse;
use aludel_agent::upstream::{Delta, ModelCall, ModelCapabilities, ModelRequest, Upstream, UpstreamError};
use aludel_engine::Model;
use axum::http::HeaderMap;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use serde_json::json;

use super::Scope;
use super::log_writer::write_if_json;
use super::metrics::{CallLabels, ModelLabels};
use super::tail::Tail;
use super::tracked_span::{self, TrackedSpan};
use super::values::Values;

/// Returns a model for the current request, whose server gets the request's trace context.
pub(crate) fn watched(model: &Model) -> Arc<dyn Upstream> {
    let upstream = Arc::clone(&model.upstream);
    let Some(scope) = Scope::current() else { return upstream };
    scope.facts().model = Some(model.name.as_str().into());
    Arc::new(TracedUpstream(upstream))
}

/// A model whose calls carry the trace context of the current span.
struct TracedUpstream(Arc<dyn Upstream>);

impl Upstream for TracedUpstream {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn provider(&self) -> &'static str {
        self.0.provider()
    }

    fn capabilities(&self) -> ModelCapabilities {
        self.0.capabilities()
    }

    fn call(&self, request: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        self.0.call(ModelRequest { headers: tracked_span::headers(), ..request })
    }
}

/// Forwards a client's request to the model's server, and watches the answer to its end, which has the token counts.
pub(crate) async fn passed_on<F>(
    (model, provider): (&str, &str),
    mut headers: HeaderMap,
    forward: impl FnOnce(HeaderMap) -> F,
) -> Result<ForwardedResponse, UpstreamError>
where
    F: Future<Output = Result<ForwardedResponse, UpstreamError>>,
{
    // The client's own trace context is already among the headers.
    let Some(scope) = Scope::current().filter(Scope::is_watched) else { return forward(headers).await };
    scope.facts().model = Some(model.into());
    let mut call = ModelCall::begin(model, provider);
    headers.extend(call.span().in_scope(tracked_span::headers));
    match forward(headers).await {
        Ok(ForwardedResponse { status, headers, body }) => {
            call.answers(status);
            let mut passing = ForwardedAnswer { scope, call, tail: Tail::default() };
            let body = body.inspect(move |piece| match piece {
                Ok(piece) => passing.tail.push(piece),
                Err(error) => passing.call.fails(error),
            });
            Ok(ForwardedResponse { status, headers, body: body.boxed() })
        }
        Err(error) => {
            call.fails(&error);
            Err(error)
        }
    }
}

/// A forwarded answer.
struct ForwardedAnswer {
    scope: Scope,
    call: ModelCall,
    tail: Tail,
}

impl Drop for ForwardedAnswer {
    fn drop(&mut self) {
        if let Some(usage) = self.tail.usage() {
            self.scope.spent(usage.input, usage.output);
            self.call.costs(usage);
        }
    }
}

/// Starts the span of a call.
pub(super) fn begin(scope: &Scope, values: &Values) -> Context {
    let Some(traces) = scope.traces() else { return Context::new() };
    let model = name(scope, values);
    traces.start(
        scope.context(),
        format!("chat {model}"),
        SpanKind::Client,
        [
            KeyValue::new("gen_ai.operation.name", "chat"),
            KeyValue::new("gen_ai.provider.name", values.text("provider").unwrap_or_default().to_owned()),
            KeyValue::new("gen_ai.request.model", model),
        ],
    )
}

/// Records the time to an answer's first piece.
pub(super) fn speaks(span: &TrackedSpan, seconds: f64) {
    if let Some(metrics) = span.scope.metrics() {
        let model = name(&span.scope, &span.values);
        metrics.first_word_seconds.get_or_create(&ModelLabels { model }).observe(seconds);
    }
}

/// Counts a call that ended.
pub(super) fn ended(watched: &TrackedSpan, result: &str, values: &Values) {
    let scope = &watched.scope;
    let model = name(scope, &watched.values);
    if let Some(metrics) = scope.metrics() {
        let model = Arc::clone(&model);
        let elapsed = watched.began.elapsed().as_secs_f64();
        metrics.model_call_seconds.get_or_create(&ModelLabels { model: Arc::clone(&model) }).observe(elapsed);
        metrics.model_calls.get_or_create(&CallLabels { model, result: result.into() }).inc();
    }
    let span = watched.context.span();
    for (name, field) in
        [("gen_ai.usage.input_tokens", "input_tokens"), ("gen_ai.usage.output_tokens", "output_tokens")]
    {
        if let Some(tokens) = values.count(field) {
            span.set_attribute(KeyValue::new(name, i64::try_from(tokens).unwrap_or(i64::MAX)));
        }
    }
    if let Some((input, output)) = values.text("input").zip(values.text("output")) {
        let line = scope.line("model call").with("model", &*model).with("result", result);
        write_if_json(line.with("input", input).with("output", output));
        span.set_attribute(KeyValue::new("gen_ai.input.messages", input.to_owned()));
        let output = json!([{ "role": "assistant", "parts": [{ "type": "text", "content": output }] }]);
        span.set_attribute(KeyValue::new("gen_ai.output.messages", output.to_string()));
    }
    if !matches!(result, "answered" | "left") {
        span.set_attribute(KeyValue::new("error.type", result.to_owned()));
        span.set_status(Status::error(""));
    }
    span.end();
}

/// Returns the name of the model of a call: the configuration's name, if there is one, rather than that of the model's server.
fn name(scope: &Scope, values: &Values) -> Arc<str> {
    // A model that stands in for the client's has its own name, the configuration's.
    let asked = scope.facts().model.clone().filter(|_| !values.is("stands_in"));
    asked.unwrap_or_else(|| values.text("model").unwrap_or_default().into())
}
