"""Kernels: forked from the first process, which has imported what they need."""

import fcntl
import os
import selectors
import signal
import socket
import struct

import kernel
from first_descendants import kill
from first_memory import send_end
from first_messages import CHUNK, DATA, GRANT, RESTORED, send
from first_privileges import be_one_of_the_sandbox
from first_streams import PIPE, Streams, listen
from kernel_channel import CHECKPOINT_FD, FROM_HOST_FD, TO_HOST_FD

# Bytes of a kernel's stream that may be under way.
WINDOW = 1 << 20
# The longest that a checkpoint may take to be awake, seconds.
RESTORE_TIMEOUT = 8


class Kernel(Streams):
    """A kernel and our ends of its streams."""

    def __init__(self, number):
        super().__init__(number, WINDOW)
        # A piece of its channel that waits for what was printed before it.
        self.held = b""
        self.checkpoint = None
        self.warden, copy = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.warden.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        theirs, self.input = os.pipe()
        outputs = [os.pipe() for _ in range(3)]
        self.pid = os.fork()
        if self.pid == 0:
            become([theirs, copy.fileno(), *(end for _, end in outputs)])
        copy.close()
        for descriptor in (theirs, *(end for _, end in outputs)):
            os.close(descriptor)
        self.streams = [ours for ours, _ in outputs]
        for descriptor in (self.input, *self.streams, self.warden.fileno()):
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
        elif descriptor == self.streams[0]:
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
        release(self.streams[stream])
        self.streams[stream] = None
        if stream == 0:
            release(self.input)
            self.input = None

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
            # Processes of its program end with it.
            try:
                os.killpg(self.pid, number)
            except OSError:
                pass  # it leads no group
            else:
                if number != signal.SIGKILL:
                    return
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
            (from_host, requests), (answers, to_host) = os.pipe(), os.pipe()
        except OSError:
            return False
        has_woken = self.hand_over([from_host, to_host])
        os.close(from_host)
        os.close(to_host)
        if not has_woken:
            os.close(requests)
            os.close(answers)
            return False
        release(self.streams[0])
        release(self.input)
        self.streams[0], self.input = answers, requests
        for descriptor in (requests, answers):
            os.set_blocking(descriptor, False)
        self.pid, self.checkpoint = self.checkpoint, None
        self.held = b""
        if self.unsent:
            send(GRANT, self.number, 0, struct.pack(">I", len(self.unsent)))
            self.unsent.clear()
        return True

    def hand_over(self, pipes):
        """Hands the pipes from and to the host to the checkpoint, and returns true once it goes on with them."""
        try:
            os.kill(self.checkpoint, 0)
            socket.send_fds(self.warden, [b"restore"], pipes)
            self.warden.settimeout(RESTORE_TIMEOUT)
            word = self.hear_checkpoint()
            while word == b"checkpoint":
                word = self.hear_checkpoint()
            self.warden.setblocking(False)
        except OSError:
            return False
        return word == b"restored"

    def close(self):
        """Ends it for good, and lets go of all of it."""
        self.signal(signal.SIGKILL, True)
        for descriptor in (self.input, *self.streams):
            release(descriptor)
        listen(self.warden.fileno(), 0, None)
        self.warden.close()


def release(descriptor):
    """Listens to it no more, and closes it."""
    if descriptor is not None:
        listen(descriptor, 0, None)
        os.close(descriptor)


def become(descriptors):
    """Runs in a new kernel; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        # Above all places, so that none is taken before its turn.
        copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, CHECKPOINT_FD + 1) for descriptor in descriptors]
        for ours, place in zip(copies, (FROM_HOST_FD, CHECKPOINT_FD, TO_HOST_FD, 1, 2)):
            os.dup2(ours, place, inheritable=place < FROM_HOST_FD)
        os.closerange(CHECKPOINT_FD + 1, os.sysconf("SC_OPEN_MAX"))
        be_one_of_the_sandbox()
        kernel.run()
        status = 0
    finally:
        os._exit(status)
