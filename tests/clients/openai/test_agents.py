"""The Agents SDK, unchanged: hosted code interpreter, streaming, sessions."""

import pytest
from agents import Agent, CodeInterpreterTool, HostedMCPTool, ModelSettings, OpenAIConversationsSession, OpenAIResponsesModel, Runner, RunState
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


@pytest.fixture
def careful(server):
    client = AsyncOpenAI(base_url=server.url + "/v1", api_key="unused")
    config = {"type": "mcp", "server_label": "code", "server_url": server.url + "/mcp", "require_approval": "always"}
    model = OpenAIResponsesModel("gpt-5", openai_client=client)
    return Agent(name="Careful", model=model, tools=[HostedMCPTool(tool_config=config)])


async def test_a_person_approves_the_exact_program(careful):
    result = await Runner.run(careful, "What is the factorial of 7?")
    (interruption,) = result.interruptions
    assert "math.factorial(7)" in interruption.raw_item.arguments
    # The decision may be made elsewhere, later.
    state = await RunState.from_json(careful, result.to_state().to_json())
    state.approve(state.get_interruptions()[0])
    result = await Runner.run(careful, state)
    assert result.final_output == "The factorial of 7 is 5040."


async def test_variables_live_on_between_approved_programs(careful):
    history = []
    for question in ("Please set y", "Please get y"):
        result = await Runner.run(careful, [*history, {"role": "user", "content": question}])
        state = result.to_state()
        state.approve(result.interruptions[0])
        result = await Runner.run(careful, state)
        history = result.to_input_list()
    assert result.final_output == "y is kept."


async def test_a_person_refuses(careful):
    result = await Runner.run(careful, "Calculate 2**20")
    state = result.to_state()
    state.reject(result.interruptions[0])
    result = await Runner.run(careful, state)
    assert "not allow" in result.final_output and "1048576" not in result.final_output
