//! Models behind HTTP: Chat Completions, Responses, Anthropic's Messages or Gemini.

mod answer;
mod anthropic;
mod endpoint;
mod error;
mod forward;
mod gemini;
mod quirks;
mod render;
mod responses;
mod signatures;
mod sse;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use aludel_wire::chat::{CallDelta, CalledFunctionDelta, Chunk, ErrorEnvelope, Response};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, TRANSFER_ENCODING,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::info;

use super::{Capabilities, Delta, Request, Upstream, UpstreamError};
use crate::flow::Flow;
use crate::secret::Secret;
use answer::Answer;
use endpoint::Endpoint;
use error::chain;
pub use forward::{Forwarded, Target};
use quirks::Quirks;
use signatures::Signatures;
pub use transport::Transport;

/// Bytes of one answer.
const MAX_ANSWER: u64 = 64 << 20;
/// Attempts of one request.
const ATTEMPTS: u32 = 3;
/// Attempts to put a rejected request differently.
const LESSONS: u32 = 2;
/// The longest wait before another attempt. Whoever asks for more gets an error with the figure.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Limit of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for the usage and the end of the stream once the answer itself is whole: some servers leave the connection open.
const EPILOGUE: Duration = Duration::from_secs(2);

/// The protocol of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Chat Completions.
    ChatCompletions,
    /// Responses.
    Responses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini.
    Gemini,
}

/// Settings of a model behind HTTP.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Its protocol.
    pub protocol: Protocol,
    /// The base, which usually ends in `/v1`. A query, as some clouds want it, is kept.
    pub url: String,
    /// The model's name at the upstream.
    pub model: String,
    /// The key, if one is needed.
    pub key: Option<Secret>,
    /// Its abilities beyond text.
    pub capabilities: Capabilities,
    /// Time for which the upstream may be silent, also before its first word.
    pub idle_timeout: Duration,
    /// Headers that every request has besides those of the protocol, by name.
    pub headers: Vec<(String, Secret)>,
    /// The most tokens of one answer. Asked for where nobody says how many; who asks for more gets these. Not of requests that are handed on.
    pub max_output_tokens: Option<u32>,
    /// Requests under way at once; one more fails at once with [`UpstreamError::Busy`].
    pub requests: Option<usize>,
}

/// An upstream behind HTTP.
#[derive(Debug, Clone)]
pub struct HttpUpstream {
    options: HttpOptions,
    transport: Arc<dyn Transport>,
    endpoint: Endpoint,
    /// Headers that every request has: the key, and what else the protocol wants.
    headers: HeaderMap,
    quirks: Quirks,
    signatures: Signatures,
    /// One place for each request that may be under way, if there is a limit.
    places: Option<Arc<Semaphore>>,
}

impl HttpUpstream {
    /// Makes the upstream; nothing is sent before the first call. The error says what is wrong with the options.
    pub fn new(options: HttpOptions) -> Result<Self, String> {
        let endpoint = Endpoint::parse(&options.url, options.protocol, &options.model)?;
        // A second installation fails, and the first one serves.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let mut client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("aludel/", env!("CARGO_PKG_VERSION")));
        if endpoint.is_loopback() {
            // A proxy of the environment leads elsewhere.
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| format!("the HTTP client: {}", chain(&error)))?;
        Self::over(options, Arc::new(client))
    }

    /// Makes an upstream whose requests go this way.
    pub fn over(options: HttpOptions, transport: Arc<dyn Transport>) -> Result<Self, String> {
        let endpoint = Endpoint::parse(&options.url, options.protocol, &options.model)?;
        let headers = headers(&options)?;
        let quirks = Quirks::of(&endpoint);
        let places = options.requests.map(|requests| Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS))));
        Ok(Self { options, transport, endpoint, headers, quirks, signatures: Signatures::default(), places })
    }

    /// A place among the requests under way, given back when it is dropped. `None` where there is no limit.
    fn place(&self) -> Result<Option<OwnedSemaphorePermit>, UpstreamError> {
        let place = self.places.as_ref().map(|places| Arc::clone(places).try_acquire_owned()).transpose();
        place.map_err(|_| UpstreamError::Busy {
            endpoint: self.endpoint.shown(),
            requests: self.options.requests.unwrap_or_default(),
        })
    }
}

/// Headers that belong to the request as such.
const OURS: [HeaderName; 7] =
    [ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING];

/// Parses the headers of every request. The client does not log those that are secret.
fn headers(options: &HttpOptions) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &options.headers {
        let parsed: HeaderName = name.parse().map_err(|_| format!("`{name}` is not a name of a header"))?;
        if OURS.contains(&parsed) {
            return Err(format!("the header `{name}` belongs to the request itself and cannot be set"));
        }
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the header `{name}` holds a line break or another character that cannot be sent"))?;
        value.set_sensitive(true);
        headers.append(parsed, value);
    }
    if options.protocol == Protocol::Anthropic {
        headers.insert(forward::VERSION, HeaderValue::from_static(anthropic::VERSION));
    }
    let Some(key) = &options.key else { return Ok(headers) };
    let named = || format!("the key in {}", key.origin().unwrap_or("the model's `key` setting"));
    if key.expose().is_empty() {
        return Err(format!("{} is empty", named()));
    }
    let (name, value) = match options.protocol {
        Protocol::ChatCompletions | Protocol::Responses => (AUTHORIZATION, format!("Bearer {}", key.expose())),
        Protocol::Anthropic => (HeaderName::from_static("x-api-key"), key.expose().to_owned()),
        Protocol::Gemini => (HeaderName::from_static("x-goog-api-key"), key.expose().to_owned()),
    };
    let mut value = HeaderValue::from_str(&value)
        .map_err(|_| format!("{} holds a line break or another character that cannot be sent", named()))?;
    if headers.contains_key(&name) {
        return Err(format!("there is a key, and a header `{name}`, in which it would be sent; give one of them"));
    }
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(headers)
}

impl Upstream for HttpUpstream {
    fn name(&self) -> &str {
        &self.options.model
    }

    fn provider(&self) -> &'static str {
        match self.options.protocol {
            Protocol::ChatCompletions | Protocol::Responses => "openai",
            Protocol::Anthropic => "anthropic",
            Protocol::Gemini => "gcp.gemini",
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.options.capabilities
    }

    fn call(&self, mut request: Request) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        if let Some(most) = self.options.max_output_tokens {
            let wanted = &mut request.sampling.max_output_tokens;
            *wanted = Some(wanted.map_or(most, |wanted| wanted.min(most)));
        }
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

impl HttpUpstream {
    async fn answer(&self, request: &Request, answer: &mut Answer) -> Result<(), UpstreamError> {
        let _place = self.place()?;
        let mut attempt = 1;
        let mut lessons = 0;
        loop {
            let style = self.quirks.style();
            let (model, vision) = (&self.options.model, self.options.capabilities.vision);
            let body = match self.options.protocol {
                Protocol::ChatCompletions => serde_json::to_vec(&render::request(model, request, vision, style)),
                Protocol::Responses => serde_json::to_vec(&responses::request(model, request, vision)),
                Protocol::Anthropic => {
                    serde_json::to_vec(&anthropic::request(model, request, vision, &self.signatures))
                }
                Protocol::Gemini => serde_json::to_vec(&gemini::request(model, request, vision, &self.signatures)),
            };
            let body = body.map_err(|error| self.not_understood(error.to_string(), ""))?;
            let error = match self.attempt(body, &request.headers, answer).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if lessons < LESSONS && self.quirks.learn(style, &error) {
                lessons += 1;
                continue;
            }
            let Some(wait) = wait_before_retry(&error, attempt).filter(|_| attempt < ATTEMPTS && !answer.has_begun())
            else {
                return Err(error);
            };
            info!(model, attempt, error = %error, "the model is asked again in {wait:?}");
            answer.tell(Delta::Retrying { wait, reason: error.to_string() }).await;
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, body: Vec<u8>, headers: &HeaderMap, answer: &mut Answer) -> Result<(), UpstreamError> {
        let mut headers = headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let response = self.send(self.endpoint.url(), headers, body.into()).await?;
        if !response.status().is_success() {
            return Err(self.status_error(response).await);
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
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
            return Err(self.reported(&envelope.error, &String::from_utf8_lossy(&body)));
        }
        let sent = String::from_utf8_lossy(&body);
        let odd = |error: serde_json::Error| self.not_understood(format!("its JSON is no answer ({error})"), &sent);
        match self.options.protocol {
            Protocol::ChatCompletions => {}
            Protocol::Responses => {
                self.response_whole(serde_json::from_slice(&body).map_err(odd)?, answer).await?;
                answer.end().await;
                return Ok(());
            }
            Protocol::Anthropic => {
                self.anthropic_whole(serde_json::from_slice(&body).map_err(odd)?, answer).await?;
                answer.end().await;
                return Ok(());
            }
            Protocol::Gemini => {
                let piece = serde_json::from_slice(&body).map_err(odd)?;
                self.gemini_piece(piece, &mut 0, &sent, answer).await?;
                answer.end().await;
                return Ok(());
            }
        }
        let response: Response = serde_json::from_slice(&body).map_err(|error| {
            self.not_understood(format!("its JSON is no completion ({error})"), &String::from_utf8_lossy(&body))
        })?;
        let choice =
            response.choices.into_iter().next().ok_or_else(|| self.not_understood("it has no choices".into(), ""))?;
        let message = choice.message;
        self.thoughts(answer, message.reasoning_content, message.reasoning).await;
        answer.text(message.content).await;
        answer.refusal(message.refusal).await;
        for (index, call) in message.tool_calls.into_iter().flatten().enumerate() {
            let function = CalledFunctionDelta { name: Some(call.function.name), arguments: call.function.arguments };
            let delta = CallDelta { index: u32::try_from(index).ok(), id: Some(call.id), kind: None, function };
            answer.call(delta).await.map_err(|what| self.too_large(what))?;
        }
        answer.usage(response.usage).await;
        self.finish(answer, choice.finish_reason.as_deref().unwrap_or("stop"))?;
        answer.end().await;
        Ok(())
    }

    async fn stream(&self, response: reqwest::Response, answer: &mut Answer) -> Result<(), UpstreamError> {
        let mut parser = sse::Parser::default();
        let mut bytes = response.bytes_stream();
        let mut read = 0;
        let mut beginning = Vec::new();
        let mut ended = false;
        let mut events = responses::Events::default();
        let mut messages = anthropic::Events::default();
        let mut calls = 0;
        while !ended {
            let is_whole = answer.is_whole();
            let patience = self.options.idle_timeout;
            let patience = if is_whole { patience.min(EPILOGUE) } else { patience };
            match tokio::time::timeout(patience, bytes.next()).await {
                Err(_) | Ok(Some(Err(_))) if is_whole => break,
                Err(_) => return Err(self.idle()),
                Ok(Some(Err(error))) => return Err(self.dropped(&chain(&error))),
                Ok(Some(Ok(piece))) => {
                    read += piece.len() as u64;
                    if read > MAX_ANSWER {
                        return Err(self.too_large(("its answer", MAX_ANSWER)));
                    }
                    if beginning.len() < 400 {
                        beginning.extend(piece.iter().take(400));
                    }
                    parser.push(&piece).map_err(|why| self.malformed(why, &beginning))?;
                }
                Ok(None) => {
                    parser.finish().map_err(|why| self.malformed(why, &beginning))?;
                    ended = true;
                }
            }
            while let Some(data) = parser.next() {
                if data.trim() == "[DONE]" {
                    answer.end().await;
                    return Ok(());
                }
                match self.options.protocol {
                    Protocol::ChatCompletions => self.chunk(&data, answer).await?,
                    Protocol::Responses => self.response_event(&data, &mut events, answer).await?,
                    Protocol::Anthropic => self.anthropic_event(&data, &mut messages, answer).await?,
                    Protocol::Gemini => self.gemini_event(&data, &mut calls, answer).await?,
                }
            }
        }
        if answer.is_whole() {
            answer.end().await;
            Ok(())
        } else if read == 0 {
            Err(self.not_understood("it is empty".into(), ""))
        } else {
            Err(self.dropped("no finish_reason and no [DONE] had come"))
        }
    }

    async fn chunk(&self, data: &str, answer: &mut Answer) -> Result<(), UpstreamError> {
        if let Ok(envelope) = serde_json::from_str::<ErrorEnvelope>(data) {
            return Err(self.reported(&envelope.error, data));
        }
        let chunk: Chunk = serde_json::from_str(data)
            .map_err(|error| self.not_understood(format!("an event is no completion chunk ({error})"), data))?;
        answer.usage(chunk.usage).await;
        // Only the first of several alternatives is ours.
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            let delta = choice.delta;
            self.thoughts(answer, delta.reasoning_content, delta.reasoning).await;
            answer.text(delta.content).await;
            answer.refusal(delta.refusal).await;
            for call in delta.tool_calls.into_iter().flatten() {
                answer.call(call).await.map_err(|what| self.too_large(what))?;
            }
            if let Some(reason) = choice.finish_reason {
                self.finish(answer, &reason)?;
            }
        }
        Ok(())
    }

    async fn thoughts(&self, answer: &mut Answer, content: Option<String>, other_name: Option<String>) {
        if content.as_ref().is_some_and(|text| !text.is_empty()) {
            self.quirks.saw_thoughts();
        }
        answer.reasoning(content.or(other_name)).await;
    }

    fn finish(&self, answer: &mut Answer, reason: &str) -> Result<(), UpstreamError> {
        if reason.eq_ignore_ascii_case("error") {
            return Err(self.gave_up());
        }
        answer.finish(reason);
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
}

/// Returns the wait before another attempt, or `None` if there is none.
fn wait_before_retry(error: &UpstreamError, attempt: u32) -> Option<Duration> {
    let backoff = Duration::from_millis(500) * 2_u32.saturating_pow(attempt - 1);
    match error {
        UpstreamError::RateLimited { retry_after, .. } | UpstreamError::Server { retry_after, .. } => {
            Some(retry_after.unwrap_or(backoff)).filter(|wait| *wait <= MAX_WAIT)
        }
        UpstreamError::Dropped { .. } => Some(backoff),
        _ => None,
    }
}
