//! Messages between aludel, the warden and the zygote: JSON datagrams over sequenced-packet sockets, descriptors alongside.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

/// The largest datagram either side accepts, bytes.
const MAX_MESSAGE: usize = 128 * 1024;
/// The most descriptors that travel with one message.
const MAX_DESCRIPTORS: usize = 12;

/// The first message to the warden.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// The template's root filesystem on the host.
    pub root: PathBuf,
    /// The command that starts the zygote, as seen from inside: a path and its arguments.
    pub argv: Vec<String>,
    /// The zygote's environment, which is all that sandboxes inherit.
    pub environment: Vec<(String, String)>,
    /// The scripts to put under `/run/aludel` inside, by file name.
    pub scripts: Vec<(String, String)>,
    /// The instance's directory on the host, which [`crate::sweep`] cleans after a crash.
    pub instance: PathBuf,
    /// Tell every system call by [`WardenMessage::CallReported`], not only the refused ones. For finding the programs that need each
    /// allowed call: it makes them slow, and no safer.
    pub observe: bool,
}

/// Limits of a sandbox that Linux enforces.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JailLimits {
    /// Bytes of memory for all processes together.
    pub memory: u64,
    /// Processes and threads together.
    pub processes: u32,
    /// Processor time in thousandths of a core.
    pub millicpus: u32,
    /// Bytes of `/tmp` and `/dev/shm` together.
    pub tmp: u64,
    /// Inodes of `/tmp` and `/dev/shm` together.
    pub tmp_inodes: u64,
    /// Bytes of one file.
    pub file_size: u64,
    /// Open files of one process.
    pub open_files: u32,
}

/// A sandbox that is to be made.
#[derive(Debug, Serialize, Deserialize)]
pub struct JailSpec {
    /// The way in which its first kernel comes to life; `None` for a sandbox without one.
    pub start: Option<KernelStart>,
    /// Tells sandboxes apart by uid where the host allows it; below [`MAX_SLOTS`].
    pub slot: u32,
    /// The workspace.
    pub workspace: u64,
    /// The limits.
    pub limits: JailLimits,
    /// The freedom of its programs.
    pub profile: Profile,
}

/// A request under its number, which the answer repeats.
#[derive(Debug, Serialize, Deserialize)]
pub struct NumberedRequest {
    /// Chosen by the caller, unique among the requests that wait for an answer.
    pub number: u64,
    /// The request.
    pub request: WardenRequest,
}

/// A request to the warden. Requests are handled in the order in which they are sent; those that say so are answered by
/// [`WardenMessage::Answer`].
#[derive(Debug, Serialize, Deserialize)]
pub enum WardenRequest {
    /// Makes a workspace: a file system of its own, in memory, with hard limits. The answer's descriptor is its root directory.
    OpenWorkspace {
        /// Chosen by the caller, unique while the workspace is there.
        workspace: u64,
        /// Slot of its owner; below [`MAX_SLOTS`].
        slot: u32,
        /// Bytes of all files together.
        bytes: u64,
        /// Files and directories.
        inodes: u64,
    },
    /// Removes a workspace. Answered when no sandbox uses it any more; one that is not there is fine.
    CloseWorkspace {
        /// The workspace.
        workspace: u64,
    },
    /// Makes a sandbox. If it has a kernel, [`FIRST_KERNEL`], that speaks on its own socket once this is answered. Descriptors of one with
    /// a kernel: the kernel's control socket, its stdout, its stderr.
    Create {
        /// Chosen by the caller, unique while the sandbox lives.
        id: u64,
        /// The sandbox.
        spec: JailSpec,
    },
    /// Makes a further kernel in a sandbox, under the same limits. Descriptors and answer as of [`WardenRequest::Create`] with a kernel.
    StartKernel {
        /// The sandbox.
        id: u64,
        /// Chosen by the caller, unique in the sandbox; not [`FIRST_KERNEL`].
        kernel: u64,
        /// The way in which the kernel comes to life.
        start: KernelStart,
    },
    /// Ends a kernel, its checkpoint, and what it started, unless that has left its process group. One that is not there is fine.
    EndKernel {
        /// The sandbox.
        id: u64,
        /// The kernel.
        kernel: u64,
    },
    /// Sends a signal to a kernel process.
    Signal {
        /// The sandbox.
        id: u64,
        /// The kernel.
        kernel: u64,
        /// The signal's number.
        signal: i32,
    },
    /// Lets the checkpoint of the first kernel, which ended, take its place, and is answered when it has, or cannot. Everything else that
    /// ran in the sandbox is ended. Descriptor: the control socket of the restored kernel.
    Restore {
        /// The sandbox.
        id: u64,
    },
    /// Starts a process in the sandbox. Descriptors: a socket over which it gets its command, which is closed once that runs and says why
    /// if it cannot; then stdin, stdout, stderr.
    Spawn {
        /// The sandbox.
        id: u64,
        /// Chosen by the caller, unique in the sandbox.
        process: u64,
        /// True if its stdin is a terminal, which it then controls.
        terminal: bool,
    },
    /// Opens a terminal of the sandbox, which has to be of [`Profile::Services`]. Descriptors of the answer: the end for whoever sits at
    /// it, the end for programs.
    OpenTerminal {
        /// The sandbox.
        id: u64,
        /// The size of its window.
        size: TerminalSize,
    },
    /// Connects to a TCP port on which something in the sandbox listens, which has to be of [`Profile::Services`]. Descriptor of the
    /// answer: the connection, which may not be established yet.
    Connect {
        /// The sandbox.
        id: u64,
        /// The port.
        port: u16,
    },
    /// Sends a signal to a process that [`WardenRequest::Spawn`] started and to the rest of its process group.
    SignalProcess {
        /// The sandbox.
        id: u64,
        /// The process.
        process: u64,
        /// The signal's number.
        signal: i32,
    },
    /// A cell begins that somebody waits for: it comes before what has run for long in others.
    Foreground {
        /// The sandbox.
        id: u64,
    },
    /// Stops everything in the sandbox. Answered when nothing of it runs any more.
    Freeze {
        /// The sandbox.
        id: u64,
    },
    /// Lets everything go on that [`WardenRequest::Freeze`] stopped. A sandbox that is not stopped is fine.
    Thaw {
        /// The sandbox.
        id: u64,
    },
    /// Answered at once, after everything that was sent before.
    Ping,
    /// Asks for [`WardenAnswer::Usage`].
    Usage {
        /// The sandbox.
        id: u64,
    },
    /// Ends the sandbox and removes what it left. Answered when that is done; one that is not there is fine.
    Destroy {
        /// The sandbox.
        id: u64,
    },
}

/// The freedom of programs in a sandbox, beyond computing on their files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Nothing.
    #[default]
    Data,
    /// Listen and connect on the sandbox's own loopback device, which no other sandbox shares and nothing leads out of, and use terminals
    /// of its own. Its first kernel keeps no checkpoint, which would end the services when it takes over.
    Services,
}

/// The size of a terminal's window, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Characters in a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

/// Way in which a kernel is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelStart {
    /// As a fork of the zygote: in milliseconds, with the address layout that all forks of one zygote share.
    Fork,
    /// As a new interpreter with an address layout of its own: after its imports, in about a second.
    Fresh,
}

/// The number of the kernel that a sandbox is made with, the only one that keeps a checkpoint. A sandbox that is made without a kernel
/// never has one of this number.
pub const FIRST_KERNEL: u64 = 0;

/// The number of slots that have a uid of their own.
pub const MAX_SLOTS: u32 = 60_000;

/// A message of the warden: an answer, or a report that nobody asked for.
#[derive(Debug, Serialize, Deserialize)]
pub enum WardenMessage {
    /// The zygote is up.
    Ready {
        /// The host uid of slot 0, when every slot has its own; `None` where only the caller's own uid can be used.
        owner_base: Option<u32>,
        /// Protections that are not enforced here, in words for the operator.
        warnings: Vec<String>,
        /// True if a control group bounds the memory of a sandbox. Otherwise each kernel process bounds its own.
        memory_is_bounded: bool,
    },
    /// The warden or its zygote could not start, or ended.
    Unusable {
        /// The reason, in words.
        reason: String,
    },
    /// The answer to a request.
    Answer {
        /// The request's number.
        number: u64,
        /// The answer.
        answer: WardenAnswer,
    },
    /// A kernel process ended.
    Exited {
        /// The sandbox.
        id: u64,
        /// The kernel.
        kernel: u64,
        /// Its status; `None` if Linux does not give it.
        status: Option<ExitStatus>,
        /// The most memory that its sandbox has used, bytes, if it was ended because the memory limit was reached.
        out_of_memory: Option<u64>,
    },
    /// The init of a sandbox ended unasked, and everything inside with it.
    Lost {
        /// The sandbox.
        id: u64,
    },
    /// The first kernel's checkpoint took its place. Comes before the answer to [`WardenRequest::Restore`].
    Restored {
        /// The sandbox.
        id: u64,
    },
    /// A process that [`WardenRequest::Spawn`] asked for ended, or could not be made.
    ProcessExited {
        /// The sandbox.
        id: u64,
        /// The process.
        process: u64,
        /// Its status; `None` if it was never made.
        status: Option<ExitStatus>,
    },
    /// A process of the sandbox made a system call that is not allowed, or any where [`Setup::observe`] is set.
    CallReported {
        /// The sandbox.
        id: u64,
        /// The kernel that made it, or that started the process which did; [`FIRST_KERNEL`] for calls of commands, of
        /// which nobody hears in a sandbox that was made without a kernel.
        kernel: u64,
        /// The call's number on this architecture.
        number: i64,
    },
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub enum WardenAnswer {
    /// It is done.
    Done,
    /// The figures of [`WardenRequest::Usage`].
    Usage(CgroupUsage),
    /// Nothing listens on the port of [`WardenRequest::Connect`].
    PortClosed,
    /// The sandbox has no terminal left for [`WardenRequest::OpenTerminal`].
    NoTerminal,
    /// It could not be done.
    Failed {
        /// The failed step and its error.
        reason: String,
    },
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// With a status of its own.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// Usage as a sandbox's control group counts it. Zeros without a control group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupUsage {
    /// Memory now, bytes.
    pub memory: u64,
    /// The most memory so far, bytes.
    pub memory_peak: u64,
    /// Processor time so far, microseconds.
    pub cpu: u64,
}

/// Makes the two ends of a way for messages. Programs that are executed do not inherit them.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one message; blocks while the other end's queue is full.
pub fn send<T: Serialize>(socket: impl AsFd, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, message, descriptors, SendFlags::empty())
}

/// Sends one message, or fails with [`io::ErrorKind::WouldBlock`] when the other end's queue is full.
pub fn try_send<T: Serialize>(socket: impl AsFd, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, message, descriptors, SendFlags::DONTWAIT)
}

fn send_with<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {} bytes is too long", bytes.len()),
        ));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL | flags)
    })?;
    Ok(())
}

/// Receives one message and its descriptors; `None` when the other end is closed.
pub fn receive<T: for<'a> Deserialize<'a>>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    receive_with(socket, RecvFlags::empty())
}

/// Receives one message like [`receive`], or fails with [`io::ErrorKind::WouldBlock`] when there is none.
pub(crate) fn try_receive<T: for<'a> Deserialize<'a>>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    receive_with(socket, RecvFlags::DONTWAIT)
}

fn receive_with<T: for<'a> Deserialize<'a>>(
    socket: impl AsFd,
    flags: RecvFlags,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    // Its length first: room for the longest would have to be cleared each time.
    let peek = flags | RecvFlags::PEEK | RecvFlags::TRUNC;
    let (_, length) = rustix::io::retry_on_intr(|| rustix::net::recv(&socket, &mut [0_u8; 0], peek))?;
    let mut bytes = vec![0; length.min(MAX_MESSAGE)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(bytes.get(..received.bytes).unwrap_or_default())?;
    Ok(Some((message, descriptors)))
}

/// Returns true if the other end of the socket is closed.
pub(crate) fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::io::retry_on_intr(|| poll(&mut fds, Some(&now))).is_ok_and(|ready| ready > 0)
}

/// Returns true if the process behind the pidfd has ended.
pub(crate) fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    is_readable(pidfd, Duration::ZERO).unwrap_or(true)
}

/// Waits up to `timeout` for a message or the end of the socket; returns false if neither came.
pub(crate) fn is_readable(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    is_ready(socket, PollFlags::IN, timeout)
}

/// Returns true if a socket can be written to, or fails, in time.
pub(crate) fn is_writable(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    is_ready(socket, PollFlags::OUT, timeout)
}

fn is_ready(socket: BorrowedFd<'_>, flags: PollFlags, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let mut fds = [PollFd::new(&socket, flags)];
    Ok(rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout)))? > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_has_hung_up_when_its_other_end_is_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(!has_hung_up(ours.as_fd()));
        drop(theirs);
        assert!(has_hung_up(ours.as_fd()));
    }
}
