"""A real `aludel serve` with real sandboxes."""

import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent))

from server import Server  # noqa: E402

IMAGE = "opensandbox/code-interpreter:v1.1.0"


@pytest.fixture(scope="session")
def server():
    with Server("[sandbox]\npool = 0\n") as server:
        yield server


@pytest.fixture(scope="session")
def config(server):
    from opensandbox.config import ConnectionConfigSync

    return ConnectionConfigSync(domain=server.url.split("//")[1], api_key="unused")


@pytest.fixture
def make(config):
    """Makes sandboxes, which are ended after the test."""
    from opensandbox import SandboxSync
    from opensandbox.exceptions import SandboxApiException

    made = []

    def make(**options):
        options = {"timeout": timedelta(minutes=2), **options}
        made.append(SandboxSync.create(IMAGE, connection_config=config, **options))
        return made[-1]

    yield make
    for sandbox in made:
        # A test may have ended it.
        with suppress(SandboxApiException):
            sandbox.kill()
        sandbox.close()


@pytest.fixture
def sandbox(make):
    return make()


@pytest.fixture
def codes(sandbox):
    from code_interpreter import CodeInterpreterSync

    return CodeInterpreterSync.create(sandbox=sandbox).codes
