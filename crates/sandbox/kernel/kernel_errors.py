"""Exceptions as people read them: the user's own frames, and cells by their number."""

import builtins
import os
import traceback

# The directory of the kernel's own programs.
OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
MAX_TRACEBACK = 16 << 10
# Characters. Clients carry values of their programs in it.
MAX_VALUE = 1 << 20
MAX_FRAMES_SHOWN = 12
MAX_ERRORS_SHOWN = 4
MAX_GROUPS_SHOWN = 3
# From Python 3.11 on.
ExceptionGroups = getattr(builtins, "BaseExceptionGroup", ())


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
    return {"name": name, "value": value[:MAX_VALUE], "traceback": text}


def chain_of(error, depth=0):
    """The causes, first to last, each as lines. Of a long chain the first one is kept, and those nearest to the error."""
    errors, seen = [(error, None)], {id(error)}
    while True:
        if error.__cause__ is not None:
            error, words = error.__cause__, "The above exception was the direct cause of the following exception:"
        elif error.__context__ is not None and not error.__suppress_context__:
            error, words = error.__context__, "During handling of the above exception, another exception occurred:"
        else:
            break
        if id(error) in seen:
            break
        seen.add(id(error))
        errors.append((error, words))
    nearest, first = errors[: MAX_ERRORS_SHOWN - 1], errors[MAX_ERRORS_SHOWN - 1 :][-1:]
    hidden = len(errors) - len(nearest) - len(first)
    parts = []
    for error, words in [*first, *reversed(nearest)]:
        parts.append(describe_one(error, depth))
        if words is not None:
            parts.append([f"\n{words}\n\n"])
        if hidden:
            parts.append([f"[{hidden} error{'s' if hidden > 1 else ''} not shown]\n"])
            hidden = 0
    return parts


def describe_one(error, depth):
    if isinstance(error, (SystemExit, KeyboardInterrupt)) and error.__traceback__ is None:
        return [f"{type(error).__name__}\n"]
    frames = [
        entry
        for entry in traceback.extract_tb(error.__traceback__)
        if not entry.filename.startswith(OWN) and "/IPython/core/" not in entry.filename
    ]
    first_own = next((place for place, entry in enumerate(frames) if is_own(entry)), None)
    lines = []
    if first_own is not None:
        lines.append("Traceback (most recent call last):\n")
        lines.extend(describe_frames(frames[first_own:]))
    lines.extend(traceback.format_exception_only(type(error), error))
    lines = [rename_cells(line) for line in lines]
    return lines + members_of(error, depth) if isinstance(error, ExceptionGroups) else lines


def members_of(group, depth):
    """The exceptions of a group, each with its causes, indented."""
    shown = group.exceptions[:MAX_ERRORS_SHOWN] if depth < MAX_GROUPS_SHOWN else ()
    lines = []
    for number, member in enumerate(shown, 1):
        lines.append(f"  --- {number} of {len(group.exceptions)} ---\n")
        text = "".join(line for part in chain_of(member, depth + 1) for line in part)
        lines.extend(f"  {line}\n" for line in text.splitlines())
    hidden = len(group.exceptions) - len(shown)
    if hidden:
        lines.append(f"  [{hidden} exception{'s' if hidden > 1 else ''} not shown]\n")
    return lines


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
