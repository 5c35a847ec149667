"""The programs of the guide's pages, run as they stand there, but for the server's address, the model's name and the key."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guide"


def programs(page, language="python"):
    """The programs of a page in a language; there has to be one."""
    found = re.findall(rf"```{language}\n(.*?)```", (GUIDE / page).read_text(), re.S)
    assert found, page
    return found


def run(program, url, model, key="unused", command=(sys.executable, "-"), **environment):
    """The output of a program that ends well."""
    for told, real in (("http://127.0.0.1:8080", url), ('"gpt-5"', f'"{model}"'), ('"unused"', f'"{key}"')):
        program = program.replace(told, real)
    with tempfile.TemporaryDirectory() as directory:
        options = {"capture_output": True, "text": True, "timeout": 120, "cwd": directory, "env": {**os.environ, **environment}}
        done = subprocess.run([*command], input=program, **options)
    assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"
    return done.stdout
