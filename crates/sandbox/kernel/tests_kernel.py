"""The kernel: limits, forks, checkpoints and languages."""

import asyncio
import json
import logging
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

import kernel
import kernel_checkpoint
import kernel_fonts
import kernel_fork
import kernel_jupyter
import kernel_limits
import kernel_pages
import kernel_shell
import kernel_tasks


class TasksTest(unittest.TestCase):
    def test_a_cell_that_starts_tasks_needs_the_loop(self):
        for cell in (
            "task = asyncio.create_task(f())",
            "if x:\n    tasks = [create_task(f(i)) for i in range(3)]",
            "both = asyncio.gather(f(), g())",
            "with a: print(asyncio.get_running_loop().time())",
        ):
            self.assertTrue(kernel_tasks.needs_loop(cell), cell)

    def test_a_cell_that_defines_or_runs_its_own_does_not(self):
        for cell in (
            "async def main():\n    await asyncio.gather(f(), asyncio.create_task(g()))\nasyncio.run(main())",
            "async def main(): asyncio.create_task(f())",
            "start = lambda: asyncio.create_task(f())",
            "loop = asyncio.new_event_loop(); t = loop.create_task(f()); loop.run_until_complete(t)",
            "torch.gather(x, 1, y)",
            "# create_task(",
            "create_task(",
        ):
            self.assertFalse(kernel_tasks.needs_loop(cell), cell)

    def test_tasks_go_on_until_a_frame_comes(self):
        loop = asyncio.new_event_loop()
        reader, writer = os.pipe()

        async def answer():
            await asyncio.sleep(0.01)
            os.write(writer, b"x")

        with mock.patch.object(kernel_tasks, "cell_loop", lambda: loop):
            task = loop.create_task(answer())
            self.assertTrue(kernel_tasks.has_tasks())
            self.assertFalse(kernel_tasks.wait_until_readable(reader, 0.001))
            self.assertTrue(kernel_tasks.wait_until_readable(reader))
            self.assertTrue(task.done())
            self.assertFalse(kernel_tasks.has_tasks())
        loop.close()
        for descriptor in (reader, writer):
            os.close(descriptor)


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
        with mock.patch.object(kernel, "wait_until_readable", lambda *_: not quiet), mock.patch.object(kernel, "is_alone", lambda **_: alone):
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
