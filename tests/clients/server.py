"""A real `aludel serve` with a real sandbox, for every dialect's clients; only the model is scripted."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

MODEL = '[[model]]\nname = "{name}"\napi = "chat"\nurl = "http://127.0.0.1:{port}/v1"\nkey = "sk-test"\n'


class Server:
    """A server on a directory and with a configuration of its own, stopped when its context ends."""

    def __init__(self, configuration=""):
        self.directory = tempfile.TemporaryDirectory()
        data = Path(self.directory.name)
        if shared := os.environ.get("ALUDEL_TEMPLATES"):
            (data / "templates").symlink_to(shared)
        (data / "aludel.toml").write_text(configuration)

    def command(self, *arguments):
        """The command line of the executable, for this server's directory."""
        data = self.directory.name
        return [*shlex.split(os.environ["ALUDEL"]), *arguments, "--data", data, "--config", data + "/aludel.toml"]

    def run(self, *arguments):
        """The output of a command."""
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, check=True).stdout

    def key(self, name):
        """A new key."""
        return next(word for word in self.run("keys", "create", name).split() if word.startswith("sk-"))

    def __enter__(self):
        command = self.command("serve", "--listen", "127.0.0.1:0")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        threading.Thread(target=self._hear, args=(self.process.stderr,), daemon=True).start()
        line = next((line for line in self.process.stdout if "listening on " in line), None)
        assert line, "aludel did not start"
        self.url = line.split("listening on ")[1].split()[0]
        return self

    def _hear(self, lines):
        """Shows what the server logs as if it had gone there by itself."""
        for line in lines:
            os.write(2, line.encode())

    def __exit__(self, failure, *_):
        self.process.send_signal(signal.SIGTERM)
        ended = self.process.wait(60)
        # The failure says more than how the server ended after it.
        assert failure or ended == 0


@contextmanager
def scripted_model():
    """The port of the scripted model of OpenAI's clients."""
    script = Path(__file__).parent / "openai" / "upstream.py"
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
