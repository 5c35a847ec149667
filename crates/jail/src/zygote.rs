//! Starting the zygote and asking it for kernels.

use std::cell::Cell;
use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use serde::{Deserialize, Serialize};

use crate::idmap::IdMap;
use crate::message::{self, KernelStart, Setup};
use crate::mounts::{self, BaseSources};
use crate::{Step, StepError, lockdown, shell, sys};

/// Limit of the imports, on a slow machine with cold caches.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// Limit of one fork.
const FORK_TIMEOUT: Duration = Duration::from_secs(20);
/// The descriptor on which the zygote finds its socket.
const SOCKET_FD: i32 = 3;

/// The first message to the zygote.
#[derive(Serialize)]
struct Hello {
    /// The seccomp filters that [`lockdown::Argument::Filter`] refers to.
    filters: [Vec<u8>; 5],
    /// The steps that it goes through itself.
    lockdown: Vec<lockdown::LockdownStep>,
}

/// A request of the warden to the zygote. Descriptors: the shell's init (pidfd), the control socket, stdin if the program has one, stdout,
/// stderr, the socket to the warden. By that the child waits until its shell is ready, and gets the rest: [`ShellReady`].
#[derive(Debug, Serialize)]
pub(crate) struct ForkRequest {
    /// Number that its answer repeats.
    pub(crate) number: u64,
    /// True if the child gets a Landlock ruleset.
    pub(crate) landlock: bool,
    /// The steps that the child runs before anything else.
    pub(crate) lockdown: Vec<lockdown::LockdownStep>,
    /// The program that it then becomes.
    pub(crate) program: ChildProgram,
}

/// A message of the warden to the child. Descriptors: the Landlock ruleset if there is one, then the ways into the cgroup.
#[derive(Debug, Serialize)]
pub(crate) struct ShellReady;

/// The program that a child of the zygote becomes.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChildProgram {
    /// A kernel.
    Kernel(KernelStart),
    /// A program that it is told by its control socket; it has a stdin.
    Command,
}

/// Messages of the zygote.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ZygoteReply {
    /// It has imported everything and waits.
    #[serde(rename = "ready")]
    Ready,
    /// The request's number, and the child's process id as the zygote sees it.
    #[serde(rename = "forked")]
    Forked(u64, i32),
    /// The request's number, and why there is no child; number 0 is the start.
    #[serde(rename = "failed")]
    Failed(u64, String),
}

/// A running zygote.
pub(crate) struct Zygote {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    socket: OwnedFd,
    requests: Cell<u64>,
}

impl Zygote {
    /// Starts it and waits until it has imported everything.
    pub(crate) fn start(setup: &Setup, map: IdMap) -> Result<Self, StepError> {
        let sources = BaseSources::open(&setup.root)?;
        let (socket, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .step("make the zygote's socket")?;
        let (mut go_sender, go_receiver) = UnixStream::pair().step("make a pipe")?;
        let user = if map == IdMap::Single { 0 } else { libc::CLONE_NEWUSER };
        let namespaces = user | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        let pid = match sys::fork(namespaces).step("make the zygote's namespaces")? {
            sys::Fork::Parent(pid) => pid,
            sys::Fork::Child => {
                drop(go_sender);
                let error = become_zygote(setup, map, &sources, &theirs, go_receiver);
                let _lost = message::send(&theirs, &ZygoteReply::Failed(0, error.to_string()), &[]);
                sys::exit(1)
            }
        };
        drop(theirs);
        if map != IdMap::Single {
            map.write(pid).step("write the zygote's id maps")?;
        }
        go_sender.write_all(b"g").step("start the zygote")?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).step("open the zygote")?;
        let zygote = Self { pid, pidfd, socket, requests: Cell::new(0) };
        let hello = Hello { filters: lockdown::filters()?, lockdown: lockdown::inherited() };
        let greeted = message::send(&zygote.socket, &hello, &[]).step("greet the zygote");
        // One that has ended before left its reason.
        let reply = zygote.reply(if greeted.is_ok() { START_TIMEOUT } else { Duration::ZERO });
        match (reply, greeted) {
            (Ok(ZygoteReply::Ready), Ok(())) => Ok(zygote),
            (Ok(ZygoteReply::Failed(_, reason)), _) => Err(failed("start the zygote", reason)),
            (Ok(ZygoteReply::Ready | ZygoteReply::Forked(..)), _) => {
                Err(failed("start the zygote", "it answered out of turn".into()))
            }
            (Err(error), Ok(())) | (Err(_), Err(error)) => Err(error),
        }
    }

    /// The number of the next request.
    pub(crate) fn next_number(&self) -> u64 {
        self.requests.set(self.requests.get() + 1);
        self.requests.get()
    }

    /// Asks for a process in a shell.
    pub(crate) fn ask(&self, request: &ForkRequest, descriptors: &[BorrowedFd<'_>]) -> Result<(), StepError> {
        message::send(&self.socket, request, descriptors).step("ask the zygote for a process")
    }

    /// Waits until the process that was asked for by this number is there, and returns its process id.
    pub(crate) fn forked(&self, request: u64) -> Result<Pid, StepError> {
        let deadline = Instant::now() + FORK_TIMEOUT;
        loop {
            match self.reply(deadline.saturating_duration_since(Instant::now()))? {
                ZygoteReply::Forked(number, pid) if number == request => {
                    return Pid::from_raw(pid).ok_or_else(|| failed("fork a process", "no process id".into()));
                }
                ZygoteReply::Failed(number, reason) if number == request => {
                    return Err(failed("fork a process", reason));
                }
                // To a request that was given up: that process belongs to another sandbox, if it is there at all, and ends by itself.
                ZygoteReply::Forked(..) | ZygoteReply::Failed(..) => {}
                ZygoteReply::Ready => return Err(failed("fork a process", "the zygote answered out of turn".into())),
            }
        }
    }

    /// Returns true if nobody holds the other end of its socket any more.
    pub(crate) fn has_hung_up(&self) -> bool {
        message::has_hung_up(self.socket.as_fd())
    }

    fn reply(&self, timeout: Duration) -> Result<ZygoteReply, StepError> {
        if !message::is_readable(self.socket.as_fd(), timeout).step("wait for the zygote")? {
            return Err(failed("wait for the zygote", "no answer in time".into()));
        }
        match message::receive(&self.socket).step("hear the zygote")? {
            Some((reply, _)) => Ok(reply),
            None => Err(failed("hear the zygote", "it ended; its last words are above".into())),
        }
    }
}

fn failed(step: &str, reason: String) -> StepError {
    StepError { step: step.into(), source: std::io::Error::other(reason) }
}

/// Runs in the child; returns only when something failed.
fn become_zygote(setup: &Setup, map: IdMap, sources: &BaseSources, socket: &OwnedFd, mut go: UnixStream) -> StepError {
    let mut prepare = || -> Result<(), StepError> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
        go.read_exact(&mut [0]).step("wait for the id maps")?;
        if map != IdMap::Single {
            shell::become_root_inside()?;
        }
        mounts::enter_base(sources, &setup.programs)?;
        rustix::system::sethostname(b"sandbox").step("set the host name")?;
        sys::reset_signals().step("reset the signals")?;
        // Changing ids cleared it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
        let devnull = std::fs::File::open("/dev/null").step("open /dev/null")?;
        rustix::stdio::dup2_stdin(&devnull).step("replace stdin")
    };
    match prepare().and_then(|()| exec(setup, socket)) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn exec(setup: &Setup, socket: &OwnedFd) -> Result<std::convert::Infallible, StepError> {
    let text = |text: &str| CString::new(text).step("a path with a zero byte");
    let argv = setup.argv.iter().map(|part| text(part)).collect::<Result<Vec<_>, _>>()?;
    let argv: Vec<_> = argv.iter().map(CString::as_c_str).collect();
    let program = argv.first().ok_or_else(|| failed("find the zygote's program", "none was given".into()))?;
    let environment = setup.environment.iter().map(|(name, value)| text(&format!("{name}={value}")));
    let environment = environment.collect::<Result<Vec<_>, _>>()?;
    let environment: Vec<_> = environment.iter().map(CString::as_c_str).collect();
    sys::keep_capabilities_on_exec().step("keep the capabilities")?;
    sys::close_on_exec_from(SOCKET_FD).step("close the warden's descriptors")?;
    // The exec closes the copy that errors are still reported on; the one at the agreed place stays.
    sys::place(socket.as_fd(), SOCKET_FD).step("place the socket")?;
    Err(sys::exec(program, &argv, &environment)).step(format!("run {} of the template", program.to_string_lossy()))
}
