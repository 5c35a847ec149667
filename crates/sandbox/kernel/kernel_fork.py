"""Forks of a kernel that its program does not see."""

import ctypes
import os
import platform
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
