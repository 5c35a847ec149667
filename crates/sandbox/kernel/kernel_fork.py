"""Forks that a program does not see: of the zygote, before there is one, and of its kernel."""

import ctypes
import gc
import os
import platform
import threading
import warnings

SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
CLONE_CHILD_CLEARTID = 0x00200000
CLONE_CHILD_SETTID = 0x01000000
PR_GET_TID_ADDRESS = 40
WAIT_FOR_ALL = 0x40000000  # __WALL: children that send no signal, too

libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.madvise.argtypes = (ctypes.c_ulong, ctypes.c_ulong, ctypes.c_int)


def fork_unseen():
    """Forks a child that the program cannot wait for by accident: one that sends no signal when it ends. Returns its process id, 0 in it,
    and true if it has yet to do by `run_hooks` what the interpreter and the libraries do after a fork. That writes to as many pages as a
    cell, and most copies only wait for their end."""
    if len(os.listdir("/proc/self/task")) > 1 or SYS_CLONE is None:
        # Other threads hold locks of the C library, which only its own fork knows to release in the child.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return os.fork(), False
    address = ctypes.c_ulong()
    libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address))
    # The last two arguments change places between architectures; the thread-local storage is not set in either.
    address_for_both = (address, ctypes.c_ulong(0)) if SYS_CLONE == 56 else (ctypes.c_ulong(0), address)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(
        ctypes.c_long(SYS_CLONE),
        ctypes.c_long(CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID),
        ctypes.c_long(0),
        ctypes.c_long(0),
        *address_for_both,
    )
    if pid != 0:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid, pid == 0


def run_hooks():
    ctypes.pythonapi.PyOS_AfterFork_Child()


class QuietForks:
    """As a context: forks of a process with one thread, without those hooks of the standard library that see to other threads and to locks
    which they hold. These write to 150 pages, which are copied for it."""

    OF_THREADS = ("logging", "threading")

    def __init__(self):
        def marker():
            pass

        # Found, since the interpreter has no name for them.
        os.register_at_fork(before=marker, after_in_child=marker, after_in_parent=marker)
        self.lists = [holder for holder in gc.get_referrers(marker) if isinstance(holder, list)]
        for hooks in self.lists:
            hooks.remove(marker)

    def __enter__(self):
        self.kept = [hooks[:] for hooks in self.lists]
        for hooks in self.lists:
            hooks[:] = [hook for hook in hooks if getattr(hook, "__module__", None) not in self.OF_THREADS]

    def __exit__(self, *_error):
        for hooks, kept in zip(self.lists, self.kept):
            hooks[:] = kept


def become_another():
    """The part of what a fork leaves out that its child does need."""
    threading.main_thread()._set_native_id()
