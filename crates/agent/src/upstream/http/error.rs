//! Errors made from a server's or the system's words.

use std::time::{Duration, SystemTime};

use aludel_wire::chat::ErrorEnvelope;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, LOCATION, RETRY_AFTER};
use serde_json::Value;

use super::{HttpUpstream, sse};
use crate::excerpt;
use crate::upstream::answer::Fault;
use crate::upstream::{Unreachable, UpstreamError};

/// The wait in milliseconds, as some servers tell it.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
/// Bytes of an error's body that are read.
const MAX_ERROR: usize = 64 << 10;
/// The status of a model's failure that its server does not report as one: Bad Gateway.
const MODEL_FAILED: u16 = 502;
/// Characters of the server's text that an error repeats.
const MAX_DETAIL: usize = 300;

impl HttpUpstream {
    /// The error that an answer without success is.
    pub(super) async fn status_error(&self, response: reqwest::Response) -> UpstreamError {
        let status = response.status();
        let retry_after = retry_after(response.headers());
        let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok()).map(str::to_owned);
        let body = self.read(response, MAX_ERROR).await.unwrap_or_default();
        let body = String::from_utf8_lossy(&body);
        let details = ErrorDetails::of(&body);
        let retry_after = retry_after.or(details.retry_after);
        let said = match location.filter(|_| status.is_redirection()) {
            Some(location) => format!("it redirects to {location}; if that is right, set the model's `url` to it"),
            None => words_of(body.into_owned()),
        };
        // Google answers 400 to an unknown key.
        let status = if details.is_about_the_key { StatusCode::UNAUTHORIZED } else { status };
        let (endpoint, detail) = (self.endpoint.shown(), self.detail(&said));
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
            status if status.is_server_error() => {
                UpstreamError::Server { endpoint, status: status.as_u16(), retry_after, detail }
            }
            status => {
                let exceeds_context = details.is_about_length || tells_of_length(&said);
                UpstreamError::Rejected { endpoint, status: status.as_u16(), detail, exceeds_context }
            }
        }
    }

    /// The error of a request that got no answer.
    pub(super) fn unreachable(&self, error: &reqwest::Error) -> UpstreamError {
        let detail = chain(error);
        let lower = detail.to_lowercase();
        let cause = if lower.contains("dns") || lower.contains("lookup") {
            Unreachable::Dns
        } else if lower.contains("refused") {
            Unreachable::Refused
        } else if ["certificate", "tls", "handshake", "corrupt message"].iter().any(|word| lower.contains(word)) {
            Unreachable::Tls
        } else if error.is_timeout() {
            Unreachable::Timeout
        } else if error.is_connect() {
            Unreachable::Route
        } else {
            // The connection was established, and ended before the answer began.
            return self.dropped(&detail);
        };
        UpstreamError::Unreachable { endpoint: self.endpoint.shown(), cause, detail: self.detail(&detail) }
    }

    pub(super) fn malformed(&self, why: sse::SseError, beginning: &[u8]) -> UpstreamError {
        match why {
            sse::SseError::NotEvents => {
                self.not_understood("it is no stream of events".into(), &String::from_utf8_lossy(beginning))
            }
            sse::SseError::TooLong => self.too_large("one event", sse::SseError::LIMIT),
        }
    }

    pub(super) fn dropped(&self, detail: &str) -> UpstreamError {
        UpstreamError::Dropped { endpoint: self.endpoint.shown(), detail: self.detail(detail) }
    }

    /// The error that a fault of an answer is.
    pub(super) fn fault(&self, fault: Fault, sent: &str) -> UpstreamError {
        match fault {
            Fault::NotUnderstood(detail) => self.not_understood(detail, sent),
            Fault::Failed(message) => self.failed(&message, sent),
            Fault::Passing(detail) => {
                let (endpoint, status, retry_after) = (self.endpoint.shown(), MODEL_FAILED, None);
                UpstreamError::Server { endpoint, status, retry_after, detail }
            }
            Fault::TooLarge(what, limit) => self.too_large(what, limit),
        }
    }

    /// The error for an answer that ended as failed; one without a message is shown as it was sent. An error that would have been a status
    /// before the answer began is treated like that status.
    pub(super) fn failed(&self, message: &str, sent: &str) -> UpstreamError {
        let said = if message.is_empty() { sent } else { message };
        let (endpoint, detail) = (self.endpoint.shown(), self.detail(said));
        let ErrorDetails { status, retry_after, .. } = ErrorDetails::of(sent);
        match status {
            Some(429) => UpstreamError::RateLimited { endpoint, retry_after, detail },
            Some(status @ 500..=599) => UpstreamError::Server { endpoint, status, retry_after, detail },
            _ => UpstreamError::Reported { endpoint, detail },
        }
    }

    pub(super) fn not_understood(&self, detail: String, sent: &str) -> UpstreamError {
        let api = self.adapter.api().name;
        UpstreamError::NotUnderstood { endpoint: self.endpoint.shown(), api, detail, excerpt: self.detail(sent) }
    }

    pub(super) fn too_large(&self, what: &'static str, limit: u64) -> UpstreamError {
        UpstreamError::TooLarge { endpoint: self.endpoint.shown(), what, limit }
    }

    pub(super) fn idle(&self) -> UpstreamError {
        UpstreamError::Idle { endpoint: self.endpoint.shown(), after: self.options.idle_timeout }
    }

    /// A short form of what came from outside, without our keys and without a full stop: a sentence goes on with it.
    fn detail(&self, text: &str) -> String {
        // A short value is no secret, and may be part of many words.
        let headers = self.options.headers.iter().map(|(_, value)| value).filter(|value| value.expose().len() >= 8);
        let secrets = self.options.key.iter().chain(headers);
        let text = secrets.fold(text.to_owned(), |text, secret| secret.redact(&text));
        let mut line = excerpt::line(&text, MAX_DETAIL);
        if line.ends_with('.') && !line.ends_with("..") {
            line.pop();
        }
        line
    }
}

/// Returns the wait that an answer asks for: in milliseconds, which OpenAI's own clients prefer, in seconds, or until a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let seconds = |name: &HeaderName, of_one: f64| {
        let number: f64 = text(name)?.parse().ok()?;
        Duration::try_from_secs_f64(number * of_one).ok()
    };
    let until = || {
        let date = httpdate::parse_http_date(text(&RETRY_AFTER)?).ok()?;
        Some(date.duration_since(SystemTime::now()).unwrap_or_default())
    };
    seconds(&RETRY_AFTER_MS, 0.001).or_else(|| seconds(&RETRY_AFTER, 1.0)).or_else(until)
}

/// Codes and types of errors for a conversation that is too long: OpenAI's and llama.cpp's.
const LENGTH_CODES: [&str; 2] = ["context_length_exceeded", "exceed_context_size_error"];
/// Words of the same: vLLM's and older ones of OpenAI, Anthropic's, Gemini's.
const LENGTH_WORDS: [&str; 3] =
    ["maximum context length", "prompt is too long", "exceeds the maximum number of tokens"];

/// Fields of an error's JSON besides its message.
#[derive(Default)]
struct ErrorDetails {
    /// The HTTP status that it stands for.
    status: Option<u16>,
    retry_after: Option<Duration>,
    is_about_the_key: bool,
    is_about_length: bool,
}

impl ErrorDetails {
    fn of(sent: &str) -> Self {
        let Ok(sent) = serde_json::from_str::<Value>(sent) else { return Self::default() };
        let inner = |value: &Value| value.get("error").filter(|error| error.is_object()).cloned();
        let error = inner(&sent).or_else(|| inner(sent.get("response")?)).unwrap_or(sent);
        let word = |key: &str| error.get(key).and_then(Value::as_str);
        let number = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let status = number.or_else(|| {
            ["type", "code", "status"].into_iter().filter_map(word).find_map(|word| match word {
                "rate_limit_error" | "rate_limit_exceeded" | "insufficient_quota" | "RESOURCE_EXHAUSTED" => Some(429),
                "overloaded_error" | "UNAVAILABLE" => Some(503),
                "timeout_error" | "DEADLINE_EXCEEDED" => Some(504),
                "api_error" | "server_error" | "INTERNAL" => Some(500),
                _ => None,
            })
        });
        // Google's `details`, each with its own type.
        let details = error.get("details").and_then(Value::as_array).into_iter().flatten();
        let detail = |key: &str| details.clone().find_map(|detail| detail.get(key)?.as_str());
        let seconds = detail("retryDelay").and_then(|delay| delay.strip_suffix('s')?.parse().ok());
        Self {
            status,
            retry_after: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            is_about_the_key: detail("reason") == Some("API_KEY_INVALID"),
            is_about_length: ["code", "type"].into_iter().filter_map(word).any(|word| LENGTH_CODES.contains(&word)),
        }
    }
}

/// The causes of an error on one line. The client's own message is left out: it repeats the URL, whose words might be taken for the cause.
pub(super) fn chain(error: &reqwest::Error) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let text = cause.to_string();
        if !texts.last().is_some_and(|last| last.contains(&text)) {
            texts.push(text);
        }
        source = cause.source();
    }
    if texts.is_empty() { "no reason was given".to_owned() } else { texts.join(": ") }
}

/// Returns true for a message which says that a conversation is too long, in the words of the servers that have no code for it.
fn tells_of_length(message: &str) -> bool {
    let message = message.to_lowercase();
    LENGTH_WORDS.iter().any(|words| message.contains(words))
}

/// The message in an answer's body, or all of it.
fn words_of(body: String) -> String {
    match serde_json::from_str::<ErrorEnvelope>(&body) {
        Ok(envelope) if !envelope.error.message.is_empty() => envelope.error.message,
        _ => body,
    }
}
