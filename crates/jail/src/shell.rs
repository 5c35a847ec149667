//! Making a shell: the namespaces, the mounts and the tiny init of one sandbox.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};
use serde::{Deserialize, Serialize};

use crate::message::{self, Limits};
use crate::{Step, StepError, landlock, lockdown, mounts, sys};

/// A shell that is ready for a kernel.
pub(crate) struct Shell {
    /// Pid 1 of the shell's pid namespace. Killing it ends everything in the shell.
    pub(crate) init: Pid,
    pub(crate) pidfd: OwnedFd,
    pub(crate) landlock: Option<OwnedFd>,
}

/// What a shell is made from.
pub(crate) struct ShellSources<'a> {
    pub(crate) zygote: BorrowedFd<'a>,
    /// Whether the zygote's user namespace differs from the warden's and must be joined.
    pub(crate) join_user_namespace: bool,
    pub(crate) cgroup_procs: &'a [OwnedFd],
    pub(crate) workspace: OwnedFd,
    pub(crate) limits: &'a Limits,
}

/// What init says when it is done, the ruleset alongside.
#[derive(Serialize, Deserialize)]
enum InitReport {
    Ready,
    Failed(String),
}

/// Sets up a shell; takes about a millisecond, and some more where joining a v1 cgroup has to wait for the kernel.
///
/// An intermediate process joins the cgroup and the zygote's namespaces, so that all its children are born inside; then it makes the new
/// namespaces and, in them, init. Init is the warden's child (CLONE_PARENT): the warden reaps it and its death signal follows the warden.
pub(crate) fn prepare(sources: &ShellSources<'_>) -> Result<Shell, StepError> {
    let (mut pid_receiver, pid_sender) = UnixStream::pair().step("make a pipe")?;
    let (report_receiver, report_sender) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .step("make a socket")?;
    let intermediate = match sys::fork(0).step("fork")? {
        sys::Fork::Parent(pid) => pid,
        sys::Fork::Child => {
            // What goes wrong here goes up as a report, the same way as what goes wrong in init.
            if let Err(error) = become_shell(sources, pid_sender, report_sender.as_fd()) {
                let _lost = message::send(&report_sender, &InitReport::Failed(error.to_string()), &[]);
                sys::exit(1);
            }
            sys::exit(0)
        }
    };
    drop(pid_sender);
    drop(report_sender);
    let mut bytes = [0; 4];
    let announced =
        pid_receiver.set_read_timeout(Some(Duration::from_secs(10))).and_then(|()| pid_receiver.read_exact(&mut bytes));
    let _reaped = waitpid(Some(intermediate), WaitOptions::empty());
    let init = announced.ok().and_then(|()| Pid::from_raw(i32::from_ne_bytes(bytes)));
    let Some(init) = init else {
        return Err(failed(report_receiver.as_fd(), "the shell's process ended early"));
    };
    let pidfd = pidfd_open(init, PidfdFlags::empty()).step("open the shell's init")?;
    match message::receive::<InitReport>(&report_receiver) {
        Ok(Some((InitReport::Ready, descriptors))) => {
            Ok(Shell { init, pidfd, landlock: descriptors.into_iter().next() })
        }
        other => {
            // The warden's reaper takes the body.
            let _ended = pidfd_send_signal(&pidfd, Signal::KILL);
            let reason = match other {
                Ok(Some((InitReport::Failed(reason), _))) => reason,
                _ => "the shell's init ended early".to_owned(),
            };
            Err(StepError { step: "prepare the shell".into(), source: std::io::Error::other(reason) })
        }
    }
}

fn failed(report: BorrowedFd<'_>, otherwise: &str) -> StepError {
    let reason = match message::receive::<InitReport>(report) {
        Ok(Some((InitReport::Failed(reason), _))) => reason,
        _ => otherwise.to_owned(),
    };
    StepError { step: "prepare the shell".into(), source: std::io::Error::other(reason) }
}

fn become_shell(
    sources: &ShellSources<'_>,
    mut pid_sender: UnixStream,
    report: BorrowedFd<'_>,
) -> Result<(), StepError> {
    for procs in sources.cgroup_procs {
        rustix::io::write(procs, b"0").step("join the cgroup")?;
    }
    let user = if sources.join_user_namespace { libc::CLONE_NEWUSER } else { 0 };
    sys::setns(sources.zygote, user | libc::CLONE_NEWNS).step("join the zygote's namespaces")?;
    if sources.join_user_namespace {
        become_root_inside()?;
    }
    sys::unshare(
        libc::CLONE_NEWNS
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP,
    )
    .step("make the shell's namespaces")?;
    match sys::fork(libc::CLONE_PARENT).step("fork init")? {
        sys::Fork::Parent(init) => {
            pid_sender.write_all(&init.as_raw_nonzero().get().to_ne_bytes()).step("announce init")
        }
        sys::Fork::Child => {
            drop(pid_sender);
            match become_init(sources) {
                Ok(ruleset) => {
                    let descriptors: Vec<_> = ruleset.iter().map(AsFd::as_fd).collect();
                    let sent = message::send(report, &InitReport::Ready, &descriptors);
                    if sent.is_err() || settle().is_err() {
                        sys::exit(1);
                    }
                    sleep_for_ever()
                }
                Err(error) => {
                    let _lost = message::send(report, &InitReport::Failed(error.to_string()), &[]);
                    sys::exit(1)
                }
            }
        }
    }
}

/// After joining a user namespace all capabilities are there, but the ids are still the host's and own nothing inside.
pub(crate) fn become_root_inside() -> Result<(), StepError> {
    let (root_user, root_group) = (rustix::process::Uid::ROOT, rustix::process::Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).step("drop the groups")?;
    rustix::thread::set_thread_res_gid(root_group, root_group, root_group).step("become the namespace's root group")?;
    rustix::thread::set_thread_res_uid(root_user, root_user, root_user).step("become the namespace's root")
}

fn become_init(sources: &ShellSources<'_>) -> Result<Option<OwnedFd>, StepError> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
    sys::reset_signals().step("reset the signals")?;
    sys::ignore_children();
    // Changing ids made init undumpable; the zygote, which is to join its namespaces, could not look at it then.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).step("let the zygote join")?;
    rustix::process::setsid().step("lead a session of its own")?;
    mounts::enter_shell(&sources.workspace, sources.limits)?;
    rustix::system::sethostname(b"sandbox").step("set the host name")?;
    landlock::ruleset().step("make the Landlock ruleset")
}

/// Waits for nothing. It ends if that is refused: an init that goes round and round would eat the processor time of its sandbox.
fn sleep_for_ever() -> ! {
    use rustix::thread::{ClockId, NanosleepRelativeResult as Slept, clock_nanosleep_relative};
    let long = rustix::fs::Timespec { tv_sec: 1 << 30, tv_nsec: 0 };
    loop {
        match clock_nanosleep_relative(ClockId::Monotonic, &long) {
            Slept::Ok | Slept::Interrupted(_) => {}
            Slept::Err(_) => sys::exit(1),
        }
    }
}

/// From here on init holds nothing: no descriptors, no capabilities.
fn settle() -> Result<(), StepError> {
    let none = rustix::thread::CapabilitySet::empty();
    let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).step("drop the capabilities")?;
    rustix::thread::set_no_new_privs(true).step("gain no privileges")?;
    // Where ids cannot tell init and the kernel apart, user code might get at init's memory: it shall gain nothing there.
    for filter in lockdown::silent_filters()? {
        sys::install_filter(&filter).step("apply seccomp to init")?;
    }
    sys::close_from(0).step("close all descriptors")
}
