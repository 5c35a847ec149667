"""A server whose scripted model is there by three names: one as it is, one that plain chat clients see computing, and one for Gemini's."""

import pytest

from server import MODEL, Server, scripted_model


@pytest.fixture(scope="session")
def server():
    with scripted_model() as port:
        named = lambda name: MODEL.format(name=name, port=port)
        with Server(named("gpt-5") + named("gemini-2.5") + named("analyst") + "code_interpreter = true\n") as server:
            yield server


@pytest.fixture(scope="session")
def url(server):
    return server.url
