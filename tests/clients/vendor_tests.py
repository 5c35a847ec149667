"""The tests that a vendor's Python client has of its API, run against a real `aludel serve` and compared with what is known to fail."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def started(script, *arguments):
    """A server of ours, by its port."""
    process = subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()


def run(sources, tests, url, known, *options):
    """Runs these tests of a client's sources against an address, and returns the exit status: 1 if one fails that no line of `known` names."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-rA", "-p", "no:cacheprovider", *options]
    ended = subprocess.run(
        [*command, *(f"tests/api_resources/{name}" for name in tests)],
        cwd=sources,
        env={**os.environ, "TEST_API_BASE_URL": url},
        capture_output=True,
        text=True,
    )
    results = re.findall(r"^(PASSED|FAILED|ERROR) (\S+?)(?: - .*)?$", ended.stdout, re.M)
    known = {line.split()[0] for line in known.read_text().splitlines() if line and line[0] != "#"}
    failed = [name for result, name in results if result != "PASSED"]
    unexpected = [name for name in failed if not any(word in name for word in known)]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed, {len(failed) - len(unexpected)} of them known")
    if unexpected or not results:
        print("\n".join(unexpected[:50]), ended.stdout[-5000:], ended.stderr[-2000:], sep="\n")
        return 1
    return 0
