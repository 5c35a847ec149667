"""A real `aludel serve` with a real sandbox, and one on which every program waits for approval."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent))

import server as shared  # noqa: E402

# No telemetry, and no proxy on the way to this machine.
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", NO_PROXY="127.0.0.1,localhost")


class Server(shared.Server):
    """A server, and the address of its protocol."""

    def __enter__(self):
        super().__enter__()
        self.base, self.url = self.url, self.url + "/mcp"
        return self


@pytest.fixture(scope="session")
def server():
    with Server('[server]\nmcp_return_after = "3s"\n') as server:
        yield server


@pytest.fixture(scope="session")
def held():
    with Server('[approval]\nmode = "always"\n') as server:
        yield server


@pytest.fixture(scope="session")
def unattended():
    """One that returns before anybody decided."""
    with Server('[server]\nmcp_return_after = "1s"\n[approval]\nmode = "always"\n') as server:
        yield server


@pytest.fixture(scope="session")
def command():
    """The command that serves on standard input and output."""
    server = Server()
    yield [*server.command()[:-2], "mcp"]
