#!/usr/bin/env python3
"""Runs every kind of stream of the Assistants API (`variants.py`, `variants.mjs`) through eight versions of OpenAI's clients.

    tests/clients/assistants/matrix.py target/debug/aludel

All of them have to tell the same, that of `variants.json`. Takes three minutes, and 300 MB for the clients.
"""

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
EXPECTED = json.loads((HERE / "variants.json").read_text())
PYTHON = [("3.54.0", []), ("3.54.0", ["strict"]), ("2.24.0", []), ("1.109.1", []), ("1.40.0", [])]
NODE = ["7.57.0", "6.49.0", "5.23.2", "4.104.0"]
# Faults of the clients themselves.
KNOWN = {
    # Its helper takes `thread.run.incomplete` for no end of a run.
    ("node 4.104.0", "incomplete"): "OpenAIError: Final run has not been received",
}
CONFIGURATION = '[server]\nrun_lifetime = "8s"\n'


def start(command, url, model, *more, environment=None):
    """A program of variants that runs."""
    command = [*command, url + "/v1", "any", model, *more]
    return subprocess.Popen(command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True)


def differences(process, client=""):
    """Variants of which a client told something else than was expected, and its words."""
    told, _ = process.communicate(timeout=300)
    seen = json.loads(re.sub("file-[0-9a-f]+", "file-1", told or "{}"))
    wanted = {name: KNOWN.get((client, name), value) for name, value in EXPECTED.items()}
    return {name: seen.get(name) for name in wanted if seen.get(name) != wanted[name]}


def python(version, directory):
    """The interpreter with that version."""
    if not (directory / "installed").exists():
        venv.create(directory, with_pip=True, clear=True)
        # Versions of 2024 hand httpx an argument that it has no longer.
        packages = [f"openai=={version}", *(["httpx==0.27.2"] if version < "1.5" else [])]
        subprocess.run([directory / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
        (directory / "installed").touch()
    return directory / "bin/python"


def node(version, directory):
    """The directory with that version."""
    if not (directory / "installed").exists():
        directory.mkdir(parents=True, exist_ok=True)
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", directory, f"openai@{version}"]
        subprocess.run(install, check=True)
        (directory / "installed").touch()
    return directory


def main():
    executable = Path(sys.argv[1]).resolve()
    target = HERE.parents[2] / "target"
    os.environ.update(ALUDEL=str(executable), ALUDEL_TEMPLATES=str(target / "aludel-test/templates"))
    from server import MODEL, Server, scripted_model

    failed = False
    clients = target / "clients"
    with scripted_model() as port, Server(MODEL.format(name="scripted", port=port) + CONFIGURATION) as server:
        for version, strict in PYTHON:
            interpreter = python(version, clients / f"assistants-python-{version}")
            running = start([interpreter, HERE / "variants.py"], server.url, "scripted", *strict)
            failed |= report(" ".join(["python", version, *strict]), running)
        for version in NODE:
            environment = {"NODE_CLIENTS": str(node(version, clients / f"assistants-node-{version}"))}
            running = start(["node", HERE / "variants.mjs"], server.url, "scripted", environment=environment)
            failed |= report(f"node {version}", running)
    return failed


def report(client, process):
    """Prints how a client did. Returns true if it failed."""
    wrong = differences(process, client)
    known = sum(name == client for name, _ in KNOWN)
    print(f"{client}: {len(EXPECTED) - len(wrong) - known} of {len(EXPECTED)}" + (f", {known} by a fault of its own" if known else ""))
    for name, told in wrong.items():
        print(f"  {name}: {json.dumps(told)}\n  expected: {json.dumps(EXPECTED[name])}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
