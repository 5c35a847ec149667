//! The OpenSandbox backend: each sandbox is one of a server that speaks OpenSandbox's protocol. It holds its own files.

mod api;
mod control_plane;
mod events;
mod execd;

use std::fmt;

use self::api::OpenSandboxApi;
use super::remote::{self, Service};
use super::stdio::StdioBackend;
use crate::Error;

/// Settings of the OpenSandbox backend.
#[derive(Clone)]
pub struct OpenSandboxConfig {
    /// The address of the server, such as [`OpenSandboxConfig::URL`].
    pub url: String,
    /// The key that the server asks for.
    pub key: Option<String>,
    /// The image of sandboxes, which has Python and IPython.
    pub image: String,
    /// The network that programs reach.
    pub network: Network,
    /// True if commands are sent through the server, because the sandboxes' own addresses cannot be reached from here.
    pub use_server_proxy: bool,
}

/// The network that programs reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// None; a server that cannot promise that refuses.
    None,
    /// The server's default.
    Default,
}

impl OpenSandboxConfig {
    /// The address of a server on this host.
    pub const URL: &'static str = "http://localhost:8080";
    /// The project's image with Python's usual packages and IPython.
    pub const IMAGE: &'static str = "opensandbox/code-interpreter:v1.1.0";
}

impl fmt::Debug for OpenSandboxConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, key: _secret, image, network, use_server_proxy } = self;
        let mut shown = formatter.debug_struct("OpenSandboxConfig");
        shown.field("url", url).field("image", image).field("network", network);
        shown.field("use_server_proxy", use_server_proxy).finish_non_exhaustive()
    }
}

/// The OpenSandbox backend.
pub type OpenSandbox = StdioBackend<Service<OpenSandboxApi>>;

impl OpenSandbox {
    /// Returns the address of the server, or the reason for which it cannot be used.
    pub async fn probe(config: OpenSandboxConfig) -> Result<String, Error> {
        Ok(Service::reach(OpenSandboxApi::new(config)?).await?.url().to_owned())
    }

    /// Checks that the server answers and accepts the key.
    pub async fn start(config: OpenSandboxConfig) -> Result<Self, Error> {
        let service = Service::reach(OpenSandboxApi::new(config)?).await?;
        Ok(Self::new(service, crate::random::hex::<6>(), remote::capabilities("opensandbox")))
    }

    /// Returns the parts of the isolation that are not enforced from here, as texts for the operator.
    pub fn warnings(network: Network) -> Vec<String> {
        let mut warnings = vec!["limits of memory, processes and disk are those of the OpenSandbox server".to_owned()];
        if network == Network::Default {
            warnings.push("programs reach the network that the OpenSandbox server gives them".to_owned());
        }
        warnings
    }

    /// The address of the server.
    pub fn url(&self) -> &str {
        self.provider().url()
    }
}

/// Returns true if a text is a valid id of a sandbox or command, which becomes a part of addresses.
fn is_id(text: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(is_char)
}
