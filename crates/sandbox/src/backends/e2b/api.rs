//! The control plane: making sandboxes, putting off their end, and ending them.

use std::fmt;
use std::time::Duration;

use aludel_wire::e2b::{NewSandbox, Timeout};
use futures_util::StreamExt;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode};
use serde::Deserialize;

use super::envd::Envd;
use super::{E2bConfig, LIFETIME};
use crate::Error;

/// The longest that an answer may take. Making a sandbox is the slowest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer, bytes.
const MAX_ANSWER: usize = 1 << 20;
/// The most that is shown of an error of the service, bytes.
const MAX_REASON: usize = 500;
/// Domains whose sandboxes have one address, and are told apart by headers.
const VENDORS: [&str; 4] = ["e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"];

/// The control plane of a service.
pub(super) struct Api {
    client: Client,
    headers: HeaderMap,
    url: String,
    config: E2bConfig,
}

/// A sandbox as the service tells of it; its port for commands and files speaks `envd`'s protocol.
#[derive(Deserialize)]
struct Made {
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(default, rename = "envdAccessToken")]
    token: Option<String>,
    #[serde(default, rename = "trafficAccessToken")]
    traffic_token: Option<String>,
    #[serde(default)]
    domain: Option<String>,
}

/// The body of an error.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

impl fmt::Debug for Api {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Api").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Api {
    pub(super) fn new(config: E2bConfig) -> Result<Self, Error> {
        let failed = |error: reqwest::Error| Error::Setup(format!("make an HTTP client: {error}"));
        // Another part of the program may have done so already.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().connect_timeout(CONNECT_TIMEOUT).build().map_err(failed)?;
        let key = secret(&config.key).ok_or_else(|| {
            Error::Setup(
                "there is no key of E2B, or none that can be sent: set E2B_API_KEY, or name its place by sandbox.e2b.key".into(),
            )
        })?;
        let headers = HeaderMap::from_iter([(HeaderName::from_static("x-api-key"), key)]);
        let url = config.url.clone().unwrap_or_else(|| format!("https://api.{}", config.domain));
        Ok(Self { client, headers, url: url.trim_end_matches('/').to_owned(), config })
    }

    /// The address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns an error unless the service answers and takes the key.
    pub(super) async fn check(&self) -> Result<(), Error> {
        let step = "list sandboxes";
        let mut answer = self.send(step, Method::GET, "/v2/sandboxes?limit=1", None).await?;
        if is_unknown(answer.status()) {
            answer = self.send(step, Method::GET, "/sandboxes?limit=1", None).await?;
        }
        if answer.status().is_success() { Ok(()) } else { Err(self.refused(step, answer).await) }
    }

    /// Makes a sandbox without internet access.
    pub(super) async fn create(&self) -> Result<Envd, Error> {
        let step = "make a sandbox";
        let wish = NewSandbox {
            template_id: self.config.template.clone(),
            timeout: Some(seconds(LIFETIME)),
            auto_pause: None,
            auto_resume: None,
            secure: Some(true),
            allow_internet_access: Some(false),
            network: None,
            metadata: Some([("made-by".to_owned(), "aludel".to_owned())].into()),
            env_vars: None,
            volume_mounts: None,
        };
        let body = json(&wish)?;
        let mut answer = self.send(step, Method::POST, "/v2/sandboxes", Some(body.clone())).await?;
        // Services of before the second generation.
        if is_unknown(answer.status()) {
            answer = self.send(step, Method::POST, "/sandboxes", Some(body)).await?;
        }
        if !answer.status().is_success() {
            return Err(self.refused(step, answer).await);
        }
        let made = self.read(answer).await;
        let made: Made = made
            .and_then(|body| serde_json::from_slice(&body).map_err(|error| error.to_string()))
            .map_err(|error| Error::Setup(format!("{step}: the answer of {} cannot be read: {error}", self.url)))?;
        let Made { id, token, traffic_token, domain } = made;
        if id.is_empty() || id.len() > 128 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(Error::Setup(format!("{step}: {} gave it an id that is none", self.url)));
        }
        let domain = domain.unwrap_or_else(|| self.config.domain.clone());
        let url = match &self.config.sandbox_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None if VENDORS.contains(&domain.as_str()) => format!("https://sandbox.{domain}"),
            None => format!("https://{}-{id}.{domain}", Envd::PORT),
        };
        Envd::new(self.client.clone(), url, id, token.as_deref(), traffic_token.as_deref())
    }

    /// Puts off the end of a sandbox. Returns false if it is not there any more.
    pub(super) async fn keep(&self, id: &str) -> Result<bool, Error> {
        let (step, path) = ("keep a sandbox", format!("/sandboxes/{id}/timeout"));
        let answer = self.send(step, Method::POST, &path, Some(json(&Timeout { timeout: seconds(LIFETIME) })?)).await?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(self.refused(step, answer).await),
        }
    }

    /// Ends a sandbox. One that is not there is fine.
    pub(super) async fn kill(&self, id: &str) -> Result<(), Error> {
        let step = "end a sandbox";
        let answer = self.send(step, Method::DELETE, &format!("/sandboxes/{id}"), None).await?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            _ => Err(self.refused(step, answer).await),
        }
    }

    async fn send(&self, step: &str, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Response, Error> {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        request = request.headers(self.headers.clone()).timeout(ANSWER_TIMEOUT);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        request.send().await.map_err(|error| {
            let mend = "check sandbox.e2b.url and sandbox.e2b.domain";
            Error::Setup(format!("{step}: no answer from {}: {}; {mend}", self.url, root(&error)))
        })
    }

    async fn refused(&self, step: &str, answer: Response) -> Error {
        let status = answer.status();
        let body = self.read(answer).await.unwrap_or_default();
        let reason = reason(&body);
        let told = format!("{step}: {} answered {}: {reason}", self.url, status.as_u16());
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Error::Setup(format!("{told}; check the key (sandbox.e2b.key, or E2B_API_KEY)"))
            }
            StatusCode::TOO_MANY_REQUESTS => Error::Full,
            StatusCode::NOT_FOUND => {
                Error::Setup(format!("{told}; check the template `{}` (sandbox.e2b.template)", self.config.template))
            }
            _ => Error::Setup(told),
        }
    }

    async fn read(&self, answer: Response) -> Result<Vec<u8>, String> {
        read(answer, MAX_ANSWER).await
    }
}

/// Reads the body of an answer, of at most so many bytes.
pub(super) async fn read(answer: Response, most: usize) -> Result<Vec<u8>, String> {
    let mut pieces = answer.bytes_stream();
    let mut body = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| root(&error))?;
        if body.len() + piece.len() > most {
            return Err("it is too long".to_owned());
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Returns the reason that an error's body gives, on one line.
pub(super) fn reason(body: &[u8]) -> String {
    let text = match serde_json::from_slice(body) {
        Ok(Refusal { message }) => message,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let text: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let end = text.floor_char_boundary(MAX_REASON);
    text.get(..end).unwrap_or_default().trim().to_owned()
}

/// The innermost error, which says what went wrong. The outer ones repeat the address.
pub(super) fn root(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    if error.is_timeout() { "the time is over".to_owned() } else { innermost.to_string() }
}

/// A value of a header that is never shown; `None` for one that cannot be sent or says nothing.
pub(super) fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok().filter(|value| !value.is_empty())?;
    value.set_sensitive(true);
    Some(value)
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|error| Error::Setup(error.to_string()))
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

fn is_unknown(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}
