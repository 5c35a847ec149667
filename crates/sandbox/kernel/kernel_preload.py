"""Imports of the zygote, made once for all of its forks."""

import os

from kernel_shell import load_beside

# Shows figures at the end of a cell.
INLINE = "module://matplotlib_inline.backend_inline"
PRELOAD = "--preload="


def preload(shell, modules):
    """Imports what a cell is likely to need and the template has, lazily loaded parts included, and runs the hot paths once; then the
    modules that the template names."""
    import _strptime  # noqa: F401
    import encodings.idna  # noqa: F401
    import zoneinfo  # noqa: F401

    if is_installed("numpy"):
        import numpy
        import numpy.fft
        import numpy.linalg
        import numpy.random  # noqa: F401
    if is_installed("pandas"):
        import pandas

        frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1, 2, 3]})
        frame.describe().to_html()
        repr(frame.groupby("b").sum())
    if is_installed("matplotlib"):
        preload_matplotlib(shell)
    # Compiling them takes longer than all else about a kernel whose client wants them.
    for name in ("forms", "kernel_tools", "kernel_width"):
        load_beside(name)
    for name in modules:
        import_single_threaded(name)


def preload_matplotlib(shell):
    import matplotlib

    matplotlib.use(INLINE)
    import matplotlib.pyplot as pyplot
    from matplotlib_inline.backend_inline import configure_inline_support

    configure_inline_support(shell, INLINE)
    figure, axes = pyplot.subplots()
    axes.plot([1, 2, 3])
    figure.savefig(os.devnull, format="png")
    pyplot.close("all")
    # After a fork, the child throws its fonts away: a millisecond for each kernel if there are any.
    from matplotlib import font_manager

    fonts = getattr(font_manager, "_get_font", None)
    if fonts is not None:
        fonts.cache_clear()


def is_installed(module):
    import importlib.util

    return importlib.util.find_spec(module) is not None


class Unsuitable(Exception):
    """A module that a template cannot preload."""


def import_single_threaded(name):
    """Imports a module that the template names. One that starts threads would not work after a fork."""
    import importlib

    try:
        importlib.import_module(name)
    except Exception as error:
        raise Unsuitable(f"the module {name} cannot be preloaded: {type(error).__name__}: {error}") from None
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise Unsuitable(f"the module {name} cannot be preloaded: it starts threads ({threads - 1}) when it is imported")


def preloaded_modules(arguments):
    """The modules that a template names, from the zygote's arguments."""
    named = [argument.removeprefix(PRELOAD) for argument in arguments if argument.startswith(PRELOAD)]
    return [name for names in named for name in names.split(",")]
