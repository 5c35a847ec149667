//! The place where a turn's programs run.

use std::sync::Arc;

use aludel_sandbox::{Cell, Execution, FileEntry, KernelSpec, Limits, Sandbox};
use futures_util::future::BoxFuture;

/// A stateful interpreter with files. Programs run one at a time and share their variables.
pub trait Runtime: Send + Sync {
    /// The limits of every execution.
    fn limits(&self) -> &Limits;

    /// The language of the programs.
    fn kernel(&self) -> &KernelSpec;

    /// The files for the next program, by path. Empty if they cannot be listed: the model can list them itself.
    fn files(&self) -> BoxFuture<'_, Vec<FileEntry>>;

    /// Starts a program, waiting until the one before it has ended. Dropping the future before it is ready starts nothing; dropping the
    /// [`Execution`] interrupts the program.
    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, RuntimeError>>;
}

/// The reason for which a program could not be started: a fault of the server or the host, never of the program.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The sandbox's.
    #[error(transparent)]
    Sandbox(#[from] aludel_sandbox::Error),
    /// Another, in words for the operator.
    #[error("{0}")]
    Other(String),
}

/// A sandbox without a session. If its kernel dies without a checkpoint, later programs fail.
#[derive(Debug, Clone)]
pub struct BareSandbox(pub Arc<dyn Sandbox>);

impl Runtime for BareSandbox {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }

    fn kernel(&self) -> &KernelSpec {
        self.0.kernel()
    }

    fn files(&self) -> BoxFuture<'_, Vec<FileEntry>> {
        let workspace = Arc::clone(self.0.workspace());
        Box::pin(async move { workspace.blocking(|workspace| workspace.files()).await.unwrap_or_default() })
    }

    fn execute<'a>(&'a self, cell: Cell<'a>) -> BoxFuture<'a, Result<Execution, RuntimeError>> {
        Box::pin(async move { Ok(self.0.first_kernel().execute(cell).await?) })
    }
}
