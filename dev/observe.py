"""A server as it is seen from outside: its processes, and its rows and blobs."""

import collections
import contextlib
import hashlib
import os
import sqlite3
from pathlib import Path

TABLES_OF_BLOBS = ("files", "upload_parts", "container_files", "turn_blobs")
WRONG_BYTES_OF_TURNS = """SELECT id, bytes FROM turns WHERE bytes <>
    (SELECT coalesce(sum(128 + length(CAST(event AS BLOB))), 0) FROM turn_events WHERE turn = id)
    + (SELECT coalesce(sum(128 + length(CAST(item AS BLOB))), 0) FROM turn_items WHERE turn = id)
    + (SELECT coalesce(sum(4096 + turn_blobs.bytes), 0) FROM turn_blobs WHERE turn = id)"""


class Process:
    """A process as /proc has it; the time of its start tells it from another one of the same number."""

    def __init__(self, pid):
        self.pid = pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        self.state, self.parent, self.began = fields[0], int(fields[1]), fields[19]
        self.namespace = os.readlink(f"/proc/{pid}/ns/pid")

    def is_there(self):
        with contextlib.suppress(OSError):
            return Process(self.pid).began == self.began
        # One that has ended and that nobody has waited for has no namespace to be read.
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[19] == self.began
        return False


class Tree:
    """The processes of a server at one moment: its child, which is the parent of the warden, the warden, and what the warden has made."""

    def __init__(self, server):
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                found[int(path.name)] = Process(int(path.name))
        self.children = collections.defaultdict(list)
        for process in found.values():
            self.children[process.parent].append(process)
        self.server = found[server.process.pid]
        self.outside = [child for child in self.children[self.server.pid] if self.children[child.pid]]
        self.wardens = [child for outside in self.outside for child in self.children[outside.pid]]
        below = [child for warden in self.wardens for child in self.children[warden.pid]]
        own = {warden.namespace for warden in self.wardens}
        # The first of a namespace is its init, and in the warden's own the zygote.
        first = {}
        for process in sorted(below, key=lambda process: (int(process.began), process.pid)):
            first.setdefault(process.namespace, process)
        self.zygotes = [process for namespace, process in first.items() if namespace in own]
        self.inits = [process for namespace, process in first.items() if namespace not in own]
        self.kernels = [process for process in below if process.namespace not in own and process not in self.inits]

    def below(self, process):
        return [process] + [one for child in self.children[process.pid] for one in self.below(child)]


def state(server):
    """The database, to be read."""
    return contextlib.closing(sqlite3.connect(f"file:{server.directory.name}/state/aludel.db?mode=ro", uri=True))


def check_rows(server):
    """Each row's blob is there and whole, and what is counted is what is there. Returns the names of blobs in rows, and on the disk."""
    blobs = {path.name: path for path in Path(server.directory.name, "state/blobs").glob("*/*")}
    with state(server) as database:
        named = {}
        for table in TABLES_OF_BLOBS:
            named.update(database.execute(f"SELECT blob, bytes FROM {table}").fetchall())
        hashes = dict(database.execute("SELECT blob, sha256 FROM container_files").fetchall())
        columns = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%cost INTEGER AS%'"
        counted = collections.Counter()
        for (table,) in database.execute(columns).fetchall():
            counted.update(dict(database.execute(f"SELECT tenant, sum(cost) FROM {table} GROUP BY tenant").fetchall()))
        usage = dict(database.execute("SELECT tenant, bytes FROM usage WHERE bytes > 0").fetchall())
        assert usage == +counted, f"counted are {usage}, there are {counted}"
        wrong = database.execute(WRONG_BYTES_OF_TURNS).fetchall()
        assert not wrong, f"bytes of turns are wrong: {wrong}"
        assert database.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        assert not database.execute("PRAGMA foreign_key_check").fetchall()
    for name, size in named.items():
        assert name in blobs, f"the row of {name} has no blob"
        assert blobs[name].stat().st_size == size, f"{name} has {blobs[name].stat().st_size} bytes, not {size}"
        if name in hashes:
            assert hashlib.sha256(blobs[name].read_bytes()).hexdigest() == hashes[name], f"{name} has another content"
    return set(named), set(blobs)
