"""The TypeScript clients of both generations, in Node."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CLIENTS = os.environ.get("NODE_CLIENTS")
pytestmark = pytest.mark.skipif(not CLIENTS, reason="npm is not installed")


@pytest.mark.parametrize("client", ["first", "current", "current-auto"])
def test_a_client_in_node(server, held, unattended, client, tmp_path):
    script = Path(CLIENTS) / "client.mjs"
    shutil.copy(Path(__file__).parent / "client.mjs", script)
    told = subprocess.run(["node", script, client, server.url, held.url, unattended.url], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    told = json.loads(told.stdout)
    assert told["tools"] == ["python", "wait", "files"]
    assert told["result"] == "42" and told["kinds"] == ["text", "image", "resource_link"] and told["file"] == "a,b"
    assert told["failed"] == [True, "error", "ZeroDivisionError"]
    assert told["progress"] >= 1 and told["status"] == "ok"
    assert told["approved"].startswith("marker") and told["refused"].startswith("Not approved")
    assert told["cancelled"] and told["free"] == "ok" and told["again"] == "42"
    assert "waits for the operator's approval (appr_" in told["unattended"]
