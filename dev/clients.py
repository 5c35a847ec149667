"""The Python environment of the clients' tests, which `tests/clients/openai/run` makes."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "tests/clients/openai"
PYTHON = ROOT / "target/clients/openai-python"


def enter(aludel, *arguments):
    """Runs this script again in the environment, with more arguments, unless it is there; from then on the tests' modules can be imported."""
    if Path(sys.prefix) != PYTHON:
        subprocess.run([CLIENTS / "run", aludel, "--version"], check=True, stdout=subprocess.DEVNULL)
        os.execv(PYTHON / "bin/python", [PYTHON / "bin/python", *sys.argv, *arguments])
    sys.path.insert(0, str(CLIENTS))
    os.environ.update(ALUDEL=str(aludel.resolve()), ALUDEL_TEMPLATES=str(ROOT / "target/aludel-test/templates"))
