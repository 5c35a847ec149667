"""Frames of output: texts, tables, charts and errors."""

import os
import threading
import sys
import unittest
from unittest import mock

from tests_frames import Frames
import forms
import kernel_channel
import kernel_errors
import kernel_output
import kernel_width


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
        with mock.patch.object(kernel_output, "MAX_TURNS", 2):
            for descriptor in (1, 2, 2, 1, 2):
                self.output.keep_order(descriptor)
        self.assertEqual(len(self.output.channel.frames), 2)

    def test_text_is_cut_and_long_documents_are_left_out(self):
        self.assertEqual(kernel_output.encode_bundle({"text/html": "x" * (5 << 20)}), {"text/html": "x" * (5 << 20)})
        page = "x" * (7 << 20)
        note = "[HTML of 7 MB was left out: too large to show; write it to a file instead]"
        self.assertEqual(kernel_output.encode_bundle({"text/html": page}), {"text/plain": note})
        bundle = kernel_output.encode_bundle({"text/html": page, "text/plain": "<Page>"})
        self.assertEqual(bundle, {"text/plain": f"<Page>\n{note}"})
        long = "x" * (kernel_output.MAX_TEXT + 3)
        bundle = kernel_output.encode_bundle(
            {"text/plain": long, "image/png": b"\x01", "application/json": {"a": 1}}
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
        self.assertNotIn("tests_output.py", told["traceback"])

    @unittest.skipIf(sys.version_info < (3, 11), "groups are newer")
    def test_a_group_tells_its_members(self):
        told = self.described(
            "import asyncio\nasync def f(n):\n    raise ValueError(f'reason {n}')\n"
            "async def main():\n    async with asyncio.TaskGroup() as group:\n"
            "        for n in range(6): group.create_task(f(n))\nasyncio.run(main())"
        )
        self.assertIn("ExceptionGroup: unhandled errors in a TaskGroup (6 sub-exceptions)", told["traceback"])
        self.assertIn("  --- 1 of 6 ---\n  Traceback (most recent call last):\n", told["traceback"])
        self.assertIn("  ValueError: reason 0\n", told["traceback"])
        self.assertIn("  [2 exceptions not shown]", told["traceback"])
        deep = ValueError("deepest")
        for _ in range(100):
            deep = ExceptionGroup("more", [deep])
        told = kernel_errors.describe_error(deep)
        self.assertIn("[1 exception not shown]", told["traceback"])
        self.assertLess(len(told["traceback"]), 2000)

    def test_a_value_is_whole(self):
        self.assertEqual(len(kernel_errors.describe_error(ValueError("q" * 200_000))["value"]), 200_000)

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


class WidthTest(unittest.TestCase):
    def test_a_width_is_bounded_and_a_number(self):
        widths = [kernel_width.columns_of(text) for text in ("120", "1", "100000", "-5", "", "wide")]
        self.assertEqual(widths, [120, kernel_width.NARROWEST, kernel_width.WIDEST, kernel_width.NARROWEST, None, None])


class ChannelTest(unittest.TestCase):
    def setUp(self):
        self.reader, writer = os.pipe()
        self.channel, self.host = kernel_channel.Channel(to_host=writer), kernel_channel.Channel(from_host=self.reader)
        self.addCleanup(os.close, self.reader)
        self.addCleanup(os.close, writer)

    def test_a_frame_arrives_as_it_was_sent(self):
        self.channel.send({"type": "display", "data": {"text/plain": "é"}})
        self.assertEqual(self.host.receive(), {"type": "display", "data": {"text/plain": "é"}})

    def test_half_a_character_is_written_out(self):
        self.channel.send({"type": "error", "value": "a\ud83d\u00e9", "data": {"\udfff": '"\ud800"'}})
        self.assertEqual(self.host.receive(), {"type": "error", "value": "a\\ud83d\u00e9", "data": {"\\udfff": '"\\ud800"'}})
        self.assertEqual(kernel_output.encode_bundle({"application/json": {"a": "\ud800"}}), {"application/json": '{"a": "\\\\ud800"}'})

    def test_it_works_without_the_modules_it_took_from(self):
        with mock.patch("json.dumps", None), mock.patch("os.write", None), mock.patch("os.read", None), mock.patch("struct.pack", None):
            self.channel.send({"number": 1})
            self.assertEqual(self.host.receive(), {"number": 1})

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
