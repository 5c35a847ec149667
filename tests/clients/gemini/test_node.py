"""Google's Node client."""

import os
import subprocess
from pathlib import Path

import pytest

from server import MODEL as CONFIGURATION
from server import Server, scripted_model

MODEL = "gemini-scripted"
NODE = os.environ.get("NODE_CLIENTS")


@pytest.mark.skipif(not NODE, reason="the Node client is installed by tests/clients/gemini/run")
def test_the_node_client():
    script = Path(NODE) / "node.mjs"
    script.write_text((Path(__file__).parent / "node.mjs").read_text())
    with scripted_model() as port, Server(CONFIGURATION.format(name=MODEL, port=port)) as server:
        ended = subprocess.run(["node", script, server.url, MODEL], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout == "ok\n", ended.stderr
