"""A server that is killed at every step of a response, and at every step of taking up what it left.

By default some steps stand for the others; ALUDEL_KILLS=all takes every one.
"""

import contextlib
import json
import os
import sqlite3
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
import pytest

from conftest import Server, aludel, eventually
from test_approval import decide, holding, pending
from test_responses import ask

ALL = os.environ.get("ALUDEL_KILLS") == "all"
STOPPED = "The server was stopped before the response was done."
ENDS = ("response.completed", "response.failed", "response.incomplete")
QUESTION = "write a file"
# Events of a stream without those that repeat another: the rest of the pieces is taken by ALUDEL_KILLS=all.
STEPS = [
    ("response.created", 0),
    ("response.code_interpreter_call_code.delta", 1),
    ("response.code_interpreter_call_code.done", 0),
    ("response.code_interpreter_call.interpreting", 0),
    ("response.output_item.done", 0),
    ("response.output_text.delta", 1),
    ("response.output_item.done", 1),
    ("response.completed", 0),
]


def rest(stream):
    """Returns the events sent before the server went away."""
    # The client's transport has errors of its own for a stream that breaks off.
    with contextlib.suppress(Exception):
        yield from stream


def may_be_lost(event):
    """Pieces of a text or a program are told before they are stored, and a message begins with its first piece."""
    return event.type.endswith((".delta", "content_part.added")) or getattr(getattr(event, "item", None), "status", "") == "in_progress"


class Heard:
    """A response as its client heard it, up to the kill."""

    def __init__(self, server, question=QUESTION):
        self.server = server
        client = server.client(max_retries=0)
        self.conversation = client.conversations.create().id
        self.stream = ask(client, question, stream=True, conversation=self.conversation)
        self.events = []

    @property
    def id(self):
        return self.events[0].response.id

    def hear(self, until):
        for event in self.stream:
            self.events.append(event)
            if until(event, self.events):
                return

    def killed(self):
        """Kills the server; what was on its way is heard, too."""
        self.server.process.kill()
        self.events += rest(self.stream)
        self.server.process.wait()

    def check(self, client):
        """Everything that was told is there, once, whether the response goes on, failed or was done."""
        waits = []

        def decided_and_ended():
            # Killed before it could store that it asks, the program is asked about once more when the server is back.
            for approval in pending_of(client, self.id):
                assert client.responses.retrieve(self.id).status == "in_progress"
                decide(client, approval)
                waits.append(approval)
            return ended(client, self.id)

        done = eventually(decided_and_ended)
        assert len(waits) <= 1 and (done.status == "completed" or not waits)
        told = {event.type: event for event in self.events}
        if "response.completed" in told:
            assert done == told["response.completed"].response
        assert done.status == "completed" or (done.status, done.error.message) == ("failed", STOPPED)
        self.check_items(client, done)
        self.check_stream(client, done)
        return done

    def check_items(self, client, done):
        whole = {item.id: item for item in done.output}
        assert len(whole) == len(done.output)
        for event in self.events:
            if event.type == "response.output_item.done":
                assert whole[event.item.id] == event.item
                if event.item.type == "code_interpreter_call":
                    files = {file.path: file for file in client.containers.files.list(event.item.container_id)}
                    file = files["/mnt/data/note.txt"]
                    content = client.containers.files.content.retrieve(file.id, container_id=file.container_id)
                    assert content.read() == b"a note"
        kept = [item.id for item in client.conversations.items.list(self.conversation)]
        assert len(set(kept)) == len(kept)
        if done.status == "completed":
            assert len(kept) == len(whole) + 1 and set(whole) <= set(kept)
        else:
            assert kept == []

    def check_stream(self, client, done):
        again = list(client.responses.retrieve(self.id, stream=True))
        numbers = [event.sequence_number for event in again]
        assert numbers == sorted(set(numbers))
        assert [event.type for event in again if event.type in ENDS] == [again[-1].type]
        assert again[-1].response == done
        # Told events are told again in the same words, but for the last pieces; nobody else gets their numbers.
        by_number = dict(zip(numbers, again))
        stored = [event for event in self.events if event.sequence_number in by_number]
        assert stored == [by_number[event.sequence_number] for event in stored] == self.events[: len(stored)]
        assert all(may_be_lost(event) for event in self.events[len(stored) :])
        after = self.events[-1].sequence_number
        later = list(client.responses.retrieve(self.id, stream=True, starting_after=after))
        assert later == [event for event in again if event.sequence_number > after]
        if self.events[-1].type not in ENDS:
            assert later


def ended(client, id):
    found = client.responses.retrieve(id, include=["code_interpreter_call.outputs"])
    return found.status not in ("queued", "in_progress") and found


def check_audit(server):
    """No program was started twice."""
    entries = [json.loads(line) for line in aludel(server, "audit", "--json").stdout.splitlines()]
    started = [(entry["request"], entry["code"]) for entry in entries if entry["event"] == "started"]
    assert len(set(started)) == len(started)
    assert aludel(server, "audit", "--verify").returncode == 0


def instances(server):
    return {path.name for path in (Path(server.directory.name) / "run").glob("[0-9]*")}


def left(server, gone):
    """Returns leftovers of instances that were killed: directories, control groups, processes and mounts."""
    found = sorted(instances(server) & gone)
    for root, directories, _ in os.walk("/sys/fs/cgroup"):
        found += [os.path.join(root, name) for name in directories if name.removeprefix("aludel-") in gone]
    paths = [f"/run/{name}/" for name in gone]
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            text = mounts.read_text()
            found += [f"{mounts} {path}" for path in paths if path in text]
    return found


def check_nothing_left(server, gone):
    assert gone
    assert eventually(lambda: not left(server, gone), 20)


def places(server, steps):
    """The places of a stream at which the server is killed: after so many events."""
    heard = Heard(server)
    heard.hear(lambda event, _: event.type.endswith("code.done"))
    if "[approval]" in server.settings:
        approve_when_asked(server.client())
    heard.hear(lambda *_: False)
    kinds = [event.type for event in heard.events]
    if ALL:
        return range(1, len(kinds) + 1)
    return [[place for place, kind in enumerate(kinds) if kind == wanted][number] + 1 for wanted, number in steps]


def test_killed_after_every_event(upstream):
    with Server(upstream) as server:
        ends = []
        for place in places(server, STEPS):
            heard, gone = Heard(server), instances(server)
            heard.hear(lambda _, events: len(events) == place)
            heard.killed()
            server.start()
            ends.append(heard.check(server.client()).status)
            check_nothing_left(server, gone)
        check_audit(server)
        assert ends[-1] == "completed"


def test_killed_after_every_event_of_a_program_that_is_asked_about(upstream):
    with holding(upstream) as server:
        ends = []
        for place in places(server, STEPS[2:]):
            heard, gone = Heard(server), instances(server)
            heard.hear(lambda event, events: event.type.endswith("code.done") or len(events) == place)
            if len(heard.events) < place:
                approve_when_asked(server.client())
                heard.hear(lambda _, events: len(events) == place)
            heard.killed()
            server.start()
            ends.append(heard.check(server.client()).status)
            check_nothing_left(server, gone)
        check_audit(server)
        assert ends[-1] == "completed"


def approve_when_asked(client):
    (approval,) = pending(client)
    decide(client, approval)


def test_killed_around_the_decision(upstream):
    """The gate looks four times a second at what was decided: the program starts at some time within 0.25 s."""
    with holding(upstream) as server:
        for delay in [at / 100 for at in range(0, 50)] if ALL else [0, 0.1, 0.2, 0.3]:
            heard, gone = Heard(server), instances(server)
            heard.hear(lambda event, _: event.type.endswith("code.done"))
            approve_when_asked(server.client())
            time.sleep(delay)
            heard.killed()
            server.start()
            heard.check(server.client())
            check_nothing_left(server, gone)
        check_audit(server)


def state(server):
    (path,) = (Path(server.directory.name) / "state").glob("aludel.db")
    return contextlib.closing(sqlite3.connect(path, isolation_level=None))


def between_writes(server, *statements):
    """Leaves the state of a server that is not running as if it had been killed between two writes."""
    with state(server) as database:
        for statement, *values in statements:
            assert database.execute(statement, values).rowcount, statement


def test_killed_before_a_response_was_stored(upstream):
    with holding(upstream) as server:
        heard = Heard(server)
        heard.hear(lambda event, _: event.type.endswith("code.done"))
        heard.killed()
        between_writes(server, ("DELETE FROM responses WHERE id = ?", heard.id))
        server.start()
        assert readiness(server) == 200 and not any("cannot take up" in line for line in server.said)
        with pytest.raises(openai.NotFoundError):
            server.client().responses.retrieve(heard.id)


def readiness(server):
    try:
        with urllib.request.urlopen(server.url + "/readyz") as ready:
            return ready.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_turn_that_cannot_be_read_is_ended(upstream):
    with holding(upstream) as server:
        heard = Heard(server)
        heard.hear(lambda event, _: event.type.endswith("code.done"))
        heard.killed()
        between_writes(server, ("UPDATE turns SET dialect_state = '{' WHERE id = ?", heard.id))
        server.start()
        assert readiness(server) == 200 and eventually(lambda: any("cannot be restored" in line for line in server.said))


def test_killed_between_the_start_of_a_program_and_its_event(upstream):
    with holding(upstream) as server:
        heard = Heard(server)
        heard.hear(lambda event, _: event.type.endswith("code.done"))
        (approval,) = eventually(lambda: pending_of(server.client(), heard.id))
        heard.killed()
        started = "UPDATE approvals SET status = 'approved', decided_by = 'x', decided_at = ?1, started_at = ?1 WHERE id = ?2"
        between_writes(server, (started, int(time.time()), approval["id"]))
        server.start()
        assert heard.check(server.client()).status == "failed"
        assert "started" not in aludel(server, "audit").stdout


def pending_of(client, id):
    waits = client.get("/approvals", cast_to=object, options={"params": {"status": "pending"}})["data"]
    return [approval for approval in waits if approval["request_id"] == id]


@pytest.mark.parametrize("kept", [False, True], ids=["before the conversation", "after it"])
def test_killed_between_the_last_event_and_the_response(upstream, kept):
    with Server(upstream) as server:
        heard = Heard(server)
        heard.hear(lambda *_: len(heard.events) == 2)
        with state(server) as database:
            ((begun,),) = database.execute("SELECT object FROM responses WHERE id = ?", [heard.id]).fetchall()
        heard.hear(lambda *_: False)
        heard.killed()
        undone = [
            ("UPDATE turns SET state = 'running', ended_at_ms = NULL WHERE id = ?", heard.id),
            ("UPDATE responses SET object = ? WHERE id = ?", begun, heard.id),
        ]
        if not kept:
            undone.append(("DELETE FROM conversation_items WHERE conversation = ?", heard.conversation))
        between_writes(server, *undone)
        server.start()
        assert heard.check(server.client()).status == "completed"


def begin(server):
    """Starts the server without waiting until it serves."""
    thread, before = threading.Thread(target=start_quietly, args=(server,)), server.process
    thread.start()
    eventually(lambda: server.process is not before)
    return thread


def start_quietly(server):
    with contextlib.suppress(RuntimeError):
        server.start()


def test_killed_while_it_takes_up_what_was_left(upstream):
    with holding(upstream) as server:
        client = server.client()
        waiting = [Heard(server) for _ in range(2)]
        for heard in waiting:
            heard.hear(lambda event, _: event.type.endswith("code.done"))
        [eventually(lambda: pending_of(client, heard.id)) for heard in waiting]
        running = ask(client, "runs long", background=True)
        (approval,) = eventually(lambda: pending_of(client, running.id))
        decide(client, approval)
        eventually(lambda: "started" in aludel(server, "audit").stdout)
        gone = instances(server)
        for heard in waiting:
            heard.killed()
        # From its start, and from the time at which it can be connected to.
        for of_listening in (False, True):
            for delay in (0, 0.02, 0.1) if of_listening else (0, 0.02, 0.05, 0.1, 0.2, 0.4):
                thread = begin(server)
                if of_listening:
                    thread.join()
                time.sleep(delay)
                gone |= instances(server)
                server.process.kill()
                server.process.wait()
                thread.join()
        server.start()
        client = server.client()
        for heard in waiting:
            assert heard.check(client).status == "completed"
        failed = client.responses.retrieve(running.id)
        assert (failed.status, failed.error.message) == ("failed", STOPPED)
        ends = [event.type for event in client.responses.retrieve(running.id, stream=True) if event.type in ENDS]
        assert ends == ["response.failed"]
        check_audit(server)
        check_nothing_left(server, gone)
