"""Limits of a kernel's process that leave room for telling about them: memory and descriptors."""

import resource

# Descriptors that the program cannot have, for the kernel to go on when it has used up all others.
KEPT_BACK = 8
# More than this part of the memory in use: a copy could double it, and the next cell would fail for it.
MOST_COPIED = 0.5


class MemoryLimit:
    """The sandbox's memory, bytes, as a limit at which Python raises MemoryError. None until the host has told it."""

    def __init__(self):
        self.bytes = None
        self._baseline = None
        # Prebuilt, so that using it needs no memory.
        self._lifted = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    def set(self, most, is_hard):
        self.bytes = most
        if is_hard:
            # No control group counts: what a process may hold is bounded here, before any code of the user's runs.
            bound = self.baseline() + most
            self._lifted = (bound, bound)
            self.lift()
        self.lower()

    def lower(self):
        """Makes Python raise MemoryError a little before the kernel would kill us; the difference is for telling about it."""
        if self.bytes is None:
            return
        soft = self.baseline() + max(self.bytes - (self.bytes >> 3), self.bytes - (64 << 20))
        # Still above after an error: lowering now would fail the next allocation whatever it is for.
        if data_in_use() < soft - (16 << 20):
            resource.setrlimit(resource.RLIMIT_DATA, (soft, self._lifted[1]))

    def lift(self):
        """Makes room for telling about an error."""
        resource.setrlimit(resource.RLIMIT_DATA, self._lifted)

    def baseline(self):
        """Returns the bytes that the zygote held: data, but not counted against the sandbox's memory."""
        if self._baseline is None:
            self._baseline = data_in_use()
        return self._baseline

    def allows_copy(self):
        """Returns true if the next cell can have a copy of the memory beside it."""
        return self.bytes is None or data_in_use() - self.baseline() <= self.bytes * MOST_COPIED


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
        with AllDescriptors(), open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmData:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass  # the program has taken the last descriptor, too
    return 0
