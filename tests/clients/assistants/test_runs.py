"""Runs of assistants, by OpenAI's clients."""

import json
import os
import sys
import time
from pathlib import Path

import openai
import pytest
from openai import AssistantEventHandler, OpenAI

import matrix
import pages
from server import MODEL as CONFIGURATION
from server import Server, scripted_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MODEL = "assistants-scripted"
CODE = [{"type": "code_interpreter"}]
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="session")
def server():
    with scripted_model() as port, Server(CONFIGURATION.format(name=MODEL, port=port)) as server:
        yield server


@pytest.fixture(scope="session")
def client(server):
    # Answers that lack something, or have it in another type, are errors.
    url, key = server.url + "/v1", server.key("first")
    return OpenAI(base_url=url, api_key=key, max_retries=0, _strict_response_validation=True)


@pytest.fixture(scope="session")
def threads(client):
    return client.beta.threads


@pytest.fixture(scope="session")
def assistant(client):
    return client.beta.assistants.create(model=MODEL, name="Analyst", instructions="Compute.", tools=[*CODE, WEATHER])


def asked(threads, question, **fields):
    return threads.create(messages=[{"role": "user", "content": question, **fields}])


def text_of(message):
    return "".join(part.text.value for part in message.content if part.type == "text")


class Heard(AssistantEventHandler):
    """Everything that the helper of streams tells."""

    def __init__(self):
        super().__init__()
        self.names, self.text, self.code, self.logs = [], "", "", ""

    def on_event(self, event):
        self.names.append(event.event)

    def on_text_delta(self, delta, snapshot):
        self.text += delta.value or ""

    def on_tool_call_delta(self, delta, snapshot):
        if delta.type == "code_interpreter":
            self.code += delta.code_interpreter.input or ""
            for output in delta.code_interpreter.outputs or []:
                self.logs += output.logs or "" if output.type == "logs" else ""


STEP = "thread.run.step."
STREAM = [
    *["thread.run." + name for name in ("created", "queued", "in_progress")],
    *[STEP + name for name in ("created", "in_progress", "delta", "completed")],
    *[STEP + name for name in ("created", "in_progress")],
    *["thread.message." + name for name in ("created", "in_progress", "delta", "completed")],
    STEP + "completed",
    "thread.run.completed",
]


def test_a_run_is_streamed_step_by_step(threads, assistant):
    thread, heard = asked(threads, "the factorial of 7?"), Heard()
    with threads.runs.stream(thread_id=thread.id, assistant_id=assistant.id, event_handler=heard) as stream:
        stream.until_done()
    once = [name for place, name in enumerate(heard.names) if heard.names[:place][-1:] != [name]]
    assert once == STREAM
    assert (heard.text, heard.code) == ("The factorial of 7 is 5040.", "import math\nmath.factorial(7)")
    assert heard.logs == "5040"
    run = stream.current_run
    assert (run.status, run.instructions, run.expires_at) == ("completed", "Compute.", None)
    assert run.usage.total_tokens == run.usage.prompt_tokens + run.usage.completion_tokens > 0
    steps = threads.runs.steps.list(thread_id=thread.id, run_id=run.id, order="asc").data
    assert [step.id for step in stream.get_final_run_steps()] == [step.id for step in steps]
    assert [step.type for step in steps] == ["tool_calls", "message_creation"]
    call = steps[0].step_details.tool_calls[0].code_interpreter
    assert (call.input, [output.logs for output in call.outputs]) == (heard.code, ["5040"])
    messages = threads.messages.list(thread.id).data
    assert [message.role for message in messages] == ["assistant", "user"]
    assert stream.get_final_messages() == messages[:1]
    assert threads.runs.retrieve(run.id, thread_id=thread.id) == run


def test_a_run_is_polled_and_the_next_one_finds_the_variables(client, threads, assistant):
    thread = asked(threads, "set y")
    raw = client.beta.threads.runs.with_raw_response.create(thread.id, assistant_id=assistant.id)
    assert int(raw.headers["openai-poll-after-ms"]) <= 200
    run = raw.parse()
    assert (run.status, run.usage, run.last_error) == ("queued", None, None) and run.expires_at > run.created_at
    run = threads.runs.poll(run.id, thread_id=thread.id)
    assert run.status == "completed"
    run = threads.runs.create_and_poll(
        thread_id=thread.id, assistant_id=assistant.id, additional_messages=[{"role": "user", "content": "get y"}]
    )
    messages = threads.messages.list(thread.id).data
    assert [text_of(message) for message in messages] == ["y is kept.", "get y", "y is set.", "set y"]
    assert [message.run_id for message in messages[:2]] == [run.id, None]
    assert [text_of(message) for message in threads.messages.list(thread.id, run_id=run.id)] == ["y is kept."]


@pytest.mark.parametrize("bound, one_round", [("max_prompt_tokens", 100), ("max_completion_tokens", 10)])
def test_a_run_ends_when_its_tokens_are_used_up(threads, assistant, bound, one_round):
    def run(question, tokens):
        thread = asked(threads, question)
        return threads.runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id, **{bound: tokens})

    cut = run("the factorial of 7?", 1)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", bound)
    steps = threads.runs.steps.list(thread_id=cut.thread_id, run_id=cut.id).data
    assert [(step.type, step.status) for step in steps] == [("tool_calls", "completed")]
    assert run("the factorial of 7?", 100_000).status == "completed"
    # The rounds before the client's answer count, too.
    waits = run("runs and asks", one_round + 1)
    [call] = waits.required_action.submit_tool_outputs.tool_calls
    outputs = [{"tool_call_id": call.id, "output": "sunny"}]
    cut = threads.runs.submit_tool_outputs_and_poll(run_id=waits.id, thread_id=waits.thread_id, tool_outputs=outputs)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", bound)


def test_functions_are_answered_and_the_run_goes_on(threads, assistant):
    thread = asked(threads, "runs and asks")
    run = threads.runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id)
    assert (run.status, run.usage, run.required_action.type) == ("requires_action", None, "submit_tool_outputs")
    [call] = run.required_action.submit_tool_outputs.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
    steps = threads.runs.steps.list(thread_id=thread.id, run_id=run.id, order="asc").data
    assert [step.status for step in steps] == ["completed", "in_progress"]
    refused = "Expected tool outputs for call_ids"
    for outputs in ([], [{"tool_call_id": "call_1", "output": ""}], [{"tool_call_id": call.id}] * 2):
        with pytest.raises(openai.BadRequestError, match=refused):
            threads.runs.submit_tool_outputs(run.id, thread_id=thread.id, tool_outputs=outputs)
    with pytest.raises(openai.BadRequestError) as refused:
        threads.messages.create(thread.id, role="user", content="more")
    error = {"type": "invalid_request_error", "param": None, "code": None}
    locked = f"Can't add messages to {thread.id} while a run {run.id} is active."
    assert refused.value.body == {"message": locked, **error}
    with pytest.raises(openai.BadRequestError) as refused:
        threads.runs.create(thread.id, assistant_id=assistant.id)
    assert refused.value.body == {"message": f"Thread {thread.id} already has an active run {run.id}.", **error}
    heard, outputs = Heard(), [{"tool_call_id": call.id, "output": "sunny"}]
    with threads.runs.submit_tool_outputs_stream(
        run_id=run.id, thread_id=thread.id, tool_outputs=outputs, event_handler=heard
    ) as stream:
        stream.until_done()
    assert heard.names[:3] == [STEP + "completed", "thread.run.queued", "thread.run.in_progress"]
    assert (heard.names[-1], heard.text) == ("thread.run.completed", "Both: 43.")
    steps = threads.runs.steps.list(thread_id=thread.id, run_id=run.id, order="asc").data
    assert [step.status for step in steps] == ["completed"] * 4
    assert steps[1].step_details.tool_calls[0].function.output == "sunny"
    with pytest.raises(openai.BadRequestError, match="do not accept tool outputs"):
        threads.runs.submit_tool_outputs(run.id, thread_id=thread.id, tool_outputs=outputs)


def test_functions_are_answered_without_a_stream(threads, assistant):
    thread = asked(threads, "the weather")
    run = threads.runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id)
    [call] = run.required_action.submit_tool_outputs.tool_calls
    run = threads.runs.submit_tool_outputs_and_poll(
        run_id=run.id, thread_id=thread.id, tool_outputs=[{"tool_call_id": call.id, "output": "sunny"}]
    )
    assert (run.status, run.required_action) == ("completed", None)
    assert text_of(threads.messages.list(thread.id, limit=1).data[0]) == "It is sunny in Paris."


def test_a_run_is_cancelled_with_its_program(threads, assistant):
    thread = asked(threads, "runs long")
    with threads.runs.stream(thread_id=thread.id, assistant_id=assistant.id) as stream:
        names, run = [], None
        for event in stream:
            names.append(event.event)
            if run is None and event.event == STEP + "delta" and "logs='on" in repr(event):
                [step] = threads.runs.steps.list(thread_id=thread.id, run_id=stream.current_run.id).data
                assert (step.status, step.completed_at) == ("in_progress", None)
                assert "sleep" in step.step_details.tool_calls[0].code_interpreter.input
                run = threads.runs.cancel(stream.current_run.id, thread_id=thread.id)
                assert run.status in ("cancelling", "cancelled")
    assert names[-2:] == [STEP + "cancelled", "thread.run.cancelled"]
    run = threads.runs.retrieve(run.id, thread_id=thread.id)
    assert run.status == "cancelled" and run.cancelled_at and run.expires_at is None
    with pytest.raises(openai.BadRequestError, match="Cannot cancel run with status 'cancelled'."):
        threads.runs.cancel(run.id, thread_id=thread.id)
    # A run that waits for its client has nothing to stop.
    thread = asked(threads, "the weather")
    run = threads.runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id)
    assert threads.runs.cancel(run.id, thread_id=thread.id).status == "cancelled"
    [step] = threads.runs.steps.list(thread_id=thread.id, run_id=run.id).data
    assert step.status == "cancelled"
    threads.messages.create(thread.id, role="user", content="more")


def test_what_fails_is_told_in_the_stream(threads, assistant):
    thread = asked(threads, "upstream says 400")
    with threads.runs.stream(thread_id=thread.id, assistant_id=assistant.id) as stream:
        names = [event.event for event in stream]
    assert names == [*STREAM[:3], "thread.run.failed"]
    assert stream.current_run.last_error.code == "invalid_prompt"


def test_files_of_one_name_are_told_apart(client, threads, assistant):
    files = [client.files.create(file=("run.txt", text), purpose="assistants").id for text in (b"one", b"two")]
    attachments = [{"file_id": file, "tools": [{"type": "code_interpreter"}]} for file in files]
    thread = asked(threads, "count", attachments=attachments)
    run = threads.runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id)
    assert run.status == "completed"
    # run.txt and run-2.txt.
    assert text_of(threads.messages.list(thread.id, limit=1).data[0]) == "Run 3 times."


def test_files_go_in_and_come_out(client, threads, assistant):
    table = b"date,amount\n2026-01-05,10\n2026-01-09,5\n2026-02-01,7\n"
    file = client.files.create(file=("sales.csv", table), purpose="assistants")
    attachments = [{"file_id": file.id, "tools": [{"type": "code_interpreter"}]}]
    thread = asked(threads, "sales.csv: by month", attachments=attachments)
    assert thread.tool_resources.code_interpreter.file_ids == [file.id]
    run = threads.runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id)
    assert run.status == "completed"
    [message, _] = threads.messages.list(thread.id).data
    image, text = message.content
    assert client.files.content(image.image_file.file_id).read().startswith(b"\x89PNG")
    value = text.text.value
    [annotation] = text.text.annotations
    assert annotation.text == "sandbox:/mnt/data/monthly.csv"
    assert value[annotation.start_index : annotation.end_index] == annotation.text
    made = client.files.retrieve(annotation.file_path.file_id)
    assert (made.filename, made.purpose) == ("monthly.csv", "assistants_output")
    assert client.files.content(made.id).text == "date,amount\n2026-01,15\n2026-02,7\n"
    # Files that were made and not named come along.
    [attached] = message.attachments
    assert client.files.retrieve(attached.file_id).filename == "monthly.png"
    step = threads.runs.steps.list(thread_id=thread.id, run_id=run.id, order="asc").data[0]
    outputs = step.step_details.tool_calls[0].code_interpreter.outputs
    assert [output.type for output in outputs] == ["image", "logs"] or [output.type for output in outputs] == ["logs", "image", "logs"]
    assert made.id in outputs[-1].logs


def test_a_picture_follows_a_thread_that_is_made_with_its_run(client, assistant):
    heard = Heard()
    with client.beta.threads.create_and_run_stream(
        assistant_id=assistant.id, thread={"messages": [{"role": "user", "content": "a chart"}]}, event_handler=heard
    ) as stream:
        [message] = stream.get_final_messages()
    assert heard.names[:2] == ["thread.created", "thread.run.created"]
    assert [part.type for part in message.content] == ["image_file", "text"]
    assert client.beta.threads.retrieve(message.thread_id).id == message.thread_id


def test_assistants_are_kept_changed_listed_and_deleted(client):
    assistants = client.beta.assistants
    made = [assistants.create(model=MODEL, name=f"n{number}", metadata={"k": "v"}) for number in range(3)]
    assert assistants.retrieve(made[0].id) == made[0]
    assert (made[0].tools, made[0].instructions, made[0].response_format) == ([], None, "auto")
    changed = assistants.update(made[0].id, instructions="Say.", tools=CODE)
    assert (changed.instructions, changed.name, changed.metadata) == ("Say.", "n0", {"k": "v"})
    listed = [found.name for found in assistants.list(limit=2)]
    assert listed[:3] == ["n2", "n1", "n0"]
    page = assistants.list(limit=1, before=made[0].id)
    assert [found.name for found in page.data] == ["n1"] and page.has_more
    assert assistants.delete(made[0].id).deleted
    with pytest.raises(openai.NotFoundError, match=f"No assistant found with id '{made[0].id}'."):
        assistants.retrieve(made[0].id)


def test_threads_and_messages_are_kept_changed_and_deleted(threads):
    thread = threads.create()
    assert threads.update(thread.id, metadata={"k": "v"}).metadata == {"k": "v"}
    parts = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
    first = threads.messages.create(thread.id, role="user", content=parts)
    assert (first.role, first.status, first.run_id, first.content[0].text.value) == ("user", "completed", None, "one")
    second = threads.messages.create(thread.id, role="assistant", content="two")
    assert [message.id for message in threads.messages.list(thread.id)] == [second.id, first.id]
    assert threads.messages.update(first.id, thread_id=thread.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert threads.messages.delete(second.id, thread_id=thread.id).deleted
    assert [message.id for message in threads.messages.list(thread.id, order="asc")] == [first.id]
    assert threads.delete(thread.id).deleted
    for gone in (lambda: threads.retrieve(thread.id), lambda: threads.messages.list(thread.id)):
        with pytest.raises(openai.NotFoundError, match=f"No thread found with id '{thread.id}'."):
            gone()


def test_a_search_in_files_becomes_programs_that_read_them(client):
    raw = client.beta.assistants.with_raw_response.create(model=MODEL, tools=[{"type": "file_search"}])
    assert "code_interpreter" in raw.headers["x-aludel-file-search"]
    thread = client.beta.threads.create(messages=[{"role": "user", "content": "the factorial of 7?"}])
    run = client.beta.threads.runs.create_and_poll(thread_id=thread.id, assistant_id=raw.parse().id)
    assert run.status == "completed"
    with pytest.raises(openai.BadRequestError, match="vector stores are not served") as refused:
        client.vector_stores.create(name="s")
    assert refused.value.code == "unsupported_feature"


def test_azures_paths_and_keys_lead_to_the_same(server, assistant):
    key = server.key("azure")
    azure = openai.AzureOpenAI(azure_endpoint=server.url, api_key=key, api_version="2024-05-01-preview", max_retries=0)
    own = azure.beta.assistants.create(model=MODEL, tools=CODE)
    file = azure.files.create(file=("a.txt", b"x"), purpose="assistants")
    run = azure.beta.threads.create_and_run_poll(
        assistant_id=own.id, thread={"messages": [{"role": "user", "content": "2**20"}]}
    )
    assert run.status == "completed"
    assert azure.files.retrieve(file.id).filename == "a.txt"
    newer = OpenAI(base_url=server.url + "/openai/v1", api_key=key)
    assert newer.beta.assistants.retrieve(own.id).id == own.id
    # An app has its chats and responses at the same address.
    said = [{"role": "user", "content": "hello"}]
    for client in (azure, newer, openai.AzureOpenAI(azure_endpoint=server.url, azure_deployment=MODEL, api_key=key, api_version="1")):
        chunks = client.chat.completions.create(model=MODEL, messages=said, stream=True)
        assert "You said" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    for client in (azure, newer):
        response = client.responses.create(model=MODEL, input="2**20", tools=[{"type": "code_interpreter", "container": {"type": "auto"}}])
        assert "1048576" in response.output_text
        assert client.responses.retrieve(response.id).id == response.id
        assert client.containers.list().data and client.models.list().data
    # Nothing of one tenant exists for another.
    with pytest.raises(openai.NotFoundError):
        azure.beta.assistants.retrieve(assistant.id)
    with pytest.raises(openai.AuthenticationError):
        openai.AzureOpenAI(azure_endpoint=server.url, api_key="no", api_version="1").beta.assistants.list()


def test_every_kind_of_stream_is_heard_alike():
    """By the newest of each language, at the same time; `matrix.py` asks the older ones, too."""
    here = Path(__file__).parent
    with scripted_model() as port, Server(CONFIGURATION.format(name=MODEL, port=port) + matrix.CONFIGURATION) as server:
        running = [matrix.start([sys.executable, here / "variants.py"], server.url, MODEL, "strict")]
        if "NODE_CLIENTS" in os.environ:
            running.append(matrix.start(["node", here / "variants.mjs"], server.url, MODEL))
        assert [matrix.differences(process) for process in running] == [{}] * len(running)


def test_a_killed_server_leaves_a_run_that_has_failed():
    with scripted_model() as port:
        server = Server(CONFIGURATION.format(name=MODEL, port=port))
        with server:
            client = OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
            own = client.beta.assistants.create(model=MODEL, tools=CODE)
            thread = client.beta.threads.create(messages=[{"role": "user", "content": "runs long"}])
            with client.beta.threads.runs.stream(thread_id=thread.id, assistant_id=own.id) as stream:
                next(event for event in stream if "logs='on" in repr(event))
                # It is stored a moment after it is told.
                time.sleep(1)
                server.process.kill()
                server.process.wait()
            server.__enter__()
            client = OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
            [run] = client.beta.threads.runs.list(thread.id).data
            assert (run.status, run.last_error.code) == ("failed", "server_error")
            [step] = client.beta.threads.runs.steps.list(run.id, thread_id=thread.id).data
            assert (step.status, step.step_details.tool_calls[0].code_interpreter.outputs[0].logs) == ("failed", "on\n")
            client.beta.threads.messages.create(thread.id, role="user", content="2**20")
            run = client.beta.threads.runs.create_and_poll(thread_id=thread.id, assistant_id=own.id)
            assert run.status == "completed"


def test_the_programs_of_the_guide(server, client, assistant, tmp_path):
    begins, copies = pages.programs("assistants.md")
    assert "1048576" in pages.run(begins, server.url, MODEL, key=server.key("reader"))
    # Objects as an app has saved them of the vendor's API, here of ours.
    thread = asked(client.beta.threads, "the factorial of 7?")
    client.beta.threads.runs.create_and_poll(thread_id=thread.id, assistant_id=assistant.id)
    messages = [message.model_dump(mode="json") for message in client.beta.threads.messages.list(thread.id, order="asc")]
    saved = tmp_path / "saved.json"
    saved.write_text(json.dumps({"assistants": [assistant.model_dump(mode="json")], "threads": [messages]}))
    key = server.key("migrant")
    printed = pages.run(copies.replace("saved.json", str(saved)), server.url, MODEL, key=key)
    (old, new), (old_thread, new_thread) = (line.split() for line in printed.splitlines())
    assert (old, old_thread) == (assistant.id, thread.id)
    migrant = OpenAI(base_url=server.url + "/v1", api_key=key).beta
    assert migrant.assistants.retrieve(new).tools == assistant.tools
    copied = [text_of(message) for message in migrant.threads.messages.list(new_thread, order="asc")]
    assert copied == ["the factorial of 7?", "The factorial of 7 is 5040."]
    # The conversation goes on where it was.
    run = migrant.threads.runs.create_and_poll(
        thread_id=new_thread, assistant_id=new, additional_messages=[{"role": "user", "content": "2**20"}]
    )
    assert run.status == "completed"
