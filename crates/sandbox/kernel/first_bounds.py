"""Bounds of a container's objects that no control group counts: locks of files, sockets whether accepted or not, and terminals. A container that
has more loses its processes.
"""

import os
import signal

from first_descendants import kill

MAX_LOCKS = 1000
MAX_SOCKETS = 10_000
MAX_TERMINALS = 16
# Time between two looks at them.
LOOK_INTERVAL_SECONDS = 0.25
# The part of the list of locks that is read.
LOCK_LIST_BYTES = 1 << 20


def enforce_bounds():
    """Ends all processes of the container but this one if they have too many objects that no control group counts."""
    for count, most in ((locks, MAX_LOCKS), (sockets, MAX_SOCKETS), (terminals, MAX_TERMINALS)):
        try:
            if count() > most:
                kill(-1, signal.SIGKILL)
                return
        except (OSError, ValueError):
            continue  # not every place tells


def locks():
    """Returns the number of locks that processes of this container hold or wait for."""
    with open("/proc/locks", "rb", 0) as file:
        count = 0
        for _ in range(LOCK_LIST_BYTES >> 16):
            if not (part := file.read(1 << 16)):
                break
            count += part.count(b"\n")
        return count


def sockets():
    """Returns the number of sockets of this container."""
    with open("/proc/self/net/sockstat", "rb", 0) as file:
        return int(file.readline().rpartition(b" ")[2])


def terminals():
    """Returns the number of terminals of this container."""
    return len(os.listdir("/dev/pts")) - 1
