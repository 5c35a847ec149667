"""First calls of most users of the SDKs, and things that they must not do."""

import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from io import BytesIO
from pathlib import Path

import pytest
from code_interpreter import CodeInterpreter
from opensandbox import Sandbox, SandboxManagerSync, SandboxSync
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.execd_sync import ExecutionHandlersSync
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule, SandboxFilter

from conftest import IMAGE, Server


def test_programs_share_a_kernel_and_tell_values_and_errors(codes):
    execution = codes.run("x = 40; print('é\u2028'); x + 2", language="python")
    assert (execution.result[0].text, execution.logs.stdout[0].text) == ("42", "é\u2028\n")
    assert (execution.execution_count, execution.error) == (1, None)
    assert execution.complete is not None and execution.id
    assert codes.run("x").result[0].text == "40"
    failed = codes.run("import sys; print('out'); print('err', file=sys.stderr); 1 / 0")
    assert (failed.error.name, failed.error.value, failed.complete) == ("ZeroDivisionError", "division by zero", None)
    assert (failed.logs.stdout[0].text, failed.logs.stderr[0].text) == ("out\n", "err\n")
    with pytest.raises(SandboxApiException, match="java"):
        codes.run("1", language="java")


def test_contexts_are_apart(codes):
    context = codes.create_context("python")
    codes.run("x = 1", context=context)
    assert codes.run("x").error.name == "NameError"
    assert codes.get_context(context.id).language == "python"
    assert context.id in [known.id for known in codes.list_contexts("python")]
    codes.delete_context(context.id)
    with pytest.raises(SandboxApiException) as refused:
        codes.get_context(context.id)
    assert refused.value.status_code == 404
    codes.run("y = 1")
    codes.delete_contexts("python")
    assert codes.run("y").error.name == "NameError"


def interrupted(run, interrupt):
    """Returns the result of something that was interrupted once it had begun."""
    begun = threading.Event()
    ids, ended = [], []
    handlers = ExecutionHandlersSync(on_init=lambda init: (ids.append(init.id), begun.set()))
    thread = threading.Thread(target=lambda: ended.append(run(handlers)))
    thread.start()
    assert begun.wait(10)
    time.sleep(0.1)
    interrupt(ids[0])
    thread.join(10)
    return ended[0]


def test_programs_and_commands_are_interrupted(sandbox, codes):
    run = lambda handlers: codes.run("import time; time.sleep(60)", handlers=handlers)  # noqa: E731
    assert interrupted(run, codes.interrupt).error.name == "KeyboardInterrupt"
    run = lambda handlers: sandbox.commands.run("sleep 60", handlers=handlers)  # noqa: E731
    execution = interrupted(run, sandbox.commands.interrupt)
    assert (execution.error.name, execution.exit_code) == ("CommandExecError", -1)
    assert codes.run("1 + 1").result[0].text == "2"


def test_commands_tell_lines_and_an_exit_status(make):
    sandbox = make(env={"A": "sandbox"})
    run = sandbox.commands.run
    execution = run("echo $A $B; printf 'x\\ny'; pwd >&2; exit 3", opts=RunCommandOpts(envs={"B": "b"}))
    assert [line.text for line in execution.logs.stdout] == ["sandbox b", "x", "y"]
    assert [line.text for line in execution.logs.stderr] == ["/home/user"]
    assert (execution.error.name, execution.error.value, execution.exit_code) == ("CommandExecError", "3", 3)
    assert run(["printf", "%s", "a b; c"]).logs.stdout[0].text == "a b; c"
    assert run("pwd", opts=RunCommandOpts(working_directory="/tmp")).logs.stdout[0].text == "/tmp"
    late = run("sleep 60", opts=RunCommandOpts(timeout=timedelta(milliseconds=100)))
    assert late.exit_code == -1
    with pytest.raises(SandboxApiException, match="uid"):
        run("id", opts=RunCommandOpts(uid=0))


def test_commands_in_the_background_have_a_log(sandbox):
    opts = RunCommandOpts(background=True)
    other = sandbox.commands.run("sleep 60", opts=opts)

    def logs(command, text):
        seen, cursor = "", None
        while text not in seen:
            part = sandbox.commands.get_background_command_logs(command, cursor=cursor)
            seen, cursor = seen + part.content, part.cursor
        return seen, cursor

    execution = sandbox.commands.run("echo one; until [ -e /tmp/end ]; do sleep 0.01; done; echo two; exit 4", opts=opts)
    seen, cursor = logs(execution.id, "one\n")
    status = sandbox.commands.get_command_status(execution.id)
    assert (status.running, status.exit_code, status.finished_at) == (True, None, None)
    sandbox.commands.run("touch /tmp/end")
    assert logs(execution.id, "two\n")[0] == "one\ntwo\n"
    assert sandbox.commands.get_background_command_logs(execution.id, cursor=cursor).content == "two\n"
    while (status := sandbox.commands.get_command_status(execution.id)).running:
        pass
    assert (status.exit_code, status.content.startswith("echo one")) == (4, True)
    assert sandbox.commands.get_command_status(other.id).running
    sandbox.commands.interrupt(other.id)
    assert not sandbox.commands.get_command_status(other.id).running
    with pytest.raises(SandboxApiException):
        sandbox.commands.get_command_status("cmd_0")


def test_a_client_that_goes_away_takes_its_command_along(sandbox):
    endpoint = sandbox.get_endpoint(44772)
    body = b'{"command": "echo $$; sleep 300"}'
    headers = {**endpoint.headers, "Content-Type": "application/json"}
    answer = urllib.request.urlopen(urllib.request.Request(f"http://{endpoint.endpoint}/command", body, headers))
    lines = b""
    while b"stdout" not in lines:
        lines += answer.readline()
    answer.close()
    for _ in range(100):
        if sandbox.commands.run("grep -qx sleep /proc/[0-9]*/comm 2>/dev/null").exit_code:
            return
        time.sleep(0.05)
    raise AssertionError("the command still runs")


def test_shells_remember(sandbox):
    shell = sandbox.commands.create_session(working_directory="/tmp")
    run = lambda line, **options: sandbox.commands.run_in_session(shell, line, **options)  # noqa: E731
    text = lambda execution: [line.text for line in execution.logs.stdout]  # noqa: E731
    assert text(run("pwd; export A=\"it's\"; f() { echo $A; }")) == ["/tmp"]
    assert text(run("f; cd /var")) == ["it's"]
    assert text(run("pwd; pwd", working_directory="/usr")) == ["/usr", "/usr"]
    assert run("exit 7").exit_code == 7
    assert text(run("f; pwd")) == ["it's", "/usr"]
    run("mkdir /tmp/gone; cd /tmp/gone; rmdir /tmp/gone")
    lost = run("f; pwd")
    assert (text(lost), lost.exit_code) == (["it's", "/home/user"], 0)
    assert "cd: /tmp/gone" in lost.logs.stderr[0].text
    assert text(run("pwd")) == ["/home/user"]
    sandbox.commands.delete_session(shell)
    for unknown in (shell, "sh_" + "z" * 24, "x"):
        with pytest.raises(SandboxApiException):
            sandbox.commands.run_in_session(unknown, "pwd")


def test_files(sandbox):
    files = sandbox.files
    text = "one\ntwö\nthree"
    files.write_files([
        WriteEntry(path="/tmp/d/a.txt", data=text, mode=640),
        WriteEntry(path="/tmp/d/e/b.bin", data=BytesIO(b"\0" * 3_000_000)),
    ])
    assert files.read_file("/tmp/d/a.txt") == text
    assert files.read_bytes("/tmp/d/a.txt", range_header="bytes=0-2") == b"one"
    assert files.read_file("/tmp/d/a.txt", offset=2, limit=1) == "twö"
    assert sum(len(chunk) for chunk in files.read_bytes_stream("/tmp/d/e/b.bin")) == 3_000_000
    info = files.get_file_info(["/tmp/d/a.txt", "/tmp/d"])
    found = info["/tmp/d/a.txt"]
    assert (found.mode, found.size, found.owner, info["/tmp/d"].path) == (640, len(text.encode()), "user", "/tmp/d")
    assert abs(found.modified_at - datetime.now(timezone.utc)) < timedelta(minutes=1)
    assert [entry.path for entry in files.search(SearchEntry(path="/tmp/d", pattern="**/*.{bin,x}"))] == ["/tmp/d/e/b.bin"]
    with pytest.raises(SandboxApiException, match="signed addresses that expire are not supported"):
        sandbox.get_signed_endpoint(8000, 1)
    listed = files.list_directory(DirectoryListEntry(path="/tmp/d"))
    assert [entry.path for entry in listed] == ["/tmp/d/a.txt", "/tmp/d/e"]
    assert len(files.list_directory(DirectoryListEntry(path="/tmp/d", depth=2))) == 3
    replaced = files.replace_contents_detailed([
        ContentReplaceEntry(path="/tmp/d/a.txt", old_content="o", new_content="oo"),
        ContentReplaceEntry(path="/tmp/d/e/b.bin", old_content="x", new_content=""),
    ])
    assert {entry.path: entry.replaced_count for entry in replaced} == {"/tmp/d/a.txt": 1, "/tmp/d/e/b.bin": 0}
    files.replace_contents([ContentReplaceEntry(path="/tmp/d/a.txt", old_content="oone", new_content="1")])
    assert files.read_file("/tmp/d/a.txt", limit=1) == "1"
    files.set_permissions([SetPermissionEntry(path="/tmp/d/a.txt", mode=600)])
    assert files.get_file_info(["/tmp/d/a.txt"])["/tmp/d/a.txt"].mode == 600
    files.create_directories([WriteEntry(path="/tmp/d/f/g", mode=700), WriteEntry(path="/tmp/d", mode=755)])
    files.move_files([MoveEntry(src="/tmp/d/a.txt", dest="/tmp/d/f/c.txt")])
    files.delete_files(["/tmp/d/f/c.txt"])
    files.delete_directories(["/tmp/d"])
    for refused in (
        lambda: files.read_file("/tmp/d/a.txt"),
        lambda: files.get_file_info(["/tmp/d"]),
        lambda: files.write_file("/etc/passwd", "x"),
        lambda: files.write_file("/tmp/x", "x", owner="root"),
        lambda: files.write_file("/tmp/x", "x", mode=999),
        lambda: files.delete_files(["/tmp"]),
    ):
        with pytest.raises(Exception):
            refused()


def test_sandboxes_are_listed_renewed_paused_and_ended(make, config):
    sandbox = make(metadata={"name": "a b&c=d", "n": "1"}, entrypoint=["tail", "-f", "/dev/null"])
    make(metadata={"n": "2"})
    manager = SandboxManagerSync.create(connection_config=config)
    ids = lambda **query: [info.id for info in manager.list_sandbox_infos(SandboxFilter(**query)).sandbox_infos]  # noqa: E731
    assert ids(metadata={"name": "a b&c=d"}) == [sandbox.id]
    assert ids(metadata={"n": "3"}) == []
    assert manager.patch_sandbox_metadata(sandbox.id, {"n": "3", "name": None}).metadata == {"n": "3"}
    info = sandbox.get_info()
    assert (info.status.state, info.entrypoint) == ("Running", ["tail", "-f", "/dev/null"])
    assert sandbox.renew(timedelta(minutes=20)).expires_at > info.expires_at
    metrics = sandbox.get_metrics()
    assert metrics.cpu_count > 0 and 0 < metrics.memory_used_in_mib < metrics.memory_total_in_mib
    sandbox.commands.run("for i in $(seq 1000); do echo $i >/tmp/count; sleep 0.01; done", opts=RunCommandOpts(background=True))
    manager.pause_sandbox(sandbox.id)
    assert sandbox.get_info().status.state == "Paused"
    assert ids(states=["Paused"]) == [sandbox.id]
    assert not sandbox.is_healthy()
    manager.resume_sandbox(sandbox.id)
    assert sandbox.is_healthy() and sandbox.commands.run("cat /tmp/count").exit_code == 0
    connected = SandboxSync.connect(sandbox.id, connection_config=config)
    assert connected.commands.run("echo here").logs.stdout[0].text == "here"
    manager.kill_sandbox(sandbox.id)
    with pytest.raises(SandboxApiException) as refused:
        connected.get_info()
    assert refused.value.status_code == 404


def test_there_is_no_network_and_that_is_said(make):
    sandbox = make(network_policy=NetworkPolicy(defaultAction="deny", egress=[]))
    assert sandbox.get_egress_policy().default_action == "deny"
    with pytest.raises(SandboxApiException, match="network"):
        make(network_policy=NetworkPolicy(defaultAction="deny", egress=[NetworkRule(action="allow", target="a.com")]))


def test_servers_of_programs_are_reached_and_are_of_no_origin(sandbox):
    sandbox.files.write_file("/tmp/s.py", """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Set-Cookie", "a=b")
        self.end_headers()
        self.wfile.write((self.path + " " + str(dict(self.headers))).encode())
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
""")
    sandbox.commands.run("python /tmp/s.py", opts=RunCommandOpts(background=True))
    url = "http://" + sandbox.get_endpoint(8000).endpoint
    request = urllib.request.Request(f"{url}/a/b?c=d", headers={"Cookie": "theirs", "OPEN-SANDBOX-API-KEY": "secret"})
    for _ in range(200):
        try:
            answer = urllib.request.urlopen(request)
            break
        except urllib.error.HTTPError as error:
            assert error.code == 502
            time.sleep(0.05)
    body = answer.read().decode()
    assert body.startswith("/a/b?c=d ") and "theirs" not in body and "secret" not in body
    assert "sandbox" in answer.headers["Content-Security-Policy"] and "Set-Cookie" not in answer.headers


def test_programs_learn_no_key_wherever_it_was_made():
    key = "made-elsewhere-0123456789"
    echo = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(dict(self.headers)).lower().encode())
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""

    def heard(url, headers):
        """The text that the program heard, when it listens."""
        for _ in range(200):
            with suppress(urllib.error.HTTPError, urllib.error.URLError):
                return urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read().decode()
            time.sleep(0.05)

    with Server("[sandbox]\npool = 0\n") as server:
        place = Path(server.directory.name) / "key"
        place.write_text(key)
        server.run("keys", "create", "one", "--key", f"file:{place}")
        time.sleep(1.1)
        config = ConnectionConfigSync(domain=server.url.split("//")[1], api_key=key)
        sandbox = SandboxSync.create(IMAGE, connection_config=config, secure_access=True)
        sandbox.commands.run(f"python3 -c '{echo}'", opts=RunCommandOpts(background=True))
        path = f"{server.url}/v1/sandboxes/{sandbox.id}/proxy/8000/"
        # The owner's key in the place of the sandbox's token opens the door, and stays there.
        told = heard(path, {"Authorization": f"Bearer {key}", "X-Other": "theirs"})
        assert "theirs" in told and key not in told
        sandbox.kill()

        at_server = ("--url", server.url, "--key", f"file:{place}")
        server.run("sandbox", "create", "--name", "work", *at_server)
        server.run("sandbox", "exec", "--detach", *at_server, "work", "python3", "-c", echo)
        command = server.command("sandbox", "port", "work", "8000", "--at", "0", *at_server)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as port:
            told = heard(port.stdout.readline().split()[-1], {"X-Other": "theirs"})
            assert "theirs" in told and key not in told
            port.terminate()


def test_nothing_of_one_key_is_there_for_another():

    with Server("[sandbox]\npool = 0\n") as server:
        one, other = (
            ConnectionConfigSync(domain=server.url.split("//")[1], api_key=server.key(name)) for name in ("one", "other")
        )
        time.sleep(1.1)
        sandbox = SandboxSync.create(IMAGE, connection_config=one)
        assert sandbox.commands.run("echo $OPEN_SANDBOX_API_KEY").exit_code == 0
        for refused in (
            lambda: SandboxSync.connect(sandbox.id, connection_config=other),
            lambda: SandboxManagerSync.create(connection_config=other).kill_sandbox(sandbox.id),
        ):
            with pytest.raises(SandboxApiException):
                refused()
        assert SandboxManagerSync.create(connection_config=other).list_sandbox_infos(SandboxFilter()).sandbox_infos == []
        through = ConnectionConfigSync(domain=one.domain, api_key=one.api_key, use_server_proxy=True)
        assert SandboxSync.connect(sandbox.id, connection_config=through).commands.run("echo 1").exit_code == 0
        sandbox.kill()


def test_the_asynchronous_client(config):
    import asyncio

    async def use():
        sandbox = await Sandbox.create(IMAGE, connection_config=ConnectionConfig(domain=config.domain))
        codes = (await CodeInterpreter.create(sandbox=sandbox)).codes
        results = await asyncio.gather(*(sandbox.commands.run(f"sleep 0.1; echo {number}") for number in range(8)))
        assert [result.logs.stdout[0].text for result in results] == [str(number) for number in range(8)]
        assert (await codes.run("6 * 7")).result[0].text == "42"
        await sandbox.kill()
        await sandbox.close()

    asyncio.run(use())


def test_bash_has_a_kernel_of_its_own(codes):
    codes.run("x=5", language="bash")
    assert codes.run("echo $x", language="bash").logs.stdout[0].text == "5\n"
    context = codes.create_context("bash")
    assert context.language == "bash" and [known.id for known in codes.list_contexts("bash")][-1] == context.id
    assert codes.run("false", context=context).error.value == "exit status 1"


def test_resources_hold_up_to_the_operators(make):
    sandbox = make(resource={"cpu": "500m", "memory": "256Mi"})
    assert sandbox.get_metrics().memory_total_in_mib == 256
    with pytest.raises(SandboxApiException, match="gpu is not supported"):
        make(resource={"nvidia.com/gpu": "1"})
    with pytest.raises(SandboxApiException, match="at least 64Mi"):
        make(resource={"memory": "1Mi"})


def test_variables_are_kept_for_later_commands(make):
    sandbox = make(env={"BASE": "/opt"})
    show = "import os; print(ascii(os.environ['KEPT']))"
    for value, kept in (
        ("plain", "plain"),
        ('lines\nof $BASE "x"', 'lines\nof $BASE "x"'),
        ("it's\n$BASE", "it's\n/opt"),
    ):
        sandbox.commands.set_env("KEPT", value)
        assert sandbox.commands.run(f'python3 -c "{show}"').logs.stdout[0].text == ascii(kept)
    sandbox.commands.set_env("KEPT", "last")
    assert sandbox.commands.run("echo $KEPT", opts=RunCommandOpts(envs={"KEPT": "given"})).logs.stdout[0].text == "given"
    session = sandbox.commands.create_session()
    assert sandbox.commands.run_in_session(session, "echo $KEPT").logs.stdout[0].text == "last"


def test_node(server):
    if "NODE_CLIENTS" not in os.environ:
        pytest.skip("npm is not installed")
    target = Path(os.environ["NODE_CLIENTS"]) / "node.mjs"
    target.write_text((Path(__file__).parent / "node.mjs").read_text())
    subprocess.run(["node", target, server.url.split("//")[1]], check=True, timeout=60)
