//! Calls of a server's own API.

use std::fmt;
use std::time::Duration;

use aludel_wire::opensandbox::lifecycle::Endpoint;
use jiff::Timestamp;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::OpenSandboxConfig;
use crate::Error;
use crate::backends::remote::{self, ANSWER_TIMEOUT, client, reason, root, secret};

/// Time between two looks at a sandbox that starts.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// The longest answer, bytes.
const MAX_ANSWER: usize = 1 << 20;

/// The API of a server. Cheap to clone.
#[derive(Clone)]
pub struct OpenSandboxApi {
    client: Client,
    headers: HeaderMap,
    url: String,
    config: OpenSandboxConfig,
}

/// A sandbox as the server describes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxInfo {
    pub(super) id: String,
    status: Status,
    #[serde(default)]
    pub(super) created_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Status {
    state: String,
    #[serde(default)]
    message: Option<String>,
}

impl fmt::Debug for OpenSandboxApi {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Api").field("url", &self.url).finish_non_exhaustive()
    }
}

impl OpenSandboxApi {
    pub(super) fn new(config: OpenSandboxConfig) -> Result<Self, Error> {
        let mut headers = HeaderMap::new();
        if let Some(key) = &config.key {
            let key = secret(key).ok_or_else(|| {
                Error::Setup("the key of OpenSandbox cannot be sent: check sandbox.opensandbox.key".into())
            })?;
            headers.insert(HeaderName::from_static("open-sandbox-api-key"), key);
        }
        let url = config.url.trim_end_matches('/');
        let url = url.strip_suffix("/v1").unwrap_or(url);
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Error::Setup(format!(
                "sandbox.opensandbox.url: {url} does not begin with http:// or https://"
            )));
        }
        Ok(Self { client: client()?, headers, url: url.to_owned(), config })
    }

    /// Returns the address of a port of a sandbox, and the headers that requests to it need.
    pub(super) async fn endpoint(&self, id: &str, port: u16) -> Result<(String, HeaderMap), Error> {
        let step = "find a port of the sandbox";
        let through = if self.config.use_server_proxy { "?use_server_proxy=true" } else { "" };
        let path = format!("/sandboxes/{id}/endpoints/{port}{through}");
        let answer = self.send(step, Method::GET, &path, None).await?;
        let Endpoint { endpoint, headers: needed } = self.answered(step, answer).await?;
        let scheme = self.url.split_once("://").map_or("http", |(scheme, _)| scheme);
        let mut url = endpoint.trim_end_matches('/').to_owned();
        if !url.contains("://") {
            url = format!("{scheme}://{url}");
        }
        // The key belongs to the server and is sent nowhere else.
        let own = format!("{}/", self.url);
        let mut headers = if url.starts_with(&own) { self.headers.clone() } else { HeaderMap::new() };
        for (name, value) in needed {
            let name = HeaderName::try_from(name);
            let (Ok(name), Some(value)) = (name, secret(&value)) else {
                return Err(Error::Setup(format!("{step}: {} asks for a header that cannot be sent", self.url)));
            };
            headers.insert(name, value);
        }
        Ok((url, headers))
    }

    pub(super) fn config(&self) -> &OpenSandboxConfig {
        &self.config
    }

    /// The address.
    pub(super) fn address(&self) -> &str {
        &self.url
    }

    /// The client of HTTP.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) async fn send(
        &self,
        step: &str,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response, Error> {
        let mut request = self.client.request(method, format!("{}/v1{path}", self.url));
        request = request.headers(self.headers.clone()).timeout(ANSWER_TIMEOUT);
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json")).body(body);
        }
        request.send().await.map_err(|error| {
            let mend = "check sandbox.opensandbox.url";
            Error::Setup(format!("{step}: no answer from {}: {}; {mend}", self.url, root(&error)))
        })
    }

    /// Reads an answer that is not a refusal.
    pub(super) async fn answered<T: DeserializeOwned>(&self, step: &str, answer: Response) -> Result<T, Error> {
        if !answer.status().is_success() {
            return Err(self.refused(step, answer).await);
        }
        let read = remote::read(answer, MAX_ANSWER).await;
        read.and_then(|body| serde_json::from_slice(&body).map_err(|error| error.to_string()))
            .map_err(|error| Error::Setup(format!("{step}: the answer of {} cannot be read: {error}", self.url)))
    }

    pub(super) async fn refused(&self, step: &str, answer: Response) -> Error {
        let status = answer.status();
        let body = remote::read(answer, MAX_ANSWER).await.unwrap_or_default();
        let reason = reason(&body);
        let message = format!("{step}: {} answered {}: {reason}", self.url, status.as_u16());
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Error::Setup(format!("{message}; check the key (sandbox.opensandbox.key, or OPEN_SANDBOX_API_KEY)"))
            }
            StatusCode::TOO_MANY_REQUESTS => Error::Full,
            _ if reason.contains("networkPolicy") || reason.contains("egress") => Error::Setup(format!(
                "{message}; programs without a network need the server's egress image (or sandbox.opensandbox.network = \"default\")"
            )),
            _ => Error::Setup(message),
        }
    }

    /// Waits until a sandbox runs.
    pub(super) async fn runs(&self, id: &str) -> Result<(), Error> {
        let step = "start a sandbox";
        loop {
            let answer = self.send(step, Method::GET, &format!("/sandboxes/{id}"), None).await?;
            let SandboxInfo { status, .. } = self.answered(step, answer).await?;
            match status.state.as_str() {
                "Running" => return Ok(()),
                "Failed" | "Terminated" | "Stopping" => {
                    let why = reason(status.message.unwrap_or_default().as_bytes());
                    let image = &self.config.image;
                    return Err(Error::Setup(format!(
                        "{step}: it is {} on {}: {why}; check the image {image} (sandbox.opensandbox.image)",
                        reason(status.state.as_bytes()),
                        self.url
                    )));
                }
                _ => tokio::time::sleep(LOOK_PAUSE).await,
            }
        }
    }
}
