"""The memory of the sandbox, and the ends of processes for want of it."""

import json
import os
import signal

from first_messages import EXITED, send


class Memory:
    """The memory of the sandbox, as its control group counts it."""

    DIRECTORY = "/sys/fs/cgroup"

    def __init__(self):
        # Processes that were ended for want of memory before the last one that was told was.
        self.kills = 0

    def has_run_out(self):
        """Returns true if a process was ended because the limit was reached since this was last asked."""
        before = self.kills
        self.kills = self.read("oom_kill ", "memory.events", "memory/memory.oom_control")
        return self.kills > before

    def most(self):
        """Returns the most memory so far, bytes; before Linux 5.19 the limit itself, which was reached."""
        return self.read("", "memory.peak", "memory/memory.max_usage_in_bytes", "memory.max")

    def read(self, name, *files):
        for file in files:
            try:
                with open(f"{self.DIRECTORY}/{file}") as lines:
                    return next(int(line.removeprefix(name)) for line in lines if line.startswith(name))
            except (OSError, StopIteration, ValueError):
                continue
        return 0


memory = Memory()


def send_end(number, status):
    code = os.waitstatus_to_exitcode(status)
    out_of_memory = memory.most() if code == -signal.SIGKILL and memory.has_run_out() else None
    send(EXITED, number, 0, json.dumps({"code": code, "out_of_memory": out_of_memory}).encode())
