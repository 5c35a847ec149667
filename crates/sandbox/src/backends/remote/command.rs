//! One command in a sandbox of the service, from its request to its end.

use std::sync::Arc;
use std::time::Duration;

use aludel_ignore::Ignore;
use futures_util::StreamExt;
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::machine::Machine;
use super::{CommandEvent, CommandInput, CommandOutput, CommandRunner};
use crate::backends::stdio::{OutputChunk, SandboxHost, Stdio};
use crate::{Error, Usage};

/// Bytes of input that wait for the service.
const INPUT: usize = 256 << 10;
/// Pieces of output that wait for the reader.
const OUTPUT_PIECES: usize = 16;
/// Time that a command has to end after its stdin is closed, and again after it was killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A command in a sandbox of the service. A task starts it and ends it, so that a step in progress is completed even if the caller gives
/// up. Dropping this ends the command.
#[derive(Debug)]
pub struct RemoteCommand {
    ended: CancellationToken,
    task: TaskTracker,
    never_paused: watch::Sender<bool>,
}

impl RemoteCommand {
    /// A command to start, which ends with `parent`.
    pub(super) fn new(parent: &CancellationToken) -> Self {
        Self { ended: parent.child_token(), task: TaskTracker::new(), never_paused: watch::Sender::new(false) }
    }

    /// Starts it in a sandbox of the service. The task holds `needs` until it has ended.
    pub(super) fn start<S: CommandRunner, N: Send + 'static>(
        &self,
        machine: &Arc<Machine<S>>,
        arguments: &[&'static str],
        environment: &[(&str, &str)],
        needs: N,
    ) -> oneshot::Receiver<Result<Stdio, Error>> {
        let (started, answer) = oneshot::channel();
        let ended = self.ended.clone();
        let (shell, machine_end) = (machine.shell().cloned(), machine.end().clone());
        let arguments = arguments.to_vec();
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.task.spawn(async move {
            if let Some(shell) = shell.filter(|_| !ended.is_cancelled()) {
                let environment: Vec<_> = environment.iter().map(|(name, value)| (&**name, &**value)).collect();
                match shell.start(&arguments, &environment).await {
                    Ok((input, output)) => {
                        tokio::select! {
                            () = follow(input, output, started, &ended) => {}
                            // The whole sandbox ends, and the command with it.
                            () = machine_end.cancelled() => {}
                        }
                    }
                    Err(error) => {
                        started.send(Err(error)).ignore("the caller may be gone");
                    }
                }
            }
            ended.cancel();
            drop(needs);
        });
        answer
    }
}

/// Passes on a command's streams until its end, and ends it on request.
async fn follow(
    stdin: impl CommandInput,
    mut events: impl CommandOutput,
    started: oneshot::Sender<Result<Stdio, Error>>,
    ended: &CancellationToken,
) {
    let (input, ours) = tokio::io::duplex(INPUT);
    let (sender, pieces) = mpsc::channel(OUTPUT_PIECES);
    let output = stream_of(pieces).boxed();
    if started.send(Ok(Stdio { output, input: Box::pin(input) })).is_ok() {
        tokio::select! {
            () = feed(&stdin, ours) => {}
            is_over = forward(&mut events, sender) => if is_over { return },
            () = ended.cancelled() => {}
        }
    }
    if let Err(error) = stdin.close().await {
        tracing::debug!(%error, "the input of a command could not be ended");
    }
    if timeout(END_TIMEOUT, over(&mut events)).await.is_ok() {
        return;
    }
    match stdin.kill().await {
        Ok(()) => {
            timeout(END_TIMEOUT, over(&mut events)).await.ignore("the service ends the command in any case");
        }
        Err(error) => tracing::warn!(%error, "a command could not be killed"),
    }
}

/// Sends its stdin, as much at once as there is, until the writer is gone or the service refuses.
async fn feed(stdin: &impl CommandInput, mut input: DuplexStream) {
    let mut bytes = Vec::with_capacity(INPUT);
    loop {
        bytes.clear();
        match input.read_buf(&mut bytes).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Err(error) = stdin.send(&bytes).await {
            tracing::warn!(%error, "a command's input did not arrive");
            return;
        }
    }
}

/// Passes on its output. Returns true at the command's end, and false if the reader is gone or the events broke off.
async fn forward(events: &mut impl CommandOutput, sender: mpsc::Sender<Result<OutputChunk, String>>) -> bool {
    loop {
        let piece = match events.next().await {
            Ok(CommandEvent::Printed(piece)) => Ok(piece),
            Ok(CommandEvent::Ended(_)) => return true,
            Err(reason) => Err(reason),
        };
        let is_last = piece.is_err();
        if sender.send(piece).await.is_err() || is_last {
            return false;
        }
    }
}

/// Waits for the end of a command, and drops its output.
async fn over(events: &mut impl CommandOutput) {
    while let Ok(CommandEvent::Printed(_)) = events.next().await {}
}

/// Turns a channel into a stream.
fn stream_of<T: Send + 'static>(receiver: mpsc::Receiver<T>) -> impl futures_util::Stream<Item = T> + Send {
    futures_util::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))
}

impl Drop for RemoteCommand {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl SandboxHost for RemoteCommand {
    fn end(&self) -> &CancellationToken {
        &self.ended
    }

    async fn remove(&self) {
        self.ended.cancel();
        self.task.close();
        self.task.wait().await;
    }

    fn enforces_resources(&self) -> bool {
        false
    }

    fn paused(&self) -> watch::Receiver<bool> {
        self.never_paused.subscribe()
    }

    async fn pause(&self, _pauses: bool) -> Result<(), Error> {
        Err(Error::NotSupported("pausing a sandbox of a service (only sandbox.backend = \"local\" and \"docker\" do)"))
    }

    async fn usage(&self) -> Usage {
        Usage::default()
    }
}
