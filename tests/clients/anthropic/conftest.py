"""A real `aludel serve` with a real sandbox; only the model is scripted, by the model of OpenAI's clients."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from anthropic import Anthropic

UPSTREAM = Path(__file__).parent.parent / "openai" / "upstream.py"
MODEL = '[[model]]\nname = "scripted"\napi = "chat"\nurl = "http://127.0.0.1:{port}/v1"\nkey = "sk-test"\n'
TOOL = {"type": "code_execution_20260120", "name": "code_execution"}


class Server:
    """A server on a directory of its own."""

    def __init__(self, port, models="", **sandbox):
        self.directory = tempfile.TemporaryDirectory()
        data = Path(self.directory.name)
        if shared := os.environ.get("ALUDEL_TEMPLATES"):
            (data / "templates").symlink_to(shared)
        lines = "".join(f"{key} = {value}\n" for key, value in sandbox.items())
        (data / "aludel.toml").write_text(f"[sandbox]\n{lines}" + MODEL.format(port=port) + models)
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

    def key(self, name):
        """A new key."""
        command = [*shlex.split(os.environ["ALUDEL"]), "keys", "create", name, "--data", self.directory.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return next(word for word in printed.split() if word.startswith("sk-"))

    def client(self, api_key="unused", **options):
        return Anthropic(base_url=self.url, api_key=api_key, _strict_response_validation=True, **options)

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(60)
        # The failure says more than how the server ended after it.
        assert failure or ended == 0


@pytest.fixture(scope="session")
def upstream():
    process = subprocess.Popen([sys.executable, UPSTREAM], stdout=subprocess.PIPE, text=True)
    yield int(process.stdout.readline())
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def server(upstream):
    with Server(upstream, timeout='"3s"') as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def keyed(upstream):
    """A server with keys: itself, and the keys of two tenants."""
    with Server(upstream) as server:
        yield server, server.key("ada"), server.key("eve")
