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
    let (socket, theirs) = message::socket_pair().step("make the zygote's socket")?;
    let (mut go_sender, go_receiver) = UnixStream::pair().step("make a pipe")?;
    let user = if map == IdMap::Single { 0 } else { libc::CLONE_NEWUSER };
    let namespaces = user | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let pid = match sys::fork(namespaces).step("make the zygote's namespaces")? {
        sys::Fork::Parent(pid) => pid,
        sys::Fork::Child => {
            drop(go_sender);
            let error = become_zygote(setup, map, &sources, &theirs, go_receiver);
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

/// Runs in the child; returns only when something failed.
fn become_zygote(setup: &Setup, map: IdMap, sources: &BaseSources, socket: &OwnedFd, mut go: UnixStream) -> StepError {
    let mut prepare = || -> Result<(), StepError> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
        go.read_exact(&mut [0]).step("wait for the id maps")?;
        if map != IdMap::Single {
            namespaces::become_namespace_root()?;
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
