//! The E2B backend: each sandbox is one of E2B's service, or of a server that speaks its protocol. It holds its own files.

mod api;
mod envd;

use std::fmt;

use self::api::E2bApi;
use super::remote::{self, Service};
use super::stdio::StdioBackend;
use crate::Error;

/// Settings of the E2B backend.
#[derive(Clone)]
pub struct E2bConfig {
    /// The key of the account.
    pub key: String,
    /// The domain of the service, such as [`E2bConfig::DOMAIN`].
    pub domain: String,
    /// The control plane's address; `None` for `https://api.` and the domain.
    pub url: Option<String>,
    /// The address of every sandbox; `None` if each has its own below the domain.
    pub sandbox_url: Option<String>,
    /// The template of sandboxes, which has Python and IPython.
    pub template: String,
}

impl E2bConfig {
    /// The vendor's domain.
    pub const DOMAIN: &'static str = "e2b.app";
    /// The vendor's template with Python's usual packages and IPython.
    pub const TEMPLATE: &'static str = "code-interpreter-v1";
}

impl fmt::Debug for E2bConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key: _secret, domain, url, sandbox_url, template } = self;
        let mut shown = formatter.debug_struct("E2bConfig");
        shown.field("domain", domain).field("url", url).field("sandbox_url", sandbox_url).field("template", template);
        shown.finish_non_exhaustive()
    }
}

/// The E2B backend.
pub type E2b = StdioBackend<Service<E2bApi>>;

impl E2b {
    /// Returns the address of the service, or the reason for which it cannot be used.
    pub async fn probe(config: E2bConfig) -> Result<String, Error> {
        Ok(Service::reach(E2bApi::new(config)?).await?.url().to_owned())
    }

    /// Checks that the service answers and accepts the key.
    pub async fn start(config: E2bConfig) -> Result<Self, Error> {
        let service = Service::reach(E2bApi::new(config)?).await?;
        Ok(Self::new(service, crate::random::hex::<6>(), remote::capabilities("e2b")))
    }

    /// Returns the parts of the isolation that are not enforced from here, as texts for the operator.
    pub fn warnings() -> Vec<String> {
        vec!["limits of memory, processes and disk are those of the service's template".to_owned()]
    }

    /// The address of the service.
    pub fn url(&self) -> &str {
        self.provider().url()
    }
}
