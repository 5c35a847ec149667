//! The first kernel of a sandbox: for data it is made with the sandbox, for services at its first use, since most sandboxes for services
//! run only commands.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::link::LocalLink;
use super::warden_client::SandboxHandle;
use super::{KernelStart, PendingKernel};
use crate::driver::Driver;
use crate::execution::Execution;
use crate::kernel::{Cell, Kernel, KernelOptions};
use crate::{Error, Limits, Workspace};

/// The first kernel, and the parts of its sandbox that are needed to start it.
#[derive(Debug)]
pub(super) struct LazyKernel {
    handle: Arc<SandboxHandle>,
    start: KernelStart,
    workspace: Arc<dyn Workspace>,
    limits: Limits,
    started: OnceCell<Arc<Driver<LocalLink>>>,
    is_closed: AtomicBool,
}

impl LazyKernel {
    /// The kernel of this sandbox; `started` if it was made with it.
    pub(super) fn new(
        handle: Arc<SandboxHandle>,
        start: KernelStart,
        workspace: Arc<dyn Workspace>,
        limits: Limits,
        started: Option<Driver<LocalLink>>,
    ) -> Self {
        let started = OnceCell::new_with(started.map(Arc::new));
        Self { handle, start, workspace, limits, started, is_closed: AtomicBool::new(false) }
    }

    /// Its sandbox.
    pub(super) fn handle(&self) -> &Arc<SandboxHandle> {
        &self.handle
    }

    /// The files.
    pub(super) fn workspace(&self) -> &Arc<dyn Workspace> {
        &self.workspace
    }

    /// The limits.
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A weak reference to the kernel, if it has been started.
    pub(super) fn downgrade(&self) -> Weak<Driver<LocalLink>> {
        self.started.get().map_or_else(Weak::new, Arc::downgrade)
    }

    /// Makes the kernel do what its first cell needs once.
    pub(super) async fn warm_up(&self) -> Result<(), Error> {
        self.driver().await?.warm_up().await
    }

    /// Starts a further kernel in the sandbox.
    pub(super) async fn start_another(&self, options: &KernelOptions) -> Result<Arc<dyn Kernel>, Error> {
        // A place is kept for the first kernel.
        let first = u32::from(self.started.get().is_none() && !self.is_closed());
        let kernel = Arc::new(self.start_kernel(self.limits.kernels.saturating_sub(first)).await?);
        kernel.configure(options).await?;
        Ok(kernel)
    }

    async fn driver(&self) -> Result<&Arc<Driver<LocalLink>>, Error> {
        let closed = || Error::KernelGone("it ended before".into());
        if self.is_closed() {
            return Err(closed());
        }
        let start = async || self.start_kernel(self.limits.kernels).await.map(Arc::new);
        let driver = self.started.get_or_try_init(start).await?;
        if self.is_closed() {
            // Closed while it started, when there was no kernel to close.
            driver.close().await;
            return Err(closed());
        }
        Ok(driver)
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    async fn start_kernel(&self, most: u32) -> Result<Driver<LocalLink>, Error> {
        self.handle.check_running()?;
        let kernel = self.handle.kernel(most)?;
        let request = kernel.start_request(self.start);
        PendingKernel::begin(&self.handle, kernel, request)?.driver(&self.workspace, &self.limits).await
    }
}

impl Kernel for LazyKernel {
    fn is_alive(&self) -> bool {
        match self.started.get() {
            Some(driver) => !self.is_closed() && driver.is_alive(),
            None => !self.is_closed() && self.handle.is_there(),
        }
    }

    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, Error>> {
        Box::pin(async move { self.driver().await?.execute(cell).await })
    }

    fn configure<'a>(&'a self, options: &'a KernelOptions) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.driver().await?.configure(options).await })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.is_closed.store(true, Ordering::SeqCst);
        Box::pin(async move {
            if let Some(driver) = self.started.get() {
                driver.close().await;
            }
        })
    }
}
