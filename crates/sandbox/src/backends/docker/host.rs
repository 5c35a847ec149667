//! The container of a sandbox, as the host of kernels.

use std::sync::Arc;

use aludel_ignore::Ignore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::container::Container;
use super::engine::DockerEngine;
use crate::backends::stdio::SandboxHost;
use crate::{Error, Usage};

/// A container in which kernels run.
#[derive(Debug)]
pub struct ContainerHost {
    pub(super) container: Container,
    engine: Arc<DockerEngine>,
    is_paused: watch::Sender<bool>,
    /// Serializes pausing and resuming.
    pausing: tokio::sync::Mutex<()>,
}

impl ContainerHost {
    /// The host that this container is.
    pub(super) fn new(container: Container, engine: Arc<DockerEngine>) -> Self {
        Self { container, engine, is_paused: watch::Sender::new(false), pausing: tokio::sync::Mutex::default() }
    }
}

impl SandboxHost for ContainerHost {
    fn end(&self) -> &CancellationToken {
        self.container.end()
    }

    async fn remove(&self) {
        self.container.remove().await;
    }

    fn enforces_resources(&self) -> bool {
        self.engine.enforces_resources
    }

    fn paused(&self) -> watch::Receiver<bool> {
        self.is_paused.subscribe()
    }

    async fn pause(&self, pauses: bool) -> Result<(), Error> {
        if !self.engine.pauses {
            return Err(Error::NotSupported("pausing a container without control groups"));
        }
        let _alone = self.pausing.lock().await;
        if *self.is_paused.borrow() == pauses {
            return Ok(());
        }
        // First, since a pause that fails may have been made all the same.
        if pauses {
            self.is_paused.send_replace(true);
        }
        let done = self.engine.pause(self.container.name(), pauses).await;
        if pauses && done.is_err() {
            self.engine.pause(self.container.name(), false).await.ignore("it may not have been paused");
        }
        if !pauses && done.is_ok() || pauses && done.is_err() {
            self.is_paused.send_replace(false);
        }
        done
    }

    async fn usage(&self) -> Usage {
        self.engine.usage(self.container.name()).await
    }
}
