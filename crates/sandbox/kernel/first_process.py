"""The first process of a sandbox that is reached by its streams: imports what kernels need, forks them, and passes on what they say.

It speaks messages over stdin and stdout: a kind, the number of a kernel, a stream and the length of what follows (HEADER). Stream 0 is the
kernel's channel, 1 and 2 are what its programs print. Nobody sends more of a stream than was granted, so one that is not read holds up no other.
When stdin ends, the host has gone, and this process takes all that it started along.
"""

import json
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile

HEADER = struct.Struct(">BIBI")
(KERNEL, DATA, SIGNAL, END, RESUME, GRANT, STARTED, FAILED, EXITED, RESUMED, READY) = range(1, 12)
# The directory of the kernel's programs; a temporary one where nothing can be written there.
PROGRAMS = "/run/aludel"
# Bytes of one message.
CHUNK = 64 << 10
# Bytes of a stream that may be under way.
WINDOW = 1 << 20
# The most that a pipe holds: what was printed before a frame is among so many bytes.
PIPE = 64 << 10
# The longest that a checkpoint may take to be awake, seconds.
RESUME_TIMEOUT = 8
# Descriptors below are a kernel's own.
FIRST_FREE = 10


def send(kind, number=0, stream=0, payload=b""):
    view = memoryview(HEADER.pack(kind, number, stream, len(payload)) + payload)
    while view:
        view = view[os.write(1, view) :]


class Kernel:
    """A kernel and our ends of its streams."""

    def __init__(self, number):
        self.number = number
        self.allowed = [WINDOW, WINDOW, WINDOW]
        # A piece of its channel that waits for what was printed before it.
        self.held = b""
        # Bytes from the host that the kernel has not yet taken.
        self.unsent = bytearray()
        self.checkpoint = None
        control, theirs = socket.socketpair()
        self.warden, copy = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.warden.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        outputs = [os.pipe(), os.pipe()]
        self.pid = os.fork()
        if self.pid == 0:
            become([theirs.fileno(), copy.fileno(), *(theirs for _, theirs in outputs)])
        theirs.close()
        copy.close()
        for _, end in outputs:
            os.close(end)
        self.control = control
        self.streams = [control.fileno(), *(ours for ours, _ in outputs)]
        for descriptor in (*self.streams, self.warden.fileno()):
            os.set_blocking(descriptor, False)
        self.watch()

    def watch(self):
        """Listens to what may be passed on."""
        for stream, descriptor in enumerate(self.streams):
            wanted = 0
            if descriptor is not None and self.allowed[stream] and not (stream == 0 and self.held):
                wanted |= selectors.EVENT_READ
            if stream == 0 and descriptor is not None and self.unsent:
                wanted |= selectors.EVENT_WRITE
            listen(descriptor, wanted, (self, stream))
        listen(self.warden.fileno(), selectors.EVENT_READ, (self, None))

    def handle(self, stream, events):
        if stream is None:
            self.hear_checkpoint()
            return
        if events & selectors.EVENT_WRITE:
            self.feed()
        if events & selectors.EVENT_READ:
            if stream == 0:
                self.take_frames()
            else:
                self.pass_on(stream, CHUNK)
        self.watch()

    def take_frames(self):
        """Passes on a piece of the channel, after what was printed before it."""
        if not self.held and self.streams[0] is not None:
            self.held = self.read(0, min(CHUNK, self.allowed[0]))
        for stream in (1, 2):
            if not self.pass_on(stream, PIPE):
                return
        if self.held:
            self.allowed[0] -= len(self.held)
            send(DATA, self.number, 0, self.held)
            self.held = b""

    def pass_on(self, stream, most):
        """Passes on what was printed, at most so many bytes, and says whether no more of them are held up."""
        while most > 0 and self.streams[stream] is not None:
            if not self.allowed[stream]:
                return False
            data = self.read(stream, min(CHUNK, most, self.allowed[stream]))
            if not data:
                break
            most -= len(data)
            self.allowed[stream] -= len(data)
            send(DATA, self.number, stream, data)
        return True

    def read(self, stream, count):
        """Reads what there is. A stream that has ended is let go of."""
        try:
            data = os.read(self.streams[stream], count)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            # Nobody writes to it any more, no checkpoint either.
            listen(self.streams[stream], 0, None)
            if stream != 0:
                os.close(self.streams[stream])
            self.streams[stream] = None
            return b""
        return data

    def feed(self):
        """Hands the kernel what the host sent."""
        while self.unsent and self.streams[0] is not None:
            try:
                count = os.write(self.streams[0], memoryview(self.unsent)[:CHUNK])
            except BlockingIOError:
                return
            except OSError:
                # It is gone, which its end tells.
                count = len(self.unsent)
            del self.unsent[:count]
            send(GRANT, self.number, 0, struct.pack(">I", count))

    def hear_checkpoint(self):
        """A copy of the kernel says that it is there; the system says which process it is."""
        try:
            word, ancillary, _flags, _address = self.warden.recvmsg(64, socket.CMSG_SPACE(12))
        except BlockingIOError:
            return None
        except OSError:
            word = b""
        if not word:
            listen(self.warden.fileno(), 0, None)
            return b""
        for _level, kind, data in ancillary:
            if kind == socket.SCM_CREDENTIALS:
                self.checkpoint = struct.unpack("iii", data[:12])[0]
        return word

    def signal(self, number, for_good):
        if for_good and self.checkpoint is not None:
            kill(self.checkpoint, signal.SIGKILL)
        if self.pid is not None:
            kill(self.pid, number)

    def exited(self, status):
        self.pid = None
        if not self.held:
            self.take_frames()
        code = os.waitstatus_to_exitcode(status)
        send(EXITED, self.number, 0, json.dumps({"code": code, "oom_kills": oom_kills()}).encode())

    def resume(self):
        """Wakes the checkpoint, which goes on with a new channel."""
        while self.hear_checkpoint():
            pass
        resumed = self.checkpoint is not None and self.wake()
        send(RESUMED, self.number, 0, b"\1" if resumed else b"\0")
        self.watch()

    def wake(self):
        try:
            os.kill(self.checkpoint, 0)
            control, theirs = socket.socketpair()
            socket.send_fds(self.warden, [b"resume"], [theirs.fileno()])
            theirs.close()
            self.warden.settimeout(RESUME_TIMEOUT)
            word = self.hear_checkpoint()
            while word == b"checkpoint":
                word = self.hear_checkpoint()
            self.warden.setblocking(False)
        except OSError:
            return False
        if word != b"resumed":
            return False
        listen(self.streams[0], 0, None)
        self.control.close()
        self.control = control
        control.setblocking(False)
        self.streams[0] = control.fileno()
        self.pid, self.checkpoint = self.checkpoint, None
        self.held = b""
        if self.unsent:
            send(GRANT, self.number, 0, struct.pack(">I", len(self.unsent)))
            self.unsent.clear()
        return True


def become(descriptors):
    """Runs in a new kernel; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # When memory runs out, kernels go before this process, which tells why. Some hosts rank by themselves.
        try:
            with open("/proc/self/oom_score_adj", "w") as rank:
                rank.write("1000")
        except OSError:
            pass
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        control, warden, stdout, stderr = descriptors
        for ours, place, inherited in ((control, 3, False), (warden, 4, False), (stdout, 1, True), (stderr, 2, True)):
            os.dup2(ours, place, inherited)
        os.closerange(5, os.sysconf("SC_OPEN_MAX"))
        kernel.run()
        status = 0
    finally:
        os._exit(status)


def end_all():
    """Ends this process and those that descend from it. In a container it is the first, and all end with it."""
    for _ in range(100):
        children = descendants()
        for pid in children:
            kill(pid, signal.SIGKILL)
        if not children:
            break
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
    os._exit(0)


def descendants():
    """Returns the processes that descend from this one, but for those that have ended."""
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it has ended
            if state != "Z":
                parents[int(name)] = int(parent)
    found = {os.getpid()}
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found - {os.getpid()}


def oom_kills():
    """Processes of the sandbox that were ended for want of memory."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as counts:
                for line in counts:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except OSError:
            continue
    return 0


def kill(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone


kernels = {}
selector = selectors.DefaultSelector()


def listen(descriptor, events, what):
    if descriptor is None:
        return
    known = selector.get_map().get(descriptor)
    if not events:
        if known is not None:
            selector.unregister(descriptor)
    elif known is None:
        selector.register(descriptor, events, what)
    elif known.events != events:
        selector.modify(descriptor, events, what)


def reap():
    """Sees to processes that ended: kernels, and what they left to this process."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for found in list(kernels.values()):
            if found.pid == pid:
                found.exited(status)
            elif found.checkpoint == pid:
                found.checkpoint = None


def handle(kind, number, stream, payload):
    """Does what the host asks for."""
    found = kernels.get(number)
    if kind == KERNEL:
        try:
            kernels[number] = Kernel(number)
        except OSError as error:
            send(FAILED, number, 0, str(error).encode())
    elif found is None:
        pass  # it has ended
    elif kind == DATA:
        found.unsent += payload
        found.feed()
        found.watch()
    elif kind == SIGNAL:
        found.signal(payload[0], stream == 1)
    elif kind == RESUME:
        found.resume()
    elif kind == GRANT:
        found.allowed[stream] += struct.unpack(">I", payload)[0]
        if found.held:
            found.take_frames()
        found.watch()
    elif kind == END:
        found.signal(signal.SIGKILL, True)


def main():
    buffer = bytearray()
    wakeup, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    listen(0, selectors.EVENT_READ, "host")
    listen(wakeup, selectors.EVENT_READ, "children")
    send(READY)
    while True:
        for key, events in selector.select():
            if key.data == "host":
                data = os.read(0, 256 << 10)
                if not data:
                    end_all()
                buffer += data
                while len(buffer) >= HEADER.size:
                    kind, number, stream, length = HEADER.unpack_from(buffer)
                    if len(buffer) < HEADER.size + length:
                        break
                    payload = bytes(buffer[HEADER.size : HEADER.size + length])
                    del buffer[: HEADER.size + length]
                    handle(kind, number, stream, payload)
            elif key.data == "children":
                os.read(wakeup, 4096)
                reap()
            else:
                found, stream = key.data
                found.handle(stream, events)


def read_exactly(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


if __name__ == "__main__":
    if not os.access(PROGRAMS, os.W_OK):
        PROGRAMS = tempfile.mkdtemp(prefix="aludel-")
    for program, text in json.loads(read_exactly(struct.unpack(">I", read_exactly(4))[0])).items():
        with open(os.path.join(PROGRAMS, program), "w") as file:
            file.write(text)
    sys.path.insert(0, PROGRAMS)
    low = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    while low < FIRST_FREE:
        low = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    # Output of imports is no message.
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        import kernel

        kernel.prepare(True)
    except Exception as error:
        os.dup2(ours, 1)
        send(FAILED, 0, 0, f"{type(error).__name__}: {error}".encode())
        sys.exit(1)
    os.dup2(ours, 1)
    os.close(ours)
    main()
