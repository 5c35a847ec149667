"""Calls of tools by programs, and their input."""

import asyncio
import json
import threading
import unittest
from unittest import mock

from tests_frames import Frames
import kernel_input
import kernel_output
import kernel_tools


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
        self.assertEqual((names["a"], names["b"], names["c"]), ('{"x": 1}', '{"y": "é"}', "{}"))
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
