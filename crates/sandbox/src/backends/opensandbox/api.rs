//! The control plane: making sandboxes, extending their lifetime, and ending them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use aludel_wire::opensandbox::lifecycle::{Action, Endpoint, Expiration, Image, NetworkPolicy, NewSandbox};
use jiff::{SignedDuration, Timestamp};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::execd::Execd;
use super::is_id;
use super::{Network, OpenSandboxConfig};
use crate::backends::remote::{
    self, ANSWER_TIMEOUT, ControlPlane, LIFETIME, client, is_there, json, reason, root, secret,
};
use crate::{Error, Limits};

/// The longest that a sandbox may take to start, including the download of its image.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// The longest wait for the server of its commands, once the sandbox runs.
const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks at a sandbox that starts.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// The longest answer, bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Memory of the programs that serve a sandbox, bytes.
const OVERHEAD: u64 = 256 << 20;
/// The main command of a sandbox. The sandbox ends when it does.
const ENTRYPOINT: [&str; 3] = ["tail", "-f", "/dev/null"];

/// The control plane of a server. Cheap to clone.
#[derive(Clone)]
pub struct OpenSandboxApi {
    client: Client,
    headers: HeaderMap,
    url: String,
    config: OpenSandboxConfig,
}

/// A sandbox that was made.
pub struct OpenSandboxSandbox {
    id: String,
    /// The server's time at an instant of ours: clocks differ.
    time: Timestamp,
    at: Instant,
}

/// A sandbox as the server describes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SandboxInfo {
    id: String,
    status: Status,
    #[serde(default)]
    created_at: Option<Timestamp>,
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

    /// The address.
    pub(super) fn address(&self) -> &str {
        &self.url
    }

    /// The client of HTTP.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    async fn send(&self, step: &str, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Response, Error> {
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
    async fn answered<T: DeserializeOwned>(&self, step: &str, answer: Response) -> Result<T, Error> {
        if !answer.status().is_success() {
            return Err(self.refused(step, answer).await);
        }
        let read = remote::read(answer, MAX_ANSWER).await;
        read.and_then(|body| serde_json::from_slice(&body).map_err(|error| error.to_string()))
            .map_err(|error| Error::Setup(format!("{step}: the answer of {} cannot be read: {error}", self.url)))
    }

    async fn refused(&self, step: &str, answer: Response) -> Error {
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
    async fn runs(&self, id: &str) -> Result<(), Error> {
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

impl ControlPlane for OpenSandboxApi {
    type Made = OpenSandboxSandbox;
    type Shell = Execd;

    fn url(&self) -> &str {
        self.address()
    }

    async fn check(&self) -> Result<(), Error> {
        let step = "list sandboxes";
        let answer = self.send(step, Method::GET, "/sandboxes?pageSize=1", None).await?;
        if answer.status().is_success() { Ok(()) } else { Err(self.refused(step, answer).await) }
    }

    async fn create(&self, limits: &Limits) -> Result<OpenSandboxSandbox, Error> {
        let step = "make a sandbox";
        let policy = NetworkPolicy { default_action: Some(Action::Deny), egress: Some(Vec::new()) };
        let memory = limits.memory.saturating_add(OVERHEAD) >> 20;
        let resources = [("cpu", format!("{}", limits.cpus)), ("memory", format!("{memory}Mi"))];
        let wish = NewSandbox {
            image: Some(Image { uri: self.config.image.clone() }),
            timeout: i64::try_from(LIFETIME.as_secs()).ok(),
            resource_limits: Some(BTreeMap::from(resources.map(|(name, amount)| (name.to_owned(), amount)))),
            metadata: Some([("made-by".to_owned(), "aludel".to_owned())].into()),
            entrypoint: Some(ENTRYPOINT.map(str::to_owned).to_vec()),
            network_policy: Some(policy).filter(|_| self.config.network == Network::None),
            ..NewSandbox::default()
        };
        let at = Instant::now();
        let answer = self.send(step, Method::POST, "/sandboxes", Some(json(&wish)?)).await?;
        let SandboxInfo { id, created_at, .. } = self.answered(step, answer).await?;
        if !is_id(&id) {
            return Err(Error::Setup(format!("{step}: {} gave it an id that is none", self.url)));
        }
        Ok(OpenSandboxSandbox { id, time: created_at.unwrap_or_else(Timestamp::now), at })
    }

    async fn open(&self, made: &OpenSandboxSandbox) -> Result<Execd, Error> {
        let started = tokio::time::timeout(START_TIMEOUT, self.runs(&made.id)).await;
        started.map_err(|_| Error::Timeout { what: "start of a sandbox", limit: START_TIMEOUT })??;
        let (url, headers) = self.endpoint(&made.id, Execd::PORT).await?;
        let execd = Execd::new(self.clone(), made.id.clone(), url, headers);
        let ready = tokio::time::timeout(PING_TIMEOUT, async {
            while !execd.answers().await {
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        });
        ready.await.map_err(|_| Error::Timeout { what: "server of a sandbox's commands", limit: PING_TIMEOUT })?;
        Ok(execd)
    }

    async fn extend_lifetime(&self, made: &OpenSandboxSandbox) -> Result<bool, Error> {
        let (step, path) = ("keep a sandbox", format!("/sandboxes/{}/renew-expiration", made.id));
        let since = SignedDuration::try_from(made.at.elapsed() + LIFETIME).unwrap_or_default();
        let expires_at = made.time.saturating_add(since).unwrap_or(Timestamp::MAX).to_string();
        let answer = self.send(step, Method::POST, &path, Some(json(&Expiration { expires_at })?)).await?;
        match is_there(answer.status()) {
            Some(is_there) => Ok(is_there),
            None => Err(self.refused(step, answer).await),
        }
    }

    async fn kill(&self, made: &OpenSandboxSandbox) -> Result<(), Error> {
        let step = "end a sandbox";
        let answer = self.send(step, Method::DELETE, &format!("/sandboxes/{}", made.id), None).await?;
        match is_there(answer.status()) {
            Some(_) => Ok(()),
            None => Err(self.refused(step, answer).await),
        }
    }
}

impl remote::RemoteSandbox for OpenSandboxSandbox {
    fn id(&self) -> &str {
        &self.id
    }
}
