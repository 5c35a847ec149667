"""Programs that call the client's own tools, by the official Python client."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import anthropic
import pytest
from anthropic import beta_tool

from conftest import TOOL, Server
from test_messages import USUAL, ask, both, kinds, results, text, user

PRICES = {"tea": "3", "milk": "2", "rice": "5"}
CALLERS = ["code_execution_20260120"]
PRICE = {
    "name": "get_price",
    "description": "Tells a price.",
    "input_schema": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    "allowed_callers": CALLERS,
}
TOOLS = [TOOL, PRICE]


def calls(message):
    return [block for block in message.content if block.type == "tool_use"]


def answers(message, **changes):
    """The user's message that answers a message's calls."""
    return user([
        {"type": "tool_result", "tool_use_id": call.id, "content": PRICES.get(call.input["item"], "no such item"),
         **({} if call.input["item"] in PRICES else {"is_error": True}), **changes}
        for call in calls(message)
    ])  # fmt: skip


def begin(client, question, how="create", **options):
    """A conversation whose program waits for answers: its messages, and the last one."""
    options = {"tools": TOOLS, **options}
    message = ask(client, question, how, **options)
    return [user(question), {"role": "assistant", "content": message.content}], message


def go_on(client, history, message, how="create", said=None, **options):
    """The next message, after the answers to the last one; it becomes part of the history."""
    history.append(said or answers(message))
    options = {"tools": TOOLS, "container": message.container.id, **options}
    message = ask(client, history, how, **options)
    history.append({"role": "assistant", "content": message.content})
    return message


def check_waits(message, *items):
    """Asserts that a message ends with calls of a program's for these items."""
    made = calls(message)
    assert message.stop_reason == "tool_use" and [call.input["item"] for call in made] == list(items)
    assert [call.type for call in message.content[-len(items) :]] == ["tool_use"] * len(items)
    assert {call.caller.type for call in made} == set(CALLERS) and all(call.id.startswith("toolu_") for call in made)
    assert message.container.id and message.container.expires_at
    (program,) = {call.caller.tool_id for call in made}
    assert program.startswith("srvtoolu_")
    return program


@both
def test_a_program_calls_a_tool_and_goes_on(client, how):
    history, first = begin(client, "asks a price", how)
    program = check_waits(first, "tea")
    assert kinds(first) == ["server_tool_use", "tool_use"] and first.content[0].id == program
    assert first.content[0].input["code"].startswith("n = await get_price")
    last = go_on(client, history, first, how)
    assert kinds(last) == ["code_execution_tool_result", "text"] and last.content[0].tool_use_id == program
    assert results(last)[0].stdout == "tea costs 3\n" and results(last)[0].return_code == 0
    assert text(last) == "It says tea costs 3." and last.stop_reason == "end_turn"
    assert last.container.id == first.container.id and last.id != first.id
    # The history is understood, and its function is not there in a program without tools.
    again = go_on(client, history, last, said=user("asks after the cell"), tools=[TOOL])
    assert results(again)[0].stdout == "False\n"


@both
def test_calls_that_are_awaited_together_come_together(client, how):
    history, first = begin(client, "asks three prices", how)
    check_waits(first, "tea", "milk", "rice")
    last = go_on(client, history, first, how)
    assert results(last)[0].stdout == "asking\n10\n" and text(last) == "They cost asking 10."


@both
def test_a_program_calls_again_and_again(client, how):
    history, message = begin(client, "asks price by price", how)
    program = check_waits(message, "tea")
    for item in ("milk", "rice"):
        message = go_on(client, history, message, how)
        assert check_waits(message, item) == program and kinds(message) == ["tool_use"]
    last = go_on(client, history, message, how)
    assert kinds(last) == ["code_execution_tool_result", "server_tool_use", "code_execution_tool_result", "text"]
    assert last.content[0].tool_use_id == program
    assert [result.stdout for result in results(last)] == ["tea 3\nmilk 5\nrice 10\n", "still 10\n"]


def test_a_result_that_is_an_error_is_an_exception(client):
    history, first = begin(client, "asks a wrong price")
    second = go_on(client, history, first)
    check_waits(second, "gold")
    (result,) = results(go_on(client, history, second))
    assert result.stdout == "caught: no such item\n" and result.return_code == 1
    assert result.stderr.strip().endswith("ToolError: no such item") and "kernel_tools" not in result.stderr


def test_an_exception_after_a_call_is_told_as_ever(client):
    history, first = begin(client, "asks and fails")
    last = go_on(client, history, first)
    failed, then = results(last)
    assert failed.stdout == "3\n" and "ZeroDivisionError" in failed.stderr and failed.return_code == 1
    assert then.stdout == "3\n"


def test_programs_of_the_same_message_run_after_it(client):
    history, first = begin(client, "asks, then runs")
    assert kinds(first) == ["server_tool_use", "server_tool_use", "tool_use"]
    assert check_waits(first, "tea") == first.content[0].id
    last = go_on(client, history, first)
    assert kinds(last) == ["code_execution_tool_result", "code_execution_tool_result", "text"]
    assert [block.tool_use_id for block in last.content[:2]] == [block.id for block in first.content[:2]]
    assert [result.stdout for result in results(last)] == ["3\n", "second 3\n"]
    assert text(ask(client, [*history, user("2**20")], tools=TOOLS, container=last.container.id)) == "2**20 is 1048576."


def test_a_kernel_that_ends_meanwhile_is_told_with_the_answers(client):
    history, first = begin(client, "asks, and its kernel ends")
    time.sleep(1)
    last = go_on(client, history, first)
    assert results(last)[0].stdout == "dying\n" and results(last)[0].return_code == 137 and text(last) == "It died."


def test_a_call_without_await_is_told_so(client):
    (result,) = results(ask(client, "asks without await", tools=TOOLS))
    assert result.return_code == 1 and "not 'coroutine'" in result.stderr


def test_versions_and_direct_calls(client):
    for version, caller in (("20250825", "20250825"), ("20260521", "20260120")):
        tools = [
            {"type": f"code_execution_{version}", "name": "code_execution"},
            {**PRICE, "allowed_callers": [f"code_execution_{version}", "direct"]},
        ]
        history, first = begin(client, "asks a price", tools=tools)
        assert calls(first)[0].caller.type == f"code_execution_{caller}"
        assert text(go_on(client, history, first, tools=tools)) == "It says tea costs 3."
    weather = {**PRICE, "name": "get_weather", "input_schema": {"type": "object"}}
    direct = ask(client, "weather", tools=[TOOL, {**weather, "allowed_callers": ["direct"]}])
    assert direct.content[-1].caller.type == "direct"
    # One that programs alone can call is not offered to the model.
    assert ask(client, "weather", tools=[TOOL, weather]).stop_reason == "end_turn"
    for tools in ([PRICE], [TOOL, {**PRICE, "allowed_callers": ["code_execution_20250522"]}]):
        with pytest.raises(anthropic.BadRequestError, match="allowed_callers"):
            ask(client, "hello", tools=tools)


@pytest.mark.parametrize("thread", [False, None])
def test_the_tool_runner_needs_to_know_nothing(client, thread):
    asked = []

    @beta_tool(allowed_callers=CALLERS)
    def get_price(item: str) -> str:
        """Tells a price.

        Args:
            item: The item.
        """
        asked.append(item)
        return PRICES[item]

    options = {} if thread is None else {"thread": thread}
    runner = client.beta.messages.tool_runner(
        model="scripted", max_tokens=1000, tools=[TOOL, get_price], messages=[user("asks price by price")], **options
    )
    last = runner.until_done()
    assert asked == ["tea", "milk", "rice"] and last.content[-1].text == "All is still 10."


def test_answers_that_make_no_sense_are_refused_and_the_program_waits_on(client):
    history, first = begin(client, "asks three prices")
    good = answers(first)["content"]

    def refused(words, messages=None, **options):
        options = {"tools": TOOLS, "container": first.container.id, **options}
        with pytest.raises(anthropic.BadRequestError, match=words) as refusal:
            ask(client, messages, **options)
        return refusal.value.message

    def said(content):
        return [*history, user(content)]

    refused("container_id is required when there are pending tool uses generated by code execution with tools.", said(good), container=None)
    refused("`tool_use` ids were found without `tool_result` blocks immediately after: toolu_", said(good[:2]))
    refused("unexpected `tool_use_id`", said([*good, {**good[0], "tool_use_id": "toolu_x"}]))
    refused("unexpected `tool_use_id`", said([*good, good[0]]))
    refused("can only contain `tool_result` blocks", said([*good, {"type": "text", "text": "and more"}]))
    refused("There can only be text", said([{**block, "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]} for block in good]))
    content = [block.to_dict() for block in first.content]

    def changed(change):
        blocks = json.loads(json.dumps(content))
        change(blocks)
        return [history[0], {"role": "assistant", "content": blocks}, user(good)]

    lost = refused("not found for tool use block", changed(lambda blocks: blocks[1]["caller"].update(tool_id="srvtoolu_x")))
    assert lost.count(f"source tool `srvtoolu_x` not found for tool use block `{calls(first)[0].id}`") == 1, lost
    refused("unchanged", changed(lambda blocks: blocks[0]["input"].update(code="print('mine')")))
    refused("unchanged", changed(lambda blocks: blocks[1]["input"].update(item="gold")))
    refused("unchanged", changed(lambda blocks: blocks[1].update(name="get_prize")))
    refused("unchanged", changed(lambda blocks: blocks.insert(1, blocks.pop(2))))
    other = ask(client, "2**20", tools=TOOLS).container.id
    refused("another one", said(good), container=other)
    with pytest.raises(anthropic.NotFoundError, match="Container not found"):
        ask(client, said(good), tools=TOOLS, container="container_0123")
    last = go_on(client, history, first)
    assert results(last)[0].stdout == "asking\n10\n"
    refused("answered before", said(good)[: len(history) - 1])


def test_answers_count_once(client):
    history, first = begin(client, "asks price by price")
    history.append(answers(first))

    def bring(_):
        try:
            return ask(client, list(history), tools=TOOLS, container=first.container.id)
        except anthropic.BadRequestError as refusal:
            return refusal.message

    with ThreadPoolExecutor(4) as pool:
        brought = list(pool.map(bring, range(4)))
    refused = [refusal for refusal in brought if isinstance(refusal, str)]
    assert len(refused) == 3 and all("answered before" in refusal or "unchanged" in refusal for refusal in refused), refused
    (message,) = [message for message in brought if not isinstance(message, str)]
    history.append({"role": "assistant", "content": message.content})
    check_waits(message, "milk")
    # The first answers are none to the second call.
    with pytest.raises(anthropic.BadRequestError, match="unchanged"):
        ask(client, history[:3], tools=TOOLS, container=first.container.id)
    second = go_on(client, history, message)
    assert results(go_on(client, history, second))[0].stdout == "tea 3\nmilk 5\nrice 10\n"


def test_the_programs_of_others_do_not_exist(keyed):
    server, *keys = keyed
    ada, eve = (server.client(key, max_retries=0) for key in keys)
    history, first = begin(ada, "asks a price")
    theft = [*history, answers(first)]
    with pytest.raises(anthropic.NotFoundError, match="Container not found"):
        ask(eve, theft, tools=TOOLS, container=first.container.id)
    own = ask(eve, "2**20", tools=TOOLS).container.id
    # To her it is a program that was lost.
    assert results(ask(eve, theft, tools=TOOLS, container=own))[0].error_code == "unavailable"
    assert results(go_on(ada, history, first))[0].stdout == "tea costs 3\n"


def test_a_restart_loses_the_program_and_not_the_conversation(upstream):
    with Server(upstream) as server:
        client = server.client()
        history, first = begin(client, "asks price by price")
        program = check_waits(first, "tea")
        server.process.kill()
        server.process.wait()
        server.__enter__()
        client = server.client()
        last = go_on(client, history, first)
        assert last.content[0].tool_use_id == program and results(last)[0].error_code == "unavailable"
        # The model is told, and goes on.
        assert kinds(last)[:2] == ["code_execution_tool_result", "server_tool_use"]
        assert "NameError" in results(last)[1].stderr
        assert text(go_on(client, history, last, said=user("2**20"))) == "2**20 is 1048576."
        log = [json.loads(line) for line in server.run("audit", "--json").splitlines()]
        assert [entry["event"] for entry in log if "item" in json.dumps(entry)].count("started") == 1


def test_a_client_that_never_comes_back_leaves_nothing(upstream):
    with Server(upstream, answers='"2s"') as server:
        client = server.client()
        history, first = begin(client, "asks a price")
        until = time.monotonic() + 30

        def events():
            log = [json.loads(line) for line in server.run("audit", "--json").splitlines()]
            return [entry["event"] for entry in log]

        while events() != ["started", "ended"]:
            assert time.monotonic() < until, events()
            time.sleep(0.2)
        last = go_on(client, history, first)
        assert results(last)[0].error_code == "unavailable" and last.stop_reason == "end_turn"
        assert events() == ["started", "ended"]
