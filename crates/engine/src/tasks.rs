//! Tasks that outlive their request.

use std::pin::Pin;

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::Error;

/// Tasks that the process waits for at its end.
#[derive(Debug, Clone, Default)]
pub struct Tasks(TaskTracker);

impl Tasks {
    /// Starts a task. Its future is boxed, so that the runtime's code for a task is compiled for each result, not for each future.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let task: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(task);
        self.0.spawn(task)
    }

    /// Makes a change in a task of its own, which goes on when its caller is dropped, as requests are when their client disconnects.
    /// Fails if that panics.
    pub async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        self.spawn(change.in_current_span()).await.map_err(Error::internal)
    }

    /// Lets [`Tasks::wait`] return once all tasks have ended.
    pub fn close(&self) {
        self.0.close();
    }

    /// Waits until the tasks are closed and all have ended.
    pub async fn wait(&self) {
        self.0.wait().await;
    }
}
