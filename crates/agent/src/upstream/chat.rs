//! Any endpoint that speaks OpenAI's Chat Completions.

mod answer;
mod render;
mod sse;

use std::time::Duration;

use aludel_wire::chat::{CallDelta, Chunk, ErrorEnvelope, Response};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::StatusCode;
use reqwest::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};

use super::{Capabilities, Delta, Request, Unreachable, Upstream, UpstreamError};
use crate::excerpt;
use crate::flow::Flow;
use crate::secret::Secret;
use answer::Answer;

/// Bytes of one answer.
const MAX_ANSWER: u64 = 64 << 20;
/// Bytes of an error's body that are read.
const MAX_ERROR: usize = 64 << 10;
/// How often a request is made before giving up.
const ATTEMPTS: u32 = 3;
/// The longest wait before another attempt. Whoever asks for more gets an error with the figure.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Where a model is and how it is asked.
#[derive(Debug, Clone)]
pub struct ChatOptions {
    /// The base, which usually ends in `/v1`.
    pub url: String,
    /// The model's name at the upstream.
    pub model: String,
    /// The key, if one is needed.
    pub key: Option<Secret>,
    /// What the model takes.
    pub capabilities: Capabilities,
    /// How long the upstream may be silent, also before its first word.
    pub idle_timeout: Duration,
}

/// An upstream that speaks Chat Completions.
#[derive(Debug, Clone)]
pub struct Chat {
    options: ChatOptions,
    client: reqwest::Client,
    endpoint: String,
}

impl Chat {
    /// Makes the upstream; nothing is sent before the first call. The error says what is wrong with the options.
    pub fn new(options: ChatOptions) -> Result<Self, String> {
        let base = options.url.trim_end_matches('/');
        let url = reqwest::Url::parse(base).map_err(|error| format!("the url {base:?}: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("the url {base:?} must begin with http:// or https://"));
        }
        // A second installation fails, and the first one serves.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("aludel/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("the HTTP client: {error}"))?;
        let endpoint = format!("{base}/chat/completions");
        Ok(Self { options, client, endpoint })
    }
}

impl Upstream for Chat {
    fn name(&self) -> &str {
        &self.options.model
    }

    fn capabilities(&self) -> Capabilities {
        self.options.capabilities
    }

    fn call(&self, request: Request) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        let chat = self.clone();
        let flow = Flow::new(|sink| async move {
            let mut answer = Answer::new(sink);
            if let Err(error) = chat.answer(&request, &mut answer).await {
                answer.fail(error).await;
            }
        });
        flow.boxed()
    }
}

impl Chat {
    async fn answer(&self, request: &Request, answer: &mut Answer) -> Result<(), UpstreamError> {
        let body = render::request(&self.options.model, request, self.options.capabilities.vision);
        let body = serde_json::to_vec(&body).map_err(|error| self.not_understood(error.to_string(), ""))?;
        let mut attempt = 1;
        loop {
            let error = match self.attempt(body.clone(), answer).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let Some(wait) = wait_before_retry(&error, attempt).filter(|_| attempt < ATTEMPTS && !answer.has_begun())
            else {
                return Err(error);
            };
            answer.retrying(wait, error.to_string()).await;
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, body: Vec<u8>, answer: &mut Answer) -> Result<(), UpstreamError> {
        let mut request = self
            .client
            .post(&self.endpoint)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "text/event-stream");
        if let Some(key) = &self.options.key {
            request = request.bearer_auth(key.expose());
        }
        let sent = tokio::time::timeout(self.options.idle_timeout, request.body(body).send()).await;
        let response = sent.map_err(|_| self.idle())?.map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() {
            return Err(self.status_error(response).await);
        }
        let content_type =
            response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
        if content_type.starts_with("application/json") {
            self.whole(response, answer).await
        } else {
            self.stream(response, answer).await
        }
    }

    /// An upstream that does not stream.
    async fn whole(&self, response: reqwest::Response, answer: &mut Answer) -> Result<(), UpstreamError> {
        let body = self.read(response, MAX_ANSWER as usize).await?;
        if let Ok(envelope) = serde_json::from_slice::<ErrorEnvelope>(&body) {
            return Err(self.reported(&envelope.error.message));
        }
        let response: Response = serde_json::from_slice(&body).map_err(|error| {
            self.not_understood(format!("its JSON is no completion ({error})"), &String::from_utf8_lossy(&body))
        })?;
        let choice =
            response.choices.into_iter().next().ok_or_else(|| self.not_understood("it has no choices".into(), ""))?;
        let message = choice.message;
        answer.reasoning(message.reasoning_content.or(message.reasoning)).await;
        answer.text(message.content).await;
        answer.refusal(message.refusal).await;
        for (index, call) in message.tool_calls.into_iter().flatten().enumerate() {
            let delta = CallDelta {
                index: u32::try_from(index).ok(),
                id: Some(call.id),
                kind: None,
                function: aludel_wire::chat::CalledFunctionDelta {
                    name: Some(call.function.name),
                    arguments: call.function.arguments,
                },
            };
            answer.call(delta).await.map_err(|what| self.too_large(what))?;
        }
        answer.usage(response.usage).await;
        answer.finish(choice.finish_reason.as_deref().unwrap_or("stop"));
        answer.end().await;
        Ok(())
    }

    async fn stream(&self, response: reqwest::Response, answer: &mut Answer) -> Result<(), UpstreamError> {
        let mut parser = sse::Parser::default();
        let mut bytes = response.bytes_stream();
        let mut read = 0;
        let mut beginning = Vec::new();
        loop {
            let next = tokio::time::timeout(self.options.idle_timeout, bytes.next()).await.map_err(|_| self.idle())?;
            let ended = next.is_none();
            if let Some(piece) = next {
                let piece = piece.map_err(|error| self.dropped(&chain(&error)))?;
                read += piece.len() as u64;
                if read > MAX_ANSWER {
                    return Err(self.too_large(("its answer", MAX_ANSWER)));
                }
                if beginning.len() < 400 {
                    beginning.extend(piece.iter().take(400));
                }
                parser.push(&piece).map_err(|why| self.malformed(why, &beginning))?;
            } else {
                parser.finish().map_err(|why| self.malformed(why, &beginning))?;
            }
            while let Some(data) = parser.next() {
                if data.trim() == "[DONE]" {
                    answer.end().await;
                    return Ok(());
                }
                self.chunk(&data, answer).await?;
            }
            if ended {
                return if answer.is_finished() {
                    answer.end().await;
                    Ok(())
                } else if read == 0 {
                    Err(self.not_understood("it is empty".into(), ""))
                } else {
                    Err(self.dropped("no finish_reason and no [DONE] had come"))
                };
            }
        }
    }

    async fn chunk(&self, data: &str, answer: &mut Answer) -> Result<(), UpstreamError> {
        if let Ok(envelope) = serde_json::from_str::<ErrorEnvelope>(data) {
            return Err(self.reported(&envelope.error.message));
        }
        let chunk: Chunk = serde_json::from_str(data)
            .map_err(|error| self.not_understood(format!("an event is no completion chunk ({error})"), data))?;
        answer.usage(chunk.usage).await;
        // Only the first of several alternatives is ours.
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            let delta = choice.delta;
            answer.reasoning(delta.reasoning_content.or(delta.reasoning)).await;
            answer.text(delta.content).await;
            answer.refusal(delta.refusal).await;
            for call in delta.tool_calls.into_iter().flatten() {
                answer.call(call).await.map_err(|what| self.too_large(what))?;
            }
            if let Some(reason) = choice.finish_reason {
                answer.finish(&reason);
            }
        }
        Ok(())
    }

    /// Reads a body up to a bound; what is beyond is not read.
    async fn read(&self, response: reqwest::Response, limit: usize) -> Result<Vec<u8>, UpstreamError> {
        let mut body = Vec::new();
        let mut bytes = response.bytes_stream();
        while body.len() < limit {
            let next = tokio::time::timeout(self.options.idle_timeout, bytes.next()).await.map_err(|_| self.idle())?;
            match next {
                Some(piece) => body.extend(piece.map_err(|error| self.dropped(&chain(&error)))?),
                None => break,
            }
        }
        body.truncate(limit);
        Ok(body)
    }

    async fn status_error(&self, response: reqwest::Response) -> UpstreamError {
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.trim().parse::<f64>().ok())
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let body = self.read(response, MAX_ERROR).await.unwrap_or_default();
        let said = match serde_json::from_slice::<ErrorEnvelope>(&body) {
            Ok(envelope) => envelope.error.message,
            Err(_) => String::from_utf8_lossy(&body).into_owned(),
        };
        let (endpoint, detail) = (self.endpoint.clone(), self.detail(&said));
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let key = match &self.options.key {
                    None => "the model's `key` setting: no key was sent".to_owned(),
                    Some(key) => format!("the key in {}", key.origin().unwrap_or("the model's `key` setting")),
                };
                UpstreamError::Unauthorized { endpoint, status: status.as_u16(), key, detail }
            }
            StatusCode::NOT_FOUND => UpstreamError::NotFound { endpoint, model: self.options.model.clone(), detail },
            StatusCode::TOO_MANY_REQUESTS => UpstreamError::RateLimited { endpoint, retry_after, detail },
            status if status.is_server_error() => UpstreamError::Server { endpoint, status: status.as_u16(), detail },
            status => UpstreamError::Rejected { endpoint, status: status.as_u16(), detail },
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> UpstreamError {
        let detail = chain(error);
        let lower = detail.to_lowercase();
        let cause = if lower.contains("dns") || lower.contains("lookup") {
            Unreachable::Dns
        } else if lower.contains("refused") {
            Unreachable::Refused
        } else if lower.contains("certificate") || lower.contains("tls") || lower.contains("handshake") {
            Unreachable::Tls
        } else if error.is_timeout() {
            Unreachable::Timeout
        } else if error.is_connect() {
            Unreachable::Route
        } else {
            // The connection was there, and ended before the answer began.
            return self.dropped(&detail);
        };
        UpstreamError::Unreachable { endpoint: self.endpoint.clone(), cause, detail: self.detail(&detail) }
    }

    fn malformed(&self, why: sse::Malformed, beginning: &[u8]) -> UpstreamError {
        match why {
            sse::Malformed::NotEvents => {
                self.not_understood("it is no stream of events".into(), &String::from_utf8_lossy(beginning))
            }
            sse::Malformed::TooLong => self.too_large(("one event", sse::Malformed::LIMIT)),
        }
    }

    fn dropped(&self, detail: &str) -> UpstreamError {
        UpstreamError::Dropped { endpoint: self.endpoint.clone(), detail: self.detail(detail) }
    }

    fn reported(&self, message: &str) -> UpstreamError {
        UpstreamError::Reported { endpoint: self.endpoint.clone(), detail: self.detail(message) }
    }

    fn not_understood(&self, detail: String, sent: &str) -> UpstreamError {
        UpstreamError::NotUnderstood { endpoint: self.endpoint.clone(), detail, excerpt: self.detail(sent) }
    }

    fn too_large(&self, (what, limit): (&'static str, u64)) -> UpstreamError {
        UpstreamError::TooLarge { endpoint: self.endpoint.clone(), what, limit }
    }

    fn idle(&self) -> UpstreamError {
        UpstreamError::Idle { endpoint: self.endpoint.clone(), after: self.options.idle_timeout }
    }

    /// A short form of what came from outside, without our key.
    fn detail(&self, text: &str) -> String {
        let text = match &self.options.key {
            Some(key) => key.redact(text),
            None => text.to_owned(),
        };
        excerpt::line(&text, 300)
    }
}

/// Whether and when to try again.
fn wait_before_retry(error: &UpstreamError, attempt: u32) -> Option<Duration> {
    let backoff = Duration::from_millis(500) * 2_u32.saturating_pow(attempt - 1);
    match error {
        UpstreamError::RateLimited { retry_after, .. } => {
            Some(retry_after.unwrap_or(backoff)).filter(|wait| *wait <= MAX_WAIT)
        }
        UpstreamError::Server { .. } => Some(backoff),
        UpstreamError::Dropped { .. } => Some(backoff),
        _ => None,
    }
}

/// An error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
