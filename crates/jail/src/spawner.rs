//! The spawner: a small process in the zygote's namespaces that forks commands. A fork of it copies far less than a fork of the zygote, and
//! a command needs no interpreter.

use std::ffi::{CStr, CString};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use aludel_ignore::Ignore;
use rustix::process::{DumpableBehavior, Signal};
use serde::{Deserialize, Serialize};

use crate::fork_server::{ForkReply, ForkRequest, ForkServer, NamespacesReady};
use crate::idmap::IdMap;
use crate::lockdown::{self, ChildDescriptors, Descriptor, Filters};
use crate::message::{self, Setup};
use crate::sandbox::OOM_SCORE_ADJ;
use crate::{Step, StepError, namespaces, sys};

/// Limit of its start.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of the message with a child's command; Linux takes 2 MiB of arguments and variables.
const MAX_COMMAND: usize = 32 << 20;
/// Path of programs where the command's environment has none.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The message with a child's command, after its length in four bytes, big-endian.
#[derive(Deserialize)]
struct RunFrame {
    command: Command,
}

#[derive(Deserialize)]
struct Command {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    directory: String,
}

/// The child's words, framed like those to it.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ChildFrame {
    /// The process id in the sandbox. The exec comes next and closes the pipes.
    Started {
        number: u32,
    },
    Failed {
        reason: String,
    },
}

/// Starts the spawner and waits until it is ready.
pub(crate) fn start(setup: &Setup, map: IdMap, zygote: BorrowedFd<'_>) -> Result<ForkServer, StepError> {
    let (socket, theirs) = message::socket_pair().step("make the spawner's socket")?;
    match sys::fork(0).step("fork the spawner")? {
        sys::Fork::Parent(pid) => {
            drop(theirs);
            let spawner = ForkServer::new("spawner", pid, socket)?;
            spawner.greet(&(), START_TIMEOUT)?;
            Ok(spawner)
        }
        sys::Fork::Child => {
            let served = prepare(map, zygote, &theirs).and_then(|filters| serve(setup, &theirs, &filters));
            if let Err(error) = served {
                message::send(&theirs, &ForkReply::Failed(0, error.to_string()), &[])
                    .ignore("the other end may be gone");
            }
            sys::exit(1)
        }
    }
}

/// Joins the zygote's namespaces, and sets everything that commands inherit.
fn prepare(map: IdMap, zygote: BorrowedFd<'_>, socket: &OwnedFd) -> Result<Filters, StepError> {
    let user = if map == IdMap::Single { 0 } else { libc::CLONE_NEWUSER };
    let namespaces = user | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    sys::setns(zygote, namespaces).step("join the zygote's namespaces")?;
    if map != IdMap::Single {
        namespaces::become_namespace_root()?;
    }
    sys::close_all_but(socket.as_fd()).step("close the warden's descriptors")?;
    sys::reset_signals().step("reset the signals")?;
    rustix::thread::set_name(c"aludel-spawner").step("take a name")?;
    // After the ids: changing them clears the signal and makes the process undumpable, and then its children could not write to their own
    // /proc.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the warden")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).step("own its /proc/self")?;
    let filters = Filters::compile()?;
    lockdown::run(&lockdown::inherited(), &ChildDescriptors::default(), &filters, |_| Ok(()))?;
    Ok(filters)
}

/// Forks a command for each request, until the warden hangs up.
fn serve(setup: &Setup, socket: &OwnedFd, filters: &Filters) -> Result<(), StepError> {
    // Occupies the low numbers, so that no received descriptor has a number that the lockdown uses.
    let mut taken = Vec::new();
    while taken.last().is_none_or(|last: &std::fs::File| last.as_raw_fd() < lockdown::FIRST_FREE_FD) {
        taken.push(std::fs::File::open("/dev/null").step("open /dev/null")?);
    }
    let _hello: Option<((), _)> = message::receive(socket).step("hear the warden")?;
    message::send(socket, &ForkReply::Ready, &[]).step("tell the warden")?;
    while let Some((request, descriptors)) = message::receive::<ForkRequest>(socket).step("hear the warden")? {
        let number = request.number;
        let reply = match fork(&request, descriptors, setup, filters) {
            Ok(pid) => ForkReply::Forked(number, pid),
            Err(error) => ForkReply::Failed(number, error.to_string()),
        };
        message::send(socket, &reply, &[]).step("tell the warden")?;
    }
    Ok(())
}

/// Forks one command into the process namespace of its sandbox, as a child of the warden.
fn fork(request: &ForkRequest, descriptors: Vec<OwnedFd>, setup: &Setup, filters: &Filters) -> Result<i32, StepError> {
    let descriptors = ChildDescriptors::of_command(descriptors);
    sys::setns(descriptors.get(Descriptor::Init)?, libc::CLONE_NEWPID).step("join the process namespace")?;
    match sys::fork(libc::CLONE_PARENT).step("fork")? {
        sys::Fork::Parent(pid) => Ok(pid.as_raw_nonzero().get()),
        sys::Fork::Child => become_command(request, descriptors, setup, filters),
    }
}

/// Runs in the child. No code of the user runs before the last step of the lockdown.
fn become_command(request: &ForkRequest, mut descriptors: ChildDescriptors, setup: &Setup, filters: &Filters) -> ! {
    let mut start = || -> Result<std::convert::Infallible, StepError> {
        // When the host is out of memory, sandboxes are killed first, however small their processes are.
        std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ).step("rank the process")?;
        let ready = message::receive::<NamespacesReady>(descriptors.get(Descriptor::Warden)?)
            .step("wait for the namespaces")?;
        let (NamespacesReady, late) = ready.ok_or_else(|| failed("there are none"))?;
        descriptors.add_late(late, request.landlock);
        let has_listener = lockdown::run(&request.lockdown, &descriptors, filters, |listener| {
            // It is only for the warden; this process must not keep it.
            let listener = sys::take(listener);
            let sent = message::send(sys::descriptor(lockdown::WARDEN_FD), &"ready", &[listener.as_fd()]);
            sent.step("hand the listener over")
        })?;
        if !has_listener {
            message::send(sys::descriptor(lockdown::WARDEN_FD), &"ready", &[]).step("greet the warden")?;
        }
        run_command(setup)
    };
    let reason = match start() {
        Ok(never) => match never {},
        Err(StepError { step, source }) => format!("{step}: {}", words(&source)),
    };
    // The pipe has its old number, or its new one once all others are closed.
    let failure = ChildFrame::Failed { reason };
    let sent = descriptors.get(Descriptor::ToHost).is_ok_and(|host| send(host, &failure).is_ok());
    if !sent {
        send(sys::descriptor(lockdown::TO_HOST_FD), &failure).ignore("the other end may be gone");
    }
    sys::exit(1)
}

/// Receives the command, and executes it.
fn run_command(setup: &Setup) -> Result<std::convert::Infallible, StepError> {
    let RunFrame { command: Command { arguments, environment, directory } } =
        receive(sys::descriptor(lockdown::FROM_HOST_FD)).step("hear the command")?;
    std::env::set_current_dir(&directory).step(directory)?;
    let mut variables = setup.environment.clone();
    for (name, value) in environment {
        variables.retain(|(known, _)| *known != name);
        variables.push((name, value));
    }
    let program = arguments.first().ok_or_else(|| failed("there is no command"))?;
    let argv = arguments.iter().map(|argument| text(argument)).collect::<Result<Vec<_>, _>>()?;
    let environment = variables.iter().map(|(name, value)| text(&format!("{name}={value}")));
    let environment = environment.collect::<Result<Vec<_>, _>>()?;
    let path = variables.iter().find(|(name, _)| name == "PATH").map_or(DEFAULT_PATH, |(_, path)| path);
    let started = ChildFrame::Started { number: std::process::id() };
    send(sys::descriptor(lockdown::TO_HOST_FD), &started).step("say that it starts")?;
    Err(exec(program, path, &borrowed(&argv), &borrowed(&environment))).step(program.clone())
}

/// Replaces the process by a program found in the path; returns only an error.
fn exec(program: &str, path: &str, arguments: &[&CStr], environment: &[&CStr]) -> io::Error {
    let at = |program: &Path| match CString::new(program.as_os_str().as_encoded_bytes()) {
        Ok(program) => sys::exec(&program, arguments, environment),
        Err(error) => error.into(),
    };
    if program.contains('/') {
        return at(Path::new(program));
    }
    // As in a shell, a program that exists and cannot run takes precedence over one that does not exist.
    let mut failure = io::Error::from_raw_os_error(libc::ENOENT);
    for directory in path.split(':') {
        let error = at(&Path::new(directory).join(program));
        if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
            && failure.kind() == io::ErrorKind::NotFound
        {
            failure = error;
        }
    }
    failure
}

/// The error in the system's words, without its number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or_default().to_owned()
}

fn borrowed(texts: &[CString]) -> Vec<&CStr> {
    texts.iter().map(CString::as_c_str).collect()
}

fn text(text: &str) -> Result<CString, StepError> {
    CString::new(text).step("a text with a zero byte")
}

fn receive<T: for<'a> Deserialize<'a>>(host: BorrowedFd<'_>) -> io::Result<T> {
    let mut stream = PipeReader::from(host.try_clone_to_owned()?);
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MAX_COMMAND {
        return Err(io::Error::other(format!("a command of {length} bytes is too long")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn send(host: BorrowedFd<'_>, frame: &ChildFrame) -> io::Result<()> {
    let bytes = serde_json::to_vec(frame)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    let mut stream = PipeWriter::from(host.try_clone_to_owned()?);
    stream.write_all(&[length.to_be_bytes().as_slice(), &bytes].concat())
}

fn failed(reason: &str) -> StepError {
    StepError { step: "start a command".into(), source: io::Error::other(reason.to_owned()) }
}
