//! The warden's loop: requests from aludel, kernels from the zygote, ends of children.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal};

use crate::cgroup::{self, Cgroup, Hierarchy};
use crate::idmap::{FIRST_SLOT, IdMap};
use crate::lockdown::{Identity, Lockdown};
use crate::message::{self, ExitStatus, Limits, MAX_SLOTS, Reply, Request, Setup};
use crate::shell::{self, ShellSources};
use crate::zygote::{ForkRequest, Zygote};
use crate::{Step, StepError, landlock, mounts, sweep, sys};

/// Where an instance has its workspaces mounted, in its directory.
pub const WORKSPACES: &str = "workspaces";

/// One sandbox.
struct Box {
    init: Pid,
    init_pidfd: OwnedFd,
    kernel: Option<(Pid, OwnedFd)>,
    cgroup: Cgroup,
    init_ended: bool,
    /// Whether aludel asked for the end and waits for word of it.
    closing: bool,
}

/// Everything the warden knows.
struct Warden {
    control: OwnedFd,
    zygote: Zygote,
    map: IdMap,
    hierarchy: Hierarchy,
    boxes: HashMap<u64, Box>,
}

/// Runs until aludel closes the control socket, then removes everything. Runs as pid 1 of its pid namespace.
pub(crate) fn run(control: OwnedFd, setup: &Setup, map: IdMap, hierarchy: &Hierarchy) {
    let start = || -> Result<(Warden, OwnedFd, Vec<String>), StepError> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).step("die with the parent")?;
        sys::ignore_broken_pipes();
        let children = sys::child_signals().step("watch the children")?;
        let (hierarchy, mut warnings) = own_group(hierarchy, setup)?;
        mounts::detach_from_host()?;
        mounts::mount_proc()?;
        if landlock::version() == 0 {
            warnings.push("this kernel has no Landlock: mounts and ids alone guard the files".into());
        }
        if map == IdMap::Single {
            warnings.push("all sandboxes share one user id: run as root to give each its own".into());
        }
        let zygote = Zygote::start(setup, map)?;
        Ok((Warden { control: clone_of(&control)?, zygote, map, hierarchy, boxes: HashMap::new() }, children, warnings))
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
    mounts::let_go_of_workspaces(&setup.instance.join(WORKSPACES));
    // From memory: the note in the instance's directory may have gone with it, and is for the next start only.
    for group in warden.hierarchy.directories() {
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
fn own_group(hierarchy: &Hierarchy, setup: &Setup) -> Result<(Hierarchy, Vec<String>), StepError> {
    let mut warnings = Vec::new();
    let name = format!("aludel-{}", setup.instance.file_name().and_then(|name| name.to_str()).unwrap_or("instance"));
    let own = match hierarchy.descend(&name) {
        Ok(own) => own,
        Err(error) => {
            warnings.push(format!("control groups cannot be used ({error})"));
            Hierarchy::Absent
        }
    };
    sweep::note_groups(&setup.instance, &own.directories()).step("note the control groups")?;
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

    fn serve(&mut self, children: &OwnedFd) {
        loop {
            let ready = {
                let mut fds = [PollFd::new(&self.control, PollFlags::IN), PollFd::new(children, PollFlags::IN)];
                if rustix::io::retry_on_intr(|| poll(&mut fds, None)).is_err() {
                    return;
                }
                [!fds[0].revents().is_empty(), !fds[1].revents().is_empty()]
            };
            if ready[1] {
                drain(children);
                self.reap();
            }
            if ready[0] {
                match message::receive::<Request>(&self.control) {
                    Ok(Some((request, descriptors))) => self.handle(request, &descriptors),
                    // Closed, or no longer making sense: either way aludel is not there.
                    Ok(None) | Err(_) => return,
                }
            }
        }
    }

    fn handle(&mut self, request: Request, descriptors: &[OwnedFd]) {
        match request {
            Request::OpenWorkspace { id, path, slot, bytes, inodes } => {
                match mounts::make_workspace(&path, self.map.owner(slot), bytes, inodes) {
                    Ok(root) => {
                        let _gone = message::send(&self.control, &Reply::Workspace { id }, &[root.as_fd()]);
                    }
                    Err(error) => self.reply(&Reply::Failed { id, reason: error.to_string() }),
                }
            }
            Request::Create { id, slot, workspace, limits } => {
                if let Err(error) = self.create(id, slot, &workspace, &limits, descriptors) {
                    self.reply(&Reply::Failed { id, reason: error.to_string() });
                } else {
                    self.reply(&Reply::Created { id });
                }
            }
            Request::Signal { id, signal } => {
                let kernel = self.boxes.get(&id).and_then(|sandbox| sandbox.kernel.as_ref());
                if let (Some((_, pidfd)), Some(signal)) = (kernel, Signal::from_named_raw(signal)) {
                    // It may have ended since; its exit is reported on its own.
                    let _ended = pidfd_send_signal(pidfd, signal);
                }
            }
            Request::Usage { id } => {
                let usage = self.boxes.get(&id).map(|sandbox| sandbox.cgroup.usage()).unwrap_or_default();
                self.reply(&Reply::Usage { id, usage });
            }
            Request::Destroy { id } => match self.boxes.get_mut(&id) {
                Some(sandbox) => {
                    sandbox.closing = true;
                    sandbox.kill();
                    self.finish(id);
                }
                None => self.reply(&Reply::Destroyed { id }),
            },
        }
    }

    fn create(
        &mut self,
        id: u64,
        slot: u32,
        workspace: &std::path::Path,
        limits: &Limits,
        descriptors: &[OwnedFd],
    ) -> Result<(), StepError> {
        let invalid = |reason: &str| StepError {
            step: "make a sandbox".into(),
            source: io::Error::new(io::ErrorKind::InvalidInput, reason),
        };
        let [control, stdout, stderr] = descriptors else { return Err(invalid("three descriptors are needed")) };
        if slot >= MAX_SLOTS || self.boxes.contains_key(&id) {
            return Err(invalid("the slot or the id cannot be used"));
        }
        let workspace = mounts::open_workspace(workspace)?;
        let cgroup = Cgroup::create(&self.hierarchy, &format!("s{id}"), limits).step("make the control group")?;
        let made = self.fill(slot, workspace, limits, &cgroup, [control, stdout, stderr]);
        match made {
            Ok((shell, kernel)) => {
                let sandbox = Box {
                    init: shell.0,
                    init_pidfd: shell.1,
                    kernel: Some(kernel),
                    cgroup,
                    init_ended: false,
                    closing: false,
                };
                self.boxes.insert(id, sandbox);
                Ok(())
            }
            Err(error) => {
                // What was started is dying; the group goes as soon as it is empty.
                self.reap();
                let _left_for_the_sweep = cgroup.remove();
                Err(error)
            }
        }
    }

    /// The processes of a new sandbox: its init, then its kernel.
    #[allow(clippy::type_complexity, reason = "two pairs, taken apart at once by the only caller")]
    fn fill(
        &self,
        slot: u32,
        workspace: OwnedFd,
        limits: &Limits,
        cgroup: &Cgroup,
        [control, stdout, stderr]: [&OwnedFd; 3],
    ) -> Result<((Pid, OwnedFd), (Pid, OwnedFd)), StepError> {
        let procs = cgroup.open_procs().step("open the control group")?;
        let shell = shell::prepare(&ShellSources {
            zygote: self.zygote.pidfd.as_fd(),
            join_user_namespace: self.map != IdMap::Single,
            cgroup_procs: &procs,
            workspace,
            limits,
        })?;
        let identity = match self.map {
            IdMap::Range { .. } => Identity::Own(FIRST_SLOT + slot),
            IdMap::Single => Identity::Only,
        };
        let landlock = shell.landlock.is_some();
        let lockdown = Lockdown { identity, limits, cgroups: procs.len(), landlock };
        let mut descriptors = vec![shell.pidfd.as_fd()];
        descriptors.extend(shell.landlock.iter().map(AsFd::as_fd));
        descriptors.extend([control.as_fd(), stdout.as_fd(), stderr.as_fd()]);
        descriptors.extend(procs.iter().map(AsFd::as_fd));
        let kernel =
            self.zygote.fork(&ForkRequest { landlock, lockdown: lockdown.steps() }, &descriptors).and_then(|pid| {
                let pidfd = pidfd_open(pid, PidfdFlags::empty()).step("open the kernel")?;
                Ok((pid, pidfd))
            });
        match kernel {
            Ok(kernel) => Ok(((shell.init, shell.pidfd), kernel)),
            Err(error) => {
                let _ended = pidfd_send_signal(&shell.pidfd, Signal::KILL);
                Err(error)
            }
        }
    }

    /// Takes note of every child that ended.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid == self.zygote.pid {
                self.reply(&Reply::Unusable { reason: format!("the zygote ended ({:?})", exit_status(status)) });
                continue;
            }
            let found = self.boxes.iter_mut().find_map(|(id, sandbox)| {
                let is_kernel = sandbox.kernel.as_ref().is_some_and(|(kernel, _)| *kernel == pid);
                (is_kernel || sandbox.init == pid).then_some((*id, is_kernel, sandbox))
            });
            let Some((id, is_kernel, sandbox)) = found else { continue };
            if is_kernel {
                sandbox.kernel = None;
                let usage = sandbox.cgroup.usage();
                self.reply(&Reply::Exited { id, status: exit_status(status), usage });
            } else {
                sandbox.init_ended = true;
            }
            self.finish(id);
        }
    }

    /// Removes a sandbox once all its processes are reaped.
    fn finish(&mut self, id: u64) {
        let done = self
            .boxes
            .get(&id)
            .is_some_and(|sandbox| sandbox.closing && sandbox.init_ended && sandbox.kernel.is_none());
        if done && let Some(sandbox) = self.boxes.remove(&id) {
            // A group that does not go now goes with the instance's.
            let _left_for_the_sweep = sandbox.cgroup.remove();
            self.reply(&Reply::Destroyed { id });
        }
    }

    /// Ends everything: aludel is gone or wants it so.
    fn end(&mut self, children: &OwnedFd) {
        for sandbox in self.boxes.values_mut() {
            sandbox.closing = true;
            sandbox.kill();
        }
        for _ in 0..100 {
            self.reap();
            self.boxes.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.finish(id));
            if self.boxes.is_empty() {
                break;
            }
            let _timeout = message::is_readable(children.as_fd(), Duration::from_millis(50));
            drain(children);
        }
        let _ended = pidfd_send_signal(&self.zygote.pidfd, Signal::KILL);
    }
}

impl Box {
    fn kill(&self) {
        // Either may have ended already.
        let _ended = pidfd_send_signal(&self.init_pidfd, Signal::KILL);
        if let Some((_, kernel)) = &self.kernel {
            let _ended = pidfd_send_signal(kernel, Signal::KILL);
        }
    }
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
