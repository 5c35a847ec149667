//! Starting the zygote.

use std::ffi::CString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use aludel_ignore::Ignore;
use rustix::process::Signal;
use serde::Serialize;

use crate::fork_server::{ForkReply, ForkServer};
use crate::idmap::IdMap;
use crate::lockdown::Filters;
use crate::message::{self, Setup};
use crate::mounts::{self, BaseSources};
use crate::{Step, StepError, lockdown, namespaces, sys};

/// Limit of the imports, on a slow machine with cold caches.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The descriptor on which the zygote finds its socket.
const SOCKET_FD: i32 = 3;

/// Objects that Linux counts for each user, by their names in `/proc/sys/user`, of which sandboxes for services make some, with the figures
/// for one user on a host of little memory.
const COUNTED: [(&str, u64); 2] = [("inotify_instances", 128), ("inotify_watches", 8192)];
/// Part of them that one sandbox may have: a quarter.
const SHARE: u64 = 4;
/// The highest figure of Linux.
const NO_LIMIT: u64 = i32::MAX as u64;
/// Such objects of which there are none in sandboxes.
const UNUSED: [&str; 4] = ["user_namespaces", "time_namespaces", "fanotify_groups", "fanotify_marks"];

/// The first message to the zygote.
#[derive(Serialize)]
struct Hello {
    /// The seccomp filters that [`lockdown::Argument::Filter`] refers to.
    filters: Filters,
    /// The steps that it goes through itself.
    lockdown: Vec<lockdown::LockdownStep>,
}

/// Starts the zygote and waits until it has imported everything.
pub(crate) fn start(setup: &Setup, map: IdMap) -> Result<ForkServer, StepError> {
    let sources = BaseSources::open(&setup.root)?;
    let limits = limits_of_user();
    let (socket, theirs) = message::socket_pair().step("make the zygote's socket")?;
    let (mut go_sender, go_receiver) = UnixStream::pair().step("make a pipe")?;
    let user = if map == IdMap::Single { 0 } else { libc::CLONE_NEWUSER };
    let namespaces = user | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let forked = match map.namespace_owner() {
        Some(owner) => fork_as(owner, namespaces),
        None => sys::fork(namespaces).step("make the zygote's namespaces"),
    };
    let pid = match forked? {
        sys::Fork::Parent(pid) => pid,
        sys::Fork::Child => {
            drop(go_sender);
            let error = become_zygote(setup, map, &limits, &sources, &theirs, go_receiver);
            message::send(&theirs, &ForkReply::Failed(0, error.to_string()), &[]).ignore("the other end may be gone");
            sys::exit(1)
        }
    };
    drop(theirs);
    if map != IdMap::Single {
        map.write(pid).step("write the zygote's id maps")?;
    }
    go_sender.write_all(b"g").step("start the zygote")?;
    let zygote = ForkServer::new("zygote", pid, socket)?;
    zygote.greet(&Hello { filters: Filters::compile()?, lockdown: lockdown::inherited() }, START_TIMEOUT)?;
    Ok(zygote)
}

/// Forks with a user namespace that belongs to this user of the host's. Linux counts for its owner what is counted of each user in the
/// namespace, and for root that would be what the host's own programs need.
fn fork_as(owner: u32, namespaces: i32) -> Result<sys::Fork, StepError> {
    namespaces::act_as(owner).step("make the zygote's namespaces as their owner")?;
    let forked = sys::fork(namespaces).step("make the zygote's namespaces");
    if !matches!(forked, Ok(sys::Fork::Child)) {
        namespaces::act_as(0).step("be root again")?;
        // Changing ids cleared it. A parent that ended meanwhile has closed the control socket.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the parent")?;
    }
    forked
}

/// Runs in the child; returns only when something failed.
fn become_zygote(
    setup: &Setup,
    map: IdMap,
    limits: &[(&str, u64)],
    sources: &BaseSources,
    socket: &OwnedFd,
    mut go: UnixStream,
) -> StepError {
    let mut prepare = || -> Result<(), StepError> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
        go.read_exact(&mut [0]).step("wait for the id maps")?;
        if map != IdMap::Single {
            namespaces::become_namespace_root()?;
            for (name, most) in limits {
                // A container may have them read-only. An older Linux lacks some, and the filter refuses their calls.
                std::fs::write(limit_of(name), most.to_string()).ignore("the owner of the namespace has limits, too");
            }
        }
        mounts::enter_base(sources, &setup.scripts)?;
        rustix::system::sethostname(b"sandbox").step("set the host name")?;
        sys::reset_signals().step("reset the signals")?;
        // Changing ids cleared the signal.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
        let devnull = std::fs::File::open("/dev/null").step("open /dev/null")?;
        rustix::stdio::dup2_stdin(&devnull).step("replace stdin")
    };
    match prepare().and_then(|()| exec(setup, socket)) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// Limits for what Linux counts of each user of the zygote's namespace, and so of each sandbox, read before there is that namespace.
fn limits_of_user() -> Vec<(&'static str, u64)> {
    let of_host = |name| std::fs::read_to_string(limit_of(name)).ok().and_then(|most| most.trim().parse::<u64>().ok());
    let counted = COUNTED.into_iter().map(|(name, default)| {
        // In a container it is often the highest figure, and the one that counts cannot be seen.
        (name, of_host(name).filter(|most| *most < NO_LIMIT).unwrap_or(default) / SHARE)
    });
    counted.chain(UNUSED.map(|name| (name, 0))).collect()
}

fn limit_of(name: &str) -> String {
    format!("/proc/sys/user/max_{name}")
}

fn exec(setup: &Setup, socket: &OwnedFd) -> Result<std::convert::Infallible, StepError> {
    let text = |text: &str| CString::new(text).step("a path with a zero byte");
    let argv = setup.argv.iter().map(|part| text(part)).collect::<Result<Vec<_>, _>>()?;
    let argv: Vec<_> = argv.iter().map(CString::as_c_str).collect();
    let program = argv.first().ok_or_else(|| StepError {
        step: "find the zygote's program".into(),
        source: std::io::ErrorKind::NotFound.into(),
    })?;
    let environment = setup.environment.iter().map(|(name, value)| text(&format!("{name}={value}")));
    let environment = environment.collect::<Result<Vec<_>, _>>()?;
    let environment: Vec<_> = environment.iter().map(CString::as_c_str).collect();
    sys::keep_capabilities_on_exec().step("keep the capabilities")?;
    sys::close_on_exec_from(SOCKET_FD).step("close the warden's descriptors")?;
    // The exec closes this copy, on which errors are reported until then; the one at the fixed number stays open.
    sys::place(socket.as_fd(), SOCKET_FD).step("place the socket")?;
    Err(sys::exec(program, &argv, &environment)).step(format!("run {} of the template", program.to_string_lossy()))
}
