//! The control plane: making sandboxes, extending their lifetime, and ending them.

use std::fmt;
use std::time::Duration;

use aludel_wire::e2b::{NewSandbox, Timeout};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use reqwest::{Client, Method, Response, StatusCode};
use serde::Deserialize;

use super::E2bConfig;
use super::envd::Envd;
use crate::backends::remote::{
    self, ANSWER_TIMEOUT, ControlPlane, LIFETIME, client, is_there, json, reason, root, secret,
};
use crate::{Error, Limits};

/// The longest answer, bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Domains with one address for all sandboxes, which headers tell apart.
const VENDORS: [&str; 4] = ["e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"];

/// The control plane of a service.
pub struct E2bApi {
    client: Client,
    headers: HeaderMap,
    url: String,
    config: E2bConfig,
}

/// A sandbox as the service describes it; its port for commands and files speaks `envd`'s protocol.
#[derive(Deserialize)]
pub struct E2bSandbox {
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(default, rename = "envdAccessToken")]
    token: Option<String>,
    #[serde(default, rename = "trafficAccessToken")]
    traffic_token: Option<String>,
    #[serde(default)]
    domain: Option<String>,
}

impl fmt::Debug for E2bApi {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Api").field("url", &self.url).finish_non_exhaustive()
    }
}

impl E2bApi {
    pub(super) fn new(config: E2bConfig) -> Result<Self, Error> {
        let client = client()?;
        let key = secret(&config.key).ok_or_else(|| {
            Error::Setup(
                "there is no key of E2B, or none that can be sent: set E2B_API_KEY, or name its place by sandbox.e2b.key".into(),
            )
        })?;
        let headers = HeaderMap::from_iter([(HeaderName::from_static("x-api-key"), key)]);
        let url = config.url.clone().unwrap_or_else(|| format!("https://api.{}", config.domain));
        Ok(Self { client, headers, url: url.trim_end_matches('/').to_owned(), config })
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
        let message = format!("{step}: {} answered {}: {reason}", self.url, status.as_u16());
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Error::Setup(format!("{message}; check the key (sandbox.e2b.key, or E2B_API_KEY)"))
            }
            StatusCode::TOO_MANY_REQUESTS => Error::Full,
            StatusCode::NOT_FOUND => {
                Error::Setup(format!("{message}; check the template `{}` (sandbox.e2b.template)", self.config.template))
            }
            _ => Error::Setup(message),
        }
    }

    async fn read(&self, answer: Response) -> Result<Vec<u8>, String> {
        remote::read(answer, MAX_ANSWER).await
    }
}

impl ControlPlane for E2bApi {
    type Made = E2bSandbox;
    type Shell = Envd;

    fn url(&self) -> &str {
        &self.url
    }

    async fn check(&self) -> Result<(), Error> {
        let step = "list sandboxes";
        let mut answer = self.send(step, Method::GET, "/v2/sandboxes?limit=1", None).await?;
        if is_unknown(answer.status()) {
            answer = self.send(step, Method::GET, "/sandboxes?limit=1", None).await?;
        }
        if answer.status().is_success() { Ok(()) } else { Err(self.refused(step, answer).await) }
    }

    async fn create(&self, _limits: &Limits) -> Result<E2bSandbox, Error> {
        let step = "make a sandbox";
        let wish = NewSandbox {
            template_id: self.config.template.clone(),
            timeout: Some(seconds(LIFETIME)),
            auto_pause: None,
            auto_pause_memory: None,
            auto_resume: None,
            secure: Some(true),
            allow_internet_access: Some(false),
            network: None,
            metadata: Some([("made-by".to_owned(), "aludel".to_owned())].into()),
            env_vars: None,
            volume_mounts: None,
            mcp: None,
            unique_name: None,
        };
        let body = json(&wish)?;
        let mut answer = self.send(step, Method::POST, "/v2/sandboxes", Some(body.clone())).await?;
        // Services older than the second version of the API.
        if is_unknown(answer.status()) {
            answer = self.send(step, Method::POST, "/sandboxes", Some(body)).await?;
        }
        if !answer.status().is_success() {
            return Err(self.refused(step, answer).await);
        }
        let made = self.read(answer).await;
        let made: E2bSandbox =
            made.and_then(|body| serde_json::from_slice(&body).map_err(|error| error.to_string()))
                .map_err(|error| Error::Setup(format!("{step}: the answer of {} cannot be read: {error}", self.url)))?;
        let id = &made.id;
        if id.is_empty() || id.len() > 128 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(Error::Setup(format!("{step}: {} gave it an id that is none", self.url)));
        }
        Ok(made)
    }

    async fn open(&self, made: &E2bSandbox) -> Result<Envd, Error> {
        let E2bSandbox { id, token, traffic_token, domain } = made;
        let domain = domain.as_ref().unwrap_or(&self.config.domain);
        let url = match &self.config.sandbox_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None if VENDORS.contains(&domain.as_str()) => format!("https://sandbox.{domain}"),
            None => format!("https://{}-{id}.{domain}", Envd::PORT),
        };
        Envd::new(self.client.clone(), url, id.clone(), token.as_deref(), traffic_token.as_deref())
    }

    async fn extend_lifetime(&self, made: &E2bSandbox) -> Result<bool, Error> {
        let (step, path) = ("keep a sandbox", format!("/sandboxes/{}/timeout", made.id));
        let answer = self.send(step, Method::POST, &path, Some(json(&Timeout { timeout: seconds(LIFETIME) })?)).await?;
        match is_there(answer.status()) {
            Some(is_there) => Ok(is_there),
            None => Err(self.refused(step, answer).await),
        }
    }

    async fn kill(&self, made: &E2bSandbox) -> Result<(), Error> {
        let step = "end a sandbox";
        let answer = self.send(step, Method::DELETE, &format!("/sandboxes/{}", made.id), None).await?;
        match is_there(answer.status()) {
            Some(_) => Ok(()),
            None => Err(self.refused(step, answer).await),
        }
    }
}

impl remote::RemoteSandbox for E2bSandbox {
    fn id(&self) -> &str {
        &self.id
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// Returns true for the answer of a service without such a path.
fn is_unknown(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}
