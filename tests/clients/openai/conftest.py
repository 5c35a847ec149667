"""A real `aludel serve` with a real sandbox; only the model is scripted."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from openai import OpenAI

HERE = Path(__file__).parent


class Server:
    """A server that can be killed and started again on the same data."""

    # Where it tells what it has to tell; with the tests' own words unless one wants to read it.
    stderr = None

    def __init__(self, upstream, api="chat", models=None, sections="", **settings):
        self.directory = tempfile.TemporaryDirectory()
        data = Path(self.directory.name)
        if shared := os.environ.get("ALUDEL_TEMPLATES"):
            (data / "templates").symlink_to(shared)
        lines = [f"{key} = {value}" for key, value in settings.items()]
        self.settings = sections + "[sandbox]\n" + "\n".join(lines) + "\n"
        usual = {"api": f'"{api}"', "url": f'"http://127.0.0.1:{upstream}/v1"', "key": '"sk-test"'}
        self.configure(models or {name: usual for name in ("scripted", "gpt-5")})
        self.process = None
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
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.stderr, text=True)
        while line := self.process.stdout.readline():
            if "listening on " in line:
                self.url = line.split("listening on ")[1].split()[0]
                return
        raise RuntimeError("aludel did not start")

    def client(self, **options):
        return OpenAI(base_url=self.url + "/v1", api_key="unused", _strict_response_validation=True, **options)

    def sandboxes(self):
        """How many live: each has a workspace of its own, mounted for the server alone."""
        directories = (Path(self.directory.name) / "run").glob("*/workspaces/*")
        return sum(1 for _ in directories)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(60)

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        self.start()


@pytest.fixture(scope="session")
def upstream():
    process = subprocess.Popen([sys.executable, HERE / "upstream.py"], stdout=subprocess.PIPE, text=True)
    yield int(process.stdout.readline())
    process.kill()


@pytest.fixture(scope="session")
def server(upstream):
    server = Server(upstream)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def client(server):
    return server.client()
