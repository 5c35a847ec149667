"""Unit tests of the parts of the kernel and of the first process, with the standard library alone: `python3 -B -m unittest tests`, in this
directory.
"""

import asyncio
import io
import json
import logging
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

import files
import first_bounds
import first_descendants
import first_memory
import first_messages
import first_process
import first_streams
import forms
import kernel
import kernel_channel
import kernel_checkpoint
import kernel_errors
import kernel_fonts
import kernel_fork
import kernel_input
import kernel_jupyter
import kernel_limits
import kernel_output
import kernel_pages
import kernel_shell
import kernel_tools
import kernel_width
import start
import workspace


class Frames(kernel_channel.Silence):
    """A host that remembers the frames."""

    def __init__(self):
        super().__init__()
        self.frames = []

    def send(self, frame):
        super().send(frame)
        self.frames.append(frame)


class WorkspaceTest(unittest.TestCase):
    def walk(self, most):
        with tempfile.TemporaryDirectory() as root, mock.patch.object(workspace, "ROOT", root):
            os.mkdir(f"{root}/locked")
            open(f"{root}/a", "w").close()
            really = workspace.parent_of
            with mock.patch.object(workspace, "parent_of", lambda path: self.fails(path) or really(path)):
                return workspace.op_walk(most)

    def fails(self, path):
        if path == "locked/":
            raise PermissionError(13, "Permission denied")

    def test_what_cannot_be_read_is_not_taken_for_empty(self):
        told = self.walk(100)
        self.assertEqual(([entry[0] for entry in told["entries"]], told["unseen"]), (["a"], ["locked/"]))
        self.assertEqual(self.walk(1)["unseen"], [""])


class ReplaceTest(unittest.TestCase):
    def test_a_full_disk_costs_nothing_of_a_file(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"a b a")
            file.flush()
            with mock.patch.object(os, "posix_fallocate", side_effect=OSError(28, "No space left on device")):
                self.assertRaises(OSError, files.op_replace, file.name, "a", "longer")
            self.assertEqual(open(file.name).read(), "a b a")
            self.assertEqual(files.op_replace(file.name, "a", "longer"), {"count": 2})
            self.assertEqual(open(file.name).read(), "longer b longer")


class ChannelTest(unittest.TestCase):
    def setUp(self):
        self.reader, writer = os.pipe()
        self.channel, self.host = kernel_channel.Channel(to_host=writer), kernel_channel.Channel(from_host=self.reader)
        self.addCleanup(os.close, self.reader)
        self.addCleanup(os.close, writer)

    def test_a_frame_arrives_as_it_was_sent(self):
        self.channel.send({"type": "display", "data": {"text/plain": "é"}})
        self.assertEqual(self.host.receive(), {"type": "display", "data": {"text/plain": "é"}})

    def test_data_beyond_the_limit_is_left_out_with_a_word(self):
        with mock.patch.object(kernel_channel, "MAX_FRAME", 100):
            self.channel.send({"type": "result", "data": {"text/plain": "x" * 200}})
        frame = self.host.receive()
        self.assertEqual(frame["type"], "result")
        self.assertIn("too large to show", frame["data"]["text/plain"])

    def test_readable_is_a_descriptor_with_data(self):
        self.assertFalse(kernel_channel.is_readable(self.reader, 0))
        self.channel.send({})
        self.assertTrue(kernel_channel.is_readable(self.reader, 0))


class OutputTest(unittest.TestCase):
    def setUp(self):
        self.output = kernel_output.Output()
        self.output.channel = Frames()

    def test_frames_are_numbered_in_a_cell_and_dropped_between_two(self):
        self.output.ask({"type": "flushed"})
        self.output.in_cell = True
        self.output.ask({"type": "flushed"})
        self.output.ask({"type": "display", "data": {}})
        self.assertEqual([frame["number"] for frame in self.output.channel.frames], [1, 2])

    def test_an_interrupt_ends_a_cell_and_nothing_else(self):
        self.output.interrupt()
        self.output.in_cell = True
        with self.assertRaises(KeyboardInterrupt):
            self.output.interrupt()

    def test_an_interrupt_waits_for_the_hosts_answer(self):
        self.output.in_cell = True
        answer = self.output.channel.receive

        def interrupted():
            self.output.interrupt()
            return answer()

        self.output.channel.receive = interrupted
        with self.assertRaises(KeyboardInterrupt):
            self.output.ask({"type": "flushed"})
        self.assertFalse(self.output.shield.is_up)
        self.assertEqual(self.output.channel.number, 1)

    def test_an_interrupt_leaves_no_half_of_a_result(self):
        self.output.in_cell = True
        sent = []

        def send(frame):
            sent.append("begun")
            self.output.interrupt()
            sent.append(frame["type"])

        with mock.patch.object(self.output.channel, "send", send), self.assertRaises(KeyboardInterrupt):
            self.output.show_result({"text/plain": "1"})
        self.assertEqual(sent, ["begun", "result"])

    def test_an_interrupt_does_not_wait_for_another_threads_answer(self):
        self.output.in_cell = True
        answer = self.output.channel.receive
        asked, answered = threading.Event(), threading.Event()

        def receive():
            asked.set()
            answered.wait()
            return answer()

        self.output.channel.receive = receive
        thread = threading.Thread(target=self.output.ask, args=({"type": "display", "data": {}},))
        thread.start()
        asked.wait()
        try:
            with self.assertRaises(KeyboardInterrupt):
                self.output.interrupt()
        finally:
            answered.set()
            thread.join()
        self.output.ask({"type": "flushed"})

    def test_an_interrupt_that_nothing_heard_does_not_end_the_next_cell(self):
        self.output.in_cell = True

        def interrupted(_frame):
            self.output.interrupt()
            raise MemoryError

        with mock.patch.object(self.output.channel, "send", interrupted), self.assertRaises(MemoryError):
            self.output.ask({"type": "flushed"})
        self.output.begin_cell()
        self.output.ask({"type": "flushed"})

    def test_a_switch_between_streams_is_told_up_to_a_limit(self):
        self.output.in_cell = True
        with mock.patch.object(kernel_output, "MOST_TURNS", 2):
            for descriptor in (1, 2, 2, 1, 2):
                self.output.keep_order(descriptor)
        self.assertEqual(len(self.output.channel.frames), 2)

    def test_text_is_cut_and_long_documents_are_left_out(self):
        long = "x" * (kernel_output.MAX_TEXT + 3)
        bundle = kernel_output.encode_bundle(
            {"text/plain": long, "text/html": long, "image/png": b"\x01", "application/json": {"a": 1}}
        )
        self.assertTrue(bundle["text/plain"].endswith("\n[3 more characters were left out]"))
        self.assertEqual({**bundle, "text/plain": ""}, {"text/plain": "", "image/png": "AQ==", "application/json": '{"a": 1}'})

    def test_structures_are_json_whatever_their_numbers(self):
        structure = {"a": [1.5, float("inf"), float("-inf"), float("nan"), "NaN"], "b": {1}}
        bundle = kernel_output.encode_bundle({"application/json": structure})
        self.assertEqual(bundle, {"application/json": '{"a": [1.5, null, null, null, "NaN"], "b": "{1}"}'})
        structure["a"] = structure
        with self.assertRaisesRegex(ValueError, "Circular"):
            kernel_output.encode_bundle({"application/json": structure})


class FormsTest(unittest.TestCase):
    def test_numbers_that_json_has_not_are_none(self):
        cells = [1, 2.5, float("inf"), float("-inf"), float("nan"), "inf", mock.Mock(spec=["tolist"], tolist=lambda: float("inf"))]
        self.assertEqual([forms.plain(cell) for cell in cells], [1, 2.5, None, None, None, "inf", None])


class ErrorsTest(unittest.TestCase):
    def described(self, program, **names):
        try:
            exec(compile(program, "<cell 3>", "exec"), names)
        except BaseException as error:
            return kernel_errors.describe_error(error)
        self.fail("nothing was raised")

    def test_a_cell_is_named_by_its_number(self):
        told = self.described("def f():\n    return 1 / 0\nf()")
        self.assertEqual((told["name"], told["value"]), ("ZeroDivisionError", "division by zero"))
        self.assertIn("Cell 3, line 3, in <module>", told["traceback"])
        self.assertNotIn("tests.py", told["traceback"])

    def test_frames_of_libraries_are_counted(self):
        told = self.described("import json\njson.loads('{')")
        self.assertIn("not shown]", told["traceback"])

    def test_causes_come_first(self):
        told = self.described("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('x') from error")
        self.assertLess(told["traceback"].index("ZeroDivisionError"), told["traceback"].index("ValueError"))

    def test_of_a_long_chain_the_first_cause_is_kept(self):
        def chain(length):
            inner = f"chain({length - 1})" if length > 1 else "1 / 0"
            return f"try:\n    {inner}\nexcept Exception as error:\n    raise ValueError('error {length}') from error"

        names = {"chain": lambda length: exec(chain(length), names)}
        joined = "\n\nThe above exception was the direct cause of the following exception:\n\n"
        parts = self.described(chain(3), **names)["traceback"].split(joined)
        self.assertEqual([part.splitlines()[-1] for part in parts], ["ZeroDivisionError: division by zero", *(f"ValueError: error {n}" for n in (1, 2, 3))])
        parts = self.described(chain(9), **names)["traceback"].split(joined)
        self.assertEqual([part.splitlines()[0] for part in parts[:2]], ["ZeroDivisionError: division by zero", "[6 errors not shown]"])
        self.assertEqual([part.splitlines()[-1] for part in parts[1:]], [f"ValueError: error {n}" for n in (7, 8, 9)])

    def test_a_text_that_cannot_be_made_and_a_long_one(self):
        told = self.described("class E(Exception):\n    def __str__(self): raise KeyError\nraise E")
        self.assertEqual(told["value"], "(its text could not be made)")
        told = self.described("raise ValueError('x' * 100000)")
        self.assertLess(len(told["traceback"]), kernel_errors.MAX_TRACEBACK + 100)


class LimitsTest(unittest.TestCase):
    def test_memory_is_bounded_beyond_the_zygotes(self):
        limit = kernel_limits.MemoryLimit()
        with mock.patch.object(resource, "setrlimit") as told, mock.patch.object(kernel_limits, "data_in_use", lambda: 100 << 20):
            limit.lower()
            told.assert_not_called()
            limit.set(1 << 30, is_hard=False)
            limit.set(1 << 30, is_hard=True)
            limit.lift()
            limit.lower()
        soft, hard = (1 << 30) - (64 << 20) + (100 << 20), (1 << 30) + (100 << 20)
        self.assertEqual([call.args[1] for call in told.call_args_list], [(soft, -1), (soft, hard), (hard, hard), (soft, hard)])

    def test_what_an_error_left_in_use_keeps_the_limit_up(self):
        limit = kernel_limits.MemoryLimit()
        with mock.patch.object(resource, "setrlimit") as told, mock.patch.object(kernel_limits, "data_in_use", lambda: 1 << 20):
            limit.set(1 << 30, is_hard=False)
            limit.lift()
        with mock.patch.object(resource, "setrlimit") as told, mock.patch.object(kernel_limits, "data_in_use", lambda: 1 << 30):
            limit.lower()
            told.assert_not_called()

    def test_data_in_use_is_what_the_system_counts(self):
        held = bytearray(64 << 20)
        before = kernel_limits.data_in_use()
        del held
        self.assertGreaterEqual(before - kernel_limits.data_in_use(), 64 << 20)

    def test_a_copy_needs_half_of_the_memory(self):
        limit = kernel_limits.MemoryLimit()
        self.assertTrue(limit.allows_copy())
        with mock.patch.object(kernel_limits, "data_in_use", lambda: 100):
            limit.baseline()
        limit.bytes = 1000
        for used, allowed in ((600, True), (601, False)):
            with mock.patch.object(kernel_limits, "data_in_use", lambda: used):
                self.assertEqual(limit.allows_copy(), allowed)


class ForkTest(unittest.TestCase):
    def test_a_child_sends_no_signal_and_is_waited_for_by_name(self):
        self.assertEqual(threading.active_count(), 1)
        pid, hooks_are_due = kernel_fork.fork_unseen()
        if pid == 0:
            os._exit(7 if hooks_are_due else 1)
        self.assertFalse(hooks_are_due)
        with self.assertRaises(ChildProcessError):
            os.waitpid(pid, 0)
        self.assertEqual(os.waitpid(pid, kernel_fork.WAIT_FOR_ALL)[1], 7 << 8)


    def test_hooks_that_others_registered_run_in_quiet_forks(self):
        ran = []
        os.register_at_fork(before=lambda: ran.append("before"), after_in_child=lambda: ran.append("child"))
        quietly = kernel_fork.QuietForks()
        self.assertEqual(len(quietly.lists), 3)
        with mock.patch.object(threading, "_after_fork") as of_threads, quietly:
            hooks = [hook for hooks in quietly.lists for hook in hooks]
            pid = os.fork()
            if pid == 0:
                os._exit(0 if ran == ["before", "child"] and not of_threads.called else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertFalse([hook for hook in hooks if hook.__module__ in quietly.OF_THREADS])
        self.assertIn("_after_fork", [hook.__name__ for hooks in quietly.lists for hook in hooks if hasattr(hook, "__name__")])


class CheckpointTest(unittest.TestCase):
    def ahead(self, quiet, alone):
        """Takes a checkpoint ahead of the third cell, and returns the names of what was done with it."""
        made = kernel.Kernel()
        made.cell_number = 2
        made.checkpoints = mock.Mock(pid=7, take=mock.Mock(return_value=False))
        with mock.patch.object(kernel, "is_readable", lambda *_: not quiet), mock.patch.object(kernel, "is_alone", lambda **_: alone):
            made.take_ahead()
        return [name for name, *_ in made.checkpoints.method_calls]

    def test_it_is_given_up_in_a_long_silence(self):
        self.assertEqual(self.ahead(quiet=False, alone=True), ["take"])
        self.assertEqual(self.ahead(quiet=True, alone=False), ["take"])
        self.assertEqual(self.ahead(quiet=True, alone=True), ["take", "drop", "bury"])

    def test_one_that_was_given_up_leaves_no_process(self):
        checkpoints = kernel_checkpoint.Checkpoints(None, None)
        checkpoints.pid, _hooks_are_due = kernel_fork.fork_unseen()
        if checkpoints.pid == 0:
            time.sleep(60)
            os._exit(0)
        pid = checkpoints.pid
        checkpoints.drop()
        checkpoints.bury(waits=True)
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)


class Client(Frames):
    """A host whose client answers every call with its arguments, or as it is told."""

    def __init__(self, answer=lambda call: {"text": call["arguments"]}):
        super().__init__()
        self.answer = answer

    def receive(self):
        calls = self.frames[-1].get("calls", [])
        return {"number": self.number, "answers": [self.answer(call) for call in calls]}

    def batches(self):
        return [[call["name"] for call in frame["calls"]] for frame in self.frames if frame["type"] == "calls"]


class ToolsTest(unittest.TestCase):
    def setUp(self):
        self.output = kernel_output.Output()
        self.output.in_cell = True
        self.output.channel = self.client = Client()

    def run_cell(self, program, **namespace):
        """Runs a program that awaits something, with the tools f and g, and returns its names."""
        code = "async def cell():\n" + "\n".join("    " + line for line in program.splitlines()) + "\n    return locals()"
        self.namespace = {"asyncio": asyncio, "json": json, "threading": threading, **namespace}
        with kernel_tools.Tools(self.output, self.namespace, ["f", "g"]):
            exec(code, self.namespace)
            return asyncio.run(self.namespace["cell"]())

    def test_a_call_returns_the_text_of_its_answer(self):
        names = self.run_cell("a = await f({'x': 1})\nb = await g(y='é')\nc = await g()")
        self.assertEqual((names["a"], names["b"], names["c"]), ('{"x": 1}', '{"y": "\\u00e9"}', "{}"))
        self.assertEqual(self.client.batches(), [["f"], ["g"], ["g"]])

    def test_calls_of_the_same_moment_are_one_frame(self):
        names = self.run_cell("""
async def twice(n):
    await asyncio.sleep(0)
    first = await f({'n': n})
    return first, await g({'n': -n})
a = await asyncio.gather(*(twice(n) for n in range(3)))
b = await asyncio.gather(asyncio.create_task(f({})), twice(7))""")
        self.assertEqual(self.client.batches(), [["f"] * 3, ["g"] * 3, ["f", "f"], ["g"]])
        self.assertEqual(names["a"][2], ('{"n": 2}', '{"n": -2}'))

    def test_more_calls_than_fit_into_a_frame_are_asked_in_turn(self):
        with mock.patch.object(kernel_tools, "MAX_AT_ONCE", 2), mock.patch.object(kernel_tools, "MAX_ASKED", 20):
            self.run_cell("await asyncio.gather(*(f({}) for _ in range(5)), *(g({'x': 'y' * 8}) for _ in range(2)))")
        self.assertEqual([len(batch) for batch in self.client.batches()], [2, 2, 2, 1])

    def test_a_failure_and_a_missing_answer_are_exceptions(self):
        self.client.answer = lambda call: {"text": "no", "is_error": True}
        with self.assertRaisesRegex(kernel_tools.ToolError, "^no$"):
            self.run_cell("await f({})")
        self.client.receive = lambda: {"number": self.client.number, "answers": []}
        with self.assertRaisesRegex(kernel_tools.ToolError, "f was not answered"):
            self.run_cell("await f({})")

    def test_what_cannot_be_arguments_is_refused_before_anybody_is_asked(self):
        cycle = {}
        cycle["cycle"] = cycle
        for wrong, words in (
            ("5", "one dict"), ("{}, x=1", "one dict"), ("{'x': {1}}", "no form in JSON"), ("{'x': float('nan')}", "JSON compliant"),
            ("cycle", "Circular"), ("{'x': 'y' * (300 << 10)}", "at most 262144"),
        ):  # fmt: skip
            with self.assertRaisesRegex((TypeError, ValueError), words):
                self.run_cell(f"await f({wrong})", cycle=cycle)
        self.assertEqual(self.client.batches(), [])
        with mock.patch.object(kernel_tools, "MAX_CALLS", 3), self.assertRaisesRegex(RuntimeError, "3 times"):
            self.run_cell("for _ in range(4): await f({})")

    def test_numbers_of_numpy_are_numbers(self):
        number = mock.Mock(tolist=lambda: [1, 2])
        self.assertEqual(self.run_cell("a = await f({'x': number})", number=number)["a"], '{"x": [1, 2]}')

    def test_calls_that_are_given_up_are_not_made(self):
        self.run_cell("""
task = asyncio.create_task(f({}))
await asyncio.sleep(0)
task.cancel()
await asyncio.sleep(0.01)
try: await asyncio.wait_for(asyncio.gather(g({}), asyncio.sleep(60)), 0.01)
except asyncio.TimeoutError: pass""")
        self.assertEqual(self.client.batches(), [["g"]])

    def test_functions_are_there_in_their_cell_alone(self):
        self.run_cell("await f({})", g="the program's own")
        self.assertNotIn("f", self.namespace)
        self.assertEqual(self.namespace["g"], "the program's own")
        left = self.run_cell("left = f")["left"]
        with self.assertRaisesRegex(RuntimeError, "while the cell runs"):
            asyncio.run(left({}))
        self.assertEqual(self.client.batches(), [["f"]])

    def test_a_thread_and_a_task_that_was_left_call_nothing(self):
        names = self.run_cell("""
raised = []
def call():
    try: asyncio.run(f({}))
    except RuntimeError as error: raised.append(str(error))
thread = threading.Thread(target=call)
thread.start()
thread.join()
asyncio.create_task(g({}))""")
        self.assertIn("not in a thread", names["raised"][0])
        self.assertEqual(self.client.batches(), [])

    def test_an_interrupt_ends_the_wait(self):
        def interrupted():
            self.output.interrupt()
            return {"number": self.client.number, "answers": []}

        self.client.receive = interrupted
        with self.assertRaises(KeyboardInterrupt):
            self.run_cell("try: await f({})\nexcept Exception: pass")
        self.assertEqual(self.client.batches(), [["f"]])


class InputTest(unittest.TestCase):
    def setUp(self):
        self.output = kernel_output.Output()
        self.output.in_cell = True
        self.output.channel = self.client = Client(lambda call: {"text": json.loads(call["arguments"])["prompt"] * 2})

    def test_a_cell_asks_for_a_line_and_others_do_not(self):
        before = input
        with kernel_input.Input(self.output, "__input__"):
            self.assertEqual((input("a"), input()), ("aa", ""))
        self.assertIs(input, before)
        self.assertEqual(self.client.batches(), [["__input__"]] * 2)

    def test_an_end_and_no_answer_are_the_end_of_the_input(self):
        for answer in ({"text": "EOF when reading a line", "is_error": True}, None):
            self.client.receive = lambda answer=answer: {"number": self.client.number, "answers": [answer] if answer else []}
            with kernel_input.Input(self.output, "__input__"), self.assertRaises(EOFError):
                input()

    def test_a_thread_asks_nobody(self):
        raised = []

        def ask():
            try:
                input()
            except RuntimeError as error:
                raised.append(str(error))

        with kernel_input.Input(self.output, "__input__"):
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
        self.assertIn("not in a thread", raised[0])


class PagesTest(unittest.TestCase):
    def test_neighbours_are_one_run(self):
        page = kernel_pages.PAGE
        self.assertEqual(list(kernel_pages.runs_of([3, 4, 7])), [3 * page, 2 * page, 7 * page, page])


class ImmortalTest(unittest.TestCase):
    PROGRAM = """
import gc, sys, zygote_immortal

def function():
    return held, ("text of a constant", 12345678)

held = ["of a list"[:5]]
# As in the zygote: the collector does not tell of objects that are frozen.
gc.freeze()
made = zygote_immortal.make_all_immortal()
things = held, held[0], function, function.__code__, function.__code__.co_consts, function.__code__.co_consts[1]
print(made > len(things), *(sys.getrefcount(thing) >= zygote_immortal.LEAST_IMMORTAL for thing in things))
del held, function
print(*(type(thing).__name__ for thing in things))
print(made == 0 or len(gc.get_objects()) < 100)
gc.unfreeze()
print([thing for thing in gc.get_objects() if type(thing) is memoryview])
mortal = [thing for thing in gc.get_objects() if sys.getrefcount(thing) < zygote_immortal.LEAST_IMMORTAL]
print(made == 0 or len(mortal) < 100)
"""

    def test_no_references_are_counted_where_the_interpreter_can_do_without(self):
        told = subprocess.run([sys.executable, "-B", "-c", self.PROGRAM], capture_output=True, text=True)
        is_free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
        works = str(sys.version_info >= (3, 12) and not is_free_threaded)
        names = "list str function code tuple tuple"
        self.assertEqual(told.stdout, f"{' '.join([works] * 7)}\n{names}\nTrue\n[]\nTrue\n", told.stderr)


class ShellTest(unittest.TestCase):
    def test_a_note_about_fonts_is_told_once_and_none_of_a_fallbacks_weight(self):
        notes = kernel_shell.FontNotes()
        missing, weight = "findfont: Font family %s not found.", "findfont: Failed to find font weight %s."
        record = lambda note, name: logging.LogRecord("", logging.WARNING, "", 1, note, (name,), None)
        told = [notes.filter(record(note, name)) for note, name in [(missing, "A"), (missing, "A"), (missing, "B"), (weight, "A")]]
        self.assertEqual(told, [True, False, True, False])

    def test_texts_fall_back_to_the_fonts_of_the_default_setting(self):
        class FontManager:
            def _find_fonts_by_props(self, prop, fontext="ttf"):
                return [f"{family}.ttf" for family in prop.families]

            def findfont(self, prop, _fontext, fallback_to_default, rebuild_if_missing):
                if prop.families == ["Absent"]:
                    raise ValueError
                return f"{prop.families[0]}.ttf"

        class Properties:
            def __init__(self, families):
                self.families = families

            def copy(self):
                return Properties(self.families)

            def set_family(self, family):
                self.families = [family]

        matplotlib = types.SimpleNamespace(rcParamsDefault={"font.family": ["sans-serif", "Chinese", "Absent", "Korean"]})
        kernel_fonts.complete(types.SimpleNamespace(FontManager=FontManager))
        with mock.patch.dict(sys.modules, {"matplotlib": matplotlib}):
            found = FontManager()._find_fonts_by_props(Properties(["Arial", "Korean"]))
        self.assertEqual(found, ["Arial.ttf", "Korean.ttf", "Chinese.ttf"])


class LanguagesTest(unittest.TestCase):
    def test_declared_kernels_are_reached_as_they_can_be(self):
        with tempfile.TemporaryDirectory() as directory:
            for name, language in {"java": "java", "ir": "R"}.items():
                os.mkdir(os.path.join(directory, name))
                with open(os.path.join(directory, name, "kernel.json"), "w", encoding="utf-8") as file:
                    json.dump({"argv": [name, "{resource_dir}", "{connection_file}"], "language": language, "interrupt_mode": "message"}, file)
            with mock.patch.object(kernel_jupyter, "DECLARED", [directory]):
                found = kernel_jupyter.commands()
            java = found["java"]
            self.assertEqual(java.with_file("/f"), ["java", os.path.join(directory, "java"), "/f"])
            self.assertEqual((java.transport, java.interrupt), ("tcp", "message"))
            self.assertEqual(found["r"].transport, "ipc")

    def test_a_language_gets_the_sandboxs_variables_by_programs_of_its_own(self):
        for language, told in {"java": ['System.setProperty("A", "b \\"c\\"");'], "bash": ["export A='b \"c\"'"]}.items():
            relay = kernel_jupyter.Relay.__new__(kernel_jupyter.Relay)
            relay.language, relay.converse = language, mock.Mock()
            relay.take_environment({"A": 'b "c"', "not a name": "d"})
            self.assertEqual([call.args[0] for call in relay.converse.call_args_list], told)


class WidthTest(unittest.TestCase):
    def test_a_width_is_bounded_and_a_number(self):
        widths = [kernel_width.columns_of(text) for text in ("120", "1", "100000", "-5", "", "wide")]
        self.assertEqual(widths, [120, kernel_width.NARROWEST, kernel_width.WIDEST, kernel_width.NARROWEST, None, None])


class HostTest(unittest.TestCase):
    """The first process in this one, with a host that hears its messages."""

    def setUp(self):
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        stdout = os.dup(1)
        os.dup2(writer, 1)
        os.close(writer)
        self.incoming = first_messages.Incoming()
        self.addCleanup(os.close, self.reader)
        self.addCleanup(os.close, stdout)
        self.addCleanup(os.dup2, stdout, 1)
        self.addCleanup(first_streams.found.clear)
        self.addCleanup(lambda: [one.close() for one in first_streams.found.values()])

    def messages(self):
        """Returns the messages since this was last asked, of which there are few."""
        try:
            return list(self.incoming.take(os.read(self.reader, 1 << 20)))
        except BlockingIOError:
            return []

    def turn(self, until):
        """Does what there is to do until a message of this kind comes, and returns all that came."""
        told, end = [], time.monotonic() + 30
        while not any(kind == until for kind, *_ in told):
            self.assertLess(time.monotonic(), end, told)
            for key, events in first_streams.selector.select(0.01):
                key.data.handle(key.fd, events)
            first_process.reap()
            told += self.messages()
        return told


class MessagesTest(HostTest):
    def test_a_message_is_whole_however_it_is_cut(self):
        first_messages.send(first_messages.DATA, 7, 1, b"abc")
        first_messages.send(first_messages.END, 8)
        sent = os.read(self.reader, 100)
        expected = [(first_messages.DATA, 7, 1, b"abc"), (first_messages.END, 8, 0, b"")]
        for size in (1, 5, len(sent)):
            pieces = [sent[place : place + size] for place in range(0, len(sent), size)]
            self.assertEqual([message for piece in pieces for message in self.incoming.take(piece)], expected)


class StreamsTest(HostTest):
    def streams(self, window):
        streams, (reader, writer) = first_streams.Streams(1, window), os.pipe()
        os.set_blocking(reader, False)
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        return streams, reader, writer

    def test_no_more_is_passed_on_than_was_granted(self):
        streams, reader, writer = self.streams(4)
        self.addCleanup(first_streams.listen, reader, 0, None)
        streams.streams[1] = reader
        os.write(writer, b"abcdefg")
        self.assertFalse(streams.pass_on(1, 100))
        self.assertEqual(self.messages(), [(first_messages.DATA, 1, 1, b"abcd")])
        streams.granted(1, 10)
        self.assertTrue(streams.pass_on(1, 100))
        self.assertEqual(self.messages(), [(first_messages.DATA, 1, 1, b"efg")])

    def test_room_is_granted_for_what_was_taken(self):
        streams, reader, writer = self.streams(4)
        os.set_blocking(writer, False)
        streams.input = writer
        streams.take(b"x" * (200 << 10))
        self.addCleanup(first_streams.listen, writer, 0, None)
        granted = sum(struct.unpack(">I", payload)[0] for kind, *_, payload in self.messages() if kind == first_messages.GRANT)
        self.assertEqual(granted, len(os.read(reader, 1 << 20)))
        self.assertEqual(granted + len(streams.unsent), 200 << 10)

    def test_a_failure_to_start_is_the_answer(self):
        first_process.handle(first_messages.SPAWN, 1, 0, b'{"arguments": ["/no"], "environment": [], "directory": "/", "pty": null}')
        first_process.handle(first_messages.SPAWN, 2, 0, b'{"arguments": ["true"], "environment": [], "directory": "/no", "pty": null}')
        told = self.messages()
        self.assertEqual([(kind, number) for kind, number, *_ in told], [(first_messages.FAILED, 1), (first_messages.FAILED, 2)])
        self.assertEqual([payload for *_, payload in told], [b"/no: No such file or directory"] * 2)
        self.assertEqual(first_streams.found, {})


class CommandTest(HostTest):
    def spawn(self, script, pty=None):
        wish = {"arguments": ["sh", "-c", script], "environment": [["A", "b"]], "directory": "/", "pty": pty}
        first_process.handle(first_messages.SPAWN, 3, 0, json.dumps(wish).encode())

    def printed(self, told, stream):
        return b"".join(payload for kind, _, of, payload in told if kind == first_messages.DATA and of == stream)

    def test_what_a_command_prints_comes_before_its_end(self):
        self.spawn("cat; echo $A $PWD >&2; exit 3")
        # The host is behind with reading.
        first_streams.found[3].allowed = [0, 0, 0]
        first_process.handle(first_messages.DATA, 3, 0, b"given")
        first_process.handle(first_messages.CLOSE, 3, 0, b"")
        told = self.turn(first_messages.EXITED)
        self.assertEqual(told[0][0], first_messages.STARTED)
        self.assertEqual((self.printed(told, 1), self.printed(told, 2)), (b"given", b"b /\n"))
        self.assertEqual(json.loads(told[-1][3]), {"code": 3, "out_of_memory": None})

    def test_a_terminal_has_the_size_that_it_is_given(self):
        self.spawn("stty size; read line; stty size", pty=[80, 24])
        told = self.turn(first_messages.DATA)
        first_process.handle(first_messages.RESIZE, 3, 0, struct.pack(">HH", 120, 30))
        first_process.handle(first_messages.DATA, 3, 0, b"\n")
        told += self.turn(first_messages.EXITED)
        self.assertEqual(self.printed(told, 1).split(), [b"24", b"80", b"30", b"120"])

    def test_its_end_ends_its_session(self):
        self.spawn("sleep 60 & echo $!; wait")
        told = self.turn(first_messages.DATA)
        sleeper = int(self.printed(told, 1))
        command = first_streams.found[3].pid
        self.assertLessEqual({sleeper, command}, first_descendants.descendants())
        first_process.handle(first_messages.END, 3, 0, b"")
        os.waitpid(command, 0)
        end = time.monotonic() + 30
        while self.runs(sleeper):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def runs(self, pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except FileNotFoundError:
            return False


class KernelTest(HostTest):
    def test_what_a_kernel_printed_comes_before_its_frame(self):
        def run():
            os.write(1, b"printed")
            os.write(kernel_channel.TO_HOST_FD, b"frame")
            os.write(2, os.read(kernel_channel.FROM_HOST_FD, 100))

        with mock.patch.object(kernel, "run", run):
            first_process.handle(first_messages.KERNEL, 5, 0, b"")
        started = first_streams.found[5]
        select.select([started.streams[0]], [], [], 30)
        started.take_frames()
        told = self.messages()
        first_process.handle(first_messages.DATA, 5, 0, b"cell")
        told += self.turn(first_messages.EXITED)
        said = [(stream, payload) for kind, _, stream, payload in told if kind == first_messages.DATA]
        self.assertEqual(said, [(1, b"printed"), (0, b"frame"), (2, b"cell")])
        self.assertEqual(json.loads(told[-1][3])["code"], 0)


class ConnectionTest(HostTest):
    def test_bytes_go_both_ways(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            first_process.handle(first_messages.CONNECT, 4, 0, struct.pack(">H", server.getsockname()[1]))
            peer, _ = server.accept()
            self.addCleanup(peer.close)
            self.assertEqual(self.turn(first_messages.STARTED)[0][1], 4)
            first_process.handle(first_messages.DATA, 4, 0, b"question")
            self.assertEqual(peer.recv(100), b"question")
            peer.sendall(b"answer")
            peer.shutdown(socket.SHUT_WR)
            told = self.turn(first_messages.CLOSE)
            self.assertIn((first_messages.DATA, 4, 1, b"answer"), told)

    def test_nobody_listening_is_told_apart(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        first_process.handle(first_messages.CONNECT, 4, 0, struct.pack(">H", port))
        self.assertEqual(self.turn(first_messages.FAILED)[-1][:3], (first_messages.FAILED, 4, 1))


class MemoryTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.memory = first_memory.Memory()
        self.memory.DIRECTORY = self.directory = directory.name

    def write(self, name, text):
        path = f"{self.directory}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def test_each_process_that_was_ended_counts_once(self):
        self.assertFalse(self.memory.has_run_out())
        self.write("memory.events", "low 0\noom 3\noom_kill 1\n")
        self.assertTrue(self.memory.has_run_out())
        self.assertFalse(self.memory.has_run_out())
        self.write("memory.events", "low 0\noom 3\noom_kill 2\n")
        self.assertTrue(self.memory.has_run_out())

    def test_the_peak_is_the_first_figure_that_there_is(self):
        self.assertEqual(self.memory.most(), 0)
        self.write("memory.max", "max\n")
        self.assertEqual(self.memory.most(), 0)
        self.write("memory.max", "300\n")
        self.assertEqual(self.memory.most(), 300)
        self.write("memory/memory.max_usage_in_bytes", "200\n")
        self.assertEqual(self.memory.most(), 200)
        self.write("memory.peak", "100\n")
        self.assertEqual(self.memory.most(), 100)


class BoundsTest(unittest.TestCase):
    def ended(self, **counts):
        """Returns true if these figures are more than a container may have."""
        told = {"locks": 0, "sockets": 0, "terminals": 0, **counts}
        places = {name: (lambda count=count: count) if isinstance(count, int) else count for name, count in told.items()}
        with mock.patch.multiple(first_bounds, **places), mock.patch.object(first_bounds, "kill") as kill:
            first_bounds.enforce_bounds()
        self.assertIn(kill.call_args_list, ([], [mock.call(-1, signal.SIGKILL)]))
        return kill.called

    def test_a_container_with_more_than_the_most_loses_its_processes(self):
        for name, most in (("locks", first_bounds.MOST_LOCKS), ("sockets", first_bounds.MOST_SOCKETS), ("terminals", first_bounds.MOST_TERMINALS)):
            self.assertFalse(self.ended(**{name: most}))
            self.assertTrue(self.ended(**{name: most + 1}))

    def test_a_figure_that_is_not_told_hides_no_other(self):
        untold = mock.Mock(side_effect=OSError())
        self.assertTrue(self.ended(locks=untold, terminals=first_bounds.MOST_TERMINALS + 1))
        self.assertFalse(self.ended(locks=untold))

    def test_a_part_of_the_list_of_locks_is_read(self):
        line = b"1: FLOCK  ADVISORY  WRITE 1 00:01:1 0 EOF\n"
        for count, counted in ((3, 3), (1 << 20, first_bounds.LOCK_LIST_BYTES // len(line))):
            with mock.patch("builtins.open", lambda *_, count=count: io.BytesIO(line * count)):
                self.assertEqual(first_bounds.locks(), counted)


class FilesTest(unittest.TestCase):
    def test_an_error_that_has_no_number_of_its_own_is_told_in_words(self):
        def into_itself(**_paths):
            raise shutil.Error("Cannot move a directory '/a' into itself '/a/b'." + "!" * 2000)

        told = []
        with mock.patch.dict(files.OPERATIONS, move=into_itself), mock.patch.object(files, "send", lambda header, _data: told.append(header)):
            files.answer({"id": 1, "op": "move"}, b"")
        self.assertEqual((told[0]["problem"], told[0]["message"][:41], len(told[0]["message"])), ("invalid", "Cannot move a directory '/a' into itself ", 1000))


class StartTest(unittest.TestCase):
    def test_scripts_are_stored_where_something_can_be_written(self):
        with tempfile.TemporaryDirectory() as top:
            with mock.patch.object(start, "SCRIPTS_DIRECTORY", top):
                self.assertEqual(start.store({"a.py": "é"}), top)
            with mock.patch.object(start, "SCRIPTS_DIRECTORY", f"{top}/none"), mock.patch.object(tempfile, "tempdir", top):
                other = start.store({"a.py": "é"})
            self.assertEqual(os.path.dirname(other), top)
            for directory in (top, other):
                with open(f"{directory}/a.py") as file:
                    self.assertEqual(file.read(), "é")

    def test_the_first_process_is_one_of_the_scripts_and_writes_no_others(self):
        scripts = {"first_process.py": "import other\ndef run(directory): print(directory == other.__file__.rpartition('/')[0])", "other.py": ""}
        sent = json.dumps(scripts).encode()
        with tempfile.TemporaryDirectory() as directory:
            run = f"import sys; sys.path.insert(0, '.'); import start; sys.dont_write_bytecode = False; start.SCRIPTS_DIRECTORY = {directory!r}; start.main()"
            ran = subprocess.run(["python3", "-I", "-B", "-c", run], input=struct.pack(">I", len(sent)) + sent, capture_output=True, timeout=30)
            self.assertEqual((ran.stdout, ran.stderr), (b"True\n", b""))
            self.assertEqual(sorted(os.listdir(directory)), sorted(scripts))
