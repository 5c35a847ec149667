"""LlamaIndex and AutoGen, which need an older client of OpenAI's."""

import asyncio

from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.tools import FunctionTool
from autogen_ext.agents.openai import OpenAIAssistantAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAIResponses
from openai import AsyncOpenAI

import pages

MODEL = "gpt-5"


def test_llama_index(url):
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    model = OpenAIResponses(
        model=MODEL, api_base=url + "/v1", api_key="unused", built_in_tools=[tool], track_previous_responses=True, context_window=100_000
    )
    ask = lambda question: [ChatMessage(role="user", content=question)]
    first = model.chat(ask("set y"))
    assert [call.type for call in first.additional_kwargs["built_in_tool_calls"]] == ["code_interpreter_call"]
    assert model.chat(ask("get y")).message.content == "y is kept."
    assert "".join(piece.delta or "" for piece in model.stream_chat(ask("two programs"))) == "x plus one is 21."


def test_autogens_assistant(url, tmp_path):
    async def get_weather(city: str) -> str:
        return "sunny"

    table = tmp_path / "sales.csv"
    table.write_text("date,amount\n2026-01-05,10\n2026-02-01,7\n")

    async def main():
        client = AsyncOpenAI(base_url=url + "/v1", api_key="unused")
        weather = FunctionTool(get_weather, name="get_weather", description="Tells the weather.")
        tools = ["code_interpreter", weather]
        agent = OpenAIAssistantAgent(
            name="analyst", description="Computes.", client=client, model=MODEL, instructions="Compute.", tools=tools
        )

        async def ask(question):
            answer = await agent.on_messages([TextMessage(content=question, source="user")], CancellationToken())
            return answer.chat_message.content

        assert await ask("set y") == "y is set."
        assert await ask("get y") == "y is kept."
        assert await ask("runs and asks") == "Both: 43."
        assert await ask("a chart") == "Here is the chart."
        await agent.on_upload_for_code_interpreter([str(table)], CancellationToken())
        assert "monthly.csv" in await ask("sales.csv: by month")

    asyncio.run(main())


def test_the_programs_of_the_guide(url):
    programs = [program for program in pages.programs("frameworks.md") if "autogen" in program or "llama_index" in program]
    assert len(programs) == 2
    for program in programs:
        assert "1048576" in pages.run(program, url, MODEL), program
