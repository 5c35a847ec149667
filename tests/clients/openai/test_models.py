"""Models that speak other protocols: what they are asked, byte for byte of JSON, and what clients get of their answers."""

import json

import openai
import pytest

from recorder import Recorder, answers, says, streams
from test_gateway import Gateway

CODE = "print(40 + 2)"


def events(*values):
    return [f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode() if "type" in value else f"data: {json.dumps(value)}\r\n\r\n".encode() for value in values]


def block(index, start, *deltas):
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def message(blocks, reason, **usage):
    begin = {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1}}}
    end = [{"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}}, {"type": "message_stop"}]
    return streams(*events(begin, {"type": "ping"}, *blocks, *end))


ARGUMENTS = json.dumps({"code": CODE})
THINKS = block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "Let me "}, {"type": "thinking_delta", "thinking": "see."}, {"type": "signature_delta", "signature": "sealed=="})
SAYS = block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I compute."})
CALLS = block(2, {"type": "tool_use", "id": "toolu_1", "name": "python", "input": {}}, {"type": "input_json_delta", "partial_json": ""}, {"type": "input_json_delta", "partial_json": ARGUMENTS[:9]}, {"type": "input_json_delta", "partial_json": ARGUMENTS[9:]})
ANSWERS = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "It is "}, {"type": "text_delta", "text": "42."})


def asked(recorder, number):
    path, headers, body = recorder.requests[number]
    return path, {name.lower(): value for name, value in headers.items()}, json.loads(body)


def serve(recorder, api):
    return Gateway([recorder], {"alias": recorder.model(api=f'"{api}"', upstream_name='"real-1"', vision="true")})


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(stream):
    recorder = Recorder(message([*THINKS, *SAYS, *CALLS], "tool_use"), message(ANSWERS, "end_turn"))
    with serve(recorder, "anthropic") as gateway:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}]
        options = {"messages": messages, "reasoning_effort": "medium", "max_completion_tokens": 8000}
        if stream:
            chunks = list(gateway.ask(stream=True, stream_options={"include_usage": True}, **options))
            content = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
            usage = chunks[-1].usage
        else:
            completion = gateway.ask(**options)
            content, usage = completion.choices[0].message.content, completion.usage
            assert completion.choices[0].message.model_extra["reasoning_content"] == "Let me see."
        assert content == "I compute.\n\nIt is 42."
        assert (usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens) == (30, 14, 10)
        path, headers, first = asked(recorder, 0)
        assert path == "/v1/messages" and headers["x-api-key"] == "sk-upstream" and headers["anthropic-version"] == "2023-06-01"
        assert "authorization" not in headers
        assert (first["model"], first["max_tokens"], first["stream"]) == ("real-1", 8000, True)
        # Further rounds begin in the same way: the server caches the beginning.
        cached = {"cache_control": {"type": "ephemeral"}}
        assert first["system"] == [{"type": "text", "text": "Be brief.", **cached}]
        assert first["messages"] == [{"role": "user", "content": [{"type": "text", "text": "go", **cached}]}]
        assert first["thinking"] == {"type": "enabled", "budget_tokens": 2000} and first["tool_choice"] == {"type": "auto"}
        (tool,) = first["tools"]
        assert tool["name"] == "python" and tool["input_schema"]["required"] == ["code"]
        _, _, second = asked(recorder, 1)
        user, assistant, result = second["messages"]
        assert second["max_tokens"] == 7993 and all(second[name] == first[name] for name in ("thinking", "system", "tools"))
        assert user["content"] == [{"type": "text", "text": "go"}] and result["content"][-1]["cache_control"] == cached["cache_control"]
        # Thoughts go back sealed as they were, before the call.
        assert assistant == {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Let me see.", "signature": "sealed=="},
                {"type": "text", "text": "I compute."},
                {"type": "tool_use", "id": "toolu_1", "name": "python", "input": {"code": CODE}},
            ],
        }
        (content,) = result["content"]
        assert result["role"] == "user" and (content["type"], content["tool_use_id"]) == ("tool_result", "toolu_1")
        assert "42" in content["content"][0]["text"]


def test_anthropic_sees_what_programs_show():
    chart = {"code": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"}
    calls = block(0, {"type": "tool_use", "id": "toolu_1", "name": "python", "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(chart)})
    recorder = Recorder(message(calls, "tool_use"), message(ANSWERS, "end_turn"))
    with serve(recorder, "anthropic") as gateway:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        gateway.ask(messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, image]}], tool_choice="required", temperature=1.5)
        _, _, first = asked(recorder, 0)
        source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        assert first["messages"][0]["content"][1] == {"type": "image", "source": source}
        assert first["tool_choice"] == {"type": "any"} and first["temperature"] == 1.0
        _, _, second = asked(recorder, 1)
        (result,) = second["messages"][-1]["content"]
        assert [part["type"] for part in result["content"]] == ["text", "image"] and second["tool_choice"] == {"type": "auto"}


def parts(*values, **more):
    return {"candidates": [{"content": {"role": "model", "parts": list(values)}, **more}], "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 4}}


@pytest.mark.parametrize("stream", [False, True])
def test_gemini(stream):
    calls = [{"text": "Let me see.", "thought": True}, {"text": "I compute."}, {"functionCall": {"name": "python", "args": {"code": CODE}}, "thoughtSignature": "sealed=="}]
    recorder = Recorder(
        streams(*events(*[parts(call) for call in calls], parts(finishReason="STOP"))),
        streams(*events(parts({"text": "It is "}), parts({"text": "42."}, finishReason="STOP"))),
    )
    with serve(recorder, "gemini") as gateway:
        options = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}], "max_tokens": 500}
        if stream:
            chunks = list(gateway.ask(stream=True, **options))
            content = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        else:
            completion = gateway.ask(**options)
            content = completion.choices[0].message.content
            assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (20, 14)
            assert completion.usage.completion_tokens_details.reasoning_tokens == 8
        assert content == "I compute.\n\nIt is 42."
        path, headers, first = asked(recorder, 0)
        assert path == "/v1/models/real-1:streamGenerateContent?alt=sse" and headers["x-goog-api-key"] == "sk-upstream"
        assert first["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
        assert first["contents"] == [{"role": "user", "parts": [{"text": "go"}]}]
        assert first["generationConfig"] == {"maxOutputTokens": 500}
        assert first["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}}
        assert first["tools"][0]["functionDeclarations"][0]["name"] == "python"
        _, _, second = asked(recorder, 1)
        user, model, result = second["contents"]
        assert model == {
            "role": "model",
            "parts": [{"text": "I compute."}, {"functionCall": {"name": "python", "args": {"code": CODE}}, "thoughtSignature": "sealed=="}],
        }
        (part,) = result["parts"]
        assert result["role"] == "user" and part["functionResponse"]["name"] == "python" and "42" in part["functionResponse"]["response"]["output"]


@pytest.mark.parametrize("api", ["anthropic", "gemini"])
def test_whole_answers_and_ends(api):
    whole = {
        "anthropic": [{"type": "message", "content": [{"type": "text", "text": "whole"}], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}, {"type": "message", "content": [{"type": "text", "text": "cut"}], "stop_reason": "max_tokens"}, {"type": "message", "content": [], "stop_reason": "refusal"}],
        "gemini": [parts({"text": "whole"}, finishReason="STOP"), parts({"text": "cut"}, finishReason="MAX_TOKENS"), {"promptFeedback": {"blockReason": "SAFETY"}}],
    }[api]
    recorder = Recorder(*[answers(200, answer) for answer in whole])
    with serve(recorder, api) as gateway:
        choices = [gateway.ask(tools=openai.NOT_GIVEN).choices[0] for _ in whole]
        assert [choice.finish_reason for choice in choices] == ["stop", "length", "content_filter"]
        assert [choice.message.content for choice in choices] == ["whole", "cut", ""]


@pytest.mark.parametrize(
    "api, error",
    [
        ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "the words"}}),
        ("gemini", {"error": {"code": 429, "message": "the words", "status": "RESOURCE_EXHAUSTED"}}),
    ],
)
def test_failures(api, error):
    last = streams(*events(error))
    recorder = Recorder(*[answers(status, error) for status in (401, 404, 400, 429, 429, 429, 529, 529, 529)], last, last, last, streams(b"data: {{\n\n"))
    with serve(recorder, api) as gateway:
        # An address where nothing is, as a key that is not known, is the operator's fault.
        for kind in (openai.InternalServerError, openai.InternalServerError, openai.BadRequestError, openai.RateLimitError, openai.InternalServerError):
            with pytest.raises(kind):
                gateway.ask()
        # In the middle of a stream, which is asked for again as long as nothing was said, and garbage.
        with pytest.raises(openai.APIStatusError, match="the words"):
            gateway.ask()
        assert len(recorder.requests) == 12
        with pytest.raises(openai.InternalServerError):
            gateway.ask()
        assert gateway.client().containers.list().data == []


def test_anthropic_without_thoughts_or_arguments():
    """Thoughts that nobody may see go back, too; a call without arguments has an empty object."""
    tool = {"type": "tool_use", "name": "now", "input": {}}
    hidden = block(0, {"type": "redacted_thinking", "data": "x"})
    recorder = Recorder(message([*hidden, *CALLS], "tool_use"), message(block(0, {**tool, "id": "toolu_2"}), "tool_use"))
    with serve(recorder, "anthropic") as gateway:
        now = {"type": "function", "function": {"name": "now"}}
        completion = gateway.ask(reasoning_effort="low", tools=[{"type": "code_interpreter"}, now])
        (call,) = completion.choices[0].message.tool_calls
        assert call.function.arguments == "{}"
        second = asked(recorder, 1)[2]
        assert "thinking" in asked(recorder, 0)[2] and "thinking" in second
        assert second["messages"][1]["content"][0] == {"type": "redacted_thinking", "data": "x"}


def test_anthropic_models_that_choose_their_thinking():
    """They take neither a budget nor a temperature, which is learnt from their refusals."""
    refuses = lambda words: answers(400, {"type": "error", "error": {"type": "invalid_request_error", "message": words}})
    no_budget, no_temperature = '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".', "`temperature` is deprecated for this model."
    hidden = block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "signature_delta", "signature": "sealed=="})
    recorder = Recorder(refuses(no_budget), message([*hidden, *CALLS], "tool_use"), refuses(no_temperature), message(ANSWERS, "end_turn"), message(ANSWERS, "end_turn"))
    with serve(recorder, "anthropic") as gateway:
        assert gateway.ask(reasoning_effort="minimal").choices[0].message.content == "It is 42."
        sent = [asked(recorder, number)[2] for number in range(4)]
        assert sent[0]["thinking"]["type"] == "enabled" and "output_config" not in sent[0]
        for body in sent[1:]:
            assert (body["thinking"], body["output_config"]) == ({"type": "adaptive"}, {"effort": "low"})
        # Its thoughts go back, though it told nothing of them.
        assert sent[2]["messages"][1]["content"][0] == {"type": "thinking", "thinking": "", "signature": "sealed=="}
        gateway.ask(temperature=0.5)
        assert "temperature" not in asked(recorder, 4)[2]


def test_responses_think_on_from_round_to_round():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed=="}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "python", "arguments": ""}
    ends = lambda *more: streams(*events(*more, {"type": "response.completed", "response": {"output": [], "usage": {"input_tokens": 1, "output_tokens": 1}}}))
    calls = ends(
        {"type": "response.output_item.done", "output_index": 0, "item": thought},
        {"type": "response.output_item.added", "output_index": 1, "item": call},
        {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": ARGUMENTS},
    )
    says_so = ends({"type": "response.output_text.delta", "output_index": 0, "delta": "It is 42."})
    refused = answers(400, {"error": {"message": "Encrypted content is not supported with this model.", "type": "invalid_request_error", "param": "include"}})
    recorder = Recorder(calls, says_so, refused, says_so, says_so)
    with serve(recorder, "responses") as gateway:
        for _ in range(3):
            assert gateway.ask().choices[0].message.content == "It is 42."
        first, second, *others = (asked(recorder, number)[2] for number in range(5))
        assert first["include"] == ["reasoning.encrypted_content"]
        kinds = [item["type"] for item in second["input"]]
        assert kinds == ["message", "reasoning", "function_call", "function_call_output"]
        assert second["input"][1] == {"type": "reasoning", "summary": [], "encrypted_content": "sealed=="}
        # A model that does not think says so once.
        assert ["include" in body for body in others] == [True, False, False]


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_images_keep_their_detail(api):
    recorder = Recorder(answers(400, {"error": {"message": "Enough seen.", "type": "invalid_request_error"}}))
    with serve(recorder, api) as gateway:
        urls = ["data:image/png;base64,iVBORw0KGgo=", "https://host.test/b.png", "https://host.test/c.png"]
        details = ["low", "high", None]
        if api == "responses":
            parts = [{"type": "input_image", "image_url": url} | ({"detail": detail} if detail else {}) for url, detail in zip(urls, details)]
            with pytest.raises(openai.APIError):
                gateway.client().responses.create(model="alias", tools=[{"type": "code_interpreter", "container": {"type": "auto"}}], input=[{"role": "user", "content": parts}])
            _, _, body = asked(recorder, 0)
            sent = [(part["image_url"], part["detail"]) for part in body["input"][-1]["content"] if part["type"] == "input_image"]
            details = ["low", "high", "auto"]
        else:
            parts = [{"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})} for url, detail in zip(urls, details)]
            with pytest.raises(openai.APIError):
                gateway.ask(messages=[{"role": "user", "content": parts}])
            _, _, body = asked(recorder, 0)
            sent = [(part["image_url"]["url"], part["image_url"].get("detail")) for part in body["messages"][-1]["content"] if part["type"] == "image_url"]
        assert sent == list(zip(urls, details))


def test_gemini_is_asked_again_when_it_cannot_call():
    malformed = streams(*events(parts(finishReason="MALFORMED_FUNCTION_CALL")))
    recorder = Recorder(malformed, streams(*events(parts({"text": "It is 42."}, finishReason="STOP"))))
    with serve(recorder, "gemini") as gateway:
        assert gateway.ask().choices[0].message.content == "It is 42."


@pytest.mark.parametrize("api", ["anthropic", "gemini"])
def test_an_error_in_a_stream_that_will_pass(api):
    """Asked again while nothing was said, then another model; not once something was said."""
    error = {"anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "gemini": {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}}[api]
    said = {"anthropic": [{"type": "message_start", "message": {"usage": {"input_tokens": 3}}}, *ANSWERS[:2]], "gemini": [parts({"text": "It is "})]}[api]
    begin = said[:1] if api == "anthropic" else []
    fails = streams(*events(*begin, error))
    answer = {"anthropic": message(ANSWERS, "end_turn"), "gemini": streams(*events(parts({"text": "It is 42."}, finishReason="STOP")))}[api]
    recorder = Recorder(fails, answer, fails, fails, fails, streams(*events(*said, error)))
    other = Recorder(says("other"))
    models = {"alias": recorder.model(api=f'"{api}"', fallback='["other"]'), "other": other.model()}
    with Gateway([recorder, other], models) as gateway:
        assert gateway.ask().choices[0].message.content == "It is 42."
        assert gateway.ask().choices[0].message.content == "other"
        with pytest.raises(openai.InternalServerError, match="busy"):
            gateway.ask()
        assert (len(recorder.requests), len(other.requests)) == (6, 1)


def test_anthropic_takes_conversations_that_began_elsewhere():
    recorder = Recorder(message(ANSWERS, "end_turn"))
    with serve(recorder, "anthropic") as gateway:
        call = {"id": "call|1.é", "type": "function", "function": {"name": "now", "arguments": "{}"}}
        messages = [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": call["id"], "content": "noon"}]
        now = {"type": "function", "function": {"name": "now"}}
        gateway.ask(messages=messages, temperature=0.5, top_p=0.9, tools=[{"type": "code_interpreter"}, now])
        _, _, sent = asked(recorder, 0)
        assert sent["temperature"] == 0.5 and "top_p" not in sent
        assert (sent["messages"][1]["content"][0]["id"], sent["messages"][2]["content"][0]["tool_use_id"]) == ("call_1__", "call_1__")


def test_gemini_thinks_as_much_as_is_asked():
    recorder = Recorder(streams(*events(parts({"text": "so"}, finishReason="STOP"))))
    models = {"alias": recorder.model(api='"gemini"', upstream_name='"gemini-2.5-pro"'), "new": recorder.model(api='"gemini"', upstream_name='"gemini-3-pro"')}
    with Gateway([recorder], models) as gateway:
        gateway.ask(reasoning_effort="low")
        gateway.ask(model="new", reasoning_effort="high")
        gateway.ask(model="new")
        configs = [asked(recorder, number)[2].get("generationConfig", {}).get("thinkingConfig") for number in range(3)]
        assert configs == [{"includeThoughts": True, "thinkingBudget": 1024}, {"includeThoughts": True, "thinkingLevel": "high"}, None]
        gateway.ask(reasoning_effort="none")
        assert asked(recorder, 3)[2]["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 128}


def test_gemini_tells_in_details():
    """That a key is wrong, and how long to wait."""
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "45.5s"}
    bad, busy = ({"error": {"code": code, "message": "words", "details": [{"@type": "x"}, detail]}} for code, detail in ((400, info), (429, delay)))
    recorder = Recorder(answers(400, bad), answers(429, busy))
    with serve(recorder, "gemini") as gateway:
        with pytest.raises(openai.InternalServerError, match="server's log"):
            gateway.ask()
        with pytest.raises(openai.RateLimitError) as raised:
            gateway.ask()
        # Longer than anybody should be kept waiting: not asked again.
        assert raised.value.response.headers["retry-after"] == "46" and len(recorder.requests) == 2
