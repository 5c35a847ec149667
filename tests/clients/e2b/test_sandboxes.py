"""First calls of most users of the SDKs, and things that they must not do."""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
from e2b import (
    CommandExitException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.exceptions import AuthenticationException
from e2b_code_interpreter import Sandbox

import pages


def test_programs_share_a_kernel_and_show_all_kinds_of_results(sandbox):
    assert sandbox.run_code("x = 1; x").text == "1"
    said = []
    execution = sandbox.run_code("print('é\u2028'); x + 1", on_stdout=said.append)
    assert (execution.text, execution.execution_count, said[0].line) == ("2", 2, "é\u2028\n")
    error = sandbox.run_code("1 / 0").error
    assert (error.name, error.value) == ("ZeroDivisionError", "division by zero")
    shown = sandbox.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n'end'")
    assert shown.results[0].png and shown.text == "end"
    table = sandbox.run_code("import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})").results[0]
    assert "<table" in table.html and table.data == {"a": [1, 2], "b": ["x", "y"]}
    raw = sandbox.run_code("from IPython.display import display\ndisplay({'text/latex': 'x'}, raw=True)")
    assert raw.results[0].formats() == ["latex"]
    assert sandbox.run_code("!pwd").logs.stdout == ["/home/user\n"]


def test_pictures_that_are_saved_or_shown_are_results(make):
    save = """
from PIL import Image
picture = Image.new("RGB", (2, 2), "red")
picture.save("red.png")
with open("red.bmp", "wb") as file:
    picture.save(file, "bmp")
"""
    # Of the second, Pillow is there before the client is.
    for first in ["", "import matplotlib.pyplot, PIL.Image"]:
        sandbox = make()
        sandbox.run_code(first)
        execution = sandbox.run_code(save)
        assert execution.error is None
        assert [(bool(result.png), result.is_main_result) for result in execution.results] == [(True, False)]
        assert [bool(result.png) for result in sandbox.run_code("picture.show()").results] == [True]
        kept = sandbox.run_code("picture.save('red.nothing')")
        assert (kept.error.name, len(kept.results)) == ("ValueError", 1)
        assert sandbox.files.read("red.png", format="bytes")[:4] == b"\x89PNG"


def test_boxes_are_told_with_their_outliers(sandbox):
    def chart(options):
        program = f"""
import matplotlib.pyplot as plt
plt.boxplot([[1, 2, 3, 4, 50], [2, 3, 4, 5, 6]], patch_artist=True, showmeans=True, {options})
plt.xlabel("x"); plt.ylabel("y (m)"); plt.show()"""
        return sandbox.run_code(program).results[0].chart

    for options, labels in [("tick_labels=['a', 'b']", ("x", "y (m)")), ("tick_labels=['a', 'b'], orientation='horizontal'", ("y (m)", "x"))]:
        told = chart(options)
        assert (told.x_label, told.y_label) == labels
        first, second = told.elements
        assert (first.label, first.min, first.median, first.max, first.outliers) == ("a", 1, 3, 4, [50])
        assert (second.first_quartile, second.median, second.third_quartile, second.outliers) == (3, 4, 5, [])
    assert not sandbox.run_code("plt.subplots()[0]").results[0].chart


def test_bars_are_told_by_the_labels_of_their_places(sandbox):
    for program, labels in [
        ("pd.DataFrame({'m': ['J', 'F'], 'v': [1, 2], 'w': [3, 4]}).plot(x='m', kind='bar')", ["J", "F", "J", "F"]),
        ("plt.bar([0, 1.1], [1, 2]); plt.bar([0.4, 1.5], [1, 2]); plt.xticks([0.2, 1.3], ['a', 'b'])", ["a", "b", "a", "b"]),
        ("plt.barh(['a', 'b'], [1, 2], xerr=[0.1, 0.2], capsize=3); plt.axvline(1.5)", ["a", "b"]),
        ("plt.bar([0.4, 1.3], [1, 2]); plt.xticks([0, 1, 2])", ["0.4", "1.3"]),
    ]:
        execution = sandbox.run_code(f"import pandas as pd\nimport matplotlib.pyplot as plt\n{program}; plt.show()")
        chart = execution.results[0].chart
        assert chart.type.value == "bar"
        assert [element.label for element in chart.elements] == labels


def test_contexts_are_apart(sandbox):
    context = sandbox.create_code_context(cwd="/tmp")
    sandbox.run_code("x = 1", context=context)
    assert sandbox.run_code("x").error.name == "NameError"
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    sandbox.restart_code_context(context)
    assert sandbox.run_code("x", context=context).error.name == "NameError"
    assert [known.id for known in sandbox.list_code_contexts()][-1] == context.id
    sandbox.remove_code_context(context)
    assert context.id not in [known.id for known in sandbox.list_code_contexts()]
    with pytest.raises(NotFoundException):
        sandbox.run_code("1", context=context)


def test_variables_are_of_the_sandbox_a_command_or_a_program(make):
    sandbox = make(envs={"A": "sandbox"})
    show = "import os; os.environ.get('A'), os.environ.get('B')"
    assert sandbox.run_code(show, envs={"B": "cell"}).text == "('sandbox', 'cell')"
    assert sandbox.run_code(show).text == "('sandbox', None)"
    assert sandbox.commands.run("echo $A $B", envs={"B": "command"}).stdout == "sandbox command\n"
    assert sandbox.commands.run("echo $A $E2B_SANDBOX_ID").stdout == f"sandbox {sandbox.sandbox_id}\n"
    assert sandbox.run_code("import pathlib; str(pathlib.Path.home()), os.environ['USER']").text == "('/home/user', 'user')"
    assert sandbox.run_code("echo $HOME $USER", language="bash").logs.stdout == ["/home/user user\n"]


def test_a_lack_of_memory_is_told_with_the_line(sandbox):
    error = sandbox.run_code("x = 1\ny = bytearray(3 * 10**9)").error
    assert error.name == "MemoryError" and "asked for at once" in error.value
    assert "bytearray(3 * 10**9)" in error.traceback and error.traceback.endswith(error.value)


def test_a_client_that_goes_away_interrupts_its_program(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time; time.sleep(300)", timeout=1)
    assert sandbox.run_code("1 + 1", timeout=10).text == "2"


def test_files_are_written_read_and_listed(sandbox):
    info = sandbox.files.write("sub/a.txt", "content")
    assert (info.path, info.type) == ("/home/user/sub/a.txt", FileType.FILE)
    assert sandbox.files.read("sub/a.txt") == "content"
    large = bytes(range(256)) * 20_000
    sandbox.files.write("large.bin", large, gzip=True)
    assert sandbox.files.read("/home/user/large.bin", format="bytes") == large
    assert sandbox.run_code("len(open('large.bin', 'rb').read())").text == str(len(large))
    several = [{"path": f"many/{number}", "data": str(number)} for number in range(70)]
    assert len(sandbox.files.write_files(several)) == 70
    assert [entry.name for entry in sandbox.files.list(".", depth=1)] == ["large.bin", "many", "sub"]
    entry = sandbox.files.get_info("sub/a.txt")
    assert (entry.mode, entry.permissions, entry.owner, entry.size) == (0o644, "-rw-r--r--", "user", 7)
    assert sandbox.files.rename("sub/a.txt", "b.txt").path == "/home/user/b.txt"
    assert sandbox.files.make_dir("sub/more") and not sandbox.files.make_dir("sub/more")
    sandbox.files.remove("sub")
    assert not sandbox.files.exists("sub") and sandbox.files.exists("b.txt")
    with pytest.raises(NotFoundException):
        sandbox.files.read("nothing")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("many")
    stamped = sandbox.files.write("stamped", "x", metadata={"author": "a"})
    assert stamped.metadata == sandbox.files.get_info("stamped").metadata == {"author": "a"}
    assert sandbox.files.write("stamped", "y").metadata is None


def test_the_host_is_out_of_reach_whatever_the_path(sandbox):
    sandbox.commands.run("ln -s / root && ln -s /etc/shadow shadow && mkfifo pipe")
    for path in ["../../../../etc/shadow", "shadow", "root/etc/shadow", "pipe", "/proc/1/root/etc/passwd"]:
        with pytest.raises(Exception):
            print(sandbox.files.read(path))
    assert "user" not in [entry.name for entry in sandbox.files.list("root")]
    with pytest.raises(Exception):
        sandbox.files.write("/usr/bin/python3", "x")
    assert sandbox.files.read("/etc/hostname") == "sandbox\n"


def test_files_are_watched(sandbox):
    sandbox.files.make_dir("watched")
    watch = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.write("watched/new", "x")
    kinds = [(event.type, event.name) for event in watch.get_new_events()]
    told = [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE]
    assert kinds == [(kind, "new") for kind in told]
    watch.stop()
    with pytest.raises(NotFoundException):
        sandbox.files.watch_dir("nothing")


def test_addresses_are_signed(sandbox):
    sandbox.files.write("signed", "content")
    address = sandbox.download_url("signed", "user")
    with urllib.request.urlopen(address) as answer:
        assert answer.read() == b"content"
        # In a browser it is a page of this server's, which a program wrote.
        assert answer.headers["Content-Security-Policy"] == "sandbox"
    part = urllib.request.Request(address, headers={"Range": "bytes=2-4"})
    assert urllib.request.urlopen(part).read() == b"nte"
    for wrong in [address.replace("signature=v1_", "signature=v1_x"), address.replace("path=signed", "path=b.txt")]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(wrong)
        assert refused.value.code == 401
    with pytest.raises(urllib.error.HTTPError) as expired:
        urllib.request.urlopen(sandbox.download_url("signed", "user", -10))
    assert json.load(expired.value) == {"code": 401, "message": "signature is already expired"}


def test_variables_that_are_lost_unheard_are_told_of(sandbox):
    sandbox.run_code("kept = 1")
    stubborn = "import time\nwhile True:\n  try: time.sleep(60)\n  except BaseException: pass"
    with pytest.raises(TimeoutException):
        sandbox.run_code(stubborn, timeout=1)
    told = sandbox.run_code("kept")
    assert told.error.name == "NameError" and "A new interpreter ran this program" in "".join(told.logs.stderr)
    assert sandbox.run_code("kept = 2; kept").logs.stderr == []
    # Whoever hears of it at once is not told again.
    assert "All variables are lost" in sandbox.run_code("import os; os._exit(1)").error.value
    after = sandbox.run_code("'kept' in globals()")
    assert (after.text, after.logs.stderr) == ("False", [])


def test_commands_run_and_end(sandbox):
    result = sandbox.commands.run("pwd; echo $HOME; echo error >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("/home/user\n/home/user\n", "error\n", 0)
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo out; exit 3")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "out\n")
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 60", timeout=1)
    assert sandbox.commands.run("yes | head -c 5000000").stdout == "y\n" * 2_500_000
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    with pytest.raises(AuthenticationException):
        sandbox.commands.run("id", user="nobody-here")


def test_programs_of_the_template_serve_and_are_asked(sandbox):
    sandbox.commands.run("git init --quiet --bare a.git && touch a.git/git-daemon-export-ok && mkdir page && echo served > page/a")
    sandbox.commands.run("git daemon --base-path=/home/user --reuseaddr", background=True)
    sandbox.commands.run("python3 -m http.server 8000 --directory page", background=True)
    ask = "for n in $(seq 100); do {} && exit; sleep 0.1; done; exit 1"
    sandbox.commands.run(ask.format("git ls-remote git://localhost/a.git"))
    assert sandbox.commands.run(ask.format("curl --fail --silent localhost:8000/a")).stdout == "served\n"
    assert sandbox.commands.run("tput -T xterm-256color colors").stdout == "256\n"


def test_commands_outlive_their_clients(sandbox):
    command = sandbox.commands.run("echo first; read line; echo got $line; exec sleep 60", background=True, stdin=True)
    assert command.pid in [known.pid for known in sandbox.commands.list()]
    assert next(iter(command))[0] == "first\n"
    command.disconnect()
    # Until the server has seen the connection close, output may go there.
    time.sleep(1)
    sandbox.commands.send_stdin(command.pid, "hello\n")
    time.sleep(0.3)
    again = Sandbox.connect(sandbox.sandbox_id).commands.connect(command.pid)
    assert next(iter(again))[0] == "got hello\n"
    assert sandbox.commands.kill(command.pid) and not sandbox.commands.kill(command.pid)
    with pytest.raises(CommandExitException):
        again.wait()
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999_999)


def test_terminals(sandbox):
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"A": "from-client"})
    sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(terminal.pid, b"echo $A; stty size; tty; exit 4\n")
    shown = []
    with pytest.raises(CommandExitException) as ended:
        terminal.wait(on_pty=shown.append)
    text = b"".join(shown).decode()
    assert "from-client" in text and "/dev/pts/" in text and ended.value.exit_code == 4


def test_sandboxes_are_listed_extended_and_ended(make):
    mine = {"purpose": "list test"}
    first, second = make(metadata=mine, timeout=60), make(metadata=mine)
    pages = Sandbox.list(query=SandboxQuery(metadata=mine), limit=1)
    assert [pages.next_items()[0].sandbox_id, pages.next_items()[0].sandbox_id] == [second.sandbox_id, first.sandbox_id]
    assert not pages.has_next
    end = first.get_info().end_at
    Sandbox.connect(first.sandbox_id, timeout=10)
    assert first.get_info().end_at == end
    Sandbox.connect(first.sandbox_id, timeout=600)
    assert first.get_info().end_at > end
    assert len(first.get_metrics()) == 1
    first.set_timeout(1)
    time.sleep(1.5)
    assert not first.is_running()
    assert second.is_running() and second.kill() and not second.kill() and not second.is_running()


def test_a_program_ends_with_its_sandbox(sandbox):
    threading.Timer(0.5, sandbox.kill).start()
    with pytest.raises(TimeoutException):
        sandbox.run_code("import time; time.sleep(300)", timeout=60)


def test_a_command_is_told_that_its_sandbox_was_killed(sandbox):
    command = sandbox.commands.run("sleep 60", background=True)
    sandbox.kill()
    with pytest.raises(TimeoutException, match="sandbox was killed or reached its end of life"):
        command.wait()


def test_everything_that_runs_is_in_the_audit_log(server, sandbox):
    sandbox.run_code("print('audited-cell')")
    sandbox.commands.run("echo audited-command")
    log = server.run("audit", "--json")
    assert "audited-cell" in log and "audited-command" in log


# Everything that the generation before calls differently.
OLD = """
import sys
sys.path.insert(0, sys.argv[1])
from e2b_code_interpreter import Sandbox
with Sandbox.create() as sandbox:
    assert sandbox.run_code("1 + 1").text == "2"
    sandbox.files.write("a", "b")
    assert sandbox.commands.run("cat a").stdout == "b"
    assert Sandbox.connect(sandbox.sandbox_id).is_running()
"""


def test_the_generation_before(server):
    import os

    subprocess.run([sys.executable, "-c", OLD, os.environ["OLD_CLIENT"]], check=True)


def test_node(server):
    import os

    if "NODE_CLIENTS" not in os.environ:
        pytest.skip("npm is not installed")
    script = (os.path.dirname(__file__) or ".") + "/node.mjs"
    target = os.environ["NODE_CLIENTS"] + "/node.mjs"
    with open(script) as source, open(target, "w") as copy:
        copy.write(source.read())
    subprocess.run(["node", target], check=True, timeout=60)


def test_the_programs_of_the_guide(server):
    first, second = pages.programs("sandboxes.md")
    assert pages.run(first, server.url, "", **server.environment()).splitlines()[0] == "42"
    assert pages.run(second, server.url, "", **server.environment()) == "['5\\n']\n"


def test_other_languages_have_kernels_where_the_template_has_them(sandbox):
    assert sandbox.run_code("x=5; pwd", language="bash").logs.stdout == ["/home/user\n"]
    execution = sandbox.run_code("echo $x $A", language="bash", envs={"A": "b"})
    assert "".join(execution.logs.stdout) == "5 b\n"
    context = sandbox.create_code_context(language="bash", cwd="/tmp")
    assert (context.language, sandbox.run_code("pwd; echo $x", context=context).logs.stdout[0][:4]) == ("bash", "/tmp")
    assert sandbox.run_code("false", language="bash").error.value == "exit status 1"
    with pytest.raises(Exception, match="no kernel for cobol is installed; the languages are python, bash"):
        sandbox.run_code("1", language="cobol")


def test_a_paused_sandbox_keeps_its_programs_and_is_resumed_by_connecting(make):
    sandbox = make(timeout=60)
    sandbox.run_code("x = 41")
    assert sandbox.pause() and not sandbox.is_running()
    assert sandbox.pause() is False
    states = {info.sandbox_id: info.state.value for info in Sandbox.list(SandboxQuery(state=[SandboxState.PAUSED])).next_items()}
    assert states[sandbox.sandbox_id] == "paused"
    assert Sandbox.connect(sandbox.sandbox_id, timeout=60).run_code("x + 1").text == "42"
    assert sandbox.get_info().state.value == "running"


def test_requests_under_way_end_with_a_pause(make):
    sandbox = make(timeout=60)
    sandbox.run_code("x = 41")
    command = sandbox.commands.run("sleep 3; echo done", background=True, timeout=0)
    with ThreadPoolExecutor() as clients:
        running = clients.submit(sandbox.run_code, "import time; time.sleep(30)", timeout=0)
        waiting = clients.submit(command.wait)
        time.sleep(1)
        assert sandbox.pause()
        began = time.monotonic()
        with pytest.raises(Exception, match="was paused"):
            waiting.result(10)
        with pytest.raises(Exception):
            running.result(10)
        assert time.monotonic() - began < 5
    # Longer than an interrupted program may take to stop, were the time of the pause counted.
    time.sleep(6)
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert resumed.commands.connect(command.pid, timeout=10).wait().stdout == "done\n"
    assert resumed.run_code("x + 1").text == "42", "the program was interrupted, and nothing was lost"


def test_a_pause_without_memory_keeps_the_files(make):
    sandbox = make(timeout=60, metadata={"a": "b"}, lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.run_code("x = 41; open('kept.txt', 'w').write('kept')")
    sleeping = sandbox.commands.run("sleep 1000", background=True)
    assert [process.pid for process in sandbox.commands.list()] == [sleeping.pid]
    assert sandbox.pause(keep_memory=False) and not sandbox.is_running()
    with pytest.raises(Exception):
        sandbox.run_code("1")
    assert sandbox.get_info().state.value == "paused"
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert (resumed.get_info().state.value, resumed.get_info().metadata) == ("running", {"a": "b"})
    assert resumed.files.read("kept.txt") == "kept"
    assert resumed.run_code("x").error.name == "NameError"
    assert resumed.commands.list() == []
    # The object of before is as good as the new one.
    assert sandbox.run_code("1 + 1").text == "2"


def test_a_sandbox_is_paused_in_time_and_goes_on_when_it_is_spoken_to(make):
    sandbox = make(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    lifecycle = sandbox.get_info().lifecycle
    assert (lifecycle["on_timeout"], lifecycle["auto_resume"]) == ("pause", True)
    sandbox.set_timeout(0)
    while sandbox.get_info().state.value != "paused":
        time.sleep(0.1)
    assert sandbox.run_code("1 + 1").text == "2"
    left = sandbox.get_info().end_at - datetime.now(timezone.utc)
    assert left > timedelta(seconds=250), "a request gives it five minutes at least"


def test_forks_and_snapshots_are_refused_by_name(sandbox):
    with pytest.raises(Exception, match="forking a sandbox is not supported"):
        sandbox.fork()
    with pytest.raises(Exception, match="snapshots are not supported"):
        sandbox.create_snapshot()
    assert not Sandbox.list_snapshots().next_items()
