//! One sandbox of the service, from its request to its end.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aludel_ignore::Ignore;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{CommandEvent, CommandOutput, CommandRunner, ControlPlane, LIFETIME, RemoteSandbox};
use crate::{Error, Limits};

/// Interval between extensions of the lifetime.
const KEEP_PAUSE: Duration = Duration::from_secs(60);
/// The longest that making the directory of the files may take.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(30);
/// Makes the directory of the files, with `sudo` if need be, and a home directory for clients that expect one.
const PREPARE: &str =
    "{ mkdir -p /mnt/data && test -w /mnt/data; } 2>/dev/null || { sudo -n mkdir -p /mnt/data && sudo -n chown \"$(id -u):$(id -g)\" /mnt/data; } || exit 1
test -e /home/user || ln -s /mnt/data /home/user 2>/dev/null || sudo -n ln -s /mnt/data /home/user 2>/dev/null
true";

/// A sandbox of the service. A task makes it, keeps it alive and ends it, so that a step in progress is completed even if the caller gives
/// up. Dropping this ends the sandbox.
#[derive(Debug)]
pub(super) struct Machine<S> {
    ended: CancellationToken,
    shell: Arc<OnceLock<S>>,
}

impl<S: CommandRunner> Machine<S> {
    /// A sandbox to make, which ends with its backend.
    pub(super) fn new(backend: &CancellationToken) -> Self {
        Self { ended: backend.child_token(), shell: Arc::default() }
    }

    /// The token that ends it.
    pub(super) fn end(&self) -> &CancellationToken {
        &self.ended
    }

    /// The way to its commands, once it was made.
    pub(super) fn shell(&self) -> Option<&S> {
        self.shell.get()
    }

    /// Makes it, with a directory for files. The task holds `needs` until it is gone.
    pub(super) fn start<C: ControlPlane<Shell = S>, N: Send + 'static>(
        &self,
        control: &Arc<C>,
        limits: &Limits,
        needs: N,
    ) -> oneshot::Receiver<Result<(), Error>> {
        let (started, answer) = oneshot::channel();
        let (control, limits) = (Arc::clone(control), limits.clone());
        let (ended, shell) = (self.ended.clone(), Arc::clone(&self.shell));
        tokio::spawn(async move {
            match make_prepared(&*control, &limits, &ended).await {
                Ok((made, opened)) => {
                    shell.set(opened).ignore("set once, here");
                    if started.send(Ok(())).is_ok() {
                        keep_alive(&*control, &made, &ended).await;
                    }
                    end(&*control, &made).await;
                }
                Err(error) => {
                    started.send(Err(error)).ignore("the caller may be gone");
                }
            }
            ended.cancel();
            drop(needs);
        });
        answer
    }
}

impl<S> Drop for Machine<S> {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// Makes a sandbox; ends it if it cannot be prepared.
async fn make_prepared<C: ControlPlane>(
    control: &C,
    limits: &Limits,
    ended: &CancellationToken,
) -> Result<(C::Made, C::Shell), Error> {
    if ended.is_cancelled() {
        return Err(super::over());
    }
    let made = control.create(limits).await?;
    let prepared = tokio::select! {
        prepared = prepare(control, &made) => prepared,
        () = ended.cancelled() => Err(super::over()),
    };
    match prepared {
        Ok(shell) => Ok((made, shell)),
        Err(error) => {
            end(control, &made).await;
            Err(error)
        }
    }
}

/// Opens a sandbox and makes the directory of its files.
async fn prepare<C: ControlPlane>(control: &C, made: &C::Made) -> Result<C::Shell, Error> {
    let shell = control.open(made).await?;
    let prepared = timeout(PREPARE_TIMEOUT, make_directory(&shell)).await;
    prepared.map_err(|_| Error::Timeout { what: "directory for files", limit: PREPARE_TIMEOUT })??;
    Ok(shell)
}

async fn make_directory<S: CommandRunner>(shell: &S) -> Result<(), Error> {
    let failed = |reason: &str| Error::Setup(format!("make the directory /mnt/data in the sandbox: {reason}"));
    let (_input, mut output) = shell.start(&["/bin/sh", "-c", PREPARE], &[]).await?;
    loop {
        match output.next().await {
            Ok(CommandEvent::Printed(_)) => {}
            Ok(CommandEvent::Ended(Ok(()))) => return Ok(()),
            Ok(CommandEvent::Ended(Err(status))) => {
                return Err(failed(&format!("{status}; the template must let its user do that")));
            }
            Err(reason) => return Err(failed(&reason)),
        }
    }
}

/// Extends its lifetime until its end is requested. Returns early if the sandbox is gone.
async fn keep_alive<C: ControlPlane>(control: &C, made: &C::Made, ended: &CancellationToken) {
    let mut last = tokio::time::Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep(KEEP_PAUSE) => {}
            () = ended.cancelled() => return,
        }
        match control.extend_lifetime(made).await {
            Ok(true) => last = tokio::time::Instant::now(),
            Ok(false) => {
                tracing::warn!(sandbox = made.id(), "a sandbox of the service has ended before its time");
                return;
            }
            Err(error) if last.elapsed() < LIFETIME => {
                tracing::warn!(sandbox = made.id(), %error, "a sandbox could not be told to stay");
            }
            Err(_) => return,
        }
    }
}

async fn end<C: ControlPlane>(control: &C, made: &C::Made) {
    if let Err(error) = control.kill(made).await {
        tracing::warn!(sandbox = made.id(), %error, "a sandbox could not be ended; it ends by itself within {} s", LIFETIME.as_secs());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::PREPARE;

    #[test]
    fn the_directory_of_the_files_is_made_without_sudo_where_its_user_may() {
        let root = tempfile::tempdir().unwrap();
        let place = |path: &str| root.path().join(path).display().to_string();
        let script = PREPARE.replace("/mnt/data", &place("mnt/data")).replace("/home/user", &place("user"));
        let prepared = |script: &str| {
            let mut shell = Command::new("/bin/sh");
            // The usual commands exist; `sudo` does not.
            shell.args(["-c", &format!("sudo() {{ return 1; }}\n{script}")]);
            shell.status().unwrap().success()
        };
        for _ in 0..2 {
            assert!(prepared(&script));
            std::fs::write(place("user/file"), "").unwrap();
        }
        let file = place("mnt/data/file");
        assert!(std::fs::exists(&file).unwrap());
        assert!(!prepared(&PREPARE.replace("/mnt/data", &file)));
    }
}
