#!/usr/local/bin/python3 -IS
"""`ps` for a sandbox, where `/proc` has the processes and nothing of the machine: the options that people and scripts use."""

import os
import pwd
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MEMORY = os.sysconf("SC_PHYS_PAGES") * PAGE

# The columns of each form.
PLAIN = ["pid", "tty", "time", "comm"]
FULL = ["user", "pid", "ppid", "c", "stime", "tty", "time", "cmd"]
OF_USERS = ["user", "pid", "%cpu", "%mem", "vsz", "rss", "tty", "stat", "start", "time", "command"]
OF_BSD = ["pid", "tty", "stat", "time", "command"]

# Heading, width (negative: to the left), and value of each column.
COLUMNS = {
    "user": ("USER", -8, lambda process: process.user),
    "uid": ("UID", 5, lambda process: process.uid),
    "pid": ("PID", 7, lambda process: process.id),
    "ppid": ("PPID", 7, lambda process: process.parent),
    "pgid": ("PGID", 7, lambda process: process.group),
    "sid": ("SID", 7, lambda process: process.session),
    "c": ("C", 2, lambda process: int(process.share())),
    "%cpu": ("%CPU", 4, lambda process: f"{process.share():.1f}"),
    "%mem": ("%MEM", 4, lambda process: f"{100 * process.resident / MEMORY:.1f}"),
    "vsz": ("VSZ", 7, lambda process: process.virtual >> 10),
    "rss": ("RSS", 6, lambda process: process.resident >> 10),
    "ni": ("NI", 3, lambda process: process.nice),
    "nlwp": ("NLWP", 4, lambda process: process.threads),
    "tty": ("TT", -8, lambda process: process.terminal),
    "stat": ("STAT", -4, lambda process: process.state),
    "start": ("START", 5, lambda process: time.strftime("%H:%M", time.localtime(process.started))),
    "stime": ("STIME", 5, lambda process: time.strftime("%H:%M", time.localtime(process.started))),
    "lstart": ("STARTED", 24, lambda process: time.ctime(process.started)),
    "time": ("TIME", 8, lambda process: clock(process.used)),
    "etime": ("ELAPSED", 11, lambda process: clock(process.age)),
    "etimes": ("ELAPSED", 7, lambda process: int(process.age)),
    "comm": ("CMD", -15, lambda process: process.name),
    "cmd": ("CMD", -27, lambda process: process.command),
    "command": ("COMMAND", -27, lambda process: process.command),
}
SAME = {"args": "command", "pcpu": "%cpu", "pmem": "%mem", "euser": "user", "ruser": "user", "uname": "user", "ucmd": "comm",
        "vsize": "vsz", "rssize": "rss", "nice": "ni", "tt": "tty", "tname": "tty", "s": "stat", "state": "stat", "start_time": "stime",
        "pgrp": "pgid", "sess": "sid", "session": "sid", "cputime": "time", "thcount": "nlwp", "euid": "uid", "bsdstart": "start"}


class Process:
    def __init__(self, id):
        with open(f"/proc/{id}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
        self.id, self.uid = id, os.stat(f"/proc/{id}").st_uid
        start, end = text.index("("), text.rindex(")")
        self.name = text[start + 1 : end]
        fields = text[end + 2 :].split()
        self.state, self.parent, self.group, self.session = fields[0], int(fields[1]), int(fields[2]), int(fields[3])
        device = int(fields[4])
        number = device & 0xFF | device >> 12 & 0xFFF00
        self.terminal = f"pts/{number}" if device else "?"
        self.used = (int(fields[11]) + int(fields[12])) / TICKS
        self.nice, self.threads = int(fields[16]), int(fields[17])
        self.age = max(0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS)
        self.started = time.time() - self.age
        self.virtual, self.resident = int(fields[20]), int(fields[21]) * PAGE
        try:
            with open(f"/proc/{id}/cmdline", "rb") as file:
                self.command = file.read().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            self.command = ""
        self.command = self.command or f"[{self.name}]"
        try:
            self.user = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            self.user = str(self.uid)

    def share(self):
        return min(100 * self.used / self.age, 999) if self.age > 0 else 0


def clock(seconds):
    seconds = int(seconds)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def processes():
    found = []
    for entry in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        try:
            found.append(Process(int(entry)))
        except (OSError, ValueError):
            pass  # it has ended
    return found


class Asked:
    """The arguments, as ps reads them: with a dash or without, together or apart."""

    def __init__(self, arguments):
        self.columns, self.ids, self.names, self.users, self.parents = None, None, None, None, None
        self.all, self.headed, self.sort = False, True, None
        arguments = list(arguments)
        while arguments:
            argument = arguments.pop(0)
            if argument.startswith("--"):
                name, _, value = argument[2:].partition("=")
                self.long(name, value, arguments)
            elif argument.startswith("-"):
                self.short(argument[1:], arguments)
            elif argument.isdigit() or "," in argument:
                self.ids = (self.ids or []) + numbers(argument)
            else:
                self.bsd(argument, arguments)

    def long(self, name, value, arguments):
        takes = {"pid": self.take_ids, "ppid": self.take_parents, "format": self.take_columns, "user": self.take_users, "sort": self.take_order}
        if name in ("no-headers", "no-heading", "no-header", "noheaders"):
            self.headed = False
        elif name in takes:
            takes[name](value or taken(name, arguments))
        elif name not in ("headers", "forest", "cols", "columns", "width"):
            refuse(f"the option --{name} is not known to the ps of this sandbox")

    def short(self, letters, arguments):
        takes = {"p": self.take_ids, "o": self.take_columns, "O": self.take_columns, "u": self.take_users, "U": self.take_users,
                 "C": self.take_names}
        for place, letter in enumerate(letters):
            if letter in takes:
                takes[letter](letters[place + 1 :] or taken(letter, arguments))
                return
            if letter in "eAadxN":
                self.all = True
            elif letter == "f":
                self.columns = self.columns or FULL
            elif letter not in "lFwwTLjHmy":
                refuse(f"the option -{letter} is not known to the ps of this sandbox")

    def bsd(self, letters, arguments):
        self.columns = self.columns or OF_BSD
        for place, letter in enumerate(letters):
            if letter == "u":
                self.columns = OF_USERS
            elif letter in "ax":
                self.all = True
            elif letter == "o":
                return self.take_columns(letters[place + 1 :] or taken(letter, arguments))
            elif letter == "p":
                return self.take_ids(letters[place + 1 :] or taken(letter, arguments))
            elif letter == "h":
                self.headed = False
            elif letter not in "wefjlTgr":
                refuse(f"the option {letter} is not known to the ps of this sandbox")

    def take_ids(self, text):
        self.ids = (self.ids or []) + numbers(text)

    def take_parents(self, text):
        self.parents = (self.parents or []) + numbers(text)

    def take_names(self, text):
        self.names = text.split(",")

    def take_users(self, text):
        self.users = text.split(",")

    def take_order(self, text):
        self.sort = text.split(",")[0]

    def take_columns(self, text):
        if self.columns in (OF_BSD, OF_USERS, FULL):
            self.columns = None
        chosen = []
        for part in text.replace(",", " ").split():
            name, given, heading = part.partition("=")
            name = SAME.get(name.lower(), name.lower())
            if name not in COLUMNS:
                refuse(f"the column {name} is not known to the ps of this sandbox; these are: {', '.join(sorted(COLUMNS))}")
            chosen.append((name, heading) if given else name)
        self.columns = (self.columns or []) + chosen

    def wants(self, process, own):
        asked = [wish for wish in (self.ids, self.parents, self.names, self.users) if wish is not None]
        if not asked:
            return self.all or process.session == own.session
        return (
            process.id in (self.ids or ())
            or process.parent in (self.parents or ())
            or process.name in (self.names or ())
            or bool({process.user, str(process.uid)} & set(self.users or ()))
        )


def numbers(text):
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        refuse(f"{text} is no list of process ids")


def taken(option, arguments):
    return arguments.pop(0) if arguments else refuse(f"the option {option} needs a value")


def refuse(words):
    print(f"ps: {words}", file=sys.stderr)
    sys.exit(1)


def main():
    asked = Asked(sys.argv[1:])
    found = processes()
    own = next((process for process in found if process.id == os.getpid()), None)
    shown = [process for process in found if asked.wants(process, own)]
    if asked.sort:
        name = asked.sort.lstrip("+-")
        name = SAME.get(name, name)
        if name not in COLUMNS:
            refuse(f"the column {name} is not known to the ps of this sandbox")
        keys = {"%cpu": Process.share, "%mem": lambda process: process.resident, "start": lambda process: process.started}
        shown.sort(key=keys.get(name, COLUMNS[name][2]), reverse=asked.sort.startswith("-"))
    columns = []
    for column in asked.columns or PLAIN:
        name, heading = column if isinstance(column, tuple) else (column, COLUMNS[column][0])
        columns.append((heading, *COLUMNS[name][1:]))
    rows = [[heading for heading, *_ in columns]] if asked.headed and any(heading for heading, *_ in columns) else []
    rows += [[str(value(process)) for _, _, value in columns] for process in shown]
    for row in rows:
        cells = [cell.rjust(width) if width > 0 else cell.ljust(-width) for cell, (_, width, _) in zip(row, columns)]
        print(" ".join(cells).rstrip())
    sys.exit(0 if shown else 1)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)
