//! A live sandbox of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;

use super::lazy_kernel::LazyKernel;
use super::warden_client::SandboxHandle;
use super::{port, process};
use crate::backend::{Connection, Profile, Sandbox, Usage};
use crate::backends::registry::Registration;
use crate::execution::Execution;
use crate::kernel::{Cell, Kernel, KernelOptions};
use crate::process::{Command, Process};
use crate::{Error, KernelSpec, Limits, SandboxId, Workspace};

/// A live sandbox. It is destroyed when this and its kernels and processes are dropped.
#[derive(Debug)]
pub(super) struct LocalSandbox {
    kernel: Arc<LazyKernel>,
    spec: Arc<KernelSpec>,
    profile: Profile,
    processes: AtomicU64,
    registration: Registration<SandboxHandle>,
}

impl LocalSandbox {
    pub(super) fn new(
        registration: Registration<SandboxHandle>,
        kernel: Arc<LazyKernel>,
        spec: Arc<KernelSpec>,
        profile: Profile,
    ) -> Self {
        Self { kernel, spec, profile, processes: AtomicU64::new(0), registration }
    }

    fn handle(&self) -> &Arc<SandboxHandle> {
        self.kernel.handle()
    }
}

impl Sandbox for LocalSandbox {
    fn id(&self) -> &SandboxId {
        self.registration.id()
    }

    fn limits(&self) -> &Limits {
        self.kernel.limits()
    }

    fn kernel(&self) -> &Arc<KernelSpec> {
        &self.spec
    }

    fn workspace(&self) -> &Arc<dyn Workspace> {
        self.kernel.workspace()
    }

    fn is_alive(&self) -> bool {
        self.kernel.is_alive()
    }

    fn execute<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Execution, Error>> {
        Box::pin(self.kernel.execute(Cell::new(code)))
    }

    fn first_kernel(&self) -> Arc<dyn Kernel> {
        Arc::clone(&self.kernel) as _
    }

    fn start_kernel(&self, options: KernelOptions) -> BoxFuture<'_, Result<Arc<dyn Kernel>, Error>> {
        Box::pin(async move { self.kernel.start_another(&options).await })
    }

    fn lost(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.handle().lost())
    }

    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(self.handle().usage())
    }

    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Process, Error>> {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            if command.pty.is_some() && self.profile != Profile::Services {
                return Err(Error::NotSupported("a terminal in a sandbox for data"));
            }
            self.handle().check_running()?;
            process::spawn(self.handle(), number, command.with_threads(self.limits())).await
        })
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), Error>> {
        // In a task, as below: a caller that gave up halfway would leave it stopped with its clocks running.
        let handle = Arc::clone(self.handle());
        Box::pin(finished(tokio::spawn(async move { handle.pause().await })))
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Error>> {
        let handle = Arc::clone(self.handle());
        Box::pin(finished(tokio::spawn(async move { handle.resume().await })))
    }

    fn connect(&self, port: u16) -> BoxFuture<'_, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            if self.profile != Profile::Services {
                return Err(Error::NotSupported("connections to a sandbox for data"));
            }
            self.handle().check_running()?;
            port::connect(self.handle(), port).await
        })
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.handle().destroy())
    }
}

async fn finished(task: tokio::task::JoinHandle<Result<(), Error>>) -> Result<(), Error> {
    task.await.unwrap_or_else(|error| Err(Error::Setup(error.to_string())))
}
