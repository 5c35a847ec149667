"""The first process of a sandbox that is reached by its streams: imports what kernels need, forks them, and passes on what they say. It starts
commands and connects to ports of the loopback device, too.

It speaks messages over stdin and stdout: a kind, the number of a kernel, a command or a connection, a stream and the length of what follows
(HEADER). Stream 0 is a kernel's channel, or what goes into a command or a connection; 1 and 2 are what comes out. Nobody sends more of a stream
than was granted, so one that is not read holds up no other. When stdin ends, the host has gone, and this process takes all that it started along.
"""

import ctypes
import errno
import fcntl
import json
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import termios
import time

HEADER = struct.Struct(">BIBI")
(KERNEL, DATA, SIGNAL, END, RESTORE, GRANT, STARTED, FAILED, EXITED, RESTORED, READY, SPAWN, CONNECT, CLOSE, RESIZE) = range(1, 16)
# The directory of the kernel's scripts; a temporary one where nothing can be written there.
SCRIPTS_DIRECTORY = "/run/aludel"
# Bytes of one message.
CHUNK = 64 << 10
# Bytes of a kernel's stream that may be under way, and of a command's or a connection's; as much as a pipe holds comes with a command's end.
WINDOW = 1 << 20
CHANNEL_WINDOW = 128 << 10
# The most that a pipe holds: what was printed before a frame is among so many bytes.
PIPE = 64 << 10
# The longest that a checkpoint may take to be awake, seconds.
RESTORE_TIMEOUT = 8
# Objects of the kernel that no control group counts: locks of files, sockets whether accepted or not, and terminals, with the time between two
# looks at them, seconds. A container that has more loses its processes.
MOST_LOCKS = 1000
MOST_SOCKETS = 10_000
MOST_TERMINALS = 64
LOOK = 0.25
# Bytes of the list of locks that are read.
LOCKS = 1 << 20
# Descriptors below are a kernel's own.
FIRST_FREE = 10
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


def send(kind, number=0, stream=0, payload=b""):
    view = memoryview(HEADER.pack(kind, number, stream, len(payload)) + payload)
    while view:
        view = view[os.write(1, view) :]


def send_end(number, status):
    code = os.waitstatus_to_exitcode(status)
    out_of_memory = memory.most() if code == -signal.SIGKILL and memory.has_run_out() else None
    send(EXITED, number, 0, json.dumps({"code": code, "out_of_memory": out_of_memory}).encode())


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


class Streams:
    """Streams between the host and something in the sandbox."""

    def __init__(self, number, window):
        self.number = number
        self.allowed = [window, window, window]
        # Descriptors of what comes out, by stream, and of what goes in.
        self.streams = [None, None, None]
        self.input = None
        # Bytes from the host that are not yet taken.
        self.unsent = bytearray()

    def may_read(self, stream):
        return self.allowed[stream] > 0

    def watch(self):
        """Listens to what may be passed on."""
        wanted = {}
        for stream, descriptor in enumerate(self.streams):
            if descriptor is not None:
                wanted[descriptor] = selectors.EVENT_READ if self.may_read(stream) else 0
        if self.input is not None:
            wanted[self.input] = wanted.get(self.input, 0) | (selectors.EVENT_WRITE if self.unsent else 0)
        for descriptor, events in wanted.items():
            listen(descriptor, events, self)

    def handle(self, descriptor, events):
        if events & selectors.EVENT_WRITE:
            self.feed()
        if events & selectors.EVENT_READ and descriptor in self.streams:
            self.pass_on(self.streams.index(descriptor), CHUNK)
        self.watch()

    def pass_on(self, stream, most):
        """Passes on what came out, at most so many bytes, and says whether no more of them are held up."""
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
            self.ended(stream)
        return data

    def feed(self):
        """Hands over what the host sent."""
        while self.unsent and self.input is not None:
            try:
                count = os.write(self.input, memoryview(self.unsent)[:CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self.refused()
                return
            del self.unsent[:count]
            send(GRANT, self.number, 0, struct.pack(">I", count))

    def take(self, data):
        """Takes what the host sent."""
        self.unsent += data
        self.feed()
        self.watch()

    def granted(self, stream, count):
        self.allowed[stream] += count
        self.watch()


class Kernel(Streams):
    """A kernel and our ends of its streams."""

    def __init__(self, number):
        super().__init__(number, WINDOW)
        # A piece of its channel that waits for what was printed before it.
        self.held = b""
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
        self.input = control.fileno()
        self.streams = [control.fileno(), *(ours for ours, _ in outputs)]
        for descriptor in (*self.streams, self.warden.fileno()):
            os.set_blocking(descriptor, False)
        self.watch()

    def may_read(self, stream):
        return super().may_read(stream) and not (stream == 0 and self.held)

    def watch(self):
        super().watch()
        listen(self.warden.fileno(), selectors.EVENT_READ, self)

    def handle(self, descriptor, events):
        if descriptor == self.warden.fileno():
            self.hear_checkpoint()
        elif descriptor == self.input:
            if events & selectors.EVENT_WRITE:
                self.feed()
            if events & selectors.EVENT_READ:
                self.take_frames()
            self.watch()
        else:
            super().handle(descriptor, events)

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

    def granted(self, stream, count):
        self.allowed[stream] += count
        if self.held:
            self.take_frames()
        self.watch()

    def ended(self, stream):
        """Nobody writes to a stream any more, no checkpoint either."""
        listen(self.streams[stream], 0, None)
        if stream == 0:
            self.input = None
        else:
            os.close(self.streams[stream])
        self.streams[stream] = None

    def refused(self):
        """It is gone, which its end tells."""
        send(GRANT, self.number, 0, struct.pack(">I", len(self.unsent)))
        self.unsent.clear()

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
        send_end(self.number, status)

    def restore(self):
        """Wakes the checkpoint, which goes on with a new channel."""
        while self.hear_checkpoint():
            pass
        restored = self.checkpoint is not None and self.wake()
        send(RESTORED, self.number, 0, b"\1" if restored else b"\0")
        self.watch()

    def wake(self):
        try:
            os.kill(self.checkpoint, 0)
            control, theirs = socket.socketpair()
            socket.send_fds(self.warden, [b"restore"], [theirs.fileno()])
            theirs.close()
            self.warden.settimeout(RESTORE_TIMEOUT)
            word = self.hear_checkpoint()
            while word == b"checkpoint":
                word = self.hear_checkpoint()
            self.warden.setblocking(False)
        except OSError:
            return False
        if word != b"restored":
            return False
        listen(self.streams[0], 0, None)
        self.control.close()
        self.control = control
        control.setblocking(False)
        self.streams[0] = self.input = control.fileno()
        self.pid, self.checkpoint = self.checkpoint, None
        self.held = b""
        if self.unsent:
            send(GRANT, self.number, 0, struct.pack(">I", len(self.unsent)))
            self.unsent.clear()
        return True


    def close(self):
        """Ends it for good, and lets go of all of it."""
        self.signal(signal.SIGKILL, True)
        for descriptor in (*self.streams, self.warden.fileno()):
            listen(descriptor, 0, None)
        for descriptor in self.streams[1:]:
            if descriptor is not None:
                os.close(descriptor)
        self.control.close()
        self.warden.close()


class Channel(Streams):
    """A command or a connection: what goes in, and what comes out."""

    def __init__(self, number):
        super().__init__(number, CHANNEL_WINDOW)
        # True if nothing goes in after what is unsent.
        self.is_last = False
        self.is_refused = False

    def feed(self):
        super().feed()
        if self.is_last and not self.unsent and self.input is not None:
            self.is_last = False
            self.end_input()

    def ended(self, stream):
        """Nothing comes out of a stream any more."""
        self.let_go(stream)
        send(CLOSE, self.number, stream)

    def refused(self):
        """Nobody takes what goes in."""
        self.unsent.clear()
        self.end_input()
        if not self.is_refused:
            self.is_refused = True
            send(CLOSE, self.number, 0)

    def close_stream(self, stream):
        """The host sends no more, or reads no more."""
        if stream == 0:
            self.is_last = True
            self.feed()
        else:
            self.let_go(stream)
        self.watch()


class Process(Channel):
    """A command."""

    def __init__(self, number, arguments, environment, directory, pty):
        super().__init__(number)
        self.is_terminal = pty is not None
        ends = open_terminal(*pty) if pty else open_pipes()
        try:
            self.input, *self.streams[1:] = ends[0]
            self.pid = start_command(ends[1], arguments, environment, directory, self.is_terminal)
        except BaseException:
            for descriptor in {*ends[0], *ends[1]} - {None}:
                os.close(descriptor)
            raise
        for descriptor in {*ends[1]}:
            os.close(descriptor)
        send(STARTED, number, 0, struct.pack(">I", self.pid))
        self.watch()

    def let_go(self, stream):
        descriptor, self.streams[stream] = self.streams[stream], None
        if descriptor is None:
            return
        if descriptor == self.input:
            listen(descriptor, selectors.EVENT_WRITE if self.unsent else 0, self)
        else:
            listen(descriptor, 0, None)
            os.close(descriptor)

    def end_input(self):
        # Whoever sits at a terminal may leave; that is not the end of what it reads.
        if not self.is_terminal:
            listen(self.input, 0, None)
            os.close(self.input)
            self.input = None

    def signal(self, number, _for_good):
        if self.pid is not None:
            try:
                os.killpg(self.pid, number)
            except OSError:
                pass  # it is gone

    def exited(self, status):
        self.pid = None
        # Its output comes before its end, also where the host is behind with reading.
        for stream in (1, 2):
            self.allowed[stream] += PIPE
            self.pass_on(stream, PIPE)
        self.watch()
        send_end(self.number, status)

    def resize(self, columns, rows):
        if self.is_terminal and self.input is not None:
            set_window(self.input, columns, rows)

    def close(self):
        self.signal(signal.SIGKILL, True)
        self.unsent.clear()
        for descriptor in {*self.streams, self.input} - {None}:
            listen(descriptor, 0, None)
            os.close(descriptor)
        self.streams, self.input = [None, None, None], None


class Connection(Channel):
    """A connection to a port of the loopback device."""

    def __init__(self, number, port):
        super().__init__(number)
        self.port = port
        # Addresses that are still to be tried.
        self.addresses = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
        self.socket = None
        self.is_connected = False
        self.pid = None
        self.connect()

    def connect(self):
        """Tries the next address."""
        while self.addresses:
            family, address = self.addresses.pop(0)
            try:
                self.socket = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # without IPv6
            self.socket.setblocking(False)
            code = self.socket.connect_ex((address, self.port))
            if code in (0, errno.EINPROGRESS):
                listen(self.socket.fileno(), selectors.EVENT_WRITE, self)
                return
            self.socket.close()
            if code not in (errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETUNREACH):
                raise OSError(code, os.strerror(code))
        raise ConnectionRefusedError()

    def handle(self, descriptor, events):
        if self.is_connected:
            super().handle(descriptor, events)
            return
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.is_connected = True
            self.input = self.streams[1] = descriptor
            send(STARTED, self.number, 0, struct.pack(">I", 0))
            self.feed()
            self.watch()
            return
        listen(descriptor, 0, None)
        self.socket.close()
        answer(self.number, self.connect if code == errno.ECONNREFUSED else lambda: fail(code))

    def let_go(self, stream):
        if self.streams[stream] is not None:
            listen(self.streams[stream], selectors.EVENT_WRITE if self.unsent and self.input is not None else 0, self)
            self.streams[stream] = None

    def end_input(self):
        listen(self.input, selectors.EVENT_READ if self.streams[1] is not None else 0, self)
        self.input = None
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was hung up

    def signal(self, _number, _for_good):
        pass

    def resize(self, _columns, _rows):
        pass

    def close(self):
        if self.socket.fileno() >= 0:
            listen(self.socket.fileno(), 0, None)
            self.socket.close()


def fail(code):
    raise OSError(code, os.strerror(code))


def answer(number, step):
    """Does what a command or a connection begins with; a failure is the answer to the host."""
    try:
        step()
    except ConnectionRefusedError:
        found.pop(number, None)
        send(FAILED, number, 1)
    except (OSError, ValueError) as error:
        found.pop(number, None)
        reason = error.strerror if isinstance(error, OSError) else None
        place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        send(FAILED, number, 0, (place + (reason or str(error))).encode(errors="replace")[:CHUNK])


def open_pipes():
    """Our ends of a command's three streams, and its own."""
    ends = []
    try:
        for _ in range(3):
            ends.extend(os.pipe())
    except OSError:
        for descriptor in ends:
            os.close(descriptor)
        raise
    stdin, ours, out, stdout, err, stderr = ends
    for descriptor in (ours, out, err):
        os.set_blocking(descriptor, False)
    return (ours, out, err), (stdin, stdout, stderr)


def open_terminal(columns, rows):
    """Our end of a terminal, and the command's."""
    ours, theirs = os.openpty()
    set_window(ours, columns, rows)
    os.set_blocking(ours, False)
    return (ours, ours, None), (theirs, theirs, theirs)


def set_window(terminal, columns, rows):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def start_command(streams, arguments, environment, directory, is_terminal):
    """Starts a command, and waits until it runs."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        run_command(tell, streams, arguments, environment, directory, is_terminal)
    os.close(tell)
    reason = b""
    while part := os.read(told, 4096):
        reason += part
    os.close(told)
    if reason:
        raise ValueError(reason.decode())
    return pid


def run_command(tell, streams, arguments, environment, directory, is_terminal):
    """Runs in a new process; never returns."""
    step = ""
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        for descriptor, place in zip(streams, range(3)):
            os.dup2(descriptor, place)
        os.dup2(tell, 3, False)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        be_one_of_the_sandbox()
        if is_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # Signals that this process ignores would stay ignored.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        step = directory
        os.chdir(directory)
        step = arguments[0]
        os.execvpe(arguments[0], arguments, {**os.environ, "PWD": directory, **dict(environment)})
    except BaseException as error:
        os.write(3, f"{step}: {getattr(error, 'strerror', None) or error}".encode(errors="replace")[:4096])
    finally:
        os._exit(1)


def become(descriptors):
    """Runs in a new kernel; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        control, warden, stdout, stderr = descriptors
        for ours, place, inherited in ((control, 3, False), (warden, 4, False), (stdout, 1, True), (stderr, 2, True)):
            os.dup2(ours, place, inherited)
        os.closerange(5, os.sysconf("SC_OPEN_MAX"))
        be_one_of_the_sandbox()
        kernel.run()
        status = 0
    finally:
        os._exit(status)


def prctl(option, value):
    """Sets an attribute of this process. Only the first process of a container has to have its own: elsewhere the place may refuse, and has other
    processes of the same user beside this one anyway."""
    if libc.prctl(option, value, 0, 0, 0) != 0 and os.getpid() == 1:
        raise OSError(ctypes.get_errno(), "prctl")


def be_one_of_the_sandbox():
    """Gives up the privileges of the first process. Runs in a new process that has its own streams by now."""
    prctl(PR_SET_DUMPABLE, 1)
    # When memory runs out, others go before this process, which tells why. Some hosts rank by themselves.
    try:
        with open("/proc/self/oom_score_adj", "w") as rank:
            rank.write("1000")
    except OSError:
        pass


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


def locks():
    """Returns the number of locks that processes of this container hold or wait for."""
    with open("/proc/locks", "rb", 0) as file:
        count = 0
        for _ in range(LOCKS >> 16):
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


def enforce_bounds():
    """Ends all processes of the container but this one if they have too many objects that no control group counts."""
    for count, most in ((locks, MOST_LOCKS), (sockets, MOST_SOCKETS), (terminals, MOST_TERMINALS)):
        try:
            if count() > most:
                kill(-1, signal.SIGKILL)
                return
        except (OSError, ValueError):
            continue  # not every place tells


def kill(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass  # it is gone


# Kernels, commands and connections, by number.
found = {}
memory = Memory()
selector = selectors.DefaultSelector()
libc = ctypes.CDLL(None, use_errno=True)


def listen(descriptor, events, what):
    if descriptor is None:
        return
    known = selector.get_map().get(descriptor)
    if not events:
        if known is not None:
            selector.unregister(descriptor)
    elif known is None:
        selector.register(descriptor, events, what)
    elif known.events != events or known.data is not what:
        selector.modify(descriptor, events, what)


def reap():
    """Sees to processes that ended: kernels and commands, and what they left to this process."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for one in list(found.values()):
            if one.pid == pid:
                one.exited(status)
            elif getattr(one, "checkpoint", None) == pid:
                one.checkpoint = None


def start(number, make, *arguments):
    found[number] = make(number, *arguments)


def handle(kind, number, stream, payload):
    """Does what the host asks for."""
    one = found.get(number)
    if kind == KERNEL:
        answer(number, lambda: start(number, Kernel))
    elif kind == SPAWN:
        answer(number, lambda: start(number, *command_of(json.loads(payload))))
    elif kind == CONNECT:
        answer(number, lambda: start(number, Connection, *struct.unpack(">H", payload)))
    elif one is None:
        pass  # it has ended
    elif kind == DATA:
        one.take(payload)
    elif kind == SIGNAL:
        one.signal(payload[0], stream == 1)
    elif kind == RESTORE:
        one.restore()
    elif kind == GRANT:
        one.granted(stream, struct.unpack(">I", payload)[0])
    elif kind == CLOSE:
        one.close_stream(stream)
    elif kind == RESIZE:
        one.resize(*struct.unpack(">HH", payload))
    elif kind == END:
        del found[number]
        one.close()


def command_of(wish):
    return Process, wish["arguments"], wish["environment"], wish["directory"], wish["pty"]


def main():
    buffer = bytearray()
    wakeup, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    # A program that interrupts all processes does not mean this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listen(0, selectors.EVENT_READ, "host")
    listen(wakeup, selectors.EVENT_READ, "children")
    send(READY, payload=SCRIPTS_DIRECTORY.encode())
    # Elsewhere it would end what is not this process's.
    is_first = os.getpid() == 1
    looked = time.monotonic()
    while True:
        ready = selector.select(LOOK if is_first and found else None)
        if is_first and time.monotonic() - looked >= LOOK:
            enforce_bounds()
            looked = time.monotonic()
        for key, events in ready:
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
            # Whatever came before in this round may have ended it.
            elif selector.get_map().get(key.fd) is key:
                key.data.handle(key.fd, events)


def read_exactly(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


if __name__ == "__main__":
    if not os.access(SCRIPTS_DIRECTORY, os.W_OK):
        SCRIPTS_DIRECTORY = tempfile.mkdtemp(prefix="aludel-")
    for program, text in json.loads(read_exactly(struct.unpack(">I", read_exactly(4))[0])).items():
        with open(os.path.join(SCRIPTS_DIRECTORY, program), "w") as file:
            file.write(text)
    sys.path.insert(0, SCRIPTS_DIRECTORY)
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
    # Programs of the sandbox have the same user. They may not look into this process, nor take its streams.
    prctl(PR_SET_DUMPABLE, 0)
    # A process that outlives its parent becomes this process's child, also where it is not the first.
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    main()
