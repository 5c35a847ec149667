//! The E2B backend: each sandbox is one of E2B's service, or of a server that speaks its protocol, and its files are in it.
//!
//! Sandboxes there end by themselves after [`LIFETIME`], which is put off as long as they are used here: a crash leaves nothing for long.

mod api;
mod command;
mod envd;
mod machine;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::api::Api;
use self::command::RemoteCommand;
use self::machine::Machine;
use super::stdio::{COMMAND, Host, Life, Stdio, StdioBackend, StdioWorkspace, over};
use crate::backend::Capabilities;
use crate::{Error, KernelSpec, Limits};

/// Time after which a sandbox ends there unless it is put off.
const LIFETIME: Duration = Duration::from_secs(300);
/// Settings of the E2B backend.
#[derive(Clone)]
pub struct E2bConfig {
    /// The key of the account.
    pub key: String,
    /// The domain of the service, such as [`E2bConfig::DOMAIN`].
    pub domain: String,
    /// The address of its control plane; `None` for `https://api.` and the domain.
    pub url: Option<String>,
    /// The address of every sandbox; `None` for an address of each below the domain.
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
pub type E2b = StdioBackend<Service>;

/// A service that has sandboxes.
#[derive(Debug)]
pub struct Service {
    api: Arc<Api>,
}

impl E2b {
    /// Returns the address of the service, or the reason why it does not answer or takes no such key.
    pub async fn probe(config: E2bConfig) -> Result<String, Error> {
        let api = Api::new(config)?;
        api.check().await?;
        Ok(api.url().to_owned())
    }

    /// Makes sure that the service answers and takes the key.
    pub async fn start(config: E2bConfig) -> Result<Self, Error> {
        let api = Api::new(config)?;
        api.check().await?;
        // A checkpoint that takes over ends all other processes, and here those that serve it are among them.
        let kernel = Arc::new(KernelSpec { checkpoints: false, ..KernelSpec::python("python3") });
        let capabilities = Capabilities {
            backend: "e2b",
            checkpoints: false,
            languages: vec![kernel],
            enforces_resources: false,
            enforces_disk: false,
            reports_blocked: false,
            kernels: true,
            processes: false,
            terminals: false,
            attach: false,
            pause: false,
            fork: false,
            connect: false,
            templates: Vec::new(),
        };
        Ok(Self::new(Service { api: Arc::new(api) }, crate::random::hex::<6>(), capabilities))
    }

    /// Returns the parts of the isolation that are not enforced from here, in words.
    pub fn warnings() -> Vec<String> {
        vec!["limits of memory, processes and disk are those of the service's template".to_owned()]
    }

    /// The address of the service.
    pub fn url(&self) -> &str {
        self.host().api.url()
    }
}

/// The files of a session: in a sandbox of the service, served by a command in it.
#[derive(Debug)]
pub struct Home {
    machine: Arc<Machine>,
    _server: RemoteCommand,
}

impl Host for Service {
    type Place = RemoteCommand;
    type Home = Home;
    const ORIGIN: &'static str = "template";

    async fn make_workspace(&self, life: &Life, limits: &Limits) -> Result<StdioWorkspace<Home>, Error> {
        let machine = Arc::new(Machine::new(life.end()));
        machine.start(&self.api, life.hold()).await.map_err(|_| over())??;
        let server = RemoteCommand::new(machine.end());
        let started = server.start(&machine, &COMMAND, &[], life.hold());
        let stdio = started.await.map_err(|_| over())??;
        let end = machine.end().clone();
        let home = Home { machine, _server: server };
        StdioWorkspace::start(home, end, stdio, life.instance().to_owned(), limits).await
    }

    fn place(&self, life: &Life) -> Arc<RemoteCommand> {
        Arc::new(RemoteCommand::new(life.end()))
    }

    async fn start<N: Send + 'static>(
        &self,
        place: &RemoteCommand,
        home: &Home,
        kernel: &KernelSpec,
        _limits: &Limits,
        needs: N,
    ) -> Result<Stdio, Error> {
        let environment: Vec<_> = kernel.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        place.start(&home.machine, &COMMAND, &environment, needs).await.map_err(|_| over())?
    }
}
