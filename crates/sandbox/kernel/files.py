"""The file server: does what the host asks for with files of the sandbox, as one of the sandbox's own programs.

The host never follows a path that a program of the sandbox controls; here paths mean what they mean to those programs, and what they may
not touch, this may not touch either. It speaks frames over stdin and stdout: the length of the rest, the length of a JSON header, the
header, and bytes. Each request has one answer; that of `wait` comes when there is something to tell.
"""

import ctypes
import errno
import fnmatch
import json
import os
import select
import shutil
import socket
import stat
import struct
import sys

# The host refuses longer frames.
MAX_FRAME = 8 << 20
# Characters of an error's own words.
MAX_WORDS = 1000
MAX_READ = 1 << 20
MAX_ENTRIES = 10_000
# Patterns that one with braces stands for.
MAX_ALTERNATIVES = 64
MAX_HANDLES = 256
MAX_WATCHES = 32
# Directories of one watch.
MAX_WATCHED = 4096
# Events of one watch that nobody has fetched, and their bytes: they are told in one frame.
MAX_EVENTS = 20_000
MAX_EVENT_BYTES = MAX_FRAME // 2
# Reads of what the system tells of one watch before something else has its turn.
MAX_DRAINED = 8
# Files whose attributes are kept. The host bounds those of one file.
MAX_NOTED = 2000
# Bytes of a file in which text is replaced.
MAX_REPLACED = 64 << 20

# Of linux/fcntl.h and linux/stat.h.
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, STATX_BTIME = -100, 0x100, 0x1000, 0x800
# Of struct statx: the device, the number and the time of birth, with their places.
STATX_IDENTITY = (("II", 136), ("Q", 32), ("qI", 80))
LIBC = ctypes.CDLL(None, use_errno=True)

# The client's attributes of files, by identity. They are kept here: what the system keeps of them is in no control group's count.
noted = {}

HOME = os.environ.get("HOME", "/")
UID, GID = os.getuid(), os.getgid()

PROBLEMS = {
    errno.ENOENT: "not_found",
    errno.EEXIST: "exists",
    errno.ENOTEMPTY: "exists",
    errno.EISDIR: "is_a_directory",
    errno.ENOTDIR: "not_a_directory",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.EBUSY: "denied",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.ENOTSUP: "not_supported",
    errno.ENOSYS: "not_supported",
}


class Refused(Exception):
    """A request that cannot be carried out: the kind of problem, and words."""

    def __init__(self, problem, message):
        super().__init__(message)
        self.problem = problem


def absolute(path):
    """The path that a client means: relative ones begin at home. Cleaned by its text alone, as the clients' own server does."""
    if path == "~" or path.startswith("~/"):
        path = HOME + path[1:]
    if "\0" in path:
        raise Refused("invalid", "a path has no zero bytes")
    path = os.path.normpath(os.path.join(HOME, path))
    return path[1:] if path.startswith("//") else path


def name_of(number, own, word):
    return word if number == own else "root" if number == 0 else str(number)


def identity(descriptor, path):
    """The identity of a file that no later file has: its device, its number, and its birth. Of the descriptor itself if the path is empty."""
    told = ctypes.create_string_buffer(256)
    if LIBC.statx(descriptor, os.fsencode(path), AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH, STATX_BTIME, told):
        raise OSError(ctypes.get_errno(), "statx")
    return sum((struct.unpack_from(form, told, at) for form, at in STATX_IDENTITY), ())


def metadata_of(path):
    """The client's own attributes, by name."""
    try:
        return noted.get(identity(AT_FDCWD, path), {}) if noted else {}
    except OSError:
        return {}  # it is gone


def note_metadata(descriptor, metadata):
    """Keeps the client's attributes of a file; those of the files that were noted first go if there are too many."""
    if not metadata and not noted:
        return
    file = identity(descriptor, "")
    noted.pop(file, None)
    if metadata:
        noted[file] = metadata
    while len(noted) > MAX_NOTED:
        del noted[next(iter(noted))]


def entry(path):
    """A file as it is told to the host. Of a link: its own figures, and those of what it leads to."""
    own = os.lstat(path)
    told = {
        "name": os.path.basename(path) or "/",
        "path": path,
        "size": own.st_size,
        "mode": own.st_mode,
        "owner": name_of(own.st_uid, UID, "user"),
        "group": name_of(own.st_gid, GID, "user"),
        "modified": own.st_mtime_ns,
    }
    if stat.S_ISLNK(own.st_mode):
        told["target"] = os.path.realpath(path)
        try:
            told["target_mode"] = os.stat(path).st_mode
        except OSError:
            pass  # it leads nowhere
    elif stat.S_ISREG(own.st_mode):
        told["metadata"] = metadata_of(path)
    return told


def op_stat(path):
    return {"entry": entry(absolute(path))}


def op_list(path, depth):
    root = absolute(path)
    if not stat.S_ISDIR(os.stat(root).st_mode):
        raise Refused("not_a_directory", f"path is not a directory: {root}")
    entries = []
    todo = [(root, 1)]
    while todo:
        directory, level = todo.pop()
        children = []
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            if directory == root:
                raise
            continue
        for name in names:
            try:
                child = entry(os.path.join(directory, name))
            except OSError:
                continue  # gone meanwhile
            if len(entries) + len(children) >= MAX_ENTRIES:
                raise Refused("too_many", f"the directory has more than {MAX_ENTRIES} entries; list a part of it")
            children.append(child)
        entries.extend(children)
        if level < depth:
            todo.extend((child["path"], level + 1) for child in children if stat.S_ISDIR(child["mode"]))
    entries.sort(key=lambda child: child["path"].split("/"))
    return {"entries": entries}


def op_make(path):
    path = absolute(path)
    try:
        os.makedirs(path, 0o755)
    except FileExistsError:
        if os.path.isdir(path):
            raise Refused("exists", f"directory already exists: {path}") from None
        raise Refused("not_a_directory", f"path already exists but it is not a directory: {path}") from None
    return {"entry": entry(path)}


def op_move(source, destination):
    source, destination = absolute(source), absolute(destination)
    os.lstat(source)
    os.makedirs(os.path.dirname(destination), 0o755, exist_ok=True)
    try:
        os.rename(source, destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(source, destination)
    return {"entry": entry(destination)}


def op_remove(path):
    path = absolute(path)
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass
    return {}


def op_chmod(path, mode):
    path = absolute(path)
    os.chmod(path, mode & 0o7777)
    return {"entry": entry(path)}


def alternatives(pattern):
    """The patterns that a pattern with braces stands for; no braces inside others. Names have no directories, so those of `**/` go."""
    waiting, found = [pattern], []
    while waiting and len(waiting) + len(found) <= MAX_ALTERNATIVES:
        pattern = waiting.pop()
        before, brace, rest = pattern.partition("{")
        inside, end, after = rest.partition("}")
        if brace and end and "{" not in inside:
            waiting += [before + part + after for part in inside.split(",")]
        else:
            while pattern.startswith("**/"):
                pattern = pattern[3:]
            found.append(pattern)
    if waiting:
        raise Refused("too_many", f"the braces stand for more than {MAX_ALTERNATIVES} patterns")
    return found


def op_search(path, pattern):
    """The files below a directory, or the file, whose names match; links are not followed."""
    root = absolute(path)
    places = os.walk(root) if stat.S_ISDIR(os.stat(root).st_mode) else [(os.path.dirname(root), [], [os.path.basename(root)])]
    patterns = alternatives(pattern)
    entries = []
    for directory, _directories, names in places:
        for name in sorted(name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)):
            try:
                found = entry(os.path.join(directory, name))
            except OSError:
                continue  # gone meanwhile
            if len(entries) >= MAX_ENTRIES:
                raise Refused("too_many", f"more than {MAX_ENTRIES} files match; search a part of it")
            entries.append(found)
    return {"entries": entries}


def op_replace(path, old, new):
    path = absolute(path)
    old, new = old.encode(), new.encode()
    if not old:
        raise Refused("invalid", "the text to replace is empty")
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "r+b") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("invalid", f"path '{path}' is not a regular file")
        if found.st_size > MAX_REPLACED:
            raise Refused("too_many", f"path '{path}' is larger than {MAX_REPLACED >> 20} MB")
        text = file.read(MAX_REPLACED)
        count = text.count(old)
        if count:
            if len(text) + count * (len(new) - len(old)) > MAX_REPLACED:
                raise Refused("too_many", f"path '{path}' would be larger than {MAX_REPLACED >> 20} MB")
            replaced = text.replace(old, new)
            # With too little room, before anything is written over.
            os.posix_fallocate(descriptor, 0, len(replaced) or 1)
            file.seek(0)
            file.write(replaced)
            file.truncate()
    return {"count": count}


# Sockets that clients find open as long as files are served.
listeners = {}


def op_listen(port):
    if port not in listeners:
        try:
            listeners[port] = socket.create_server(("127.0.0.1", port))
            listeners[port].setblocking(False)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # A program listens there: open all the same.
    return {}


def hang_up(listener):
    try:
        listener.accept()[0].close()
    except OSError:
        pass  # whoever came has gone


# Open files by handle.
handles = {}
last_handle = 0


def new_handle(thing):
    global last_handle
    last_handle += 1
    handles[last_handle] = thing
    return last_handle


class OpenFile:
    def __init__(self, descriptor, path):
        self.descriptor = descriptor
        self.path = path

    def close(self):
        os.close(self.descriptor)


def check_handles():
    if len(handles) >= MAX_HANDLES:
        raise Refused("busy", f"more than {MAX_HANDLES} files are open")


def file_of(handle):
    found = handles.get(handle)
    if not isinstance(found, OpenFile):
        raise Refused("invalid", "no such open file")
    return found


def op_open(path, offset):
    path = absolute(path)
    check_handles()
    # A pipe without a writer would keep everybody waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise Refused("is_a_directory", f"path '{path}' is a directory")
        if not stat.S_ISREG(found.st_mode):
            raise Refused("invalid", f"path '{path}' is not a regular file")
        if offset:
            os.lseek(descriptor, offset, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return {"handle": new_handle(OpenFile(descriptor, path)), "size": found.st_size, "modified": found.st_mtime_ns}


def op_read(handle, count):
    return {}, os.read(file_of(handle).descriptor, min(count, MAX_READ))


def op_create(path, metadata):
    path = absolute(path)
    check_handles()
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.EISDIR:
            raise Refused("is_a_directory", f"path is a directory: {path}") from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("invalid", f"path is not a regular file: {path}")
        if found.st_uid == UID:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode))
        if found.st_size:
            os.ftruncate(descriptor, 0)
        note_metadata(descriptor, metadata)
    except BaseException:
        os.close(descriptor)
        raise
    return {"handle": new_handle(OpenFile(descriptor, path))}


def op_write(handle, data):
    descriptor = file_of(handle).descriptor
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return {}


def op_close(handle):
    found = handles.pop(handle, None)
    if found is not None:
        found.close()
    return {"entry": entry(found.path)} if isinstance(found, OpenFile) and os.path.lexists(found.path) else {}


IN_MODIFY, IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO = 0x2, 0x4, 0x40, 0x80
IN_CREATE, IN_DELETE, IN_DELETE_SELF, IN_MOVE_SELF = 0x100, 0x200, 0x400, 0x800
IN_Q_OVERFLOW, IN_IGNORED, IN_ISDIR = 0x4000, 0x8000, 0x40000000
IN_ONLYDIR, IN_DONT_FOLLOW = 0x01000000, 0x02000000
WATCHED = IN_MODIFY | IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE
KINDS = [
    (IN_CREATE | IN_MOVED_TO, "create"),
    (IN_MODIFY, "write"),
    (IN_DELETE, "remove"),
    (IN_MOVED_FROM, "rename"),
    (IN_ATTRIB, "chmod"),
]


class Watch:
    """A directory, alone or with all below it, of which changes are told."""

    def __init__(self, root, recursive, entries):
        self.root, self.recursive, self.entries = root, recursive, entries
        self.events, self.size = [], 0
        self.dropped = 0
        # The request that waits for events.
        self.waiting = None
        self.directories = {}
        self.descriptor = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "watching is not possible here")
        try:
            self.add_below(self.add(root, 0))
        except BaseException:
            os.close(self.descriptor)
            raise

    def close(self):
        os.close(self.descriptor)

    def add(self, directory, flags):
        """Watches one directory, and returns those in it; None if it was watched before under this name."""
        if len(self.directories) >= MAX_WATCHED:
            raise Refused("too_many", f"more than {MAX_WATCHED} directories would be watched")
        number = LIBC.inotify_add_watch(
            self.descriptor, os.fsencode(directory), ctypes.c_uint32(WATCHED | IN_ONLYDIR | flags)
        )
        if number < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if self.directories.get(number) == directory:
            return None
        self.directories[number] = directory
        if not self.recursive:
            return []
        with os.scandir(directory) as children:
            return [child.path for child in children if child.is_dir(follow_symlinks=False)]

    def add_below(self, directories):
        """Watches directories and all below them, of which some may be gone by now. Returns those that are new."""
        added = []
        while directories:
            directory = directories.pop()
            try:
                inner = self.add(directory, IN_DONT_FOLLOW)
                if inner is not None:
                    added.append(directory)
                    directories += inner
            except OSError:
                pass
            except Refused:
                self.dropped += 1
                break
        return added

    def drain(self):
        """Takes what the system has to tell."""
        for _ in range(MAX_DRAINED):
            try:
                data = os.read(self.descriptor, 64 << 10)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                number, mask, _cookie, length = struct.unpack_from("iIII", data, offset)
                name = data[offset + 16 : offset + 16 + length].rstrip(b"\0")
                offset += 16 + length
                self.take(number, mask, os.fsdecode(name))

    def take(self, number, mask, name):
        if mask & IN_Q_OVERFLOW:
            self.dropped += 1
            return
        if mask & IN_IGNORED:
            self.directories.pop(number, None)
            return
        directory = self.directories.get(number)
        if directory is None or not name:
            return
        path = os.path.join(directory, name)
        for bits, kind in KINDS:
            if mask & bits:
                self.tell(kind, path)
        if self.recursive and mask & IN_ISDIR and mask & (IN_CREATE | IN_MOVED_TO):
            # Directories made in it before it was watched.
            for added in self.add_below([path]):
                self.tell_contents(added)

    def tell_contents(self, directory):
        try:
            with os.scandir(directory) as children:
                for child in children:
                    self.tell("create", child.path)
                    if child.is_file(follow_symlinks=False) and child.stat(follow_symlinks=False).st_size:
                        self.tell("write", child.path)
        except OSError:
            pass  # gone meanwhile

    def tell(self, kind, path):
        if len(self.events) >= MAX_EVENTS:
            self.dropped += 1
            return
        told = {"kind": kind, "name": os.path.relpath(path, self.root)}
        if self.entries:
            try:
                told["entry"] = entry(path)
            except OSError:
                pass  # gone meanwhile
        size = len(encoded(told))
        if self.size + size > MAX_EVENT_BYTES:
            self.dropped += 1
            return
        self.events.append(told)
        self.size += size

    def fetch(self):
        told = {"events": self.events, "dropped": self.dropped}
        self.events, self.size, self.dropped = [], 0, 0
        return told


def op_watch(path, recursive, entries):
    root = absolute(path)
    if sum(isinstance(thing, Watch) for thing in handles.values()) >= MAX_WATCHES:
        raise Refused("busy", f"more than {MAX_WATCHES} directories are watched")
    if not stat.S_ISDIR(os.stat(root).st_mode):
        raise Refused("not_a_directory", f"path {root} is not a directory")
    return {"handle": new_handle(Watch(root, recursive, entries))}


def watch_of(handle):
    found = handles.get(handle)
    if not isinstance(found, Watch):
        raise Refused("not_found", f"watcher with id {handle} not found")
    return found


def op_events(handle):
    watch = watch_of(handle)
    watch.drain()
    return watch.fetch()


def op_wait(handle, number):
    watch = watch_of(handle)
    watch.drain()
    if watch.events or watch.dropped:
        return watch.fetch()
    watch.waiting = number
    return None


OPERATIONS = {
    "stat": op_stat,
    "list": op_list,
    "make": op_make,
    "move": op_move,
    "remove": op_remove,
    "open": op_open,
    "read": op_read,
    "create": op_create,
    "close": op_close,
    "watch": op_watch,
    "events": op_events,
    "chmod": op_chmod,
    "search": op_search,
    "replace": op_replace,
    "listen": op_listen,
}


def encoded(told):
    """JSON in UTF-8. Names need not be text; what is none is shown as question marks."""
    return json.dumps(told, ensure_ascii=False).encode("utf-8", "replace")


def send(told, data=b""):
    header = encoded(told)
    if 4 + len(header) + len(data) > MAX_FRAME:
        header = encoded({"id": told["id"], "problem": "too_many", "message": "more than one answer can tell; ask for less"})
        data = b""
    view = memoryview(struct.pack(">II", 4 + len(header) + len(data), len(header)) + header + data)
    while view:
        view = view[os.write(1, view) :]


def answer(header, data):
    number, operation = header.pop("id"), header.pop("op")
    sent = b""
    try:
        if operation == "write":
            told = op_write(header["handle"], data)
        elif operation == "wait":
            told = op_wait(header["handle"], number)
        else:
            told = OPERATIONS[operation](**header)
        if told is None:
            return
        if isinstance(told, tuple):
            told, sent = told
    except Refused as refused:
        told = {"problem": refused.problem, "message": str(refused)}
    except OSError as error:
        # Those of shutil have words alone, and as many as there are files.
        words = error.strerror or str(error)[:MAX_WORDS]
        if isinstance(error.filename, str):
            words = f"{words}: {error.filename}"
        told = {"problem": PROBLEMS.get(error.errno, "invalid"), "message": words}
    except (ValueError, UnicodeError, RecursionError) as error:
        told = {"problem": "invalid", "message": str(error)}
    send({"id": number, **told}, sent)


def read_exactly(count):
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            sys.exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def main():
    os.umask(0o022)
    while True:
        watches = {thing.descriptor: thing for thing in handles.values() if isinstance(thing, Watch) and thing.waiting}
        ready, _, _ = select.select([0, *watches, *listeners.values()], [], [])
        for listener in listeners.values():
            if listener in ready:
                hang_up(listener)
        for descriptor in ready:
            watch = watches.get(descriptor)
            if watch is not None:
                watch.drain()
                if watch.events or watch.dropped:
                    number, watch.waiting = watch.waiting, None
                    send({"id": number, **watch.fetch()})
        if 0 in ready:
            total, length = struct.unpack(">II", read_exactly(8))
            payload = read_exactly(total - 4)
            answer(json.loads(payload[:length]), payload[length:])


if __name__ == "__main__":
    main()
