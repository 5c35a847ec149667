"""The official Node client."""

import os
import subprocess
from pathlib import Path

import pytest

NODE = os.environ.get("NODE_CLIENTS")


@pytest.mark.skipif(not NODE, reason="the Node client is installed by tests/clients/openai/run")
def test_the_node_client(server):
    script = Path(NODE) / "node.mjs"
    script.write_text((Path(__file__).parent / "node.mjs").read_text())
    ended = subprocess.run(["node", script, server.url], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout == "ok\n", ended.stderr
