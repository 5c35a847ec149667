"""Connections to ports of the loopback device."""

import errno
import os
import selectors
import socket
import struct

from first_channel import Channel
from first_messages import STARTED, send
from first_streams import answer, listen


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
