"""Messages, by the official Python client, which checks every answer against its types."""

import base64

import anthropic
import pytest

import pages
from conftest import TOOL, Server

USUAL = {"model": "scripted", "max_tokens": 64_000, "tools": [TOOL]}
SALES = b"date,amount\n2026-01-05,10\n2026-01-20,5\n2026-02-01,7\n"
PNG = b"\x89PNG"


def user(content):
    return {"role": "user", "content": content}


def ask(client, content, how="create", **options):
    """The message that comes of a question; streamed, what the events add up to."""
    messages = content if isinstance(content, list) and "role" in content[0] else [user(content)]
    options = {**USUAL, "messages": messages, **options}
    if how == "create":
        return client.messages.create(**options, timeout=60)
    with client.messages.stream(**options) as stream:
        for event in stream:
            pass
        return stream.get_final_message()


def kinds(message):
    return [block.type for block in message.content]


def results(message):
    return [block.content for block in message.content if block.type == "code_execution_tool_result"]


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


both = pytest.mark.parametrize("how", ["create", "stream"])


@both
def test_a_program_runs_and_is_shown(client, how):
    message = ask(client, "What is the factorial of 7?", how)
    assert kinds(message) == ["server_tool_use", "code_execution_tool_result", "text"]
    call, result, _ = message.content
    assert call.name == "code_execution" and call.input == {"code": "import math\nmath.factorial(7)"}
    assert call.caller.type == "direct" and call.id.startswith("srvtoolu_") and result.tool_use_id == call.id
    assert (result.content.stdout, result.content.stderr, result.content.return_code) == ("5040\n", "", 0)
    assert text(message) == "The factorial of 7 is 5040." and message.stop_reason == "end_turn"
    assert message.container.id and message.container.expires_at
    assert (message.usage.input_tokens, message.usage.output_tokens) == (200, 20)
    assert message._request_id.startswith("req_") if how == "create" else True


@pytest.mark.parametrize("version", ["20250522", "20250825", "20260120", "20260521"])
def test_every_version_of_the_tool(client, version):
    tool = {"type": f"code_execution_{version}", "name": "code_execution"}
    assert results(ask(client, "2**20", tools=[tool]))[0].stdout == "1048576\n"
    assert results(client.beta.messages.create(**{**USUAL, "tools": [tool]}, messages=[user("2**20")], timeout=60))[0].stdout


@both
def test_a_command_runs_in_a_shell(client, how):
    message = ask(client, "uses the shell", how)
    assert kinds(message) == ["server_tool_use", "bash_code_execution_tool_result"] * 2 + ["text"]
    call, result, _, second, _ = message.content
    assert call.name == "bash_code_execution" and call.input["command"].startswith('echo "it\'s"')
    assert (result.content.stdout, result.content.stderr, result.content.return_code) == ("it's\n", "err\n", 3)
    (made,) = result.content.content
    assert client.files.download(made.file_id).read() == b"kept\n"
    assert (second.content.stdout, second.content.return_code) == ("kept\n", 0)
    # History that the client repeats is understood, and the files are still there.
    history = [user("uses the shell"), {"role": "assistant", "content": message.content}, user("2**20")]
    again = ask(client, history, how, container=message.container.id)
    assert results(again)[0].stdout == "1048576\n"


@both
def test_files_are_written_changed_and_shown(client, how):
    message = ask(client, "edits a file", how)
    calls = [block for block in message.content if block.type == "server_tool_use"]
    assert [call.name for call in calls] == ["text_editor_code_execution"] * 4 + ["code_execution"]
    assert calls[0].input == {"command": "create", "path": "notes/a.txt", "file_text": 'one\ntwo "2"\nthree\n'}
    made, changed, shown, listed = [block.content for block in message.content if block.type.startswith("text_editor")]
    assert made.is_file_update is False
    assert changed.lines == ['-two "2"', "+zwei", "+drei"]
    assert (changed.old_start, changed.old_lines, changed.new_start, changed.new_lines) == (2, 1, 2, 2)
    assert (shown.content, shown.num_lines, shown.start_line, shown.total_lines) == ("zwei\ndrei", 2, 2, 4)
    assert (shown.file_type, listed.content) == ("text", "a.txt")
    assert results(message)[0].stdout == "one\nzwei\ndrei\nthree\n\n"


def test_edits_that_cannot_be_made_are_errors_of_the_editor(client):
    message = ask(client, "edits in vain")
    missing, _, twice, unknown = [block.content for block in message.content if block.type.startswith("text_editor")]
    assert missing.error_code == "file_not_found" and "nowhere.txt" in missing.error_message
    assert twice.error_code == "invalid_tool_input" and "2 times" in twice.error_message
    assert unknown.error_code == "invalid_tool_input"


def test_a_command_that_takes_too_long_is_an_error(client):
    result = next(block for block in ask(client, "sleeps in the shell").content if block.type.startswith("bash"))
    assert result.content.error_code == "execution_time_exceeded"


def test_the_first_version_has_no_shell(client):
    tool = {"type": "code_execution_20250522", "name": "code_execution"}
    assert kinds(ask(client, "uses the shell", tools=[tool])) == ["text"]


RULES = 'default = "allow"\nundecidable = "refuse"\n[[rule]]\ndo = "refuse"\nuses = ["processes"]\n'


def test_commands_and_edits_pass_the_gate(upstream, tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)
    with Server(upstream, f'[approval]\nmode = "rules"\nrules = "{tmp_path}/rules.toml"\n') as server:
        refused = next(block.content for block in ask(server.client(), "uses the shell").content if block.type.startswith("bash"))
        assert refused.return_code == 1 and "not allowed" in refused.stderr and "`subprocess`" in refused.stderr
        # The rules read the programs of the editor and find nothing in them.
        assert "zwei" in results(ask(server.client(), "edits a file"))[0].stdout
        log = server.run("audit", "--json")
        assert "refused" in log and "kept.txt" in log and "notes/a.txt" in log


def test_a_stream_is_in_the_order_that_clients_know(client):
    with client.messages.create(**USUAL, messages=[user("think two programs")], stream=True) as stream:
        events = list(stream)
    names = [event.type for event in events]
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    assert events[0].message.content == [] and events[0].message.container is None
    assert events[-2].delta.container.id and events[-2].usage.output_tokens
    starts = [event for event in events if event.type == "content_block_start"]
    assert [event.index for event in starts] == list(range(len(starts)))
    open_block = None
    for event in events[1:-2]:
        if event.type == "content_block_start":
            assert open_block is None
            open_block = event.index
        elif event.type == "content_block_stop":
            assert event.index == open_block
            open_block = None
        else:
            assert event.index == open_block
    call = next(event for event in starts if event.content_block.type == "server_tool_use")
    pieces = [event.delta.partial_json for event in events if event.type == "content_block_delta" and event.index == call.index]
    assert call.content_block.input == {} and pieces[0] == "" and len(pieces) > 2
    assert "".join(pieces) == '{"code": "x = 20"}'


@both
def test_figures_are_files_at_once(client, how):
    message = ask(client, "Draw a chart", how)
    (result,) = results(message)
    (output,) = result.content
    assert output.type == "code_execution_output"
    assert client.files.download(output.file_id).read().startswith(PNG)
    known = client.files.retrieve_metadata(output.file_id)
    assert known.mime_type == "image/png" and known.downloadable and known.filename.endswith(".png")
    client.files.delete(output.file_id)
    with pytest.raises(anthropic.NotFoundError):
        client.files.retrieve_metadata(output.file_id)


def test_uploads_reach_programs_and_their_files_come_back(client):
    file = client.files.upload(file=("sales.csv", SALES, "text/csv"))
    upload = {"type": "container_upload", "file_id": file.id}
    question = user([{"type": "text", "text": "Chart sales.csv by month"}, upload])
    message = ask(client, [question])
    (result,) = results(message)
    assert "2026-01    15" in result.stdout
    made = {client.files.retrieve_metadata(output.file_id).filename: output.file_id for output in result.content}
    assert {"monthly.csv", "monthly.png"} <= set(made)
    assert client.files.download(made["monthly.csv"]).read().startswith(b"date,amount\n2026-01,15")
    # The whole history again: the file is there, and nothing is run but the new program.
    history = [question, {"role": "assistant", "content": message.model_dump(mode="json")["content"]}, user("2**20")]
    again = ask(client, history, container=message.container.id)
    assert again.container.id == message.container.id and len(results(again)) == 1
    # A program's file can be put into another container.
    moved = ask(client, [user([{"type": "container_upload", "file_id": made["monthly.csv"]}, {"type": "text", "text": "2**20"}])])
    assert moved.container.id != message.container.id and results(moved)[0].return_code == 0


def test_variables_and_files_stay_with_the_container(client):
    first = ask(client, "set y")
    for container in (first.container.id, {"id": first.container.id}):
        second = ask(client, "get y", container=container)
        assert second.container.id == first.container.id and results(second)[0].stdout == "kept\n"
    assert results(ask(client, "get y"))[0].return_code == 1
    with pytest.raises(anthropic.NotFoundError, match="Container not found"):
        ask(client, "get y", container="cntr_unknown")
    with pytest.raises(anthropic.NotFoundError, match="Container not found"):
        ask(client, "get y", container="container_011CPR5CNjB747bTd36fQLFk")
    with pytest.raises(anthropic.BadRequestError, match="container.skills"):
        ask(client, "get y", container={"skills": [{"type": "anthropic", "skill_id": "pdf", "version": "latest"}]})
    # A container that nothing ran in is not told of, and not kept.
    assert ask(client, "hello").container is None


def test_the_ends_of_programs(client):
    failed = results(ask(client, "fails first"))
    assert failed[0].return_code == 1 and "ZeroDivisionError" in failed[0].stderr and failed[1].stdout == "mended\n"
    (died,) = results(ask(client, "dies"))
    assert died.return_code == 137 and died.stderr
    late = ask(client, "runs long")
    assert results(late)[0].error_code == "execution_time_exceeded"
    assert "Output until the time was up:\n\non" in text(late)
    # Arguments that cannot be used, and a tool that there is none of.
    assert results(ask(client, "bad arguments"))[0].error_code == "invalid_tool_input"
    assert text(ask(client, "unknown tool")) == "There is none."


WEATHER = {"name": "get_weather", "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


@both
def test_tools_of_both_sides_in_one_round(client, how):
    tools = [TOOL, WEATHER]
    first = ask(client, "runs and asks", how, tools=tools)
    assert kinds(first) == ["server_tool_use", "code_execution_tool_result", "tool_use"] and first.stop_reason == "tool_use"
    call = first.content[-1]
    assert call.name == "get_weather" and call.input == {"city": "Paris"}
    history = [user("runs and asks"), {"role": "assistant", "content": first.model_dump(mode="json")["content"]}]
    answer = user([{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}])
    last = ask(client, [*history, answer], how, tools=tools, container=first.container.id)
    assert results(last)[0].stdout == "43\n" and last.stop_reason == "end_turn"
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.1: `tool_use` ids were found without"):
        ask(client, [*history, user("no")], tools=tools)
    with pytest.raises(anthropic.BadRequestError, match="unexpected `tool_use_id`"):
        ask(client, [user([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}])], tools=tools)


@pytest.mark.parametrize("options", [{"thread": False}, {}])
@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner(client, options, stream):
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: The city.
        """
        return f"sunny in {city}"

    runner = client.beta.messages.tool_runner(
        model="scripted", max_tokens=1000, tools=[TOOL, get_weather], messages=[user("runs and asks")], stream=stream, **options
    )
    messages = [one.get_final_message() if stream else one for one in runner]
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    assert results(messages[1])[0].stdout == "43\n"
    assert messages[0].container.id == messages[1].container.id


def test_a_turn_that_takes_too_many_rounds_is_paused_and_goes_on(client):
    first = ask(client, "loops")
    assert first.stop_reason == "pause_turn" and kinds(first)[-1] == "code_execution_tool_result"
    history = [user("loops"), {"role": "assistant", "content": first.model_dump(mode="json")["content"]}]
    assert ask(client, history, container=first.container.id).container.id == first.container.id


@both
def test_without_a_tool_it_is_a_model_like_any_other(client, how):
    message = ask(client, "hello", how, tools=[])
    assert (text(message), message.stop_reason, message.container) == ("You said: hello", "end_turn", None)
    message = ask(client, "hello", how, tools=[], stop_sequences=["said"])
    assert (text(message), message.stop_reason, message.stop_sequence) == ("You ", "stop_sequence", "said")
    thinking = ask(client, "think", how, tools=[], thinking={"type": "enabled", "budget_tokens": 2000})
    assert kinds(thinking) == ["thinking", "text"] and thinking.content[0].thinking == "Let me see. "
    # Apps that did not ask for thoughts read the first block.
    assert kinds(ask(client, "think", how, tools=[])) == ["text"]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}}
    assert "You said" in text(ask(client, [user([image, {"type": "text", "text": "this"}])], how, tools=[]))
    assert text(ask(client, "hello", how, tools=[], system=[{"type": "text", "text": "Be brief."}]))


def test_a_cache_is_warmed_without_an_answer(client):
    message = ask(client, "hello", max_tokens=0)
    assert (message.content, message.stop_reason, message.usage.output_tokens) == ([], "max_tokens", 0)


def test_an_answer_in_json(client):
    schema = {"type": "object", "properties": {"said": {"type": "string"}}}
    message = ask(client, "hello", tools=[], output_config={"format": {"type": "json_schema", "schema": schema}})
    assert '"said": "You said: hello"' in text(message)


@pytest.mark.parametrize("fault", ["upstream hangs up", "upstream says 500", "upstream says 429"])
def test_a_broken_upstream_is_a_proper_error(server, fault):
    client = server.client(max_retries=0)
    for how in ("create", "stream"):
        with pytest.raises((anthropic.InternalServerError, anthropic.RateLimitError)) as caught:
            ask(client, fault, how)
        assert caught.value.request_id.startswith("req_") and caught.value.type in ("api_error", "rate_limit_error")


def test_models_and_tokens(client):
    assert [model.id for model in client.models.list()] [-1:] == ["scripted"]
    assert client.models.retrieve("scripted").lifecycle == "active"
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.models.retrieve("none")
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        ask(client, "hello", model="none")
    count = client.messages.count_tokens(model="scripted", messages=[user("word " * 400)], tools=[TOOL])
    assert 400 < count.input_tokens < 700


def test_files_are_listed_in_pages(server):
    client = server.client()
    ids = [client.files.upload(file=(f"{number}.txt", b"x")).id for number in range(5)]
    assert [file.id for file in client.files.list(limit=2)][:5] == ids[::-1]
    old = [file.id for file in client.beta.files.list(limit=2, betas=["files-api-2025-04-14"])]
    assert old[:5] == ids[::-1]
    assert {file.id for file in client.files.list(ids=ids[:2])} == set(ids[:2])
    assert client.files.upload(file=("a.txt", b"x"), expires_in_seconds=3600).expires_at
    assert client.files.delete(ids[0]).type == "file_deleted"
    with pytest.raises(anthropic.NotFoundError, match="File not found"):
        client.files.download(ids[0])
    with pytest.raises(anthropic.BadRequestError, match="expires_in_seconds"):
        client.files.upload(file=("a.txt", b"x"), expires_in_seconds=1)


def test_the_program_of_the_guide(server):
    program, calls = pages.programs("anthropic.md")
    assert "1048576" in pages.run(program, server.url, "scripted")
    assert "10" in pages.run(calls, server.url, "scripted")
