"""The end of a whole program, as an interpreter's: a kernel that goes on leaves threads running and files unwritten."""

import atexit
import gc
import io
import sys
import threading
from itertools import takewhile

WRITERS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
# Directories of modules that are the program's own.
OWN = ("/mnt/data/", "/home/user/", "/tmp/")


def end_program(shell, last_module):
    """Waits for threads, runs functions that are registered for the exit, and writes what files hold back. `last_module` is the name of the
    last one that was loaded before the program."""
    # Of pools, too: they have registered themselves there.
    threading._shutdown()
    # It resets the shell, which shows the end of the cell.
    atexit.unregister(shell.atexit_operations)
    atexit._run_exitfuncs()
    forget(shell, last_module)
    gc.collect()
    for thing in gc.get_objects():
        if issubclass(type(thing), WRITERS):
            try:
                if not thing.closed:
                    thing.flush()
            except Exception:
                pass  # a class of the program's own may do anything


def forget(shell, last_module):
    """Drops the program's objects. Some files, such as compressed ones, are complete only when they are closed."""
    sys.last_traceback = sys.last_value = sys.last_type = None
    shell.displayhook.flush()
    kept = shell.user_ns_hidden
    for name in [name for name in shell.user_ns if name not in kept and name not in ("In", "Out")]:
        del shell.user_ns[name]
    # A look at those that were loaded before the program would copy their pages, in 4 ms.
    since = takewhile(lambda item: item[0] != last_module, reversed(sys.modules.items()))
    for _name, module in list(since):
        # Not by its attribute, which a lazy one would import something for.
        names = getattr(module, "__dict__", {})
        if type(names) is dict and str(names.get("__file__") or "").startswith(OWN):
            names.clear()
