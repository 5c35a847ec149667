//! Sandboxes of a service that is reached over HTTP, whatever protocol it speaks. Their files are in them.
//!
//! Sandboxes there end by themselves after [`LIFETIME`], which is extended as long as they are used here, so that a crash leaves none for
//! long.

mod command;
mod http;
mod machine;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

pub(super) use self::command::RemoteCommand;
pub(super) use self::http::{ANSWER_TIMEOUT, client, is_there, json, read, reason, root, secret, success};
use self::machine::Machine;
use super::stdio::{COMMAND, HostProvider, InstanceLife, OutputChunk, Stdio, StdioWorkspace, over};
use crate::backend::Capabilities;
use crate::{Error, KernelSpec, Limits, Profile};

/// Time after which a sandbox ends there unless its lifetime is extended.
pub(super) const LIFETIME: Duration = Duration::from_secs(300);

/// The control plane of a service: making sandboxes, extending their lifetime, and ending them.
pub trait ControlPlane: Debug + Send + Sync + 'static {
    /// A sandbox that was made.
    type Made: RemoteSandbox;
    /// The way to its commands.
    type Shell: CommandRunner;

    /// The client for its commands.
    fn url(&self) -> &str;

    /// Returns an error unless the service answers and takes the key.
    fn check(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes a sandbox, which may not be ready yet.
    fn create(&self, limits: &Limits) -> impl Future<Output = Result<Self::Made, Error>> + Send;

    /// Returns the client for the commands of a sandbox, once it is ready.
    fn open(&self, made: &Self::Made) -> impl Future<Output = Result<Self::Shell, Error>> + Send;

    /// Extends the lifetime of a sandbox to [`LIFETIME`] from now. Returns false if it no longer exists.
    fn extend_lifetime(&self, made: &Self::Made) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Ends a sandbox. Success if it does not exist.
    fn kill(&self, made: &Self::Made) -> impl Future<Output = Result<(), Error>> + Send;
}

/// A sandbox that was made.
pub trait RemoteSandbox: Send + Sync + 'static {
    /// Its id.
    fn id(&self) -> &str;
}

/// The client for the commands of a sandbox.
pub trait CommandRunner: Clone + Debug + Send + Sync + 'static {
    /// The input of a command.
    type Input: CommandInput;
    /// The output of a command.
    type Output: CommandOutput;

    /// Starts a command.
    fn start(
        &self,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> impl Future<Output = Result<(Self::Input, Self::Output), Error>> + Send;
}

/// The input of a command that runs, and its end.
pub trait CommandInput: Send + Sync + 'static {
    /// Gives it something to read.
    fn send(&self, bytes: &[u8]) -> impl Future<Output = Result<(), Error>> + Send;

    /// Ends what it reads.
    fn close(&self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Kills it.
    fn kill(&self) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The output of a command that runs.
pub trait CommandOutput: Send + 'static {
    /// Returns the next event; an error once there is none. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Result<CommandEvent, String>> + Send;
}

/// Something that a command did.
pub enum CommandEvent {
    /// It printed something.
    Printed(OutputChunk),
    /// It ended well, or as these words say; the last event.
    Ended(Result<(), String>),
}

/// A service that has sandboxes.
#[derive(Debug)]
pub struct Service<C> {
    control: Arc<C>,
}

impl<C: ControlPlane> Service<C> {
    /// Checks that the service answers and accepts the key.
    pub(super) async fn reach(control: C) -> Result<Self, Error> {
        control.check().await?;
        Ok(Self { control: Arc::new(control) })
    }

    /// The address of the service.
    pub(super) fn url(&self) -> &str {
        self.control.url()
    }
}

/// The capabilities of sandboxes that are reached this way.
pub(super) fn capabilities(backend: &'static str) -> Capabilities {
    // A checkpoint that takes over ends all other processes; here that would end the processes that serve it.
    let kernel = Arc::new(KernelSpec { checkpoints: false, ..KernelSpec::python("python3") });
    Capabilities {
        backend,
        checkpoints: false,
        languages: vec![kernel],
        enforces_resources: false,
        enforces_disk: false,
        reports_refused_calls: false,
        kernels: true,
        processes: true,
        terminals: true,
        attach: false,
        pause: false,
        fork: false,
        connect: true,
        templates: Vec::new(),
    }
}

/// The files of a session, in a sandbox of the service and served by a command in it.
#[derive(Debug)]
pub struct WorkspaceHost<S> {
    machine: Arc<Machine<S>>,
    _server: RemoteCommand,
}

impl<C: ControlPlane> HostProvider for Service<C> {
    type Host = RemoteCommand;
    type Home = WorkspaceHost<C::Shell>;
    const ORIGIN: &'static str = "template";

    async fn make_workspace(&self, life: &InstanceLife, limits: &Limits) -> Result<StdioWorkspace<Self::Home>, Error> {
        let machine = Arc::new(Machine::new(life.end()));
        machine.start(&self.control, limits, life.hold()).await.map_err(|_| over())??;
        let server = RemoteCommand::new(machine.end());
        let started = server.start(&machine, &COMMAND, &[], life.hold());
        let stdio = started.await.map_err(|_| over())??;
        let end = machine.end().clone();
        let home = WorkspaceHost { machine, _server: server };
        StdioWorkspace::start(home, end, stdio, life.instance().to_owned(), limits).await
    }

    fn new_host(&self, life: &InstanceLife) -> Arc<RemoteCommand> {
        Arc::new(RemoteCommand::new(life.end()))
    }

    async fn start<N: Send + 'static>(
        &self,
        host: &RemoteCommand,
        home: &Self::Home,
        kernel: &KernelSpec,
        _limits: &Limits,
        _profile: Profile,
        needs: N,
    ) -> Result<Stdio, Error> {
        let environment: Vec<_> = kernel.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        host.start(&home.machine, &COMMAND, &environment, needs).await.map_err(|_| over())?
    }
}
