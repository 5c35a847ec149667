//! The namespaces of one sandbox, with its mounts and its tiny init.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use aludel_ignore::Ignore;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::message::{self, JailLimits, Profile};
use crate::mounts::TerminalSources;
use crate::{Step, StepError, flock, landlock, lockdown, mounts, ports, sys};

/// The longest wait for a process to be made.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A sandbox's namespaces, ready for processes.
pub(crate) struct SandboxNamespaces {
    /// Pid 1 of the pid namespace. Killing it ends every process in it.
    pub(crate) init: Pid,
    pub(crate) pidfd: OwnedFd,
    /// The socket on which init takes requests for locks.
    pub(crate) socket: Rc<OwnedFd>,
    pub(crate) landlock: Option<OwnedFd>,
}

/// Namespaces that belong to no sandbox yet, with their waiting init. Dropping them ends init.
pub(crate) struct SpareNamespaces {
    init: Pid,
    /// Taken on assignment to a sandbox.
    pidfd: Option<OwnedFd>,
    socket: Rc<OwnedFd>,
}

/// The assignment of a waiting init to a sandbox. Descriptors: the workspace, with [`Profile::Services`] the terminals and `/dev/tty`, then
/// the membership files of the cgroup.
#[derive(Serialize, Deserialize)]
struct InitAssignment {
    limits: JailLimits,
    profile: Profile,
    /// The id of its programs' user and group.
    user: u32,
}

/// Init's report when it is done, with the ruleset.
#[derive(Serialize, Deserialize)]
enum InitReport {
    Ready,
    Failed(String),
}

impl SpareNamespaces {
    /// Makes namespaces and their init, in a millisecond or two.
    ///
    /// An intermediate process joins the zygote's namespaces, so that its children start inside; then it makes the new namespaces and forks
    /// init in them. Init is the warden's child (CLONE_PARENT): the warden reaps it, and it gets a signal when the warden dies.
    pub(crate) fn make(zygote: BorrowedFd<'_>, join_user_namespace: bool) -> Result<Self, StepError> {
        let (mut pid_receiver, pid_sender) = UnixStream::pair().step("make a pipe")?;
        let (socket, theirs) = message::socket_pair().step("make a socket")?;
        let intermediate = match sys::fork(0).step("fork")? {
            sys::Fork::Parent(pid) => pid,
            sys::Fork::Child => {
                drop(socket);
                // A failure here is reported on the same socket as one in init.
                if let Err(error) = make_namespaces(zygote, join_user_namespace, pid_sender, &theirs) {
                    message::send(&theirs, &InitReport::Failed(error.to_string()), &[])
                        .ignore("the other end may be gone");
                    sys::exit(1);
                }
                sys::exit(0)
            }
        };
        drop(pid_sender);
        drop(theirs);
        let mut bytes = [0; 4];
        let announced = pid_receiver.set_read_timeout(Some(TIMEOUT)).and_then(|()| pid_receiver.read_exact(&mut bytes));
        waitpid(Some(intermediate), WaitOptions::empty()).ignore("its status does not matter");
        let init = announced.ok().and_then(|()| Pid::from_raw(i32::from_ne_bytes(bytes)));
        let Some(init) = init else { return Err(reported_failure(&socket)) };
        let pidfd = pidfd_open(init, PidfdFlags::empty()).step("open the sandbox's init")?;
        Ok(Self { init, pidfd: Some(pidfd), socket: Rc::new(socket) })
    }

    /// Its init, if it lives.
    pub(crate) fn init(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd).filter(|init| !message::has_ended(*init))
    }

    /// Assigns them to a sandbox.
    pub(crate) fn assign_to_sandbox(
        mut self,
        cgroup: &[OwnedFd],
        workspace: &OwnedFd,
        terminals: Option<&TerminalSources>,
        limits: JailLimits,
        user: u32,
    ) -> Result<SandboxNamespaces, StepError> {
        let profile = if terminals.is_some() { Profile::Services } else { Profile::Data };
        let terminals = terminals.into_iter().flat_map(|sources| [&sources.terminals, &sources.own]);
        let descriptors: Vec<_> = [workspace].into_iter().chain(terminals).chain(cgroup).map(AsFd::as_fd).collect();
        message::send(&self.socket, &InitAssignment { limits, profile, user }, &descriptors)
            .step("prepare the namespaces")?;
        match message::receive(&self.socket) {
            Ok(Some((InitReport::Ready, descriptors))) => match self.pidfd.take() {
                Some(pidfd) => {
                    let (init, socket) = (self.init, Rc::clone(&self.socket));
                    Ok(SandboxNamespaces { init, pidfd, socket, landlock: descriptors.into_iter().next() })
                }
                None => Err(failed("it was taken")),
            },
            Ok(Some((InitReport::Failed(reason), _))) => Err(failed(&reason)),
            Ok(None) | Err(_) => Err(failed("the sandbox's init ended early")),
        }
    }
}

impl Drop for SpareNamespaces {
    fn drop(&mut self) {
        // The warden's SIGCHLD handler reaps it.
        if let Some(pidfd) = &self.pidfd {
            pidfd_send_signal(pidfd, Signal::KILL).ignore("it may have ended");
        }
    }
}

fn reported_failure(socket: &OwnedFd) -> StepError {
    match message::receive::<InitReport>(socket) {
        Ok(Some((InitReport::Failed(reason), _))) => failed(&reason),
        _ => failed("the process that makes the namespaces ended early"),
    }
}

fn failed(reason: &str) -> StepError {
    StepError { step: "prepare the namespaces".into(), source: std::io::Error::other(reason.to_owned()) }
}

/// Runs in the intermediate process: makes the namespaces and forks init in them.
fn make_namespaces(
    zygote: BorrowedFd<'_>,
    join_user_namespace: bool,
    mut pid_sender: UnixStream,
    socket: &OwnedFd,
) -> Result<(), StepError> {
    let user = if join_user_namespace { libc::CLONE_NEWUSER } else { 0 };
    sys::setns(zygote, user | libc::CLONE_NEWNS).step("join the zygote's namespaces")?;
    if join_user_namespace {
        become_namespace_root()?;
    }
    let namespaces =
        libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    sys::unshare(namespaces).step("make the namespaces")?;
    // Changing ids made the process, and so init, undumpable; the zygote could not join init's namespaces then.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).step("let the zygote join")?;
    match sys::fork(libc::CLONE_PARENT).step("fork init")? {
        sys::Fork::Parent(init) => {
            pid_sender.write_all(&init.as_raw_nonzero().get().to_ne_bytes()).step("announce init")
        }
        sys::Fork::Child => {
            drop(pid_sender);
            match prepare_init(socket) {
                Ok(ruleset) => {
                    let descriptors: Vec<_> = ruleset.iter().map(AsFd::as_fd).collect();
                    let sent = message::send(socket, &InitReport::Ready, &descriptors);
                    if sent.is_err() || drop_privileges(socket).is_err() {
                        sys::exit(1);
                    }
                    flock::serve(socket.as_fd())
                }
                Err(error) => {
                    message::send(socket, &InitReport::Failed(error.to_string()), &[])
                        .ignore("the other end may be gone");
                    sys::exit(1)
                }
            }
        }
    }
}

/// After joining a user namespace the process has all capabilities, but its ids are still the host's, which own nothing inside.
pub(crate) fn become_namespace_root() -> Result<(), StepError> {
    let (root_user, root_group) = (rustix::process::Uid::ROOT, rustix::process::Gid::ROOT);
    rustix::thread::set_thread_groups(&[]).step("drop the groups")?;
    rustix::thread::set_thread_res_gid(root_group, root_group, root_group).step("become the namespace's root group")?;
    rustix::thread::set_thread_res_uid(root_user, root_user, root_user).step("become the namespace's root")
}

/// Changes the effective user, and keeps all capabilities and this process's memory as they were.
pub(crate) fn act_as(user: u32) -> std::io::Result<()> {
    let before = rustix::thread::capabilities(None)?;
    let user = rustix::process::Uid::from_raw(user);
    let real = rustix::process::getuid();
    rustix::thread::set_thread_res_uid(real, user, real)?;
    // Another user than root has none in effect at first, but may have all that are permitted.
    rustix::thread::set_capabilities(None, before)?;
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?)
}

/// Runs in init: waits for its sandbox and sets it up. Returns the Landlock ruleset.
fn prepare_init(socket: &OwnedFd) -> Result<Option<OwnedFd>, StepError> {
    // Init may wait for long. With its copies of the warden's descriptors, sockets that the warden closes would stay open; copies of other
    // sandboxes' listeners would wake the warden without end.
    sys::close_all_but(socket.as_fd()).step("close the warden's descriptors")?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
    sys::reset_signals().step("reset the signals")?;
    sys::ignore_children();
    rustix::process::setsid().step("lead a session of its own")?;
    rustix::system::sethostname(b"sandbox").step("set the host name")?;
    let Some((InitAssignment { limits, profile, user }, descriptors)) =
        message::receive(socket).step("wait for a sandbox")?
    else {
        return Err(failed("it is not needed any more"));
    };
    let mut descriptors = descriptors.into_iter();
    let mut next = |what| descriptors.next().ok_or_else(|| failed(what));
    let workspace = next("there is no workspace")?;
    let terminals = match profile {
        Profile::Data => None,
        Profile::Services => {
            Some(TerminalSources { terminals: next("there are no terminals")?, own: next("there is no /dev/tty")? })
        }
    };
    for tree in descriptors {
        rustix::io::write(&tree, b"0").step("join the cgroup")?;
    }
    // Not earlier: the root of the cgroup namespace is the group that init is in at this moment.
    sys::unshare(libc::CLONE_NEWCGROUP).step("make the namespace of cgroups")?;
    if profile == Profile::Services {
        // Before /proc shows processes only.
        ports::start_loopback()?;
    }
    mounts::enter_shell(&workspace, terminals.as_ref(), &limits, user)?;
    landlock::ruleset(profile).step("make the Landlock ruleset")
}

/// Drops the descriptors but this one, and the capabilities but the one for copies of programs' descriptors, whose pidfds the warden sends.
fn drop_privileges(socket: &OwnedFd) -> Result<(), StepError> {
    let (none, ptrace) = (CapabilitySet::empty(), CapabilitySet::SYS_PTRACE);
    let sets = CapabilitySets { effective: ptrace, permitted: ptrace, inheritable: none };
    rustix::thread::set_capabilities(None, sets).step("drop the capabilities")?;
    rustix::thread::set_no_new_privs(true).step("gain no privileges")?;
    sys::close_all_but(socket.as_fd()).step("close all other descriptors")?;
    // Without separate ids for init and the kernel, only that capability keeps programs from init's memory. The filter leaves them little
    // to gain.
    sys::install_filter(&lockdown::init_filter()?).step("apply seccomp to init")
}
