"""The server between a client and a model's server: requests that are handed on, servers that fail, models that step in."""

import gzip
import http.client
import json
import os
import signal
import socket
import threading
import time

import openai
import pytest

from conftest import Server, containers, eventually
from recorder import Recorder, answers, call, chunk, hangs, hangs_up, runs, says, streams

AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}
ODD = b'{ "messages": [{"role":"user","content":"caf\\u00e9 \xe2\x98\x95"}],\n "x_unknown" : {"b":1,"a":[1.50,1e3]}, "model":"alias" ,"tools":[]}'
COMPLETION = b'{"id":"chatcmpl-1",  "object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi","x":1},"finish_reason":"stop"}]}'


class Gateway:
    """A server in front of recorders."""

    def __init__(self, recorders, models=None):
        self.recorders = recorders
        models = models or {"alias": recorders[0].model(upstream_name='"real"')}
        # Without sandboxes made ahead, so that those left behind can be counted.
        self.server = Server(None, models=models, pool=0)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        try:
            self.server.__exit__(*failure)
        finally:
            [recorder.stop() for recorder in self.recorders]

    def post(self, body, headers=()):
        """Raw bytes in, raw bytes out."""
        host, port = self.server.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", **dict(headers)})
        response = connection.getresponse()
        return response, response.read()

    def client(self):
        return self.server.client(max_retries=0)

    def models(self):
        """Those of the configuration: `demo` is always there."""
        return {model.id for model in self.client().models.list()} - {"demo"}

    def ask(self, **options):
        options = {"model": "alias", "messages": [{"role": "user", "content": "go"}], "tools": [AUTO], **options}
        return self.client().chat.completions.create(**options)


def test_a_request_without_our_tool_is_handed_on_byte_for_byte():
    headers = [("x-ratelimit-remaining-tokens", "7"), ("set-cookie", "a=b"), ("server", "secret/1"), ("openai-version", "v")]
    recorder = Recorder(answers(200, COMPLETION, headers))
    with Gateway([recorder]) as gateway:
        sent = [("authorization", "Bearer ours"), ("cookie", "c=d"), ("x-stainless-os", "x"), ("openai-beta", "b"), ("accept-encoding", "identity"), ("x-client-request-id", "r-1")]
        response, body = gateway.post(ODD, sent)
        assert (response.status, body) == (200, COMPLETION)
        path, headers, body = recorder.requests[0]
        assert path == "/v1/chat/completions"
        # But for the model's name, which the server knows by another one.
        assert body == ODD.replace(b'"alias"', b'"real"')
        headers = {name.lower(): value for name, value in headers.items()}
        assert headers["authorization"] == "Bearer sk-upstream" and headers["openai-beta"] == "b"
        assert headers["x-client-request-id"] == "r-1"
        assert not {"cookie", "x-stainless-os"} & set(headers)
        seen = {name.lower() for name, _ in response.getheaders()}
        assert {"x-ratelimit-remaining-tokens", "openai-version", "x-request-id", "content-length"} <= seen
        assert not {"set-cookie", "server"} & seen
        assert response.getheader("content-type") == "application/json"


def test_streams_and_packed_bodies_are_handed_on_as_they_are():
    frames = [b": odd\n\n", b"data: {\"x\" : 1}\r\n\r\n", b"event: made-up\ndata: 2\n\n", b"data: [DONE]\n\n"]
    packed = gzip.compress(COMPLETION)
    recorder = Recorder(streams(*frames), answers(200, packed, [("content-encoding", "gzip")]))
    with Gateway([recorder]) as gateway:
        response, body = gateway.post(ODD)
        assert body == b"".join(frames) and response.getheader("content-type") == "text/event-stream"
        response, body = gateway.post(ODD, [("accept-encoding", "gzip")])
        assert body == packed and response.getheader("content-encoding") == "gzip"


def test_a_stream_is_handed_on_while_it_comes():
    seen = threading.Event()
    with Gateway([Recorder(streams(chunk({"content": "a"}), chunk({"content": "b"}), last=seen))]) as gateway:
        stream = gateway.ask(tools=openai.NOT_GIVEN, stream=True)
        assert next(stream).choices[0].delta.content == "a"
        # Only now does the server have the rest.
        seen.set()
        assert text_of(stream) == "b"


@pytest.mark.parametrize("status, body", [(418, b'{"odd": "error"}'), (404, b"no json"), (500, b'{"error": {"message": "x"}}')])
def test_errors_of_the_server_are_handed_on(status, body):
    with Gateway([Recorder(answers(status, body))]) as gateway:
        response, got = gateway.post(ODD)
        assert (response.status, got) == (status, body)


def test_requests_that_name_no_model_are_refused():
    recorder = Recorder(answers(200, COMPLETION))
    with Gateway([recorder]) as gateway:
        for body, status, words in [
            (b"{}", 400, "model"),
            (b'{"model": 1}', 400, "model"),
            (b'{"model": "none"}', 404, "alias"),
            (b'{"model": "alias", "model": "alias"}', 400, "duplicate"),
            (b'{"model": "alias"', 400, "JSON"),
            (b"", 400, "JSON"),
        ]:
            response, got = gateway.post(body)
            assert response.status == status and words in json.loads(got)["error"]["message"], got
        assert recorder.requests == []


def test_models_step_in_for_each_other():
    busy, broken, good = Recorder(answers(429, {})), Recorder(hangs_up), Recorder(answers(200, COMPLETION), says("good"))
    # Nobody listens there, and nobody else gets the port.
    gone = socket.socket()
    gone.bind(("127.0.0.1", 0))
    models = {
        "alias": busy.model(fallback='["second", "third", "fourth"]'),
        "second": broken.model(),
        "third": {"url": f'"http://127.0.0.1:{gone.getsockname()[1]}/v1"'},
        "fourth": good.model(upstream_name='"real"'),
    }
    with gone, Gateway([busy, broken, good], models) as gateway:
        assert gateway.post(ODD)[1] == COMPLETION
        assert json.loads(good.requests[0][2])["model"] == "real"
        # The same in a turn of ours.
        assert gateway.ask().choices[0].message.content == "good"
        assert len(good.requests) == 2


def test_a_reload_offers_other_models_and_drops_no_request():
    recorder = Recorder(answers(200, COMPLETION))
    with Gateway([recorder]) as gateway:
        server = gateway.server
        assert gateway.models() == {"alias"}
        server.configure({"new": recorder.model()})
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: gateway.models() == {"new"})
        # A configuration that makes no sense changes nothing.
        server.configure({"bad": {"url": '"nonsense"'}})
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: any("nothing was reloaded" in line for line in server.said))
        assert gateway.models() == {"new"}


def text_of(stream):
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


@pytest.mark.parametrize("tools", [openai.NOT_GIVEN, [AUTO]])
def test_a_reload_in_the_middle_of_an_answer(tools):
    """A request under way goes on with the model that it began with, whether it is handed on or answered with our tool."""
    reloaded = threading.Event()
    before = [runs("print(40 + 2)")] if tools else []
    recorder = Recorder(*before, streams(chunk({"content": "It is "}), chunk({"content": "42"}, "stop"), last=reloaded))
    other = Recorder(says("other"))
    with Gateway([recorder, other]) as gateway:
        stream = iter(gateway.ask(stream=True, tools=tools))
        seen = []
        while "It is " not in seen:
            seen += [choice.delta.content for choice in next(stream).choices]
        gateway.server.configure({"alias": other.model(), "new": other.model()})
        gateway.server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "new" in gateway.models())
        assert gateway.ask().choices[0].message.content == "other"
        reloaded.set()
        seen += [choice.delta.content for chunk in stream for choice in chunk.choices]
        assert "".join(filter(None, seen)) == "It is 42"


def test_headers_of_a_model_go_with_every_request():
    recorder = Recorder(answers(200, COMPLETION), says("done"), answers(400, {"error": {"message": "no: sk-of-the-team"}}))
    models = {"alias": recorder.model(headers='{ X-Team = "sk-of-the-team", X-Org = "env:HOME" }')}
    with Gateway([recorder], models) as gateway:
        gateway.post(ODD)
        gateway.ask()
        with pytest.raises(openai.BadRequestError) as raised:
            gateway.ask()
        assert "no: ***" in raised.value.message
        for _, headers, _ in recorder.requests:
            headers = {name.lower(): value for name, value in headers.items()}
            assert (headers["x-team"], headers["x-org"]) == ("sk-of-the-team", os.environ["HOME"])


def test_the_most_tokens_of_a_model():
    recorder = Recorder(says("done"))
    with Gateway([recorder], {"alias": recorder.model(max_output_tokens=100)}) as gateway:
        gateway.ask()
        gateway.ask(max_tokens=50)
        gateway.ask(max_tokens=5000)
        gateway.client().responses.create(model="alias", input="go", max_output_tokens=101)
        assert [json.loads(body)["max_tokens"] for _, _, body in recorder.requests] == [100, 50, 100, 100]


@pytest.mark.parametrize("tools", [openai.NOT_GIVEN, [AUTO]])
def test_a_model_takes_so_many_requests_at_once(tools):
    go_on = threading.Event()
    answer = streams(chunk({"content": "first"}), chunk({}, "stop"), last=go_on)
    recorder = Recorder(answer, says("again"))
    with Gateway([recorder], {"alias": recorder.model(requests=1)}) as gateway:
        stream = iter(gateway.ask(stream=True, tools=tools))
        seen = [choice.delta.content for choice in next(stream).choices]
        with pytest.raises(openai.RateLimitError) as raised:
            gateway.ask(tools=tools)
        assert raised.value.response.headers["retry-after"] == "1" and len(recorder.requests) == 1
        go_on.set()
        seen += [choice.delta.content for chunk in stream for choice in chunk.choices]
        assert "".join(filter(None, seen)) == "first"
        # The place is free again.
        assert text_of(gateway.ask(tools=tools, stream=True)) == "again"


@pytest.mark.parametrize("tools", [openai.NOT_GIVEN, [AUTO]])
def test_another_model_steps_in_for_one_that_is_busy(tools):
    go_on = threading.Event()
    recorder = Recorder(streams(chunk({"content": "first"}), chunk({}, "stop"), last=go_on))
    other = Recorder(says("other"))
    models = {"alias": recorder.model(requests=1, fallback='["other"]'), "other": other.model()}
    with Gateway([recorder, other], models) as gateway:
        stream = iter(gateway.ask(stream=True, tools=tools))
        next(stream)
        assert text_of(gateway.ask(tools=tools, stream=True)) == "other"
        go_on.set()
        for _ in stream:
            pass


COUNT = "import os\nn = len(os.listdir('/mnt/data'))\nopen(f'/mnt/data/{n}', 'w').close()\nprint('ran', n)"
GARBAGE = streams(b"data: {{{\n\n")


@pytest.fixture(scope="module")
def failing():
    """One server for all failures: starting another for each would take most of the time."""
    with Gateway([Recorder()]) as gateway:
        yield gateway


FAULTS = [hangs_up, answers(500, {}), answers(400, {}), answers(429, {}), GARBAGE, streams(chunk({"content": "a"}), end=False)]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", ["first call", "after a program"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_fails_in_any_phase(failing, fault, phase, stream):
    """The client hears an error, code runs once, and no sandbox is left but that of a container of which it was told."""
    (recorder,), client = failing.recorders, failing.client()
    before = [] if phase == "first call" else [runs(COUNT)]
    recorder.begin(*before, fault)
    with pytest.raises(openai.APIError) as raised:
        for _ in failing.ask(stream=True) if stream else [failing.ask()]:
            pass
    assert raised.value.message
    if phase == "after a program" and not stream:
        # Nobody is to try again what has run.
        assert raised.value.response.headers["x-should-retry"] == "false"
    calls = [body for _, _, body in recorder.requests if b'"role":"tool"' in body]
    assert len(calls) >= len(before) and all(body.count(b"ran 0") == 1 and b"ran 1" not in body for body in calls)
    if phase == "after a program" and stream:
        (kept,) = containers(client)
        client.containers.delete(kept)
    eventually(lambda: not containers(client) and not failing.server.sandboxes())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", ["first call", "after a program"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_whose_server_fails_in_any_phase(failing, fault, phase, stream):
    (recorder,), client = failing.recorders, failing.client()
    before = [] if phase == "first call" else [runs(COUNT)]
    recorder.begin(*before, fault)
    options = {"model": "alias", "input": "go", "tools": [AUTO]}
    if stream:
        try:
            last = list(client.responses.create(stream=True, **options))[-1]
            assert last.type == "response.failed" and last.response.error.message
        except openai.APIStatusError as error:
            assert error.message and phase == "first call"
    else:
        try:
            # Work before the failure is not lost, and nobody is to try again.
            response = client.responses.create(**options)
            assert response.status == "failed" and response.error.message
            assert response.output[0].type in ("code_interpreter_call", "message")
        except openai.APIStatusError as error:
            assert error.message and phase == "first call"
    bodies = [body for _, _, body in recorder.requests]
    assert all(body.count(b"ran 0") <= 1 and b"ran 1" not in body for body in bodies)
    # The container is kept for the next request, its sandbox where a program ran.
    assert failing.server.sandboxes() == len(before)
    (kept,) = containers(client)
    client.containers.delete(kept)
    eventually(lambda: not failing.server.sandboxes())


def test_a_server_that_hangs_is_given_up():
    recorder = Recorder(runs(COUNT), hangs)
    with Gateway([recorder], {"alias": recorder.model(idle_timeout='"1s"')}) as gateway:
        with pytest.raises(openai.InternalServerError, match="sent nothing"):
            gateway.ask()
        assert gateway.client().containers.list().data == []


def test_a_busy_server_is_asked_again_when_it_says():
    recorder = Recorder(answers(429, {}, [("retry-after", "1")]), runs(COUNT), answers(503, {}), says("done"))
    with Gateway([recorder]) as gateway:
        began = time.monotonic()
        completion = gateway.ask()
        assert completion.choices[0].message.content == "done" and time.monotonic() - began >= 1
        # The request was repeated, the program was not.
        assert len(recorder.requests) == 4 and recorder.requests[-1][2].count(b"ran 0") == 1
