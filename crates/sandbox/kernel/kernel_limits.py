"""Limits of a kernel's process that leave room for telling about them: memory and descriptors."""

import os
import resource

# Descriptors that the program cannot have, for the kernel to go on when it has used up all others.
KEPT_BACK = 8
# More than this part of the memory in use: a copy could double it, and the next cell would fail for it.
MAX_COPIED = 0.5
# Room that is left for telling about an error: this part of the memory, and no more than so much.
HEADROOM_SHIFT = 3
MAX_HEADROOM_BYTES = 64 << 20
# Bytes below the limit that must be free again before it is lowered.
RELOWER_MARGIN_BYTES = 16 << 20


class MemoryLimit:
    """The sandbox's memory, bytes, as a limit at which Python raises MemoryError. None until the host has told it."""

    def __init__(self):
        self.bytes = None
        self._baseline = None
        # Both prebuilt, so that using them needs no memory.
        self._lifted = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        self._lowered = None
        self.is_lifted = False

    def set(self, most, is_hard):
        self.bytes = most
        bound = self.baseline() + most if is_hard else resource.RLIM_INFINITY
        # Bounds a process, before any code of the user's runs, on a host where no control group counts.
        self._lifted = (bound, bound)
        self._lowered = (self.baseline() + most - min(most >> HEADROOM_SHIFT, MAX_HEADROOM_BYTES), bound)
        self.lower()

    def lower(self):
        """Makes Python raise MemoryError a little before Linux would kill us; the difference is for telling about it."""
        if self._lowered is None:
            return
        # Still above after an error: lowering now would fail the next allocation whatever it is for.
        if not self.is_lifted or data_in_use() < self._lowered[0] - RELOWER_MARGIN_BYTES:
            resource.setrlimit(resource.RLIMIT_DATA, self._lowered)
            self.is_lifted = False

    def lift(self):
        """Makes room for telling about an error."""
        self.is_lifted = True
        resource.setrlimit(resource.RLIMIT_DATA, self._lifted)

    def baseline(self):
        """Returns the bytes that the zygote held: data, but not counted against the sandbox's memory."""
        if self._baseline is None:
            self._baseline = data_in_use()
        return self._baseline

    def allows_copy(self):
        """Returns true if the next cell can have a copy of the memory beside it."""
        return self.bytes is None or data_in_use() - self.baseline() <= self.bytes * MAX_COPIED


class AllDescriptors:
    """As a context: what was kept back may be used."""

    def __enter__(self):
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.limits[1], self.limits[1]))

    def __exit__(self, *_error):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


def keep_descriptors_back():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most - KEPT_BACK, most))


def data_in_use():
    try:
        with AllDescriptors():
            # Without a file object, which takes longer than reading.
            status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(status, 4096).partition(b"VmData:")[2].split(maxsplit=1)[0]) << 10
        finally:
            os.close(status)
    except (OSError, IndexError):
        return 0  # the program has taken the last descriptor, too
