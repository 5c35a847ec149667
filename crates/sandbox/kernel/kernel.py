"""The kernel: runs cells on IPython's InteractiveShell and tells what comes of them.

It speaks frames over two inherited pipes (kernel_channel.py). What cells print does not go there: descriptors 1 and 2 are pipes that the
host reads, so that C code and child processes are heard too. User code shares this process, so whatever it does to these modules spoils
its own results only: the host believes nothing it cannot bound.

Frames in: start, configure, warm_up, execute, shown, answers. Frames out: ready, configured, warmed_up, display, result, flushed, calls, error, done, failed,
restored.
"""

import _signal
import contextlib
import ctypes
import gc
import os
import sys
import time

from kernel_channel import CHECKPOINT_FD, FROM_HOST_FD, TO_HOST_FD, Channel, Silence, is_readable
from kernel_checkpoint import IDLE, SLEEP, Checkpoints, is_alone
from kernel_errors import describe_error
from kernel_jupyter import Relay
from kernel_limits import AllDescriptors, MemoryLimit, keep_descriptors_back
from kernel_output import Output, flush_streams
from kernel_pages import WrittenPages
from kernel_preload import INLINE, Unsuitable, preload, preloaded_modules  # noqa: F401: the zygote asks for them here
from kernel_shell import build_shell, load_beside, show_forms
from kernel_tasks import ensure_loop, has_tasks, wait_until_readable

# The name among a cell's tools by which input() asks the client.
INPUT = "__input__"
# Bytes of a Mersenne Twister's state that are random, the first ones.
MERSENNE_STATE = 624 * 4
# Rehearsals after which the interpreter has adapted the code of a cell to its types, and writes to it no more.
REHEARSALS = 20


class Kernel:
    """A shell, its cells, and the host that sends them."""

    def __init__(self):
        self.output = Output()
        self.memory = MemoryLimit()
        self.checkpoints = Checkpoints(self.output, self.memory)
        self.written = WrittenPages()
        self.shell = None
        self.cell_number = 0
        # Address of the state of numpy's global generator.
        self.generator = None
        # The file that the next cell is read from.
        self.script_path = None
        # The number of the last cell of a whole program.
        self.last_cell = None
        # The name of the last module that was loaded before any program.
        self.last_module = None

    def prepare(self, imports_all, modules=()):
        """Runs in the zygote, once. For a single program, what it does not import itself need not be imported."""
        sys.modules["kernel"] = sys.modules[__name__]
        self.output.open_streams()
        self.shell = build_shell(self.output, self.memory, lambda: self.script_path or f"<cell {self.cell_number}>")
        if imports_all:
            preload(self.shell, modules)
        else:
            # Matplotlib sets itself up with it when it is imported.
            os.environ["MPLBACKEND"] = INLINE
        rehearsals = ["def f():\n    undefined_name\n\nf()", "1 +"] + ["1 + 1"] * (REHEARSALS if imports_all else 1)
        for rehearsal in rehearsals:
            self.execute(rehearsal)
        self.forget_rehearsals()

    def note_memory(self, measures_pages):
        """Runs in the zygote, once, when all is imported. For a single program no cells come whose pages would be known."""
        if measures_pages:
            self.written.measure(self.output, self.execute)
        self.memory.baseline()
        generator = getattr(getattr(sys.modules.get("numpy"), "random", None), "get_bit_generator", None)
        # Before numpy 1.24 nothing names it.
        if generator is not None:
            self.generator = generator().ctypes.state_address

    def forget_rehearsals(self):
        """The user's first cell is number 1 and finds nothing of ours."""
        self.cell_number = 0
        shell = self.shell
        shell.execution_count = 1
        shell.last_told = None
        for name in [name for name in shell.user_ns if name == "f" or name.strip("_0123456789i") == ""]:
            del shell.user_ns[name]
        shell.user_ns["In"][:] = [""]
        shell.user_ns["Out"].clear()
        history, results = shell.history_manager, shell.displayhook
        for cells in (history.input_hist_parsed, history.input_hist_raw):
            cells[:] = [""]
        for name in ("_i", "_ii", "_iii", "_i00"):
            setattr(history, name, "")
        for name in ("_", "__", "___"):
            setattr(results, name, "")
        shell.push(dict.fromkeys(("_", "__", "___", "_i", "_ii", "_iii"), ""), interactive=False)

    def run(self):
        """Runs in a fork, after the lockdown. Returns when the host has gone."""
        self.output.channel = Channel()
        self.output.owner = os.getpid()
        self.start_fresh()
        self.send({"type": "ready"})
        while True:
            if self.is_checkpoint_due() and not is_readable(FROM_HOST_FD, IDLE):
                self.take_ahead()
            wait_until_readable(FROM_HOST_FD)
            if self.output.is_child():
                end_child(None)
            try:
                frame = self.output.channel.receive()
            except EOFError:
                return
            kind = frame["type"]
            if kind == "execute":
                if self.is_checkpoint_due() and self.checkpoints.take():
                    # The cell has run, in the kernel whose place this one took.
                    continue
                with Variables(frame.get("environment", ())), self.client(frame.get("tools", ())):
                    self.execute(frame["code"])
                self.checkpoints.drop()
            elif kind == "start":
                self.start(frame)
            elif kind == "configure":
                if "language" in frame:
                    return self.become_another(frame)
                self.configure(frame)
            elif kind == "warm_up":
                self.warm_up()

    def client(self, tools):
        """As a context: all that a cell can ask its client for."""
        client = contextlib.ExitStack()
        if INPUT in tools:
            client.enter_context(load_beside("kernel_input").Input(self.output, INPUT))
        if tools := [name for name in tools if name != INPUT]:
            client.enter_context(load_beside("kernel_tools").Tools(self.output, self.shell.user_ns, tools))
        return client

    def take_ahead(self):
        """Takes a checkpoint before the next cell is there, for it to find it taken and for a thread that ends the kernel meanwhile."""
        # For many kernels the first cell is the last.
        if self.cell_number == 1 and is_alone() and not has_tasks():
            return
        if not self.checkpoints.take() and self.checkpoints.pid is not None:
            self.written.copy_ahead()
            if not wait_until_readable(FROM_HOST_FD, SLEEP) and is_alone(but=self.checkpoints.pid) and not has_tasks():
                self.checkpoints.drop()
                self.checkpoints.bury(waits=True)

    def is_checkpoint_due(self):
        return self.checkpoints.are_wanted and self.cell_number > 0 and self.checkpoints.pid is None

    def send(self, frame):
        self.output.channel.send(frame)

    def start_fresh(self):
        """Undoes what forks of one process would share."""
        gc.enable()
        self.last_module = next(reversed(sys.modules))
        # The standard library's generator is reseeded in a fork; numpy's global one is not.
        if self.generator is not None:
            ctypes.memmove(self.generator, os.urandom(MERSENNE_STATE), MERSENNE_STATE)
        elif "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(int.from_bytes(os.urandom(4), "little"))
        # Programs import their own modules from the workspace; after all others, so that a file called random.py hides nothing.
        sys.path[0:1] = []
        sys.path.append("")
        sys.argv = [""]
        self.note_directory()

    def note_directory(self):
        """Makes the working directory the first one for `%cd -`."""
        self.shell.user_ns["_dh"][:] = [os.getcwd()]

    def start(self, frame):
        """Takes the figures that the zygote could not know."""
        self.checkpoints.are_wanted = frame["checkpoints"]
        keep_descriptors_back()
        self.memory.set(frame["memory"], frame["hard"])
        threads = str(frame["threads"])
        for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LOKY_MAX_CPU_COUNT"):
            os.environ[variable] = threads  # for the processes this one starts

    def configure(self, frame):
        """Sets the working directory and variables for the cells to come."""
        try:
            if "directory" in frame:
                os.chdir(frame["directory"])
                self.note_directory()
            set_environment(dict(frame["environment"]))
            self.shell.home_dir = os.path.expanduser("~")
            sys.path[0:0] = [path for path in dict(frame["environment"]).get("PYTHONPATH", "").split(":") if path]
            if frame["forms"]:
                show_forms(self.shell)
            if (columns := dict(frame["environment"]).get("COLUMNS")) is not None:
                load_beside("kernel_width").follow(self.shell, columns)
            if "command_line" in frame:
                self.take_command_line(**frame["command_line"])
        except (OSError, ValueError) as error:
            self.send({"type": "failed", "reason": str(error)})
            return
        # It does not know of this.
        self.checkpoints.drop()
        self.send({"type": "configured"})

    def become_another(self, frame):
        """Runs cells of another language from now on."""
        try:
            os.chdir(frame.get("directory", "."))
            # Its own limits are for telling of errors of Python's; the sandbox's hold all the same.
            self.memory.lift()
            with AllDescriptors():
                relay = Relay(frame["language"], self.output, dict(frame["environment"]))
            os.environ.update(frame["environment"])
        except Exception as error:
            self.send({"type": "failed", "reason": str(error) or type(error).__name__})
            return
        self.send({"type": "configured"})
        relay.run()

    def take_command_line(self, arguments, script=None, input=None, cells=0):
        """Makes the cells to come see the arguments, the file and the input of a program. After so many, or one that fails, it ends."""
        sys.argv[:] = arguments
        self.last_cell = self.cell_number + cells if cells else None
        if script is not None:
            self.script_path = self.shell.user_ns["__file__"] = os.path.abspath(script)
            # As Python has it: what lies beside a script comes before everything else.
            sys.path.insert(0, os.path.dirname(self.script_path))
        if input is not None:
            descriptor = os.open(input, os.O_RDONLY)
            os.unlink(input)
            os.dup2(descriptor, 0)
            os.close(descriptor)
            sys.stdin = sys.__stdin__ = open(0, closefd=False)

    def warm_up(self):
        """Rehearses in a pooled kernel what the first cell does, so that the pages it writes are already its own."""
        told, self.output.channel = self.output.channel, Silence()
        try:
            self.execute("1 + 1")
            if "pandas" in sys.modules:
                repr(sys.modules["pandas"].DataFrame({"a": [1, 2, 3]}).sum())
        finally:
            self.output.channel = told
            self.forget_rehearsals()
        self.send({"type": "warmed_up"})

    def execute(self, code):
        output = self.output
        self.cell_number += 1
        output.begin_cell()
        self.shell.displays.begin_cell()
        self.memory.lower()
        error = self.shell.shown_error = None
        try:
            if "get_event_loop" in code:
                ensure_loop()
            # An earlier cell may have put its own in place. Not by `signal`, which makes members of enumerations of all it returns.
            _signal.signal(_signal.SIGINT, output.interrupt)
            output.in_cell = True
            result = self.shell.run_cell(code, store_history=True)
            self.shell.displays.show_waiting()
            output.in_cell = False
            errors = (result.error_before_exec, result.error_in_exec, self.shell.shown_error)
            error = next((error for error in errors if error is not None), None)
            result = errors = None
        except (Exception, KeyboardInterrupt) as failure:
            # Also of IPython itself, where a program spoiled what that needs.
            error = failure
        finally:
            output.in_cell = False
            self.script_path = None
        if output.is_child():
            end_child(error)
        with output.lock:
            pass  # whoever began to show something before the end has its answer
        if isinstance(error, MemoryError):
            self.memory.lift()
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        flush_streams()
        if error is not None:
            try:
                described = describe_error(error)
            except Exception:
                described = {"name": type(error).__name__, "value": "", "traceback": type(error).__name__}
            if self.last_cell is not None and isinstance(error, SystemExit):
                # Of a whole program: its words are told, and no place in it.
                described["traceback"] = f"exit status {error.code}" if isinstance(error.code, int) else described["value"]
            self.shell.last_told = described["traceback"]
            # The frames hold the cell's objects; without them the memory they occupy can be given back.
            error.__traceback__ = None
            kind = "memory_error" if isinstance(error, MemoryError) else "error"
            self.send({"type": kind, **described})
        if self.last_cell is not None and (error is not None or self.cell_number >= self.last_cell):
            error = self.shell.shown_error = None
            self.end_program()
        error = self.shell.shown_error = None
        sys.last_traceback = sys.last_value = sys.last_type = None
        self.send({"type": "done"})


    def end_program(self):
        """Ends a whole program within its last cell."""
        output = self.output
        try:
            output.in_cell = True
            load_beside("kernel_exit").end_program(self.shell, self.last_module)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            output.in_cell = False
            self.send({"type": "error", **describe_error(error)})
        finally:
            output.in_cell = False
        with output.lock:
            pass
        flush_streams()


class Variables:
    """As a context: environment variables of one cell."""

    def __init__(self, variables):
        self.variables = dict(variables)

    def __enter__(self):
        self.before = {name: os.environ.get(name) for name in self.variables}
        set_environment(self.variables)

    def __exit__(self, *_error):
        set_environment(self.before)


def set_environment(variables):
    """Sets environment variables, and removes those whose value is None. The C library reads the time zone only when it is told to."""
    for name, value in variables.items():
        if value is not None:
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
    if "TZ" in variables:
        time.tzset()


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


# The one kernel of the process, and of its forks.
KERNEL = Kernel()
prepare, note_memory, run = KERNEL.prepare, KERNEL.note_memory, KERNEL.run

if __name__ == "__main__":
    # A new interpreter, started by the zygote's child after the lockdown.
    for inherited in (FROM_HOST_FD, TO_HOST_FD, CHECKPOINT_FD):
        with contextlib.suppress(OSError):  # only a sandbox's first kernel has checkpoints
            os.set_inheritable(inherited, False)
    imports_all = "--lean" not in sys.argv
    prepare(imports_all, preloaded_modules(sys.argv))
    note_memory(imports_all)
    run()
