//! Making sandboxes, extending their lifetime, and ending them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use aludel_wire::opensandbox::lifecycle::{Action, Expiration, Image, NetworkPolicy, NewSandbox};
use jiff::{SignedDuration, Timestamp};
use reqwest::Method;

use super::api::{LOOK_PAUSE, OpenSandboxApi, SandboxInfo};
use super::execd::Execd;
use super::{Network, is_id};
use crate::backends::remote::{self, ControlPlane, LIFETIME, is_there, json};
use crate::{Error, Limits};

/// The longest that a sandbox may take to start, including the download of its image.
const START_TIMEOUT: Duration = Duration::from_secs(600);
/// The longest wait for the server of its commands, once the sandbox runs.
const PING_TIMEOUT: Duration = Duration::from_secs(60);
/// Memory of the programs that serve a sandbox, bytes.
const OVERHEAD: u64 = 256 << 20;
/// The main command of a sandbox. The sandbox ends when it does.
const ENTRYPOINT: [&str; 3] = ["tail", "-f", "/dev/null"];

/// A sandbox that was made.
pub struct OpenSandboxSandbox {
    id: String,
    /// The server's time at an instant of ours: clocks differ.
    time: Timestamp,
    at: Instant,
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
            image: Some(Image { uri: self.config().image.clone() }),
            timeout: i64::try_from(LIFETIME.as_secs()).ok(),
            resource_limits: Some(BTreeMap::from(resources.map(|(name, amount)| (name.to_owned(), amount)))),
            metadata: Some([("made-by".to_owned(), "aludel".to_owned())].into()),
            entrypoint: Some(ENTRYPOINT.map(str::to_owned).to_vec()),
            network_policy: Some(policy).filter(|_| self.config().network == Network::None),
            ..NewSandbox::default()
        };
        let at = Instant::now();
        let answer = self.send(step, Method::POST, "/sandboxes", Some(json(&wish)?)).await?;
        let SandboxInfo { id, created_at, .. } = self.answered(step, answer).await?;
        if !is_id(&id) {
            return Err(Error::Setup(format!("{step}: {} gave it an id that is none", self.address())));
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
