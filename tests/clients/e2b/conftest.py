"""A real `aludel serve` with real sandboxes."""

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest


class Server:
    """A server on a directory of its own."""

    def __init__(self):
        self.directory = tempfile.TemporaryDirectory()
        data = Path(self.directory.name)
        if shared := os.environ.get("ALUDEL_TEMPLATES"):
            (data / "templates").symlink_to(shared)
        (data / "aludel.toml").write_text("[sandbox]\npool = 0\n")
        command = [*shlex.split(os.environ["ALUDEL"]), "serve", "--listen", "127.0.0.1:0"]
        command += ["--data", str(data), "--config", str(data / "aludel.toml")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        threading.Thread(target=self._hear, args=(self.process.stderr,), daemon=True).start()
        line = next((line for line in self.process.stdout if "listening on " in line), None)
        assert line, "aludel did not start"
        self.url = line.split("listening on ")[1].split()[0]

    def _hear(self, lines):
        """Shows what the server logs as if it had gone there by itself."""
        for line in lines:
            os.write(2, line.encode())

    def run(self, *arguments):
        command = [*shlex.split(os.environ["ALUDEL"]), *arguments, "--data", self.directory.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def key(self, name):
        """A new key."""
        return next(word for word in self.run("keys", "create", name).split() if word.startswith("sk-"))

    def environment(self, key="e2b_0000000000000000000000000000000000000000"):
        return {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_API_KEY": key}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0


@pytest.fixture(scope="session")
def server():
    started = Server()
    os.environ.update(started.environment())
    yield started
    started.stop()


@pytest.fixture
def make(server):
    """Makes sandboxes, which are ended after the test."""
    from e2b_code_interpreter import Sandbox

    made = []

    def make(**options):
        made.append(Sandbox.create(**options))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def sandbox(make):
    return make(timeout=120)
