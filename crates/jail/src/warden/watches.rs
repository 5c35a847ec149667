//! Descriptors of sandboxes that are watched, and their events.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use aludel_ignore::Ignore;
use rustix::event::epoll;

use super::{NO_CHECKPOINT, Role, WardenServer, invalid};
use crate::lockdown::RefusalHandling;
use crate::message::{FIRST_KERNEL, WardenMessage};
use crate::sandbox::MAX_GREETINGS_AT_ONCE;
use crate::seccomp_listener::{ListenerResult, SeccompListener};
use crate::{held_call, sandbox};

/// Something of a sandbox that is watched.
pub(super) struct EpollWatch {
    pub(super) sandbox: u64,
    pub(super) what: EpollSource,
}

pub(super) enum EpollSource {
    /// A new process, which sends its listener before it runs anything.
    Greeting { socket: OwnedFd, role: Role },
    /// The answers of a sandbox's init to requests for locks.
    Flocks(Rc<OwnedFd>),
    /// The answers of a sandbox's watcher to requests for watches of files.
    Watcher(Rc<OwnedFd>),
    /// Refused system calls, and those that others make for it, of a kernel and of what it started.
    Refusals { listener: SeccompListener, kernel: u64 },
    /// A woken checkpoint, the number of the request for it, and the greetings of checkpoints that came in its place.
    Waking { socket: OwnedFd, number: u64, greetings: usize },
    /// A kernel that is not the warden's child.
    Adopted(OwnedFd),
}

impl EpollSource {
    pub(super) fn fd(&self) -> &OwnedFd {
        match self {
            Self::Greeting { socket: fd, .. } | Self::Waking { socket: fd, .. } | Self::Adopted(fd) => fd,
            Self::Flocks(fd) | Self::Watcher(fd) => fd,
            Self::Refusals { listener, .. } => listener.fd(),
        }
    }
}

impl WardenServer {
    /// Resumes listeners whose pause is over; returns the time of the next one.
    pub(super) fn resume_listeners(&mut self, now: Instant) -> Option<Instant> {
        let (due, paused) =
            std::mem::take(&mut self.paused_listeners).into_iter().partition(|(until, _)| *until <= now);
        self.paused_listeners = paused;
        for (_, token) in due {
            if let Some(EpollWatch { what: EpollSource::Refusals { listener, .. }, .. }) = self.watches.get(&token) {
                self.watch_fd(listener.fd(), token).ignore("the listener may be gone");
            }
        }
        self.paused_listeners.iter().map(|(until, _)| *until).min()
    }

    fn watch_fd(&self, fd: &OwnedFd, token: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
    }

    /// Takes no call from a listener until then.
    pub(super) fn pause_listener(&mut self, token: u64, until: Instant) {
        if let Some(EpollWatch { what: EpollSource::Refusals { listener, .. }, .. }) = self.watches.get(&token) {
            self.unwatch(listener.fd());
            self.paused_listeners.push((until, token));
        }
    }

    /// Waits no longer for a checkpoint to wake.
    pub(super) fn give_up_waking(&mut self, id: u64) {
        let is_of = |watch: &EpollWatch| watch.sandbox == id && matches!(watch.what, EpollSource::Waking { .. });
        let given_up: Vec<_> = self.watches.extract_if(|_, watch| is_of(watch)).collect();
        for (_, watch) in given_up {
            self.unwatch(watch.what.fd());
            if let EpollSource::Waking { number, .. } = watch.what {
                self.answer(number, Err(invalid(NO_CHECKPOINT)));
            }
            if let Some(sandbox) = self.sandboxes.get_mut(&id) {
                sandbox.end_of_waking();
            }
        }
    }

    pub(super) fn watch(&mut self, sandbox: u64, what: EpollSource) {
        let token = self.next_watch;
        self.next_watch += 1;
        // Adding a watch fails only when memory is out; its events are then lost.
        if self.watch_fd(what.fd(), token).is_ok() {
            self.watches.insert(token, EpollWatch { sandbox, what });
        }
    }

    /// Removes a descriptor from epoll. Closing it is not enough: the init of spare namespaces holds a copy.
    pub(super) fn unwatch(&self, fd: &OwnedFd) {
        epoll::delete(&self.epoll, fd).ignore("it may not be watched any more");
    }

    /// Handles an event of a watched descriptor, unless an earlier event of the same batch removed it.
    pub(super) fn handle_event(&mut self, token: u64, flags: epoll::EventFlags) {
        let Some(EpollWatch { sandbox: id, what }) = self.watches.remove(&token) else { return };
        match what {
            // Before Linux 6.11, receiving from a listener without callers blocks for ever.
            EpollSource::Refusals { listener, .. } if !flags.contains(epoll::EventFlags::IN) => {
                self.unwatch(listener.fd())
            }
            EpollSource::Refusals { mut listener, kernel } => {
                let (mut flock, mut watch) = (None, None);
                match listener.take(|number| self.reply(&WardenMessage::CallReported { id, kernel, number })) {
                    ListenerResult::Something => {}
                    ListenerResult::Flock(call) => flock = Some(call),
                    ListenerResult::Watch(call) => watch = Some(call),
                    ListenerResult::Rests(until) => {
                        self.unwatch(listener.fd());
                        self.paused_listeners.push((until, token));
                    }
                    ListenerResult::Over => return self.unwatch(listener.fd()),
                }
                self.watches
                    .insert(token, EpollWatch { sandbox: id, what: EpollSource::Refusals { listener, kernel } });
                if let Some(call) = flock {
                    self.note_flock(id, token, call);
                }
                if let Some(call) = watch {
                    self.note_watch(id, token, call);
                }
            }
            EpollSource::Flocks(socket) => match held_call::receive_answer(&*socket) {
                Ok(answer) => {
                    self.watches.insert(token, EpollWatch { sandbox: id, what: EpollSource::Flocks(socket) });
                    self.note_answer(id, answer);
                }
                // Init has ended, and the sandbox with it.
                Err(_) => self.unwatch(&socket),
            },
            EpollSource::Watcher(socket) => match held_call::receive_answer(&*socket) {
                Ok(answer) => {
                    self.watches.insert(token, EpollWatch { sandbox: id, what: EpollSource::Watcher(socket) });
                    self.note_watched(id, answer);
                }
                Err(_) => {
                    self.unwatch(&socket);
                    self.note_end_of_watcher(id);
                }
            },
            EpollSource::Greeting { socket, role } => {
                self.unwatch(&socket);
                let Ok(greeting) = sandbox::read_greeting(socket.as_fd()) else { return };
                let kernel = if let Role::Kernel(kernel) = role { kernel } else { FIRST_KERNEL };
                if let Some(descriptor) = greeting.descriptor {
                    let profile = self.sandboxes.get(&id).map(|sandbox| sandbox.profile).unwrap_or_default();
                    let observes = self.refusal == RefusalHandling::Observed;
                    let listener = SeccompListener::new(descriptor, profile, observes);
                    self.watch(id, EpollSource::Refusals { listener, kernel });
                }
            }
            EpollSource::Waking { socket, number, greetings } => {
                self.unwatch(&socket);
                let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
                let greeting = sandbox::read_greeting(socket.as_fd()).ok();
                if greeting.as_ref().is_some_and(|greeting| greeting.is_checkpoint) && greetings < MAX_GREETINGS_AT_ONCE
                {
                    // The checkpoint was woken before its greeting was read. A program could send some without end.
                    return self.watch(id, EpollSource::Waking { socket, number, greetings: greetings + 1 });
                }
                let woken = greeting.filter(|greeting| !greeting.is_checkpoint);
                let woken = woken.and_then(|greeting| sandbox.woken(&greeting));
                sandbox.end_of_waking();
                sandbox.forget_checkpoint();
                sandbox.wake = Some(socket);
                match woken.and_then(|kernel| Some((kernel.pidfd.try_clone().ok()?, kernel))) {
                    Some((pidfd, kernel)) => {
                        sandbox.kernels.insert(FIRST_KERNEL, kernel);
                        self.watch(id, EpollSource::Adopted(pidfd));
                        self.reply(&WardenMessage::Restored { id });
                        self.answer(number, Ok(()));
                    }
                    None => self.answer(number, Err(invalid(NO_CHECKPOINT))),
                }
            }
            EpollSource::Adopted(pidfd) => {
                self.unwatch(&pidfd);
                let Some(sandbox) = self.sandboxes.get_mut(&id) else { return };
                let Some(kernel) = sandbox.kernels.remove(&FIRST_KERNEL) else { return };
                let status = kernel.exit_status();
                let out_of_memory = sandbox.note_exit(status);
                self.reply(&WardenMessage::Exited { id, kernel: FIRST_KERNEL, status, out_of_memory });
            }
        }
    }
}

/// The listener of this number, if it is one of the sandbox's.
pub(super) fn listener_of(watches: &HashMap<u64, EpollWatch>, sandbox: u64, token: u64) -> Option<&SeccompListener> {
    match watches.get(&token) {
        Some(EpollWatch { sandbox: of, what: EpollSource::Refusals { listener, .. } }) if *of == sandbox => {
            Some(listener)
        }
        _ => None,
    }
}
