"""Privileges that the first process has before the other processes of the sandbox, which have the same user."""

import ctypes
import os

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
libc = ctypes.CDLL(None, use_errno=True)


def be_first():
    """Keeps other processes from looking into this one and from taking its streams, and makes it the parent of those that outlive their own, also
    where it is not the first."""
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def be_one_of_the_sandbox():
    """Gives up the privileges of the first process. Runs in a new process that has its own streams by now."""
    prctl(PR_SET_DUMPABLE, 1)
    # When memory runs out, others go before this process, which tells why. Some hosts rank by themselves.
    try:
        with open("/proc/self/oom_score_adj", "w") as rank:
            rank.write("1000")
    except OSError:
        pass


def prctl(option, value):
    """Sets an attribute of this process. Only the first process of a container has to have its own: elsewhere the place may refuse, and has other
    processes of the same user beside this one anyway."""
    if libc.prctl(option, value, 0, 0, 0) != 0 and os.getpid() == 1:
        raise OSError(ctypes.get_errno(), "prctl")
