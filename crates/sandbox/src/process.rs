//! Processes that run beside the kernel, in the same sandbox and under the same limits.

use std::fmt;
use std::io;
use std::time::Duration;

use aludel_ignore::Ignore;
pub use aludel_jail::message::ExitStatus;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::kernel_spec::THREAD_VARIABLES;
use crate::output::rest;
use crate::{Error, Limits};

/// Time for reading the rest of the pipes after a process's end: its children may hold them open for ever.
const FINAL_OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);
/// The number of the signal that asks a process to end.
pub const SIGTERM: i32 = 15;
/// The number of the signal that ends a process.
pub const SIGKILL: i32 = 9;

/// A command that is to run beside the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    /// The command, looked up in the path, and its arguments. Linux takes 128 KiB for each and 2 MiB for all of them.
    pub arguments: Vec<String>,
    /// Environment variables beside those that every process of a sandbox has.
    pub environment: Vec<(String, String)>,
    /// Working directory inside; relative to the workspace.
    pub directory: String,
    /// The window of the terminal that it runs in; `None` for pipes.
    #[serde(skip)]
    pub pty: Option<PtySize>,
}

impl Command {
    /// The same command with libraries that compute on all processors of the sandbox, unless it says otherwise itself.
    pub(crate) fn with_threads(mut self, limits: &Limits) -> Self {
        let threads = THREAD_VARIABLES.map(|name| (name.to_owned(), limits.threads().to_string()));
        self.environment.splice(0..0, threads);
        self
    }
}

/// The size of a terminal's window, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    /// Characters in a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

/// A running process. It is killed with its sandbox, or when this is dropped, together with its children that have not left its process
/// group.
pub struct Process {
    /// The process's stdin; dropping it closes it. In a terminal, the keyboard; dropping it does nothing.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Sync + Unpin>>,
    /// The process's stdout; in a terminal, all output. The process waits if it is not read.
    pub stdout: Box<dyn AsyncRead + Send + Sync + Unpin>,
    /// The process's error output; empty in a terminal.
    pub stderr: Box<dyn AsyncRead + Send + Sync + Unpin>,
    /// Its process id inside.
    pub(crate) id: u32,
    /// Sends a signal to its process group.
    pub(crate) signal: Box<dyn Fn(i32) + Send + Sync>,
    /// Changes the size of the terminal's window.
    pub(crate) resize: Option<Box<dyn Fn(PtySize) -> io::Result<()> + Send + Sync>>,
    /// The end; `None` when the sandbox ended first.
    pub(crate) ended: oneshot::Receiver<Option<ExitStatus>>,
}

impl fmt::Debug for Process {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Process").finish_non_exhaustive()
    }
}

/// Status and output of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessOutput {
    /// Its end; `None` when it ran out of time and was killed.
    pub status: Option<ExitStatus>,
    /// The beginning of what it printed, at most the limit that was asked for.
    pub stdout: Vec<u8>,
    /// The same of its error output.
    pub stderr: Vec<u8>,
    /// Bytes of both that were dropped.
    pub dropped: u64,
}

impl Process {
    /// Its process id, as processes of the sandbox see it.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Changes the size of the terminal's window, and notifies the process.
    pub fn resize(&self, size: PtySize) -> Result<(), Error> {
        let resize = self.resize.as_ref().ok_or(Error::NotSupported("a window without a terminal"))?;
        resize(size).map_err(|error| Error::KernelGone(format!("its terminal: {error}")))
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, signal: i32) {
        (self.signal)(signal);
    }

    /// Waits for the end; `None` when the sandbox ended first. Cancel-safe; answers once.
    pub async fn wait(&mut self) -> Option<ExitStatus> {
        (&mut self.ended).await.ok().flatten()
    }

    /// Waits for the end, with `input` on the process's stdin, for at most `limit` of wall clock, and keeps `most` bytes of each output.
    pub async fn output(mut self, input: &[u8], limit: Duration, most: usize) -> Result<ProcessOutput, Error> {
        let stdin = self.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                stdin.write_all(input).await.ignore("a process need not read its stdin");
            }
        };
        let (mut stdout, mut stderr) = (StreamHead::new(most), StreamHead::new(most));
        let status = {
            let (out, err, ended) = (&mut self.stdout, &mut self.stderr, &mut self.ended);
            let reading = async { tokio::join!(stdout.read(out), stderr.read(err), feed) };
            tokio::pin!(reading);
            let to_the_end = async {
                tokio::select! {
                    status = &mut *ended => {
                        timeout(FINAL_OUTPUT_TIMEOUT, &mut reading).await.ignore("children may hold the pipes open");
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
                self.signal(SIGKILL);
                None
            }
        };
        Ok(ProcessOutput {
            status,
            dropped: stdout.dropped + stderr.dropped,
            stdout: stdout.bytes,
            stderr: stderr.bytes,
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(SIGKILL);
    }
}

/// The beginning of a stream.
struct StreamHead {
    bytes: Vec<u8>,
    most: usize,
    dropped: u64,
}

impl StreamHead {
    fn new(most: usize) -> Self {
        Self { bytes: Vec::new(), most, dropped: 0 }
    }

    /// Reads to the end; what is dropped, slowly. Cancel-safe.
    async fn read(&mut self, pipe: &mut (dyn AsyncRead + Send + Sync + Unpin)) {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            let kept = count.min(self.most - self.bytes.len());
            self.bytes.extend_from_slice(buffer.get(..kept).unwrap_or_default());
            self.dropped += (count - kept) as u64;
            rest((count - kept) as u64).await;
        }
    }
}
