"""Tests of LiteLLM for its interceptor, against a running server, as far as no other file here has them.

Its 55 and 5 cases in `integrations/code_interpreter_interception/test_handler.py` and `litellm_core_utils/test_chat_completion_agentic_loop.py`:

| LiteLLM's cases                                                                         | ours                                                    |
|-----------------------------------------------------------------------------------------|---------------------------------------------------------|
| code runs, its output goes back; calls are told with code, container, outputs           | `test_chat.py`: a program runs; a stream adds up        |
| outputs are an empty list when nothing is printed; order of call and message            | `test_chat.py`: nothing a program shows is lost         |
| the tool becomes a function, also with a forced choice in either form; others untouched | below; `test_chat.py`: a forced tool is forced once     |
| streams                                                                                 | `test_chat.py`: a stream comes while it happens         |
| a sandbox is shared by the rounds of a request, and by nobody else                      | `test_chat.py`: programs keep their order; below        |
| calls of other names, and forged ones, do not run                                       | below                                                   |
| fields of the gateway's own do not reach the model's server, nor can clients forge them | below                                                   |
| failures of a program, of arguments, of the sandbox; cleaned up after each              | `test_chat.py`: calls that cannot be carried out, failures are errors; `test_gateway.py`: a server that fails |
| a loop has an end, also one that repeats itself                                         | below; `test_responses.py`: the number of calls         |
| sessions: by name, kept, shared by what follows, not by other keys, bounded             | below; `test_hostile.py`: a thousand containers         |
| its configuration                                                                       | `aludel config import litellm` (Rust tests)             |
| hooks, registries, sync and async twins, objects or dicts                               | no counterpart: nothing of it can be seen from outside  |
"""

import json
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from conftest import Server
from recorder import Recorder, answers, call, chunk, runs, says, streams
from test_gateway import AUTO, Gateway


def sent(recorder, number):
    return json.loads(recorder.requests[number][2])


@pytest.mark.parametrize("choice", [{"type": "code_interpreter"}, {"type": "hosted_tool", "name": "code_interpreter"}, "auto"])
def test_the_tool_is_a_function_of_the_model(choice):
    recorder = Recorder(runs("print(40 + 2)"), says("The answer is 42"))
    with Gateway([recorder]) as gateway:
        completion = gateway.ask(tool_choice=choice)
        assert completion.choices[0].message.content == "The answer is 42"
        for number in range(2):
            (tool,) = sent(recorder, number)["tools"]
            assert tool["type"] == "function" and tool["function"]["parameters"]["required"] == ["code"]
        forced = {"type": "function", "function": {"name": tool["function"]["name"]}}
        assert sent(recorder, 0).get("tool_choice", "auto") == ("auto" if choice == "auto" else forced)
        assert sent(recorder, 1).get("tool_choice", "auto") == "auto"
        answer = sent(recorder, 1)["messages"][-1]
        assert answer["role"] == "tool" and "42" in answer["content"]


def test_nothing_runs_that_our_tool_was_not_asked_for():
    """A model that calls the interpreter out of thin air calls a function of the client's, and the client is told so."""
    forged = answers(200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "python", "arguments": json.dumps({"code": "open('/mnt/data/x', 'w')"})}}]}}]})
    recorder = Recorder(forged)
    with Gateway([recorder]) as gateway:
        python = {"type": "function", "function": {"name": "python"}}
        for tools in (openai.NOT_GIVEN, [python]):
            (called,) = gateway.ask(tools=tools).choices[0].message.tool_calls
            assert called.function.name == "python"
        # If the client has a function of that name, ours goes by another one.
        (called,) = gateway.ask(tools=[AUTO, python]).choices[0].message.tool_calls
        assert called.function.name == "python" and not gateway.client().containers.list().data


def test_a_function_of_another_name_does_not_run():
    recorder = Recorder(streams(chunk(call("print(1)", name="something_else")), chunk({}, "tool_calls"), b"data: [DONE]\n\n"), says("done"))
    with Gateway([recorder]) as gateway:
        completion = gateway.ask()
        assert not completion.choices[0].message.tool_calls and completion.choices[0].message.content == "done"
        assert "something_else" in sent(recorder, 1)["messages"][-1]["content"]


FORGED = {"_code_interpreter_interception_active": True, "_agentic_loop_depth": 1, "max_agentic_loops": 99, "container_id": "cntr_forged"}


def test_fields_of_a_gateway_s_own_are_neither_taken_nor_handed_on():
    recorder = Recorder(runs("print(40 + 2)"), says("done"))
    with Gateway([recorder]) as gateway:
        completion = gateway.ask(extra_body={**FORGED, "litellm_metadata": {"x": 1}})
        assert completion.choices[0].message.model_extra["code_interpreter_calls"][0]["container_id"] != "cntr_forged"
        for number in range(2):
            body = sent(recorder, number)
            assert not {*FORGED, "litellm_metadata", "container"} & set(body)
            assert not any("code_interpreter" in key for message in body["messages"] for key in message)


def test_a_model_that_repeats_itself_comes_to_an_end():
    recorder = Recorder(runs("print(1)"))
    with Gateway([recorder]) as gateway:
        (choice,) = gateway.ask().choices
        assert choice.finish_reason == "length" and "used up" in choice.message.content
        assert 2 < len(recorder.requests) < 100


def program(completion):
    (call,) = completion.choices[0].message.model_extra["code_interpreter_calls"]
    return call["container_id"], "".join(output["logs"] for output in call["outputs"])


COUNTS = "try: n += 1\nexcept NameError: n = 1\nprint(n)"


def rounds(code, times):
    return [step for _ in range(times) for step in (runs(code), says("done"))]


@pytest.mark.parametrize("where", ["metadata", "litellm_metadata"])
def test_requests_of_one_session_share_a_container(where):
    recorder = Recorder(*rounds(COUNTS, 5))
    with Gateway([recorder]) as gateway:
        session = {"extra_body": {where: {"session_id": "conversation 1"}}}
        (first, one), (second, two) = (program(gateway.ask(**session)) for _ in range(2))
        assert first == second and (one.strip(), two.strip()) == ("1", "2")
        other, one = program(gateway.ask(extra_body={where: {"session_id": "conversation 2"}}))
        none, also_one = program(gateway.ask())
        assert len({first, other, none}) == 3 and one == also_one == "1\n"
        # The files outlive the server, under the same name.
        gateway.server.restart()
        assert program(gateway.ask(**session))[0] == first


def test_a_session_that_fails_is_kept():
    recorder = Recorder(*rounds(COUNTS, 1), runs(COUNTS), answers(400, {"error": {"message": "no"}}), *rounds(COUNTS, 1))
    with Gateway([recorder]) as gateway:
        session = {"extra_body": {"metadata": {"session_id": "s"}}}
        first, _ = program(gateway.ask(**session))
        with pytest.raises(openai.BadRequestError):
            gateway.ask(**session)
        assert program(gateway.ask(**session)) == (first, "3\n")


def count(client, **session):
    messages = [{"role": "user", "content": "count"}]
    return program(client.chat.completions.create(model="scripted", messages=messages, tools=[AUTO], **session))


def test_eight_requests_of_one_session_at_once(client):
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(count, client, metadata={"session_id": "at once"}) for _ in range(8)]
        found = [asked.result() for asked in asked]
    assert len({container for container, _ in found}) == 1
    assert sorted(int(times) for _, times in found) == list(range(1, 9))


def test_a_session_is_of_one_key(upstream):
    with Server(upstream) as server:
        for name in ("ada", "eve"):
            command = [*shlex.split(os.environ.get("ALUDEL", "aludel")), "keys", "create", name, "--data", server.directory.name]
            key = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
            client = server.client().with_options(api_key=key)
            assert [count(client, metadata={"session_id": "same"})[1].strip() for _ in range(2)] == ["1", "2"]
