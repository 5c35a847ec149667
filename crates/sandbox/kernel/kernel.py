"""The kernel: runs cells on IPython's InteractiveShell and tells what comes of them.

It speaks length-prefixed JSON frames over an inherited socket. What cells print does not go there: descriptors 1 and 2 are pipes that the
host reads, so that C code and child processes are heard too. User code shares this process, so whatever it does to this module spoils
its own results only: the host believes nothing it cannot bound.

Frames in: start, configure, touch, execute, shown. Frames out: ready, configured, touched, display, result, flushed, error, done, failed, resumed.

Between cells the kernel forks itself and keeps the copy, the checkpoint, asleep. When the kernel dies in a cell, the host wakes the copy,
which goes on from the state before that cell.
"""

import array
import ast
import base64
import ctypes
import gc
import inspect
import io
import json
import os
import platform
import random
import re
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import types
import warnings

CONTROL_FD = 3
WARDEN_FD = 4
# The host refuses longer frames; what is longer is left out here, with a word about it.
MAX_FRAME = 24 << 20
MAX_TEXT = 1 << 20
MAX_TRACEBACK = 16 << 10
MAX_FRAMES_SHOWN = 12

shell = None
channel = None
kernel_pid = os.getpid()


class Channel:
    """One end of the host's socket."""

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def send(self, frame):
        payload = json.dumps(frame).encode()
        if len(payload) > MAX_FRAME:
            payload = json.dumps(left_out(frame, len(payload))).encode()
        data = struct.pack(">I", len(payload)) + payload
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def receive(self):
        header = self._read(4)
        return json.loads(self._read(struct.unpack(">I", header)[0]))

    def _read(self, count):
        parts = []
        while count:
            part = os.read(self.descriptor, min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def left_out(frame, size):
    """The frame without its data, when that is more than the host takes."""
    text = f"[a result of {size >> 20} MB was left out: too large to show; write it to a file instead]"
    return {**frame, "data": {"text/plain": text}} if "data" in frame else frame


def encode_bundle(data):
    """Makes every representation a string: bytes as base64, structures as JSON. Text that is too long is cut."""
    bundle = {}
    for mime, value in data.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = base64.b64encode(value).decode()
        elif not isinstance(value, str):
            value = json.dumps(value, default=str)
        if mime.startswith("text/") and len(value) > MAX_TEXT:
            if mime == "text/html":
                continue  # half a document is worse than the text that comes with it
            value = f"{value[:MAX_TEXT]}\n[{len(value) - MAX_TEXT} more characters were left out]"
        bundle[str(mime)] = value
    return bundle


def flush_streams():
    """Flushes both streams: text printed before a display must reach the host before it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


# Whoever writes to the channel, or waits there for an answer. Held at the end of a cell, so that no thread of the program's takes what is
# meant for the next one.
showing = threading.RLock()
shown = 0
shielded = False
interrupt_is_pending = False


def is_child():
    """Returns true in a process that the program forked: the channel is its parent's."""
    return os.getpid() != kernel_pid


def show(frame):
    """Sends a display; what is printed next comes after it on the host, too."""
    flush_streams()
    if is_child():
        print(frame["data"].get("text/plain", ""), flush=True)
        return
    ask(frame)


def ask(frame):
    """Sends a frame and waits until the host has it and all that was printed before it."""
    global shown, shielded
    with showing:
        if not in_cell:
            # A thread that goes on between two cells: nobody listens, and the next frame is a program.
            return
        # An interrupt in the middle would leave half an answer in the socket.
        shielded = True
        try:
            shown += 1
            channel.send({**frame, "number": shown})
            while channel.receive().get("number") != shown:
                pass
        finally:
            shielded = False
    if interrupt_is_pending and threading.current_thread() is threading.main_thread():
        on_interrupt(None, None)


# Switches between the two streams in one cell whose order is kept, which costs an answer of the host each time.
MOST_TURNS = 1000
turns = 0
# The descriptor that was printed to last; child processes mostly use the first.
printed_last = 1


class StandardStream(io.FileIO):
    """Standard output or standard error, which are two pipes: before one is written to, the host takes what is in the other."""

    def write(self, data):
        global printed_last, turns
        if printed_last != self.fileno() and not is_child():
            printed_last = self.fileno()
            if turns < MOST_TURNS:
                turns += 1
                ask({"type": "flushed"})
        return super().write(data)


def standard_stream(descriptor):
    buffered = io.BufferedWriter(StandardStream(descriptor, "w", closefd=False))
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def build_shell():
    from IPython.core.autocall import IPyAutocall
    from IPython.core.compilerop import CachingCompiler
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.macro import Macro
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, *, transient=None, update=False, **_other):
            show({"type": "display", "data": encode_bundle(data)})

        def clear_output(self, wait=False):
            pass

    class ResultHook(DisplayHook):
        """Sends the value of the last expression as the cell's result."""

        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            flush_streams()
            if is_child():
                print(format_dict.get("text/plain", ""), flush=True)
                return
            with showing:
                channel.send({"type": "result", "data": encode_bundle(format_dict)})

        def finish_displayhook(self):
            self._active = False

        def update_user_ns(self, result):
            super().update_user_ns(result)
            close_shown_figure(result)

    class CellCompiler(CachingCompiler):
        """Names cells as people count them, for tracebacks."""

        def get_code_name(self, raw_code, transformed_code, number):
            return script_path or f"<cell {cell_number}>"

    class Shell(InteractiveShell):
        displayhook_class = ResultHook
        display_pub_class = Publisher
        compiler_class = CellCompiler

        # The last cell that needed no transforming, and whether it awaits something.
        plain_cell = (None, False)

        def transform_cell(self, raw_cell):
            cell = raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
            if not self.may_be_plain(cell):
                return super().transform_cell(raw_cell)
            try:
                code = compile(cell, "<>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except Exception:
                return super().transform_cell(raw_cell)
            self.plain_cell = (cell, bool(code.co_flags & inspect.CO_COROUTINE))
            return cell

        def should_run_async(self, raw_cell, *, transformed_cell=None, preprocessing_exc_tuple=None):
            cell, awaits = self.plain_cell
            if self.autoawait and cell is not None and cell is transformed_cell:
                return awaits
            return super().should_run_async(
                raw_cell, transformed_cell=transformed_cell, preprocessing_exc_tuple=preprocessing_exc_tuple
            )

        def may_be_plain(self, cell):
            """Returns true if IPython runs a cell that is valid Python as Python does. Then nothing need be transformed, which takes
            longer than all else about a short cell, and writes to as many pages."""
            if cell[0].isspace() or MAYBE_PROMPT.search(cell) or self.transformers() != self.usual_transformers:
                return False
            if cell.find("\n") < len(cell) - 1:
                return True
            # A single line may be a magic without its %, a macro, or `exit`.
            name = NAME.match(cell)
            if name is None:
                return True
            value = self.user_ns.get(name[0])
            return not isinstance(value, (IPyAutocall, Macro)) and self.find_magic(name[0]) is None

        def transformers(self):
            """Counts the functions of each kind that may change a cell before it is compiled."""
            static, dynamic = self.input_transformer_manager, self.prefilter_manager
            return (
                len(static.cleanup_transforms),
                len(static.line_transforms),
                len(static.token_transformers),
                len(self.input_transformers_post),
                len(dynamic.checkers),
                len(dynamic.transformers),
                self.autocall,
            )

        # Errors are told by this module, from the execution's result. This is the first that is called after one was raised.
        def showtraceback(self, *_arguments, **_options):
            if isinstance(sys.exc_info()[1], MemoryError):
                raise_memory_limit[0](*raise_memory_limit[1])

        def showsyntaxerror(self, *_arguments, **_options):
            pass

        def showindentationerror(self, *_arguments, **_options):
            pass

        # IPython keeps a rendering of every exception; it takes seconds for a deep recursion, and nobody reads it.
        def _format_exception_for_storage(self, *_arguments, **_options):
            return {}

        # There is no screen; `%matplotlib inline`, with which many notebooks begin, needs none.
        def enable_gui(self, gui=None):
            pass

        # The piped variant needs a pseudo terminal, which a sandbox does not have.
        system = InteractiveShell.system_raw

        def init_history(self):
            super().init_history()
            self.history_manager.enabled = False

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.colors = "nocolor" if ipython_major() >= 9 else "NoColor"
    config.InteractiveShell.cache_size = 100
    config.Completer.use_jedi = False
    main_module = types.ModuleType("__main__", "Automatically created module for the interactive environment")
    built = Shell.instance(config=config, user_module=main_module)
    built.usual_transformers = built.transformers()
    warnings.filterwarnings("ignore", message="To exit: use")
    # The template's pip says all that there is to say.
    warnings.filterwarnings("ignore", message="You executed the system command !pip")
    return built


# Prompts that were copied along: IPython takes them away, and some are valid Python.
MAYBE_PROMPT = re.compile(r"^(\s*>>>|\s*\.\.\.|\s*In \[)", re.MULTILINE)
NAME = re.compile(r"\w+")


def ipython_major():
    import IPython

    return IPython.version_info[0]


def close_shown_figure(value):
    """A figure that is the cell's result was just shown; open, it would be shown again at the cell's end."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    figure = sys.modules.get("matplotlib.figure")
    if pyplot is not None and figure is not None and isinstance(value, figure.Figure):
        pyplot.close(value)


# Shows figures at the end of a cell.
INLINE = "module://matplotlib_inline.backend_inline"
PRELOAD = "--preload="


def preload(modules):
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
        preload_matplotlib()
    for name in modules:
        import_single_threaded(name)


def preload_matplotlib():
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


class Silence:
    """A channel nobody listens to, for the zygote's rehearsal."""

    def send(self, _frame):
        pass

    def receive(self):
        return {"number": shown}


def prepare(imports_all, modules=()):
    """Runs in the zygote, once. For a single program, what it does not import itself need not be imported."""
    global shell, channel
    sys.modules["kernel"] = sys.modules[__name__]
    channel = Silence()
    shell = build_shell()
    if imports_all:
        preload(modules)
    else:
        # Matplotlib sets itself up with it when it is imported.
        os.environ["MPLBACKEND"] = INLINE
    for rehearsal in ("1 + 1", "def f():\n    undefined_name\n\nf()", "1 +"):
        execute(rehearsal)
    forget_rehearsals()


def forget_rehearsals():
    """The user's first cell is number 1 and finds nothing of ours."""
    global cell_number
    cell_number = 0
    shell.execution_count = 1
    for name in [name for name in shell.user_ns if name == "f" or name.strip("_0123456789i") == ""]:
        del shell.user_ns[name]
    shell.user_ns["In"][:] = [""]
    shell.user_ns["Out"].clear()


def run():
    """Runs in a fork, after the lockdown. Returns when the host has gone."""
    global channel, kernel_pid
    channel = Channel(CONTROL_FD)
    kernel_pid = os.getpid()
    start_fresh()
    channel.send({"type": "ready"})
    while True:
        if takes_checkpoints and cell_number > 0 and checkpoint is None and not is_readable(CONTROL_FD, IDLE):
            if take_checkpoint() is not AWAKE and checkpoint is not None:
                copy_ahead()
        try:
            frame = channel.receive()
        except EOFError:
            return
        kind = frame["type"]
        if kind == "execute":
            if takes_checkpoints and cell_number > 0 and checkpoint is None and take_checkpoint() is AWAKE:
                # The cell has run, in the kernel whose place this one took.
                continue
            with Variables(frame.get("environment", ())):
                execute(frame["code"])
            drop_checkpoint()
        elif kind == "start":
            start(frame)
        elif kind == "configure":
            configure(frame)
        elif kind == "touch":
            touch()


# Seconds of silence before a checkpoint is taken ahead of the next cell. A kernel that is closed at once does without, one that is
# used again at once takes it then, and the one before is gone by then: beside it, the next cell would copy more.
IDLE = 0.004
# More than this part of the memory in use: a copy could double it, and the next cell would fail for it.
MOST_COPIED = 0.5
# Seconds in which killed processes have to be gone; the host waits somewhat longer.
MOST_WAITED = 2
SYS_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
CLONE_CHILD_CLEARTID = 0x00200000
CLONE_CHILD_SETTID = 0x01000000
PR_GET_TID_ADDRESS = 40
WAIT_FOR_ALL = 0x40000000  # __WALL: children that send no signal, too

libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.madvise.argtypes = (ctypes.c_ulong, ctypes.c_ulong, ctypes.c_int)
AWAKE = "awake"
# The process id of the copy.
checkpoint = None
# Those before, ended but perhaps not yet gone: that takes a millisecond, which no cell need wait for.
ended_checkpoints = []


def is_readable(descriptor, seconds):
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def take_checkpoint():
    """Forks a copy, which returns from here only when it takes our place, and then says so."""
    global checkpoint
    bury_checkpoints()
    if memory_limit is not None and data_in_use() - baseline_data() > memory_limit * MOST_COPIED:
        return None
    # The interpreter reseeds it in every fork; the copy shall go on where we are now.
    generator = random.getstate()
    with AllDescriptors():
        try:
            pid = fork_unseen()
        except OSError:
            # No more processes or memory: the next cell runs without.
            return None
        if pid == 0:
            wait_to_be_woken()
    if pid > 0:
        checkpoint = pid
        return None
    random.setstate(generator)
    return AWAKE


# In a copy that has yet to run what the interpreter and the libraries do after a fork. It writes to as many pages as a cell.
hooks_are_due = False


def fork_unseen():
    """Forks a child that the program cannot wait for by accident: one that sends no signal when it ends. What is done after a fork is left
    to `run_hooks`: most copies only wait for their end."""
    global hooks_are_due
    if len(os.listdir("/proc/self/task")) > 1 or SYS_CLONE is None:
        # Other threads hold locks of the C library, which only its own fork knows to release in the child.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return os.fork()
    address = ctypes.c_ulong()
    libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address))
    # The last two arguments change places between architectures; the thread-local storage is not set in either.
    address_for_both = (address, ctypes.c_ulong(0)) if SYS_CLONE == 56 else (ctypes.c_ulong(0), address)
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = libc.syscall(
        ctypes.c_long(SYS_CLONE),
        ctypes.c_long(CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID),
        ctypes.c_long(0),
        ctypes.c_long(0),
        *address_for_both,
    )
    if pid == 0:
        hooks_are_due = True
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def run_hooks():
    global hooks_are_due
    if hooks_are_due:
        hooks_are_due = False
        ctypes.pythonapi.PyOS_AfterFork_Child()


def wait_to_be_woken():
    """Runs in the copy. What the kernel left running is ended, for the state to be the one before the cell."""
    global checkpoint, kernel_pid, showing
    # A thread that is not in the copy may have held it.
    showing = threading.RLock()
    with socket.socket(fileno=os.dup(WARDEN_FD)) as warden:
        try:
            warden.send(b"checkpoint", socket.MSG_DONTWAIT)
        except OSError:
            pass  # it ranks as all others
        message, descriptors, _flags, _address = socket.recv_fds(warden, 16, 1)
        if message != b"resume" or not descriptors:
            os._exit(0)
        run_hooks()
        os.dup2(descriptors[0], CONTROL_FD, inheritable=False)
        os.close(descriptors[0])
        checkpoint = None
        ended_checkpoints.clear()
        kernel_pid = os.getpid()
        end_the_others()
        warden.send(b"resumed")
    channel.send({"type": "resumed"})


MADV_POPULATE_WRITE = 23
PAGE = resource.getpagesize()
# Addresses and lengths, by turns, of what a cell of little writes to.
written = array.array("Q")


def note_written_pages():
    """Finds out, in the process that kernels are forked from, what a cell writes to: what a fork that has run one, and has a copy, makes its
    own in the next. The copy looks, which writes to pages, too."""
    global kernel_pid
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        kernel_pid = os.getpid()
        try:
            execute("1 + 1")
            wait, go = os.pipe()
            copy = fork_unseen()
            if copy == 0:
                os.read(wait, 1)
                with open(writer, "wb") as file:
                    runs_of(own_pages(kernel_pid)).tofile(file)
            else:
                execute("1 + 1")
                os.write(go, b"g")
                os.waitpid(copy, WAIT_FOR_ALL)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        written.frombytes(file.read())
    os.waitpid(pid, 0)


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


def copy_ahead():
    """Copies what the next cell will write to and the checkpoint has, too, until that cell comes."""
    for place in range(0, len(written), 2):
        if place % 64 == 0 and is_readable(CONTROL_FD, 0):
            return
        # Pages that are gone are not copied.
        libc.madvise(written[place], written[place + 1], MADV_POPULATE_WRITE)


def end_the_others():
    """Ends every other process of the sandbox and waits until it is gone: until then it is seen, and what it holds counts and would end us."""
    until = time.monotonic() + MOST_WAITED
    while time.monotonic() < until:
        try:
            os.kill(-1, signal.SIGKILL)
        except OSError:
            return  # nobody is left
        time.sleep(0.001)


def drop_checkpoint():
    """After a cell that left the kernel alive."""
    global checkpoint
    if checkpoint is not None:
        try:
            os.kill(checkpoint, signal.SIGKILL)
        except OSError:
            pass  # the program has ended it
        ended_checkpoints.append(checkpoint)
        checkpoint = None


def bury_checkpoints():
    for pid in list(ended_checkpoints):
        try:
            if os.waitpid(pid, WAIT_FOR_ALL | os.WNOHANG)[0] == 0:
                continue
        except OSError:
            pass  # the program has waited for it
        ended_checkpoints.remove(pid)


def start_fresh():
    """Undoes what forks of one process would share."""
    gc.enable()
    sys.stdin = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = standard_stream(1)
    sys.stderr = sys.__stderr__ = standard_stream(2)
    # The standard library's generator reseeds itself after a fork; numpy's global one does not.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))
    # Programs import their own modules from the workspace; after all others, so that a file called random.py hides nothing.
    sys.path[0:1] = []
    sys.path.append("")
    sys.argv = [""]


def on_interrupt(_number, _frame):
    """Ends the cell; between cells there is nothing to end, and the signal was meant for one that has just ended by itself."""
    global interrupt_is_pending
    interrupt_is_pending = in_cell and shielded
    if in_cell and not shielded:
        raise KeyboardInterrupt


def start(frame):
    """Takes the figures that the zygote could not know."""
    global memory_limit, takes_checkpoints
    memory_limit = frame["memory"]
    takes_checkpoints = frame["checkpoints"]
    keep_descriptors_back()
    if frame["hard"]:
        # No control group counts: what a process may hold is bounded here, before any code of the user's runs.
        most = baseline_data() + memory_limit
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        raise_memory_limit[1] = (resource.RLIMIT_DATA, (most, most))
    lower_memory_limit()
    threads = str(frame["threads"])
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[variable] = threads  # for the processes this one starts


def configure(frame):
    """Sets the working directory and variables for the cells to come."""
    try:
        if "directory" in frame:
            os.chdir(frame["directory"])
        os.environ.update(frame["environment"])
        if frame["forms"]:
            show_forms()
        if "command_line" in frame:
            take_command_line(**frame["command_line"])
    except (OSError, ValueError) as error:
        channel.send({"type": "failed", "reason": str(error)})
        return
    # It does not know of this.
    drop_checkpoint()
    channel.send({"type": "configured"})


# The file that the next cell is read from.
script_path = None


def take_command_line(arguments, script=None, input=None):
    """Makes the cells to come see the arguments, the file and the input of a program."""
    global script_path
    sys.argv[:] = arguments
    if script is not None:
        script_path = shell.user_ns["__file__"] = os.path.abspath(script)
        # As Python has it: what lies beside a script comes before everything else.
        sys.path.insert(0, os.path.dirname(script_path))
    if input is not None:
        descriptor = os.open(input, os.O_RDONLY)
        os.unlink(input)
        os.dup2(descriptor, 0)
        os.close(descriptor)
        sys.stdin = sys.__stdin__ = open(0, closefd=False)


def show_forms():
    """Shows tables and charts as data, too. By its path: the program's own modules may have the same name."""
    import importlib.util

    path = os.path.join(os.path.dirname(__file__), "forms.py")
    spec = importlib.util.spec_from_file_location("aludel_forms", path)
    forms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(forms)
    forms.install(shell)


class Variables:
    """As a context: environment variables of one cell."""

    def __init__(self, variables):
        self.variables = dict(variables)

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.variables}
        os.environ.update(self.variables)

    def __exit__(self, *_error):
        for name, value in self.before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)


takes_checkpoints = False
memory_limit = None
# Prebuilt, so that using it needs no memory.
raise_memory_limit = [resource.setrlimit, (resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))]


# Descriptors that the program cannot have, for the kernel to go on when it has used up all others.
KEPT_BACK = 8


def keep_descriptors_back():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most - KEPT_BACK, most))


class AllDescriptors:
    """As a context: what was kept back may be used."""

    def __enter__(self):
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.limits[1], self.limits[1]))

    def __exit__(self, *_error):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)


def touch():
    """Rehearses in a pooled kernel what the first cell does, so that the pages it writes are already its own."""
    global channel
    told, channel = channel, Silence()
    try:
        execute("1 + 1")
        if "pandas" in sys.modules:
            repr(sys.modules["pandas"].DataFrame({"a": [1, 2, 3]}).sum())
    finally:
        channel = told
        forget_rehearsals()
    channel.send({"type": "touched"})


def data_in_use():
    try:
        with AllDescriptors(), open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmData:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass  # the program has taken the last descriptor, too
    return 0


def lower_memory_limit():
    """Makes Python raise MemoryError a little before the kernel would kill us; the difference is for telling about it."""
    if memory_limit is None:
        return
    shared = baseline_data()
    soft = shared + max(memory_limit - (memory_limit >> 3), memory_limit - (64 << 20))
    # Still above after an error: lowering now would fail the next allocation whatever it is for.
    if data_in_use() < soft - (16 << 20):
        resource.setrlimit(resource.RLIMIT_DATA, (soft, raise_memory_limit[1][1][1]))


_baseline = None


def baseline_data():
    """Returns the bytes that the zygote held: data, but not counted against the sandbox's memory."""
    global _baseline
    if _baseline is None:
        _baseline = data_in_use()
    return _baseline


cell_number = 0
in_cell = False


def execute(code):
    global cell_number, in_cell, turns, printed_last, script_path
    cell_number += 1
    turns, printed_last = 0, 1
    lower_memory_limit()
    error = None
    try:
        # An earlier cell may have put its own in place.
        signal.signal(signal.SIGINT, on_interrupt)
        in_cell = True
        result = shell.run_cell(code, store_history=True)
        in_cell = False
        error = result.error_before_exec or result.error_in_exec
    except (MemoryError, KeyboardInterrupt) as failure:
        error = failure
    finally:
        in_cell = False
        script_path = None
    if is_child():
        end_child(error)
    with showing:
        pass  # whoever began to show something before the end has its answer
    if isinstance(error, MemoryError):
        raise_memory_limit[0](*raise_memory_limit[1])
    if isinstance(error, SystemExit) and error.code in (None, 0):
        error = None
    flush_streams()
    if error is not None:
        try:
            described = describe_error(error)
        except Exception:
            described = {"name": type(error).__name__, "value": "", "traceback": type(error).__name__}
        # The frames hold the cell's objects; without them the memory they occupy can be given back.
        error.__traceback__ = None
        channel.send({"type": "error", **described})
    error = None
    sys.last_traceback = sys.last_value = sys.last_type = None
    channel.send({"type": "done"})


def end_child(error):
    """A process that the program forked, at the end of the cell: it must not go on as a second kernel."""
    status = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = error.code or 0
    elif error is not None:
        status = 1
        try:
            print(describe_error(error)["traceback"], file=sys.stderr)
        except Exception:
            pass  # its streams are gone
    flush_streams()
    os._exit(status & 0xFF)


def describe_error(error):
    name = type(error).__name__
    try:
        value = str(error)
    except Exception:
        value = "(its text could not be made)"
    if isinstance(error, SystemExit):
        value = str(error.code)
    lines = []
    for part in chain_of(error):
        lines.extend(part)
    text = "".join(lines).rstrip()
    if len(text) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        text = f"{text[:half]}\n[…]\n{text[-half:]}"
    return {"name": name, "value": value[:MAX_TRACEBACK], "traceback": text}


def chain_of(error):
    """The causes, first to last, each as lines."""
    parts = []
    seen = set()
    while error is not None and id(error) not in seen and len(parts) < 4:
        seen.add(id(error))
        parts.append(describe_one(error))
        if error.__cause__ is not None:
            error = error.__cause__
            parts.append(["\nThe above exception was the direct cause of the following exception:\n\n"])
        elif error.__context__ is not None and not error.__suppress_context__:
            error = error.__context__
            parts.append(["\nDuring handling of the above exception, another exception occurred:\n\n"])
        else:
            break
    return reversed(parts)


def describe_one(error):
    if isinstance(error, (SystemExit, KeyboardInterrupt)) and error.__traceback__ is None:
        return [f"{type(error).__name__}\n"]
    frames = [
        entry
        for entry in traceback.extract_tb(error.__traceback__)
        if not entry.filename.startswith("/run/aludel/") and "/IPython/core/" not in entry.filename
    ]
    first_own = next((place for place, entry in enumerate(frames) if is_own(entry)), None)
    lines = []
    if first_own is not None:
        lines.append("Traceback (most recent call last):\n")
        lines.extend(describe_frames(frames[first_own:]))
    lines.extend(traceback.format_exception_only(type(error), error))
    return [rename_cells(line) for line in lines]


def is_own(entry):
    return entry.filename.startswith(("<cell ", "/mnt/data/", "/home/user/", "/tmp/"))


def describe_frames(frames):
    """The user's frames and the innermost one; the libraries' between them are counted."""
    kept = [entry for entry in frames if is_own(entry)]
    if len(kept) > MAX_FRAMES_SHOWN:
        half = MAX_FRAMES_SHOWN // 2
        shown = set(map(id, kept[:half] + kept[-half:]))
    else:
        shown = set(map(id, kept))
    shown.add(id(frames[-1]))
    lines = []
    hidden = 0
    for entry in frames:
        if id(entry) not in shown:
            hidden += 1
            continue
        if hidden:
            lines.append(f"  [{hidden} frame{'s' if hidden > 1 else ''} not shown]\n")
            hidden = 0
        lines.extend(traceback.format_list([entry]))
    return lines


def rename_cells(line):
    """`File "<cell 3>", line 5` reads better as `Cell 3, line 5`."""
    start = line.find('File "<cell ')
    if start < 0:
        return line
    end = line.find('>"', start)
    number = line[start + len('File "<cell ') : end]
    return f"{line[:start]}Cell {number}{line[end + 2 :]}"


if __name__ == "__main__":
    # A new interpreter, started by the zygote's child after the lockdown.
    for inherited in (CONTROL_FD, WARDEN_FD):
        os.set_inheritable(inherited, False)
    prepare("--lean" not in sys.argv, preloaded_modules(sys.argv))
    note_written_pages()
    run()
