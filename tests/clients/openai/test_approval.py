"""Programs that wait for somebody: asked, decided over HTTP, by the command line or a webhook, in time or not, across a restart."""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import openai
import pytest

from conftest import Server, aludel, eventually
from recorder import Recorder, answers
from test_chat import chat, programs
from test_responses import ask, calls, ended


@contextlib.contextmanager
def holding(upstream, models=None, **approval):
    settings = {"mode": '"always"', **approval}
    sections = "[approval]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
    with Server(upstream, models=models, sections=sections) as server:
        yield server


def pending(client):
    """The programs that wait, as soon as there is one."""
    return eventually(lambda: client.get("/approvals", cast_to=object, options={"params": {"status": "pending"}})["data"])


def decide(client, approval, decision="approve", **fields):
    body = {"decision": decision, "sha256": approval["sha256"], **fields}
    return client.post(f"/approvals/{approval['id']}", cast_to=object, body=body)


class Later:
    """A request that is made beside the test."""

    def __init__(self, request):
        self.result = None
        self.thread = threading.Thread(target=self.run, args=(request,))
        self.thread.start()

    def run(self, request):
        try:
            self.result = request()
        except Exception as error:
            self.result = error

    def get(self):
        self.thread.join(60)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_approve_and_refuse(upstream, api):
    with holding(upstream) as server:
        client = server.client()
        request = ask if api == "responses" else chat
        later = Later(lambda: request(client, "2**20"))
        (approval,) = pending(client)
        assert approval["code"] == "2**20" and approval["status"] == "pending"
        assert approval["sha256"] == hashlib.sha256(b"2**20").hexdigest()
        decided = decide(client, approval)
        assert (decided["status"], decided["decided_by"]) == ("approved", "the API as local")
        answer = later.get()
        assert "1048576" in (answer.output_text if api == "responses" else answer.choices[0].message.content)
        # The model hears why it may not, and says something else.
        later = Later(lambda: request(client, "2**20"))
        (approval,) = pending(client)
        decide(client, approval, "refuse", reason="not on a Saturday")
        answer = later.get()
        call = calls(answer)[0] if api == "responses" else programs(answer)[0]
        outputs = call.outputs[0].logs if api == "responses" else call["outputs"][0]["logs"]
        assert "not on a Saturday" in outputs
        with pytest.raises(openai.ConflictError, match="already"):
            decide(client, approval)
        events = [json.loads(line) for line in aludel(server, "audit", "--json").stdout.splitlines()]
        assert [event["event"] for event in events] == ["asked", "approved", "started", "ended", "asked", "refused"]
        assert {event["code"] for event in events} == {"2**20"} and events[-1]["outcome"] == "not on a Saturday"
        assert "6 entries, unchanged" in aludel(server, "audit", "--verify").stdout


@pytest.mark.parametrize("mode", ["always", "rules"])
def test_a_chat_without_tools_shows_which_program_waits(upstream, mode):
    model = {"api": '"chat"', "url": f'"http://127.0.0.1:{upstream}/v1"', "key": '"sk-test"', "code_interpreter": "true"}
    with holding(upstream, {"scripted": model}, mode=f'"{mode}"') as server:
        client = server.client()
        messages = [{"role": "user", "content": "2**20"}]
        texts, waiting = ["", ""], None
        for chunk in client.chat.completions.create(model="scripted", messages=messages, n=2, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
            if waiting is None and all("needs an approval" in text for text in texts):
                waiting = client.get("/approvals", cast_to=object, options={"params": {"status": "pending"}})["data"]
                assert all(text.endswith("2**20\n````\n\n*This program needs an approval.*\n\n") for text in texts), texts
                for approval in waiting:
                    decide(client, approval)
        assert len(waiting or []) == (2 if mode == "always" else 0)
        for text in texts:
            assert "1048576" in text and text.count("needs an approval") == (1 if waiting else 0), text


def test_a_key_does_not_decide_for_the_operator(upstream):
    with holding(upstream) as server:
        key = aludel(server, "keys", "create", "ada").stdout.split()[-1]
        ada = server.client().with_options(api_key=key, max_retries=0)
        later = Later(lambda: ask(ada, "2**20"))
        (approval,) = pending(ada)
        with pytest.raises(openai.PermissionDeniedError, match="Only the operator"):
            decide(ada, approval)
        assert pending(ada) == [approval]
        aludel(server, "approvals", "approve", approval["id"])
        assert later.get().status == "completed"


def test_what_cannot_be_decided(upstream):
    with holding(upstream, decided_by='"key"') as server:
        client = server.client()
        keys = {}
        for name in ("ada", "eve"):
            keys[name] = aludel(server, "keys", "create", name).stdout.split()[-1]
        ada, eve = (client.with_options(api_key=keys[name], max_retries=0) for name in ("ada", "eve"))
        later = Later(lambda: ask(ada, "2**20"))
        (approval,) = pending(ada)
        assert eve.get("/approvals", cast_to=object)["data"] == []
        with pytest.raises(openai.NotFoundError):
            decide(eve, approval)
        for sha256 in ("0" * 64, hashlib.sha256(b"2**21").hexdigest()):
            with pytest.raises(openai.ConflictError, match="not the one"):
                decide(ada, approval, sha256=sha256)
        for body in ({}, {"decision": "maybe", "sha256": approval["sha256"]}, {"decision": "approve"}):
            with pytest.raises(openai.BadRequestError):
                ada.post(f"/approvals/{approval['id']}", cast_to=object, body=body)
        assert pending(ada) == [approval]
        decide(ada, approval)
        assert later.get().status == "completed"


def test_the_command_line_decides(upstream):
    with holding(upstream) as server:
        client = server.client()
        later = Later(lambda: ask(client, "set y"))
        (approval,) = pending(client)
        (line,) = aludel(server, "approvals", "list").stdout.splitlines()
        assert approval["id"] in line and re.search(r"expires in (4m 5\ds|5m 0s)  ", line)
        shown = aludel(server, "approvals", "show", approval["id"]).stdout
        assert "y = 'kept'" in shown and approval["sha256"] in shown and "# expires in " in shown
        wrong = aludel(server, "approvals", "approve", approval["id"], "--sha256", "0" * 64, check=False)
        assert wrong.returncode == 2 and "another program" in wrong.stderr
        assert "approved" in aludel(server, "approvals", "approve", approval["id"]).stdout
        assert later.get().status == "completed"
        again = aludel(server, "approvals", "refuse", approval["id"], check=False)
        assert again.returncode == 2 and "already" in again.stderr
        later = Later(lambda: ask(client, "set y"))
        (approval,) = pending(client)
        aludel(server, "approvals", "refuse", approval["id"], "--reason", "no y today")
        assert "no y today" in calls(later.get())[0].outputs[0].logs


@pytest.mark.parametrize("on_timeout, words", [("refuse", "nobody decided in time"), ("allow", "1048576")])
def test_nobody_decides_in_time(upstream, on_timeout, words):
    with holding(upstream, timeout='"2s"', on_timeout=f'"{on_timeout}"') as server:
        response = ask(server.client(), "2**20")
        assert words in calls(response)[0].outputs[0].logs
        assert aludel(server, "approvals", "list").stdout == ""


def test_a_webhook_is_told_and_may_decide(upstream):
    secret = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
    verdicts = [answers(503, {}), answers(200, {}), answers(200, {"decision": "refuse", "reason": "by the hook"})]
    hook = Recorder(*verdicts)
    try:
        settings = {"webhook": f'"{hook.url}/hook"', "webhook_secret": f'"whsec_{secret}"'}
        with holding(upstream, **settings) as server:
            client = server.client()
            later = Later(lambda: ask(client, "2**20"))
            (approval,) = pending(client)
            eventually(lambda: len(hook.requests) == 2)
            _, headers, body = hook.requests[1]
            headers = {name.lower(): value for name, value in headers.items()}
            signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
            digest = hmac.new(base64.b64decode(secret), signed, hashlib.sha256).digest()
            assert headers["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
            told = json.loads(body)
            assert told["type"] == "approval.requested" and told["data"]["code"] == "2**20"
            decide(client, approval)
            assert later.get().status == "completed"
            assert "by the hook" in calls(ask(client, "2**20"))[0].outputs[0].logs
    finally:
        hook.stop()


def test_the_webhook_of_the_guide_decides(upstream):
    page = (Path(__file__).parents[3] / "docs/guide/approval.md").read_text()
    (script,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "webhook-signature" in block]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    secret = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
    told = {**os.environ, "HOOK_SECRET": f"whsec_{secret}", "HOOK_PORT": str(port)}
    with subprocess.Popen([sys.executable, "-c", script], env=told) as hook:
        try:
            settings = {"webhook": f'"http://127.0.0.1:{port}/"', "webhook_secret": f'"whsec_{secret}"'}
            with holding(upstream, **settings) as server:
                assert "1048576" in ask(server.client(), "2**20").output_text
                assert "no files today" in calls(ask(server.client(), "write a file"))[0].outputs[0].logs
            # Somebody else's signature.
            settings["webhook_secret"] = '"whsec_' + base64.b64encode(b"fedcba9876543210fedcba9876543210").decode() + '"'
            with holding(upstream, timeout='"5s"', **settings) as server:
                assert "nobody decided in time" in calls(ask(server.client(), "2**20"))[0].outputs[0].logs
        finally:
            hook.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_in_between(upstream, how):
    with holding(upstream) as server:
        response = ask(server.client(), "two programs", background=True)
        (first,) = pending(server.client())
        decide(server.client(), first)
        (second,) = pending(server.client())
        assert second["code"] == "print(x + 1)"
        server.restart(how)
        client = server.client()
        assert client.responses.retrieve(response.id).status == "in_progress"
        assert [approval["id"] for approval in pending(client)] == [second["id"]]
        decide(client, second)
        done = ended(client, response)
        assert done.status == "completed"
        programs = calls(done)
        # Files outlive a restart and variables do not, which the program hears; it runs once, and the first one not again.
        assert [call.code for call in programs] == ["x = 20", "print(x + 1)"]
        assert "NameError" in programs[1].outputs[0].logs
        # Usage before the restart counts: three rounds of the model's.
        assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (300, 30, 330)
        events = [json.loads(line)["event"] for line in aludel(server, "audit", "--json").stdout.splitlines()]
        assert events.count("started") == 2
        # The whole stream is there, without a gap.
        stream = client.responses.retrieve(response.id, stream=True)
        sequence = [event.sequence_number for event in stream]
        assert sequence == list(range(len(sequence)))
        # The next one goes on.
        assert client.responses.create(model="gpt-5", input="hello", previous_response_id=response.id).output_text


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_ends_does_not_wait_for_a_decision(upstream, stream):
    """Whoever waits for the answer is told where it will be: the approval outlives the server, and the response goes on by itself."""
    with holding(upstream) as server:
        client = server.client(max_retries=0)
        later = Later(lambda: list(ask(client, "2**20", stream=True)) if stream else ask(client, "2**20"))
        (approval,) = pending(client)
        began = time.monotonic()
        assert server.stop() == 0
        # Requests have ten seconds to end.
        assert time.monotonic() - began < 9
        if stream:
            assert later.get()[0].response.id == approval["request_id"]
        else:
            with pytest.raises(openai.InternalServerError, match=approval["request_id"]) as told:
                later.get()
            # A second request would be a second program to decide about.
            assert told.value.response.headers["x-should-retry"] == "false"
        server.start()
        client = server.client()
        assert [waiting["id"] for waiting in pending(client)] == [approval["id"]]
        decide(client, approval)
        done = ended(client, client.responses.retrieve(approval["request_id"]))
        assert done.status == "completed" and "1048576" in done.output_text


def test_programs_before_a_restart_count(upstream):
    with holding(upstream) as server:
        response = ask(server.client(), "two programs", background=True, max_tool_calls=1)
        (first,) = pending(server.client())
        server.restart(signal.SIGKILL)
        decide(server.client(), first)
        done = ended(server.client(), response)
        assert done.status == "completed" and done.usage.total_tokens == 220
        # The model was told to answer with what it had.
        assert [call.code for call in calls(done)] == ["x = 20"]


def test_it_is_too_late_also_while_the_server_is_away(upstream):
    with holding(upstream, timeout='"3s"') as server:
        response = ask(server.client(), "2**20", background=True)
        (approval,) = pending(server.client())
        server.stop(signal.SIGKILL)
        time.sleep(3)
        assert "too late" in aludel(server, "approvals", "list").stdout
        late = aludel(server, "approvals", "approve", approval["id"], check=False)
        assert late.returncode == 2 and "expired already" in late.stderr
        server.start()
        done = ended(server.client(), response)
        assert "nobody decided in time" in calls(done)[0].outputs[0].logs


def test_a_restart_in_between_and_a_refusal(upstream):
    with holding(upstream) as server:
        response = ask(server.client(), "2**20", background=True)
        (approval,) = pending(server.client())
        server.stop(signal.SIGKILL)
        aludel(server, "approvals", "refuse", approval["id"], "--reason", "while it was away")
        server.start()
        client = server.client()
        done = ended(client, response)
        assert done.status == "completed" and "while it was away" in calls(done)[0].outputs[0].logs


def test_whoever_goes_away_leaves_nothing_to_decide(upstream):
    with holding(upstream) as server:
        client = server.client()
        stream = chat(client, "2**20", stream=True)
        next(iter(stream))
        (approval,) = pending(client)
        stream.close()
        eventually(lambda: client.get(f"/approvals/{approval['id']}", cast_to=object)["status"] == "expired")
        with pytest.raises(openai.ConflictError, match="expired already"):
            decide(client, approval)
        # Neither after a kill, if nothing could go on.
        later = Later(lambda: chat(client.with_options(max_retries=0), "2**20"))
        (approval,) = pending(client)
        server.restart(signal.SIGKILL)
        with pytest.raises(openai.APIConnectionError):
            later.get()
        client = server.client()
        assert client.get(f"/approvals/{approval['id']}", cast_to=object)["status"] == "expired"


def test_a_program_that_was_started_is_never_started_again(upstream):
    with holding(upstream) as server:
        response = ask(server.client(), "runs long", background=True)
        (approval,) = pending(server.client())
        decide(server.client(), approval)
        eventually(lambda: "started" in aludel(server, "audit").stdout)
        server.restart(signal.SIGKILL)
        assert server.client().responses.retrieve(response.id).status == "failed"
        time.sleep(1)
        audit = aludel(server, "audit").stdout
        assert audit.count("started") == 1 and "its outcome is not known" in audit
        assert aludel(server, "audit", "--verify").returncode == 0


RULES = """
default = "allow"
undecidable = "ask"
[[rule]]
do = "refuse"
uses = ["processes"]
[[rule]]
do = "ask"
uses = ["network"]
"""


def test_rules_decide(upstream):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as rules:
        rules.write(RULES)
        rules.flush()
        with holding(upstream, mode='"rules"', rules=f'"{rules.name}"') as server:
            client = server.client()
            # Allowed programs run at once; refusals are told to the model, which goes on.
            assert ask(client, "2**20").status == "completed"
            response = ask(client, "runs a command")
            assert "uses `os.system` (rule 1)" in calls(response)[0].outputs[0].logs and "mended" in response.output_text
            # Names are followed from program to program.
            assert "rule 1" in calls(ask(client, "hides it"))[1].outputs[0].logs
            later = Later(lambda: ask(client, "asks the network"))
            (approval,) = pending(client)
            assert approval["reasons"] == ["line 1 imports `socket` (rule 2)"]
            decide(client, approval)
            assert later.get().status == "completed"
            audit = aludel(server, "audit").stdout
            assert "refused by the rules" in audit
        rules.write("[[rule]]\n")
        rules.flush()
        with pytest.raises(RuntimeError):
            with holding(upstream, mode='"rules"', rules=f'"{rules.name}"'):
                pass


def test_a_reload_reads_the_rules_again(upstream, tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "allow"\n[[rule]]\ndo = "ask"\nimport = ["antigravity"]\n')
    with holding(upstream, mode='"rules"', rules=f'"{rules}"') as server:
        client = server.client()

        def reload(text, told):
            rules.write_text(text)
            before = len(server.said)
            server.process.send_signal(signal.SIGHUP)
            eventually(lambda: any(told in line for line in server.said[before:]))

        assert "(rule 1)" not in calls(ask(client, "runs a command"))[0].outputs[0].logs
        reload(RULES, "approval reloaded")
        assert "(rule 1)" in calls(ask(client, "runs a command"))[0].outputs[0].logs
        # Nonsense changes nothing, and is told.
        reload(RULES + "[[rule]]\n", "nothing was reloaded")
        assert "(rule 1)" in calls(ask(client, "runs a command"))[0].outputs[0].logs


def test_a_reload_does_not_switch_approval_off(upstream):
    with holding(upstream) as server:
        client = server.client()
        file = Path(server.directory.name) / "aludel.toml"
        whole = file.read_text()
        # An editor leaves this for a moment: nothing, or the end of the file.
        for half in ("", whole[whole.index("[[model]]") :]):
            file.write_text(half)
            before = len(server.said)
            server.process.send_signal(signal.SIGHUP)
            eventually(lambda: len(server.said) > before)
            assert "gpt-5" in {model.id for model in client.models.list()}
            later = Later(lambda: ask(client, "2**20"))
            (approval,) = pending(client)
            decide(client, approval)
            assert later.get().status == "completed"
