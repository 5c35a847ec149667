"""Responses over a WebSocket, with the official Python client and the Agents SDK, unchanged."""

import pytest
from agents import Agent, CodeInterpreterTool, Runner, set_tracing_disabled
from agents.models.openai_responses import OpenAIResponsesWSModel
from openai import AsyncOpenAI

set_tracing_disabled(True)
AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}


def answer(connection, question, **options):
    """The events of a response, up to the last one."""
    connection.response.create(model="gpt-5", input=question, tools=[AUTO], **options)
    events = []
    for event in connection:
        events.append(event)
        if event.type in ("response.completed", "response.failed", "response.incomplete", "error"):
            return events
    raise AssertionError("the socket closed")


@pytest.mark.parametrize("store", [True, False])
def test_the_next_response_goes_on_in_the_container_of_the_last(client, store):
    with client.responses.connect() as connection:
        first = answer(connection, "Please set y", store=store)
        assert "response.code_interpreter_call.completed" in [event.type for event in first]
        next = answer(connection, "Please get y", store=store, previous_response_id=first[-1].response.id)
        assert next[-1].response.output_text == "y is kept."


def test_a_refusal_leaves_the_socket_open(client):
    with client.responses.connect() as connection:
        (refused,) = answer(connection, "hello", previous_response_id="resp_none")
        assert refused.type == "error" and "resp_none" in refused.message
        assert answer(connection, "hello")[-1].response.output_text == "You said: hello"


async def test_the_agents_sdk(server):
    client = AsyncOpenAI(base_url=server.url + "/v1", api_key="unused")
    tool = CodeInterpreterTool(tool_config=AUTO)
    agent = Agent(name="Analyst", model=OpenAIResponsesWSModel("gpt-5", openai_client=client), tools=[tool])
    first = await Runner.run(agent, "Please set y")
    streamed = Runner.run_streamed(agent, "Please get y", previous_response_id=first.last_response_id)
    kinds = [event.type async for event in streamed.stream_events()]
    assert streamed.final_output == "y is kept." and "run_item_stream_event" in kinds
