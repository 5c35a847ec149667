//! Models behind HTTP: sends and repeats requests within limits, in any protocol.

mod endpoint;
mod error;
mod forward;
mod retry;
mod sse;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use aludel_ignore::Ignore;
use aludel_wire::chat::ErrorEnvelope;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{
    ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    TRANSFER_ENCODING,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::info;

use super::adapter::{Adapter, Exchange, HttpApi};
use super::answer::AnswerBuilder;
pub use super::protocol::Protocol;
use super::{Delta, ModelCapabilities, ModelRequest, Sampling, Upstream, UpstreamError};
use crate::future_stream::{FutureStream, Sink};
use crate::secret::Secret;
use endpoint::Endpoint;
use error::chain;
pub use forward::{ForwardTarget, ForwardedResponse};
pub use transport::Transport;

/// Bytes of one answer.
const MAX_ANSWER: u64 = 64 << 20;
/// Attempts to put a rejected request differently.
const LESSONS: u32 = 2;
/// Limit of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for the usage and the end of the stream after the answer: some servers leave the connection open.
const EPILOGUE: Duration = Duration::from_secs(2);

/// The longest silence of a model by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Settings of a model behind HTTP: [`HttpOptions::new`] with changes.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Its protocol.
    pub protocol: Protocol,
    /// The base URL, which usually ends in `/v1`. A query, which some clouds require, is kept.
    pub url: String,
    /// The model's name at the upstream.
    pub model: String,
    /// The key, if one is needed.
    pub key: Option<Secret>,
    /// Its abilities beyond text.
    pub capabilities: ModelCapabilities,
    /// The longest silence of the upstream, also before its first word.
    pub idle_timeout: Duration,
    /// Headers of every request besides those of the protocol, by name.
    pub headers: Vec<(String, Secret)>,
    /// The most tokens of one answer: the default, and the limit of what callers may ask for. Not applied to forwarded requests.
    pub max_output_tokens: Option<u32>,
    /// Concurrent requests; one more fails with [`UpstreamError::Busy`].
    pub requests: Option<usize>,
}

impl HttpOptions {
    /// A model behind Chat Completions that calls functions and sees no images, without a key.
    pub fn new(url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            protocol: Protocol::CHAT_COMPLETIONS,
            url: url.into(),
            model: model.into(),
            key: None,
            capabilities: ModelCapabilities { function_calling: true, vision: false },
            idle_timeout: IDLE_TIMEOUT,
            headers: Vec::new(),
            max_output_tokens: None,
            requests: None,
        }
    }

    /// Sends this key.
    #[must_use]
    pub fn key(self, key: Secret) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Speaks this protocol.
    #[must_use]
    pub fn protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// The model has these abilities.
    #[must_use]
    pub fn capabilities(self, capabilities: ModelCapabilities) -> Self {
        Self { capabilities, ..self }
    }
}

/// An upstream behind HTTP.
#[derive(Debug, Clone)]
pub struct HttpUpstream {
    options: HttpOptions,
    adapter: Arc<dyn Adapter>,
    transport: Arc<dyn Transport>,
    endpoint: Endpoint,
    /// Headers of every request: the key, and others that the protocol requires.
    headers: HeaderMap,
    /// A permit for each concurrent request, if there is a limit.
    permits: Option<Arc<Semaphore>>,
}

impl HttpUpstream {
    /// Makes the upstream; sends nothing before the first call. The error describes a mistake in the options.
    pub fn new(options: HttpOptions) -> Result<Self, String> {
        rustls::crypto::ring::default_provider().install_default().ignore("the first installation counts");
        let mut client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("aludel/", env!("CARGO_PKG_VERSION")));
        if endpoint::is_loopback(&endpoint::base(&options.url)?) {
            // A proxy of the environment would not reach this machine.
            client = client.no_proxy();
        }
        let client = client.build().map_err(|error| format!("the HTTP client: {}", chain(&error)))?;
        Self::over(options, Arc::new(client))
    }

    /// Makes an upstream with this transport.
    pub fn over(options: HttpOptions, transport: Arc<dyn Transport>) -> Result<Self, String> {
        let base = endpoint::base(&options.url)?;
        let adapter = options.protocol.adapter(&base);
        let endpoint = Endpoint::new(base, adapter.api(), adapter.path(&options.model));
        let headers = headers(&options, adapter.api())?;
        let permits = options.requests.map(|requests| Arc::new(Semaphore::new(requests.min(Semaphore::MAX_PERMITS))));
        Ok(Self { options, adapter, transport, endpoint, headers, permits })
    }

    /// Takes a permit for a request. `None` without a limit.
    fn permit(&self) -> Result<Option<OwnedSemaphorePermit>, UpstreamError> {
        let permit = self.permits.as_ref().map(|permits| Arc::clone(permits).try_acquire_owned()).transpose();
        permit.map_err(|_| UpstreamError::Busy {
            endpoint: self.endpoint.shown(),
            requests: self.options.requests.unwrap_or_default(),
        })
    }
}

/// Headers that belong to the request as such.
const OURS: [HeaderName; 7] =
    [ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING];

/// Parses the headers of every request. The client does not log secret ones.
fn headers(options: &HttpOptions, api: &HttpApi) -> Result<HeaderMap, String> {
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
    headers.extend(api.version.iter().map(|(name, version)| (name.clone(), HeaderValue::from_static(version))));
    let Some(key) = &options.key else { return Ok(headers) };
    let named = || format!("the key in {}", key.origin().unwrap_or("the model's `key` setting"));
    if key.expose().is_empty() {
        return Err(format!("{} is empty", named()));
    }
    let (name, scheme) = &api.key;
    let mut value = HeaderValue::from_str(&format!("{scheme}{}", key.expose()))
        .map_err(|_| format!("{} holds a line break or another character that cannot be sent", named()))?;
    if headers.contains_key(name) {
        return Err(format!("there is a key, and a header `{name}`, in which it would be sent; give one of them"));
    }
    value.set_sensitive(true);
    headers.insert(name.clone(), value);
    Ok(headers)
}

impl Upstream for HttpUpstream {
    fn name(&self) -> &str {
        &self.options.model
    }

    fn provider(&self) -> &'static str {
        self.adapter.api().provider
    }

    fn capabilities(&self) -> ModelCapabilities {
        self.options.capabilities
    }

    fn call(&self, mut request: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        if let Some(most) = self.options.max_output_tokens {
            let Sampling { max_output_tokens: wanted, whole_output_tokens: whole, .. } = &mut request.sampling;
            *wanted = Some(wanted.map_or(most, |wanted| wanted.min(most)));
            *whole = whole.map(|whole| whole.min(most));
        }
        let upstream = self.clone();
        let flow = FutureStream::new(|sink| async move {
            let mut deltas = Deltas { sink, has_begun: false };
            if let Err(error) = upstream.answer(&request, &mut deltas).await {
                deltas.sink.send(Err(error)).await;
            }
        });
        flow.boxed()
    }
}

/// The deltas of a call, passed on.
struct Deltas {
    sink: Sink<Result<Delta, UpstreamError>>,
    /// True once part of the answer was passed on: then it cannot be requested again.
    has_begun: bool,
}

impl Deltas {
    async fn pass(&mut self, deltas: impl IntoIterator<Item = Delta>) {
        for delta in deltas {
            self.has_begun |= !matches!(delta, Delta::Usage(_) | Delta::Retrying { .. });
            self.sink.send(Ok(delta)).await;
        }
    }
}

impl HttpUpstream {
    async fn answer(&self, request: &ModelRequest, deltas: &mut Deltas) -> Result<(), UpstreamError> {
        let _permit = self.permit()?;
        let model = &self.options.model;
        let mut attempt = 1;
        let mut lessons = 0;
        loop {
            let mut exchange = self.adapter.exchange();
            let body = exchange
                .request(model, request, self.options.capabilities.vision)
                .map_err(|error| self.not_understood(error.to_string(), ""))?;
            let error = match self.attempt(body, &request.headers, &mut *exchange, deltas).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if lessons < LESSONS && exchange.learn(&error) {
                lessons += 1;
                continue;
            }
            let Some(wait) = retry::wait(&error, attempt).filter(|_| !deltas.has_begun) else { return Err(error) };
            info!(model, attempt, error = %error, "the model is asked again in {wait:?}");
            deltas.pass([Delta::Retrying { wait, reason: error.to_string() }]).await;
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        body: Vec<u8>,
        headers: &HeaderMap,
        exchange: &mut dyn Exchange,
        deltas: &mut Deltas,
    ) -> Result<(), UpstreamError> {
        let mut headers = headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let response = self.send(self.endpoint.url(), headers, body.into()).await?;
        if !response.status().is_success() {
            return Err(self.status_error(response).await);
        }
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        if content_type.starts_with("application/json") {
            self.read_body(response, exchange, deltas).await
        } else {
            self.stream(response, exchange, deltas).await
        }
    }

    /// Reads an answer that does not stream.
    async fn read_body(
        &self,
        response: reqwest::Response,
        exchange: &mut dyn Exchange,
        deltas: &mut Deltas,
    ) -> Result<(), UpstreamError> {
        let body = self.read(response, MAX_ANSWER as usize).await?;
        let body = String::from_utf8_lossy(&body);
        if let Ok(envelope) = serde_json::from_str::<ErrorEnvelope>(&body) {
            return Err(self.failed(&envelope.error.message, &body));
        }
        let mut answer = AnswerBuilder::default();
        let read = exchange.body(&body, &mut answer);
        deltas.pass(answer.take()).await;
        read.map_err(|fault| self.fault(fault, &body))?;
        deltas.pass([answer.end()]).await;
        Ok(())
    }

    async fn stream(
        &self,
        response: reqwest::Response,
        exchange: &mut dyn Exchange,
        deltas: &mut Deltas,
    ) -> Result<(), UpstreamError> {
        let mut answer = AnswerBuilder::default();
        let mut parser = sse::Parser::default();
        let mut bytes = response.bytes_stream();
        let mut read = 0;
        let mut beginning = Vec::new();
        let (mut ended, mut epilogue_until) = (false, None);
        while !ended {
            let is_whole = answer.is_whole();
            let mut patience = self.options.idle_timeout;
            if is_whole {
                let now = Instant::now();
                let until = *epilogue_until.get_or_insert(now + EPILOGUE);
                patience = patience.min(until.saturating_duration_since(now));
            }
            match tokio::time::timeout(patience, bytes.next()).await {
                Err(_) | Ok(Some(Err(_))) if is_whole => break,
                Err(_) => return Err(self.idle()),
                Ok(Some(Err(error))) => return Err(self.dropped(&chain(&error))),
                Ok(Some(Ok(piece))) => {
                    read += piece.len() as u64;
                    if read > MAX_ANSWER {
                        return Err(self.too_large("its answer", MAX_ANSWER));
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
                    deltas.pass([answer.end()]).await;
                    return Ok(());
                }
                let read = exchange.event(&data, &mut answer);
                deltas.pass(answer.take()).await;
                read.map_err(|fault| self.fault(fault, &data))?;
            }
        }
        if answer.is_whole() {
            deltas.pass([answer.end()]).await;
            Ok(())
        } else if read == 0 {
            Err(self.not_understood("it is empty".into(), ""))
        } else {
            Err(self.dropped("nothing had said that it was complete"))
        }
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
