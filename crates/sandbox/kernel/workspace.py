"""The server of a workspace's files. It runs beside the sandbox's processes: in a container of its own, or as one more process.

No link is followed: every part of a path is opened by itself. It speaks frames over stdin and stdout: the length of the rest, the length of a JSON
header, the header, and bytes. Each request has one answer, but for `walk`, whose last one says so.
"""

import errno
import json
import os
import stat
import struct
import sys

ROOT = "/mnt/data"
# Bytes of one answer.
MAX_READ = 256 << 10
# Entries of one answer.
MAX_ENTRIES = 500
MAX_PATH = 1024
MAX_DEPTH = 32
# Directories that are known to be unreadable; with more, none is taken for read.
MAX_UNSEEN = 100
# Files of one directory that are counted.
MAX_COUNTED = 100_000
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def send(told, data=b""):
    header = json.dumps(told).encode()
    view = memoryview(struct.pack(">II", 4 + len(header) + len(data), len(header)) + header + data)
    while view:
        view = view[os.write(1, view) :]


def read_exactly(count):
    parts = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            sys.exit(0)
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def parent_of(path, makes=False):
    """Opens the directory of a file, and returns it with the file's name."""
    *parts, name = path.split("/")
    directory = os.open(ROOT, DIRECTORY)
    for part in parts:
        try:
            if makes:
                try:
                    os.mkdir(part, 0o755, dir_fd=directory)
                except FileExistsError:
                    pass
            below = os.open(part, DIRECTORY, dir_fd=directory)
        finally:
            os.close(directory)
        directory = below
    return directory, name


def in_parent(path, work, makes=False):
    directory, name = parent_of(path, makes)
    try:
        return work(directory, name)
    finally:
        os.close(directory)


def print_of(found):
    return [
        found.st_ino,
        found.st_size,
        *divmod(found.st_mtime_ns, 1_000_000_000),
        *divmod(found.st_ctime_ns, 1_000_000_000),
    ]


def note_unseen(unseen, prefix, error):
    """Adds a directory that cannot be read, unless it is gone, or something else meanwhile."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) or unseen == [""]:
        return
    unseen.append(prefix)
    if len(unseen) > MAX_UNSEEN:
        unseen[:] = [""]


def op_walk(most):
    entries = []

    def tell(path, found):
        entries.append([path, *print_of(found)])
        if len(entries) == MAX_ENTRIES:
            send({"entries": entries, "more": True})
            entries.clear()

    left = most
    todo = [("", 0)]
    unseen = []
    while todo:
        prefix, depth = todo.pop()
        try:
            directory, _ = parent_of(prefix)
        except OSError as error:
            note_unseen(unseen, prefix, error)
            continue
        with os.scandir(directory) as children:
            for child in children:
                if left <= 0:
                    unseen[:] = [""]
                    break
                left -= 1
                try:
                    found = child.stat(follow_symlinks=False)
                except OSError as error:
                    note_unseen(unseen, prefix, error)
                    continue
                path = prefix + child.name
                try:
                    reported = path if len(path.encode()) <= MAX_PATH else None
                except UnicodeEncodeError:
                    reported = None
                if stat.S_ISREG(found.st_mode):
                    tell(reported, found)
                elif stat.S_ISDIR(found.st_mode) and child.name != "__pycache__":
                    if reported is None or depth >= MAX_DEPTH:
                        tell(None, found)
                    else:
                        todo.append((path + "/", depth + 1))
        os.close(directory)
    return {"entries": entries, "more": False, "unseen": unseen}


opened = {}
last_handle = 0


def new_handle(descriptor):
    global last_handle
    last_handle += 1
    opened[last_handle] = descriptor
    return last_handle


def op_open(path):
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = in_parent(path, lambda directory, name: os.open(name, flags, dir_fd=directory))
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        return {"failed": "not a regular file"}
    return {"handle": new_handle(descriptor), "size": found.st_size}


def op_read(handle):
    return {}, os.read(opened[handle], MAX_READ)


def op_close(handle):
    os.close(opened.pop(handle))
    return {}


def op_create(path):
    def create(directory, name):
        try:
            os.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o644, dir_fd=directory)

    return {"handle": new_handle(in_parent(path, create, makes=True))}


def op_write(handle, data):
    view = memoryview(data)
    while view:
        view = view[os.write(opened[handle], view) :]
    return {}


def op_remove(path):
    try:
        in_parent(path, lambda directory, name: os.unlink(name, dir_fd=directory))
    except (FileNotFoundError, NotADirectoryError):
        pass
    return {}


def op_room():
    found = os.statvfs(ROOT)
    # On a file system shared with everything else, files are counted one by one.
    if os.path.ismount(ROOT):
        used, limit = (found.f_blocks - found.f_bfree) * found.f_frsize, found.f_blocks * found.f_frsize
    else:
        used = bytes_below(ROOT)
        limit = used + found.f_bavail * found.f_frsize
    return {"used": used, "limit": limit, "takes_files": found.f_ffree > 0 or found.f_files == 0}


def bytes_below(root):
    """Returns the bytes that the files below a directory take."""
    used = 0
    for _path, _directories, names, directory in os.fwalk(root):
        for name in names[:MAX_COUNTED]:
            try:
                used += os.stat(name, dir_fd=directory, follow_symlinks=False).st_blocks * 512
            except OSError:
                pass  # it is gone
    return used


OPERATIONS = {
    "walk": op_walk,
    "open": op_open,
    "read": op_read,
    "close": op_close,
    "create": op_create,
    "remove": op_remove,
    "room": op_room,
}


def main():
    os.umask(0o022)
    send({"ready": True})
    while True:
        total, length = struct.unpack(">II", read_exactly(8))
        payload = read_exactly(total - 4)
        request, data, sent = json.loads(payload[:length]), payload[length:], b""
        operation = request.pop("op")
        try:
            told = op_write(request["handle"], data) if operation == "write" else OPERATIONS[operation](**request)
            if isinstance(told, tuple):
                told, sent = told
        except FileNotFoundError:
            told = {"failed": "no such file in the workspace"}
        except OSError as error:
            told = {"failed": os.strerror(error.errno), "full": error.errno == 28, "link": error.errno == 40}
        send(told, sent)


if __name__ == "__main__":
    main()
