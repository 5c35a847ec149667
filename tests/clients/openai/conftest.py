"""A real `aludel serve` with a real sandbox; only the model is scripted."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from openai import OpenAI

HERE = Path(__file__).parent


def eventually(condition, seconds=60):
    """Returns the value of a condition as soon as it holds. Busy machines need the time; on others none of it is lost."""
    end = time.monotonic() + seconds
    while not (held := condition()):
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.05)
    return held


def containers(client):
    """The ids of all that there are, however many pages they take."""
    return {container.id for container in client.containers.list(limit=100)}


def aludel(server, *arguments, check=True):
    """Runs a command beside a server, on its data."""
    command = [*shlex.split(os.environ.get("ALUDEL", "aludel")), *arguments, "--data", server.directory.name]
    return subprocess.run(command, capture_output=True, text=True, check=check)


class Server:
    """A server that can be killed and started again on the same data. As a context, it is stopped whatever happens in it."""

    def __init__(self, upstream, api="chat", models=None, sections="", **settings):
        self.directory = tempfile.TemporaryDirectory()
        data = Path(self.directory.name)
        if shared := os.environ.get("ALUDEL_TEMPLATES"):
            (data / "templates").symlink_to(shared)
        lines = [f"{key} = {value}" for key, value in settings.items()]
        self.settings = sections + "[sandbox]\n" + "\n".join(lines) + "\n"
        usual = {"api": f'"{api}"', "url": f'"http://127.0.0.1:{upstream}/v1"', "key": '"sk-test"'}
        self.configure(models or {name: usual for name in ("scripted", "gpt-5")})
        self.process, self.said = None, []
        self.start()

    def configure(self, models):
        tables = [
            f'[[model]]\nname = "{name}"\n' + "\n".join(f"{key} = {value}" for key, value in model.items())
            for name, model in models.items()
        ]
        (Path(self.directory.name) / "aludel.toml").write_text(self.settings + "\n".join(tables))

    def start(self):
        command = [*shlex.split(os.environ.get("ALUDEL", "aludel")), "serve", "--listen", "127.0.0.1:0"]
        command += ["--data", self.directory.name, "--config", self.directory.name + "/aludel.toml"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        threading.Thread(target=self._hear, args=(self.process.stderr,), daemon=True).start()
        while line := self.process.stdout.readline():
            if "listening on " in line:
                self.url = line.split("listening on ")[1].split()[0]
                return
        self.process.wait(60)
        raise RuntimeError("aludel did not start")

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        ended = self.stop()
        # The failure says more than how the server ended after it.
        assert failure or ended == 0

    def _hear(self, lines):
        """Keeps what the server logs, and shows it as if it had gone there by itself."""
        for line in lines:
            self.said.append(line)
            os.write(2, line.encode())

    def client(self, **options):
        return OpenAI(base_url=self.url + "/v1", api_key="unused", _strict_response_validation=True, **options)

    def sandboxes(self):
        """Counts the live ones: each has a workspace of its own, mounted for the server alone."""
        directories = (Path(self.directory.name) / "run").glob("*/workspaces/*")
        return sum(1 for _ in directories)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        self.start()


@pytest.fixture(scope="session")
def upstream():
    process = subprocess.Popen([sys.executable, HERE / "upstream.py"], stdout=subprocess.PIPE, text=True)
    yield int(process.stdout.readline())
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def server(upstream):
    with Server(upstream) as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    return server.client()
