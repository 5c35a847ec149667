//! Processes that fork others on request: the zygote, which forks kernels, and the spawner, which forks commands.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::message::{self, KernelStart};
use crate::{Step, StepError, lockdown};

/// Limit of one fork.
pub(crate) const FORK_TIMEOUT: Duration = Duration::from_secs(20);

/// A request of the warden. Descriptors: the sandbox's init (pidfd), the pipes from and to the host, stdin of a command, stdout, stderr,
/// the socket to the warden, that of a first kernel's checkpoint. On the socket to the warden the child waits for [`NamespacesReady`], the
/// rest of its descriptors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ForkRequest {
    /// Number that its answer repeats.
    pub(crate) number: u64,
    /// True if the child gets a Landlock ruleset.
    pub(crate) landlock: bool,
    /// The steps that the child runs before anything else.
    pub(crate) lockdown: Vec<lockdown::LockdownStep>,
    /// The way to become a kernel; `None` for a command, which comes from the host.
    pub(crate) kernel: Option<KernelStart>,
}

/// A message of the warden to the child. Descriptors: the Landlock ruleset if there is one, then the membership files of the cgroup.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NamespacesReady;

/// Messages of a fork server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ForkReply {
    /// The server waits for requests.
    #[serde(rename = "ready")]
    Ready,
    /// The request's number, and the child's process id as the server sees it.
    #[serde(rename = "forked")]
    Forked(u64, i32),
    /// The request's number and the error. Number 0 is the server's own start.
    #[serde(rename = "failed")]
    Failed(u64, String),
}

/// A running fork server.
pub(crate) struct ForkServer {
    pub(crate) name: &'static str,
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    socket: OwnedFd,
    requests: Cell<u64>,
}

impl ForkServer {
    /// Wraps the child at the other end of this socket, which has not yet reported that it is ready.
    pub(crate) fn new(name: &'static str, pid: Pid, socket: OwnedFd) -> Result<Self, StepError> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).step(format!("open the {name}"))?;
        Ok(Self { name, pid, pidfd, socket, requests: Cell::new(0) })
    }

    /// Sends its first message, and waits until it is ready, at most for `limit`.
    pub(crate) fn greet(&self, hello: &impl Serialize, limit: Duration) -> Result<(), StepError> {
        let greeted = message::send(&self.socket, hello, &[]).step(self.step("greet"));
        // A server that has already ended has sent its reason.
        let reply = self.reply(if greeted.is_ok() { limit } else { Duration::ZERO });
        match (reply, greeted) {
            (Ok(ForkReply::Ready), Ok(())) => Ok(()),
            (Ok(ForkReply::Failed(_, reason)), _) => Err(self.failed("start", reason)),
            (Ok(ForkReply::Ready | ForkReply::Forked(..)), _) => {
                Err(self.failed("start", "it answered out of turn".into()))
            }
            (Err(error), Ok(())) | (Err(_), Err(error)) => Err(error),
        }
    }

    /// The number of the next request.
    pub(crate) fn next_number(&self) -> u64 {
        self.requests.set(self.requests.get() + 1);
        self.requests.get()
    }

    /// Requests a process in a sandbox.
    pub(crate) fn ask(&self, request: &ForkRequest, descriptors: &[BorrowedFd<'_>]) -> Result<(), StepError> {
        message::send(&self.socket, request, descriptors).step(self.step("ask"))
    }

    /// Waits for the answer to this request, and returns the process id of the child.
    pub(crate) fn forked(&self, request: u64) -> Result<Pid, StepError> {
        let deadline = Instant::now() + FORK_TIMEOUT;
        loop {
            match self.reply(deadline.saturating_duration_since(Instant::now()))? {
                ForkReply::Forked(number, pid) if number == request => {
                    return Pid::from_raw(pid).ok_or_else(|| self.failed("hear", "it gave no process id".into()));
                }
                ForkReply::Failed(number, reason) if number == request => {
                    return Err(fork_failed(reason));
                }
                // The answer to an abandoned request. Its process, if any, belongs to another sandbox and ends by itself.
                ForkReply::Forked(..) | ForkReply::Failed(..) => {}
                ForkReply::Ready => return Err(self.failed("hear", "it answered out of turn".into())),
            }
        }
    }

    /// Returns true if the other end of its socket is closed.
    pub(crate) fn has_hung_up(&self) -> bool {
        message::has_hung_up(self.socket.as_fd())
    }

    fn reply(&self, timeout: Duration) -> Result<ForkReply, StepError> {
        if !message::is_readable(self.socket.as_fd(), timeout).step(self.step("wait for"))? {
            return Err(self.failed("wait for", "no answer in time".into()));
        }
        match message::receive(&self.socket).step(self.step("hear"))? {
            Some((reply, _)) => Ok(reply),
            None => Err(self.failed("hear", "it ended; its last words are above".into())),
        }
    }

    fn step(&self, verb: &str) -> String {
        format!("{verb} the {}", self.name)
    }

    fn failed(&self, verb: &str, reason: String) -> StepError {
        StepError { step: self.step(verb), source: std::io::Error::other(reason) }
    }
}

fn fork_failed(reason: String) -> StepError {
    StepError { step: "fork a process".into(), source: std::io::Error::other(reason) }
}
