"""Checkpoints: between cells the kernel forks itself and keeps the copy asleep. When the kernel dies in a cell, the host wakes the copy,
which goes on from the state before that cell."""

import os
import random
import signal
import socket
import threading
import time

from kernel_channel import CHECKPOINT_FD, FROM_HOST_FD, TO_HOST_FD
from kernel_fork import WAIT_FOR_ALL, fork_unseen, run_hooks
from kernel_limits import AllDescriptors

# Seconds of silence before a checkpoint is taken ahead of the next cell. A kernel that is closed at once does without, one that is
# used again at once takes it then, and the one before is gone by then: beside it, the next cell would copy more.
IDLE = 0.004
# Seconds of silence after which it is given up: it takes a third of the memory of a small session. The next cell takes one first.
SLEEP = 60
# Seconds in which killed processes have to be gone; the host waits somewhat longer.
MAX_WAITED = 2


class Checkpoints:
    """The checkpoint of a kernel, if there is one, and those before it."""

    def __init__(self, output, memory):
        self.output = output
        self.memory = memory
        self.are_wanted = False
        # The process id of the copy.
        self.pid = None
        # Those before, ended but perhaps not yet gone: that takes a millisecond, which no cell need wait for.
        self.ended = []

    def take(self):
        """Forks a copy, which returns from here only when it takes our place; it says so to the host and returns true."""
        self.bury()
        if not self.memory.allows_copy():
            return False
        # The interpreter reseeds it in every fork; the copy shall go on where we are now.
        generator = random.getstate()
        with AllDescriptors():
            try:
                pid, hooks_are_due = fork_unseen()
            except OSError:
                # No more processes or memory: the next cell runs without.
                return False
            if pid == 0:
                self.wait_to_be_woken(hooks_are_due)
        if pid > 0:
            self.pid = pid
            try:
                # Signals for what a cell runs go to our group.
                os.setpgid(pid, pid)
            except OSError:
                pass  # it is gone
            return False
        random.setstate(generator)
        return True

    def wait_to_be_woken(self, hooks_are_due):
        """Runs in the copy. What the kernel left running is ended, for the state to be the one before the cell."""
        # A thread that is not in the copy may have held it.
        self.output.lock = threading.RLock()
        with socket.socket(fileno=os.dup(CHECKPOINT_FD)) as warden:
            try:
                warden.send(b"checkpoint", socket.MSG_DONTWAIT)
            except OSError:
                pass  # it ranks as all others
            message, descriptors, _flags, _address = socket.recv_fds(warden, 16, 2)
            if message != b"restore" or len(descriptors) != 2:
                os._exit(0)
            # Before anything is written: the others may have used up the memory.
            end_the_others()
            if hooks_are_due:
                run_hooks()
            for descriptor, place in zip(descriptors, (FROM_HOST_FD, TO_HOST_FD)):
                os.dup2(descriptor, place, inheritable=False)
                os.close(descriptor)
            self.pid = None
            self.ended.clear()
            self.output.owner = os.getpid()
            warden.send(b"restored")
        self.output.channel.send({"type": "restored"})

    def drop(self):
        """Ends the copy, after a cell that left the kernel alive."""
        if self.pid is not None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except OSError:
                pass  # the program has ended it
            self.ended.append(self.pid)
            self.pid = None

    def bury(self, waits=False):
        for pid in list(self.ended):
            try:
                if os.waitpid(pid, WAIT_FOR_ALL | (0 if waits else os.WNOHANG))[0] == 0:
                    continue
            except OSError:
                pass  # the program has waited for it
            self.ended.remove(pid)


def is_alone(but=None):
    """Returns true if nothing but the sandbox's init, this kernel's only thread, and perhaps one other process is there: nothing then ends
    the kernel before its next cell. False where that cannot be seen."""
    expected = {"1", str(os.getpid()), str(but)}
    try:
        with AllDescriptors():
            return len(os.listdir("/proc/self/task")) == 1 and all(
                entry in expected for entry in os.listdir("/proc") if entry.isdigit()
            )
    except OSError:
        return False  # the program has taken the last descriptor, too


def end_the_others():
    """Ends every other process of the sandbox and waits until it is gone: until then it is seen, and what it holds counts and would end us."""
    until = time.monotonic() + MAX_WAITED
    while time.monotonic() < until:
        try:
            os.kill(-1, signal.SIGKILL)
        except OSError:
            return  # nobody is left
        time.sleep(0.001)
