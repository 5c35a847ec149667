//! The warden's loop: requests of aludel, replies of the fork servers, exits of children.

mod flocks;
mod processes;
mod requests;
mod timers;
mod watchers;
mod watches;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aludel_ignore::Ignore;
use rustix::event::epoll;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use self::flocks::Flocks;
use self::timers::LateCheckpoint;
use self::watchers::Watchers;
use self::watches::{EpollSource, EpollWatch};
use crate::cgroup::{self, Hierarchy};
use crate::crowds::{Waiter, Waits};
use crate::foreground::Foreground;
use crate::fork_server::ForkServer;
use crate::freezer::Freezing;
use crate::idmap::IdMap;
use crate::lockdown::RefusalHandling;
use crate::locks::LockCounter;
use crate::message::{self, ExitStatus, FIRST_KERNEL, NumberedRequest, Setup, WardenAnswer, WardenMessage};
use crate::namespaces::SpareNamespaces;
use crate::sandbox::JailSandbox;
use crate::{Step, StepError, landlock, mounts, spawner, sweep, sys, zygote};

/// Directory of the workspaces, within an instance's directory.
pub const WORKSPACES: &str = "workspaces";

/// Epoll token of the control socket.
const CONTROL: u64 = 0;
/// Epoll token of the descriptor for SIGCHLD.
const CHILDREN: u64 = 1;
/// Epoll token of the lock counter's socket.
const LOCKS: u64 = 2;
/// Events taken at once.
const EVENTS: usize = 64;

/// Reason for which no checkpoint is restored.
const NO_CHECKPOINT: &str = "there is no checkpoint that could take over";

/// The role of a child process in its sandbox.
#[derive(Clone, Copy)]
enum Role {
    Init,
    Kernel(u64),
    Command(u64),
}

/// The warden inside of its own process: the state of its loop.
struct WardenServer {
    control: OwnedFd,
    zygote: ForkServer,
    spawner: ForkServer,
    map: IdMap,
    hierarchy: Hierarchy,
    has_landlock: bool,
    refusal: RefusalHandling,
    epoll: OwnedFd,
    sandboxes: HashMap<u64, JailSandbox>,
    /// Directory of the workspaces' mounts.
    workspaces: PathBuf,
    /// Numbers of the requests to close a workspace that is still in use, by workspace.
    workspace_closers: HashMap<u64, Vec<u64>>,
    children: HashMap<Pid, (u64, Role)>,
    /// Processes that make a connection, with their sandboxes.
    connecting: HashMap<Pid, u64>,
    watches: HashMap<u64, EpollWatch>,
    next_watch: u64,
    /// Listeners that reported too much and are paused.
    paused_listeners: Vec<(Instant, u64)>,
    foreground: Foreground,
    /// Checkpoints that recently started cells may have requested.
    late_checkpoints: Vec<LateCheckpoint>,
    /// Programs that wait for locks of files.
    flocks: Flocks,
    /// Programs that wait for watches of files.
    watchers: Watchers,
    /// Sandboxes that are being stopped, each with the number of its request.
    freezing: HashMap<u64, (u64, Freezing)>,
    /// Time of the next count of locks and sockets.
    objects_due: Instant,
    locks: LockCounter,
    /// Its waits, for the process that pauses crowded sandboxes.
    waits: Waits,
    /// That process.
    crowd_watch: Pid,
    /// The namespaces of the next sandbox.
    spare: Option<SpareNamespaces>,
    /// The earliest time at which they may be made.
    spare_due: Instant,
    /// True once it has reported that it makes no more sandboxes, because a fork server has ended.
    is_unusable: bool,
}

/// Runs until aludel closes the control socket or a fork server ends, then removes everything. Runs as pid 1 of its pid namespace.
pub(crate) fn run(control: OwnedFd, setup: &Setup, map: IdMap, hierarchy: io::Result<Hierarchy>) {
    let start = || -> Result<(WardenServer, OwnedFd, Vec<String>), StepError> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the parent")?;
        sys::ignore_broken_pipes();
        let children = sys::child_signals().step("watch the children")?;
        let (hierarchy, mut warnings) = own_group(hierarchy, setup)?;
        mounts::detach_from_host()?;
        mounts::mount_proc()?;
        let has_landlock = landlock::version() > 0;
        if !has_landlock {
            warnings.push("this Linux has no Landlock: mounts and ids alone guard the files".into());
        }
        if map == IdMap::Single {
            warnings.push("all sandboxes share one user id: run as root to give each its own".into());
        }
        let refusal = match (sys::can_listen(), setup.observe) {
            (true, false) => RefusalHandling::Reported,
            (true, true) => RefusalHandling::Observed,
            (false, _) => RefusalHandling::Silent,
        };
        let (flocks, watchers) = (Flocks::default(), Watchers::default());
        if refusal == RefusalHandling::Silent {
            warnings.push("this Linux does not tell which system calls were refused".into());
        } else if !flocks.can_take {
            warnings.push("pidfd_getfd is not allowed here: locks of whole files are not counted".into());
        }
        if refusal == RefusalHandling::Silent || !watchers.can_watch {
            warnings
                .push("files that sandboxes for services share can be watched, which tells of their neighbours".into());
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).step("make an epoll")?;
        let waits = Waits::new()?;
        let locks = LockCounter::start(waits)?;
        let crowd_watch = waits.watch(&hierarchy)?;
        for (fd, token) in [(&control, CONTROL), (&children, CHILDREN), (locks.fd(), LOCKS)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .step("watch the sockets")?;
        }
        let zygote = zygote::start(setup, map)?;
        let warden = WardenServer {
            control: clone_of(&control)?,
            spawner: spawner::start(setup, map, zygote.pidfd.as_fd())?,
            zygote,
            map,
            hierarchy,
            has_landlock,
            refusal,
            epoll,
            sandboxes: HashMap::new(),
            workspaces: setup.instance.join(WORKSPACES),
            workspace_closers: HashMap::new(),
            children: HashMap::new(),
            connecting: HashMap::new(),
            watches: HashMap::new(),
            next_watch: LOCKS + 1,
            paused_listeners: Vec::new(),
            foreground: Foreground::default(),
            late_checkpoints: Vec::new(),
            flocks,
            watchers,
            freezing: HashMap::new(),
            objects_due: Instant::now(),
            locks,
            waits,
            crowd_watch,
            spare: None,
            spare_due: Instant::now(),
            is_unusable: false,
        };
        Ok((warden, children, warnings))
    };
    let (mut warden, children, warnings) = match start() {
        Ok(started) => started,
        Err(error) => {
            message::send(&control, &WardenMessage::Unusable { reason: error.to_string() }, &[])
                .ignore("aludel may be gone");
            return;
        }
    };
    drop(control);
    let memory_is_bounded = !warden.hierarchy.missing().contains(&"memory");
    warden.reply(&WardenMessage::Ready { owner_base: warden.map.owner_base(), warnings, memory_is_bounded });
    warden.serve(&children);
    warden.end(&children);
    mounts::remove_workspaces(&setup.instance.join(WORKSPACES));
    // The list in memory is used: the file in the instance's directory may be gone, and is only for the next start.
    for group in warden.hierarchy.parents() {
        if let Err(error) = cgroup::remove(&group) {
            eprintln!("aludel: the control group {} could not be removed: {error}", group.display());
        }
    }
    sweep::remove_instance(&setup.instance);
}

fn clone_of(fd: &OwnedFd) -> Result<OwnedFd, StepError> {
    fd.try_clone().step("copy the control socket")
}

/// Makes this instance's group and records it, so that the next start can remove it if this process is killed.
fn own_group(hierarchy: io::Result<Hierarchy>, setup: &Setup) -> Result<(Hierarchy, Vec<String>), StepError> {
    let mut warnings = Vec::new();
    let name = sweep::name_of_group(&setup.instance);
    // They are recorded before they are made: this process may be killed in between.
    let to_be = hierarchy.as_ref().map(|hierarchy| hierarchy.directories(&name)).unwrap_or_default();
    sweep::note_groups(&setup.instance, &to_be)
        .step(format!("note the control groups in {}", setup.instance.display()))?;
    let own = match hierarchy.and_then(|hierarchy| hierarchy.descend(&name)) {
        Ok(own) => own,
        Err(error) => {
            warnings.push(format!("control groups cannot be used ({error})"));
            Hierarchy::Absent
        }
    };
    for controller in own.missing() {
        warnings.push(match controller {
            "memory" => "there is no memory controller: every process of a sandbox is limited on its own".to_owned(),
            "pids" => "there is no pids controller: processes are limited for all sandboxes together".to_owned(),
            other => format!("there is no {other} controller: its limit is not enforced"),
        });
    }
    Ok((own, warnings))
}

impl WardenServer {
    fn reply(&self, reply: &WardenMessage) {
        message::send(&self.control, reply, &[]).ignore("the loop notices when aludel is gone");
    }

    fn answer(&self, number: u64, result: Result<(), StepError>) {
        let answer = match result {
            Ok(()) => WardenAnswer::Done,
            Err(error) => WardenAnswer::Failed { reason: error.to_string() },
        };
        self.reply(&WardenMessage::Answer { number, answer });
    }

    fn serve(&mut self, children: &OwnedFd) {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.is_unusable {
            self.waits.begin(Waiter::Warden);
            let timeout = self.run_timers();
            self.waits.end(Waiter::Warden);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                // No event needs handling.
                Ok(_) if events.is_empty() => {
                    self.waits.begin(Waiter::Warden);
                    self.make_spare();
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            }
            for event in events.drain(..) {
                self.waits.begin(Waiter::Warden);
                match event.data.u64() {
                    CONTROL => match message::receive::<NumberedRequest>(&self.control) {
                        Ok(Some((NumberedRequest { number, request }, descriptors))) => {
                            self.handle(number, request, &descriptors);
                        }
                        // The socket is closed or broken: aludel is gone.
                        Ok(None) | Err(_) => return,
                    },
                    CHILDREN => {
                        drain(children);
                        self.reap();
                    }
                    LOCKS => self.enforce_lock_limit(),
                    token => self.handle_event(token, event.flags),
                }
            }
        }
    }

    /// Handles the exit of every child that ended.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let fork_server = self.fork_servers().into_iter().find(|server| server.pid == pid);
            if let Some(name) = fork_server.map(|server| server.name) {
                self.give_up(&format!("the {name} ended ({:?})", exit_status(status)));
                continue;
            }
            if pid == self.crowd_watch {
                // Sandboxes that it paused would stay so.
                self.give_up(&format!("the watch of crowds ended ({:?})", exit_status(status)));
                continue;
            }
            self.connecting.remove(&pid);
            let Some((id, role)) = self.children.remove(&pid) else { continue };
            let Some(sandbox) = self.sandboxes.get_mut(&id) else { continue };
            match role {
                Role::Init => {
                    sandbox.init_ended = true;
                    if !sandbox.is_ending {
                        self.reply(&WardenMessage::Lost { id });
                    }
                }
                Role::Kernel(kernel) => {
                    sandbox.kernels.remove(&kernel);
                    let status = Some(exit_status(status));
                    let out_of_memory = sandbox.note_exit(status);
                    self.reply(&WardenMessage::Exited { id, kernel, status, out_of_memory });
                }
                Role::Command(process) => {
                    sandbox.commands.remove(&process);
                    let status = Some(exit_status(status));
                    let _told_by_its_status = sandbox.note_exit(status);
                    self.reply(&WardenMessage::ProcessExited { id, process, status });
                }
            }
            self.finish(id);
        }
    }

    /// Reports, as its last message, that no more sandboxes are made.
    fn give_up(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_unusable, true) {
            self.reply(&WardenMessage::Unusable { reason: reason.to_owned() });
        }
    }

    /// Removes a sandbox once all its processes are reaped.
    fn finish(&mut self, id: u64) {
        let done = self.sandboxes.get(&id).is_some_and(|sandbox| sandbox.is_ending && sandbox.is_over());
        if done && let Some(mut sandbox) = self.sandboxes.remove(&id) {
            self.flocks.forget(id);
            self.watchers.forget(id);
            for (_, watch) in self.watches.extract_if(|_, watch| watch.sandbox == id).collect::<Vec<_>>() {
                self.unwatch(watch.what.fd());
                if let EpollSource::Waking { number, .. } = watch.what {
                    self.answer(number, Err(invalid(NO_CHECKPOINT)));
                }
            }
            if sandbox.kernels.contains_key(&FIRST_KERNEL) {
                // A checkpoint that took over is not the warden's child, so `reap` does not see its end.
                let out_of_memory = sandbox.note_exit(None);
                self.reply(&WardenMessage::Exited { id, kernel: FIRST_KERNEL, status: None, out_of_memory });
            }
            sandbox.cgroup.remove().ignore("it is removed with the instance's otherwise");
            for number in sandbox.closers {
                self.answer(number, Ok(()));
            }
            let workspace = sandbox.workspace;
            if !self.sandboxes.values().any(|sandbox| sandbox.workspace == workspace) {
                for number in self.workspace_closers.remove(&workspace).unwrap_or_default() {
                    self.answer(number, Ok(()));
                }
            }
        }
    }

    fn workspace_path(&self, workspace: u64) -> PathBuf {
        self.workspaces.join(workspace.to_string())
    }

    /// Ends everything: aludel is gone or asked for it, or a fork server has ended.
    fn end(&mut self, children: &OwnedFd) {
        self.spare = None;
        for sandbox in self.sandboxes.values_mut() {
            sandbox.is_ending = true;
            sandbox.kill();
        }
        for _ in 0..100 {
            self.reap();
            self.sandboxes.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.finish(id));
            if self.sandboxes.is_empty() {
                break;
            }
            message::is_readable(children.as_fd(), Duration::from_millis(50)).ignore("the next round waits again");
            drain(children);
        }
        for ForkServer { pidfd, .. } in self.fork_servers() {
            rustix::process::pidfd_send_signal(pidfd, Signal::KILL).ignore("it may have ended");
        }
    }

    fn fork_servers(&self) -> [&ForkServer; 2] {
        [&self.zygote, &self.spawner]
    }
}

fn invalid(reason: &str) -> StepError {
    StepError { step: "make a process".into(), source: io::Error::new(io::ErrorKind::InvalidInput, reason) }
}

fn drain(children: &OwnedFd) {
    let mut buffer = [0; 4096];
    while rustix::io::read(children, &mut buffer).is_ok_and(|count| count > 0) {}
}

fn exit_status(status: WaitStatus) -> ExitStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        (None, None) => ExitStatus::Code(-1),
    }
}
