"""A real `aludel serve` with a real sandbox, and one on which every program waits for approval."""

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

# No telemetry, and no proxy on the way to this machine.
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", NO_PROXY="127.0.0.1,localhost")


class Server:
    """A server, stopped when its context ends."""

    def __init__(self, configuration):
        self.directory = tempfile.TemporaryDirectory()
        data = Path(self.directory.name)
        if shared := os.environ.get("ALUDEL_TEMPLATES"):
            (data / "templates").symlink_to(shared)
        (data / "aludel.toml").write_text(configuration)
        self.command = [*shlex.split(os.environ.get("ALUDEL", "aludel")), "--data", str(data), "--config", str(data / "aludel.toml")]

    def __enter__(self):
        command = [*self.command, "serve", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        threading.Thread(target=lambda: [os.write(2, line.encode()) for line in self.process.stderr], daemon=True).start()
        while line := self.process.stdout.readline():
            if "listening on " in line:
                self.base = line.split("listening on ")[1].split()[0]
                self.url = self.base + "/mcp"
                return self
        raise RuntimeError("aludel did not start")

    def __exit__(self, failure, *_):
        self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(60)
        # The failure says more than how the server ended after it.
        assert failure or ended == 0


@pytest.fixture(scope="session")
def server():
    with Server('[server]\nmcp_return_after = "3s"\n') as server:
        yield server


@pytest.fixture(scope="session")
def held():
    with Server('[approval]\nmode = "always"\n') as server:
        yield server


@pytest.fixture(scope="session")
def command():
    """The command that serves on standard input and output."""
    server = Server("")
    yield [*server.command[:-2], "mcp"]
