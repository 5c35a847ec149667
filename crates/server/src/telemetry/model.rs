//! Calls of models: each is a span, counted by what came of it.

use std::sync::Arc;
use std::time::Instant;

use aludel_agent::upstream::chat::Forwarded;
use aludel_agent::upstream::{Capabilities, Delta, Request, Upstream, UpstreamError, Usage};
use aludel_engine::Model;
use axum::http::{HeaderMap, StatusCode};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use opentelemetry::trace::{SpanKind, Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use serde_json::Value;

use super::Scope;
use super::contents::{Excerpt, messages, said};
use super::metrics::{CallLabels, ModelLabels};
use super::tail::Tail;

/// A model whose calls are seen, for the request of this task.
pub(crate) fn watched(model: &Model) -> Arc<dyn Upstream> {
    let upstream = Arc::clone(&model.upstream);
    let Some(scope) = Scope::current() else { return upstream };
    let model: Arc<str> = model.name.as_str().into();
    scope.facts().model = Some(Arc::clone(&model));
    Arc::new(Watched { upstream, model, scope })
}

/// Hands a request of the client's on to the model's server as it is, and watches the answer to its end, where its tokens stand.
pub(crate) async fn passed_on<F>(
    model: &str,
    mut headers: HeaderMap,
    forward: impl FnOnce(HeaderMap) -> F,
) -> Result<Forwarded, UpstreamError>
where
    F: Future<Output = Result<Forwarded, UpstreamError>>,
{
    let Some(scope) = Scope::current() else { return forward(headers).await };
    let model: Arc<str> = model.into();
    scope.facts().model = Some(Arc::clone(&model));
    // Only Chat Completions are handed on.
    let mut call = ModelCall::begin(&scope, model, "openai");
    headers.extend(call.headers());
    match forward(headers).await {
        Ok(Forwarded { status, headers, body }) => {
            call.result = CallResult::of_status(status);
            call.speaks();
            call.tail = Some(Tail::default());
            let body = body.inspect(move |piece| match piece {
                Ok(piece) => {
                    if let Some(tail) = &mut call.tail {
                        tail.push(piece);
                    }
                }
                Err(error) => call.fails(error),
            });
            Ok(Forwarded { status, headers, body: body.boxed() })
        }
        Err(error) => {
            call.fails(&error);
            Err(error)
        }
    }
}

struct Watched {
    upstream: Arc<dyn Upstream>,
    model: Arc<str>,
    scope: Scope,
}

impl Upstream for Watched {
    fn name(&self) -> &str {
        self.upstream.name()
    }

    fn provider(&self) -> &'static str {
        self.upstream.provider()
    }

    fn capabilities(&self) -> Capabilities {
        self.upstream.capabilities()
    }

    fn call(&self, request: Request) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        let mut call = ModelCall::begin(&self.scope, Arc::clone(&self.model), self.upstream.provider());
        let headers = call.headers();
        if let Some(said) = &mut call.said {
            said.asked = messages(&request.items).to_string();
        }
        self.upstream.call(Request { headers, ..request }).inspect(move |delta| call.see(delta)).boxed()
    }
}

/// One call of a model.
struct ModelCall {
    scope: Scope,
    model: Arc<str>,
    began: Instant,
    has_begun: bool,
    usage: Option<Usage>,
    /// The end of an answer that is handed on.
    tail: Option<Tail>,
    /// What was said, if that may be told.
    said: Option<Said>,
    /// Holds the call's span, if there is one.
    context: Context,
    result: CallResult,
}

/// What was asked, and the answer.
#[derive(Debug, Default)]
struct Said {
    asked: String,
    answer: Excerpt,
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallResult {
    Answered,
    /// Nobody listened to the end: the turn was cancelled, a budget was used up, or the program in the text was complete.
    Left,
    Unauthorized,
    NotFound,
    RateLimited,
    Busy,
    Rejected,
    ServerError,
    Unreachable,
    Dropped,
    NotUnderstood,
    Reported,
    Idle,
    TooLarge,
}

impl CallResult {
    fn word(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Left => "left",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "not_found",
            Self::RateLimited => "rate_limited",
            Self::Busy => "busy",
            Self::Rejected => "rejected",
            Self::ServerError => "server_error",
            Self::Unreachable => "unreachable",
            Self::Dropped => "dropped",
            Self::NotUnderstood => "not_understood",
            Self::Reported => "reported",
            Self::Idle => "idle",
            Self::TooLarge => "too_large",
        }
    }

    fn of_status(status: StatusCode) -> Self {
        match status.as_u16() {
            200..=299 => Self::Answered,
            401 | 403 => Self::Unauthorized,
            404 => Self::NotFound,
            429 => Self::RateLimited,
            500.. => Self::ServerError,
            _ => Self::Rejected,
        }
    }

    fn is_error(self) -> bool {
        !matches!(self, Self::Answered | Self::Left)
    }
}

impl From<&UpstreamError> for CallResult {
    fn from(error: &UpstreamError) -> Self {
        match error {
            UpstreamError::Unauthorized { .. } => Self::Unauthorized,
            UpstreamError::NotFound { .. } => Self::NotFound,
            UpstreamError::RateLimited { .. } => Self::RateLimited,
            UpstreamError::Busy { .. } => Self::Busy,
            UpstreamError::Rejected { .. } => Self::Rejected,
            UpstreamError::Server { .. } => Self::ServerError,
            UpstreamError::Unreachable { .. } => Self::Unreachable,
            UpstreamError::Dropped { .. } => Self::Dropped,
            UpstreamError::NotUnderstood { .. } => Self::NotUnderstood,
            UpstreamError::Reported { .. } => Self::Reported,
            UpstreamError::Idle { .. } => Self::Idle,
            UpstreamError::TooLarge { .. } => Self::TooLarge,
        }
    }
}

impl ModelCall {
    fn begin(scope: &Scope, model: Arc<str>, provider: &'static str) -> Self {
        let context = match scope.traces() {
            Some(traces) => traces.start(
                scope.context(),
                format!("chat {model}"),
                SpanKind::Client,
                [
                    KeyValue::new("gen_ai.operation.name", "chat"),
                    KeyValue::new("gen_ai.provider.name", provider),
                    KeyValue::new("gen_ai.request.model", Arc::clone(&model)),
                ],
            ),
            None => Context::new(),
        };
        let (scope, began) = (scope.clone(), Instant::now());
        let said = scope.tells_contents().then(Said::default);
        Self { scope, model, began, has_begun: false, usage: None, tail: None, said, context, result: CallResult::Left }
    }

    /// What the model's server needs to go on with the trace.
    fn headers(&self) -> HeaderMap {
        self.scope.headers(&self.context)
    }

    fn see(&mut self, delta: &Result<Delta, UpstreamError>) {
        match delta {
            Ok(Delta::Retrying { .. }) => {}
            Ok(Delta::Usage(usage)) => self.usage = Some(*usage),
            Ok(Delta::Finished(_)) => self.result = CallResult::Answered,
            Ok(delta) => {
                self.speaks();
                if let (Some(said), Delta::Text(text) | Delta::Refusal(text)) = (&mut self.said, delta) {
                    said.answer.push(text);
                }
            }
            Err(error) => self.fails(error),
        }
    }

    fn fails(&mut self, error: &UpstreamError) {
        self.result = error.into();
    }

    /// Something of the answer is there.
    fn speaks(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true)
            && let Some(metrics) = self.scope.metrics()
        {
            let model = Arc::clone(&self.model);
            let elapsed = self.began.elapsed().as_secs_f64();
            metrics.first_word_seconds.get_or_create(&ModelLabels { model }).observe(elapsed);
        }
    }
}

impl Drop for ModelCall {
    // Whoever listens may stop at any time, and does so by dropping the answer.
    fn drop(&mut self) {
        let result = self.result.word();
        if let Some(metrics) = self.scope.metrics() {
            let model = Arc::clone(&self.model);
            let elapsed = self.began.elapsed().as_secs_f64();
            metrics.model_call_seconds.get_or_create(&ModelLabels { model: Arc::clone(&model) }).observe(elapsed);
            metrics.model_calls.get_or_create(&CallLabels { model, result }).inc();
        }
        if let Some(usage) = self.tail.as_ref().and_then(Tail::usage) {
            self.scope.spent(usage.input, usage.output);
            self.usage = Some(usage);
        }
        let span = self.context.span();
        if let Some(usage) = self.usage {
            let count = |tokens: u64| i64::try_from(tokens).unwrap_or(i64::MAX);
            span.set_attribute(KeyValue::new("gen_ai.usage.input_tokens", count(usage.input)));
            span.set_attribute(KeyValue::new("gen_ai.usage.output_tokens", count(usage.output)));
        }
        if let Some(Said { asked, answer }) = &self.said {
            let line = self.scope.line("model call").with("model", &*self.model).with("result", result);
            line.with("input", asked.as_str()).with("output", answer.as_str()).write();
            span.set_attribute(KeyValue::new("gen_ai.input.messages", asked.clone()));
            let answer = Value::from(vec![said(answer.as_str())]).to_string();
            span.set_attribute(KeyValue::new("gen_ai.output.messages", answer));
        }
        if self.result.is_error() {
            span.set_attribute(KeyValue::new("error.type", result));
            span.set_status(Status::error(""));
        }
        span.end();
    }
}
