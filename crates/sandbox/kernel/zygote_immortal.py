"""Objects of the zygote that nobody counts references to any more: a count is written to, and its page is then copied for each kernel.

Python has immortal objects from version 3.12 on (PEP 683): their count of references stays as it is, and they are never freed.
"""

import ctypes
import gc
import sys
import types

# No count of references to an ordinary object gets so high.
LEAST_IMMORTAL = 1 << 31
# The parts of a function's code, of which the collector does not know.
PARTS_OF_CODE = ("co_consts", "co_names", "co_filename", "co_name", "co_qualname", "co_linetable", "co_exceptiontable")


def make_all_immortal():
    """Makes all objects immortal that the collector knows, and those that they refer to. Returns their number: none where the interpreter
    has no immortal objects, or has its counts of references elsewhere, as the one without a global lock. The collector's objects are frozen
    then."""
    count = sys.getrefcount(None)
    if count < LEAST_IMMORTAL:
        return 0
    # The collector lists no frozen objects. The view of all memory is made after the list: it goes at the end.
    gc.unfreeze()
    found = gc.get_objects()
    gc.freeze()
    # The first half of an object's first word, on machines of 64 bits.
    words = memoryview((ctypes.c_uint32 * (sys.maxsize >> 4)).from_address(0)).cast("B").cast("I")
    if sys.byteorder != "little" or words[id(None) >> 2] != count & 0xFFFFFFFF:
        return 0
    made = 0
    while found:
        new = []
        for thing in found:
            place = id(thing) >> 2
            if words[place] < LEAST_IMMORTAL:
                words[place] = count
                new.append(thing)
        made += len(new)
        found = gc.get_referents(*new)
        for thing in new:
            if type(thing) is types.CodeType:
                found.extend(getattr(thing, part) for part in PARTS_OF_CODE)
    return made
