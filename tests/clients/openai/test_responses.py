"""The official Python client, unchanged, with its own validation of every object and event."""

import base64
import signal
import threading
import time
import urllib.error
import urllib.request

import openai
import pydantic
import pytest

from conftest import Server, containers, eventually

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
OUTPUTS = ["code_interpreter_call.outputs"]


def ask(client, question, **options):
    options = {"model": "gpt-5", "tools": [AUTO], "include": OUTPUTS, **options}
    return client.responses.create(input=question, **options)


def calls(response):
    return [item for item in response.output if item.type == "code_interpreter_call"]


def ended(client, response):
    """A response in the background, as soon as it has ended."""

    def now():
        found = client.responses.retrieve(response.id, include=OUTPUTS)
        return found.status not in ("queued", "in_progress") and found

    return eventually(now)


def is_running(client, response):
    """Waits until a program of a response in the background runs."""
    with client.responses.retrieve(response.id, stream=True) as stream:
        next(event for event in stream if event.type == "response.code_interpreter_call.interpreting")


def is_expired(client, container):
    """Looked up in the list: whoever asks after a container keeps it."""
    (found,) = [one for one in client.containers.list(limit=100) if one.id == container]
    return found.status == "expired"


def annotations(response):
    messages = [item for item in response.output if item.type == "message"]
    return [note for message in messages for part in message.content for note in part.annotations]


@pytest.mark.parametrize(
    "question, answer",
    [
        ("What is the factorial of 7?", "5040"),
        ("Calculate 2**20", "1048576"),
        ("What is the sum of the first 100 primes?", "24133"),
        ("Product of first 6 primes. Just the number.", "30030"),
    ],
)
def test_the_examples_people_start_from(client, question, answer):
    response = ask(client, question)
    assert response.status == "completed" and answer in response.output_text
    (call,) = calls(response)
    assert call.status == "completed" and call.code and call.container_id.startswith("cntr_")
    assert answer in call.outputs[-1].logs
    assert response.usage.total_tokens == 220


def test_outputs_are_null_unless_asked_for(client):
    response = ask(client, "2**20", include=[])
    assert calls(response)[0].outputs is None
    again = client.responses.retrieve(response.id, include=OUTPUTS)
    assert calls(again)[0].outputs[0].logs == "1048576"


def test_a_stream_is_like_a_recorded_one(client):
    events = list(ask(client, "2**20", stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    without_deltas = [kind for kind in kinds if not kind.endswith(".delta")]
    assert without_deltas == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call_code.done",
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    code = "".join(event.delta for event in events if event.type == "response.code_interpreter_call_code.delta")
    assert code == "2**20"
    added, done = events[2].item, events[kinds.index("response.output_item.done")].item
    assert (added.id, added.container_id) == (done.id, done.container_id) and added.outputs == []


def test_the_stream_helper_puts_it_together(client):
    with client.responses.stream(model="gpt-5", input="two programs", tools=[AUTO], include=OUTPUTS) as stream:
        for _ in stream:
            pass
        response = stream.get_final_response()
    assert response.output_text == "x plus one is 21."
    first, second = calls(response)
    assert first.container_id == second.container_id


def test_a_chart_is_an_image_and_a_file(client):
    response = ask(client, "Draw a chart")
    (call,) = calls(response)
    assert call.outputs[0].type == "image"
    shown = base64.b64decode(call.outputs[0].url.removeprefix("data:image/png;base64,"))
    assert shown.startswith(b"\x89PNG")
    (note,) = annotations(response)
    assert (note.type, note.start_index, note.end_index) == ("container_file_citation", 0, 0)
    content = client.containers.files.content.retrieve(note.file_id, container_id=note.container_id)
    assert content.read() == shown


def test_sales_by_month(client, tmp_path):
    path = tmp_path / "sales.csv"
    path.write_text("date,amount\n2026-01-05,10\n2026-01-09,5\n2026-02-01,7\n")
    file = client.files.create(file=path, purpose="user_data")
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [file.id]}}
    response = ask(client, "Make a monthly chart of sales.csv", tools=[tool])
    assert "15" in calls(response)[0].outputs[-1].logs
    notes = {note.filename: note for note in annotations(response)}
    assert {"monthly.csv", "monthly.png"} <= set(notes)
    linked = notes["monthly.csv"]
    assert response.output_text[linked.start_index : linked.end_index] == "sandbox:/mnt/data/monthly.csv"
    content = client.containers.files.content.retrieve(linked.file_id, container_id=linked.container_id)
    assert content.read() == b"date,amount\n2026-01,15\n2026-02,7\n"
    listed = client.containers.files.list(linked.container_id)
    assert {"/mnt/data/sales.csv", "/mnt/data/monthly.csv"} <= {entry.path for entry in listed}


def test_a_file_in_the_message_is_in_the_container(client):
    data = base64.b64encode(b"date,amount\n2026-03-01,3\n").decode()
    content = [
        {"type": "input_file", "filename": "sales.csv", "file_data": f"data:text/csv;base64,{data}"},
        {"type": "input_text", "text": "Sum up sales.csv"},
    ]
    response = ask(client, [{"role": "user", "content": content}])
    assert "2026-03" in calls(response)[0].outputs[-1].logs


def test_a_traceback_is_in_the_logs_and_the_model_mends_it(client):
    response = ask(client, "This fails first")
    first, second = calls(response)
    assert first.status == "completed" and "ZeroDivisionError" in first.outputs[0].logs
    assert second.outputs[0].logs == "mended\n"


def test_a_program_that_dies_is_a_failed_item(client):
    response = ask(client, "This one dies")
    assert response.status == "completed"
    assert calls(response)[0].status == "failed" and "signal 6" in calls(response)[0].outputs[0].logs


def test_variables_live_on_through_previous_response_id(client):
    first = ask(client, "Please set y")
    second = ask(client, "Please get y", previous_response_id=first.id)
    assert second.output_text == "y is kept."
    assert calls(first)[0].container_id == calls(second)[0].container_id


def test_a_replayed_history_goes_on_in_its_container(client):
    first = ask(client, "Please set y")
    history = [{"role": "user", "content": "Please set y"}, *[item.model_dump() for item in first.output]]
    second = ask(client, [*history, {"role": "user", "content": "Please get y"}])
    assert second.output_text == "y is kept."


def test_conversations_collect_items(client):
    conversation = client.conversations.create()
    ask(client, "Please set y", conversation=conversation.id)
    second = ask(client, "Please get y", conversation=conversation.id)
    assert second.output_text == "y is kept." and second.conversation.id == conversation.id
    kinds = [item.type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "code_interpreter_call", "message"] * 2


def test_a_response_that_has_ended_is_in_its_conversation(client):
    conversation = client.conversations.create()
    ended(client, ask(client, "Please set y", conversation=conversation.id, background=True))
    kinds = [item.type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "code_interpreter_call", "message"]


def test_an_explicit_container(client):
    container = client.containers.create(name="mine")
    tool = {"type": "code_interpreter", "container": container.id}
    response = ask(client, "Please write a file", tools=[tool])
    assert calls(response)[0].container_id == container.id
    (file,) = client.containers.files.list(container.id)
    assert (file.path, file.bytes, file.source) == ("/mnt/data/note.txt", 6, "assistant")
    client.containers.delete(container.id)
    with pytest.raises(openai.NotFoundError, match=f"Container with id '{container.id}' not found."):
        ask(client, "2**20", tools=[tool])


def test_functions_of_the_client(client):
    function = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
    first = ask(client, "How is the weather?", tools=[AUTO, function])
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Paris"}')
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    second = ask(client, [output], tools=[AUTO, function], previous_response_id=first.id)
    assert "sunny" in second.output_text


def test_the_number_of_calls_is_bounded(client):
    response = ask(client, "This loops", max_tool_calls=3)
    assert [call.status for call in calls(response)] == ["completed"] * 3
    assert response.status == "completed" and response.output_text == "Enough."


def test_background_responses_are_polled_cancelled_and_replayed(client):
    response = ended(client, ask(client, "Calculate 2**20", background=True))
    assert response.status == "completed" and calls(response)[0].outputs[0].logs == "1048576"
    replayed = list(client.responses.retrieve(response.id, stream=True))
    assert replayed[0].type == "response.created" and replayed[-1].type == "response.completed"
    rest = list(client.responses.retrieve(response.id, stream=True, starting_after=replayed[3].sequence_number))
    assert [event.type for event in rest] == [event.type for event in replayed[4:]]

    response = ask(client, "This runs long", background=True)
    # The answer does not wait for the end; of a short program's it might be overtaken.
    assert response.status == "queued"
    is_running(client, response)
    assert client.responses.cancel(response.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(ask(client, "hello").id)


def test_a_disconnect_stops_the_code(client):
    with ask(client, "This runs long", stream=True) as stream:
        container = next(event.item.container_id for event in stream if event.type == "response.output_item.added")
        next(event for event in stream if event.type == "response.code_interpreter_call.interpreting")
        started = time.monotonic()
    # The session is free again long before the program's 20 seconds are over.
    tool = {"type": "code_interpreter", "container": container}
    response = ask(client, "2**20", tools=[tool])
    assert response.output_text == "2**20 is 1048576." and time.monotonic() - started < 19


def test_input_items_deletion_and_tokens(client):
    response = ask(client, "hello")
    (item,) = client.responses.input_items.list(response.id)
    assert item.content[0].text == "hello"
    assert client.responses.input_tokens.count(model="gpt-5", input="a few words of text").input_tokens > 3
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"tools": [{"type": "code_interpreter"}]}, "Missing required parameter: 'tools[0].container'."),
        (
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "files": []}}]},
            "Unknown parameter: 'tools[0].container.files'.",
        ),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"previous_response_id": "resp_none"}, "Previous response with id 'resp_none' not found."),
        ({"tool_choice": {"type": "code_interpreter"}, "tools": []}, "not found in 'tools'"),
        (
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "network_policy": {"type": "allowlist", "allowed_domains": ["x.org"]}}}]},
            "no network",
        ),
    ],
)
def test_bad_requests_say_what_is_wrong(client, options, message):
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, "hello", **options)
    assert message in str(error.value) and error.value.request_id


def test_an_unknown_model_and_upstream_errors(client):
    with pytest.raises(openai.NotFoundError, match="The model 'none' does not exist"):
        ask(client, "hello", model="none")
    with pytest.raises(openai.BadRequestError, match="scripted"):
        ask(client, "upstream says 400")
    once = client.with_options(max_retries=0)
    with pytest.raises(openai.InternalServerError):
        ask(once, "upstream says 401")


def test_a_repeated_request_runs_no_code_twice(client):
    headers = {"Idempotency-Key": "only once"}
    tool = {"type": "code_interpreter", "container": client.containers.create(name="counted").id}
    first = ask(client, "count", tools=[tool], extra_headers=headers)
    second = ask(client, "count", tools=[tool], extra_headers=headers)
    assert first.id == second.id and calls(first)[0].outputs[0].logs == "1\n"
    with pytest.raises(openai.ConflictError, match="another body"):
        ask(client, "count more", tools=[tool], extra_headers=headers)
    # The client goes before the answer, asks again, and says so.
    retried = ask(client.with_options(timeout=1, max_retries=5), "rests and counts", tools=[tool])
    assert retried.id != first.id and calls(retried)[0].outputs[0].logs == "2\n"
    # One that has its answer is not the other one of which this is the retry.
    another = ask(client, "rests and counts", tools=[tool], extra_headers={"x-stainless-retry-count": "1"})
    assert another.id != retried.id and calls(another)[0].outputs[0].logs == "3\n"


def test_files_and_history_survive_restarts_and_kills(upstream):
    with Server(upstream) as server:
        first = ask(server.client(), "Please write a file")
        for how in (signal.SIGTERM, signal.SIGKILL):
            server.restart(how)
            client = server.client()
            second = ask(client, "Please read the file", previous_response_id=first.id)
            assert second.output_text == "It says a note."
            assert calls(second)[0].container_id == calls(first)[0].container_id
        response = ask(client, "This runs long", background=True)
        is_running(client, response)
        server.restart(signal.SIGKILL)
        response = server.client().responses.retrieve(response.id)
        assert response.status == "failed" and "stopped" in response.error.message


def test_an_expired_container_goes_on_where_it_is_auto(upstream):
    with Server(upstream, idle='"1s"') as server:
        client = server.client()
        first = ask(client, "Please write a file")
        container = calls(first)[0].container_id
        eventually(lambda: is_expired(client, container))
        second = ask(client, "Please read the file", previous_response_id=first.id)
        assert second.output_text == "It says a note."
        eventually(lambda: is_expired(client, container))
        with pytest.raises(openai.BadRequestError, match="Container is expired."):
            ask(client, "2**20", tools=[{"type": "code_interpreter", "container": container}])


def test_many_at_once_do_not_mix(upstream):
    with Server(upstream, memory='"256m"', idle='"4s"', pool=0) as server:
        client = server.client(max_retries=20)
        answers, errors = {}, []

        def one(name):
            try:
                events = list(ask(client, f"who am I {name}", stream=True))
                response = events[-1].response
                (note,) = annotations(response)
                content = client.containers.files.content.retrieve(note.file_id, container_id=note.container_id).read()
                answers[name] = (response.output_text, content, note.container_id)
            except Exception as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=one, args=(f"number{n}",)) for n in range(100)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not errors, errors[:3]
        for name, (text, content, _) in answers.items():
            assert text == f"You are {name}." and content == name.encode()
        assert len({container for _, _, container in answers.values()}) == 100
        # All of them end when they are left alone, and what they took is given back.
        eventually(lambda: server.sandboxes() == 0)


def test_hostile_requests_get_an_answer(server):
    def post(body):
        request = urllib.request.Request(server.url + "/v1/responses", data=body, method="POST")
        try:
            return urllib.request.urlopen(request).status
        except urllib.error.HTTPError as error:
            return error.status
        except (ConnectionError, urllib.error.URLError):
            return 413  # told before everything was sent

    assert post(b"[" * 100_000) == 400
    assert post(b'{"model": "gpt-5", "input": "' + b"x" * (65 << 20) + b'"}') == 413
    assert post(b'{"model": "gpt-5", "input": [{"type": "future_item"}]}') == 400
    assert post(b'{"model": ["gpt-5"], "input": "x"}') == 400


def test_approval_is_for_the_program_that_was_shown(client, server):
    tool = {"type": "mcp", "server_label": "code", "server_url": server.url + "/mcp", "require_approval": "always"}
    first = ask(client, "count", tools=[tool])
    (request,) = [item for item in first.output if item.type == "mcp_approval_request"]
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
    changed = {**request.model_dump(), "arguments": '{"code": "print(666)"}'}
    with pytest.raises(openai.BadRequestError, match="not the one that was shown"):
        ask(client, [{"role": "user", "content": "count"}, changed, answer], tools=[tool])
    with pytest.raises(openai.BadRequestError, match="no undecided"):
        ask(client, [answer, answer], tools=[tool], previous_response_id=first.id)
    second = ask(client, [answer], tools=[tool], previous_response_id=first.id, stream=True)
    response = list(second)[-1].response
    (call,) = [item for item in response.output if item.type == "mcp_call"]
    assert (call.approval_request_id, call.output, call.status) == (request.id, "1\n", "completed")
    assert response.output_text == "Run 1 times."
    with pytest.raises(openai.BadRequestError, match="no undecided"):
        ask(client, [answer], tools=[tool], previous_response_id=response.id)
    with pytest.raises(openai.BadRequestError, match="other than this one"):
        ask(client, "count", tools=[{**tool, "server_url": "https://example.com/mcp"}])


def test_a_structured_answer(client):
    class Said(pydantic.BaseModel):
        schema_: str = pydantic.Field(alias="schema")
        said: str

    response = client.responses.parse(model="gpt-5", input="2**20", tools=[AUTO], text_format=Said)
    assert response.output_parsed.schema_ == "Said" and "1048576" in response.output_parsed.said


def test_an_upstream_that_speaks_responses(server):
    """The other server is the upstream: our tool is a function there, and its programs run here."""
    with Server(server.url.rsplit(":", 1)[1], api="responses") as nearer:
        client = nearer.client()
        before = containers(server.client())
        response = ask(client, "two programs", instructions="Be brief.", max_output_tokens=1000)
        assert response.output_text == "x plus one is 21." and len(calls(response)) == 2
        assert response.usage.total_tokens == 330
        assert containers(server.client()) <= before
        assert "sunny" in ask(client, _weather(client), tools=[AUTO, WEATHER]).output_text
        with pytest.raises(openai.BadRequestError, match="scripted"):
            ask(client.with_options(max_retries=0), "upstream says 400")


WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def _weather(client):
    first = ask(client, "How is the weather?", tools=[AUTO, WEATHER])
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    return [{"role": "user", "content": "How is the weather?"}, call.model_dump(), output]


def test_a_container_that_no_program_needed_has_no_sandbox(upstream):
    with Server(upstream, pool=0) as server:
        response = ask(server.client(), "hello")
        assert response.output_text == "You said: hello" and server.sandboxes() == 0
        ask(server.client(), "2**20")
        assert server.sandboxes() == 1
