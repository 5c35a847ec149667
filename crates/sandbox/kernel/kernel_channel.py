"""The kernel's way to the host: length-prefixed JSON frames over two inherited pipes. Over a socket, a program could send the host descriptors."""

import json
import re
import select
from os import read, write
from struct import pack, unpack

# All of it bound here: a program may put something else in a module's place.
ENCODE = json.JSONEncoder(ensure_ascii=False).encode
DECODE = json.JSONDecoder().decode
LONE_SURROGATE = re.compile("[\ud800-\udfff]")

FROM_HOST_FD = 3
TO_HOST_FD = 4
# A socket. Whoever is at its other end wakes the checkpoint, if the kernel may have one.
CHECKPOINT_FD = 5
# The host refuses longer frames; what is longer is left out here, with a word about it.
MAX_FRAME = 24 << 20


class Channel:
    """The ends of the pipes from and to the host."""

    def __init__(self, from_host=FROM_HOST_FD, to_host=TO_HOST_FD):
        self.from_host = from_host
        self.to_host = to_host

    def send(self, frame):
        payload = utf8(ENCODE(frame))
        if len(payload) > MAX_FRAME:
            payload = utf8(ENCODE(left_out(frame, len(payload))))
        data = pack(">I", len(payload)) + payload
        view = memoryview(data)
        while view:
            view = view[write(self.to_host, view) :]

    def receive(self):
        header = self._read(4)
        return DECODE(self._read(unpack(">I", header)[0]).decode())

    def _read(self, count):
        parts = []
        while count:
            part = read(self.from_host, min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class Silence:
    """A channel nobody listens to, for the zygote's rehearsal. It answers each frame as the host does."""

    def __init__(self):
        self.number = None

    def send(self, frame):
        self.number = frame.get("number")

    def receive(self):
        return {"number": self.number}


def utf8(written):
    """JSON as bytes. Surrogates without their other half, which UTF-8 does not have, are written out as Python shows them."""
    try:
        return written.encode()
    except UnicodeEncodeError:
        return LONE_SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", written).encode()


def left_out(frame, size):
    """The frame without its data, when that is more than the host takes."""
    text = f"[a result of {size >> 20} MB was left out: too large to show; write it to a file instead]"
    return {**frame, "data": {"text/plain": text}} if "data" in frame else frame


def is_readable(descriptor, seconds):
    """Returns true as soon as the descriptor can be read, and false after so many seconds; with None it waits for ever."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
