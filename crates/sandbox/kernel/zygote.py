"""The zygote: a process that has imported everything, and forks a kernel whenever it is asked to.

It runs inside the template's root, with no network and no secrets, and speaks JSON datagrams with the warden over descriptor 3. It has
exactly one thread, always: a fork copies one thread, and the locks that others held would stay locked for ever in the child.
"""

import contextlib
import ctypes
import gc
import json
import os
import socket
import sys

import kernel
import kernel_fork
import zygote_heap
import zygote_immortal

WARDEN_FD = 3
# The socket of a kernel to the warden, until its lockdown is over.
GREETING_FD = 6
MAX_MESSAGE = 1 << 20
MAX_DESCRIPTORS = 12
MAX_REASON = 1000

CLONE_NEWPID = 0x20000000
CLONE_PARENT = 0x00008000
CLONE_CHILD_CLEARTID = 0x00200000
CLONE_CHILD_SETTID = 0x01000000
PR_GET_TID_ADDRESS = 40
SYS_CLONE3 = 435  # the same on every architecture

# PyDLL keeps the interpreter lock during the call, which a fork must not lose.
libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.syscall.argtypes = [ctypes.c_long] * 7


class CloneArgs(ctypes.Structure):
    """The kernel's struct clone_args, first version."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls")
    ]


class SockFprog(ctypes.Structure):
    """The kernel's struct sock_fprog."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def fork(quietly):
    """Forks into the pid namespace chosen by setns, as a child of our parent.

    The C library's fork cannot do that. What it would do besides is done here: the child's thread id is written where the C library
    keeps it, and the interpreter's own hooks are run, but for those of `kernel_fork.QuietForks`. Handlers that C libraries registered
    are not run; nothing that needs them is used in the zygote.
    """
    libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(tid_address))
    arguments = CloneArgs(
        flags=CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID,
        child_tid=tid_address.value,
    )
    with quietly:
        ctypes.pythonapi.PyOS_BeforeFork()
        pid = libc.syscall(SYS_CLONE3, ctypes.addressof(arguments), ctypes.sizeof(arguments), 0, 0, 0, 0)
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
        else:
            ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid == 0:
        kernel_fork.become_another()
    return pid


tid_address = ctypes.c_ulong()


class StepFailed(Exception):
    """A step of the lockdown that the system refused."""


def calls_of(steps, descriptors, filters):
    """The system calls of the steps that the warden asks for. See the jail crate for what they are and why in this order.

    Made before the fork: each page that the child writes to is copied for it. Descriptors that it gets itself are filled in then: they are
    returned, too, as a list of arguments, a place among them, and a name.
    """
    calls, missing = [], []
    for step in steps:
        arguments = [step["number"]]
        keep_alive = []
        for argument in step["arguments"]:
            ((kind, value),) = argument.items()
            if kind == "int":
                arguments.append(value)
            elif kind == "bytes":
                buffer = ctypes.create_string_buffer(bytes(value), len(value))
                keep_alive.append(buffer)
                arguments.append(ctypes.addressof(buffer))
            elif kind == "fd":
                key = value if isinstance(value, str) else tuple(value.items())[0]
                if key not in descriptors:
                    missing.append((arguments, len(arguments), key))
                arguments.append(descriptors.get(key, -1))
            elif kind == "filter":
                arguments.append(ctypes.addressof(filters[value]))
            else:
                raise StepFailed(f"{step['name']}: an argument of an unknown kind")
        arguments.extend([0] * (7 - len(arguments)))
        calls.append((step["name"], arguments, step["returns"], keep_alive))
    return calls, missing


class Understood:
    """The last request. The next one mostly differs in its number alone, and what is read anew is written to pages that children share."""

    def __init__(self, filters):
        self.filters = filters
        self.text = self.last = self.descriptors = self.made = None

    def request(self, message):
        """Returns the number of a request, which comes first in it, and the request."""
        number, _comma, text = message.partition(b",")
        if text != self.text:
            self.text, self.last, self.descriptors = text, json.loads(message), None
        return int(number.rpartition(b":")[2]), self.last

    def calls(self, descriptors):
        """Returns its calls, as `calls_of` makes them."""
        if descriptors != self.descriptors:
            self.descriptors, self.made = descriptors, calls_of(self.last["lockdown"], descriptors, self.filters)
        return self.made


def lock_down(calls):
    """Makes the calls, and returns the descriptor that one of them returned."""
    returned = None
    for name, arguments, returns, _keep_alive in calls:
        result = libc.syscall(*arguments)
        if result < 0:
            raise StepFailed(f"{name}: {os.strerror(ctypes.get_errno())}")
        if returns is not None:
            returned = result
            hand_over(result)
    return returned


def descriptors_by_name(received, stdin):
    """Names the descriptors in the order in which the warden sends them."""
    return {**dict(zip(("init", "from_host", "to_host", "stdout", "stderr", "warden", "checkpoint"), received)), "stdin": stdin}


def wait_for_namespaces(warden, has_landlock):
    """Waits in the child until its namespaces are ready, and names the descriptors that come then."""
    with socket.socket(fileno=os.dup(warden)) as socket_to_warden:
        message, received, _flags, _address = socket.recv_fds(socket_to_warden, 16, MAX_DESCRIPTORS)
    if not message:
        raise StepFailed("wait for the namespaces: there are none")
    names = {"landlock": received.pop(0)} if has_landlock else {}
    for place, descriptor in enumerate(received):
        names["cgroup", place] = descriptor
    return names


def become(start, calls, missing, descriptors, has_landlock):
    """Runs in the child; never returns. Nothing of the user's runs before the last step of the lockdown."""
    to_host = descriptors["to_host"]
    status = 1
    try:
        # When the host runs out of memory, sandboxes go first, however small their processes are. Nobody inside may write to /proc; the
        # warden lowers that of a checkpoint, so that it is not ended before what a cell starts.
        rank = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(rank, b"1000")
        os.close(rank)
        late = wait_for_namespaces(descriptors["warden"], has_landlock)
        for arguments, place, name in missing:
            arguments[place] = late[name]
        listener = lock_down(calls)
        to_host = kernel.TO_HOST_FD
        if listener is None:
            hand_over(None)
        if start == "fresh":
            run_fresh_kernel()
        else:
            kernel.run()
            status = 0
    except (StepFailed, OSError) as failure:
        # The pipe is at its old place or, later, at its new one.
        for descriptor in (to_host, kernel.TO_HOST_FD):
            try:
                kernel.Channel(to_host=descriptor).send({"type": "failed", "reason": str(failure)})
                break
            except OSError:
                continue
    finally:
        os._exit(status)


def hand_over(listener):
    """Gives the warden the end of the filter at which refused system calls are heard of, and closes it and the socket: neither may stay."""
    with socket.socket(fileno=GREETING_FD) as warden:
        if listener is None:
            warden.send(b"ready")
        else:
            socket.send_fds(warden, [b"ready"], [listener])
            os.close(listener)


def run_fresh_kernel():
    for descriptor in (kernel.FROM_HOST_FD, kernel.TO_HOST_FD, kernel.CHECKPOINT_FD):
        with contextlib.suppress(OSError):  # only a sandbox's first kernel has checkpoints
            os.set_inheritable(descriptor, True)
    os.execv(sys.executable, [sys.executable, "-s", kernel.__file__, *sys.argv[1:]])


def prepare_filters(codes):
    """Keeps the seccomp programs where system calls can find them."""
    filters = []
    for code in codes:
        buffer = ctypes.create_string_buffer(bytes(code), len(code))
        program = SockFprog(len(code) // 8, ctypes.addressof(buffer))
        program.keep_alive = buffer
        filters.append(program)
    return filters


def main():
    warden = socket.socket(fileno=WARDEN_FD)
    hello = json.loads(warden.recv(MAX_MESSAGE))
    filters = prepare_filters(hello["filters"])
    lock_down(calls_of(hello["lockdown"], {}, filters)[0])
    # For a single program, an arranged memory does not pay.
    is_lean = "--lean" in sys.argv
    reserved = [] if is_lean else zygote_heap.reserve_arenas()
    try:
        kernel.prepare(not is_lean, kernel.preloaded_modules(sys.argv))
    except kernel.Unsuitable as reason:
        warden.send(json.dumps({"failed": [0, str(reason)[:MAX_REASON]]}).encode())
        return
    del reserved
    quietly = kernel_fork.QuietForks()
    # Low numbers are taken, so that a received descriptor never sits where the lockdown will put another.
    devnull = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    while devnull < 10:
        devnull = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        warden.send(json.dumps({"failed": [0, f"the preloaded modules started {len(threads) - 1} threads"]}).encode())
        return
    # Objects that are alive now stay for ever: frozen, the collector does not touch them, and their pages stay shared with the children.
    gc.collect()
    gc.freeze()
    gc.disable()
    if not is_lean:
        zygote_immortal.make_all_immortal()
        zygote_heap.use_huge_pages()
    kernel.note_memory(not is_lean)
    understood = Understood(filters)
    warden.send(b'"ready"')
    while True:
        message, received, _flags, _address = socket.recv_fds(warden, MAX_MESSAGE, MAX_DESCRIPTORS)
        if not message:
            return
        number, request = understood.request(message)
        # A kernel's own: flags of a shared one would be seen by all sandboxes.
        stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        descriptors = descriptors_by_name(received, stdin)
        calls, missing = understood.calls(descriptors)
        received.append(stdin)
        if libc.setns(descriptors["init"], CLONE_NEWPID) < 0:
            answer = {"failed": [number, f"join the process namespace: {os.strerror(ctypes.get_errno())}"]}
        else:
            pid = fork(quietly)
            if pid == 0:
                become(request["kernel"], calls, missing, descriptors, request["landlock"])
            failure = f"clone: {os.strerror(ctypes.get_errno())}"
            answer = {"forked": [number, pid]} if pid > 0 else {"failed": [number, failure]}
        warden.send(json.dumps(answer).encode())
        for descriptor in received:
            os.close(descriptor)


if __name__ == "__main__":
    main()
