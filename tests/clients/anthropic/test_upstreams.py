"""Models whose servers speak this protocol themselves: another server of ours stands in for one."""

import anthropic
import pytest

from conftest import TOOL, Server

WEATHER = {"name": "get_weather", "description": "d", "input_schema": {"type": "object"}}
CLAUDE = '[[model]]\nname = "claude"\napi = "anthropic"\nurl = "{url}"\nkey = "sk-test"\nupstream_name = "scripted"\n'


@pytest.fixture(scope="module")
def client(server, upstream):
    with Server(upstream, CLAUDE.format(url=server.url)) as outer:
        yield outer.client(max_retries=0)


def ask(client, content, **options):
    return client.messages.create(model="claude", max_tokens=1000, messages=[{"role": "user", "content": content}], timeout=60, **options)


def test_programs_run_here_and_not_there(client, server):
    message = ask(client, "runs and asks", tools=[TOOL, WEATHER])
    assert [block.type for block in message.content] == ["server_tool_use", "code_execution_tool_result", "tool_use"]
    assert message.content[1].content.stdout == "42\n" and message.usage.input_tokens == 100
    call = message.content[2]
    history = [
        {"role": "user", "content": "runs and asks"},
        {"role": "assistant", "content": message.model_dump(mode="json")["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
    ]
    usual = {"model": "claude", "max_tokens": 1000, "tools": [TOOL, WEATHER], "container": message.container.id}
    with client.messages.stream(**usual, messages=history) as stream:
        last = stream.get_final_message()
    assert last.content[1].content.stdout == "43\n" and last.stop_reason == "end_turn"
    with pytest.raises(anthropic.NotFoundError, match="Container not found"):
        server.client().messages.create(**{**usual, "model": "scripted"}, messages=history)


def test_without_our_tool_a_request_is_handed_on(client, server):
    message = ask(client, "hello", tools=[WEATHER])
    # The name that the server has for it, and its own request's id.
    assert message.model == "scripted" and message.content[0].text == "You said: hello"
    with client.messages.stream(model="claude", max_tokens=9, messages=[{"role": "user", "content": "hello"}]) as stream:
        assert stream.get_final_message().model == "scripted"
    # A refusal there has its words; with our tool it is refused here.
    search = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match="tools.0.type"):
        ask(client, "hello", tools=[search])
    with pytest.raises(anthropic.BadRequestError, match="tools.1.type"):
        ask(client, "hello", tools=[TOOL, search])
