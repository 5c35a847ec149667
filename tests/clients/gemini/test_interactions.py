"""Interactions, by Google's Python client."""

import asyncio
import base64
import json
import re
import time
import urllib.request

import pytest
from google import genai
from google.genai import types
from google.genai.interactions import CodeExecutionCallStep, CodeExecutionResultStep

import pages
from server import MODEL as CONFIGURATION
from server import Server, scripted_model

MODEL = "gemini-scripted"
CODE = [{"type": "code_execution"}]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


@pytest.fixture(scope="session")
def server():
    with scripted_model() as port, Server(CONFIGURATION.format(name=MODEL, port=port)) as server:
        yield server


def client_of(server, api_key="any", version=None):
    # The client closes its connections with itself, so tests hold it.
    options = types.HttpOptions(base_url=server.url, api_version=version, retry_options=types.HttpRetryOptions(attempts=1))
    return genai.Client(api_key=api_key, http_options=options)


@pytest.fixture(scope="session")
def client(server):
    return client_of(server)


def create(client, question, **fields):
    return client.interactions.create(**{"model": MODEL, "input": question, "tools": CODE, **fields})


def kinds(steps):
    return [step.type for step in steps]


def results(interaction):
    return [step.result for step in interaction.steps if step.type == "code_execution_result"]


def eventually(condition):
    end = time.monotonic() + 60
    while not (held := condition()):
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.05)
    return held


def status_of(error):
    """The status and the name of an error."""
    return error.value.status_code, error.value.body["error"]["status"]


@pytest.mark.parametrize("version", [None, "v1beta"])
def test_an_interaction_has_the_program_and_its_result(server, version):
    client = client_of(server, version=version)
    interaction = create(client, "the factorial of 7?")
    assert (interaction.status, interaction.model) == ("completed", MODEL)
    assert kinds(interaction.steps) == ["code_execution_call", "code_execution_result", "model_output"]
    call, result, _ = interaction.steps
    assert isinstance(call, CodeExecutionCallStep) and isinstance(result, CodeExecutionResultStep)
    assert "math.factorial(7)" in call.arguments.code and call.arguments.language == "python"
    assert (result.call_id, result.result, result.is_error) == (call.id, "5040\n", False)
    assert interaction.output_text == "The factorial of 7 is 5040."
    assert interaction.usage.total_tokens == 220 and interaction.environment_id.startswith("cntr_")
    same = client.interactions.get(id=interaction.id)
    # The client adds fields of its own to what it created.
    assert (same.steps, same.status, same.environment_id) == (interaction.steps, interaction.status, interaction.environment_id)
    asked = client.interactions.get(id=interaction.id, include_input=True)
    assert asked.input[0].content[0].text == "the factorial of 7?"


def test_a_stream_comes_in_order(client):
    events = list(create(client, "fails first", stream=True))
    told = [(event.event_type, getattr(getattr(event, "step", None) or getattr(event, "delta", None), "type", None)) for event in events]
    whole = [("step.start", "{}"), ("step.delta", "{}"), ("step.stop", None)]
    of = lambda kind: [(name, kind if word else None) for name, word in whole]
    program = of("code_execution_call") + of("code_execution_result")
    assert told[:2] == [("interaction.created", None), ("interaction.status_update", None)]
    assert told[2:14] == program * 2
    assert told[14] == ("step.start", "model_output") and set(told[15:-2]) == {("step.delta", "text")}
    assert told[-2:] == [("step.stop", None), ("interaction.completed", None)]
    assert [event.event_id for event in events] == [str(number) for number in range(len(events))]
    deltas = [event.delta for event in events if event.event_type == "step.delta"]
    assert [delta.is_error for delta in deltas if delta.type == "code_execution_result"] == [True, False]
    assert "".join(delta.text for delta in deltas if delta.type == "text") == "It is mended."
    last = events[-1].interaction
    assert (last.status, last.usage.total_tokens) == ("completed", 330)
    # The same again from the store, and from a place on.
    again = list(client.interactions.get(id=last.id, stream=True))
    assert [event.model_dump() for event in again] == [event.model_dump() for event in events]
    rest = list(client.interactions.get(id=last.id, stream=True, last_event_id="9"))
    assert [event.event_id for event in rest] == [event.event_id for event in events[10:]]


def test_asynchronous_clients_hear_the_same(client):
    async def ask():
        stream = await client.aio.interactions.create(model=MODEL, input="2**20", tools=CODE, stream=True)
        return [event.delta.text async for event in stream if event.event_type == "step.delta" and event.delta.type == "text"]

    assert "1048576" in "".join(asyncio.run(ask()))


def test_the_next_one_goes_on_in_the_same_kernel(client):
    first = create(client, "set y")
    assert first.output_text == "y is set."
    second = create(client, "get y", previous_interaction_id=first.id)
    assert (second.output_text, second.previous_interaction_id) == ("y is kept.", first.id)
    assert second.environment_id == first.environment_id
    elsewhere = create(client, "get y")
    assert "NameError" in results(elsewhere)[0] and elsewhere.environment_id != first.environment_id
    named = create(client, "get y", environment={"type": "remote", "environment_id": first.environment_id})
    assert named.output_text == "y is kept."
    assert create(client, "get y", environment=first.environment_id).output_text == "y is kept."


def test_variables_of_the_environment_are_there_and_stay(client):
    first = create(client, "region of sales?", environment={"type": "remote", "env": {"REGION": {"value": "north"}}})
    assert first.output_text == "It is for the north."
    assert create(client, "region of sales?", previous_interaction_id=first.id).output_text == "It is for the north."


def test_a_chart_is_a_picture(client):
    interaction = create(client, "a chart")
    assert base64.b64decode(interaction.output_image.data).startswith(b"\x89PNG")
    assert interaction.output_image.mime_type == "image/png"
    stream = create(client, "a chart", stream=True)
    images = [event.delta for event in stream if event.event_type == "step.delta" and event.delta.type == "image"]
    assert [image.mime_type for image in images] == ["image/png"]


def test_files_come_and_go(client, tmp_path):
    path = tmp_path / "sales.csv"
    path.write_bytes(b"date,amount\n2026-01-05,10\n2026-02-01,7\n")
    sales = client.files.upload(file=path)
    question = {"type": "text", "text": "How much were the sales of each month in sales.csv?"}
    document = {"type": "document", "uri": sales.uri, "mime_type": "text/csv"}
    interaction = create(client, [question, document])
    assert "2026-02     7" in results(interaction)[0]
    (link,) = re.findall(r"http://\S+/v1/links/\S+/monthly\.csv", interaction.output_text)
    assert urllib.request.urlopen(link).read().startswith(b"date,amount")
    note = {"type": "inline", "content": "from a source", "target": "/mnt/data/note.txt"}
    read = create(client, "read the file", environment={"type": "remote", "sources": [note]})
    assert read.output_text == "It says from a source."
    shown = create(client, [{"type": "text", "text": "hello"}, {"type": "image", "data": PNG, "mime_type": "image/png"}])
    assert shown.status == "completed"


def test_a_function_of_the_client_is_answered_by_it(client):
    weather = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    tools = [*CODE, weather]
    first = create(client, "weather", tools=tools)
    assert first.status == "requires_action"
    call = first.steps[-1]
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", {"city": "Paris"})
    answer = [{"type": "function_result", "call_id": call.id, "name": call.name, "result": "sunny"}]
    second = create(client, answer, tools=tools, previous_interaction_id=first.id)
    assert second.output_text == "It is sunny in Paris."
    events = list(create(client, "weather", tools=tools, stream=True))
    arguments = [event.delta.arguments for event in events if event.event_type == "step.delta"]
    assert json.loads("".join(arguments)) == {"city": "Paris"} and events[-1].interaction.status == "requires_action"


def test_thoughts_come_back_without_the_server_keeping_them(client):
    question = [{"type": "user_input", "content": [{"type": "text", "text": "think"}]}]
    first = create(client, question, store=False, generation_config={"thinking_summaries": "auto"})
    thought = first.steps[0]
    assert (thought.type, thought.summary[0].text) == ("thought", "Let me see. ")
    steps = [*question, *[step.model_dump(exclude_none=True) for step in first.steps], *question]
    assert create(client, steps, store=False).output_text.startswith("I remember. ")
    with pytest.raises(Exception) as gone:
        client.interactions.get(id=first.id)
    assert status_of(gone) == (404, "NOT_FOUND")


def test_an_answer_has_the_form_of_a_schema(client):
    schema = {"type": "object", "properties": {"said": {"type": "string"}}}
    answer = create(client, "hello", tools=[], response_format={"type": "text", "mime_type": "application/json", "schema": schema})
    assert json.loads(answer.output_text)["said"] == "You said: hello"


def test_one_in_the_background_is_polled_and_cancelled(client):
    begun = create(client, "counts slowly", background=True)
    assert begun.status in ("queued", "in_progress")
    done = eventually(lambda: (now := client.interactions.get(id=begun.id)).status == "completed" and now)
    assert results(done) == ["".join(f"{number}\n" for number in range(10))]
    long = create(client, "runs long", background=True)
    stream = client.interactions.get(id=long.id, stream=True)
    next(event for event in stream if event.event_type == "step.stop")
    cancelled = client.interactions.cancel(id=long.id)
    assert cancelled.status == "cancelled" and kinds(cancelled.steps) == ["code_execution_call", "code_execution_result"]
    assert [event.event_type for event in stream][-1] == "interaction.completed"
    client.interactions.delete(id=long.id)
    with pytest.raises(Exception) as gone:
        client.interactions.get(id=long.id)
    assert status_of(gone) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": [{"type": "google_search"}]}, "google_search"),
        ({"environment": {"type": "remote", "sources": [{"type": "gcs", "source": "gs://a/b", "target": "/x"}]}}, "gcs"),
        ({"environment": {"type": "remote", "network": {"allowlist": [{"domain": "a.example"}]}}}, "network"),
        ({"continuation_token": "t"}, "continuation_token"),
        ({"store": False, "background": True}, "background"),
    ],
)
def test_what_is_not_there_is_refused_by_name(client, fields, words):
    with pytest.raises(Exception, match=words) as refused:
        create(client, "hello", **fields)
    assert status_of(refused) == (400, "INVALID_ARGUMENT")


def test_agents_and_unknown_models_are_refused(client):
    with pytest.raises(Exception, match="agent") as refused:
        client.interactions.create(agent="deep-research-pro-preview-12-2025", input="hello")
    assert status_of(refused) == (400, "INVALID_ARGUMENT")
    with pytest.raises(Exception) as unknown:
        create(client, "hello", model="nobody")
    assert status_of(unknown) == (404, "NOT_FOUND")


def test_a_failure_of_the_model_is_an_error_whole_and_in_a_stream(client):
    for stream in (False, True):
        with pytest.raises(Exception) as refused:
            create(client, "upstream says 400", stream=stream)
        assert status_of(refused) == (400, "INVALID_ARGUMENT")


def test_nobody_gets_what_is_anothers():
    with scripted_model() as port, Server(CONFIGURATION.format(name=MODEL, port=port)) as server:
        one, other = client_of(server, server.key("one")), client_of(server, server.key("other"))
        mine = create(one, "set y")
        for ask in (
            lambda: other.interactions.get(id=mine.id),
            lambda: other.interactions.delete(id=mine.id),
            lambda: other.interactions.cancel(id=mine.id),
            lambda: create(other, "get y", previous_interaction_id=mine.id),
            lambda: create(other, "get y", environment=mine.environment_id),
        ):
            with pytest.raises(Exception) as refused:
                ask()
            assert status_of(refused) == (404, "NOT_FOUND")
        wrong = client_of(server, "wrong")
        with pytest.raises(Exception) as refused:
            create(wrong, "hello")
        assert status_of(refused) == (401, "UNAUTHENTICATED")
        assert one.interactions.get(id=mine.id).status == "completed"


def approvals(server, path="?status=pending", body=None):
    body = body and json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}/v1/approvals{path}", body, {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def test_one_that_waits_for_approval_outlives_its_server_and_one_that_runs_does_not():
    configuration = CONFIGURATION + '[approval]\nmode = "always"\n'
    with scripted_model() as port, Server(configuration.format(name=MODEL, port=port)) as server:
        client = client_of(server)
        waits = create(client, "2**20", background=True)
        (asked,) = eventually(lambda: approvals(server)["data"])
        runs = create(client, "runs long", background=True)
        other = eventually(lambda: [one for one in approvals(server)["data"] if one["id"] != asked["id"]])[0]
        approvals(server, f"/{other['id']}", {"decision": "approve", "sha256": other["sha256"]})
        eventually(lambda: '"started"' in server.run("audit", "--json"))
        server.process.kill()
        server.process.wait()
        server.__enter__()
        client = client_of(server)
        failed = client.interactions.get(id=runs.id)
        assert failed.status == "failed" and "stopped" in failed.errors[0].message
        assert kinds(failed.steps)[-2:] == ["code_execution_call", "code_execution_result"]
        assert client.interactions.get(id=waits.id).status == "in_progress"
        approvals(server, f"/{asked['id']}", {"decision": "approve", "sha256": asked["sha256"]})
        done = eventually(lambda: (now := client.interactions.get(id=waits.id)).status == "completed" and now)
        assert done.output_text == "2**20 is 1048576."
        assert kinds(done.steps) == ["code_execution_call", "code_execution_result", "model_output"]
        events = list(client.interactions.get(id=waits.id, stream=True))
        assert [event.event_type for event in events][-1] == "interaction.completed"
        numbers = [int(event.event_id) for event in events]
        assert numbers == sorted(set(numbers))


def test_the_programs_of_the_guide(server):
    _, program = pages.programs("gemini.md")
    assert "1048576" in pages.run(program, server.url, MODEL)
