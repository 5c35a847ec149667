"""Clients that cut their streams, at every phase of them: nothing of theirs is left."""

import contextlib
import json
import os
import random
import re
import select
import socket
import sqlite3
import struct
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conftest import Server, eventually

# A run by hand asks for more: 2,000 take some minutes.
STREAMS = int(os.environ.get("ALUDEL_CUT_STREAMS", "64"))
AT_ONCE = 32
POOL = 2
QUESTIONS = ("naps", "write a file", "two programs", "a chart", "counts slowly", "fails first", "2**20", "dies")


def request(url, path, question, key):
    if path == "/v1/responses":
        tool = {"type": "code_interpreter", "container": {"type": "auto"}}
        body = {"model": "gpt-5", "input": question, "tools": [tool], "stream": True}
    else:
        messages = [{"role": "user", "content": question}]
        body = {"model": "gpt-5", "messages": messages, "tools": [{"type": "code_interpreter"}], "stream": True}
    body = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: {url}\r\ncontent-type: application/json\r\nidempotency-key: {key}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def reset(connection):
    """Closes a connection as a client does that died: at once, and with nothing said."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def asked(url, number):
    """The request of this number: each has a key of its own, so that asking again is the same request."""
    path = ("/v1/responses", "/v1/chat/completions")[number % 2]
    return request(url, path, QUESTIONS[number // 2 % len(QUESTIONS)], f"cut-{number}")


def cut(url, number):
    """Asks, and cuts the stream in a phase that follows from the number. Says how far it came."""
    chance = random.Random(number)
    sent = asked(url, number)
    host, port = url.split(":")
    connection = socket.create_connection((host, int(port)))
    heard = bytearray()
    way = chance.choice(["half a request", "before the head", "soon", "late", "bytes", "whole"])
    until = {"soon": chance.uniform(0.005, 0.05), "late": chance.uniform(0.05, 0.4)}.get(way, 60)
    most = {"before the head": 0, "bytes": chance.randint(1, 6000)}.get(way, 1 << 30)
    if way == "half a request":
        connection.sendall(sent[: chance.randrange(1, len(sent))])
        until = chance.uniform(0, 0.02)
    else:
        connection.sendall(sent)
    if way == "before the head":
        time.sleep(chance.uniform(0, 0.06))
    end = time.monotonic() + until
    while len(heard) < most and (left := end - time.monotonic()) > 0 and b"0\r\n\r\n" not in heard[-5:]:
        if select.select([connection], [], [], left)[0]:
            if not (piece := connection.recv(min(4096, most - len(heard)))):
                break
            heard += piece
    reset(connection) if chance.random() < 0.5 else connection.close()
    status = re.match(rb"HTTP/1.1 (\d+)", heard)
    return way, int(status[1]) if status else None


def whole(url, sent):
    """Asks, and listens to the end. Says how it was answered."""
    host, port = url.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(sent)
        heard, end = bytearray(), time.monotonic() + 60
        while not heard.endswith(b"0\r\n\r\n") and not is_error(heard) and (piece := connection.recv(65536)):
            heard += piece
            # A stream that nobody writes any more still has its comments.
            assert time.monotonic() < end, "the answer does not end"
    return int(re.match(rb"HTTP/1.1 (\d+)", heard)[1])


def is_error(heard):
    """Returns true for a whole answer of a known length, as errors are."""
    head, _, body = heard.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(length) and len(body) >= int(length[1])


def figure(server, name):
    with urllib.request.urlopen(server.url + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.split()[0].split("{")[0] == name)


def children(pid):
    """All processes below one, by their parents."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found, below = set(), {pid}
    while below := {process for process, parent in parents.items() if parent in below}:
        found |= below
    return found


def descriptors(pid, model=None):
    """Open descriptors, but connections to the model's server: idle ones are kept for the next call."""
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    kept = {f"socket:[{line[9]}]" for line in lines if int(line[2].split(":")[1], 16) == model}
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(descriptor) not in kept
    return found


def mounts(pid):
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


def resident(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) >> 10


def holders(pid):
    """Open descriptors by process, for a reader of a failure."""
    found = {}
    for process in sorted(children(pid)):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process}/comm").read_text().strip()
            links = [os.readlink(descriptor) for descriptor in Path(f"/proc/{process}/fd").iterdir()]
            found[f"{process} {name}"] = dict(sorted(Counter(re.sub(r"[0-9]{2,}", "N", link) for link in links).items()))
    return found


def sum_of(figure, processes):
    total = 0
    for pid in processes:
        # One that has ended meanwhile has nothing.
        with contextlib.suppress(OSError, TypeError):
            total += figure(pid)
    return total


def groups(server):
    """Control groups of the server's sandboxes, in every tree."""
    found = 0
    # Past those that servers of other tests remove meanwhile.
    for directory, names, _files in os.walk("/sys/fs/cgroup"):
        if os.path.basename(directory).startswith(f"aludel-{server.process.pid}-"):
            found += sum(name.startswith("s") for name in names)
    return found


def remains(server, model):
    """Everything that a sandbox or a stream may leave, in the server and in the processes below it: the warden's and all that it holds."""
    pid = server.process.pid
    below = children(pid)
    return {
        "containers": figure(server, "aludel_containers_live"),
        "requests": figure(server, "aludel_http_requests_in_flight"),
        "workspaces": server.sandboxes(),
        "control groups": groups(server),
        "processes": len(below),
        "mounts": sum_of(mounts, below),
        "descriptors": descriptors(pid, model),
        "descriptors below": sum_of(descriptors, below),
        "MiB": resident(pid),
        "MiB below": sum_of(resident, below),
    }


def settled(server, model):
    """The rest, once it has not changed for a second."""
    before = remains(server, model)
    for _ in range(60):
        time.sleep(1)
        after = remains(server, model)
        if all(after[name] == before[name] for name in before if not name.startswith("MiB")):
            break
        before = after
    return before


def is_quiet(server):
    """Nothing is answered but this question, the pool is full, no turn is under way, and room is taken only where there is a sandbox."""
    return (
        figure(server, "aludel_http_requests_in_flight") <= 1
        and figure(server, "aludel_sandboxes_ready") == POOL
        and not unfinished(server)
        and figure(server, "aludel_containers_live") + POOL == server.sandboxes()
    )


def unfinished(server):
    """Stored turns that have not ended."""
    (path,) = (Path(server.directory.name) / "state").glob("*.db")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute("SELECT count(*) FROM turns WHERE state <> 'ended'").fetchone()[0]


def clear(server, clients):
    """Removes all containers: those of responses stay until they are left alone for long."""
    # Closed: its connections are some of the descriptors that are counted.
    with server.client(max_retries=0) as client:
        ids = [container.id for container in client.containers.list(limit=100)]
        list(clients.map(lambda container: client.containers.delete(container), ids))


def grown(before, after):
    """Returns the resources of which there is more than before. Readers of the database, connections to the model and allocators may keep a little."""
    spare = {"descriptors": 8, "MiB": 100, "MiB below": 50}
    return {name: (count, after[name]) for name, count in before.items() if after[name] > count + spare.get(name, 0)}


def test_streams_that_are_cut_leave_nothing(upstream):
    sections = "[server]\nmetrics = true\n"
    with Server(upstream, sections=sections, memory='"256m"', linger='"1s"', pool=POOL) as server:
        url = server.url.removeprefix("http://")
        usual = [request(url, path, "2**20", f"whole-{path}") for path in ("/v1/responses", "/v1/chat/completions")]
        with ThreadPoolExecutor(AT_ONCE) as clients:
            # Streams that nobody cut: what is there after them is usual.
            list(clients.map(lambda number: whole(url, asked(url, -1 - number)), range(AT_ONCE)))
            eventually(lambda: is_quiet(server), 60)
            clear(server, clients)
            eventually(lambda: is_quiet(server) and server.sandboxes() == POOL, 60)
            before, held = settled(server, upstream), holders(server.process.pid)
            begun = time.monotonic()
            came = list(clients.map(lambda number: cut(url, number), range(STREAMS)))
            took = time.monotonic() - begun
            # Asked again, a request that was cut before anything was heard of it is answered, one way or another.
            unheard = [number for number, (_, status) in enumerate(came) if status is None][:AT_ONCE]
            again = Counter(clients.map(lambda number: whole(url, asked(url, number)), unheard))
            eventually(lambda: is_quiet(server), 60)
            clear(server, clients)
        # The look that found nothing is judged: in the next one a sandbox of the pool may just be opening something.
        end = time.monotonic() + 60
        while grown(before, after := remains(server, upstream)) and time.monotonic() < end:
            time.sleep(0.2)
        if grown(before, after):
            print(f"held before {held}\nheld after  {holders(server.process.pid)}")
        print(f"{STREAMS} streams in {took:.0f} s: {dict(Counter(came))}\nagain  {dict(again)}\nbefore {before}\nafter  {after}")
        assert not grown(before, after)
        assert is_quiet(server)
        assert not [line for line in server.said if "panicked" in line]
        assert any(status == 200 for _, status in came)
        assert [whole(url, sent) for sent in usual] == [200, 200]
