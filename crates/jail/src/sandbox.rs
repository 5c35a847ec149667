//! One sandbox from the warden's point of view: its processes, its control group, and their events.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::Instant;

use aludel_ignore::Ignore;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cgroup::Cgroup;
use crate::foreground::BoostUsage;
use crate::freezer::FrozenSandbox;
use crate::lockdown::Identity;
use crate::message::{ExitStatus, FIRST_KERNEL, JailLimits, Profile};
use crate::pid_namespace::namespace_of;
use crate::sockets::{MAX_SOCKETS, SocketCounter};
use crate::sys;

/// `oom_score_adj` of all processes in a sandbox: when the host is out of memory, they are killed first.
pub(crate) const OOM_SCORE_ADJ: &str = "1000";
/// `oom_score_adj` of a checkpoint of any size: it is killed after all cells, and before processes of the host that use less than a third
/// of its memory.
const CHECKPOINT_OOM_SCORE_ADJ: &str = "300";
/// Checkpoints' greetings that are read at once, or instead of the answer of one that wakes.
pub(crate) const MAX_GREETINGS_AT_ONCE: usize = 8;
/// The greeting of a new checkpoint.
const CHECKPOINT_GREETING: &[u8] = b"checkpoint";

/// A process of a sandbox.
pub(crate) struct ProcessHandle {
    /// `None` for a checkpoint that took over: it is not the warden's child.
    pub(crate) pid: Option<Pid>,
    pub(crate) pidfd: OwnedFd,
}

/// One sandbox.
pub(crate) struct JailSandbox {
    pub(crate) init: ProcessHandle,
    /// The socket on which init takes requests for locks.
    pub(crate) init_socket: Rc<OwnedFd>,
    pub(crate) landlock: Option<OwnedFd>,
    /// Opened for the first count.
    pub(crate) sockets: Option<SocketCounter>,
    pub(crate) kernels: HashMap<u64, ProcessHandle>,
    pub(crate) commands: HashMap<u64, ProcessHandle>,
    pub(crate) cgroup: Cgroup,
    pub(crate) boost_usage: BoostUsage,
    /// Count of OOM kills at the last end of a known process, or at the last start of a cell.
    pub(crate) oom_kills: u64,
    pub(crate) identity: Identity,
    pub(crate) limits: JailLimits,
    pub(crate) profile: Profile,
    /// Its instance of devpts, with [`Profile::Services`].
    pub(crate) terminals: Option<OwnedFd>,
    /// Everything that was stopped, while it is.
    pub(crate) frozen: Option<FrozenSandbox>,
    /// The socket that wakes the checkpoint, if the first kernel may have one.
    pub(crate) wake: Option<OwnedFd>,
    /// The `oom_score_adj` of the latest process that greeted as the checkpoint.
    pub(crate) checkpoint: Option<File>,
    pub(crate) init_ended: bool,
    pub(crate) made: Instant,
    pub(crate) workspace: u64,
    /// True once it is to end.
    pub(crate) is_ending: bool,
    /// Numbers of the requests to answer once the sandbox is gone.
    pub(crate) closers: Vec<u64>,
    /// True once a cell has begun.
    pub(crate) has_run: bool,
    /// True while it may have the memory for waking.
    pub(crate) has_waking_memory: bool,
}

impl JailSandbox {
    /// Ends everything in it.
    pub(crate) fn kill(&self) {
        for process in [&self.init].into_iter().chain(self.kernels.values()).chain(self.commands.values()) {
            process.signal(Signal::KILL);
        }
    }

    /// Returns true if there are more sockets than a sandbox may have, as far as Linux shows them.
    pub(crate) fn has_too_many_sockets(&mut self) -> bool {
        if self.sockets.is_none() {
            self.sockets = self.init.pid.and_then(|init| SocketCounter::open(init).ok());
        }
        self.sockets.as_ref().and_then(SocketCounter::count) > Some(MAX_SOCKETS)
    }

    /// Returns true once nothing of it runs. A process that is not the warden's child ends before init does.
    pub(crate) fn is_over(&self) -> bool {
        self.init_ended && self.kernels.values().all(|kernel| kernel.pid.is_none()) && self.commands.is_empty()
    }

    /// Records the end of a process; `None` if Linux does not give its status. Returns the sandbox's peak memory use, bytes, if the process
    /// was killed because of the memory limit.
    pub(crate) fn note_exit(&mut self, status: Option<ExitStatus>) -> Option<u64> {
        if !matches!(status, None | Some(ExitStatus::Signal(libc::SIGKILL))) {
            return None;
        }
        self.note_oom_kills().then(|| self.cgroup.usage().memory_peak)
    }

    /// Updates the count of OOM kills. Returns true if it rose.
    pub(crate) fn note_oom_kills(&mut self) -> bool {
        let oom_kills = self.cgroup.oom_kills();
        oom_kills > std::mem::replace(&mut self.oom_kills, oom_kills)
    }

    /// Ends a kernel, its checkpoint and its process group.
    pub(crate) fn end_kernel(&mut self, kernel: u64) {
        if let Some(kernel) = self.kernels.get(&kernel) {
            kernel.signal(Signal::KILL);
            kernel.signal_group(Signal::KILL);
        }
        if kernel == FIRST_KERNEL {
            // A checkpoint whose kernel has ended ends when its socket closes.
            self.wake = None;
        }
    }

    /// Wakes the checkpoint to take the kernel's place, with new pipes from and to the host. Returns false if there is none.
    pub(crate) fn wake(&mut self, pipes: [BorrowedFd<'_>; 2]) -> bool {
        let Some(socket) = &self.wake else { return false };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        self.cgroup.allow_for_waking(true).ignore("it may be ended for the memory of others then");
        self.has_waking_memory = true;
        let is_sent = ancillary.push(SendAncillaryMessage::ScmRights(&pipes))
            && sendmsg(socket, &[IoSlice::new(b"restore")], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
                .is_ok();
        if !is_sent {
            self.end_of_waking();
        }
        is_sent
    }

    /// Takes back the memory that it had for waking. Version 1 refuses while more than the limit is in use; the next cell tries again.
    pub(crate) fn end_of_waking(&mut self) {
        self.has_waking_memory = self.has_waking_memory && self.cgroup.allow_for_waking(false).is_err();
    }

    /// Sets the OOM score of the latest process that greeted as the checkpoint, and of no other: other forks between two cells are killed
    /// like a cell. Returns true if there was a new greeting.
    pub(crate) fn rank_checkpoint(&mut self) -> bool {
        let Some(socket) = &self.wake else { return false };
        // A program may send greetings without end; it spoils only the rank of its own checkpoint.
        let greetings = std::iter::from_fn(|| read_greeting(socket.as_fd()).ok()).take(MAX_GREETINGS_AT_ONCE);
        let Some(pid) = greetings.filter_map(|greeting| greeting.sender).last() else { return false };
        let rank = open_oom_score_adj(pid);
        // The check follows the opening, so that a process id that another sandbox reuses is noticed.
        if namespace_of(pid).is_none_or(|of| Some(of) != self.init.pid.and_then(namespace_of)) {
            return true;
        }
        self.forget_checkpoint();
        write_oom_score_adj(rank.as_ref(), CHECKPOINT_OOM_SCORE_ADJ);
        self.checkpoint = rank;
        true
    }

    /// Gives the checkpoint the OOM score of all other processes.
    pub(crate) fn forget_checkpoint(&mut self) {
        write_oom_score_adj(self.checkpoint.take().as_ref(), OOM_SCORE_ADJ);
    }

    /// The process that answered the wake-up. Linux guarantees its pid; that it belongs to this sandbox has to be checked.
    pub(crate) fn woken(&self, greeting: &Greeting) -> Option<ProcessHandle> {
        let pid = greeting.sender?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let init = self.init.pid?;
        if namespace_of(pid)? != namespace_of(init)? {
            return None;
        }
        let process = ProcessHandle { pid: None, pidfd };
        // It is still alive after the check, so the check was about this process.
        process.is_alive().then_some(process)
    }
}

impl ProcessHandle {
    /// Sends a signal. The process may have ended, which is reported elsewhere.
    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).ignore("the process may have ended");
    }

    /// Sends a signal to the process group that it leads, or to it alone if it leads none. The pid of a child of the warden is not reused
    /// before it is reaped; of others, Linux before 6.9 reaches no group.
    pub(crate) fn signal_group(&self, signal: Signal) {
        let sent = match self.pid {
            Some(pid) => rustix::process::kill_process_group(pid, signal).map_err(Into::into),
            None => sys::signal_group(self.pidfd.as_fd(), signal),
        };
        if sent.is_err() {
            self.signal(signal);
        }
    }

    fn is_alive(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now))) == Ok(0)
    }

    /// Returns the status of a process that is not the warden's child, if this version of Linux shows it.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        let status = sys::exit_status(self.pidfd.as_fd())?;
        Some(match status & 0x7f {
            0 => ExitStatus::Code((status >> 8) & 0xff),
            signal => ExitStatus::Signal(signal),
        })
    }
}

/// Opens the `oom_score_adj` of a process.
fn open_oom_score_adj(pid: Pid) -> Option<File> {
    File::options().write(true).open(format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero())).ok()
}

fn write_oom_score_adj(rank: Option<&File>, score: &str) {
    if let Some(file) = rank {
        file.write_at(score.as_bytes(), 0)
            .ignore("it may have ended, and without its score the larger process is killed first");
    }
}

/// The first message of a process to the warden: before any code of the user runs in it, or when it is woken.
pub(crate) struct Greeting {
    pub(crate) descriptor: Option<OwnedFd>,
    pub(crate) sender: Option<Pid>,
    /// True for the greeting of a new checkpoint.
    pub(crate) is_checkpoint: bool,
}

/// Takes one message without waiting.
pub(crate) fn read_greeting(socket: BorrowedFd<'_>) -> io::Result<Greeting> {
    let mut bytes = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)
    })?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let is_checkpoint = bytes.get(..received.bytes) == Some(CHECKPOINT_GREETING);
    let mut greeting = Greeting { descriptor: None, sender: None, is_checkpoint };
    for message in ancillary.drain() {
        match message {
            // Surplus descriptors are closed here.
            RecvAncillaryMessage::ScmRights(rights) => greeting.descriptor = rights.into_iter().next(),
            RecvAncillaryMessage::ScmCredentials(credentials) => greeting.sender = Some(credentials.pid),
            _ => {}
        }
    }
    Ok(greeting)
}
