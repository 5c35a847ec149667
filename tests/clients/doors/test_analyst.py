"""One analysis through every protocol of one server: a table comes in, and the same table, chart and workbook come out."""

import asyncio
import base64
import io
import os
import re
import threading
import time
import urllib.request
import zipfile

import pytest
from agents import Agent, CodeInterpreterTool, ModelSettings, OpenAIResponsesModel, Runner, set_tracing_disabled
from anthropic import Anthropic
from google import genai
from google.genai import types
from mcp import Client
from openai import AsyncOpenAI, OpenAI

from server import MODEL as CONFIGURATION
from server import Server, scripted_model
from upstream import ANALYST

os.environ["NO_PROXY"] = "127.0.0.1,localhost"
set_tracing_disabled(True)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MODEL = "gemini-analyst"
QUESTION = "Make the financial report of sales.csv"
SALES = b"date,amount\n2026-01-05,10\n2026-01-20,5\n2026-02-01,7\n2026-03-09,21\n"
TABLE = """\
         sum  mean  count  growth
date                             
2026-01   15   7.5      2     NaN
2026-02    7   7.0      1  -0.533
2026-03   21  21.0      1   2.000"""
NAMES = {"report.csv", "report.png", "report.xlsx"}


@pytest.fixture(scope="session")
def upstream():
    with scripted_model() as port:
        yield CONFIGURATION.format(name=MODEL, port=port)


@pytest.fixture(scope="session")
def server(upstream):
    with Server(upstream) as server:
        yield server


def openai_of(server, kind=OpenAI):
    return kind(base_url=server.url + "/v1", api_key="unused", max_retries=0)


def notes_of(content):
    """The files that a text of Responses cites, by name."""
    return {note.filename: note for part in content for note in getattr(part, "annotations", [])}


def downloaded(client, notes):
    read = client.containers.files.content.retrieve
    return {name: read(note.file_id, container_id=note.container_id).read() for name, note in notes.items()}


def by_responses(server):
    client = openai_of(server)
    file = client.files.create(file=("sales.csv", SALES), purpose="user_data")
    container = {"type": "auto", "file_ids": [file.id]}
    response = client.responses.create(
        model=MODEL,
        input=QUESTION,
        tools=[{"type": "code_interpreter", "container": container}],
        include=["code_interpreter_call.outputs"],
    )
    (call,) = [item for item in response.output if item.type == "code_interpreter_call"]
    return call.outputs[0].logs, downloaded(client, notes_of(response.output[-1].content))


def by_assistants(server):
    client = openai_of(server)
    file = client.files.create(file=("sales.csv", SALES), purpose="assistants")
    assistant = client.beta.assistants.create(model=MODEL, tools=[{"type": "code_interpreter"}])
    attachments = [{"file_id": file.id, "tools": [{"type": "code_interpreter"}]}]
    thread = client.beta.threads.create(messages=[{"role": "user", "content": QUESTION, "attachments": attachments}])
    run = client.beta.threads.runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id)
    steps = client.beta.threads.runs.steps.list(run.id, thread_id=thread.id, order="asc").data
    logs = steps[0].step_details.tool_calls[0].code_interpreter.outputs[0].logs
    (text,) = [part.text for part in client.beta.threads.messages.list(thread.id).data[0].content if part.type == "text"]
    ids = [note.file_path.file_id for note in text.annotations]
    return logs, {client.files.retrieve(id).filename: client.files.content(id).read() for id in ids}


def by_anthropic(server):
    client = Anthropic(base_url=server.url, api_key="unused", _strict_response_validation=True)
    file = client.files.upload(file=("sales.csv", SALES, "text/csv"))
    content = [{"type": "text", "text": QUESTION}, {"type": "container_upload", "file_id": file.id}]
    message = client.messages.create(
        model=MODEL,
        max_tokens=4096,
        messages=[{"role": "user", "content": content}],
        tools=[{"type": "code_execution_20250825", "name": "code_execution"}],
    )
    (result,) = [block.content for block in message.content if block.type == "code_execution_tool_result"]
    ids = [made.file_id for made in result.content]
    files = {client.files.retrieve_metadata(id).filename: client.files.download(id).read() for id in ids}
    return result.stdout, files


def by_gemini(server):
    client = genai.Client(api_key="unused", http_options=types.HttpOptions(base_url=server.url))
    config = {"display_name": "sales.csv", "mime_type": "text/csv"}
    file = client.files.upload(file=io.BytesIO(SALES), config=config)
    tools = [types.Tool(code_execution=types.ToolCodeExecution())]
    options = types.GenerateContentConfig(tools=tools)
    answer = client.models.generate_content(model=MODEL, contents=[file, QUESTION], config=options)
    links = set(re.findall(r"https?://[^\s()]+/v1/links/[^\s()]+", answer.text))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    files = {link.rsplit("/", 1)[1]: opener.open(link).read() for link in links}
    return answer.code_execution_result, files


def by_mcp(server):
    async def ask():
        async with Client(server.url + "/mcp") as client:
            listed = await client.call_tool("files", {"action": "write", "path": "sales.csv", "content": SALES.decode()})
            session = re.search(r"session (\w+)", listed.content[0].text)[1]
            result = await client.call_tool("python", {"code": ANALYST, "session": session})
            links = [block for block in result.content if block.type == "resource_link"]
            files = {}
            for link in links:
                (content,) = (await client.read_resource(link.uri)).contents
                blob = getattr(content, "blob", None)
                files[link.name] = base64.b64decode(blob) if blob else content.text.encode()
            return result.structured_content["stdout"], files

    return asyncio.run(ask())


def agent(server):
    """The agent of the Agents SDK's own example, and the id of its file."""
    file = openai_of(server).files.create(file=("sales.csv", SALES), purpose="user_data")
    container = {"type": "auto", "file_ids": [file.id]}
    return Agent(
        name="Analyst",
        instructions="Answer with code.",
        model=OpenAIResponsesModel(MODEL, openai_client=openai_of(server, AsyncOpenAI)),
        tools=[CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": container})],
        model_settings=ModelSettings(response_include=["code_interpreter_call.outputs"]),
    )


def by_agents(server):
    result = Runner.run_sync(agent(server), QUESTION)
    call, message = [item.raw_item for item in result.new_items]
    return call.outputs[0].logs, downloaded(openai_of(server), notes_of(message.content))


def sheet(workbook):
    """The cells of a workbook; its other parts tell the time."""
    with zipfile.ZipFile(io.BytesIO(workbook)) as archive:
        return archive.read("xl/worksheets/sheet1.xml")


def same(printed, files):
    assert TABLE in printed
    # The server may list the file that came in, too.
    assert NAMES <= set(files), set(files)
    files = {name: files[name] for name in NAMES}
    assert files["report.csv"].startswith(b"date,sum,mean,count,growth\n2026-01,15,7.5,2,\n")
    assert files["report.png"].startswith(b"\x89PNG")
    return {**files, "report.xlsx": sheet(files["report.xlsx"])}


@pytest.fixture(scope="session")
def expected(server):
    return same(*by_responses(server))


@pytest.mark.parametrize("door", [by_assistants, by_anthropic, by_gemini, by_mcp, by_agents])
def test_every_door_leads_to_the_same_files(server, expected, door):
    assert same(*door(server)) == expected


def test_an_agent_waits_for_the_operator(upstream, expected):
    with Server(upstream + '[approval]\nmode = "always"\n') as server:
        client, seen = openai_of(server), []

        def approve():
            while not seen:
                time.sleep(0.1)
                waiting = client.get("/approvals", cast_to=object, options={"params": {"status": "pending"}})["data"]
                for approval in waiting:
                    seen.append(approval["code"])
                    decision = {"decision": "approve", "sha256": approval["sha256"]}
                    client.post(f"/approvals/{approval['id']}", cast_to=object, body=decision)

        operator = threading.Thread(target=approve, daemon=True)
        operator.start()
        assert same(*by_agents(server)) == expected
        operator.join(10)
        assert seen == [ANALYST]
