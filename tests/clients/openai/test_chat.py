"""Chat Completions with the code interpreter, by the official client. What other gateways get wrong is a test here."""

import json
import threading
import time
import urllib.request

import openai
import pytest

from conftest import Server, aludel, containers, eventually
from recorder import Recorder, chunk, runs, says, streams

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def chat(client, question, **options):
    messages = question if isinstance(question, list) else [{"role": "user", "content": question}]
    return client.chat.completions.create(**{"model": "scripted", "messages": messages, "tools": [AUTO], **options})


def programs(completion, choice=0):
    return completion.choices[choice].message.model_extra["code_interpreter_calls"]


def streamed(client, question, **options):
    """Returns the message of a client that adds deltas up."""
    chunks = list(chat(client, question, stream=True, **options))
    content, calls, files, tool_calls, finish = "", [], [], [], None
    for chunk in chunks:
        for choice in chunk.choices:
            delta = choice.delta
            content += delta.content or ""
            tool_calls += delta.tool_calls or []
            for piece in (delta.model_extra or {}).get("code_interpreter_calls", []):
                if piece["index"] == len(calls):
                    calls.append({"code": ""})
                call = calls[piece["index"]]
                call["code"] += piece.pop("code", "")
                call.update(piece)
            files += (delta.model_extra or {}).get("files", [])
            finish = choice.finish_reason or finish
    return chunks, content, calls, files, tool_calls, finish


@pytest.mark.parametrize("question, answer", [("factorial of 7", "5040"), ("2**20", "1048576"), ("first 6 primes", "30030")])
def test_a_program_runs_and_the_answer_looks_like_any_other(client, question, answer):
    completion = chat(client, question)
    (choice,) = completion.choices
    assert completion.id.startswith("chatcmpl-") and completion.object == "chat.completion"
    assert choice.finish_reason == "stop" and answer in choice.message.content and not choice.message.tool_calls
    (call,) = programs(completion)
    assert set(call) == {"id", "type", "status", "code", "container_id", "outputs"}
    assert (call["type"], call["status"]) == ("code_interpreter_call", "completed")
    assert answer in call["outputs"][0]["logs"] and call["container_id"].startswith("cntr_")
    # Both calls of the model are counted.
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (200, 20, 220)


def test_a_stream_comes_while_it_happens(client):
    began = time.monotonic()
    with chat(client, "runs long", stream=True) as stream:
        assert any("code_interpreter_calls" in (chunk.choices[0].delta.model_extra or {}) for chunk in stream)
    assert time.monotonic() - began < 20, "the program is told before it has run for its 20 seconds"


def test_a_stream_adds_up_to_the_message(client):
    chunks, content, calls, files, tool_calls, finish = streamed(client, "two programs")
    assert (content, finish, tool_calls) == ("x plus one is 21.", "stop", [])
    assert [call["code"] for call in calls] == ["x = 20", "print(x + 1)"]
    assert [output["logs"] for output in calls[1]["outputs"]] == ["21\n"]
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_last_when_asked_for(server, client):
    chunks = list(chat(client, "2**20", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens == 220
    assert all(chunk.usage is None for chunk in chunks[:-1])
    body = {"model": "scripted", "messages": [{"role": "user", "content": "2**20"}], "tools": [AUTO], "stream": True}
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode())
    frames = urllib.request.urlopen(request, timeout=60).read().decode().split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""] and all(frame.startswith("data: ") for frame in frames[:-1])


def test_programs_keep_their_order_and_share_a_container(client):
    completion = chat(client, "two programs")
    assert [call["code"] for call in programs(completion)] == ["x = 20", "print(x + 1)"]
    assert len({call["container_id"] for call in programs(completion)}) == 1
    completion = chat(client, "two at once")
    assert [call["outputs"][0]["logs"] for call in programs(completion)] == ["5\n", "6\n"]


def test_what_is_said_before_a_program_is_kept(client):
    assert chat(client, "talks first").choices[0].message.content == "Let me compute. \n\nIt is 42."
    assert streamed(client, "talks first")[1] == "Let me compute. \n\nIt is 42."


def test_nothing_a_program_shows_is_lost(client):
    completion = chat(client, "stderr")
    assert programs(completion)[0]["outputs"] == [{"type": "logs", "logs": "to err\n4"}]
    completion = chat(client, "fails first")
    assert "ZeroDivisionError" in programs(completion)[0]["outputs"][0]["logs"]
    assert chat(client, "fails first").choices[0].message.content == "It is mended."
    assert programs(chat(client, "silent"))[0]["outputs"] == []
    completion = chat(client, "a chart")
    (image,) = [output for output in programs(completion)[0]["outputs"] if output["type"] == "image"]
    assert image["url"].startswith("data:image/png;base64,")


def test_files_go_in_and_out(client):
    sales = client.files.create(file=("sales.csv", b"date,amount\n2026-01-05,10\n2026-02-01,5\n"), purpose="user_data")
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [sales.id], "memory_limit": "1g"}}
    completion = chat(client, "Chart sales.csv", tools=[tool])
    files = {file["filename"]: file for file in completion.choices[0].message.model_extra["files"]}
    assert {"monthly.csv", "monthly.png"} <= set(files)
    file = files["monthly.csv"]
    content = client.containers.files.content.retrieve(file["file_id"], container_id=file["container_id"]).read()
    assert content == b"date,amount\n2026-01,10\n2026-02,5\n" and len(content) == file["bytes"]
    # The same as a part of the message.
    part = {"type": "file", "file": {"filename": "sales.csv", "file_data": "ZGF0ZSxhbW91bnQKMjAyNi0wMy0wNSw3Cg=="}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Chart sales.csv"}, part]}]
    assert "2026-03" in programs(chat(client, messages))[0]["outputs"][-1]["logs"]


def test_the_next_request_goes_on_in_the_container(client):
    first = chat(client, "set y")
    container = programs(first)[0]["container_id"]
    tool = {"type": "code_interpreter", "container": container}
    assert chat(client, "get y", tools=[tool]).choices[0].message.content == "y is kept."
    # Or by the conversation alone.
    message = first.choices[0].message.model_dump()
    second = chat(client, [{"role": "user", "content": "set y"}, message, {"role": "user", "content": "get y"}])
    assert programs(second)[0]["container_id"] == container and "kept" in second.choices[0].message.content
    with pytest.raises(openai.NotFoundError, match="Container with id"):
        chat(client, "2**20", tools=[{"type": "code_interpreter", "container": "cntr_" + "0" * 48}])


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "code_interpreter"}, {"type": "function", "function": {"name": "code_interpreter"}}],
)
def test_a_forced_tool_is_forced_once(client, choice):
    completion = chat(client, "always calls", tool_choice=choice)
    assert completion.choices[0].message.content == "I was not forced." and len(programs(completion)) == 1
    assert completion.choices[0].finish_reason == "stop"
    assert chat(client, "always calls", tool_choice="none").choices[0].message.content == "Enough."


@pytest.mark.parametrize("keeps_extras", [True, False])
def test_a_round_with_a_program_and_a_function(client, keeps_extras):
    completion = chat(client, "runs and asks", tools=[AUTO, WEATHER])
    choice = completion.choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert programs(completion)[0]["outputs"][0]["logs"] == "42\n"
    kept = {"role", "content", "tool_calls"} if not keeps_extras else None
    message = choice.message.model_dump(include=kept)
    messages = [
        {"role": "user", "content": "runs and asks"},
        message,
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    completion = chat(client, messages, tools=[AUTO, WEATHER])
    # The variable of the first request is there, and nothing ran twice.
    assert [call["code"] for call in programs(completion)] == ["print(x + 1)"]
    assert programs(completion)[0]["outputs"][0]["logs"] == "43\n"


def test_client_functions_alone(client):
    completion = chat(client, "weather", tools=[AUTO, WEATHER])
    (call,) = completion.choices[0].message.tool_calls
    messages = [{"role": "user", "content": "weather"}, completion.choices[0].message.model_dump(exclude_none=True)]
    with pytest.raises(openai.BadRequestError, match="did not have response messages"):
        chat(client, messages, tools=[AUTO, WEATHER])
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    assert "sunny" in chat(client, messages, tools=[AUTO, WEATHER]).choices[0].message.content
    *_, tool_calls, finish = streamed(client, "weather", tools=[AUTO, WEATHER])
    assert finish == "tool_calls" and tool_calls[0].function.name == "get_weather" and tool_calls[0].index == 0


def test_calls_that_cannot_be_carried_out_do_not_leak(client):
    for question, answer in (("bad arguments", "I could not run it."), ("unknown tool", "There is none.")):
        completion = chat(client, question)
        choice = completion.choices[0]
        assert (choice.message.content, choice.finish_reason, choice.message.tool_calls) == (answer, "stop", None)


def test_several_answers_have_a_container_each(client):
    completion = chat(client, "who am I bob", n=3)
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert {choice.message.content for choice in completion.choices} == {"You are bob."}
    assert len({programs(completion, index)[0]["container_id"] for index in range(3)}) == 3
    assert completion.usage.total_tokens == 3 * 220
    chunks = list(chat(client, "2**20", n=2, stream=True))
    finished = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert sorted(finished) == [0, 1]


def test_stop_words_end_the_answer_and_not_the_program(client):
    completion = chat(client, "2**20", stop=["is", "48"])
    assert completion.choices[0].message.content == "2**20 " and completion.choices[0].finish_reason == "stop"
    assert programs(completion)[0]["code"] == "2**20"
    _, content, *_, finish = streamed(client, "2**20", stop="1048")
    assert (content, finish) == ("2**20 is ", "stop")


def test_a_form_is_the_whole_message(client):
    schema = {"name": "answer", "schema": {"type": "object", "properties": {"said": {"type": "string"}}}}
    completion = chat(client, "talks first", response_format={"type": "json_schema", "json_schema": schema})
    assert json.loads(completion.choices[0].message.content)["said"] == "It is 42."


def test_nothing_is_left_of_a_request_that_ran_nothing(client):
    before = containers(client)
    assert chat(client, "hello").choices[0].message.content == "You said: hello"
    # Leftovers of earlier tests may go at any time.
    assert containers(client) <= before


def test_a_client_that_goes_away_stops_its_program(server, client):
    before = containers(client)
    stream = chat(client, "runs long", stream=True)
    for chunk in stream:
        if (chunk.choices[0].delta.model_extra or {}).get("code_interpreter_calls"):
            break
    # The client is told of its container, which stays. The program would run for 20 s.
    (kept,) = containers(client) - before

    def has(event):
        log = (json.loads(line) for line in aludel(server, "audit", "--json").stdout.splitlines())
        return any(entry["container"] == kept and entry["event"] == event for entry in log)

    # The client is told of a program before it starts.
    eventually(lambda: has("started"))
    stream.close()
    eventually(lambda: has("ended"), seconds=15)
    assert not [file for file in client.containers.files.list(kept) if file.path.endswith("late.txt")]


def test_failures_are_errors(client):
    impatient = client.with_options(max_retries=0)
    with pytest.raises(openai.BadRequestError):
        chat(impatient, "upstream says 400")
    for stream in (False, True):
        with pytest.raises(openai.RateLimitError):
            list(chat(impatient, "upstream says 429", stream=stream))
    with pytest.raises(openai.InternalServerError):
        chat(impatient, "upstream hangs up")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        chat(impatient, "hello", model="none")
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        chat(impatient, "hello", logprobs=True)


def test_a_kernel_that_dies_is_told(client):
    completion = chat(client, "dies")
    assert programs(completion)[0]["status"] == "failed" and completion.choices[0].message.content == "It died."


def test_a_repeated_request_runs_nothing_twice(server, client):
    container = client.containers.create(name="count").id
    tool = {"type": "code_interpreter", "container": container}
    for _ in range(3):
        completion = chat(client, "count", tools=[tool], extra_headers={"idempotency-key": "once"})
        assert completion.choices[0].message.content == "Run 1 times."


def test_the_interpreter_is_there_for_any_protocol_of_the_model(upstream, server):
    """A model behind Responses, which is another aludel here."""
    with Server(server.url.rsplit(":", 1)[1], api="responses") as second:
        completion = chat(second.client(), "2**20")
        assert "1048576" in completion.choices[0].message.content
        # Without our tool there is nobody to hand the request on to, and the answer is the same all the same.
        assert second.client().chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hello"}]
        ).choices[0].message.content == "You said: hello"


def test_the_sandbox_of_a_completion_is_not_kept_for_long():
    seen = threading.Event()
    recorder = Recorder(
        runs("open('/mnt/data/note.txt', 'w').write('a note')"),
        streams(chunk({"content": "It is "}), chunk({"content": "written."}, "stop"), last=seen),
        runs("print(open('/mnt/data/note.txt').read())"),
        says("Read."),
    )
    with Server(None, models={"scripted": recorder.model()}, linger='"1s"', pool=0) as server:
        client = server.client()
        with chat(client, "go", stream=True) as stream:
            deltas = (choice.delta for piece in stream for choice in piece.choices)
            container = next(delta.code_interpreter_calls[0]["container_id"] for delta in deltas if "code_interpreter_calls" in delta.model_extra)
            assert any(delta.content == "It is " for delta in deltas)
            # The program has run, and the second begins with the answer's end.
            assert server.sandboxes() == 1
            seen.set()
            # To its end: of a client that goes away before, nothing is kept.
            assert "written." in [delta.content for delta in deltas]
        eventually(lambda: server.sandboxes() == 0)
        # The container is there all the same, with its files.
        (call,) = programs(chat(client, "go", tools=[{"type": "code_interpreter", "container": container}]))
        assert call["outputs"][0]["logs"] == "a note\n"
    recorder.stop()
