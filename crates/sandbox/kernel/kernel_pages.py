"""Pages that a small cell writes to, copied before it comes: after a fork, each write to one would wait for its copy."""

import array
import os
import resource

from kernel_channel import FROM_HOST_FD, is_readable
from kernel_fork import WAIT_FOR_ALL, fork_unseen, libc

MADV_POPULATE_WRITE = 23
PAGE = resource.getpagesize()


class WrittenPages:
    """Addresses and lengths, by turns, of the pages that a small cell writes to."""

    def __init__(self):
        self.runs = array.array("Q")

    def measure(self, output, execute):
        """Finds out, in the process that kernels are forked from, what a cell writes to: what a fork that has run one, and has a copy, makes
        its own in the next. The copy looks, which writes to pages, too."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            output.owner = os.getpid()
            try:
                execute("1 + 1")
                wait, go = os.pipe()
                copy, _hooks_are_due = fork_unseen()
                if copy == 0:
                    os.read(wait, 1)
                    with open(writer, "wb") as file:
                        runs_of(own_pages(output.owner)).tofile(file)
                else:
                    execute("1 + 1")
                    os.write(go, b"g")
                    os.waitpid(copy, WAIT_FOR_ALL)
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            self.runs.frombytes(file.read())
        os.waitpid(pid, 0)

    def copy_ahead(self):
        """Copies what the next cell will write to and the checkpoint has, too, until that cell comes."""
        for place in range(0, len(self.runs), 2):
            if place % 64 == 0 and is_readable(FROM_HOST_FD, 0):
                return
            # Pages that are gone are not copied.
            libc.madvise(self.runs[place], self.runs[place + 1], MADV_POPULATE_WRITE)


def own_pages(pid):
    """The pages, in order, that a process shares with no other, those of the stack left out."""
    pages = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap:
        for line in maps:
            addresses, rights, *others = line.split()
            if "w" not in rights or "p" not in rights or others[-1] == "[stack]":
                continue
            first, end = (int(address, 16) // PAGE for address in addresses.split("-"))
            entries = array.array("Q", os.pread(pagemap.fileno(), (end - first) * 8, first * 8))
            # Present, and mapped there alone.
            pages.extend(first + place for place, entry in enumerate(entries) if entry >> 63 and entry >> 56 & 1)
    return pages


def runs_of(pages):
    """Addresses and lengths, by turns, of pages in order."""
    runs = array.array("Q")
    for page in pages:
        if runs and runs[-2] + runs[-1] == page * PAGE:
            runs[-1] += PAGE
        else:
            runs.extend((page * PAGE, PAGE))
    return runs
