"""The Python client of the current generation, which asks for each thing without a connection."""

import asyncio
import base64
import time

import mcp.types as types
import pytest
from mcp import Client

PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nopen('made.csv', 'w').write('a,b')"
SLOW = "import time\nfor second in range(5):\n    print(second, flush=True)\n    time.sleep(1)"


async def test_a_session_goes_on_and_hands_out_files(server):
    async with Client(server.url) as client:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == ["python", "wait", "files"]
        first = await client.call_tool("python", {"code": "x = 41\nprint('hi')\nx + 1"})
        assert first.content[0].text.startswith("hi\n42\n(session ") and not first.is_error
        session = first.structured_content["session"]
        plot = await client.call_tool("python", {"code": PLOT, "session": session})
        text, image, link = plot.content
        assert (text.type, image.type, image.mime_type, link.type, link.name) == ("text", "image", "image/png", "resource_link", "made.csv")
        assert base64.b64decode(image.data).startswith(b"\x89PNG")
        assert (await client.read_resource(link.uri)).contents[0].text == "a,b"
        resources = (await client.list_resources()).resources
        assert link.uri in [resource.uri for resource in resources]
        failed = await client.call_tool("python", {"code": "print(x)\n1/0", "session": session})
        assert failed.is_error and failed.structured_content["error"]["name"] == "ZeroDivisionError"
        assert "41\nTraceback" in failed.content[0].text
        listed = await client.call_tool("files", {"action": "list", "session": session})
        assert "/mnt/data/made.csv (3 bytes)" in listed.content[0].text


async def test_pictures_and_large_files_arrive(server):
    noise = "import numpy as np, matplotlib.pyplot as plt\nfor _ in range(4):\n    plt.imshow(np.random.rand(200, 300, 3), interpolation='nearest'); plt.show()"
    async with Client(server.url) as client:
        shown = await client.call_tool("python", {"code": noise})
        kinds = [part.type for part in shown.content]
        assert kinds.count("image") + kinds.count("resource_link") == 4
        made = await client.call_tool("python", {"code": "open('large', 'wb').write(b'\\xff' * 9_000_000)"})
        (link,) = [part for part in made.content if part.type == "resource_link"]
        assert len((await client.read_resource(link.uri)).contents[0].blob) == 12_000_000


async def test_a_program_tells_its_progress_returns_early_and_is_waited_for(server):
    async with Client(server.url) as client:
        told = []

        async def progress(value, total, message):
            told.append((value, message))

        began = time.monotonic()
        result = await client.call_tool("python", {"code": SLOW}, progress_callback=progress)
        assert 2 < time.monotonic() - began < 4.5 and result.structured_content["status"] == "running"
        assert len(told) == 1 and told[0][1].isdigit()
        ended = await client.call_tool("wait", {"execution": result.structured_content["execution"]})
        assert ended.structured_content["status"] == "ok"
        assert ended.structured_content["stdout"].split() == [str(second) for second in range(5)]


async def test_what_makes_no_sense_is_told_to_the_model(server):
    async with Client(server.url) as client:
        for arguments, words in [({}, "`code`"), ({"code": 1}, "expected a string"), ({"code": "1", "session": "cntr_1"}, "no session")]:
            result = await client.call_tool("python", arguments)
            assert result.is_error and words in result.content[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_user_is_asked(held, mode):
    asked = []

    async def ask(context, params):
        asked.append(params.message)
        decision = "run once" if len(asked) == 1 else "deny"
        return types.ElicitResult(action="accept", content={"decision": decision, "reason": "not now"})

    async with Client(held.url, elicitation_callback=ask, mode=mode) as client:
        ran = await client.call_tool("python", {"code": "print('marker')"})
        assert ran.content[0].text.startswith("marker") and "print('marker')" in asked[0]
        refused = await client.call_tool("python", {"code": "print('marker')"})
        assert refused.is_error and "not now" in refused.content[0].text and "marker" not in refused.content[0].text


async def test_a_call_is_cancelled_and_another_client_comes_back(server):
    async with Client(server.url) as client:
        session = (await client.call_tool("python", {"code": "x = 41"})).structured_content["session"]
        running = asyncio.create_task(client.call_tool("python", {"code": "while True: pass", "session": session}))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        freed = await asyncio.wait_for(client.call_tool("python", {"code": "x", "session": session}), 20)
        assert freed.structured_content["result"] == "41"
    async with Client(server.url) as client:
        assert (await client.call_tool("python", {"code": "x + 1", "session": session})).structured_content["result"] == "42"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_with_nobody_to_ask_it_waits_for_the_operator(unattended, mode):
    async with Client(unattended.url, mode=mode) as client:
        waits = await client.call_tool("python", {"code": "print('marker')"})
        assert "waits for the operator's approval (appr_" in waits.structured_content["note"]
