"""`aludel mcp` on standard input and output."""

import asyncio
import json
import os
import subprocess

import pytest
from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError


async def test_both_generations_are_served(command):
    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with stdio_client(parameters) as (read, write), ClientSession(read, write) as client:
        assert (await client.initialize()).server_info.name == "aludel"
        await client.call_tool("python", {"code": "x = 41"})
        assert (await client.call_tool("python", {"code": "x + 1"})).structured_content["result"] == "42"
    async with Client(stdio_client(parameters)) as client:
        result = await client.call_tool("python", {"code": "print('marker')"})
        assert result.content[0].text.startswith("marker")


async def test_calls_keep_their_order_and_results_their_size(command):
    async with Client(stdio_client(StdioServerParameters(command=command[0], args=command[1:]))) as client:
        await client.call_tool("python", {"code": "seen = []"})
        await asyncio.gather(*(client.call_tool("python", {"code": f"seen.append({number})"}) for number in range(6)))
        made = await client.call_tool("python", {"code": "open('large', 'wb').write(b'\\xff' * 9_000_000)\nseen"})
        assert made.structured_content["result"].startswith("[0, 1, 2, 3, 4, 5]")
        (link,) = [part for part in made.content if part.type == "resource_link"]
        with pytest.raises(MCPError, match="at most 7.0 MB can be read"):
            await client.read_resource(link.uri)
        assert (await client.call_tool("python", {"code": "len(seen)"})).structured_content["result"] == "6"


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
    process.stdin.write('{"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "python", "arguments": {"code": "\\ud83d"}}}\n')
    process.stdin.flush()
    answers = {answer["id"]: answer for answer in (json.loads(process.stdout.readline()) for _ in range(3))}
    assert set(answers) == {1, 2, 3} and "half of a pair" in answers[3]["error"]["message"]
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
