"""The steps that a client goes through, in each client of the installed generation: to list, call, be shown pictures and links, fail, hear
of progress, ask its user, have nobody to ask, and come back with a handle. (Cancelling is in `test_first.py`.)"""

from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version

import mcp.types as types
import pytest
from agents.mcp import MCPServerStreamableHttp
from fastmcp import Client as FastClient
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.mcp import MCPToolset

IS_FIRST = version("mcp").startswith("1.")
if IS_FIRST:
    from langchain_mcp_adapters.callbacks import Callbacks
    from langchain_mcp_adapters.client import MultiServerMCPClient
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nopen('made.csv', 'w').write('a,b')"


@dataclass
class Told:
    """A result as a client sees it."""

    text: str
    kinds: list
    failed: bool


class Client:
    """A client with the tools' names, and a way to call `python`. `answer` is that of its user, `heard` what is told of progress."""

    def __init__(self, names, call):
        self.names, self.call = names, call

    async def run(self, code, session=None):
        return await self.call({"code": code, **({"session": session} if session else {})})


def of_protocol(result):
    failed = result.is_error if hasattr(result, "is_error") else result.isError
    texts = [item.text for item in result.content if item.type == "text"]
    return Told("".join(texts), [item.type for item in result.content], bool(failed))


@asynccontextmanager
async def python(url, answer, heard):
    async def ask(context, params):
        return types.ElicitResult(action="accept", content={"decision": answer})

    async def progress(value, total, message):
        heard.append(value)

    async def call(arguments):
        return of_protocol(await client.call_tool("python", arguments, progress_callback=progress))

    async with streamablehttp_client(url) as (read, write, _):
        async with ClientSession(read, write, elicitation_callback=ask if answer else None) as client:
            await client.initialize()
            yield Client([tool.name for tool in (await client.list_tools()).tools], call)


@asynccontextmanager
async def langchain(url, answer, heard):
    async def ask(context, params, more):
        return types.ElicitResult(action="accept", content={"decision": answer})

    async def progress(value, total, message, context):
        heard.append(value)

    callbacks = Callbacks(on_progress=progress, on_elicitation=ask if answer else None)
    client = MultiServerMCPClient({"aludel": {"url": url, "transport": "streamable_http"}}, callbacks=callbacks)
    tools = {tool.name: tool for tool in await client.get_tools()}

    async def call(arguments):
        try:
            message = await tools["python"].ainvoke({"name": "python", "args": arguments, "id": "1", "type": "tool_call"})
        except Exception as error:
            return Told(str(error), [], True)
        texts = [item["text"] for item in message.content if item["type"] == "text"]
        names = {"file": "resource_link"}
        kinds = [names.get(item["type"], item["type"]) for item in message.content]
        return Told("".join(texts), kinds, message.status == "error")

    yield Client(list(tools), call)


@asynccontextmanager
async def agents(url, answer, heard):
    async with MCPServerStreamableHttp({"url": url}, client_session_timeout_seconds=30) as client:

        async def call(arguments):
            return of_protocol(await client.call_tool("python", arguments))

        yield Client([tool.name for tool in await client.list_tools()], call)


@asynccontextmanager
async def fastmcp(url, answer, heard):
    async def ask(message, kind, params, context):
        return {"decision": answer}

    async def progress(value, total, message):
        heard.append(value)

    async with FastClient(url, elicitation_handler=ask if answer else None, progress_handler=progress) as client:

        async def call(arguments):
            return of_protocol(await client.call_tool("python", arguments, raise_on_error=False))

        yield Client([tool.name for tool in await client.list_tools()], call)


@asynccontextmanager
async def pydantic_ai(url, answer, heard):
    async def ask(message, kind, params, context):
        return {"decision": answer}

    async def progress(value, total, message):
        heard.append(value)

    async with MCPToolset(url, elicitation_handler=ask if answer else None, progress_handler=progress) as client:

        async def call(arguments):
            try:
                result = await client.direct_call_tool("python", arguments)
            except ModelRetry as error:
                return Told(str(error), [], True)
            # A model gets the structured result in the place of a text alone, and a line of text in the place of a link.
            if isinstance(result, dict):
                session = f"(session {result['session']}: )"
                return Told("\n".join([result.get("result") or result.get("stdout") or result.get("note", ""), session]), ["text"], False)
            kinds = ["image" if type(item).__name__ == "BinaryImage" else "text" for item in result]
            kinds[-1] = "resource_link" if "aludel://" in str(result[-1]) else kinds[-1]
            return Told("".join(item for item in result if isinstance(item, str)), kinds, False)

        yield Client([tool.name for tool in await client.list_tools()], call)


# The current Python client is in `test_current.py`; LangChain's adapters are built on the first generation alone.
CLIENTS = pytest.mark.parametrize("client", [agents, fastmcp, pydantic_ai, *([python, langchain] if IS_FIRST else [])])


@CLIENTS
async def test_it_lists_calls_sees_and_comes_back(server, client):
    heard = []
    async with client(server.url, None, heard) as told:
        assert told.names == ["python", "wait", "files"]
        plot = await told.run(PLOT + "\nx = 41")
        assert plot.kinds == ["text", "image", "resource_link"] and not plot.failed
        session = plot.text.split("(session ")[1].split(":")[0]
        failed = await told.run("1/0", session)
        assert failed.failed and "ZeroDivisionError" in failed.text
        await told.run("import time\ntime.sleep(2.3)", session)
        # The Agents SDK asks for none.
        assert bool(heard) == (client is not agents)
    async with client(server.url, None, []) as told:
        assert (await told.run("x + 1", session)).text.startswith("42\n(session")


@CLIENTS
async def test_its_user_decides(held, client):
    if client is agents:
        pytest.skip("it has approval of its own, in the client, and asks nobody for a server")
    async with client(held.url, "run once", []) as told:
        assert (await told.run("print('marker')")).text.startswith("marker")
    async with client(held.url, "deny", []) as told:
        refused = await told.run("print('marker')")
        assert refused.failed and "Not approved" in refused.text


@CLIENTS
async def test_with_nobody_to_ask_it_waits_for_the_operator(unattended, client):
    async with client(unattended.url, None, []) as told:
        waits = await told.run("print('marker')")
        assert "waits for the operator's approval (appr_" in waits.text and "marker" not in waits.text
