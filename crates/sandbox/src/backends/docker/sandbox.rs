//! A live sandbox: a container in which kernels run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::container::Container;
use super::engine::Engine;
use super::link::DockerLink;
use super::mux::Mux;
use crate::backend::{Sandbox, SandboxId, Usage};
use crate::backends::registry::Registration;
use crate::driver::{Driver, Execution};
use crate::frame::ToKernel;
use crate::kernel::{Cell, Kernel, KernelOptions};
use crate::{Error, KernelSpec, Limits, Workspace};

/// A container in which kernels run.
#[derive(Debug)]
pub(super) struct Shell {
    pub(super) container: Container,
    engine: Arc<Engine>,
    is_paused: watch::Sender<bool>,
    /// Held by whoever pauses or resumes.
    pausing: tokio::sync::Mutex<()>,
}

impl Shell {
    pub(super) fn new(container: Container, engine: Arc<Engine>) -> Self {
        Self { container, engine, is_paused: watch::Sender::new(false), pausing: tokio::sync::Mutex::default() }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.container.is_ended()
    }

    pub(super) fn paused(&self) -> watch::Receiver<bool> {
        self.is_paused.subscribe()
    }

    pub(super) async fn usage(&self) -> Usage {
        self.engine.usage(self.container.name()).await
    }

    async fn pause(&self, pauses: bool) -> Result<(), Error> {
        let _alone = self.pausing.lock().await;
        if *self.is_paused.borrow() != pauses {
            self.engine.pause(self.container.name(), pauses).await?;
            self.is_paused.send_replace(pauses);
        }
        Ok(())
    }
}

/// A live sandbox. Dropping it destroys it, once its kernels are dropped, too.
#[derive(Debug)]
pub(super) struct DockerSandbox {
    pub(super) first: Arc<Driver<DockerLink>>,
    pub(super) spec: Arc<KernelSpec>,
    pub(super) shell: Arc<Shell>,
    pub(super) mux: Arc<Mux>,
    /// The number of the last kernel.
    pub(super) kernels: AtomicU32,
    pub(super) registration: Registration<Shell>,
}

impl DockerSandbox {
    async fn pause_or_resume(&self, pauses: bool) -> Result<(), Error> {
        // In a task: a caller that goes away halfway would leave it stopped with its clocks running.
        let shell = Arc::clone(&self.shell);
        let done = tokio::spawn(async move { shell.pause(pauses).await }).await;
        done.unwrap_or_else(|error| Err(Error::Setup(error.to_string())))
    }
}

impl Sandbox for DockerSandbox {
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
        self.first.is_alive() && !self.shell.is_ended()
    }

    fn execute<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Execution, Error>> {
        Box::pin(self.first.execute(Cell::new(code)))
    }

    fn first_kernel(&self) -> Arc<dyn Kernel> {
        Arc::clone(&self.first) as _
    }

    fn start_kernel(&self, options: KernelOptions) -> BoxFuture<'_, Result<Arc<dyn Kernel>, Error>> {
        Box::pin(async move {
            if *self.shell.paused().borrow() {
                return Err(Error::Paused);
            }
            if self.mux.living() >= self.limits().kernels.max(1) as usize {
                return Err(Error::Full);
            }
            let number = self.kernels.fetch_add(1, Ordering::Relaxed) + 1;
            let is_bounded = self.shell.engine.enforces_resources;
            let link = start_kernel(&self.shell, &self.mux, number, false, self.limits(), is_bounded).await?;
            let kernel = Driver::new(link, Arc::clone(self.workspace()), self.limits().clone());
            kernel.configure(&options).await?;
            Ok(Arc::new(kernel) as _)
        })
    }

    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(self.shell.usage())
    }

    fn pause(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.pause_or_resume(true))
    }

    fn resume(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.pause_or_resume(false))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.shell.container.remove().await;
            Ok(())
        })
    }
}

pub(super) async fn start_kernel(
    shell: &Arc<Shell>,
    mux: &Arc<Mux>,
    number: u32,
    checkpoints: bool,
    limits: &Limits,
    is_bounded: bool,
) -> Result<DockerLink, Error> {
    let threads = (limits.cpus.ceil() as u32).max(1);
    let start = ToKernel::Start { memory: limits.memory, threads, hard: !is_bounded, checkpoints };
    DockerLink::start(Arc::clone(shell), Arc::clone(mux), number, checkpoints, &start).await
}
