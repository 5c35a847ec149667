//! A live sandbox of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::BoxFuture;

use super::link::LocalLink;
use super::warden_client::Handle;
use super::{Made, process};
use crate::backend::{Sandbox, SandboxId, Usage};
use crate::backends::registry::Registration;
use crate::driver::{Execution, Kernel};
use crate::process::{Command, Process};
use crate::{Error, KernelSpec, Limits, Workspace};

/// A live sandbox with one kernel. Dropping it destroys it.
#[derive(Debug)]
pub(super) struct LocalSandbox {
    kernel: Kernel<LocalLink>,
    spec: Arc<KernelSpec>,
    handle: Arc<Handle>,
    processes: AtomicU64,
    registration: Registration<Handle>,
}

impl LocalSandbox {
    pub(super) fn new(registration: Registration<Handle>, made: Made, spec: Arc<KernelSpec>) -> Self {
        let Made { handle, kernel } = made;
        Self { kernel, spec, handle, processes: AtomicU64::new(0), registration }
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
        Box::pin(self.kernel.execute(code))
    }

    fn usage(&self) -> BoxFuture<'_, Usage> {
        Box::pin(self.handle.usage())
    }

    fn spawn(&self, command: Command) -> BoxFuture<'_, Result<Process, Error>> {
        let number = self.processes.fetch_add(1, Ordering::Relaxed);
        Box::pin(process::spawn(&self.handle, number, command))
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.handle.destroy())
    }
}
