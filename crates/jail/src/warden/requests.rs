//! Requests of aludel.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use aludel_ignore::Ignore;
use rustix::process::Signal;

use super::watches::EpollSource;
use super::{NO_CHECKPOINT, WardenServer, invalid};
use crate::cgroup::CpuShare;
use crate::freezer::{FREEZE_TIMEOUT, FreezeProgress, Freezing, FrozenSandbox};
use crate::message::{self, FIRST_KERNEL, Profile, TerminalSize, WardenAnswer, WardenMessage, WardenRequest};
use crate::ports::{self, PortConnection};
use crate::sandbox::JailSandbox;
use crate::{Step, StepError, mounts, sys, terminals};

/// Connections that are made at once, each by a process of its own. One to a listener with a full queue takes 20 ms.
const MAX_CONNECTING: usize = 64;
/// Those to one sandbox among them.
const MAX_CONNECTING_EACH: usize = 2;

impl WardenServer {
    pub(super) fn handle(&mut self, number: u64, request: WardenRequest, descriptors: &[OwnedFd]) {
        match request {
            WardenRequest::OpenWorkspace { workspace, slot, bytes, inodes } => {
                self.open_workspace(number, workspace, slot, (bytes, inodes));
            }
            WardenRequest::CloseWorkspace { workspace } => self.close_workspace(number, workspace),
            WardenRequest::Create { id, spec } => {
                let created = self.create(id, spec, descriptors);
                self.answer_of_zygote(number, created);
            }
            WardenRequest::StartKernel { id, kernel, start } => {
                let started = self.start_kernel(id, kernel, start, descriptors);
                self.answer_of_zygote(number, started);
            }
            WardenRequest::EndKernel { id, kernel } => {
                if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                    sandbox.end_kernel(kernel);
                }
                if kernel == FIRST_KERNEL {
                    self.give_up_waking(id);
                }
            }
            WardenRequest::Signal { id, kernel, signal } => {
                let kernel = self.sandboxes.get(&id).and_then(|sandbox| sandbox.kernels.get(&kernel));
                if let (Some(kernel), Some(signal)) = (kernel, Signal::from_named_raw(signal)) {
                    // Processes of its program end with it, as in Jupyter.
                    kernel.signal_group(signal);
                    if signal == Signal::KILL {
                        kernel.signal(signal);
                    }
                }
            }
            WardenRequest::Restore { id } => self.restore_checkpoint(number, id, descriptors),
            WardenRequest::Spawn { id, process, terminal } => {
                if self.spawn(id, process, terminal, descriptors).is_err() {
                    // If the process got that far, it reports the reason on its own pipe.
                    self.reply(&WardenMessage::ProcessExited { id, process, status: None });
                }
            }
            WardenRequest::OpenTerminal { id, size } => match self.open_terminal(id, size) {
                Ok(ends) => {
                    let reply = WardenMessage::Answer { number, answer: WardenAnswer::Done };
                    message::send(&self.control, &reply, &ends.each_ref().map(AsFd::as_fd))
                        .ignore("the loop notices when aludel is gone");
                }
                Err(error) if error.source.raw_os_error() == Some(libc::ENOSPC) => {
                    self.reply(&WardenMessage::Answer { number, answer: WardenAnswer::NoTerminal });
                }
                Err(error) => self.answer(number, Err(error)),
            },
            WardenRequest::Connect { id, port } => {
                if let Err(error) = self.connect(number, id, port) {
                    self.answer(number, Err(error));
                }
            }
            WardenRequest::SignalProcess { id, process, signal } => self.signal_process(id, process, signal),
            WardenRequest::Foreground { id } => {
                self.rank_checkpoint_of_cell(id);
                // Before the first cell there are commands at most; and it may be out of memory by now, where processors are short.
                if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                    if std::mem::replace(&mut sandbox.has_run, true) {
                        sandbox.note_oom_kills();
                    }
                    sandbox.end_of_waking();
                }
                self.put_into_foreground(id);
            }
            WardenRequest::Freeze { id } => {
                if let Err(error) = self.freeze(number, id) {
                    self.answer(number, Err(error));
                }
            }
            WardenRequest::Thaw { id } => {
                let thawed = self.thaw(id);
                self.answer(number, thawed);
            }
            WardenRequest::Ping => self.answer(number, Ok(())),
            WardenRequest::Usage { id } => {
                let usage = self.sandboxes.get(&id).map(|sandbox| sandbox.cgroup.usage()).unwrap_or_default();
                self.reply(&WardenMessage::Answer { number, answer: WardenAnswer::Usage(usage) });
            }
            WardenRequest::Destroy { id } => self.destroy(number, id),
        }
    }

    fn open_workspace(&mut self, number: u64, workspace: u64, slot: u32, (bytes, inodes): (u64, u64)) {
        let path = self.workspace_path(workspace);
        match mounts::make_workspace(&path, self.map.owner(slot), bytes, inodes) {
            Ok(root) => {
                let reply = WardenMessage::Answer { number, answer: WardenAnswer::Done };
                message::send(&self.control, &reply, &[root.as_fd()]).ignore("the loop notices when aludel is gone");
            }
            Err(error) => {
                mounts::remove_workspace(&path);
                self.answer(number, Err(error));
            }
        }
    }

    /// Removes a workspace. The request is answered when no sandbox uses it any more.
    fn close_workspace(&mut self, number: u64, workspace: u64) {
        mounts::remove_workspace(&self.workspace_path(workspace));
        if self.sandboxes.values().any(|sandbox| sandbox.workspace == workspace) {
            self.workspace_closers.entry(workspace).or_default().push(number);
        } else {
            self.answer(number, Ok(()));
        }
    }

    /// Answers a request that needs the zygote. Without a zygote it stays unanswered: another warden may handle it.
    fn answer_of_zygote(&mut self, number: u64, made: Result<(), StepError>) {
        if made.is_err() && self.zygote.has_hung_up() {
            self.give_up("the zygote ended");
        } else {
            self.answer(number, made);
        }
    }

    /// Wakes the checkpoint of the kernel that ended. The request is answered when the checkpoint reports that it has taken over.
    fn restore_checkpoint(&mut self, number: u64, id: u64, pipes: &[OwnedFd]) {
        self.rank_checkpoint(id);
        let has_none = |sandbox: &JailSandbox| !sandbox.kernels.contains_key(&FIRST_KERNEL);
        let sandbox = self.sandboxes.get_mut(&id).filter(|sandbox| has_none(sandbox) && !sandbox.is_ending);
        let ([from_host, to_host], Some(sandbox)) = (pipes, sandbox) else {
            return self.answer(number, Err(invalid(NO_CHECKPOINT)));
        };
        if sandbox.wake([from_host.as_fd(), to_host.as_fd()])
            && let Some(socket) = sandbox.wake.take()
        {
            self.watch(id, EpollSource::Waking { socket, number, greetings: 0 });
        } else {
            self.answer(number, Err(invalid(NO_CHECKPOINT)));
        }
    }

    fn signal_process(&self, id: u64, process: u64, signal: i32) {
        let process = self.sandboxes.get(&id).and_then(|sandbox| sandbox.commands.get(&process));
        if let (Some(process), Some(signal)) = (process, Signal::from_named_raw(signal)) {
            if signal == Signal::KILL {
                // A process that was stopped before it had a group of its own is not reached by the signal to the group.
                process.signal(signal);
            }
            process.signal_group(signal);
        }
    }

    /// Ends a sandbox. The request is answered when nothing of it is left.
    fn destroy(&mut self, number: u64, id: u64) {
        let Some(sandbox) = self.sandboxes.get_mut(&id) else { return self.answer(number, Ok(())) };
        // Ending takes processor time, and a client waits for it.
        sandbox.cgroup.set_share(CpuShare::Normal).ignore("the old share stays");
        sandbox.is_ending = true;
        sandbox.closers.push(number);
        sandbox.kill();
        self.finish(id);
    }

    /// Begins to stop a sandbox, and answers when it has stopped. Others are served meanwhile.
    fn freeze(&mut self, number: u64, id: u64) -> Result<(), StepError> {
        let sandbox = self.sandboxes.get(&id).filter(|sandbox| !sandbox.is_ending && !sandbox.init_ended);
        let sandbox = sandbox.ok_or_else(|| invalid("there is no such sandbox"))?;
        if sandbox.frozen.is_some() {
            self.answer(number, Ok(()));
            return Ok(());
        }
        if self.freezing.contains_key(&id) {
            return Err(invalid("the sandbox is being stopped"));
        }
        let freezing = Freezing::begin(sandbox.cgroup.freezer(), sandbox.init.pid, FREEZE_TIMEOUT)?;
        self.look_at(id, number, freezing);
        Ok(())
    }

    fn look_at(&mut self, id: u64, number: u64, freezing: Freezing) {
        let Some(sandbox) = self.sandboxes.get_mut(&id).filter(|sandbox| !sandbox.is_ending && !sandbox.init_ended)
        else {
            return self.answer(number, Err(invalid("the sandbox has ended")));
        };
        // Those that pause in a crowd look like stopped ones, and go on later.
        let Some(quiet) = self.waits.quiet() else {
            self.freezing.insert(id, (number, freezing.later()));
            return;
        };
        match freezing.look() {
            Ok(FreezeProgress::Done(frozen)) if self.waits.quiet() != Some(quiet) => {
                let again = frozen.thaw().and_then(|()| self.freeze(number, id));
                if let Err(error) = again {
                    self.answer(number, Err(error));
                }
            }
            Ok(FreezeProgress::Done(frozen)) => {
                sandbox.frozen = Some(frozen);
                self.answer(number, Ok(()));
            }
            Ok(FreezeProgress::Continues(freezing)) => {
                self.freezing.insert(id, (number, freezing));
            }
            Ok(FreezeProgress::Undone) => {
                self.reply(&WardenMessage::Answer { number, answer: WardenAnswer::NotStopped });
            }
            Err(error) => self.answer(number, Err(error)),
        }
    }

    /// Looks at the sandboxes that are being stopped; returns the time of the next look.
    pub(super) fn continue_freezing(&mut self, now: Instant) -> Option<Instant> {
        let due = self.freezing.extract_if(|_, (_, freezing)| freezing.due <= now).collect::<Vec<_>>();
        for (id, (number, freezing)) in due {
            self.look_at(id, number, freezing);
        }
        self.freezing.values().map(|(_, freezing)| freezing.due).min()
    }

    fn thaw(&mut self, id: u64) -> Result<(), StepError> {
        if let Some((number, freezing)) = self.freezing.remove(&id) {
            self.answer(number, Err(invalid("the sandbox is to go on")));
            return freezing.cancel();
        }
        let frozen = self.sandboxes.get_mut(&id).and_then(|sandbox| sandbox.frozen.take());
        frozen.map_or(Ok(()), FrozenSandbox::thaw)
    }

    /// Opens a terminal of a sandbox.
    fn open_terminal(&self, id: u64, size: TerminalSize) -> Result<[OwnedFd; 2], StepError> {
        let sandbox = self.living(id)?;
        terminals::open(sandbox.terminals.as_ref().ok_or_else(|| invalid("the sandbox has no terminals"))?, size)
    }

    /// Forks a process that connects to a port of a sandbox and answers the request: the warden must stay in the host's network.
    fn connect(&mut self, number: u64, id: u64, port: u16) -> Result<(), StepError> {
        let sandbox = self.living(id)?;
        if sandbox.profile != Profile::Services {
            return Err(invalid("the sandbox has no network"));
        }
        let to_same = self.connecting.values().filter(|connecting| **connecting == id).count();
        if self.connecting.len() >= MAX_CONNECTING || to_same >= MAX_CONNECTING_EACH {
            self.reply(&WardenMessage::Answer { number, answer: WardenAnswer::PortsBusy });
            return Ok(());
        }
        match sys::fork(0).step("fork")? {
            sys::Fork::Parent(pid) => {
                self.connecting.insert(pid, id);
                Ok(())
            }
            sys::Fork::Child => {
                let connection = ports::connect(sandbox.init.pidfd.as_fd(), port);
                let (answer, descriptor) = match connection {
                    Ok(PortConnection::Open(socket)) => (WardenAnswer::Done, Some(socket)),
                    Ok(PortConnection::Closed) => (WardenAnswer::PortClosed, None),
                    Err(error) => (WardenAnswer::Failed { reason: error.to_string() }, None),
                };
                let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
                message::send(&self.control, &WardenMessage::Answer { number, answer }, &descriptors)
                    .ignore("the loop notices when aludel is gone");
                sys::exit(0)
            }
        }
    }
}
