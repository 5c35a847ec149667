"""The Node client, and the last Python client that sends its key as `x-api-key`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NODE = os.environ.get("NODE_CLIENTS")
OLD = """
import sys
sys.path.insert(0, sys.argv[1])
import anthropic
assert anthropic.__version__ == "0.125.0"
client = anthropic.Anthropic(base_url=sys.argv[2], api_key=sys.argv[3], _strict_response_validation=True)
tool = {"type": "code_execution_20250825", "name": "code_execution"}
for messages in (client.messages, client.beta.messages):
    usual = {"model": "scripted", "max_tokens": 1000, "messages": [{"role": "user", "content": "2**20"}], "tools": [tool]}
    whole = messages.create(**usual)
    with messages.stream(**usual) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.content[1].content.stdout == "1048576\\n", message
file = client.beta.files.upload(file=("a.txt", b"x"))
assert file.id in [one.id for one in client.beta.files.list()]
assert client.beta.files.download(file.id).read() == b"x"
client.beta.files.delete(file.id)
try:
    anthropic.Anthropic(base_url=sys.argv[2], api_key="sk-wrong", max_retries=0).models.list()
except anthropic.AuthenticationError as error:
    assert "Incorrect API key" in str(error)
    print("ok")
"""


@pytest.mark.skipif(not NODE, reason="the Node client is installed by tests/clients/anthropic/run")
def test_the_node_client(server):
    script = Path(NODE) / "node.mjs"
    script.write_text((Path(__file__).parent / "node.mjs").read_text())
    ended = subprocess.run(["node", script, server.url], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout == "ok\n", ended.stderr


def test_the_last_client_of_the_old_line(keyed):
    server, ada, _ = keyed
    command = [sys.executable, "-c", OLD, os.environ["OLD_CLIENT"], server.url, ada]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and ended.stdout == "ok\n", ended.stderr
