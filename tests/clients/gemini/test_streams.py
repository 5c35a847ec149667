"""Every kind of answer, whole and as a stream, asynchronous and not, by both of Google's clients: all of them hear the same."""

import asyncio
import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from google import genai
from google.genai import errors, types

from server import MODEL as CONFIGURATION
from server import Server, scripted_model

MODEL = "gemini-scripted"
WEATHER = {"name": "get_weather", "parametersJsonSchema": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [types.Tool(code_execution=types.ToolCodeExecution()), types.Tool(function_declarations=[WEATHER])]
CONFIG = types.GenerateContentConfig(tools=TOOLS, automatic_function_calling={"disable": True}, thinking_config={"include_thoughts": True})
OK, FAILED = ["codeExecutionResult", "OUTCOME_OK"], ["codeExecutionResult", "OUTCOME_FAILED"]
END = ["end", "STOP"]
code = lambda text: ["executableCode", text]
text = lambda text: ["text", text]
ANSWERS = {
    "hello": [text("You said: hello"), END],
    "the factorial of 7?": [code("import math\nmath.factorial(7)"), OK, text("The factorial of 7 is 5040."), END],
    "two programs": [code("x = 20"), OK, code("print(x + 1)"), OK, text("x plus one is 21."), END],
    "fails first": [code("import os\n1 / 0"), FAILED, code("print('mended')"), OK, text("It is mended."), END],
    "talks first": [text("Let me compute. "), code("print(40 + 2)"), OK, text("It is 42."), END],
    "a chart": [code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()"), OK, ["inlineData", "image/png"], text("Here is the chart."), END],
    "weather": [["functionCall", "get_weather"], END],
    "runs and asks": [code("x = 6 * 7\nprint(x)"), OK, ["functionCall", "get_weather"], END],
    "think": [["thought", "Let me see. "], text("You said: think"), END],
    "counts slowly": [code("import time\nfor n in range(10): print(n, flush=True); time.sleep(0.05)"), OK, text("Counted to 0 1 2 3 4 5 6 7 8 9."), END],
    "stops short": [text("You said: stops short"), ["end", "MAX_TOKENS"]],
    "upstream says 400": [["error", 400]],
}


@pytest.fixture(scope="module")
def server():
    with scripted_model() as port, Server(CONFIGURATION.format(name=MODEL, port=port)) as server:
        yield server


def add(told, answer):
    """Adds the parts of an answer or a frame."""
    for candidate in answer.candidates or []:
        for part in (candidate.content.parts or []) if candidate.content else []:
            kind = "thought" if part.thought else next(
                name for name in ("text", "executable_code", "code_execution_result", "inline_data", "function_call") if getattr(part, name) is not None
            )
            content = {
                "executable_code": lambda: part.executable_code.code,
                "code_execution_result": lambda: part.code_execution_result.outcome.value,
                "inline_data": lambda: part.inline_data.mime_type,
                "function_call": lambda: part.function_call.name,
            }.get(kind, lambda: part.text)()
            kind = re.sub("_(.)", lambda letter: letter[1].upper(), kind)
            if told and told[-1][0] == kind and kind in ("text", "thought"):
                told[-1][1] += content
            else:
                told.append([kind, content])
        if candidate.finish_reason:
            told.append(["end", candidate.finish_reason.value])


def told_by(ask):
    told = []
    try:
        ask(told)
    except errors.APIError as error:
        told.append(["error", error.code])
    return told


@pytest.mark.parametrize("question", ANSWERS)
def test_the_python_client_hears_it_in_four_ways(server, question):
    client = genai.Client(api_key="any", http_options=types.HttpOptions(base_url=server.url))
    usual = {"model": MODEL, "contents": question, "config": CONFIG}

    async def later(told):
        add(told, await client.aio.models.generate_content(**usual))

    async def streams(told):
        async for frame in await client.aio.models.generate_content_stream(**usual):
            add(told, frame)

    expected = ANSWERS[question]
    assert told_by(lambda told: add(told, client.models.generate_content(**usual))) == expected
    assert told_by(lambda told: [add(told, frame) for frame in client.models.generate_content_stream(**usual)]) == expected
    assert told_by(lambda told: asyncio.run(later(told))) == expected
    assert told_by(lambda told: asyncio.run(streams(told))) == expected


@pytest.mark.parametrize("tools", [[], TOOLS[:1]])
def test_a_streamed_chat_remembers(server, tools):
    client = genai.Client(api_key="any", http_options=types.HttpOptions(base_url=server.url))
    chat = client.chats.create(model=MODEL, config=types.GenerateContentConfig(tools=tools))
    ask = lambda question: "".join(frame.text or "" for frame in chat.send_message_stream(question))
    if tools:
        ask("set y")
        assert ask("get y") == "y is kept."
    else:
        assert ask("hello") == ask("hello") == "You said: hello"
    history = chat.get_history(curated=True)
    assert [content.parts[0].text for content in history if content.role == "user"] == (["set y", "get y"] if tools else ["hello", "hello"])
    assert "".join(part.text or "" for part in history[-1].parts + history[-2].parts) != ""


@pytest.mark.skipif("NODE_CLIENTS" not in os.environ, reason="the Node client is installed by tests/clients/gemini/run")
def test_the_node_client_hears_it_in_two_ways(server):
    script = Path(os.environ["NODE_CLIENTS"]) / "streams.mjs"
    script.write_text(Path(__file__).with_name("streams.mjs").read_text())
    command = ["node", script, server.url, MODEL, json.dumps(list(ANSWERS))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["seen"] == {question: [answer, answer] for question, answer in ANSWERS.items()}
    assert told["kept"] == ["y is kept.", 2]


def test_a_stream_has_nothing_but_data(server):
    body = {"contents": [{"parts": [{"text": "runs a nap: naps"}]}], "tools": [{"codeExecution": {}}]}
    url = f"{server.url}/v1/models/{MODEL}:streamGenerateContent?alt=sse"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", "x-goog-api-key": "any"})
    with urllib.request.urlopen(request) as answer:
        lines = answer.read().decode().splitlines()
    assert lines and all(not line or line.startswith("data: {") for line in lines)
