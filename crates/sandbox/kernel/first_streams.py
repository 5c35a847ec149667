"""Streams between the host and something in the sandbox. Nobody sends more of a stream than was granted, so one that is not read holds up no
other.
"""

import os
import selectors
import struct

from first_messages import CHUNK, DATA, FAILED, GRANT, send

# The most that a pipe holds: what was printed before a frame is among so many bytes, and as much comes with a command's end.
PIPE = 64 << 10

# Kernels, commands and connections, by number.
found = {}
selector = selectors.DefaultSelector()


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
