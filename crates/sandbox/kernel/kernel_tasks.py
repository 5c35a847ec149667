"""Tasks of asyncio that cells leave behind: as in Jupyter, they go on between cells, on the event loop that runs cells with `await`."""

import ast
import sys
import warnings

from kernel_channel import is_readable

# Functions that need a running loop. A cell that calls one outside of functions is run on the loop, though it awaits nothing.
NEED_LOOP = {"create_task", "ensure_future", "get_running_loop"}
NEED_LOOP_OF_ASYNCIO = NEED_LOOP | {"all_tasks", "current_task", "gather", "get_event_loop", "shield"}
# A cell that starts a loop of its own cannot be run on another one.
OWN_LOOP = ("asyncio.run(", "Runner(", "run_forever(", "run_until_complete(")


def needs_loop(cell):
    if not any(name in cell for name in NEED_LOOP_OF_ASYNCIO) or any(call in cell for call in OWN_LOOP):
        return False
    try:
        waiting = list(ast.parse(cell).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Call) and is_of_asyncio(node.func):
            return True
        waiting.extend(ast.iter_child_nodes(node))
    return False


def is_of_asyncio(function):
    if isinstance(function, ast.Name):
        return function.id in NEED_LOOP
    return (
        isinstance(function, ast.Attribute)
        and function.attr in NEED_LOOP_OF_ASYNCIO
        and isinstance(function.value, ast.Name)
        and function.value.id in ("asyncio", "aio")
    )


def cell_loop():
    """The event loop of cells; None if no cell has used it."""
    loop = getattr(sys.modules.get("IPython.core.async_helpers"), "_asyncio_event_loop", None)
    return None if loop is None or loop.is_closed() else loop


def ensure_loop():
    """Gives the thread the event loop of cells if it has none any more: `asyncio.run` takes the one that it had."""
    import asyncio

    from IPython.core.async_helpers import get_asyncio_loop

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            asyncio.get_event_loop()
        except RuntimeError:
            asyncio.set_event_loop(get_asyncio_loop())


def has_tasks():
    loop = cell_loop()
    if loop is None:
        return False
    import asyncio

    return bool(asyncio.all_tasks(loop))


def wait_until_readable(descriptor, seconds=None):
    """Waits until the descriptor can be read, and no longer than so long, while tasks go on. Returns true if it can be read."""
    loop = cell_loop()
    if loop is None:
        return is_readable(descriptor, seconds)
    try:
        end = None if seconds is None else loop.call_later(seconds, loop.stop)
        loop.add_reader(descriptor, loop.stop)
        try:
            loop.run_forever()
        finally:
            loop.remove_reader(descriptor)
            if end is not None:
                end.cancel()
    except (Exception, KeyboardInterrupt, SystemExit):
        # Of a task. The others stand still until the next cell, which is not to blame.
        return is_readable(descriptor, seconds)
    return is_readable(descriptor, 0)
