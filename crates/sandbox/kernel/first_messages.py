"""Messages between the host and the first process, over its stdin and stdout: a kind, the number of a kernel, a command or a connection, a stream
and the length of what follows (HEADER). Stream 0 is a kernel's channel, or what goes into a command or a connection; 1 and 2 are what comes out.
"""

import os
import struct

HEADER = struct.Struct(">BIBI")
(KERNEL, DATA, SIGNAL, END, RESTORE, GRANT, STARTED, FAILED, EXITED, RESTORED, READY, SPAWN, CONNECT, CLOSE, RESIZE) = range(1, 16)
# Bytes of one message.
CHUNK = 64 << 10


def send(kind, number=0, stream=0, payload=b""):
    view = memoryview(HEADER.pack(kind, number, stream, len(payload)) + payload)
    while view:
        view = view[os.write(1, view) :]


class Incoming:
    """Messages of the host, as they arrive."""

    def __init__(self):
        self.buffer = bytearray()

    def take(self, data):
        """Yields the messages that are complete with this data."""
        self.buffer += data
        while len(self.buffer) >= HEADER.size:
            kind, number, stream, length = HEADER.unpack_from(self.buffer)
            if len(self.buffer) < HEADER.size + length:
                break
            payload = bytes(self.buffer[HEADER.size : HEADER.size + length])
            del self.buffer[: HEADER.size + length]
            yield kind, number, stream, payload
