//! The warden's loop: requests from aludel, kernels from the zygote, ends of children.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open};

use crate::cgroup::{self, Cgroup, Hierarchy, Share};
use crate::freezer::Frozen;
use crate::idmap::{FIRST_SLOT, IdMap};
use crate::listener::{Heard, Listener};
use crate::lockdown::{Identity, Lockdown, Refusal};
use crate::locks::Locks;
use crate::message::{
    self, Answer, ExitStatus, FIRST_KERNEL, Limits, MAX_SLOTS, Numbered, Profile, Reply, Request, Setup, Spec, Start,
    TerminalSize,
};
use crate::mounts::TerminalSources;
use crate::ports::{self, Connection};
use crate::sandbox::{self, Process, Sandbox};
use crate::shell::Spare;
use crate::zygote::{ForkRequest, Program, ShellIsReady, Zygote};
use crate::{Step, StepError, landlock, mounts, sockets, sweep, sys, terminals};

/// Directory of the workspaces, within an instance's directory.
pub const WORKSPACES: &str = "workspaces";

/// Epoll token of the control socket.
const CONTROL: u64 = 0;
/// Epoll token of the descriptor for SIGCHLD.
const CHILDREN: u64 = 1;
/// Events taken at once.
const EVENTS: usize = 64;
/// Time at full processor weight for something new in a sandbox, ahead of others that have run for longer.
const FOREGROUND: Duration = Duration::from_secs(1);
/// Time between two counts of what no control group counts. A processor can take some 50 MB of locks, or of connections, in it.
const OBJECTS_INTERVAL: Duration = Duration::from_millis(250);

/// Time between a sandbox and the shell of the next one: its first program shall have the processors.
const SPARE_DELAY: Duration = Duration::from_millis(10);
/// Connections that are made at once, each by a process for some milliseconds at most.
const MOST_CONNECTING: usize = 32;
/// Time between a shell that could not be made ahead and the next one.
const SPARE_PAUSE: Duration = Duration::from_secs(1);

/// Reason of a resume that fails.
const NO_CHECKPOINT: &str = "there is no checkpoint that could take over";

/// Something of a sandbox that is watched.
struct Watch {
    sandbox: u64,
    what: Watched,
}

enum Watched {
    /// A new process, which hands over its listener before it runs anything.
    Greeting { socket: OwnedFd, role: Role },
    /// Refused system calls of a kernel and of what it started.
    Refusals { listener: Listener, kernel: u64 },
    /// A checkpoint that was woken, and the number of the request that asked for it.
    Waking(OwnedFd, u64),
    /// A kernel that is nobody's child here.
    Adopted(OwnedFd),
}

impl Watched {
    fn fd(&self) -> &OwnedFd {
        match self {
            Self::Greeting { socket: fd, .. } | Self::Waking(fd, _) | Self::Adopted(fd) => fd,
            Self::Refusals { listener, .. } => listener.fd(),
        }
    }
}

/// The part of a sandbox that a child process is.
#[derive(Clone, Copy)]
enum Role {
    Init,
    Kernel(u64),
    Command(u64),
}

/// A process that is to be made in a sandbox.
#[derive(Clone, Copy)]
enum Kind {
    /// The kernel that the sandbox is made with: nothing else runs there yet.
    FirstKernel(Start),
    Kernel(Start),
    Command {
        /// True if its stdin is a terminal.
        terminal: bool,
    },
}

/// The sandbox in which a process is to be made, as far as that is known before its shell is ready.
#[derive(Clone, Copy)]
struct Place<'a> {
    init: BorrowedFd<'a>,
    identity: Identity,
    limits: &'a Limits,
    profile: Profile,
}

/// A process that the zygote was asked for, which waits for its shell.
struct Forking {
    /// The number of the request.
    number: u64,
    /// Our end of its socket to the warden.
    socket: OwnedFd,
}

/// Everything the warden knows.
struct Warden {
    control: OwnedFd,
    zygote: Zygote,
    map: IdMap,
    hierarchy: Hierarchy,
    has_landlock: bool,
    refusal: Refusal,
    epoll: OwnedFd,
    sandboxes: HashMap<u64, Sandbox>,
    /// Directory of the workspaces' mounts.
    workspaces: PathBuf,
    /// Requests to close a workspace that some sandbox still uses, by workspace.
    closing: HashMap<u64, Vec<u64>>,
    children: HashMap<Pid, (u64, Role)>,
    /// Processes that make a connection.
    connecting: HashSet<Pid>,
    watches: HashMap<u64, Watch>,
    next_watch: u64,
    /// Listeners that said too much and are looked at again later.
    resting: Vec<(Instant, u64)>,
    /// Sandboxes in the foreground, and until when, the first to leave it first.
    foreground: VecDeque<(Instant, u64)>,
    /// When to count locks and sockets.
    objects_due: Instant,
    /// The shell of the next sandbox.
    spare: Option<Spare>,
    /// When one may be made.
    spare_due: Instant,
    /// True if its owner was told that it makes no more sandboxes: the zygote has ended.
    is_unusable: bool,
}

/// Runs until aludel closes the control socket or the zygote ends, then removes everything. Runs as pid 1 of its pid namespace.
pub(crate) fn run(control: OwnedFd, setup: &Setup, map: IdMap, hierarchy: io::Result<Hierarchy>) {
    let start = || -> Result<(Warden, OwnedFd, Vec<String>), StepError> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the parent")?;
        sys::ignore_broken_pipes();
        let children = sys::child_signals().step("watch the children")?;
        let (hierarchy, mut warnings) = own_group(hierarchy, setup)?;
        mounts::detach_from_host()?;
        mounts::mount_proc()?;
        let has_landlock = landlock::version() > 0;
        if !has_landlock {
            warnings.push("this kernel has no Landlock: mounts and ids alone guard the files".into());
        }
        if map == IdMap::Single {
            warnings.push("all sandboxes share one user id: run as root to give each its own".into());
        }
        let refusal = match (sys::can_listen(), setup.observe) {
            (true, false) => Refusal::Reported,
            (true, true) => Refusal::Observed,
            (false, _) => Refusal::Silent,
        };
        if refusal == Refusal::Silent {
            warnings.push("this kernel does not tell which system calls were refused".into());
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).step("make an epoll")?;
        for (fd, token) in [(&control, CONTROL), (&children, CHILDREN)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .step("watch the sockets")?;
        }
        let warden = Warden {
            control: clone_of(&control)?,
            zygote: Zygote::start(setup, map)?,
            map,
            hierarchy,
            has_landlock,
            refusal,
            epoll,
            sandboxes: HashMap::new(),
            workspaces: setup.instance.join(WORKSPACES),
            closing: HashMap::new(),
            children: HashMap::new(),
            connecting: HashSet::new(),
            watches: HashMap::new(),
            next_watch: CHILDREN + 1,
            resting: Vec::new(),
            foreground: VecDeque::new(),
            objects_due: Instant::now(),
            spare: None,
            spare_due: Instant::now(),
            is_unusable: false,
        };
        Ok((warden, children, warnings))
    };
    let (mut warden, children, warnings) = match start() {
        Ok(started) => started,
        Err(error) => {
            let _gone = message::send(&control, &Reply::Unusable { reason: error.to_string() }, &[]);
            return;
        }
    };
    drop(control);
    let memory_is_bounded = !warden.hierarchy.missing().contains(&"memory");
    warden.reply(&Reply::Ready { owner_base: warden.map.owner_base(), warnings, memory_is_bounded });
    warden.serve(&children);
    warden.end(&children);
    mounts::remove_workspaces(&setup.instance.join(WORKSPACES));
    // From memory: the note in the instance's directory may have gone with it, and is for the next start only.
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

/// Makes this instance's group and notes it, so that the next start can remove it should this process be killed.
fn own_group(hierarchy: io::Result<Hierarchy>, setup: &Setup) -> Result<(Hierarchy, Vec<String>), StepError> {
    let mut warnings = Vec::new();
    let name = sweep::name_of_group(&setup.instance);
    // Noted before they are made: this process may be killed in between.
    let to_be = hierarchy.as_ref().map(|hierarchy| hierarchy.directories(&name)).unwrap_or_default();
    sweep::note_groups(&setup.instance, &to_be).step("note the control groups")?;
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

impl Warden {
    fn reply(&self, reply: &Reply) {
        // When aludel is gone, the loop sees that by itself.
        let _gone = message::send(&self.control, reply, &[]);
    }

    fn answer(&self, number: u64, result: Result<(), StepError>) {
        let answer = match result {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Failed { reason: error.to_string() },
        };
        self.reply(&Reply::Answer { number, answer });
    }

    fn serve(&mut self, children: &OwnedFd) {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.is_unusable {
            let timeout = self.until_something_is_due();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                // Nobody waits for anything.
                Ok(_) if events.is_empty() => self.make_spare(),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    CONTROL => match message::receive::<Numbered>(&self.control) {
                        Ok(Some((Numbered { number, request }, descriptors))) => {
                            self.handle(number, request, &descriptors);
                        }
                        // Closed, or no longer making sense: either way aludel is not there.
                        Ok(None) | Err(_) => return,
                    },
                    CHILDREN => {
                        drain(children);
                        self.reap();
                    }
                    token => self.look(token, event.flags),
                }
            }
        }
    }

    /// Does what is due, and says how long until something is.
    fn until_something_is_due(&mut self) -> Option<Timespec> {
        let now = Instant::now();
        let next = [self.watch_the_rested(now), self.put_into_background(now), self.enforce_object_limits(now)];
        let spare_due = self.spare.is_none().then_some(self.spare_due);
        let wait = match next.into_iter().flatten().chain(spare_due).min()? {
            next if next <= now => Duration::ZERO,
            next => next - now + Duration::from_millis(1),
        };
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() })
    }

    /// Makes the shell of the next sandbox ahead.
    fn make_spare(&mut self) {
        if self.spare.is_none() && self.spare_due <= Instant::now() {
            match self.new_shell() {
                Ok(spare) => self.spare = Some(spare),
                // Whoever needs one tries again, and is told.
                Err(_) => self.spare_due = Instant::now() + SPARE_PAUSE,
            }
        }
    }

    fn new_shell(&self) -> Result<Spare, StepError> {
        Spare::make(self.zygote.pidfd.as_fd(), self.map != IdMap::Single)
    }

    /// The shell that was made ahead, if there is one that lives, or a new one.
    fn take_spare(&mut self) -> Result<Spare, StepError> {
        self.spare_due = Instant::now() + SPARE_DELAY;
        match self.spare.take().filter(|spare| spare.init().is_some()) {
            Some(spare) => Ok(spare),
            None => self.new_shell(),
        }
    }

    /// Watches again what has rested, and says when the next has.
    fn watch_the_rested(&mut self, now: Instant) -> Option<Instant> {
        let (rested, resting) = std::mem::take(&mut self.resting).into_iter().partition(|(until, _)| *until <= now);
        self.resting = resting;
        for (_, token) in rested {
            if let Some(Watch { what: Watched::Refusals { listener, .. }, .. }) = self.watches.get(&token) {
                let _gone = self.watch_fd(listener.fd(), token);
            }
        }
        self.resting.iter().map(|(until, _)| *until).min()
    }

    /// Lets what has run for long give way to what has just begun, and says when the next has run for long.
    fn put_into_background(&mut self, now: Instant) -> Option<Instant> {
        while let Some((until, id)) = self.foreground.front().copied() {
            if until > now {
                return Some(until);
            }
            self.foreground.pop_front();
            let Some(sandbox) = self.sandboxes.get_mut(&id) else { continue };
            match sandbox.foreground_until {
                // Something has begun in it since.
                Some(later) if later > now => self.foreground.push_back((later, id)),
                _ => {
                    sandbox.foreground_until = None;
                    let _as_before = sandbox.cgroup.set_share(Share::Small);
                }
            }
        }
        None
    }

    /// Something begins in the sandbox that somebody waits for.
    fn put_into_foreground(&mut self, id: u64) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
        let until = Instant::now() + FOREGROUND;
        if sandbox.foreground_until.replace(until).is_none() {
            let _as_before = sandbox.cgroup.set_share(Share::Full);
            self.foreground.push_back((until, id));
        }
    }

    /// Hears of a checkpoint before it is needed.
    fn rank_checkpoint(&mut self, id: u64) {
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.rank_checkpoint();
        }
    }

    /// Ends the sandboxes that hold more of what no control group counts than anybody needs, and says when to look again.
    fn enforce_object_limits(&mut self, now: Instant) -> Option<Instant> {
        if self.sandboxes.is_empty() {
            return None;
        }
        if self.objects_due <= now {
            self.objects_due = now + OBJECTS_INTERVAL;
            // A Linux kernel that shows no locks leaves nothing to enforce.
            let locks = Locks::read().unwrap_or_default();
            let (limit, counts) = (locks.limit(self.sandboxes.len()), locks.by_namespace());
            let locks = |init| *sandbox::namespace_of(init).and_then(|of| counts.get(&of)).unwrap_or(&0);
            for sandbox in self.sandboxes.values_mut() {
                sandbox.rank_checkpoint();
                let Some(init) = sandbox.init.pid else { continue };
                if (!counts.is_empty() && locks(init) > limit) || sockets::count(init) > Some(sockets::MOST) {
                    sandbox.kill();
                }
            }
        }
        Some(self.objects_due)
    }

    fn watch_fd(&self, fd: &OwnedFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
    }

    fn watch(&mut self, sandbox: u64, what: Watched) {
        let token = self.next_watch;
        self.next_watch += 1;
        // Nothing can be watched only where memory is out; what would be heard by it then is not.
        if self.watch_fd(what.fd(), token).is_ok() {
            self.watches.insert(token, Watch { sandbox, what });
        }
    }

    /// Watches something no more. To close it is not enough: the init of a shell that was made ahead holds a copy.
    fn unwatch(&self, fd: &OwnedFd) {
        let _is_watched_no_more = epoll::delete(&self.epoll, fd);
    }

    /// Sees to something that is watched. An event may be of something that an earlier one of the same batch took away.
    fn look(&mut self, token: u64, flags: epoll::EventFlags) {
        let Some(Watch { sandbox: id, what }) = self.watches.remove(&token) else { return };
        match what {
            // Before Linux 6.11, taking a call that will never come blocks for ever.
            Watched::Refusals { listener, .. } if !flags.contains(epoll::EventFlags::IN) => self.unwatch(listener.fd()),
            Watched::Refusals { mut listener, kernel } => {
                match listener.answer(|number| self.reply(&Reply::Called { id, kernel, number })) {
                    Heard::Something => {}
                    Heard::Rests(until) => {
                        self.unwatch(listener.fd());
                        self.resting.push((until, token));
                    }
                    Heard::Over => return self.unwatch(listener.fd()),
                }
                self.watches.insert(token, Watch { sandbox: id, what: Watched::Refusals { listener, kernel } });
            }
            Watched::Greeting { socket, role } => {
                self.unwatch(&socket);
                let Ok(word) = sandbox::first_word(socket.as_fd()) else { return };
                let kernel = if let Role::Kernel(kernel) = role { kernel } else { FIRST_KERNEL };
                if let Some(descriptor) = word.descriptor {
                    let profile = self.sandboxes.get(&id).map(|sandbox| sandbox.profile).unwrap_or_default();
                    let listener = Listener::new(descriptor, (self.refusal == Refusal::Observed).then_some(profile));
                    self.watch(id, Watched::Refusals { listener, kernel });
                }
                // Further kernels have no checkpoint.
                if matches!(role, Role::Kernel(FIRST_KERNEL))
                    && let Some(sandbox) = self.sandboxes.get_mut(&id)
                {
                    sandbox.wake = Some(socket);
                }
            }
            Watched::Waking(socket, number) => {
                self.unwatch(&socket);
                let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
                let word = sandbox::first_word(socket.as_fd()).ok();
                if word.as_ref().is_some_and(|word| word.is_checkpoint) {
                    // It was woken before it had said so.
                    return self.watch(id, Watched::Waking(socket, number));
                }
                let woken = word.and_then(|word| sandbox.woken(&word));
                sandbox.forget_checkpoint();
                sandbox.wake = Some(socket);
                match woken.and_then(|kernel| Some((kernel.pidfd.try_clone().ok()?, kernel))) {
                    Some((pidfd, kernel)) => {
                        sandbox.kernels.insert(FIRST_KERNEL, kernel);
                        self.watch(id, Watched::Adopted(pidfd));
                        self.reply(&Reply::Resumed { id });
                        self.answer(number, Ok(()));
                    }
                    None => self.answer(number, Err(invalid(NO_CHECKPOINT))),
                }
            }
            Watched::Adopted(pidfd) => {
                self.unwatch(&pidfd);
                let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
                let Some(kernel) = sandbox.kernels.remove(&FIRST_KERNEL) else { return };
                let status = kernel.exit_status();
                let usage = sandbox.cgroup.usage();
                self.reply(&Reply::Exited { id, kernel: FIRST_KERNEL, status, usage });
            }
        }
    }

    fn handle(&mut self, number: u64, request: Request, descriptors: &[OwnedFd]) {
        match request {
            Request::OpenWorkspace { workspace, slot, bytes, inodes } => {
                let path = self.workspace_path(workspace);
                match mounts::make_workspace(&path, self.map.owner(slot), bytes, inodes) {
                    Ok(root) => {
                        let reply = Reply::Answer { number, answer: Answer::Done };
                        let _gone = message::send(&self.control, &reply, &[root.as_fd()]);
                    }
                    Err(error) => {
                        mounts::remove_workspace(&path);
                        self.answer(number, Err(error));
                    }
                }
            }
            Request::CloseWorkspace { workspace } => {
                mounts::remove_workspace(&self.workspace_path(workspace));
                if self.sandboxes.values().any(|sandbox| sandbox.workspace == workspace) {
                    self.closing.entry(workspace).or_default().push(number);
                } else {
                    self.answer(number, Ok(()));
                }
            }
            Request::Create { id, spec } => {
                let created = self.create(id, spec, descriptors);
                // Not answered without a zygote: another warden may do it.
                if created.is_err() && self.zygote.has_hung_up() {
                    self.give_up("the zygote ended");
                } else {
                    self.answer(number, created);
                }
            }
            Request::StartKernel { id, kernel, start } => {
                let started = self.start_kernel(id, kernel, start, descriptors);
                if started.is_err() && self.zygote.has_hung_up() {
                    self.give_up("the zygote ended");
                } else {
                    self.answer(number, started);
                }
            }
            Request::EndKernel { id, kernel } => {
                if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                    sandbox.end_kernel(kernel);
                }
            }
            Request::Signal { id, kernel, signal } => {
                let kernel = self.sandboxes.get(&id).and_then(|sandbox| sandbox.kernels.get(&kernel));
                if let (Some(kernel), Some(signal)) = (kernel, Signal::from_named_raw(signal)) {
                    kernel.signal(signal);
                }
            }
            Request::Resume { id } => {
                let control = descriptors.first();
                self.rank_checkpoint(id);
                let has_none = |sandbox: &Sandbox| !sandbox.kernels.contains_key(&FIRST_KERNEL);
                let sandbox = self.sandboxes.get_mut(&id).filter(|sandbox| has_none(sandbox) && !sandbox.closing);
                match (control, sandbox) {
                    (Some(control), Some(sandbox)) if sandbox.wake(control.as_fd()) => {
                        if let Some(socket) = sandbox.wake.take() {
                            self.watch(id, Watched::Waking(socket, number));
                        }
                    }
                    _ => self.answer(number, Err(invalid(NO_CHECKPOINT))),
                }
            }
            Request::Spawn { id, process, terminal } => {
                if self.spawn(id, process, terminal, descriptors).is_err() {
                    // The reason is told on the process's own socket, if it got that far.
                    self.reply(&Reply::ProcessExited { id, process, status: None });
                }
            }
            Request::OpenTerminal { id, size } => match self.open_terminal(id, size) {
                Ok(ends) => {
                    let reply = Reply::Answer { number, answer: Answer::Done };
                    let _gone = message::send(&self.control, &reply, &ends.each_ref().map(AsFd::as_fd));
                }
                Err(error) => self.answer(number, Err(error)),
            },
            Request::Connect { id, port } => {
                if let Err(error) = self.connect(number, id, port) {
                    self.answer(number, Err(error));
                }
            }
            Request::SignalProcess { id, process, signal } => {
                let process = self.sandboxes.get(&id).and_then(|sandbox| sandbox.commands.get(&process));
                if let (Some(process), Some(signal)) = (process, Signal::from_named_raw(signal)) {
                    process.signal_group(signal);
                }
            }
            Request::Foreground { id } => {
                self.rank_checkpoint(id);
                self.put_into_foreground(id);
            }
            Request::Freeze { id } => {
                let frozen = self.freeze(id);
                self.answer(number, frozen);
            }
            Request::Thaw { id } => {
                let frozen = self.sandboxes.get_mut(&id).and_then(|sandbox| sandbox.frozen.take());
                self.answer(number, frozen.map_or(Ok(()), Frozen::thaw));
            }
            Request::Ping => self.answer(number, Ok(())),
            Request::Usage { id } => {
                let usage = self.sandboxes.get(&id).map(|sandbox| sandbox.cgroup.usage()).unwrap_or_default();
                self.reply(&Reply::Answer { number, answer: Answer::Usage(usage) });
            }
            Request::Destroy { id } => match self.sandboxes.get_mut(&id) {
                Some(sandbox) => {
                    sandbox.closing = true;
                    sandbox.closers.push(number);
                    sandbox.kill();
                    self.finish(id);
                }
                None => self.answer(number, Ok(())),
            },
        }
    }

    fn create(&mut self, id: u64, spec: Spec, descriptors: &[OwnedFd]) -> Result<(), StepError> {
        let Spec { start, slot, workspace, limits, profile } = spec;
        let [_control, _stdout, _stderr] = descriptors else { return Err(invalid("three descriptors are needed")) };
        if slot >= MAX_SLOTS || self.sandboxes.contains_key(&id) {
            return Err(invalid("the slot or the id cannot be used"));
        }
        let identity = match self.map {
            IdMap::Range { .. } => Identity::Own(FIRST_SLOT + slot),
            IdMap::Single => Identity::Only,
        };
        let spare = self.take_spare()?;
        let init = spare.init().ok_or_else(|| invalid("the shell's init ended early"))?;
        // The zygote forks while the rest is made.
        let place = Place { init, identity, limits: &limits, profile };
        let forking = self.begin_fork(place, Kind::FirstKernel(start), descriptors)?;
        let tree = mounts::open_workspace(&self.workspace_path(workspace))?;
        let terminals = match profile {
            Profile::Data => None,
            Profile::Services => Some(TerminalSources {
                terminals: terminals::make(self.map.owner(slot))?,
                own: mounts::open_own_terminal()?,
            }),
        };
        let cgroup = Cgroup::create(&self.hierarchy, &format!("s{id}"), &limits, profile);
        let cgroup = cgroup.step("make the control group")?;
        let shell = cgroup.open_joins().step("open the control group").and_then(|joins| {
            let shell = spare.become_shell_of(&joins, &tree, terminals.as_ref(), limits.clone())?;
            Ok((shell, joins))
        });
        let (shell, joins) = match shell {
            Ok(made) => made,
            Err(error) => {
                // The processes that were started are dying; the group goes as soon as it is empty.
                self.reap();
                let _left_for_the_sweep = cgroup.remove();
                return Err(error);
            }
        };
        self.children.insert(shell.init, (id, Role::Init));
        let mut sandbox = Sandbox {
            init: Process { pid: Some(shell.init), pidfd: shell.pidfd },
            landlock: shell.landlock,
            kernels: HashMap::new(),
            commands: HashMap::new(),
            cgroup,
            identity,
            limits,
            profile,
            terminals: terminals.map(|sources| sources.terminals),
            frozen: None,
            wake: None,
            checkpoint: None,
            foreground_until: None,
            init_ended: false,
            workspace,
            closing: false,
            closers: Vec::new(),
        };
        match self.finish_fork(forking, sandbox.landlock.as_ref(), &joins) {
            Ok((kernel, socket)) => {
                self.note_child(&kernel, id, Role::Kernel(FIRST_KERNEL));
                sandbox.kernels.insert(FIRST_KERNEL, kernel);
                self.sandboxes.insert(id, sandbox);
                self.put_into_foreground(id);
                self.watch(id, Watched::Greeting { socket, role: Role::Kernel(FIRST_KERNEL) });
                Ok(())
            }
            Err(error) => {
                // Its end is reported as that of any other; nobody waits for it.
                sandbox.closing = true;
                sandbox.kill();
                self.sandboxes.insert(id, sandbox);
                Err(error)
            }
        }
    }

    fn start_kernel(&mut self, id: u64, kernel: u64, start: Start, descriptors: &[OwnedFd]) -> Result<(), StepError> {
        let sandbox = self.living(id)?;
        if descriptors.len() != 3 || kernel == FIRST_KERNEL || sandbox.kernels.contains_key(&kernel) {
            return Err(invalid("three descriptors and a new number are needed"));
        }
        let (child, socket) = self.fork(sandbox, Kind::Kernel(start), descriptors)?;
        self.note_child(&child, id, Role::Kernel(kernel));
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.kernels.insert(kernel, child);
        }
        self.put_into_foreground(id);
        self.watch(id, Watched::Greeting { socket, role: Role::Kernel(kernel) });
        Ok(())
    }

    /// The sandbox of this number, if processes can be made in it.
    fn living(&self, id: u64) -> Result<&Sandbox, StepError> {
        let sandbox = self.sandboxes.get(&id).filter(|sandbox| !sandbox.closing && !sandbox.init_ended);
        let sandbox = sandbox.ok_or_else(|| invalid("there is no such sandbox"))?;
        if sandbox.frozen.is_some() { Err(invalid("the sandbox is stopped")) } else { Ok(sandbox) }
    }

    /// Stops a sandbox, unless it is stopped already.
    fn freeze(&mut self, id: u64) -> Result<(), StepError> {
        let sandbox = self.sandboxes.get_mut(&id).filter(|sandbox| !sandbox.closing && !sandbox.init_ended);
        let sandbox = sandbox.ok_or_else(|| invalid("there is no such sandbox"))?;
        if sandbox.frozen.is_none() {
            sandbox.frozen = Some(Frozen::freeze(sandbox.cgroup.freezer(), sandbox.init.pid)?);
        }
        Ok(())
    }

    /// Opens a terminal of a sandbox.
    fn open_terminal(&self, id: u64, size: TerminalSize) -> Result<[OwnedFd; 2], StepError> {
        let sandbox = self.living(id)?;
        terminals::open(sandbox.terminals.as_ref().ok_or_else(|| invalid("the sandbox has no terminals"))?, size)
    }

    /// Has a process connect to a port of a sandbox, and answer the request: this one's network is the host's.
    fn connect(&mut self, number: u64, id: u64, port: u16) -> Result<(), StepError> {
        let sandbox = self.living(id)?;
        if sandbox.profile != Profile::Services {
            return Err(invalid("the sandbox has no network"));
        }
        if self.connecting.len() >= MOST_CONNECTING {
            return Err(invalid("too many connections are being made"));
        }
        match sys::fork(0).step("fork")? {
            sys::Fork::Parent(pid) => {
                self.connecting.insert(pid);
                Ok(())
            }
            sys::Fork::Child => {
                let connection = ports::connect(sandbox.init.pidfd.as_fd(), port);
                let (answer, descriptor) = match connection {
                    Ok(Connection::Open(socket)) => (Answer::Done, Some(socket)),
                    Ok(Connection::Closed) => (Answer::PortClosed, None),
                    Err(error) => (Answer::Failed { reason: error.to_string() }, None),
                };
                let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
                let _gone = message::send(&self.control, &Reply::Answer { number, answer }, &descriptors);
                sys::exit(0)
            }
        }
    }

    fn spawn(&mut self, id: u64, process: u64, terminal: bool, descriptors: &[OwnedFd]) -> Result<(), StepError> {
        let sandbox = self.living(id)?;
        if descriptors.len() != 4 || sandbox.commands.contains_key(&process) {
            return Err(invalid("four descriptors and a new id are needed"));
        }
        let (child, socket) = self.fork(sandbox, Kind::Command { terminal }, descriptors)?;
        self.note_child(&child, id, Role::Command(process));
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.commands.insert(process, child);
        }
        self.put_into_foreground(id);
        self.watch(id, Watched::Greeting { socket, role: Role::Command(process) });
        Ok(())
    }

    fn note_child(&mut self, process: &Process, sandbox: u64, role: Role) {
        if let Some(pid) = process.pid {
            self.children.insert(pid, (sandbox, role));
        }
    }

    /// Forks a process into a sandbox; `descriptors` are its control socket and its standard streams. Returns it with our end of its
    /// socket to the warden.
    fn fork(&self, sandbox: &Sandbox, kind: Kind, descriptors: &[OwnedFd]) -> Result<(Process, OwnedFd), StepError> {
        let Sandbox { init, identity, limits, profile, landlock, cgroup, .. } = sandbox;
        let place = Place { init: init.pidfd.as_fd(), identity: *identity, limits, profile: *profile };
        let joins = cgroup.open_joins().step("open the control group")?;
        let forking = self.begin_fork(place, kind, descriptors)?;
        self.finish_fork(forking, landlock.as_ref(), &joins)
    }

    /// Asks the zygote for a process, which waits until [`Warden::finish_fork`]. If that is never called, it ends.
    fn begin_fork(&self, place: Place<'_>, kind: Kind, descriptors: &[OwnedFd]) -> Result<Forking, StepError> {
        let (socket, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .step("make a socket")?;
        rustix::net::sockopt::set_socket_passcred(&socket, true).step("ask for the sender's number")?;
        let Place { init, identity, limits, profile } = place;
        let lockdown = Lockdown {
            identity,
            limits,
            cgroups: self.hierarchy.parents().len(),
            landlock: self.has_landlock,
            refusal: self.refusal,
            joins_others: !matches!(kind, Kind::FirstKernel(_)),
            is_kernel: !matches!(kind, Kind::Command { .. }),
            has_terminal: matches!(kind, Kind::Command { terminal: true }),
            profile,
        };
        let mut sent = vec![init];
        sent.extend(descriptors.iter().map(AsFd::as_fd));
        sent.push(theirs.as_fd());
        let program = match kind {
            Kind::FirstKernel(start) | Kind::Kernel(start) => Program::Kernel(start),
            Kind::Command { .. } => Program::Command,
        };
        let (number, landlock) = (self.zygote.next_number(), self.has_landlock);
        self.zygote.ask(&ForkRequest { number, landlock, lockdown: lockdown.steps(), program }, &sent)?;
        Ok(Forking { number, socket })
    }

    /// Lets a process go on whose shell is ready.
    fn finish_fork(
        &self,
        forking: Forking,
        landlock: Option<&OwnedFd>,
        joins: &[OwnedFd],
    ) -> Result<(Process, OwnedFd), StepError> {
        let Forking { number, socket } = forking;
        if landlock.is_some() != self.has_landlock {
            return Err(invalid("the shell came without its Landlock ruleset"));
        }
        let sent: Vec<_> = landlock.into_iter().chain(joins).map(AsFd::as_fd).collect();
        let told = message::send(&socket, &ShellIsReady, &sent).step("tell the process of its shell");
        // First of all the reason for which there may be none.
        let pid = self.zygote.forked(number)?;
        told?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).step("open the new process")?;
        Ok((Process { pid: Some(pid), pidfd }, socket))
    }

    /// Takes note of every child that ended.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid == self.zygote.pid {
                self.give_up(&format!("the zygote ended ({:?})", exit_status(status)));
                continue;
            }
            self.connecting.remove(&pid);
            let Some((id, role)) = self.children.remove(&pid) else { continue };
            let Some(sandbox) = self.sandboxes.get_mut(&id) else { continue };
            match role {
                Role::Init => sandbox.init_ended = true,
                Role::Kernel(kernel) => {
                    sandbox.kernels.remove(&kernel);
                    let usage = sandbox.cgroup.usage();
                    self.reply(&Reply::Exited { id, kernel, status: Some(exit_status(status)), usage });
                }
                Role::Command(process) => {
                    sandbox.commands.remove(&process);
                    self.reply(&Reply::ProcessExited { id, process, status: Some(exit_status(status)) });
                }
            }
            self.finish(id);
        }
    }

    /// Tells the owner, as the last thing that it hears, that no more sandboxes are made.
    fn give_up(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.is_unusable, true) {
            self.reply(&Reply::Unusable { reason: reason.to_owned() });
        }
    }

    /// Removes a sandbox once all its processes are reaped.
    fn finish(&mut self, id: u64) {
        let done = self.sandboxes.get(&id).is_some_and(|sandbox| sandbox.closing && sandbox.is_over());
        if done && let Some(sandbox) = self.sandboxes.remove(&id) {
            for (_, watch) in self.watches.extract_if(|_, watch| watch.sandbox == id).collect::<Vec<_>>() {
                self.unwatch(watch.what.fd());
                if let Watched::Waking(_, number) = watch.what {
                    self.answer(number, Err(invalid(NO_CHECKPOINT)));
                }
            }
            if sandbox.kernels.contains_key(&FIRST_KERNEL) {
                // A checkpoint that took over: nobody's child here, so no reaper tells its end.
                self.reply(&Reply::Exited { id, kernel: FIRST_KERNEL, status: None, usage: sandbox.cgroup.usage() });
            }
            // A group that does not go now goes with the instance's.
            let _left_for_the_sweep = sandbox.cgroup.remove();
            for number in sandbox.closers {
                self.answer(number, Ok(()));
            }
            let workspace = sandbox.workspace;
            if !self.sandboxes.values().any(|sandbox| sandbox.workspace == workspace) {
                for number in self.closing.remove(&workspace).unwrap_or_default() {
                    self.answer(number, Ok(()));
                }
            }
        }
    }

    fn workspace_path(&self, workspace: u64) -> PathBuf {
        self.workspaces.join(workspace.to_string())
    }

    /// Ends everything: aludel is gone or wants it so, or the zygote is gone.
    fn end(&mut self, children: &OwnedFd) {
        self.spare = None;
        for sandbox in self.sandboxes.values_mut() {
            sandbox.closing = true;
            sandbox.kill();
        }
        for _ in 0..100 {
            self.reap();
            self.sandboxes.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.finish(id));
            if self.sandboxes.is_empty() {
                break;
            }
            let _timeout = message::is_readable(children.as_fd(), Duration::from_millis(50));
            drain(children);
        }
        let _ended = rustix::process::pidfd_send_signal(&self.zygote.pidfd, Signal::KILL);
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
