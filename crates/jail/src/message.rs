//! Messages between aludel, the warden and the zygote: JSON datagrams with descriptors over sequenced-packet sockets.

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

/// The largest datagram either side accepts, bytes. Linux takes none above the buffer of a socket, which is 208 KB unless the host says
/// otherwise; the largest is [`Setup`] with its scripts.
const MAX_MESSAGE: usize = 192 * 1024;
/// The most descriptors that travel with one message.
const MAX_DESCRIPTORS: usize = 12;

/// The first message to the warden.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    /// The template's root filesystem on the host.
    pub root: PathBuf,
    /// The command that starts the zygote, a path and its arguments, as seen from inside.
    pub argv: Vec<String>,
    /// The zygote's environment, which is all that sandboxes inherit.
    pub environment: Vec<(String, String)>,
    /// The scripts to put under `/run/aludel` inside, by file name.
    pub scripts: Vec<(String, String)>,
    /// The instance's directory on the host, which [`crate::sweep`] cleans after a crash.
    pub instance: PathBuf,
    /// Reports every system call by [`WardenMessage::CallReported`], not only refused ones: for finding the programs that need an allowed
    /// call. Slows programs down, and makes nothing safer.
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

impl JailLimits {
    /// The processor time in each period, and the period, both in microseconds.
    pub(crate) fn quota(&self) -> (u64, u64) {
        const PERIOD: u64 = 100_000;
        (u64::from(self.millicpus) * PERIOD / 1000, PERIOD)
    }
}

/// A sandbox to make.
#[derive(Debug, Serialize, Deserialize)]
pub struct JailSpec {
    /// The way to start its first kernel; `None` for a sandbox without one.
    pub start: Option<KernelStart>,
    /// Selects the sandbox's uid where the host allows one for each; below [`MAX_SLOTS`].
    pub slot: u32,
    /// The workspace.
    pub workspace: u64,
    /// The limits.
    pub limits: JailLimits,
    /// The additional rights of its programs.
    pub profile: Profile,
}

/// A request with its number, which the answer repeats.
#[derive(Debug, Serialize, Deserialize)]
pub struct NumberedRequest {
    /// Chosen by the caller, unique among the unanswered requests.
    pub number: u64,
    /// The request.
    pub request: WardenRequest,
}

/// A request to the warden. Requests are handled in order; those that say so are answered by [`WardenMessage::Answer`].
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
    /// Removes a workspace. Answered when no sandbox uses it any more; success if it does not exist.
    CloseWorkspace {
        /// The workspace.
        workspace: u64,
    },
    /// Makes a sandbox. Its kernel, if any, is [`FIRST_KERNEL`] and speaks on its own pipe once this is answered. Descriptors, with a
    /// kernel only: the pipe from the host, the pipe to the host, stdout, stderr.
    Create {
        /// Chosen by the caller, unique while the sandbox lives.
        id: u64,
        /// The sandbox.
        spec: JailSpec,
    },
    /// Starts a further kernel in a sandbox, under the same limits. Descriptors and answer as for [`WardenRequest::Create`] with a kernel.
    StartKernel {
        /// The sandbox.
        id: u64,
        /// Chosen by the caller, unique in the sandbox; not [`FIRST_KERNEL`].
        kernel: u64,
        /// The way to start the kernel.
        start: KernelStart,
    },
    /// Ends a kernel, its checkpoint, and its processes except those that left its process group. Success if it does not exist.
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
    /// Replaces the first kernel, which ended, by its checkpoint, and ends everything else in the sandbox. Answered when the checkpoint has
    /// taken over, or cannot. Descriptors: the restored kernel's pipes from and to the host.
    Restore {
        /// The sandbox.
        id: u64,
    },
    /// Starts a process in the sandbox. Descriptors: a pipe that carries the command to the process, one that carries an error back if it
    /// cannot run and that closes once it runs, stdin, stdout, stderr.
    Spawn {
        /// The sandbox.
        id: u64,
        /// Chosen by the caller, unique in the sandbox.
        process: u64,
        /// True if its stdin is a terminal, which it then controls.
        terminal: bool,
    },
    /// Opens a terminal of a sandbox of [`Profile::Services`]. Descriptors of the answer: the controlling side, the side for programs.
    OpenTerminal {
        /// The sandbox.
        id: u64,
        /// The size of its window.
        size: TerminalSize,
    },
    /// Connects to a TCP port of a sandbox of [`Profile::Services`]. Descriptor of the answer: the connection, which may not be established
    /// yet.
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
    /// Raises the sandbox's processor share for a while: a client waits for a cell that begins.
    Foreground {
        /// The sandbox.
        id: u64,
    },
    /// Stops everything in the sandbox. Answered when all of it has stopped.
    Freeze {
        /// The sandbox.
        id: u64,
    },
    /// Undoes [`WardenRequest::Freeze`]. Success if the sandbox is not frozen.
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
    /// Ends the sandbox and removes what it left. Answered when that is done; success if it does not exist.
    Destroy {
        /// The sandbox.
        id: u64,
    },
}

/// The additional rights of programs in a sandbox, besides computing on their files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Nothing.
    #[default]
    Data,
    /// Listening and connecting on the sandbox's own loopback device, which is connected to nothing else, and terminals of its own. Its
    /// first kernel keeps no checkpoint, which would end the services when it takes over.
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

/// The way to start a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KernelStart {
    /// As a fork of the zygote: in milliseconds, with the address layout that all forks of one zygote share.
    Fork,
    /// As a new interpreter with an address layout of its own: after its imports, in about a second.
    Fresh,
}

/// The number of a sandbox's first kernel, the only one with a checkpoint. In a sandbox that is made without a kernel, no kernel has this
/// number.
pub const FIRST_KERNEL: u64 = 0;

/// The number of slots that have a uid of their own.
pub const MAX_SLOTS: u32 = 60_000;

/// A message of the warden: an answer, or a report without a request.
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
        /// The peak memory use of its sandbox, bytes, if the process was killed because of the memory limit.
        out_of_memory: Option<u64>,
    },
    /// The init of a sandbox ended without a request, and with it everything inside.
    Lost {
        /// The sandbox.
        id: u64,
    },
    /// The first kernel's checkpoint took over. Comes before the answer to [`WardenRequest::Restore`].
    Restored {
        /// The sandbox.
        id: u64,
    },
    /// A process of [`WardenRequest::Spawn`] ended, or could not be made.
    ProcessExited {
        /// The sandbox.
        id: u64,
        /// The process.
        process: u64,
        /// Its status; `None` if it was never made.
        status: Option<ExitStatus>,
    },
    /// A process of the sandbox made a system call that is not allowed, or any call where [`Setup::observe`] is set.
    CallReported {
        /// The sandbox.
        id: u64,
        /// The kernel that made it, or from which its process descends; [`FIRST_KERNEL`] for calls of commands, which are not reported in a
        /// sandbox that was made without a kernel.
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
    /// As many connections are being made to the sandbox's ports, or to those of all sandboxes, as may be at once.
    PortsBusy,
    /// The sandbox has no terminal left for [`WardenRequest::OpenTerminal`].
    NoTerminal,
    /// The sandbox of [`WardenRequest::Freeze`] did not stop in time, and goes on.
    NotStopped,
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

/// Usage as counted by the sandbox's control group. Zeros without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupUsage {
    /// Memory now, bytes.
    pub memory: u64,
    /// The most memory so far, bytes.
    pub memory_peak: u64,
    /// Processor time so far, microseconds.
    pub cpu: u64,
}

/// Makes a connected pair of message sockets, both close-on-exec.
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
    // Its length comes first: a buffer for the longest message would have to be cleared each time.
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
