"""Tools of the client's as asynchronous functions, in the cells that are given some.

Calls that the program makes at the same moment go to the host in one frame. Then the whole event loop stands still until the client has answered
them: the host's clock of the cell stands still, too.
"""

import asyncio
import json
import threading

from kernel_channel import utf8
from kernel_output import flush_streams

# Calls of one frame. More are asked for when these are answered.
MAX_AT_ONCE = 128
# Calls of one cell.
MAX_CALLS = 1000
# Bytes of the arguments of one call, and of those of one frame.
MAX_ARGUMENTS = 256 << 10
MAX_ASKED = 1 << 20
# Rounds of the event loop after the first call in which other tasks can make theirs.
ROUNDS = 3


class ToolError(Exception):
    """A tool of the client's failed; the message is the client's."""

    __module__ = "__main__"


class Tools:
    """As a context: the functions of one cell, in its namespace while it runs."""

    def __init__(self, output, namespace, names):
        self.output = output
        self.namespace = namespace
        self.functions = {name: self.function(name) for name in names}
        self.before = {}
        self.is_open = False
        self.made = 0
        # The event loop of the calls that nobody was asked about yet: name, arguments and future of each.
        self.loop = None
        self.waiting = []

    def __enter__(self):
        added = {**self.functions, ToolError.__name__: ToolError}
        self.before = {name: self.namespace[name] for name in added if name in self.namespace}
        self.namespace.update(added)
        self.is_open = True

    def __exit__(self, *_error):
        self.is_open = False
        for name, function in {**self.functions, ToolError.__name__: ToolError}.items():
            # The program may have put something else in its place.
            if self.namespace.get(name) is function:
                del self.namespace[name]
                if name in self.before:
                    self.namespace[name] = self.before[name]
        self.forget()

    def forget(self):
        """Cancels the calls of tasks that were left behind."""
        waiting, self.waiting = self.waiting, []
        for _name, _arguments, future in waiting:
            if not future.get_loop().is_closed():
                future.cancel()

    def function(self, name):
        async def tool(arguments=None, /, **named):
            return await self.call(name, arguments, named)

        tool.__name__ = tool.__qualname__ = name
        tool.__doc__ = f"A tool of the user's. `await {name}({{...}})` takes one dict of arguments and returns text."
        return tool

    async def call(self, name, arguments, named):
        if not self.is_open:
            raise RuntimeError(f"{name} can only be called while the cell runs that it was given to")
        if self.output.is_child() or threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"{name} can only be called in the cell itself, with `await {name}({{...}})`: not in a thread or a child process")
        self.made += 1
        if self.made > MAX_CALLS:
            raise RuntimeError(f"a cell can call tools {MAX_CALLS} times")
        written = write(name, arguments, named)
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.forget()
            self.loop = loop
        if not self.waiting:
            loop.call_soon(self.ask, ROUNDS)
        future = loop.create_future()
        self.waiting.append((name, written, future))
        return await future

    def ask(self, rounds):
        """Asks the client about all calls that wait, as soon as no task makes more."""
        if rounds > 0:
            self.loop.call_soon(self.ask, rounds - 1)
            return
        # The program has given up some.
        waiting = [call for call in self.waiting if not call[2].done()]
        asked = fitting(waiting)
        self.waiting = waiting[len(asked) :]
        if self.waiting:
            self.loop.call_soon(self.ask, 0)
        if not asked:
            return
        flush_streams()
        calls = [{"name": name, "arguments": arguments} for name, arguments, _future in asked]
        frame = self.output.ask({"type": "calls", "calls": calls}) or {}
        answers = frame.get("answers", [])
        for place, (name, _arguments, future) in enumerate(asked):
            answer = answers[place] if place < len(answers) else {"is_error": True, "text": f"{name} was not answered"}
            if answer.get("is_error"):
                future.set_exception(ToolError(answer["text"]))
            else:
                future.set_result(answer["text"])


def write(name, arguments, named):
    """The arguments of a call as JSON."""
    if arguments is None:
        arguments = named
    elif named or not isinstance(arguments, dict):
        raise TypeError(f"{name} takes one dict of arguments: `await {name}({{...}})`")
    written = utf8(json.dumps(arguments, default=plain, allow_nan=False, ensure_ascii=False))
    if len(written) > MAX_ARGUMENTS:
        raise ValueError(f"the arguments of {name} have {len(written)} bytes as JSON; at most {MAX_ARGUMENTS} are allowed")
    return written.decode()


def plain(value):
    """Numbers and arrays of numpy and pandas as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be an argument of a tool: it has no form in JSON")


def fitting(waiting):
    """The first calls, as many as go into one frame."""
    size = 0
    for count, (_name, arguments, _future) in enumerate(waiting):
        size += len(arguments)
        if count == MAX_AT_ONCE or size > MAX_ASKED:
            return waiting[:count]
    return waiting
