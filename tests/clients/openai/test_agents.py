"""The Agents SDK, unchanged: hosted code interpreter, streaming, sessions."""

import pytest
from agents import Agent, CodeInterpreterTool, ModelSettings, OpenAIConversationsSession, OpenAIResponsesModel, Runner
from agents import set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@pytest.fixture
def agent(server):
    client = AsyncOpenAI(base_url=server.url + "/v1", api_key="unused")
    tool = CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}})
    return Agent(
        name="Analyst",
        instructions="Answer with code.",
        model=OpenAIResponsesModel("gpt-5", openai_client=client),
        tools=[tool],
        model_settings=ModelSettings(response_include=["code_interpreter_call.outputs"]),
    )


def programs(result):
    return [item.raw_item for item in result.new_items if item.type == "tool_call_item"]


async def test_a_run(agent):
    result = await Runner.run(agent, "What is the factorial of 7?")
    assert "5040" in result.final_output
    (program,) = programs(result)
    assert program.type == "code_interpreter_call" and program.outputs[0].logs == "5040"


async def test_a_streamed_run(agent):
    result = Runner.run_streamed(agent, "two programs")
    kinds = [event.type async for event in result.stream_events()]
    assert result.final_output == "x plus one is 21." and len(programs(result)) == 2
    assert "raw_response_event" in kinds and "run_item_stream_event" in kinds


async def test_the_next_turn_by_its_input_list(agent):
    first = await Runner.run(agent, "Please set y")
    history = first.to_input_list() + [{"role": "user", "content": "Please get y"}]
    assert (await Runner.run(agent, history)).final_output == "y is kept."


async def test_a_session_by_conversations(agent, server):
    session = OpenAIConversationsSession(openai_client=AsyncOpenAI(base_url=server.url + "/v1", api_key="unused"))
    await Runner.run(agent, "Please set y", session=session)
    assert (await Runner.run(agent, "Please get y", session=session)).final_output == "y is kept."
    assert len(await session.get_items()) == 6


async def test_a_forced_tool(agent):
    agent.model_settings.tool_choice = "code_interpreter"
    assert "1048576" in (await Runner.run(agent, "Calculate 2**20")).final_output
