"""Width of printed tables and arrays, for a program whose output is read in so many columns.

What asks the system for the terminal's size finds COLUMNS, pandas' fitting of tables among it. Libraries that have a setting instead get it
when they are imported, and at once if they are.
"""

import importlib.util
import os
import sys

NARROWEST, WIDEST = 20, 500


def columns_of(text):
    """The columns that a variable asks for, within bounds; none if it is no number."""
    try:
        return min(max(int(text), NARROWEST), WIDEST)
    except ValueError:
        return None


def set_width_of(name, module, columns):
    try:
        if name == "pandas":
            module.set_option("display.width", columns)
        elif name == "numpy":
            module.set_printoptions(linewidth=columns)
    except Exception:
        pass  # a version without this setting prints as it does


class Finder:
    """Finds these libraries as the others do, and sets their width once they are imported."""

    NAMES = ("numpy", "pandas")

    def __init__(self):
        self.columns, self.asks_others = None, False

    def find_spec(self, name, path=None, target=None):
        if name not in self.NAMES or self.asks_others:
            return None
        # Not only an import asks: libraries look so for what they could use.
        self.asks_others = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asks_others = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                set_width_of(name, module, self.columns)

            spec.loader.exec_module = exec_module
        return spec

    def set(self, shell, columns):
        self.columns = columns
        # It has no setting but this variable.
        os.environ["POLARS_TABLE_WIDTH"] = str(columns)
        shell.display_formatter.formatters["text/plain"].max_width = columns
        for name in self.NAMES:
            if name in sys.modules:
                set_width_of(name, sys.modules[name], columns)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)


FINDER = Finder()


def follow(shell, text):
    """Prints in as many columns as the text says, if it says a number."""
    columns = columns_of(text)
    if columns is not None:
        FINDER.set(shell, columns)
