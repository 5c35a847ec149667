"""The first process of a sandbox."""

import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest
from unittest import mock

import first_bounds
import first_descendants
import first_memory
import first_messages
import first_process
import first_streams
import kernel
import kernel_channel
import start


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
        for name, most in (("locks", first_bounds.MAX_LOCKS), ("sockets", first_bounds.MAX_SOCKETS), ("terminals", first_bounds.MAX_TERMINALS)):
            self.assertFalse(self.ended(**{name: most}))
            self.assertTrue(self.ended(**{name: most + 1}))

    def test_a_figure_that_is_not_told_hides_no_other(self):
        untold = mock.Mock(side_effect=OSError())
        self.assertTrue(self.ended(locks=untold, terminals=first_bounds.MAX_TERMINALS + 1))
        self.assertFalse(self.ended(locks=untold))

    def test_a_part_of_the_list_of_locks_is_read(self):
        line = b"1: FLOCK  ADVISORY  WRITE 1 00:01:1 0 EOF\n"
        for count, counted in ((3, 3), (1 << 20, first_bounds.LOCK_LIST_BYTES // len(line))):
            with mock.patch("builtins.open", lambda *_, count=count: io.BytesIO(line * count)):
                self.assertEqual(first_bounds.locks(), counted)


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
