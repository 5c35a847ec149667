"""The Python client of the first generation, which shakes hands, and the frameworks that are built on it."""

import asyncio
import base64

import pytest
from agents.mcp import MCPServerStreamableHttp
from fastmcp import Client as FastClient
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nopen('made.csv', 'w').write('a,b')"


async def test_a_connection_has_a_session(server):
    async with streamablehttp_client(server.url) as (read, write, _), ClientSession(read, write) as client:
        answer = await client.initialize()
        assert (answer.protocolVersion, answer.serverInfo.name) == ("2025-11-25", "aludel")
        await client.list_tools()
        await client.call_tool("python", {"code": "x = 41"})
        result = await client.call_tool("python", {"code": "x + 1"})
        assert result.structuredContent["result"] == "42" and not result.isError
        session = result.structuredContent["session"]
        plot = await client.call_tool("python", {"code": PLOT})
        assert [item.type for item in plot.content] == ["text", "image", "resource_link"]
        assert (await client.read_resource(plot.content[2].uri)).contents[0].text == "a,b"
    # Another connection goes on where the first one was.
    async with streamablehttp_client(server.url) as (read, write, _), ClientSession(read, write) as client:
        await client.initialize()
        assert (await client.call_tool("python", {"code": "x", "session": session})).structuredContent["result"] == "41"
        assert (await client.call_tool("python", {"code": "x"})).structuredContent["error"]["name"] == "NameError"


async def test_a_call_is_cancelled_by_a_notice(server):
    import mcp.types as types

    async with streamablehttp_client(server.url) as (read, write, _), ClientSession(read, write) as client:
        await client.initialize()
        running = asyncio.create_task(client.call_tool("python", {"code": "open('a', 'w')\nwhile True: pass"}))
        await asyncio.sleep(1)
        cancelled = types.CancelledNotification(params=types.CancelledNotificationParams(requestId=client._request_id - 1))
        await client.send_notification(types.ClientNotification(cancelled))
        # The kernel is free again at once.
        result = await asyncio.wait_for(client.call_tool("python", {"code": "1 + 1"}), 4)
        assert result.structuredContent["result"] == "2"
        running.cancel()


async def test_vllm_finds_a_server_and_a_tool_named_python(server):
    for _ in range(2):
        async with sse_client(server.base + "/sse", headers={"x-session-id": "request-1"}) as (read, write):
            async with ClientSession(read, write) as client:
                assert (await client.initialize()).serverInfo.name == "python"
                (tool,) = (await client.list_tools()).tools
                assert tool.name == "python" and list(tool.inputSchema["properties"]) == ["code"]
                assert tool.annotations.include_in_prompt is False
                unknown = await client.call_tool("python", {"code": "x"})
                assert "NameError" in unknown.content[0].text
                await client.call_tool("python", {"code": "x = 1"})
                assert (await client.call_tool("python", {"code": "x"})).content[0].text == "1"


async def test_langchain(server):
    client = MultiServerMCPClient({"aludel": {"url": server.url, "transport": "streamable_http"}})
    tools = {tool.name: tool for tool in await client.get_tools()}
    call = lambda code, **more: {"name": "python", "args": {"code": code, **more}, "id": "1", "type": "tool_call"}
    message = await tools["python"].ainvoke(call("x = 41"))
    session = message.artifact["structured_content"]["session"]
    # Each call is a connection of its own.
    message = await tools["python"].ainvoke(call("x + 1", session=session))
    assert message.content[0]["text"].startswith("42\n(session")
    message = await tools["python"].ainvoke(call(PLOT, session=session))
    assert [item["type"] for item in message.content] == ["text", "image", "file"]


async def test_openai_agents(server):
    async with MCPServerStreamableHttp({"url": server.url}, client_session_timeout_seconds=10) as client:
        assert [tool.name for tool in await client.list_tools()] == ["python", "wait", "files"]
        await client.call_tool("python", {"code": "x = 41"})
        result = await client.call_tool("python", {"code": "x + 1"})
        assert result.content[0].text.startswith("42")
        failed = await client.call_tool("python", {"code": "1/0"})
        assert failed.isError and "ZeroDivisionError" in failed.content[0].text


async def test_fastmcp(server):
    async with FastClient(server.url) as client:
        await client.call_tool("python", {"code": "x = 41"})
        result = await client.call_tool("python", {"code": PLOT + "\nx + 1"})
        assert result.structured_content["status"] == "ok"
        assert base64.b64decode(result.content[1].data).startswith(b"\x89PNG")
        with pytest.raises(Exception, match="ZeroDivisionError"):
            await client.call_tool("python", {"code": "1/0"})
