"""pip inside a sandbox, where there is no network: that is said in one sentence, and nothing is tried again."""

import contextlib
import io
import os
import sys

os.environ.update(PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_ROOT_USER_ACTION="ignore")

from pip._internal.cli.main import main  # noqa: E402: it reads the variables

SENTENCE = (
    "There is no network in this sandbox, so pip cannot fetch packages; `pip list` shows those that are installed, "
    "and a wheel among your files is installed by its path."
)


def run():
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            status = main()
    except SystemExit as ended:
        status = ended.code
    words = said.getvalue()
    print(SENTENCE if "No matching distribution found" in words else words.rstrip("\n"), end="\n" if words else "", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(run())
