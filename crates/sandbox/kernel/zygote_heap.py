"""Memory of the zygote, arranged so that a fork copies few entries of its page tables.

A fork copies an entry for each page, but only one for each huge page. Its child still copies ordinary pages when it writes to one.
"""

import ctypes
import sys

MADV_COLLAPSE = 25
HUGE_PAGE = 2 << 20
# The interpreter maps memory for its small objects in pieces of this size.
ARENA = 1 << 20
# The largest object that goes there.
SMALL = 512
# Some of what the imports fill with such objects.
RESERVED = 48 << 20

libc = ctypes.PyDLL(None)
libc.madvise.argtypes = (ctypes.c_ulong, ctypes.c_ulong, ctypes.c_int)


def reserve_arenas():
    """Has the interpreter map memory for small objects in one piece, before libraries lie between its parts. Returns an object in each half
    of an arena, without which the interpreter would give the memory back."""
    # Made as a whole: a list that grows would be moved in between.
    objects = [None] * (RESERVED // SMALL)
    for place in range(len(objects)):
        objects[place] = bytes(SMALL - sys.getsizeof(b""))
    return objects[:: ARENA // SMALL // 2]


def use_huge_pages():
    """Puts memory without a file into huge pages. Does nothing before Linux 6.1, which cannot."""
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    for line in lines:
        addresses, rights, _offset, _device, inode, *_name = line.split()
        if rights == "rw-p" and inode == "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            first, last = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
            for place in range(first, last, HUGE_PAGE):
                # Refused where nothing is yet.
                libc.madvise(place, HUGE_PAGE, MADV_COLLAPSE)
