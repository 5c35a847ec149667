"""Runs OpenAI's own API tests (of the Python client's source) against a real `aludel serve`, and compares with what is known to fail.

    conform.py SDIST
"""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from conftest import Server  # noqa: E402

TESTS = ["containers", "conversations", "responses", "uploads"]
TESTS += ["beta/test_assistants.py", "beta/test_threads.py", "beta/threads"]
TESTS += [f"test_{name}.py" for name in ("containers", "conversations", "files", "models", "responses", "uploads")]


@contextlib.contextmanager
def started(script, *arguments):
    """A server of ours, by its port."""
    process = subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()


def main():
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "--tb=line", "-rA", "-p", "no:cacheprovider", "-n", "3"]
    with started(HERE.parent / "upstream.py") as port, Server(port) as server, started(HERE / "placeholders.py", server.url) as port:
        ended = subprocess.run(
            [*command, *(f"tests/api_resources/{name}" for name in TESTS)],
            cwd=sys.argv[1],
            env={**os.environ, "TEST_API_BASE_URL": f"http://127.0.0.1:{port}/v1"},
            capture_output=True,
            text=True,
        )
    results = re.findall(r"^(PASSED|FAILED|ERROR) (\S+?)(?: - .*)?$", ended.stdout, re.M)
    known = {line.split()[0] for line in (HERE / "known.txt").read_text().splitlines() if line and line[0] != "#"}
    failed = [name for result, name in results if result != "PASSED"]
    unexpected = [name for name in failed if not any(word in name for word in known)]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed, {len(failed) - len(unexpected)} of them known")
    if unexpected or not results:
        print("\n".join(unexpected[:50]), ended.stdout[-5000:], ended.stderr[-2000:], sep="\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
