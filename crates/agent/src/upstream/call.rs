//! One call of a model as a span of `tracing`: its result, its tokens and the time to its first piece.

use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::StatusCode;
use tracing::field::Empty;
use tracing::{Span, info_span, record_all};

use super::{Delta, ModelRequest, TokenUsage, Upstream, UpstreamError};
use crate::contents::{self, Excerpt, messages};

macro_rules! call_results {
    ($($(#[$doc:meta])* $result:ident $name:literal,)*) => {
        /// The end of a model call, as logs and figures name it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum CallResult {
            $($(#[$doc])* $result,)*
        }

        impl CallResult {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$result,)*];

            /// The name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$result => $name,)*
                }
            }
        }
    };
}

call_results! {
    /// The model answered.
    Answered "answered",
    /// Nobody waited for the end of its answer.
    Left "left",
    /// Its server refused the key.
    Unauthorized "unauthorized",
    /// There is no such model.
    NotFound "not_found",
    /// It is over its rate limit.
    RateLimited "rate_limited",
    /// It is called as often as its settings allow already.
    Busy "busy",
    /// The request is at fault.
    Rejected "rejected",
    /// Its server failed.
    ServerError "server_error",
    /// There is no connection.
    Unreachable "unreachable",
    /// The connection ended in the middle.
    Dropped "dropped",
    /// The answer is not of the protocol.
    NotUnderstood "not_understood",
    /// The answer has an error in it.
    Reported "reported",
    /// Nothing came for too long.
    Idle "idle",
    /// The answer exceeds a bound.
    TooLarge "too_large",
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

/// Calls a model in a span of its own.
pub(crate) fn call(upstream: &dyn Upstream, request: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>> {
    let mut call = ModelCall::begin(upstream.name(), upstream.provider());
    if let Some((asked, _)) = &mut call.contents {
        *asked = messages(&request.items).to_string();
    }
    let deltas = call.span.in_scope(|| upstream.call(request));
    deltas.inspect(move |delta| call.record(delta)).boxed()
}

/// A running call of a model. Dropping it ends its span, with the results so far.
#[derive(Debug)]
pub struct ModelCall {
    span: Span,
    began: Instant,
    has_begun: bool,
    usage: Option<TokenUsage>,
    /// The conversation and the answer, if a subscriber wants them.
    contents: Option<(String, Excerpt)>,
    result: CallResult,
}

impl ModelCall {
    /// Begins a call.
    pub fn begin(model: &str, provider: &str) -> Self {
        Self::start(model, provider, false)
    }

    fn start(model: &str, provider: &str, stands_in: bool) -> Self {
        let span = info_span!(
            "chat",
            model,
            provider,
            stands_in,
            first_piece = Empty,
            input_tokens = Empty,
            output_tokens = Empty,
            input = Empty,
            output = Empty,
            result = Empty,
        );
        let contents = contents::are_wanted().then(Default::default);
        // A caller that stops early has cancelled, has used up a budget, or has the whole program of a text.
        Self { span, began: Instant::now(), has_begun: false, usage: None, contents, result: CallResult::Left }
    }

    /// The span.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Records that the model's server answers, with this status.
    pub fn answers(&mut self, status: StatusCode) {
        self.result = match status.as_u16() {
            200..=299 => CallResult::Answered,
            401 | 403 => CallResult::Unauthorized,
            404 => CallResult::NotFound,
            429 => CallResult::RateLimited,
            500.. => CallResult::ServerError,
            _ => CallResult::Rejected,
        };
        self.speaks();
    }

    /// Records that it failed.
    pub fn fails(&mut self, error: &UpstreamError) {
        self.result = CallResult::from(error);
    }

    /// Notes what it cost.
    pub fn costs(&mut self, usage: TokenUsage) {
        self.usage = Some(usage);
    }

    fn record(&mut self, delta: &Result<Delta, UpstreamError>) {
        match delta {
            Ok(Delta::Retrying { .. }) => {}
            Ok(Delta::FellBack { error, model, provider }) => {
                self.fails(error);
                self.goes_on_with(model, provider);
            }
            Ok(Delta::Usage(usage)) => self.costs(*usage),
            Ok(Delta::Finished(_)) => self.result = CallResult::Answered,
            Ok(delta) => {
                self.speaks();
                if let (Some((_, answer)), Delta::Text(text) | Delta::Refusal(text)) = (&mut self.contents, delta) {
                    answer.push(text);
                }
            }
            Err(error) => self.fails(error),
        }
    }

    /// Ends this call, and begins one of another model with the same conversation.
    fn goes_on_with(&mut self, model: &str, provider: &str) {
        let asked = self.contents.as_ref().map(|(asked, _)| asked.clone());
        *self = Self::start(model, provider, true);
        self.contents = asked.map(|asked| (asked, Excerpt::default()));
    }

    /// Records a piece of the answer.
    fn speaks(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.span.record("first_piece", self.began.elapsed().as_secs_f64());
        }
    }
}

impl Drop for ModelCall {
    // The caller may stop at any time by dropping the answer.
    fn drop(&mut self) {
        let (input, output) = match &self.contents {
            Some((input, output)) => (Some(input.as_str()), Some(output.as_str())),
            None => (None, None),
        };
        record_all!(
            self.span,
            input_tokens = self.usage.map(|usage| usage.input),
            output_tokens = self.usage.map(|usage| usage.output),
            input = input,
            output = output,
            result = self.result.name(),
        );
    }
}
