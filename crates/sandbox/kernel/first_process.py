"""The first process of a sandbox that is reached by its streams: imports what kernels need, forks them, and passes on what they say. It starts
commands and connects to ports of the loopback device, too.

It speaks messages over stdin and stdout (first_messages.py). When stdin ends, the host has gone, and this process takes all that it started along.
"""

import json
import os
import selectors
import signal
import struct
import sys
import time

import kernel
from first_bounds import LOOK_INTERVAL_SECONDS, enforce_bounds
from first_command import Process
from first_connection import Connection
from first_descendants import end_all
from first_kernel import Kernel
from first_messages import CLOSE, CONNECT, DATA, END, FAILED, GRANT, KERNEL, READY, RESIZE, RESTORE, SIGNAL, SPAWN, Incoming, send
from first_privileges import be_first
from first_streams import answer, found, listen, selector

# Descriptors below are a kernel's own.
FIRST_FREE = 10


def run(directory):
    """Runs in the process whose streams lead to the host; never returns. The directory has the scripts."""
    low = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    while low < FIRST_FREE:
        low = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    # Output of imports is no message.
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        kernel.prepare(True)
    except Exception as error:
        os.dup2(ours, 1)
        send(FAILED, 0, 0, f"{type(error).__name__}: {error}".encode())
        sys.exit(1)
    os.dup2(ours, 1)
    os.close(ours)
    be_first()
    main(directory)


def main(directory):
    incoming = Incoming()
    wakeup, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    # A program that interrupts all processes does not mean this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listen(0, selectors.EVENT_READ, "host")
    listen(wakeup, selectors.EVENT_READ, "children")
    send(READY, payload=directory.encode())
    # Elsewhere it would end what is not this process's.
    is_first = os.getpid() == 1
    looked = time.monotonic()
    while True:
        ready = selector.select(LOOK_INTERVAL_SECONDS if is_first and found else None)
        if is_first and time.monotonic() - looked >= LOOK_INTERVAL_SECONDS:
            enforce_bounds()
            looked = time.monotonic()
        for key, events in ready:
            if key.data == "host":
                data = os.read(0, 256 << 10)
                if not data:
                    end_all()
                for message in incoming.take(data):
                    handle(*message)
            elif key.data == "children":
                os.read(wakeup, 4096)
                reap()
            # Whatever came before in this round may have ended it.
            elif selector.get_map().get(key.fd) is key:
                key.data.handle(key.fd, events)


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


def start(number, make, *arguments):
    found[number] = make(number, *arguments)


def command_of(wish):
    return Process, wish["arguments"], wish["environment"], wish["directory"], wish["pty"]


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
