"""Output of cells: displays and results as frames, printed text through two pipes, all of it in the order in which it was made."""

import base64
import io
import json
import os
import sys
import threading
from os import fstat, getpid

from kernel_channel import Silence, utf8

MAX_TEXT = 1 << 20
# Most of a chart's page is its library for the browser, of up to 5 MB.
MAX_PAGE = 6 << 20
# Pages in one cell that carry their library; further ones refer to it on the Internet.
MAX_LIBRARIES = 4
# Switches between the two streams in one cell whose order is kept, which costs an answer of the host each time.
MAX_TURNS = 1000
# The standard streams by their descriptors.
STREAMS = {1: "stdout", 2: "stderr"}


class Output:
    """The channel, and the state of the cell that writes to it."""

    def __init__(self):
        self.channel = Silence()
        # The kernel's process: in any other, the channel is its parent's.
        self.owner = getpid()
        self.in_cell = False
        # Held by whoever writes to the channel or waits there for an answer, and at the end of a cell, so that no thread of the program's
        # takes what is meant for the next one.
        self.lock = threading.RLock()
        self.shown = 0
        self.shield = Shield()
        self.interrupt_is_pending = False
        self.turns = 0
        self.most_libraries = self.libraries_left = MAX_LIBRARIES
        # The descriptor that was printed to last; child processes mostly use the first.
        self.printed_last = 1

    def begin_cell(self):
        self.turns, self.printed_last, self.libraries_left = 0, 1, self.most_libraries
        # One that came while an earlier cell failed to show something.
        self.interrupt_is_pending = False
        self.restore_streams()

    def is_child(self):
        """Returns true in a process that the program forked: the channel is its parent's."""
        return getpid() != self.owner

    def takes_library(self):
        """Returns true if the next page may carry its library."""
        self.libraries_left -= 1
        return self.libraries_left >= 0

    def display(self, data):
        """Sends a displayed value, unless there is nothing to show."""
        if bundle := encode_bundle(data):
            self.show({"type": "display", "data": bundle})

    def show(self, frame):
        """Sends a display; what is printed next comes after it on the host, too."""
        flush_streams()
        if self.is_child():
            print(frame["data"].get("text/plain", ""), flush=True)
            return
        self.ask(frame)

    def show_result(self, data):
        """Sends the value of the last expression."""
        flush_streams()
        if self.is_child():
            print(data.get("text/plain", ""), flush=True)
            return
        frame = {"type": "result", "data": encode_bundle(data)}
        with self.lock, self.shield:
            self.channel.send(frame)
        self.heed_interrupt()

    def ask(self, frame):
        """Sends a frame and waits until the host has it and all that was printed before it. Returns the host's answer."""
        with self.lock:
            if not self.in_cell:
                # A thread that goes on between two cells: nobody listens, and the next frame is a program.
                return None
            with self.shield:
                self.shown += 1
                self.channel.send({**frame, "number": self.shown})
                while (answer := self.channel.receive()).get("number") != self.shown:
                    pass
        self.heed_interrupt()
        return answer

    def heed_interrupt(self):
        """Ends the cell if that was put off."""
        if self.interrupt_is_pending and threading.current_thread() is threading.main_thread():
            self.interrupt()

    def keep_order(self, descriptor):
        """Called before a stream is written to: has the host take what is in the other one first."""
        if self.printed_last != descriptor and not self.is_child():
            self.printed_last = descriptor
            if self.turns < MAX_TURNS:
                self.turns += 1
                self.ask({"type": "flushed"})

    def interrupt(self, _number=None, _frame=None):
        """Ends the cell; between cells there is nothing to end, and the signal was meant for one that has just ended by itself."""
        self.interrupt_is_pending = self.in_cell and self.shield.is_up
        if self.in_cell and not self.shield.is_up:
            raise KeyboardInterrupt

    def open_streams(self):
        """Makes the standard streams. In the zygote, its forks find them made; over a pipe, since they ask about that when they are made."""
        sys.stdin = sys.__stdin__ = open(0, closefd=False)
        reader, writer = os.pipe()
        for descriptor, name in STREAMS.items():
            kept = os.dup(descriptor)
            os.dup2(writer, descriptor)
            stream = self.standard_stream(descriptor)
            os.dup2(kept, descriptor)
            os.close(kept)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        os.close(reader)
        os.close(writer)

    def restore_streams(self):
        """Makes the streams anew that an earlier cell closed, or put nothing in place of. Those that lead elsewhere stay."""
        for descriptor, name in STREAMS.items():
            if is_gone(getattr(sys, name, None)) and is_open(descriptor):
                stream = self.standard_stream(descriptor)
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)

    def standard_stream(self, descriptor):
        buffered = io.BufferedWriter(StandardStream(self, descriptor))
        return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


class Shield:
    """As a context, by whoever holds the lock: an interrupt is put off, which would leave half a frame in a pipe. The main thread alone gets
    one, so that no other puts it off."""

    def __init__(self):
        self.is_up = False

    def __enter__(self):
        self.is_up = threading.current_thread() is threading.main_thread()

    def __exit__(self, *_error):
        self.is_up = False


class StandardStream(io.FileIO):
    """Standard output or standard error, which are two pipes."""

    def __init__(self, output, descriptor):
        super().__init__(descriptor, "w", closefd=False)
        self.output = output

    def write(self, data):
        self.output.keep_order(self.fileno())
        return super().write(data)


def encode_bundle(data):
    """Makes every representation a string: bytes as base64, structures as JSON. Text that is too long is cut, and HTML left out."""
    bundle, omitted = {}, 0
    for mime, value in data.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = base64.b64encode(value).decode()
        elif not isinstance(value, str):
            value = encode_structure(value)
        if mime == "text/html":
            if len(value) > MAX_PAGE:
                omitted = len(value)
                continue  # half a document is worse than the text that comes with it
        elif mime.startswith("text/") and len(value) > MAX_TEXT:
            value = f"{value[:MAX_TEXT]}\n[{len(value) - MAX_TEXT} more characters were left out]"
        bundle[str(mime)] = value
    if omitted:
        note = f"[HTML of {omitted >> 20} MB was left out: too large to show; write it to a file instead]"
        bundle["text/plain"] = "\n".join(filter(None, (bundle.get("text/plain"), note)))
    return bundle


def encode_structure(value):
    """JSON of a structure. It has no words for infinity and for what is no number: both are null, as JavaScript writes them."""
    try:
        written = json.dumps(value, default=str, allow_nan=False, ensure_ascii=False)
    except ValueError:
        finite = json.loads(json.dumps(value, default=str), parse_constant=lambda _word: None)
        written = json.dumps(finite, ensure_ascii=False)
    return utf8(written).decode()


def is_gone(stream):
    """Returns true for no stream, and for one that is closed, detached or cannot say."""
    try:
        return stream is None or getattr(stream, "closed", False) is True
    except BaseException:
        return True


def is_open(descriptor):
    try:
        fstat(descriptor)
    except OSError:
        return False
    return True


def flush_streams():
    """Flushes both streams: text printed before a display must reach the host before it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
