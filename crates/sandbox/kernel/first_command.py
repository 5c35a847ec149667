"""Commands of the sandbox, with pipes or a terminal."""

import fcntl
import os
import selectors
import signal
import struct
import termios

from first_channel import Channel
from first_memory import send_end
from first_messages import STARTED, send
from first_privileges import be_one_of_the_sandbox
from first_streams import PIPE, listen


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
