//! Programs that run beside the kernel, in the same sandbox and under the same limits.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub use aludel_jail::message::ExitStatus;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::backends::local::output_pipe;
use crate::backends::local::warden_client::Handle;
use crate::frame::{Channel, FromKernel, ToKernel};
use crate::{Error, Sandbox};

/// How long a program may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long what a program left in its pipes is read after its end: a child of its own may hold them open for ever.
const LAST_WORDS: Duration = Duration::from_millis(500);
const SIGKILL: i32 = 9;

/// A program that runs beside the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    /// The program, looked up in the path, and its arguments. The system takes 128 KiB for each and 2 MiB for all of them.
    pub arguments: Vec<String>,
    /// Environment variables beside those that every process of a sandbox has.
    pub environment: Vec<(String, String)>,
    /// Where it starts, inside; relative to the workspace.
    pub directory: String,
}

/// A running program. Dropping it kills the program and what it started, unless that has left its process group.
#[derive(Debug)]
pub struct Process {
    handle: Arc<Handle>,
    number: u64,
    /// What the program reads; dropping it is the end of the file.
    pub stdin: Option<pipe::Sender>,
    /// What the program prints.
    pub stdout: pipe::Receiver,
    /// What the program prints to its error output.
    pub stderr: pipe::Receiver,
    ended: oneshot::Receiver<Option<ExitStatus>>,
}

/// What a program did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended; `None` when it ran out of time and was killed.
    pub status: Option<ExitStatus>,
    /// The beginning of what it printed, at most the limit that was asked for.
    pub stdout: Vec<u8>,
    /// The same of its error output.
    pub stderr: Vec<u8>,
    /// Bytes of both that were dropped.
    pub dropped: u64,
}

impl Sandbox {
    /// Starts a program. An error tells that it could not be started, for example because it is not there.
    pub async fn spawn(&self, command: Command) -> Result<Process, Error> {
        let number = self.next_process();
        let failed = |step: &'static str| move |error: io::Error| Error::Setup(format!("{step}: {error}"));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed("make a socket"))?;
        let (stdin_theirs, stdin) = io::pipe().map_err(failed("make a pipe"))?;
        let stdin_theirs = OwnedFd::from(stdin_theirs);
        let stdin = pipe::Sender::from_owned_fd(stdin.into()).map_err(failed("open a pipe"))?;
        let (stdout, stdout_theirs) = output_pipe().map_err(failed("make a pipe"))?;
        let (stderr, stderr_theirs) = output_pipe().map_err(failed("make a pipe"))?;
        let ended = self.handle().spawn(number, [theirs.into(), stdin_theirs, stdout_theirs, stderr_theirs])?;
        let mut channel = Channel::new(ours).map_err(failed("open a socket"))?;
        let process = Process { handle: Arc::clone(self.handle()), number, stdin: Some(stdin), stdout, stderr, ended };
        // What went wrong before it could be told is told by the other side.
        let _told = timeout(START_TIMEOUT, channel.send(&ToKernel::Run { command: &command })).await;
        // The socket is closed by the exec; until then, or without one, it tells what went wrong.
        match timeout(START_TIMEOUT, channel.receive()).await {
            Ok(Ok(None)) => Ok(process),
            Ok(Ok(Some(FromKernel::Failed(reason)))) => Err(Error::Start(reason)),
            Ok(Ok(Some(_)) | Err(_)) | Err(_) => Err(Error::Start("it did not start in time".into())),
        }
    }

    /// Runs a program to its end, with `input` as what it reads, for at most `limit` of wall clock, and keeps `most` bytes of each output.
    pub async fn run(&self, command: Command, input: &[u8], limit: Duration, most: usize) -> Result<Output, Error> {
        let mut process = self.spawn(command).await?;
        let stdin = process.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A program need not read what it is given.
                let _closed = stdin.write_all(input).await;
            }
        };
        let (mut stdout, mut stderr) = (Kept::new(most), Kept::new(most));
        let status = {
            let (out, err, ended) = (&mut process.stdout, &mut process.stderr, &mut process.ended);
            let reading = async { tokio::join!(stdout.read(out), stderr.read(err), feed) };
            tokio::pin!(reading);
            let to_the_end = async {
                tokio::select! {
                    status = &mut *ended => {
                        let _held_open = timeout(LAST_WORDS, &mut reading).await;
                        status
                    }
                    _ = &mut reading => ended.await,
                }
            };
            timeout(limit, to_the_end).await
        };
        let status = match status {
            Ok(Ok(Some(status))) => Some(status),
            Ok(Ok(None) | Err(_)) => return Err(Error::KernelGone("the sandbox ended".into())),
            Err(_) => {
                process.signal(SIGKILL);
                None
            }
        };
        Ok(Output { status, dropped: stdout.dropped + stderr.dropped, stdout: stdout.bytes, stderr: stderr.bytes })
    }
}

impl Process {
    /// Sends a signal to the program's process group.
    pub fn signal(&self, signal: i32) {
        self.handle.signal_process(self.number, signal);
    }

    /// Waits for the end; `None` when the sandbox ended first. Cancel-safe; answers once.
    pub async fn wait(&mut self) -> Option<ExitStatus> {
        (&mut self.ended).await.ok().flatten()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(SIGKILL);
    }
}

/// The beginning of a stream.
struct Kept {
    bytes: Vec<u8>,
    most: usize,
    dropped: u64,
}

impl Kept {
    fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most, dropped: 0 }
    }

    /// Reads to the end, so that the program never waits for us. Cancel-safe.
    async fn read(&mut self, pipe: &mut pipe::Receiver) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            let kept = count.min(self.most - self.bytes.len());
            self.bytes.extend_from_slice(buffer.get(..kept).unwrap_or_default());
            self.dropped += (count - kept) as u64;
        }
    }
}
