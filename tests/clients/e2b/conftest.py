"""A real `aludel serve` with real sandboxes."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent))

import server as shared  # noqa: E402


class Server(shared.Server):
    """A server, and the variables by which E2B's clients find it."""

    def environment(self, key="e2b_0000000000000000000000000000000000000000"):
        return {"E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url, "E2B_API_KEY": key}


@pytest.fixture(scope="session")
def server():
    with Server("[sandbox]\npool = 0\n") as server:
        os.environ.update(server.environment())
        yield server


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
