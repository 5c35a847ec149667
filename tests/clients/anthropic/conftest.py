"""A real `aludel serve` with a real sandbox; only the model is scripted, by the model of OpenAI's clients."""

import sys
from pathlib import Path

import pytest
from anthropic import Anthropic

sys.path.append(str(Path(__file__).parent.parent))

import server as shared  # noqa: E402

TOOL = {"type": "code_execution_20260120", "name": "code_execution"}


class Server(shared.Server):
    """A server with the scripted model behind this port, and these models beside it."""

    def __init__(self, port, models="", **sandbox):
        lines = "".join(f"{key} = {value}\n" for key, value in sandbox.items())
        super().__init__(f"[sandbox]\n{lines}" + shared.MODEL.format(name="scripted", port=port) + models)

    def client(self, api_key="unused", **options):
        return Anthropic(base_url=self.url, api_key=api_key, _strict_response_validation=True, **options)


@pytest.fixture(scope="session")
def upstream():
    with shared.scripted_model() as port:
        yield port


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
