//! Start of the warden: the running executable starts itself again under another name.
//!
//! A fresh exec leaves nothing of the parent's memory, keys included, in the warden and in what it forks. A program that links this crate
//! needs no code for it: a constructor that runs before `main` checks the name before anything else and, for a warden, never returns. (runc
//! enters its namespaces the same way.)

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aludel_ignore::Ignore;
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, waitpid};
use serde::de::DeserializeOwned;

use crate::cgroup::Hierarchy;
use crate::idmap::IdMap;
use crate::message::{self, NumberedRequest, Setup, WardenMessage};
use crate::{Step, StepError, sweep, sys, warden};

/// The name under which the executable is a warden.
const NAME: &str = "aludel-jail";
/// Descriptor of the warden's control socket.
const CONTROL_FD: i32 = 3;
/// Open files that this process must be allowed: a sandbox's usual limit, which it cannot get from less.
const MIN_OPEN_FILES: u64 = 1024;
/// Time in which a warden ends that has many sandboxes to remove.
const END_TIMEOUT: Duration = Duration::from_secs(30);
/// Descriptor of the instance's lock, which the warden holds until everything is removed.
const LOCK_FD: i32 = 4;

/// A running warden. Dropping it closes the control socket, upon which the warden removes everything and ends.
#[derive(Debug)]
pub struct WardenProcess {
    control: OwnedFd,
    child: Mutex<Child>,
    log: PathBuf,
}

/// Failure to start a warden.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WardenError {
    /// A file or process could not be made.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The warden started and found that it cannot work here.
    #[error("{reason}{}", if log.is_empty() { String::new() } else { format!("\n{log}") })]
    Unusable {
        /// The failed step and its error.
        reason: String,
        /// The end of the warden's and the zygote's log.
        log: String,
    },
}

impl WardenProcess {
    /// Starts a warden and its zygote, and blocks until it is ready, as long as the template's imports take. Raises this process's limit of
    /// open files to the maximum. From then on only the warden holds the instance's lock.
    pub fn spawn(setup: &Setup, lock: File) -> Result<(Self, WardenMessage), WardenError> {
        // The linker keeps the constructor only if something refers to it.
        std::hint::black_box(CONSTRUCTOR);
        allow_many_descriptors()?;
        let (control, theirs) = message::socket_pair().step("make the warden's socket")?;
        let log = setup.instance.join("log");
        let log_file = File::create(&log).step(format!("make {}", log.display()))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file);
        // In its own process group, so that Ctrl-C goes only to aludel, which interrupts the program and keeps the sandbox.
        command.process_group(0);
        // SAFETY: between fork and exec only dup2 and fcntl run, on descriptors that live until spawn returns.
        // JUSTIFICATION: std has no other way to hand over descriptors.
        unsafe {
            command.pre_exec(move || {
                // Duplicated to high numbers first, so that placing one cannot overwrite the other.
                let theirs = rustix::io::fcntl_dupfd_cloexec(&theirs, 10)?;
                let lock = rustix::io::fcntl_dupfd_cloexec(&lock, 10)?;
                sys::place(theirs.as_fd(), CONTROL_FD)?;
                sys::place(lock.as_fd(), LOCK_FD)
            });
        }
        let child = command.spawn().step("start the warden")?;
        // The command still holds the warden's end of the socket and the lock; with them open, the end of the warden would go unnoticed.
        drop(command);
        let warden = Self { control, child: Mutex::new(child), log };
        message::send(&warden.control, setup, &[]).step("greet the warden")?;
        match warden.receive() {
            Ok(Some((reply @ WardenMessage::Ready { .. }, _))) => Ok((warden, reply)),
            Ok(Some((WardenMessage::Unusable { reason }, _))) => Err(warden.unusable(reason)),
            Ok(_) => Err(warden.unusable("the warden ended while starting".into())),
            Err(error) => Err(warden.unusable(format!("the warden does not answer: {error}"))),
        }
    }

    fn unusable(&self, reason: String) -> WardenError {
        self.hang_up();
        self.wait();
        WardenError::Unusable { reason, log: tail(&self.log).unwrap_or_default() }
    }

    /// Sends a request, whose answer [`WardenProcess::receive`] returns. Blocks while the socket's queue is full.
    pub fn send(&self, request: &NumberedRequest, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        message::send(&self.control, request, descriptors)
    }

    /// Sends a request, or fails with [`io::ErrorKind::WouldBlock`] while the socket's queue is full.
    pub fn try_send(&self, request: &NumberedRequest, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        message::try_send(&self.control, request, descriptors)
    }

    /// Waits for the next reply; `None` when the warden has ended. May run in one thread while others send. Some replies have descriptors,
    /// see [`message::WardenRequest`].
    pub fn receive(&self) -> io::Result<Option<(WardenMessage, Vec<OwnedFd>)>> {
        message::receive(&self.control)
    }

    /// Takes the next reply like [`WardenProcess::receive`], or fails with [`io::ErrorKind::WouldBlock`] while there is none.
    pub fn try_receive(&self) -> io::Result<Option<(WardenMessage, Vec<OwnedFd>)>> {
        message::try_receive(&self.control)
    }

    /// Waits for a reply or the end of the warden, at most for this time.
    pub fn wait_for_reply(&self, limit: Duration) -> io::Result<()> {
        message::is_readable(self.control.as_fd(), limit).map(drop)
    }

    /// Makes the warden end and remove everything. [`WardenProcess::receive`] then answers `None`.
    pub fn hang_up(&self) {
        rustix::net::shutdown(&self.control, rustix::net::Shutdown::Both).ignore("the warden may be gone");
    }

    /// Kills the warden and everything below it at once; [`sweep`] removes what they made outside.
    pub fn kill(&self) {
        self.child.lock().kill().ignore("it may have ended");
    }

    /// Waits until the warden has removed everything; call it after [`WardenProcess::hang_up`]. Blocks. A warden that takes longer than
    /// [`END_TIMEOUT`] is killed.
    pub fn wait(&self) {
        let mut child = self.child.lock();
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .is_ok_and(|pidfd| message::is_readable(pidfd.as_fd(), END_TIMEOUT).unwrap_or(false));
        if !ended {
            child.kill().ignore("it may have ended");
        }
        child.wait().ignore("its status does not matter");
    }

    /// The process id of the warden's parent process on the host.
    pub fn pid(&self) -> u32 {
        self.child.lock().id()
    }
}

impl Drop for WardenProcess {
    fn drop(&mut self) {
        self.hang_up();
        self.wait();
    }
}

/// Linux refuses to send descriptors once a user has more in flight than the sender may have open files. Without user ids of their own, the
/// descriptors in flight of sandboxes count as their user's; so this process and the warden get a much higher limit than a sandbox.
fn allow_many_descriptors() -> Result<(), StepError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Some(few) = maximum.filter(|maximum| *maximum < MIN_OPEN_FILES) {
        let error = io::Error::other(format!("at most {few} may be open, and {MIN_OPEN_FILES} are needed"));
        return Err(error).step("raise the limit of open files");
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).step("raise the limit of open files")
}

/// The last lines of a log, bounded.
fn tail(log: &Path) -> io::Result<String> {
    const KEPT_BYTES: u64 = 2000;
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(KEPT_BYTES)))?;
    let mut text = Vec::new();
    file.take(KEPT_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Called by the C library before `main`, in every program that links this crate.
// SAFETY: a function pointer of the type that .init_array entries have; it looks at its arguments and normally returns at once.
// JUSTIFICATION: the only hook that works in every program, tests and users' own binaries included.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(libc::c_int, *const *const libc::c_char, *const *const libc::c_char) = constructor;

extern "C" fn constructor(
    count: libc::c_int,
    arguments: *const *const libc::c_char,
    _environment: *const *const libc::c_char,
) {
    if count < 1 || arguments.is_null() {
        return;
    }
    // JUSTIFICATION: before main, std's own arguments may not be set up. SAFETY: glibc passes main's arguments to constructors, of which
    // there are `count`, each a C string that lives as long as the process.
    let name = unsafe { std::ffi::CStr::from_ptr(*arguments) };
    if name.to_bytes() == NAME.as_bytes() {
        let ended = main();
        if let Err(error) = &ended {
            // The log, which aludel shows.
            rustix::io::write(rustix::stdio::stderr(), format!("{error}\n").as_bytes())
                .ignore("there is no other place");
        }
        sys::exit(i32::from(ended.is_err()));
    }
}

/// The program that the executable is under the name [`NAME`].
fn main() -> Result<(), StepError> {
    sys::ignore_broken_pipes();
    // JUSTIFICATION: descriptors given by number. SAFETY: `WardenProcess::spawn` placed them there and nobody else in this process owns
    // them.
    let (control, lock) = unsafe { (OwnedFd::from_raw_fd(CONTROL_FD), OwnedFd::from_raw_fd(LOCK_FD)) };
    for fd in [&control, &lock] {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).step("mark the descriptors")?;
    }
    let Some(setup) = first_message::<Setup>(&control)? else { return Ok(()) };
    let hierarchy = Hierarchy::detect();
    // Here process ids are still the host's.
    sweep::sweep_groups(&hierarchy.parents());
    let hierarchy = hierarchy.make_room().map(|()| hierarchy);
    let map = IdMap::choose();
    let user = if map == IdMap::Single { libc::CLONE_NEWUSER } else { 0 };
    let (go_receiver, go_sender) = std::os::unix::net::UnixStream::pair().step("make a pipe")?;
    match sys::fork(user | libc::CLONE_NEWPID | libc::CLONE_NEWNS) {
        Ok(sys::Fork::Child) => {
            drop(go_sender);
            (&go_receiver).read_exact(&mut [0]).step("wait for the id maps")?;
            warden::run(control, &setup, map, hierarchy);
            Ok(())
        }
        Ok(sys::Fork::Parent(child)) => {
            drop(control);
            if map == IdMap::Single {
                map.write(child).step("write the id maps")?;
            }
            io::Write::write_all(&mut &go_sender, b"g").step("start the warden")?;
            waitpid(Some(child), WaitOptions::empty()).step("wait for the warden")?;
            Ok(())
        }
        Err(error) => {
            let reason = format!("make the warden's namespaces: {error}; `aludel doctor` tells what this host allows");
            message::send(&control, &WardenMessage::Unusable { reason }, &[]).step("report")
        }
    }
}

fn first_message<T: DeserializeOwned>(control: &OwnedFd) -> Result<Option<T>, StepError> {
    Ok(message::receive(control).step("hear aludel")?.map(|(message, _)| message))
}
