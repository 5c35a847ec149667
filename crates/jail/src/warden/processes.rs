//! Sandboxes, kernels and commands, made by the fork servers.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use aludel_ignore::Ignore;
use rustix::process::{PidfdFlags, Signal, kill_process, pidfd_open};

use super::watches::EpollSource;
use super::{Role, WardenServer, invalid};
use crate::cgroup::Cgroup;
use crate::foreground::BoostUsage;
use crate::fork_server::{ForkRequest, ForkServer, NamespacesReady};
use crate::idmap::{FIRST_SLOT, IdMap};
use crate::lockdown::{Identity, Lockdown};
use crate::message::{self, FIRST_KERNEL, JailLimits, JailSpec, KernelStart, MAX_SLOTS, Profile};
use crate::mounts::TerminalSources;
use crate::sandbox::{JailSandbox, ProcessHandle};
use crate::{Step, StepError, mounts, sys, terminals};

/// Descriptors of a kernel: its pipes from and to the host, stdout, stderr.
const KERNEL_DESCRIPTORS: usize = 4;
/// Descriptors of a command: those of a kernel, and stdin.
const COMMAND_DESCRIPTORS: usize = 5;

/// A process to make in a sandbox.
#[derive(Clone, Copy)]
enum Kind {
    /// The sandbox's first kernel: nothing else runs there yet.
    FirstKernel(KernelStart),
    Kernel(KernelStart),
    Command {
        /// True if its stdin is a terminal.
        terminal: bool,
    },
}

/// The sandbox for a new process, as far as it is known before its namespaces are ready.
#[derive(Clone, Copy)]
struct ProcessTarget<'a> {
    init: BorrowedFd<'a>,
    identity: Identity,
    limits: &'a JailLimits,
    profile: Profile,
}

/// A requested process that waits for its namespaces.
struct Forking {
    kind: Kind,
    /// The number of the request.
    number: u64,
    /// Our end of its socket to the warden.
    socket: OwnedFd,
    /// Our end of its checkpoint's socket.
    wake: Option<OwnedFd>,
}

impl WardenServer {
    pub(super) fn create(&mut self, id: u64, spec: JailSpec, descriptors: &[OwnedFd]) -> Result<(), StepError> {
        let JailSpec { start, slot, workspace, limits, profile } = spec;
        let expected = if start.is_some() { KERNEL_DESCRIPTORS } else { 0 };
        if descriptors.len() != expected {
            return Err(invalid("a kernel needs four descriptors"));
        }
        if slot >= MAX_SLOTS || self.sandboxes.contains_key(&id) {
            return Err(invalid("the slot or the id cannot be used"));
        }
        let (identity, user) = match self.map {
            IdMap::Range { .. } => (Identity::Own(FIRST_SLOT + slot), FIRST_SLOT + slot),
            IdMap::Single => (Identity::Only, FIRST_SLOT),
        };
        let spare = self.take_spare()?;
        let init = spare.init().ok_or_else(|| invalid("the sandbox's init ended early"))?;
        // The zygote forks while the rest is made.
        let target = ProcessTarget { init, identity, limits: &limits, profile };
        let begin = |start| self.begin_fork(target, Kind::FirstKernel(start), descriptors);
        let forking = start.map(begin).transpose()?;
        let tree = mounts::open_workspace(&self.workspace_path(workspace))?;
        let terminals = self.terminal_sources(profile, slot)?;
        let cgroup = Cgroup::create(&self.hierarchy, &format!("s{id}"), &limits, profile);
        let cgroup = cgroup.step("make the control group")?;
        let namespaces = cgroup.open_joins().step("open the control group").and_then(|joins| {
            let namespaces = spare.assign_to_sandbox(&joins, &tree, terminals.as_ref(), limits.clone(), user)?;
            Ok((namespaces, joins))
        });
        let (namespaces, joins) = match namespaces {
            Ok(made) => made,
            Err(error) => {
                // The started processes are ending; the group is removed as soon as it is empty.
                self.reap();
                cgroup.remove().ignore("it is removed with the instance's otherwise");
                return Err(error);
            }
        };
        self.children.insert(namespaces.init, (id, Role::Init));
        let mut sandbox = JailSandbox {
            init: ProcessHandle { pid: Some(namespaces.init), pidfd: namespaces.pidfd },
            init_socket: Rc::clone(&namespaces.socket),
            landlock: namespaces.landlock,
            sockets: None,
            kernels: HashMap::new(),
            commands: HashMap::new(),
            cgroup,
            boost_usage: BoostUsage::default(),
            oom_kills: 0,
            identity,
            limits,
            profile,
            terminals: terminals.map(|sources| sources.terminals),
            frozen: None,
            wake: None,
            checkpoint: None,
            init_ended: false,
            made: Instant::now(),
            workspace,
            is_ending: false,
            closers: Vec::new(),
            has_run: false,
            has_waking_memory: false,
        };
        self.watch(id, EpollSource::Flocks(namespaces.socket));
        let Some(mut forking) = forking else {
            self.sandboxes.insert(id, sandbox);
            return Ok(());
        };
        let wake = forking.wake.take();
        match self.finish_fork(forking, sandbox.landlock.as_ref(), &joins) {
            Ok((kernel, socket)) => {
                self.note_child(&kernel, id, Role::Kernel(FIRST_KERNEL));
                sandbox.wake = wake;
                sandbox.kernels.insert(FIRST_KERNEL, kernel);
                self.sandboxes.insert(id, sandbox);
                self.put_into_foreground(id);
                self.watch(id, EpollSource::Greeting { socket, role: Role::Kernel(FIRST_KERNEL) });
                Ok(())
            }
            Err(error) => {
                // Its exit is reported like any other, but no request waits for it.
                sandbox.is_ending = true;
                sandbox.kill();
                self.sandboxes.insert(id, sandbox);
                Err(error)
            }
        }
    }

    fn terminal_sources(&self, profile: Profile, slot: u32) -> Result<Option<TerminalSources>, StepError> {
        Ok(match profile {
            Profile::Data => None,
            Profile::Services => Some(TerminalSources {
                terminals: terminals::make_mount(self.map.owner(slot))?,
                own: mounts::open_own_terminal()?,
            }),
        })
    }

    pub(super) fn start_kernel(
        &mut self,
        id: u64,
        kernel: u64,
        start: KernelStart,
        descriptors: &[OwnedFd],
    ) -> Result<(), StepError> {
        let sandbox = self.living(id)?;
        if descriptors.len() != KERNEL_DESCRIPTORS || kernel == FIRST_KERNEL || sandbox.kernels.contains_key(&kernel) {
            return Err(invalid("four descriptors and a new number are needed"));
        }
        let (child, socket) = self.fork(sandbox, Kind::Kernel(start), descriptors)?;
        self.note_child(&child, id, Role::Kernel(kernel));
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.kernels.insert(kernel, child);
        }
        self.put_into_foreground(id);
        self.watch(id, EpollSource::Greeting { socket, role: Role::Kernel(kernel) });
        Ok(())
    }

    /// The sandbox of this number, if it can have new processes.
    pub(super) fn living(&self, id: u64) -> Result<&JailSandbox, StepError> {
        let sandbox = self.sandboxes.get(&id).filter(|sandbox| !sandbox.is_ending && !sandbox.init_ended);
        let sandbox = sandbox.ok_or_else(|| invalid("there is no such sandbox"))?;
        let is_stopped = sandbox.frozen.is_some() || self.freezing.contains_key(&id);
        if is_stopped { Err(invalid("the sandbox is stopped")) } else { Ok(sandbox) }
    }

    pub(super) fn spawn(
        &mut self,
        id: u64,
        process: u64,
        terminal: bool,
        descriptors: &[OwnedFd],
    ) -> Result<(), StepError> {
        let sandbox = self.living(id)?;
        if descriptors.len() != COMMAND_DESCRIPTORS || sandbox.commands.contains_key(&process) {
            return Err(invalid("five descriptors and a new id are needed"));
        }
        let (child, socket) = self.fork(sandbox, Kind::Command { terminal }, descriptors)?;
        self.note_child(&child, id, Role::Command(process));
        if let Some(sandbox) = self.sandboxes.get_mut(&id) {
            sandbox.commands.insert(process, child);
        }
        self.put_into_foreground(id);
        self.watch(id, EpollSource::Greeting { socket, role: Role::Command(process) });
        Ok(())
    }

    fn note_child(&mut self, process: &ProcessHandle, sandbox: u64, role: Role) {
        if let Some(pid) = process.pid {
            self.children.insert(pid, (sandbox, role));
        }
    }

    /// Forks a process into a sandbox; `descriptors` are its pipes from and to the host and its standard streams. Returns the process and
    /// the warden's end of its socket.
    fn fork(
        &self,
        sandbox: &JailSandbox,
        kind: Kind,
        descriptors: &[OwnedFd],
    ) -> Result<(ProcessHandle, OwnedFd), StepError> {
        let JailSandbox { init, identity, limits, profile, landlock, cgroup, .. } = sandbox;
        let target = ProcessTarget { init: init.pidfd.as_fd(), identity: *identity, limits, profile: *profile };
        let joins = cgroup.open_joins().step("open the control group")?;
        let forking = self.begin_fork(target, kind, descriptors)?;
        self.finish_fork(forking, landlock.as_ref(), &joins)
    }

    fn fork_server(&self, kind: Kind) -> &ForkServer {
        match kind {
            Kind::FirstKernel(_) | Kind::Kernel(_) => &self.zygote,
            Kind::Command { .. } => &self.spawner,
        }
    }

    /// Requests a process, which waits for [`WardenServer::finish_fork`]. It ends if that is never called.
    fn begin_fork(&self, target: ProcessTarget<'_>, kind: Kind, descriptors: &[OwnedFd]) -> Result<Forking, StepError> {
        let (socket, theirs) = message::socket_pair().step("make a socket")?;
        let ProcessTarget { init, identity, limits, profile } = target;
        let lockdown = Lockdown {
            identity,
            limits,
            cgroups: self.hierarchy.parents().len(),
            landlock: self.has_landlock,
            refusal: self.refusal,
            joins_others: !matches!(kind, Kind::FirstKernel(_)),
            is_kernel: !matches!(kind, Kind::Command { .. }),
            has_checkpoints: matches!(kind, Kind::FirstKernel(_)),
            has_terminal: matches!(kind, Kind::Command { terminal: true }),
            profile,
        };
        let mut sent = vec![init];
        sent.extend(descriptors.iter().map(AsFd::as_fd));
        sent.push(theirs.as_fd());
        let checkpoint = matches!(kind, Kind::FirstKernel(_)).then(|| checkpoint_sockets(profile)).transpose()?;
        let (wake, theirs) = checkpoint.unzip();
        sent.extend(theirs.as_ref().map(AsFd::as_fd));
        let kernel = match kind {
            Kind::FirstKernel(start) | Kind::Kernel(start) => Some(start),
            Kind::Command { .. } => None,
        };
        let server = self.fork_server(kind);
        let (number, landlock) = (server.next_number(), self.has_landlock);
        server.ask(&ForkRequest { number, landlock, lockdown: lockdown.steps(), kernel }, &sent)?;
        Ok(Forking { kind, number, socket, wake: wake.flatten() })
    }

    /// Lets a process continue whose namespaces are ready.
    fn finish_fork(
        &self,
        forking: Forking,
        landlock: Option<&OwnedFd>,
        joins: &[OwnedFd],
    ) -> Result<(ProcessHandle, OwnedFd), StepError> {
        let Forking { kind, number, socket, .. } = forking;
        if landlock.is_some() != self.has_landlock {
            return Err(invalid("the namespaces came without their Landlock ruleset"));
        }
        let sent: Vec<_> = landlock.into_iter().chain(joins).map(AsFd::as_fd).collect();
        let sent_on = message::send(&socket, &NamespacesReady, &sent).step("tell the process of its namespaces");
        // This comes first: it returns the error if there is no process.
        let pid = self.fork_server(kind).forked(number)?;
        sent_on?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty());
        if pidfd.is_err() {
            // No other code knows of this process. Its pid is not reused before it is reaped.
            kill_process(pid, Signal::KILL).ignore("it may have ended");
        }
        let pidfd = pidfd.step("open the new process")?;
        Ok((ProcessHandle { pid: Some(pid), pidfd }, socket))
    }
}

/// The socket that wakes a checkpoint, and the other end of it. Programs can send descriptors to it from their start on, and the warden
/// would have to close them; that of a watching `inotify`, which only the profile for services has, takes 6 ms. With that profile there is
/// no checkpoint where Linux cannot refuse them.
fn checkpoint_sockets(profile: Profile) -> Result<(Option<OwnedFd>, OwnedFd), StepError> {
    let (socket, theirs) = message::socket_pair().step("make a checkpoint's socket")?;
    rustix::net::sockopt::set_socket_passcred(&socket, true).step("ask for the sender's number")?;
    let refuses = sys::refuse_descriptors(socket.as_fd());
    Ok(((refuses || profile == Profile::Data).then_some(socket), theirs))
}
