//! One sandbox of the service, from before it is asked for until it is gone.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aludel_wire::e2b::process::ProcessEvent;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::LIFETIME;
use super::api::Api;
use super::envd::Envd;
use crate::Error;

/// Time between two requests that put off the end.
const KEEP_PAUSE: Duration = Duration::from_secs(60);
/// The longest that making the directory of the files may take.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);
/// Makes the directory of the files, by whatever rights there are.
const PREPARE: &str =
    "test -w /mnt/data || { sudo -n mkdir -p /mnt/data && sudo -n chown \"$(id -u):$(id -g)\" /mnt/data; }";

/// A sandbox of the service. A task of its own makes it, keeps it and ends it, so that a step which has begun is seen through whoever goes away.
/// Dropping it ends the sandbox.
#[derive(Debug)]
pub(super) struct Machine {
    ended: CancellationToken,
    envd: Arc<OnceLock<Envd>>,
}

impl Machine {
    /// A sandbox that is to be made, which ends with its backend.
    pub(super) fn new(backend: &CancellationToken) -> Self {
        Self { ended: backend.child_token(), envd: Arc::default() }
    }

    /// The token that ends it.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.ended
    }

    /// The way to its commands, once it was made.
    pub(super) fn envd(&self) -> Option<&Envd> {
        self.envd.get()
    }

    /// Makes it, with a directory for files. The task holds `needs` until it is gone.
    pub(super) fn start<N: Send + 'static>(&self, api: &Arc<Api>, needs: N) -> oneshot::Receiver<Result<(), Error>> {
        let (started, answer) = oneshot::channel();
        let (api, ended, envd) = (Arc::clone(api), self.ended.clone(), Arc::clone(&self.envd));
        tokio::spawn(async move {
            match make(&api, &ended).await {
                Ok(made) => {
                    let id = made.id().to_owned();
                    let _first = envd.set(made);
                    if started.send(Ok(())).is_ok() {
                        keep(&api, &id, &ended).await;
                    }
                    end(&api, &id).await;
                }
                Err(error) => {
                    let _nobody = started.send(Err(error));
                }
            }
            ended.cancel();
            drop(needs);
        });
        answer
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// Makes a sandbox; one that cannot be prepared is ended.
async fn make(api: &Api, ended: &CancellationToken) -> Result<Envd, Error> {
    if ended.is_cancelled() {
        return Err(super::over());
    }
    let envd = api.create().await?;
    let prepared = tokio::select! {
        prepared = timeout(PREPARE_TIMEOUT, prepare(&envd)) => prepared,
        () = ended.cancelled() => Ok(Err(super::over())),
    };
    let late = Err(Error::Timeout { what: "directory for files", limit: PREPARE_TIMEOUT });
    match prepared.unwrap_or(late) {
        Ok(()) => Ok(envd),
        Err(error) => {
            end(api, envd.id()).await;
            Err(error)
        }
    }
}

async fn prepare(envd: &Envd) -> Result<(), Error> {
    let failed = |reason: &str| Error::Setup(format!("make the directory /mnt/data in the sandbox: {reason}"));
    let mut running = envd.start(&["/bin/sh", "-c", PREPARE], &[]).await?;
    loop {
        match running.events.next().await {
            Ok(Some(ProcessEvent::End(end))) if end.exit_code == 0 => return Ok(()),
            Ok(Some(ProcessEvent::End(end))) => {
                return Err(failed(&format!("{}; the template must let its user do that", end.status)));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Err(failed("the command's events ended")),
            Err(reason) => return Err(failed(&reason)),
        }
    }
}

/// Puts off the end until it is asked for. A sandbox that is gone is over.
async fn keep(api: &Api, id: &str, ended: &CancellationToken) {
    let mut last = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep(KEEP_PAUSE) => {}
            () = ended.cancelled() => return,
        }
        match api.keep(id).await {
            Ok(true) => last = tokio::time::Instant::now(),
            Ok(false) => {
                tracing::warn!(sandbox = id, "a sandbox of the service has ended before its time");
                return;
            }
            Err(error) if last.elapsed() < LIFETIME => {
                tracing::warn!(sandbox = id, %error, "a sandbox could not be told to stay");
            }
            Err(_) => return,
        }
    }
}

async fn end(api: &Api, id: &str) {
    if let Err(error) = api.kill(id).await {
        tracing::warn!(sandbox = id, %error, "a sandbox could not be ended; it ends by itself within {} s", LIFETIME.as_secs());
    }
}
