"""`aludel mcp` on standard input and output."""

import json
import os
import subprocess

from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def test_both_generations_are_served(command):
    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as client:
        assert (await client.initialize()).server_info.name == "aludel"
        await client.call_tool("python", {"code": "x = 41"})
        assert (await client.call_tool("python", {"code": "x + 1"})).structured_content["result"] == "42"
    async with Client(stdio_client(parameters)) as client:
        result = await client.call_tool("python", {"code": "print('marker')"})
        assert result.content[0].text.startswith("marker")


async def test_variables_of_the_command_line_and_of_the_client_are_there(command):
    arguments = [*command[1:], "--env", "REGION=north", "--env", "FROM_THE_CLIENT"]
    parameters = StdioServerParameters(command=command[0], args=arguments, env={**os.environ, "FROM_THE_CLIENT": "yes", "OTHER": "no"})
    async with Client(stdio_client(parameters)) as client:
        code = "import os\nprint(*map(os.environ.get, ('REGION', 'FROM_THE_CLIENT', 'OTHER')))"
        result = await client.call_tool("python", {"code": code})
        assert result.content[0].text.startswith("north yes None")


def test_it_says_nothing_but_messages_and_ends_with_its_input(command):
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdin.writelines(json.dumps(line) + "\n" for line in lines)
    process.stdin.write("no message\n")
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [answer["id"] for answer in answers] == [1, 2]
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in rest.splitlines())


def test_install_names_every_client(command):
    told = subprocess.run([*command, "install"], capture_output=True, text=True, timeout=30)
    assert told.returncode == 0
    for name in ["Claude Desktop", "Claude Code", "VS Code", "Cursor", "LibreChat", "Open WebUI"]:
        assert name in told.stdout
    vscode = subprocess.run([*command, "install", "vscode"], capture_output=True, text=True, timeout=30).stdout
    server = json.loads(vscode[vscode.index("{") :])["servers"]["aludel"]
    assert server["type"] == "stdio" and server["args"][-1] == "mcp" and command[-2] in server["args"]
