//! A live sandbox: a process that forks kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::BoxFuture;

use super::SandboxHost;
use super::channel::ChannelOpener;
use super::link::StdioLink;
use super::mux::Mux;
use crate::backend::{Connection, Profile, Sandbox, Usage};
use crate::backends::registry::Registration;
use crate::driver::Driver;
use crate::execution::Execution;
use crate::frame::ToKernel;
use crate::kernel::{Cell, Kernel, KernelOptions};
use crate::process::{Command, Process};
use crate::{Error, KernelSpec, Limits, SandboxId, Workspace};

/// A live sandbox. It is destroyed when this and its kernels, commands and connections are dropped.
#[derive(Debug)]
pub(super) struct StdioSandbox<P: SandboxHost> {
    first: Arc<Driver<StdioLink<P>>>,
    spec: Arc<KernelSpec>,
    host: Arc<P>,
    mux: Arc<Mux>,
    profile: Profile,
    /// The number of the last kernel, command or connection.
    last: AtomicU32,
    registration: Registration<P>,
}

impl<P: SandboxHost> StdioSandbox<P> {
    pub(super) fn new(
        first: Driver<StdioLink<P>>,
        spec: Arc<KernelSpec>,
        host: Arc<P>,
        mux: Arc<Mux>,
        registration: Registration<P>,
        profile: Profile,
    ) -> Self {
        Self { first: Arc::new(first), spec, host, mux, profile, last: AtomicU32::new(1), registration }
    }

    /// Returns a new number; an error while the sandbox is paused.
    fn next(&self) -> Result<u32, Error> {
        if *self.host.paused().borrow() {
            return Err(Error::Paused);
        }
        Ok(self.last.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn opener(&self) -> Result<ChannelOpener, Error> {
        Ok(ChannelOpener { mux: Arc::clone(&self.mux), number: self.next()?, host: Arc::clone(&self.host) as _ })
    }

    async fn pause_or_resume(&self, pauses: bool) -> Result<(), Error> {
        // In a task: a caller that gave up halfway would leave it stopped with its clocks running.
        let host = Arc::clone(&self.host);
        let done = tokio::spawn(async move { host.pause(pauses).await }).await;
        done.unwrap_or_else(|error| Err(Error::Setup(error.to_string())))
    }
}

impl<P: SandboxHost> Sandbox for StdioSandbox<P> {
    fn id(&self) -> &SandboxId {
        self.registration.id()
    }

    fn limits(&self) -> &Limits {
        self.first.limits()
    }

    fn kernel(&self) -> &Arc<KernelSpec> {
        &self.spec
    }

    fn workspace(&self) -> &Arc<dyn Workspace> {
        self.first.workspace()
    }

    fn is_alive(&self) -> bool {
        self.first.is_alive() && !self.host.end().is_cancelled()
    }

    fn execute<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Execution, Error>> {
        Box::pin(self.first.execute(Cell::new(code)))
    }

    fn first_kernel(&self) -> Arc<dyn Kernel> {
        Arc::clone(&self.first) as _
    }

    fn start_kernel(&self, options: KernelOptions) -> BoxFuture<'_, Result<Arc<dyn Kernel>, Error>> {
        Box::pin(async move {
            let number = self.next()?;
            let link = start_kernel(&self.host, &self.mux, number, false, self.limits()).await?;
            let kernel = Driver::new(link, Arc::clone(self.workspace()), self.limits().clone());
            kernel.configure(&options).await?;
            Ok(Arc::new(kernel) as _)
        })
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.host.end().cancelled())
    }

    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(self.host.usage())
    }

    fn scripts_directory(&self) -> &str {
        self.mux.scripts_directory().unwrap_or(KernelSpec::SCRIPTS_DIRECTORY)
    }

    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Process, Error>> {
        Box::pin(async move {
            if command.pty.is_some() && self.profile != Profile::Services {
                return Err(Error::NotSupported("a terminal in a sandbox for data"));
            }
            self.opener()?.spawn(&command.with_threads(self.limits())).await
        })
    }

    fn connect(&self, port: u16) -> BoxFuture<'_, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            if self.profile != Profile::Services {
                return Err(Error::NotSupported("connections to a sandbox for data"));
            }
            self.opener()?.connect(port).await
        })
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.pause_or_resume(true))
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.pause_or_resume(false))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.host.remove().await;
            Ok(())
        })
    }
}

/// Starts a kernel.
pub(super) async fn start_kernel<P: SandboxHost>(
    host: &Arc<P>,
    mux: &Arc<Mux>,
    number: u32,
    checkpoints: bool,
    limits: &Limits,
) -> Result<StdioLink<P>, Error> {
    let threads = limits.threads();
    let start = ToKernel::Start { memory: limits.memory, threads, hard: !host.enforces_resources(), checkpoints };
    let streams = mux.start_kernel(number, limits.kernels.max(1) as usize)?;
    StdioLink::start(Arc::clone(host), Arc::clone(mux), number, streams, checkpoints, &start).await
}
