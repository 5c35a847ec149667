"""IPython's InteractiveShell, as kernels run it."""

import ast
import inspect
import logging
import os
import re
import sys
import types
import warnings

from kernel_tasks import needs_loop

# Prompts that were copied along: IPython takes them away, and some are valid Python.
MAYBE_PROMPT = re.compile(r"^(\s*>>>|\s*\.\.\.|\s*In \[)", re.MULTILINE)
NAME = re.compile(r"\w+")


def build_shell(output, memory, name_of_cell):
    """Makes the shell, whose results go to `output`."""
    from IPython.core.autocall import ExitAutocall, IPyAutocall
    from IPython.core.compilerop import CachingCompiler
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.macro import Macro
    from traitlets import default
    from traitlets.config import Config

    class Publisher(DisplayPublisher):
        """Shows displays at once. What a client was sent cannot be taken back, so those of a cell that clears its output wait for its end,
        as do updates: of each display the last state is shown."""

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.begin_cell()

        def begin_cell(self):
            self.clears = self.is_clear_due = False
            # By display id, or number where there is none.
            self.waiting = {}

        def publish(self, data, metadata=None, *, transient=None, update=False, **_other):
            if self.is_clear_due:
                self.clear_output()
            if not update and not self.clears:
                return self.show(data)
            name = (transient or {}).get("display_id", len(self.waiting))
            self.waiting[name] = data

        def clear_output(self, wait=False):
            self.clears, self.is_clear_due = True, wait
            if not wait:
                self.waiting.clear()

        def show_waiting(self):
            try:
                while self.waiting:
                    self.show(self.waiting.pop(next(iter(self.waiting))))
            except Exception:
                self.shell.showtraceback()

        def show(self, data):
            if "plotly" in sys.modules:
                load_beside("kernel_charts").display(data, output)
            else:
                output.display(data)

    class ResultHook(DisplayHook):
        """Sends the value of the last expression as the cell's result."""

        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            self.shell.displays.show_waiting()
            output.show_result(format_dict)

        def finish_displayhook(self):
            self._active = False

        def update_user_ns(self, result):
            super().update_user_ns(result)
            close_shown_figure(result)

    class CellCompiler(CachingCompiler):
        """Names cells as people count them, for tracebacks."""

        def get_code_name(self, raw_code, transformed_code, number):
            return name_of_cell()

    class Exit(ExitAutocall):
        """`exit` and `quit`: they end a cell as they end a script. IPython's end the loop of a terminal, which a kernel does not have."""

        def __call__(self, code=None):
            raise SystemExit(code)

    class Shell(InteractiveShell):
        displayhook_class = ResultHook
        display_pub_class = Publisher
        compiler_class = CellCompiler

        @default("exiter")
        def _exiter_default(self):
            return Exit(self)

        def init_builtins(self):
            super().init_builtins()
            # Modules that a program imports find them, too.
            self.builtin_trap.auto_builtins.update(exit=self.exiter, quit=self.exiter)

        def init_user_ns(self):
            super().init_user_ns()
            # IPython's refuses open(0), which programs read their input by. A kernel's channels are not among the first three.
            self.user_ns.pop("open", None)

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
            if not (self.autoawait and cell is not None and cell is transformed_cell):
                awaits = super().should_run_async(
                    raw_cell, transformed_cell=transformed_cell, preprocessing_exc_tuple=preprocessing_exc_tuple
                )
            return awaits or self.autoawait and needs_loop(transformed_cell or "")

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

        # The first error that was to be shown in the cell. The kernel tells errors at its end: the one of the execution's result, or else
        # this one, of a script that `%run` ran, of a value that could not be shown, or of a cell within the cell.
        shown_error = None
        # The traceback of the last error of a cell, for `%tb`. The error itself would keep the cell's objects.
        last_told = None

        # The first that is called after an error was raised.
        def showtraceback(self, exc_tuple=None, *_arguments, **_options):
            error = sys.exc_info()[1] if exc_tuple is None else exc_tuple[1]
            if error is None:
                print((self.last_told or "No traceback available to show.").rstrip(), file=sys.stderr)
            if isinstance(error, MemoryError):
                memory.lift()
            if self.shown_error is None:
                self.shown_error = error

        def showsyntaxerror(self, *_arguments, **_options):
            self.showtraceback()

        def showindentationerror(self, *_arguments, **_options):
            self.showtraceback()

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
    config.InteractiveShell.cache_size = 1000
    config.Completer.use_jedi = False
    main_module = types.ModuleType("__main__", "Automatically created module for the interactive environment")
    built = Shell.instance(config=config, user_module=main_module)
    built.cell_output = output
    # The program may put another one in its place.
    built.displays = built.display_pub
    built.usual_transformers = built.transformers()
    warnings.filterwarnings("ignore", message="To exit: use")
    # The template's pip says all that there is to say, and `!cd a && b` is right.
    warnings.filterwarnings("ignore", message="You executed the system command !")
    warnings.filterwarnings("ignore", message="The default engine for reading")
    logging.getLogger("matplotlib.font_manager").addFilter(FontNotes())
    sys.meta_path.insert(0, AfterImport("matplotlib.font_manager", lambda fonts: load_beside("kernel_fonts").complete(fonts)))
    sys.meta_path.insert(0, AfterImport("bokeh.io", lambda _io: load_beside("kernel_charts").show_bokeh(output)))
    sys.meta_path.insert(0, AfterImport("altair", lambda altair: load_beside("kernel_charts").show_altair(altair)))
    return built


class AfterImport:
    """A finder for one module: when it is first imported, something is done with it."""

    def __init__(self, name, do):
        self.name, self.do = name, do

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                self.do(module)

            spec.loader.exec_module = exec_module
        return spec


class FontNotes:
    """A filter for Matplotlib's notes about fonts: it makes some for each text, a hundred for one chart."""

    MOST = 100

    def __init__(self):
        self.told = set()

    def filter(self, record):
        """Returns false for a note that was told before, or one that a font has no such weight, which is made for each fallback."""
        note = record.getMessage()
        if "Failed to find font weight" in note or note in self.told or len(self.told) >= self.MOST:
            return False
        self.told.add(note)
        return True


def ipython_major():
    import IPython

    return IPython.version_info[0]


def close_shown_figure(value):
    """A figure that is the cell's result was just shown; open, it would be shown again at the cell's end."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    figure = sys.modules.get("matplotlib.figure")
    if pyplot is not None and figure is not None and isinstance(value, figure.Figure):
        pyplot.close(value)


def show_forms(shell):
    """Shows tables and charts as data, too."""
    load_beside("forms").install(shell)
    # Such clients have the Internet, and get a program of 5 MB with no page.
    shell.cell_output.most_libraries = 0


def load_beside(name):
    """A module of the kernel's that few cells need. By its path: the program's own modules may have the same name."""
    own = f"aludel_{name}"
    if own not in sys.modules:
        import importlib.util

        spec = importlib.util.spec_from_file_location(own, os.path.join(os.path.dirname(__file__), f"{name}.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[own] = module
    return sys.modules[own]
