"""Pydantic AI and LangChain: two questions whose programs share their variables, and a stream."""

import asyncio

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic_ai import Agent
from pydantic_ai.capabilities import NativeTool
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.native_tools import CodeExecutionTool
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

import pages

MODEL = "gpt-5"


@pytest.mark.parametrize("dialect", ["responses", "messages", "gemini"])
def test_pydantic_ai(url, dialect):
    model = {
        "responses": lambda: OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=url + "/v1", api_key="unused")),
        "messages": lambda: AnthropicModel(MODEL, provider=AnthropicProvider(base_url=url, api_key="unused")),
        "gemini": lambda: GoogleModel(MODEL, provider=GoogleProvider(base_url=url, api_key="unused")),
    }[dialect]()
    agent = Agent(model, capabilities=[NativeTool(CodeExecutionTool())])
    first = agent.run_sync("set y")
    parts = [type(part).__name__ for message in first.all_messages() for part in message.parts]
    assert parts[-3:] == ["NativeToolCallPart", "NativeToolReturnPart", "TextPart"]
    assert agent.run_sync("get y", message_history=first.all_messages()).output == "y is kept."

    async def stream():
        async with agent.run_stream("two programs") as answer:
            return [text async for text in answer.stream_text()][-1]

    assert asyncio.run(stream()) == "x plus one is 21."


@pytest.mark.parametrize("dialect", ["responses", "messages"])
def test_langchain(url, dialect):
    if dialect == "responses":
        model = ChatOpenAI(model=MODEL, base_url=url + "/v1", api_key="unused", use_responses_api=True, output_version="responses/v1")
        analyst = model.bind_tools([{"type": "code_interpreter", "container": {"type": "auto"}}])
    else:
        model = ChatAnthropic(model=MODEL, base_url=url, api_key="unused", max_tokens=4096, reuse_last_container=True)
        analyst = model.bind_tools([{"type": "code_execution_20250825", "name": "code_execution"}])
    first = analyst.invoke("set y")
    assert analyst.invoke([("user", "set y"), first, ("user", "get y")]).text == "y is kept."
    assert "".join(piece.text for piece in analyst.stream("two programs")) == "x plus one is 21."


def test_the_programs_of_the_guide(url):
    programs = [program for program in pages.programs("frameworks.md") if "autogen" not in program and "llama_index" not in program]
    assert len(programs) == 4
    for program in programs:
        assert "1048576" in pages.run(program, url, MODEL), program
