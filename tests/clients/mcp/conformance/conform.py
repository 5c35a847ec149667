"""Runs the conformance suite in both eras, against the product and against the build with fixtures, and compares with what is known to fail."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from server import Server  # noqa: E402

ERAS = ["2025-11-25", "2026-07-28"]
# Checks that pass: a scenario that checks nothing passes, too.
PASSED = {"product-2025-11-25": 44, "product-2026-07-28": 102, "fixtures-2025-11-25": 82, "fixtures-2026-07-28": 163}
TEST = "dialects::mcp::fixtures::serves_the_fixtures"


def fixtures():
    """The newest of the built tests in which the fixtures are."""
    built = Path(os.environ["ALUDEL"]).parent / "deps"
    found = [path for path in built.glob("aludel_server-*") if not path.suffix and os.access(path, os.X_OK)]
    for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True):
        if TEST in subprocess.run([path, "--list"], capture_output=True, text=True).stdout:
            return path
    return None


@contextmanager
def with_fixtures(executable):
    """The address of a server of the tests."""
    command = [executable, "--exact", TEST, "--ignored", "--nocapture"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        line = next((line for line in process.stdout if "listening on " in line), None)
        assert line, "the server with fixtures did not start"
        yield line.split("listening on ")[1].strip()
    finally:
        process.communicate()


def run(url, era, known):
    """Runs the suite. Returns true if it failed in another way than is known."""
    command = [*shlex.split(os.environ["SUITE"]), "server", "--url", url + "/mcp", "--requirements", era]
    ran = subprocess.run([*command, "--expected-failures", known], capture_output=True, text=True, timeout=300)
    total = re.search(r"^Total: (\d+) passed, (\d+) failed", ran.stdout, re.M)
    print(f"{known.stem}: " + (total[0] if total else "no result"))
    passed = int(total[1]) if total else 0
    if ran.returncode or passed < PASSED[known.stem]:
        print(ran.stdout[ran.stdout.find("=== SUMMARY") :], ran.stderr[-3000:], sep="\n")
        return True
    return False


def main():
    failed = False
    with Server() as server:
        for era in ERAS:
            failed |= run(server.url, era, HERE / f"product-{era}.yml")
    executable = fixtures()
    if executable is None:
        print("NOT TESTED: the fixtures (cargo test -p aludel-server --lib --no-run builds them)", file=sys.stderr)
        return failed
    with with_fixtures(executable) as url:
        for era in ERAS:
            failed |= run(url, era, HERE / f"fixtures-{era}.yml")
    return failed


if __name__ == "__main__":
    sys.exit(main())
