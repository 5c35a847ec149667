"""Clients that mean no good."""

import json
import time
import urllib.error
import urllib.request

import anthropic
import pytest

from conftest import TOOL

GOOD = {"model": "scripted", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}], "tools": [TOOL]}
WRONG = [None, True, 5, -1, 1.5, 1e300, "", "x", "x" * 100_000, [], [None], ["x"], {}, {"type": "x"}, {"type": None}, [[]], [{}]]


def deep(levels):
    return json.loads("[" * levels + "]" * levels)


def post(server, body, path="/v1/messages", headers=(), timeout=60):
    """The status of an answer, and its body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {"anthropic-version": "2023-06-01", "content-type": "application/json"}
    request = urllib.request.Request(server.url + path, data, {**usual, **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def check(answer):
    """Asserts that an answer is good, or a refusal in this protocol's words."""
    status, body = answer
    assert status == 200 or 400 <= status < 500, (status, body)
    if status != 200:
        body = json.loads(body)
        assert body["type"] == "error" and body["request_id"].startswith("req_")
        error = body["error"]
        assert error["type"].endswith("_error") or error["type"] == "request_too_large"
        assert error["message"] and len(error["message"]) < 300_000 and "details" in error
    return status


FIELDS = [
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "container", "stream", "stop_sequences", "thinking",
    "output_config", "temperature", "top_p", "thread", "mcp_servers", "compaction", "context_management", "fallbacks", "metadata",
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_any_value_of_any_field_is_taken_or_refused(server, field):
    for value in WRONG:
        check(post(server, {**GOOD, field: value}))
    assert check(post(server, {**GOOD, field: deep(200)})) == 400
    assert check(post(server, {**GOOD, field: ["x"] * 60_000})) in (400, 413) or field == "messages"


BLOCKS = {
    "text": {"text": "a"},
    "image": {"source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    "document": {"source": {"type": "text", "media_type": "text/plain", "data": "a"}, "title": "t", "context": "c"},
    "search_result": {"source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]},
    "thinking": {"thinking": "t", "signature": "s"},
    "redacted_thinking": {"data": "d"},
    "tool_use": {"id": "toolu_1", "name": "f", "input": {}, "caller": {"type": "direct"}},
    "tool_result": {"tool_use_id": "toolu_1", "content": "x", "is_error": False},
    "server_tool_use": {"id": "srvtoolu_1", "name": "code_execution", "input": {"code": "print('never')"}},
    "code_execution_tool_result": {
        "tool_use_id": "srvtoolu_1",
        "content": {"type": "code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": []},
    },
    "bash_code_execution_tool_result": {"tool_use_id": "x", "content": {"type": "bash_code_execution_tool_result_error", "error_code": "x"}},
    "text_editor_code_execution_tool_result": {
        "tool_use_id": "x",
        "content": {"type": "text_editor_code_execution_create_result", "is_file_update": True},
    },
    "container_upload": {"file_id": "file-1"},
    "web_search_tool_result": {"tool_use_id": "x", "content": []},
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_any_value_of_any_block_is_taken_or_refused(server, kind):
    for role in ("user", "assistant", "system", "critic"):
        for name, values in [("nothing", [0]), *((name, WRONG) for name in BLOCKS[kind])]:
            for value in values:
                block = {"type": kind, **BLOCKS[kind], name: value}
                messages = [{"role": "user", "content": "hello"}, {"role": role, "content": [block]}, {"role": "user", "content": "hello"}]
                check(post(server, {**GOOD, "messages": messages}))


def test_programs_that_a_client_wrote_are_never_run(server):
    """A call without a result would be one that was approved, of a turn that goes on."""
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {"code": "open('/mnt/data/x', 'w')"}}
    for calls in ([call], [{**call, "type": "tool_use", "name": "python"}]):
        messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": calls}]
        for more in ([], [{"role": "user", "content": "hello"}]):
            status, body = post(server, {**GOOD, "messages": messages + more})
            assert status == 400 or not any(block["type"].endswith("_result") for block in json.loads(body)["content"]), body


def test_paths_and_bodies_that_make_no_sense(server):
    for path in ("/v1/nothing", "/v1/messages/batches", "/v1/skills", "/v1/files/%2e%2e", "/v1/files/file-1/contents", "/v1/v1/messages", "/messages"):
        assert check(post(server, GOOD, path)) in (404, 405), path
    for body in (b"", b"{", b"[]", b"null", b'"x"', b"\xff", b"{}" * 2, b'{"model":"scripted","model":5}'):
        assert check(post(server, body)) == 400
        assert check(post(server, body, "/v1/messages/count_tokens")) == 400
    for query in ("limit=0", "limit=x", "limit=1001", "&".join(["ids[]=file-1"] * 101)):
        request = urllib.request.Request(f"{server.url}/v1/files?{query}", headers={"anthropic-version": "2023-06-01"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(request)
    for query in ("after_id=x", "before_id='", "page=%00", "ids=../x", "after_id=file-1&before_id=file-2"):
        request = urllib.request.Request(f"{server.url}/v1/files?{query}", headers={"anthropic-version": "2023-06-01"})
        assert json.load(urllib.request.urlopen(request))["has_more"] is False


def test_two_of_the_same_request_run_once(server):
    """The client's own retry, of which it says so."""
    first = json.loads(post(server, {**GOOD, "messages": [{"role": "user", "content": "count"}]})[1])
    body = {**GOOD, "container": first["container"]["id"], "messages": [{"role": "user", "content": "rests and counts"}]}
    with pytest.raises(TimeoutError):
        post(server, body, timeout=1)
    again = post(server, body, headers={"x-stainless-retry-count": "1"})
    assert again[0] == 200 and "Run 2 times" in again[1].decode()


def test_what_belongs_to_another_tenant_does_not_exist(keyed):
    server, *keys = keyed
    ada, eve = (server.client(key, max_retries=0) for key in keys)
    with pytest.raises(anthropic.AuthenticationError):
        server.client("sk-wrong", max_retries=0).models.list()
    file = ada.files.upload(file=("secret.txt", b"a secret"))
    ask = {**GOOD, "max_tokens": 1000, "timeout": 60}
    message = ada.messages.create(**{**ask, "messages": [{"role": "user", "content": "Please write a file"}]})
    made = next(block for block in message.content if block.type == "code_execution_tool_result").content.content[0].file_id

    def with_block(block):
        return {**ask, "messages": [{"role": "user", "content": [block, {"type": "text", "text": "2**20"}]}]}

    image = {"type": "image", "source": {"type": "file", "file_id": file.id}}
    document = {"type": "document", "source": {"type": "file", "file_id": file.id}}
    for theft in (
        lambda: eve.files.retrieve_metadata(file.id),
        lambda: eve.files.download(file.id),
        lambda: eve.files.delete(file.id),
        lambda: eve.files.retrieve_metadata(made),
        lambda: eve.files.download(made),
        lambda: eve.files.delete(made),
        lambda: eve.messages.create(**ask, container=message.container.id),
        lambda: eve.messages.create(**with_block({"type": "container_upload", "file_id": file.id})),
        lambda: eve.messages.create(**with_block({"type": "container_upload", "file_id": made})),
        lambda: eve.messages.create(**with_block(image)),
        lambda: eve.messages.create(**with_block(document)),
    ):
        with pytest.raises(anthropic.NotFoundError, match="not found"):
            theft()
    assert not list(eve.files.list()) and not list(eve.files.list(ids=[file.id, made]))
    assert [one.id for one in ada.beta.files.list(scope_id=message.container.id)] == [made]
    assert not list(eve.beta.files.list(scope_id=message.container.id))
    assert ada.files.download(made).read() == b"a note" and ada.files.retrieve_metadata(file.id).size_bytes == 8


def test_many_blocks_cost_little(server):
    calls = [{"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": {}} for number in range(40_000)]
    results = [{"type": "tool_result", "tool_use_id": f"toolu_{number}"} for number in reversed(range(40_000))]
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    began = time.monotonic()
    check(post(server, {**GOOD, "messages": messages, "model": "none"}))
    without = time.monotonic() - began
    check(post(server, {**GOOD, "messages": [*messages, {"role": "critic", "content": "x"}]}))
    assert time.monotonic() - began - without < 3 * without + 5
