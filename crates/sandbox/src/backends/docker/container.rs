//! One container, from its request to its removal.

use std::collections::HashMap;
use std::sync::Arc;

use bollard::models::ContainerCreateBody;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::engine::DockerEngine;
use crate::Error;
use crate::backends::stdio::{Stdio, over};

/// A container. A task makes it and removes it, so that a step in progress is completed even if the caller gives up. Dropping this removes
/// the container.
#[derive(Debug)]
pub struct Container {
    name: String,
    user: u32,
    ended: CancellationToken,
    task: TaskTracker,
}

/// The volume of a workspace.
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) options: HashMap<String, String>,
    /// Set once the volume exists.
    pub(super) made: oneshot::Sender<Result<(), Error>>,
}

impl Container {
    /// A container to make, which ends with its backend.
    pub(super) fn new(name: String, user: u32, backend: &CancellationToken) -> Self {
        Self { name, user, ended: backend.child_token(), task: TaskTracker::new() }
    }

    /// The name that the engine has for it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The user and group of its processes and files.
    pub(super) fn user(&self) -> u32 {
        self.user
    }

    /// The token that ends it.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.ended
    }

    /// Makes its volume, then makes and starts the container. `needs` is held until the container has ended.
    pub(super) fn start<N: Send + 'static>(
        &self,
        engine: &Arc<DockerEngine>,
        body: ContainerCreateBody,
        volume: Option<Volume>,
        needs: N,
    ) -> oneshot::Receiver<Result<Stdio, Error>> {
        let (started, answer) = oneshot::channel();
        let (engine, name, ended) = (Arc::clone(engine), self.name.clone(), self.ended.clone());
        self.task.spawn(async move {
            let mut kept = None;
            if !ended.is_cancelled() {
                let made = match volume {
                    None => Ok(()),
                    Some(Volume { name, options, made }) => {
                        let result = engine.make_volume(&name, options).await;
                        kept = Some(name);
                        // Without the volume nothing else is made; the reason is reported there.
                        let is_made = result.is_ok();
                        if made.send(result).is_ok() && is_made { Ok(()) } else { Err(over()) }
                    }
                };
                let running = match made {
                    Ok(()) => engine.run(&name, body).await.map(|(stdio, _)| stdio),
                    Err(error) => Err(error),
                };
                let is_running = running.is_ok();
                if started.send(running).is_ok() && is_running {
                    ended.cancelled().await;
                }
                engine.remove_container(&name).await;
            }
            if let Some(volume) = kept {
                engine.remove_volume(&volume).await;
            }
            drop(needs);
        });
        answer
    }

    /// Removes it and waits until it is gone.
    pub(super) async fn remove(&self) {
        self.ended.cancel();
        self.task.close();
        self.task.wait().await;
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}
