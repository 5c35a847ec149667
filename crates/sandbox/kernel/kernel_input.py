"""Python's input() in cells whose client has somebody to ask."""

import builtins
import threading

from kernel_channel import ENCODE, utf8
from kernel_output import flush_streams

# Characters of a prompt.
MAX_PROMPT = 64 << 10


class Input:
    """As a context: input() asks the client while a cell runs. The host's clock of the cell stands still meanwhile."""

    def __init__(self, output, name):
        self.output = output
        self.name = name

    def __enter__(self):
        self.before, builtins.input = builtins.input, self.input

    def __exit__(self, *_error):
        if builtins.input == self.input:
            builtins.input = self.before

    def input(self, prompt="", /):
        if self.output.is_child() or threading.current_thread() is not threading.main_thread():
            raise RuntimeError("input() can only be called in the program itself: not in a thread or a child process")
        flush_streams()
        arguments = utf8(ENCODE({"prompt": str(prompt)[:MAX_PROMPT]})).decode()
        frame = self.output.ask({"type": "calls", "calls": [{"name": self.name, "arguments": arguments}]}) or {}
        answer = next(iter(frame.get("answers", [])), {"is_error": True, "text": "nobody answered"})
        if answer.get("is_error"):
            raise EOFError(answer["text"])
        return answer["text"]
